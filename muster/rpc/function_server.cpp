#include "muster/rpc/function_server.h"

#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

thread_local const WorkerInfo* current_caller = nullptr;
// Nothing once it has answered.
thread_local const Responder* current_responder = nullptr;

// What it holds of our memory, which is more than came over the wire.
std::size_t bytes_of(const Message& message) {
  std::size_t bytes = sizeof message + message.payload.size();
  for (const Buffer& buffer : message.buffers) {
    bytes += sizeof buffer;
    if (!buffer.empty()) bytes += kBufferOverheadBytes + buffer.size();
  }
  return bytes;
}

}  // namespace

const WorkerInfo* caller() { return current_caller; }

bool is_cancelled() { return current_responder != nullptr && current_responder->is_cancelled(); }

DeviceRoute response_route(const Request& request) {
  const std::string_view peer = request.from->name();
  const DeviceDirectory* const devices = request.responder.devices();
  if (devices != nullptr) return devices->response_to(peer);
  return {.direction = DeviceRoute::Direction::Response, .peer = peer};
}

Error unwritable_arguments() {
  const Failure thrown = describe_current_exception();
  return {ErrorKind::Invalid,
          fmt::format("the arguments cannot be written: {}: {}", thrown.type, thrown.text)};
}

CallError unreadable_answer(std::string_view reason) {
  return {CallErrorKind::Remote, fmt::format("its answer cannot be read: {}", reason), "", true};
}

CallError unreadable_answer(const Failure& thrown) {
  return unreadable_answer(fmt::format("{}: {}", thrown.type, thrown.text));
}

// One call while it is served; ends with its answer.
class FunctionServer::Call final : public ReplySink, private Freight {
 public:
  Call(FunctionServer& server, Request request)
      : Freight(server.references_.get()),
        server_(server),
        id_(server.id_),
        references_(server.references_),
        asynchronous_count_(server.asynchronous_count_),
        request_(std::move(request)),
        reader_(payload(), request_.message.buffers),
        result_(*this) {
    reader_.set_freight(this);
    const DeviceDirectory* const devices = request_.responder.devices();
    if (devices != nullptr) reader_.set_device_support(devices->support().get());
  }

  // Finds the function. Nothing, and the call is answered, if it cannot be called.
  const Function* find() {
    if (rpc::keeps_result(request_.message.type) && !read_reference()) return nullptr;
    const auto name = reader_.read<std::string_view>();
    const auto hash = reader_.read<std::uint64_t>();
    if (!reader_.ok()) {
      refuse("the call cannot be read");
      return nullptr;
    }
    const auto function = server_.functions_.find(name);
    if (!function) {
      // Whoever has Python has what calls it.
      const bool is_python = calls_python(request_.message.type);
      refuse(is_python ? no_python_text() : function.error().message);
      return nullptr;
    }
    if (auto fits = (*function)->check(hash); !fits) {
      refuse(fits.error().message);
      return nullptr;
    }
    return *function;
  }

  void wait_for_thread() { stand_in_line(); }
  void run(const Function& function) {
    if (!may_begin()) return fail({"", error_on_node_text(id_, "this worker has stopped")});
    as_callee([&] { function.invoke(reader_, Reply(*this)); });
  }

  void succeed(Writer&& result) override {
    Message response{response_to(request_.message.type), kNoMessageId, result.take_control(), {}};
    response.buffers = result.take_buffers();
    const auto given = std::move(result_.forks);
    // Whoever does not wait any more will not look at what it was given.
    const bool is_unwanted = !given.empty() && request_.responder.is_cancelled();
    const auto references = references_;
    end().respond(std::move(response));
    if (is_unwanted) references->maybe_sent(given);
  }
  void fail(Failure failure) override {
    take_back();
    if (!reference_) return end().fail(failure.type, failure.text);
    end_creation(call_failed(
        {CallErrorKind::Remote, std::move(failure.text), std::move(failure.type), true}));
  }
  void refuse(Failure failure) override {
    failure.text = error_on_node_text(id_, failure.text);
    fail(std::move(failure));
  }
  void answers_later() override {
    is_pending_ = true;
    ++*asynchronous_count_;
  }
  bool keeps_result() const override { return reference_.has_value(); }
  void keep(std::shared_ptr<Object> result) override { end_creation(std::move(result)); }
  Freight* freight() override { return &result_; }
  DeviceRoute route() const override { return response_route(request_); }

 private:
  struct Reference {
    std::uint64_t rref = 0;
    std::uint64_t fork = 0;
  };
  // Of the response.
  class ResultFreight final : public Freight {
   public:
    explicit ResultFreight(Call& call) : Freight(call.references_.get()), call_(call) {}
    CallResult<std::int16_t> peer() override { return call_.request_.from->id(); }
    ConnectionNumber connection() const override { return call_.request_.responder.connection(); }

   private:
    Call& call_;
  };

  std::string_view payload() const { return request_.message.payload; }

