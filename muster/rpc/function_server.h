// FunctionServer: serves calls of functions: SCRIPT_CALL and PYTHON_CALL, and SCRIPT_REMOTE_CALL
// and PYTHON_REMOTE_CALL, whose result stays here. The four are read alike; that those of Python
// have a type of their own is for people who look at messages, and for faults.
//
// Inline functions run where the request was read, the others on a pool. What is about references
// is handed to whoever keeps them. Everything else that comes is answered with an error.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/pool.h"
#include "muster/rpc/value.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc {

class FunctionServer final : public RequestHandler {
 public:
  // `id` is this worker's, for texts. Requires: `functions` outlives it.
  // `references`: of the agent that it serves; nothing: there are none.
  FunctionServer(const Functions& functions, std::size_t thread_count, std::int16_t id,
                 std::shared_ptr<References> references = nullptr);

  // Requests wait from now on, until `open`. Others call a worker as soon as they know of it, which
  // may be before it has all that its functions use; so it is closed before its agent starts.
  void close() { is_open_ = false; }
  void open();

  void on_request(Request request) override;
  void on_worker_lost(const WorkerInfo& worker, const std::string& reason) override;
  void on_worker_joined(const WorkerInfo& worker, std::uint64_t incarnation) override;
  void on_worker_heard(const WorkerInfo& worker) override;
  void on_connection_lost(ConnectionNumber connection) override;
  // From now on no function is begun. Requests that wait are dropped when a thread comes to them,
  // and nobody is answered: for an agent that ends all its connections next.
  void drop_what_waits() { drops_ = true; }
  // Finishes what it has. After the agent was shut down.
  void stop() { pool_.stop(); }

  // Whether this thread is one that runs functions.
  bool is_current() const { return pool_.is_current(); }
  std::size_t thread_count() const { return pool_.thread_count(); }
  std::size_t idle_count() const { return pool_.idle_count(); }
  // Asynchronous functions that have returned, but whose answer is not known yet.
  std::int64_t asynchronous_count() const { return asynchronous_count_->load(); }

 private:
  class Call;

  void serve(Request request);
  void serve_call(Request request);

  const Functions& functions_;
  const std::int16_t id_;
  const std::shared_ptr<References> references_;
  // Also of the calls, the last of which may be answered when the server is gone.
  const std::shared_ptr<std::atomic<std::int64_t>> asynchronous_count_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  std::atomic<bool> is_open_ = true;
  std::atomic<bool> drops_ = false;
  std::mutex mutex_;              // guards what follows
  std::vector<Request> waiting_;  // until it is open
  Pool pool_;
};

// Where the tensors of the answer go.
DeviceRoute response_route(const Request& request);

// Who called the function that this thread runs. Nothing outside of one.
const WorkerInfo* caller();
// Whether whoever called the function that this thread runs has stopped waiting: its time is over,
// or it is gone. For functions that take long; nobody is ever stopped.
bool is_cancelled();

// What is known of a request before its function and its arguments are written.
struct Envelope {
  MessageType type = MessageType::ScriptCall;
  std::string head{};                    // what is before them in the message
  Freight* freight = nullptr;            // nothing: it carries no references
  const DeviceRoute* devices = nullptr;  // nothing: its tensors are those of the CPU
};

// Requires: an exception is being handled, that of a codec.
Error unwritable_arguments();

// The request that calls a function; the arguments as the callee's signature has them. Whatever was
// given away before one of them could not be written is in the freight, for the caller to take
// back.
template <typename F, typename... Args>
Result<Message> encode_call(Envelope envelope, std::string_view name, Args&&... args) {
  Writer writer(std::move(envelope.head));
  writer.set_freight(envelope.freight);
  if (envelope.devices != nullptr) writer.set_route(*envelope.devices);
  // A codec of a program's own may throw.
  try {
    writer.write(name, signature_hash<F>());
    writer.write(std::forward<Args>(args)...);
  } catch (...) {
    return fail(unwritable_arguments());
  }
  if (auto written = writer.finish(); !written) return fail(written.error());
  Message message{envelope.type, kNoMessageId, writer.take_control(), {}};
  message.buffers = writer.take_buffers();
  return message;
}
// Likewise, with tensors of the CPU alone and without references.
template <typename F, typename... Args>
Result<Message> encode_call(std::string_view name, Args&&... args) {
  return encode_call<F>(Envelope{}, name, std::forward<Args>(args)...);
}

// What is needed to read a response.
struct ResponseContext {
  References* references = nullptr;
  DeviceSupport* device_support = nullptr;
};

// An answer came, and is of no use.
CallError unreadable_answer(std::string_view reason);
CallError unreadable_answer(const Failure& thrown);

// What a call came to. Throws nothing.
template <typename T>
CallResult<T> decode_response(CallResult<Message> outcome, const ResponseContext& context = {},
                              MessageType expected = MessageType::ScriptRet) {
  if (!outcome) return call_failed(std::move(outcome.error()));
  if (outcome->type != expected) {
    return call_failed({CallErrorKind::Remote,
                        "it answered with a message of type " + name_of(outcome->type), "", true});
  }
  // A codec of a program's own may throw, and whoever reads must not be taken down by it.
  try {
    Freight freight(context.references);
    auto value = decode<T>(outcome->payload, outcome->buffers, {&freight, context.device_support});
    if (!value) return call_failed(unreadable_answer(value.error().message));
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      return std::move(*value);
    }
  } catch (...) {
    return call_failed(unreadable_answer(describe_current_exception()));
  }
}

}  // namespace muster::rpc
