// What the programs of the RPC comparison share: the command line, the loops that measure, and the
// line of JSON. A peer brings a server and a Caller.
//
//   PROGRAM server --transport tcp --threads N     prints "listening ADDRESS", serves until its
//                                                  input ends
//   PROGRAM client --transport tcp --address ADDRESS --case noop|inflight|echo|idle --bytes B
//                  --in-flight K --threads T --seconds S [--frees PID]
//
// noop-pool is measured as noop is; what differs is the caller's, who finds the name in its
// options.
//
// The namespace is that of all benchmarks: inside one called rpc, nobody could name Muster's own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace muster::bench {

using RpcClock = std::chrono::steady_clock;

struct RpcOptions {
  bool is_server = false;
  std::string transport = "tcp";
  std::string address;
  std::string case_name = "noop";
  std::string kind;  // which of its servers, for a peer that has several
  std::size_t bytes = 0;
  std::size_t in_flight = 1;
  std::size_t threads = 1;
  std::size_t count = 0;  // of peers to connect to, for Muster's case `peers`
  double seconds = 0.5;
  // The server's process: once connected, its threads and those of the client may use all
  // processors that bench/run may.
  int freed = 0;
};

/// One calling thread's way to the server. Made and used in that thread. Whatever goes wrong is
/// thrown as std::runtime_error.
class Caller {
 public:
  Caller() = default;
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  virtual ~Caller() = default;

  /// A call without arguments and result; returns when the reply is there.
  virtual void noop() = 0;

  /// Sends the payload and returns when the whole reply is in contiguous memory.
  virtual void echo(std::span<const std::byte> payload) = 0;

  /// What the last echo() brought; valid until the next one.
  virtual std::span<const std::byte> reply() const = 0;

  /// Makes no-op calls, `count` in flight all the time until `ends`, then waits for the rest.
  /// Returns how many were answered.
  virtual std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) = 0;
};

/// One measurement; what is not set is not printed.
struct RpcResult {
  std::optional<double> p50_us;
  std::optional<double> p99_us;
  std::optional<double> calls_per_s;
  std::optional<double> bytes_per_s;
  std::optional<double> cpu_s;         // of this process while it was measured
  std::optional<double> memory_bytes;  // for Muster's case `peers`
};

struct RpcProgram {
  /// Calls announce() once it serves, and returns or exits when the input ends.
  std::function<void(const RpcOptions&)> serve;
  std::function<std::unique_ptr<Caller>(const RpcOptions&)> connect;
  /// Cases that are not calls; nothing if it is not one of them.
  std::function<std::optional<RpcResult>(const RpcOptions&)> other;
};

/// The whole of a main(). Prints {"error": ...} and returns 1 if something goes wrong.
int run_program(int argc, char** argv, const RpcProgram& program);

void announce(const std::string& address);

/// Blocks until the input ends, as it does when bench/run is done with this server, or dies.
void wait_for_end_of_input();

/// For servers whose own loop takes the main thread: ends the process when the input ends.
void exit_at_end_of_input();

/// A path for a Unix socket that nobody else uses; bench/run removes what is left of it.
std::string unix_socket_path();

double process_cpu_seconds();
double seconds_since(RpcClock::time_point begun);

}  // namespace muster::bench
