// TensorPipe in the RPC comparison, with the command line of program.h. Transports: tcp (its uv
// transport with the basic channel) and shm (its shm transport, which keeps a core busy looking,
// with the cma channel, which copies straight from the other process).
//
// TensorPipe carries messages; a call is one message there and one back. Given its best: the server
// answers in the thread that read, payloads go as tensors into memory that is there already, and
// each calling thread has a pipe of its own.
#include "bench/rpc/program.h"

#include <fmt/format.h>
#include <tensorpipe/tensorpipe.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <semaphore>
#include <stdexcept>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

namespace tp = tensorpipe;

constexpr std::int64_t kPriority = 0;

std::shared_ptr<tp::Context> make_context(const std::string& transport) {
  auto context = std::make_shared<tp::Context>();
  if (transport == "shm") {
    context->registerTransport(kPriority, "shm", tp::transport::shm::create());
    const auto cma = tp::channel::cma::create();
    if (!cma->isViable()) throw std::runtime_error("TensorPipe: its cma channel cannot work here");
    context->registerChannel(kPriority, "cma", cma);
  } else if (transport == "tcp") {
    context->registerTransport(kPriority, "uv", tp::transport::uv::create());
    context->registerChannel(kPriority, "basic", tp::channel::basic::create());
  } else {
    throw std::runtime_error("TensorPipe has no transport " + transport);
  }
  return context;
}

/// Where the one tensor of a message goes, if it has one: into `memory`, which is kept.
tp::Allocation allocate(const tp::Descriptor& descriptor, std::vector<std::byte>& memory) {
  tp::Allocation allocation;
  if (!descriptor.tensors.empty()) {
    memory.resize(descriptor.tensors[0].length);
    allocation.tensors.push_back({tp::CpuBuffer{memory.data()}});
  }
  return allocation;
}

tp::Message message_with(void* data, std::size_t bytes) {
  tp::Message message;
  tp::Message::Tensor tensor;
  tensor.buffer = tp::CpuBuffer{data};
  tensor.length = bytes;
  message.tensors.push_back(std::move(tensor));
  return message;
}

// ---- the server ----

// One pipe. Callbacks keep it alive; it ends when the other side does.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::shared_ptr<tp::Pipe> pipe) : pipe_(std::move(pipe)) {}

  void serve() {
    pipe_->readDescriptor(
        [self = shared_from_this()](const tp::Error& error, tp::Descriptor descriptor) {
          if (error) return;
          const bool has_tensor = !descriptor.tensors.empty();
          tp::Allocation allocation = allocate(descriptor, self->memory_);
          self->pipe_->read(std::move(allocation), [self, has_tensor](const tp::Error& problem) {
            if (!problem) self->answer(has_tensor);
          });
          // No-ops that follow are read meanwhile; echoes come one at a time.
          self->serve();
        });
  }

 private:
  void answer(bool has_tensor) {
    tp::Message reply = has_tensor ? message_with(memory_.data(), memory_.size()) : tp::Message();
    pipe_->write(std::move(reply), [self = shared_from_this()](const tp::Error&) {});
  }

  std::shared_ptr<tp::Pipe> pipe_;
  std::vector<std::byte> memory_;
};

void accept(const std::shared_ptr<tp::Listener>& listener) {
  listener->accept([listener](const tp::Error& error, std::shared_ptr<tp::Pipe> pipe) {
    if (error) return;
    std::make_shared<Connection>(std::move(pipe))->serve();
    accept(listener);
  });
}

void serve(const RpcOptions& options) {
  const std::shared_ptr<tp::Context> context = make_context(options.transport);
  const bool is_shm = options.transport == "shm";
  const std::shared_ptr<tp::Listener> listener = context->listen(
      {is_shm ? fmt::format("shm://muster-bench-{}", ::getpid()) : "uv://127.0.0.1"});
  accept(listener);
  announce(listener->url(is_shm ? "shm" : "uv"));
  wait_for_end_of_input();
  ::_exit(0);
}

// ---- the client ----

void check(const tp::Error& error) {
  if (error) throw std::runtime_error("TensorPipe: " + error.what());
}

class TensorpipeCaller final : public Caller {
 public:
  explicit TensorpipeCaller(const RpcOptions& options)
      : context_(shared_context(options.transport)), pipe_(context_->connect(options.address)) {}

  ~TensorpipeCaller() override { pipe_->close(); }

  void noop() override { call(tp::Message()); }

  void echo(std::span<const std::byte> payload) override {
    // A buffer to send is declared as one to write.
    call(message_with(const_cast<std::byte*>(payload.data()), payload.size()));
  }

  std::span<const std::byte> reply() const override { return reply_; }

  std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) override {
    in_flight_ = count;
    answered_ = 0;
    for (std::size_t index = 0; index < count; ++index) send(tp::Message());
    receive_next(ends);
    done_.acquire();
    check(error_);
    return answered_;
  }

 private:
  // All callers of a process share one, and so its threads.
  static std::shared_ptr<tp::Context> shared_context(const std::string& transport) {
    static std::mutex mutex;
    static std::shared_ptr<tp::Context> context;
    const std::lock_guard lock(mutex);
    if (!context) context = make_context(transport);
    return context;
  }

  void send(tp::Message message) {
    pipe_->write(std::move(message), [](const tp::Error&) {});
  }

  void call(tp::Message message) {
    send(std::move(message));
    pipe_->readDescriptor([this](const tp::Error& error, tp::Descriptor descriptor) {
      if (error) return finish(error);
      tp::Allocation allocation = allocate(descriptor, reply_);
      pipe_->read(std::move(allocation), [this](const tp::Error& problem) { finish(problem); });
    });
    done_.acquire();
    check(error_);
  }

  // Each reply is followed by the next call, in TensorPipe's own thread.
  void receive_next(RpcClock::time_point ends) {
    pipe_->readDescriptor([this, ends](const tp::Error& error, const tp::Descriptor&) {
      if (error) return finish(error);
      pipe_->read(tp::Allocation(), [this, ends](const tp::Error& problem) {
        if (problem) return finish(problem);
        ++answered_;
        if (RpcClock::now() < ends) {
          send(tp::Message());
        } else if (--in_flight_ == 0) {
          return finish(problem);
        }
        receive_next(ends);
      });
    });
  }

  void finish(const tp::Error& error) {
    error_ = error;
    done_.release();
  }

  std::shared_ptr<tp::Context> context_;
  std::shared_ptr<tp::Pipe> pipe_;
  std::binary_semaphore done_{0};
  tp::Error error_;
  std::vector<std::byte> reply_;
  std::size_t in_flight_ = 0;
  std::uint64_t answered_ = 0;
};

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  const int status = run_program(argc, argv,
                                 {serve,
                                  [](const RpcOptions& options) -> std::unique_ptr<Caller> {
                                    return std::make_unique<TensorpipeCaller>(options);
                                  },
                                  nullptr});
  // Its threads are still about; nothing is left to do for them.
  ::_exit(status);
}
