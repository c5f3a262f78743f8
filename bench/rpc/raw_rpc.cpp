// The bounds of the RPC comparison, with the command line of program.h. Transports: tcp, futex and
// spin. Cases besides the usual: stream, memcpy and memcpy-echo; busy, which only uses the
// processor; and naps, which wakes up once a second.
#include "bench/rpc/program.h"
#include "bench/rpc/raw_shm.h"
#include "bench/rpc/raw_tcp.h"

#include <chrono>
#include <optional>
#include <thread>

namespace muster::bench {
namespace {

std::optional<RpcResult> measure_bound(const RpcOptions& options) {
  if (options.case_name == "stream") return measure_raw_stream(options);
  if (options.case_name.starts_with("memcpy")) return measure_memcpy(options);
  const RpcClock::time_point begun = RpcClock::now();
  if (options.case_name == "busy") {
    while (seconds_since(begun) < options.seconds) {
    }
    return RpcResult{};
  }
  if (options.case_name == "naps") {
    while (seconds_since(begun) < options.seconds) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return RpcResult{};
  }
  return std::nullopt;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  const RpcProgram program{
      [](const RpcOptions& options) {
        options.transport == "tcp" ? serve_raw_tcp(options) : serve_raw_shm(options);
      },
      [](const RpcOptions& options) {
        return options.transport == "tcp" ? connect_raw_tcp(options) : connect_raw_shm(options);
      },
      measure_bound};
  return run_program(argc, argv, program);
}
