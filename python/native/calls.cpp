// Calls of Python functions, made and served.
//
// A call is a pickle of (function, arguments, keyword arguments), sent to one of four functions
// that every worker with the package has. They differ in what the caller may see of them: the type
// of the messages, and whether the answer may come after the function has returned.
#include "muster/rpc/call.h"
#include "muster/rpc/texts.h"
#include "muster/rref/keeper.h"
#include "python/native/bind.h"
#include "python/native/errors.h"
#include "python/native/futures.h"
#include "python/native/hooks.h"
#include "python/native/line_function.h"
#include "python/native/pickles.h"
#include "python/native/references.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace muster::python {
namespace {

using rpc::CallResult;
using rpc::Message;
using rpc::MessageType;

constexpr const char* kSignature = "(pickle)->pickle";

struct Target {
  const char* function;
  MessageType call;
  MessageType remote_call;
  const char* type;  // of results that stay there
};
// By [whether it is a native function][whether it is asynchronous].
constexpr Target kTargets[2][2] = {
    {{"muster.python", MessageType::PythonCall, MessageType::PythonRemoteCall, kPythonType},
     {"muster.python.async", MessageType::PythonCall, MessageType::PythonRemoteCall, kPythonType}},
    {{"muster.script", MessageType::ScriptCall, MessageType::ScriptRemoteCall, kScriptType},
     {"muster.script.async", MessageType::ScriptCall, MessageType::ScriptRemoteCall, kScriptType}}};

// ---- serving ------------------------------------------------------------------------------------

bool is_error(const py::object& result) {
  return Py_TYPE(result.ptr()) == reinterpret_cast<PyTypeObject*>(hooks().error_class.ptr());
}

// Requires the lock.
void write_result(rpc::Writer& writer, const py::object& result) {
  const FreightScope scope(writer.freight());
  const py::tuple made = hooks().dumps_result(result);
  const Kind kind = made[2].cast<bool>() ? Kind::Error : Kind::Value;
  write_pickle(writer, kind, {made[0], made[1]});
}

// A result that stays here.
class KeptObject final : public HeldObject {
 public:
  KeptObject(py::object object, const char* type) : object_(std::move(object)), type_(type) {}

  const std::string& type() const override { return type_; }
  void write(rpc::Writer& writer) const override {
    const Gil gil;
    try {
      write_result(writer, object_.get());
    } catch (const std::exception& thrown) {
      writer.fail(thrown.what());
    }
  }
  py::object object() const override { return object_.get(); }

 private:
  Ref object_;
  std::string type_;
};

// Calls of Python functions, by pickles.
class PythonFunction final : public LineFunction {
 public:
  PythonFunction(const Target& target, bool is_asynchronous)
      : LineFunction(target.function, kSignature, is_asynchronous),
        how_{[type = target.type](const py::object& result) {
               return std::make_shared<KeptObject>(result, type);
             },
             &write_result} {}

 private:
  Result<py::object> load(rpc::Reader& arguments) const override {
    const ReceivedPickle pickle = read_pickle(arguments);
    if (auto finished = arguments.finish(); !finished) return muster::fail(finished.error());
    const FreightScope scope(arguments.freight());
    const LentBytes data(pickle.data);
    return py::object(hooks().load_call(data.view(), pickle.buffer_list()));
  }

  // What a program raises is a result; what is left ends up here.
  void run(const py::object& call, rpc::Reply reply) const override {
    if (is_asynchronous()) {
      py::object completion = py::cast(Completion(std::move(reply), how_));
      try {
        hooks().run_async(call, completion);
        py::cast<Completion&>(completion).answers_later();
      } catch (const std::exception& thrown) {
        py::cast<Completion&>(completion).fail("", thrown.what());
      }
      return;
    }
    py::object result;
    try {
      result = hooks().run(call);
    } catch (const std::exception& thrown) {
      return python::fail(std::move(reply), {"", thrown.what()});
    }
    answer(std::move(reply), result, how_);
  }

  const Answering how_;
};

// ---- calling ------------------------------------------------------------------------------------

// Completes a future with the answer to a call.
class AnswerSink final : public rpc::CallSink {
 public:
  AnswerSink(AnswerPromise promise, std::shared_ptr<rpc::Agent> agent, MessageType expected,
             PlannedType as = {})
      : promise_(std::move(promise)),
        agent_(std::move(agent)),
        expected_(expected),
        as_(std::move(as)) {}