  bool resume(std::function<void()> work) override {
    return server_.pool_.post([this, work = std::move(work)] { run_here(work); });
  }
  void stand_in_line() override { request_.responder.waits(bytes_of(request_.message)); }
  Pool* pool() override { return &server_.pool_; }
  void run_here(const std::function<void()>& work) override {
    if (may_begin()) as_callee(work);  // else whoever has it drops it, and the reply with it
  }

  // Runs what belongs to the function. This call may be gone when it returns.
  template <typename Work>
  void as_callee(const Work& work) {
    const std::shared_ptr<const WorkerInfo> from = request_.from;
    const WorkerInfo* const outer = std::exchange(current_caller, from.get());
    const Responder* const outer_responder = std::exchange(current_responder, &request_.responder);
    request_.responder.begins();
    work();
    current_caller = outer;
    current_responder = outer_responder;
  }

  // If not, nobody hears of it.
  bool may_begin() {
    if (!server_.drops_) return true;
    request_.responder.abandon();
    return false;
  }

  bool read_reference() {
    Reference reference;
    reader_.read(reference.rref, reference.fork);
    if (!reader_.ok() || !references_) {
      refuse(references_ ? "the call cannot be read" : "this worker keeps no references");
      return false;
    }
    const auto begun =
        references_->begin_creation(reference.rref, reference.fork, request_.from->id());
    if (!begun) {
      refuse(begun.error().message);
      return false;
    }
    reference_ = reference;
    return true;
  }
  void end_creation(CallResult<std::shared_ptr<Object>> outcome) {
    const Reference reference = *reference_;
    const auto references = references_;
    Writer ids;
    ids.write(reference.rref, reference.fork);
    Responder responder = end();
    references->end_creation(reference.rref, std::move(outcome));
    responder.respond({MessageType::RemoteRet, kNoMessageId, ids.take_control(), {}});
  }
  // The result was written, but is not sent.
  void take_back() {
    if (!result_.forks.empty()) references_->not_sent(std::exchange(result_.forks, {}));
  }

  // A call that cannot be run; if its result was to stay here, that is the error in the reference.
  void refuse(std::string text) { refuse(Failure{"", std::move(text)}); }
  Responder end() {
    if (current_responder == &request_.responder) current_responder = nullptr;
    if (is_pending_) --*asynchronous_count_;
    const std::unique_ptr<Call> owner(this);
    return std::move(request_.responder);
  }

  FunctionServer& server_;  // until the function runs
  const std::int16_t id_;
  const std::shared_ptr<References> references_;
  const std::shared_ptr<std::atomic<std::int64_t>> asynchronous_count_;
  Request request_;
  Reader reader_;
  ResultFreight result_;
  std::optional<Reference> reference_;  // of a result that stays here
  bool is_pending_ = false;             // the function has returned
};

FunctionServer::FunctionServer(const Functions& functions, std::size_t thread_count,
                               std::int16_t id, std::shared_ptr<References> references)
    : functions_(functions),
      id_(id),
      references_(std::move(references)),
      pool_("rpc-worker", thread_count) {}

void FunctionServer::on_request(Request request) {
  if (!is_open_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    if (!is_open_.load(std::memory_order_relaxed)) {
      request.responder.waits(bytes_of(request.message));
      waiting_.push_back(std::move(request));
      return;
    }
  }
  serve(std::move(request));
}

void FunctionServer::open() {
  while (true) {
    std::vector<Request> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting.swap(waiting_);
      // Only when none is left, so that none overtakes those that came before.
      if (waiting.empty()) return is_open_.store(true, std::memory_order_release);
    }
    for (Request& request : waiting) serve(std::move(request));
  }
}

void FunctionServer::serve(Request request) {
  const MessageType type = request.message.type;
  if (is_call(type)) return serve_call(std::move(request));
  request.responder.begins();
  if (references_ && references_->serve(request)) return;
  const std::string text = not_supported_text(type);
  request.responder.fail("", error_on_node_text(id_, text));
}

void FunctionServer::serve_call(Request request) {
  auto* const call = new Call(*this, std::move(request));  // deletes itself
  const Function* const function = call->find();
  if (function == nullptr) return;
  if (function->run() == Run::Inline) return call->run(*function);
  call->wait_for_thread();
  if (!pool_.post([call, function] { call->run(*function); })) {
    const std::string_view problem = pool_.is_stopped()
                                         ? "this worker is stopping"
                                         : "this worker can start no thread to run it";
    call->fail({"", error_on_node_text(id_, problem)});
  }
}

void FunctionServer::on_worker_lost(const WorkerInfo& worker, const std::string& reason) {
  if (references_) references_->worker_lost(worker.id(), reason);
}

void FunctionServer::on_worker_joined(const WorkerInfo& worker, std::uint64_t incarnation) {
  if (references_) references_->worker_joined(worker.id(), incarnation);
}

void FunctionServer::on_worker_heard(const WorkerInfo& worker) {
  if (references_) references_->worker_heard(worker.id());
}

void FunctionServer::on_connection_lost(ConnectionNumber connection) {
  if (references_) references_->connection_lost(connection);
}

}  // namespace muster::rpc
