// Cap'n Proto's RPC in the RPC comparison, with the command line of program.h. Transports: tcp, and
// unix, which is the nearest to shared memory that it has.
//
// Given its best: messages are sized beforehand, the client's payload is sent from where it is, and
// each calling thread has an event loop and a connection of its own, which is how the library means
// to be used by threads. The reply is read in place.
#include "bench/rpc/program.h"
#include "capnp_rpc.capnp.h"

#include <capnp/ez-rpc.h>
#include <fmt/format.h>
#include <kj/async.h>

#include <limits>
#include <stdexcept>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

// Beside the bytes of a payload.
constexpr std::size_t kMessageWords = 64;

capnp::MessageSize size_of(std::size_t bytes) {
  return {bytes / sizeof(capnp::word) + kMessageWords, 0};
}

// 64 MiB are just over what a reader allows by default.
capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = std::numeric_limits<std::uint64_t>::max();
  return options;
}

class BenchServer final : public peer::Bench::Server {
 public:
  kj::Promise<void> noop(NoopContext) override { return kj::READY_NOW; }

  // The copy cannot be saved: what was received is released when the call is complete, before the
  // reply that would refer to it has been written.
  kj::Promise<void> echo(EchoContext context) override {
    const capnp::Data::Reader data = context.getParams().getData();
    context.initResults(size_of(data.size())).setData(data);
    return kj::READY_NOW;
  }
};

void serve(const RpcOptions& options) {
  const bool over_unix = options.transport == "unix";
  const std::string path = "unix:" + unix_socket_path();
  capnp::EzRpcServer server(kj::heap<BenchServer>(), over_unix ? path.c_str() : "127.0.0.1", 0,
                            reader_options());
  kj::WaitScope& scope = server.getWaitScope();
  const unsigned port = server.getPort().wait(scope);
  announce(over_unix ? path : fmt::format("127.0.0.1:{}", port));
  exit_at_end_of_input();
  kj::Promise<void>(kj::NEVER_DONE).wait(scope);
}

class CapnpCaller final : public Caller {
 public:
  explicit CapnpCaller(const RpcOptions& options)
      : client_(options.address.c_str(), 0, reader_options()),
        scope_(client_.getWaitScope()),
        bench_(client_.getMain<peer::Bench>()) {}

  // What it is made of may throw when it ends; nothing here waits for that.
  ~CapnpCaller() noexcept override = default;

  void noop() override { bench_.noopRequest(size_of(0)).send().wait(scope_); }

  void echo(std::span<const std::byte> payload) override {
    reply_ = nullptr;
    auto request = bench_.echoRequest(size_of(0));
    const capnp::Data::Reader data(reinterpret_cast<const capnp::byte*>(payload.data()),
                                   payload.size());
    request.adoptData(
        capnp::Orphanage::getForMessageContaining(peer::Bench::EchoParams::Builder(request))
            .referenceExternalData(data));
    reply_ = kj::heap<Response>(request.send().wait(scope_));
  }

  std::span<const std::byte> reply() const override {
    const capnp::Data::Reader data = reply_->getData();
    return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
  }

  std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) override {
    std::uint64_t answered = 0;
    kj::Vector<kj::Promise<void>> lines(count);
    for (std::size_t index = 0; index < count; ++index) lines.add(call_until(ends, answered));
    kj::joinPromises(lines.releaseAsArray()).wait(scope_);
    return answered;
  }

 private:
  using Response = capnp::Response<peer::Bench::EchoResults>;

  // One call after the other, each begun where the one before ended.
  kj::Promise<void> call_until(RpcClock::time_point ends, std::uint64_t& answered) {
    return bench_.noopRequest(size_of(0))
        .send()
        .then([this, ends, &answered](auto&&) -> kj::Promise<void> {
          ++answered;
          if (RpcClock::now() >= ends) return kj::READY_NOW;
          return call_until(ends, answered);
        });
  }

  capnp::EzRpcClient client_;
  kj::WaitScope& scope_;
  peer::Bench::Client bench_;
  kj::Own<Response> reply_;
};

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  return run_program(argc, argv,
                     {serve,
                      [](const RpcOptions& options) -> std::unique_ptr<Caller> {
                        return std::make_unique<CapnpCaller>(options);
                      },
                      nullptr});
}