  void set_helper(std::weak_ptr<rpc::internal::Helper> helper) override {
    promise_.set_helper(std::move(helper));
  }
  void ended(CallResult<Message> outcome, rpc::Calls& calls) override {
    CallResult<std::shared_ptr<Answer>> result = answer_of(std::move(outcome));
    rpc::Pool& callbacks = agent_->callbacks();
    if (!result || !(*result)->has_references()) {
      return promise_.set_on(callbacks, std::move(result), [&calls] { calls.finished(); });
    }
    // They are looked at even if nobody asks for the value. Not here: that takes the lock.
    auto look = [promise = std::make_shared<AnswerPromise>(std::move(promise_)),
                 found = std::move(*result), &calls] {
      look_into(*found);
      promise->set(found);
      calls.finished();
    };
    if (!callbacks.post(look)) look();
  }
  bool wants_late_answer() const override { return true; }
  void came_late(Message response) override {
    auto found = answer_of(std::move(response));
    if (!found || !(*found)->has_references()) return;
    (void)agent_->callbacks().post([answer = std::move(*found)] { look_into(*answer); });
  }

  CallResult<std::shared_ptr<Answer>> answer_of(CallResult<Message> outcome) const {
    if (!outcome) return rpc::call_failed(std::move(outcome.error()));
    if (outcome->type != expected_) {
      return rpc::call_failed({rpc::CallErrorKind::Remote,
                               "it answered with a message of type " + name_of(outcome->type), "",
                               true});
    }
    return Answer::of_message(std::move(*outcome), agent_, as_);
  }

 private:
  static void look_into(Answer& answer) {
    const Gil gil;
    try {
      (void)answer.value();
    } catch (const std::exception&) {
      // Whoever asks for the value gets it again.
    }
  }

  AnswerPromise promise_;
  const std::shared_ptr<rpc::Agent> agent_;
  const MessageType expected_;
  const PlannedType as_;
};

}  // namespace

std::shared_ptr<rpc::Agent> agent_for_call() {
  auto agent = rpc::current_agent();
  if (!agent) {
    raise_runtime_error("RPC has not been initialized. Call muster.rpc.init_rpc first.");
  }
  return agent;
}

rpc::Destination destination_of(const py::handle& to, std::optional<double> timeout) {
  rpc::Destination destination = [&] {
    if (py::isinstance<py::str>(to)) return rpc::Destination(to.cast<std::string>());
    if (py::isinstance<py::int_>(to)) return rpc::Destination(to.cast<std::int64_t>());
    if (py::isinstance<rpc::WorkerInfo>(to)) {
      return rpc::Destination(to.cast<const rpc::WorkerInfo&>());
    }
    throw py::value_error("Cannot get WorkerInfo from name " + py::repr(to).cast<std::string>());
  }();
  if (timeout && !(*timeout >= 0)) {
    throw py::value_error(rpc::negative_timeout_text(*timeout));
  }
  if (timeout) destination = std::move(destination).within_seconds(*timeout);
  return destination;
}

