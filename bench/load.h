// What every load generator of the store comparison shares: the work to do, what came of it, and
// the Driver interface.
//
// A driver speaks one protocol to one server: the raw echo, Redis, PyTorch's dialect M, or Muster's
// own client. All of them run in one thread, keep the same number of requests in flight and carry
// the same values, so that their figures may be divided by one another.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::bench {

enum class Operation {
  Get,
  Set,
  Add,
  CompareSet,
  Wake,  // one write releases every client; each has waited on a connection of its own
};

Result<Operation> parse_operation(std::string_view name);

struct Workload {
  Operation operation = Operation::Get;
  int port = 0;  // on 127.0.0.1
  int client_count = 1;
  int depth =
      1;  // requests in flight on each connection; each reply is followed by the next request
  std::size_t value_bytes = 16;
  Duration length = std::chrono::milliseconds(300);
  // Only the raw echo needs to be told: what Muster's client and server exchange for this
  // operation.
  std::size_t request_bytes = 0;
  std::size_t reply_bytes = 0;
};

// The key that client number `client` uses. The same text for every server.
std::string key_of(int client);

// How long each operation took. Replies that arrive in one read share a time stamp and are one
// entry.
class Latencies {
 public:
  void reserve(std::size_t count) { entries_.reserve(count); }
  void add(Duration length, std::uint32_t count);
  std::uint64_t count() const { return count_; }
  // Nearest rank; zero if there is none. `fraction` is 0.5 for the median.
  Duration percentile(double fraction);
  Duration longest() const { return longest_; }

 private:
  struct Entry {
    std::uint32_t nanoseconds;
    std::uint32_t count;
  };
  std::vector<Entry> entries_;
  std::uint64_t count_ = 0;
  Duration longest_{};
  bool sorted_ = false;
};

struct Measurement {
  Latencies latencies;
  Duration elapsed{};
  // Of operations, those of the warm-up too: what the server has worked for.
  std::uint64_t all_count = 0;

  double rate() const;
  // One line of JSON for bench/run.
  std::string json();
};

// Owned by the command loop in store_load.cpp; lives on its only thread.
class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  // Connects, warms up, measures for about `workload.length`, disconnects.
  virtual Result<Measurement> measure(const Workload& workload) = 0;
};

// The part of a measurement that is thrown away at its beginning.
inline Duration warm_up_of(const Workload& workload) { return workload.length / 5; }

TimePoint steady_now();

}  // namespace muster::bench
