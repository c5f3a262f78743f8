// A workload for the linearizability checker: random operations by several clients on few keys, and
// the record of what came back.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/store/store.h"
#include "tests/linearizability/history.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::linearizability {

struct WorkloadOptions {
  std::string key_prefix = "key";
  // Few keys, so that clients meet.
  std::uint64_t key_count = 3;
  // Add draws its delta from 1 to this.
  std::uint64_t delta_max = 3;
  // How many of a thousand values written are text, on which Add fails; the others are numbers.
  std::uint64_t text_per_thousand = 200;

  // How often each kind is drawn, relative to the others. A kind with 0 is never drawn; not all are
  // 0.
  struct Weights {
    std::uint64_t set = 4;
    std::uint64_t get = 1;
    std::uint64_t try_get = 6;
    std::uint64_t add = 3;
    std::uint64_t compare_set = 4;
    std::uint64_t erase = 1;
    std::uint64_t append = 1;
  };
  Weights weights{};
};

// What one client remembers between its operations.
struct Memory {
  // Makes what it writes unlike anything else written: a client's number and how many operations it
  // has begun.
  int client = 0;
  std::size_t operation_index = 0;
  // The value of each key as the client saw it last, so that its comparisons sometimes succeed.
  std::map<std::string, Value> seen;
};

// Draws an operation. Pure: the same generator, options and memory give the same operation.
Call next_operation(Random& random, const WorkloadOptions& options, const Memory& memory);

// Collects the operations of several clients, each with the logical times of its invocation and its
// return.
//
// Clients may live on different threads: each writes its own list, and they share only the clock,
// an atomic counter. Two calls for the same client must not run at the same time, and `history`
// must wait until all clients are done (the caller joins their threads). In a simulation it is used
// from the one thread there is.
class Recorder {
 public:
  // Names one operation of one client.
  using Ticket = std::size_t;

  // Clients are numbered from 0 to client_count-1.
  explicit Recorder(int client_count);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The operation is about to be sent. Until something else is said about it, its outcome is
  // unknown; so an operation whose task is destroyed is recorded rightly.
  Ticket invoke(int client, Call call);
  void answer(int client, Ticket ticket, Answer answer);
  // It failed and certainly had no effect.
  void refuse(int client, Ticket ticket);

  // How many operations the client has begun.
  std::size_t begun_count(int client) const;

  // All operations by invocation, less the reads without an answer, which say nothing.
  History history() const;

 private:
  std::vector<Operation>& of(int client);
  // Readings are unique, and the counter's order is the order of real time: an operation's effects
  // cannot move across the sequentially consistent increments before and after it.
  std::uint64_t tick() { return clock_.fetch_add(1); }

  std::atomic<std::uint64_t> clock_{1};
  std::vector<std::vector<Operation>> operations_;  // by client
};

// What a store's reply or error means for the history. An error on a write leaves the outcome
// unknown (an Outcome of Unknown), except Invalid: then the request was refused, which for Add is
// itself an answer about the value.
struct Reply {
  Outcome outcome = Outcome::Unknown;
  Answer answer;
};
Reply reply_for(Kind kind, const Error& error);

struct ClientOptions {
  int client = 0;
  std::size_t operation_count = 100;
  WorkloadOptions workload{};
  // How long a Get waits for its key. Then it is dropped, as every read without an answer.
  Duration get_timeout = std::chrono::milliseconds(100);
  // After so many errors in a row (Invalid and a Get's Timeout aside) the client stops: its store
  // is gone for good, and more operations without an answer would only make the history say less.
  int errors_max = 8;
};

// Runs random operations against `store`, one after the other, and records them. May be run again
// for the same client with another store, as after a lost connection: `Recorder::begun_count` tells
// how many operations are left to do. Requires: `store`, `clock` (usually the store's loop) and
// `recorder` outlive the task.
Task<void> run_client(store::Store& store, const Clock& clock, Recorder& recorder, Random random,
                      ClientOptions options);

}  // namespace muster::linearizability