namespace {

// Requires the lock. Throws what pickling raises.
Message encode(const Target& target, MessageType type, std::string head,
               rpc::internal::Route& route, const py::object& call) {
  rpc::Writer writer(std::move(head));
  writer.set_freight(&route);
  writer.set_route(route.devices());
  writer.write(std::string_view(target.function), rpc::hash_of_signature(kSignature));
  const FreightScope scope(&route);
  const py::tuple made = hooks().dumps(call);
  write_pickle(writer, Kind::Value, {made[0], made[1]});
  if (auto written = writer.finish(); !written) raise(written.error());
  Message message{type, rpc::kNoMessageId, writer.take_control(), {}};
  message.buffers = writer.take_buffers();
  return message;
}

Future invoke(const py::handle& to, const py::object& call, std::optional<double> timeout,
              bool is_native, bool is_asynchronous) {
  const auto agent = agent_for_call();
  const Target& target = kTargets[is_native ? 1 : 0][is_asynchronous ? 1 : 0];
  const rpc::Destination destination = destination_of(to, timeout);
  if (auto found = rpc::internal::find(*agent, destination); !found) raise(found.error());
  rpc::internal::Route route(*agent, destination);
  Message request;
  try {
    request = encode(target, target.call, "", route, call);
  } catch (...) {
    if (!route.forks.empty()) route.references()->not_sent(route.forks);
    throw;
  }
  AnswerPromise promise;
  AnswerFuture future = promise.future();
  auto sink =
      std::make_unique<AnswerSink>(std::move(promise), agent, rpc::response_to(target.call));
  const Unlocked released;
  route.submit(std::move(request), std::move(sink));
  return Future(std::move(future));
}

Reference invoke_remote(const py::handle& to, const py::object& call, std::optional<double> timeout,
                        bool is_native, bool is_asynchronous) {
  const auto agent = agent_for_call();
  const Target& target = kTargets[is_native ? 1 : 0][is_asynchronous ? 1 : 0];
  const rpc::Destination destination = destination_of(to, timeout);
  const auto keeper = rref::Keeper::of(*agent);
  std::optional<py::error_already_set> thrown;
  const std::string type = target.type;
  const Unlocked released;
  const auto encode_it = [&](std::string head, rpc::internal::Route& route) -> Result<Message> {
    const Gil gil;
    try {
      return encode(target, target.remote_call, std::move(head), route, call);
    } catch (py::error_already_set& error) {
      thrown.emplace(std::move(error));
      return muster::fail(ErrorKind::Invalid, "the arguments cannot be pickled");
    }
  };
  auto handle = keeper->remote({destination, type, encode_it});
  const Gil gil;
  if (thrown) throw std::move(*thrown);
  if (!handle) raise(handle.error());
  return Reference(std::move(*handle));
}

}  // namespace

std::shared_ptr<rpc::Agent> agent_or_raise() {
  auto agent = rpc::current_agent();
  if (!agent) raise_runtime_error(rpc::no_current_agent_text());
  return agent;
}

std::unique_ptr<rpc::CallSink> answer_sink(AnswerPromise promise, std::shared_ptr<rpc::Agent> agent,
                                           MessageType expected, PlannedType as) {
  return std::make_unique<AnswerSink>(std::move(promise), std::move(agent), expected,
                                      std::move(as));
}

std::shared_ptr<rpc::Object> kept_object(py::object value) {
  return std::make_shared<KeptObject>(std::move(value), kPythonType);
}

py::object value_of(const rpc::Object& object) {
  const auto* const held = dynamic_cast<const HeldObject*>(&object);
  if (held == nullptr) raise_runtime_error("the value was made by a C++ function");
  py::object value = held->object();
  if (is_error(value)) return hooks().raise_error(value);
  return value;
}

namespace {

Hooks& own_hooks() {
  static auto* const kHooks = new Hooks;  // never destroyed: the interpreter goes first
  return *kHooks;
}

}  // namespace

Hooks& hooks() {
  Hooks& all = own_hooks();
  // For programs that use futures without calls.
  if (!all.dumps) py::module_::import("muster.rpc.internal");
  return all;
}

void bind_calls(py::module_& module) {
  module.def("invoke", &invoke, py::arg("to"), py::arg("call"), py::arg("timeout"),
             py::arg("is_native"), py::arg("is_asynchronous"));
  module.def("invoke_remote", &invoke_remote, py::arg("to"), py::arg("call"), py::arg("timeout"),
             py::arg("is_native"), py::arg("is_asynchronous"));
  module.def("set_hooks", [](const py::kwargs& given) {
    Hooks& all = own_hooks();
    const std::pair<const char*, py::object*> slots[] = {
        {"dumps", &all.dumps},
        {"dumps_result", &all.dumps_result},
        {"loads", &all.loads},
        {"load_call", &all.load_call},
        {"run", &all.run},
        {"run_async", &all.run_async},
        {"raise_error", &all.raise_error},
        {"error_class", &all.error_class},
        {"await_future", &all.await_future},
    };
    for (const auto& [name, slot] : slots) *slot = given[name];
  });
  for (const auto& row : kTargets) {
    for (const bool is_asynchronous : {false, true}) {
      const auto added = rpc::functions().add(
          std::make_unique<PythonFunction>(row[is_asynchronous ? 1 : 0], is_asynchronous));
      if (!added) raise(added.error());
    }
  }
}

}  // namespace muster::python
