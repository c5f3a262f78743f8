#include "muster/rpc/function_server.h"

#include "muster/rpc/texts.h"

#include <memory>
#include <string>

namespace muster::rpc {
namespace {

thread_local const WorkerInfo* current_caller = nullptr;
// Nothing once it has answered.
thread_local const Responder* current_responder = nullptr;

}  // namespace

const WorkerInfo* caller() { return current_caller; }

bool is_cancelled() { return current_responder != nullptr && current_responder->is_cancelled(); }

// One call while it is served; ends with its answer.
class FunctionServer::Call final : public ReplySink {
 public:
  Call(FunctionServer& server, Request request)
      : server_(server),
        asynchronous_count_(server.asynchronous_count_),
        request_(std::move(request)),
        reader_(payload(), request_.message.buffers) {
    const DeviceDirectory* const devices = request_.responder.devices();
    if (devices != nullptr) reader_.set_device_support(devices->support().get());
  }

  // Finds the function. Nothing, and the call is answered, if it cannot be called.
  const Function* find() {
    const auto name = reader_.read<std::string_view>();
    const auto hash = reader_.read<std::uint64_t>();
    if (!reader_.ok()) {
      refuse("the call cannot be read");
      return nullptr;
    }
    const auto function = server_.functions_.find(name);
    if (!function) {
      refuse(function.error().message);
      return nullptr;
    }
    if (auto fits = (*function)->check(hash); !fits) {
      refuse(fits.error().message);
      return nullptr;
    }
    return *function;
  }

  void run(const Function& function) {
    // Kept by this call, which may be gone when the function returns.
    const std::shared_ptr<const WorkerInfo> from = request_.from;
    const WorkerInfo* const outer = std::exchange(current_caller, from.get());
    const Responder* const outer_responder = std::exchange(current_responder, &request_.responder);
    is_asynchronous_ = function.is_asynchronous();
    if (is_asynchronous_) ++*asynchronous_count_;
    function.invoke(reader_, Reply(*this));
    current_caller = outer;
    current_responder = outer_responder;
  }

  void succeed(Writer&& result) override {
    Message response{MessageType::ScriptRet, kNoMessageId, result.take_control(), {}};
    response.buffers = result.take_buffers();
    end().respond(std::move(response));
  }
  void fail(Failure failure) override { end().fail(failure.type, failure.text); }
  DeviceRoute route() const override {
    const std::string_view peer = request_.from->name();
    const DeviceDirectory* const devices = request_.responder.devices();
    if (devices != nullptr) return devices->response_to(peer);
    return {.direction = DeviceRoute::Direction::Response, .peer = peer};
  }

 private:
  std::string_view payload() const { return request_.message.payload; }

  void refuse(std::string_view text) {
    const std::string whole = error_on_node_text(server_.id_, text);
    end().fail("", whole);
  }
  Responder end() {
    if (current_responder == &request_.responder) current_responder = nullptr;
    if (is_asynchronous_) --*asynchronous_count_;
    const std::unique_ptr<Call> owner(this);
    return std::move(request_.responder);
  }

  FunctionServer& server_;  // until the function runs
  const std::shared_ptr<std::atomic<std::int64_t>> asynchronous_count_;
  Request request_;
  Reader reader_;
  bool is_asynchronous_ = false;
};

FunctionServer::FunctionServer(const Functions& functions, std::size_t thread_count,
                               std::int16_t id)
    : functions_(functions), id_(id), pool_("rpc-worker", thread_count) {}

void FunctionServer::on_request(Request request) {
  if (request.message.type != MessageType::ScriptCall) {
    const std::string text = not_supported_text(request.message.type);
    return request.responder.fail("", error_on_node_text(id_, text));
  }
  auto* const call = new Call(*this, std::move(request));  // deletes itself
  const Function* const function = call->find();
  if (function == nullptr) return;
  if (function->run() == Run::Inline) return call->run(*function);
  if (!pool_.post([call, function] { call->run(*function); })) {
    call->fail({"", "this worker is stopping"});
  }
}

}  // namespace muster::rpc
