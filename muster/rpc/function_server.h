// FunctionServer: serves calls of native functions (SCRIPT_CALL).
//
// Inline functions run where the request was read, the others on a pool. Everything else that comes
// is answered with an error.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/pool.h"
#include "muster/rpc/value.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace muster::rpc {

class FunctionServer final : public RequestHandler {
 public:
  // `id` is this worker's, for texts. Requires: `functions` outlives it.
  FunctionServer(const Functions& functions, std::size_t thread_count, std::int16_t id);

  void on_request(Request request) override;
  // Finishes what runs. After the agent was shut down.
  void stop() { pool_.stop(); }

  std::size_t thread_count() const { return pool_.thread_count(); }
  std::size_t idle_count() const { return pool_.idle_count(); }
  // Functions that have returned, but whose answer is not known yet.
  std::int64_t asynchronous_count() const { return asynchronous_count_->load(); }

 private:
  class Call;

  const Functions& functions_;
  const std::int16_t id_;
  // Also of the calls, the last of which may be answered when the server is gone.
  const std::shared_ptr<std::atomic<std::int64_t>> asynchronous_count_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  Pool pool_;
};

// Who called the function that this thread runs. Nothing outside of one.
const WorkerInfo* caller();
// Whether whoever called the function that this thread runs has stopped waiting: its time is over,
// or it is gone. For functions that take long; nobody is ever stopped.
bool is_cancelled();

// The request that calls a function; the arguments as the callee's signature has them.
template <typename F, typename... Args>
Result<Message> encode_call(const DeviceRoute& route, std::string_view name, Args&&... args) {
  Writer writer;
  writer.set_route(route);
  writer.write(name, signature_hash<F>());
  writer.write(std::forward<Args>(args)...);
  if (auto written = writer.finish(); !written) return fail(written.error());
  Message message{MessageType::ScriptCall, kNoMessageId, writer.take_control(), {}};
  message.buffers = writer.take_buffers();
  return message;
}

// Likewise, with tensors of the CPU alone.
template <typename F, typename... Args>
Result<Message> encode_call(std::string_view name, Args&&... args) {
  return encode_call<F>(DeviceRoute{}, name, std::forward<Args>(args)...);
}

// What a call came to. Throws nothing.
template <typename T>
CallResult<T> decode_response(CallResult<Message> outcome,
                              DeviceSupport* device_support = nullptr) {
  if (!outcome) return call_failed(std::move(outcome.error()));
  if (outcome->type != MessageType::ScriptRet) {
    return call_failed({CallErrorKind::Remote,
                        "it answered with a message of type " + name_of(outcome->type), "", true});
  }
  auto value = decode<T>(outcome->payload, outcome->buffers, device_support);
  if (!value) {
    return call_failed(
        {CallErrorKind::Remote, "its answer cannot be read: " + value.error().message, "", true});
  }
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return std::move(*value);
  }
}

}  // namespace muster::rpc
