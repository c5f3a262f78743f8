// gRPC in the RPC comparison, with the command line of program.h. Transports: tcp, and unix, which
// is the nearest to shared memory that it has. Servers (--kind): callback, where the no-op runs in
// the thread that read it, and sync, where it runs in a pool.
//
// Given its best: no TLS, no limits of size, no compression, a channel with a connection of its own
// for each calling thread, and payloads as raw bytes, which saves protobuf's copies.
#include "bench/rpc/program.h"
#include "grpc_rpc.grpc.pb.h"

#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

using peer::Bench;
using peer::Nothing;

grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

// Both have the same echo: the received pieces are sent back as they are.
class SyncServer final : public Bench::WithRawCallbackMethod_Echo<Bench::Service> {
 public:
  grpc::Status Noop(grpc::ServerContext*, const Nothing*, Nothing*) override {
    return grpc::Status::OK;
  }
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* reply) override {
    *reply = *request;
    return finish(context);
  }
};

class CallbackServer final
    : public Bench::WithCallbackMethod_Noop<Bench::WithRawCallbackMethod_Echo<Bench::Service>> {
 public:
  grpc::ServerUnaryReactor* Noop(grpc::CallbackServerContext* context, const Nothing*,
                                 Nothing*) override {
    return finish(context);
  }
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* reply) override {
    *reply = *request;
    return finish(context);
  }
};

void serve(const RpcOptions& options) {
  SyncServer sync;
  CallbackServer callback;
  const bool over_unix = options.transport == "unix";
  const std::string path = "unix:" + unix_socket_path();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(over_unix ? path : "127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  if (options.kind == "sync") {
    builder.RegisterService(&sync);
  } else {
    builder.RegisterService(&callback);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) throw std::runtime_error("the gRPC server does not start");
  announce(over_unix ? path : fmt::format("127.0.0.1:{}", port));
  wait_for_end_of_input();
  ::_exit(0);  // a shutdown would wait for what clients left behind
}

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
}

class GrpcCaller final : public Caller {
 public:
  explicit GrpcCaller(const RpcOptions& options) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const auto channel =
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
      throw std::runtime_error("gRPC does not connect to " + options.address);
    }
    stub_ = Bench::NewStub(channel);
    raw_stub_ = std::make_unique<grpc::GenericStub>(channel);
  }

  void noop() override {
    grpc::ClientContext context;
    Nothing reply;
    check(stub_->Noop(&context, Nothing(), &reply));
  }

  void echo(std::span<const std::byte> payload) override {
    const grpc::Slice slice(payload.data(), payload.size(), grpc::Slice::STATIC_SLICE);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    const auto call =
        raw_stub_->PrepareUnaryCall(&context, "/muster.bench.peer.Bench/Echo", request, &queue_);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    next();
    check(status);
    // Whoever asked wants one piece of memory.
    std::vector<grpc::Slice> slices;
    check(reply.Dump(&slices));
    reply_.resize(reply.Length());
    std::byte* at = reply_.data();
    for (const grpc::Slice& each : slices) {
      std::memcpy(at, each.begin(), each.size());
      at += each.size();
    }
  }

  std::span<const std::byte> reply() const override { return reply_; }

  std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) override {
    std::vector<std::unique_ptr<Call>> calls(count);
    for (std::unique_ptr<Call>& call : calls) start(call);
    std::uint64_t answered = 0;
    for (std::size_t in_flight = count; in_flight > 0;) {
      auto& call = *static_cast<std::unique_ptr<Call>*>(next());
      check(call->status);
      ++answered;
      if (RpcClock::now() < ends) {
        start(call);
      } else {
        --in_flight;
      }
    }
    return answered;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    Nothing reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Nothing>> reader;
  };

  // A context serves one call only, so each call needs a new one. What next() returns is its place.
  void start(std::unique_ptr<Call>& call) {
    call = std::make_unique<Call>();
    call->reader = stub_->PrepareAsyncNoop(&call->context, Nothing(), &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->reply, &call->status, &call);
  }

  void* next() {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok) || !ok) throw std::runtime_error("gRPC's queue ended");
    return tag;
  }

  std::unique_ptr<Bench::Stub> stub_;
  std::unique_ptr<grpc::GenericStub> raw_stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::byte> reply_;
};

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  return run_program(argc, argv,
                     {serve,
                      [](const RpcOptions& options) -> std::unique_ptr<Caller> {
                        return std::make_unique<GrpcCaller>(options);
                      },
                      nullptr});
}
