#include "python/native/references.h"

#include "muster/base/clock.h"
#include "muster/rref/control.h"
#include "muster/rref/rref.h"
#include "python/native/bind.h"
#include "python/native/errors.h"
#include "python/native/hooks.h"
#include "python/native/pickles.h"

#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace muster::python {
namespace {

using rpc::MessageType;

Reference make_local(py::object value) {
  const auto agent = agent_or_raise();
  return Reference(rref::Keeper::of(*agent)->make_local(kept_object(std::move(value))));
}

// Waits until the value is made, without the lock.
py::object local_value(const Reference& reference) {
  if (!reference.handle->is_owner()) {
    raise(rpc::internal::not_the_owner(*reference.handle));
  }
  const auto owned = reference.handle->owned();
  auto object = owned->object();
  if (!object) {
    const rref::ObjectFuture future = owned->value();
    (void)wait_interruptibly([&](TimePoint look) { return future.wait_until(look) != nullptr; });
    const auto& outcome = future.wait();
    if (!outcome) raise(outcome.error());
    object = *outcome;
  }
  return value_of(*object);
}

// Of a value that a procedure has made.
PlannedType type_of(const Reference& reference) {
  const rref::Handle& handle = *reference.handle;
  const auto parsed = Signature::parse_type(handle.type());
  if (!parsed || (*parsed)->result().kind == TypeKind::Object) {
    raise_runtime_error("the value of " + handle.text() + " was made by a C++ function, of type " +
                        handle.type() + "; call functions with the reference");
  }
  if (reference.type.type != nullptr) return reference.type;
  return {std::make_shared<Plan>(*parsed), &(*parsed)->result()};
}

// A future of a copy of the value; of another worker.
Future fetch(const Reference& reference, std::optional<double> timeout) {
  const rref::Handle& handle = *reference.handle;
  const auto agent = handle.keeper().agent();
  if (const auto error = handle.keeper().use_error(handle, "call to_here() on it")) raise(*error);
  if (!agent) (void)agent_or_raise();
  if (!agent) raise_runtime_error("the reference belongs to a group that has ended");
  const bool is_python = handle.type() == kPythonType;
  PlannedType as;
  if (!is_python && handle.type() != kScriptType) as = type_of(reference);
  const MessageType type =
      is_python ? MessageType::PythonRrefFetchCall : MessageType::ScriptRrefFetchCall;
  AnswerPromise promise;
  AnswerFuture future = promise.future();
  auto sink = answer_sink(std::move(promise), agent, rpc::response_to(type), std::move(as));
  // The reference must not end before the answer is there; nor is the lock held to send.
  {
    const Unlocked released;
    reference.handle->keeper().fetch(*agent, handle, timeout, std::move(sink), type);
  }
  future.on_done([kept = reference.handle](const auto&) {});
  return Future(std::move(future));
}

py::bytes give(const Reference& reference) {
  rpc::Freight* const freight = current_freight();
  if (freight == nullptr || freight->references() == nullptr) {
    const auto error =
        reference.handle->keeper().use_error(*reference.handle, "call fork an UserRRef");
    if (error) raise(*error);
    raise_runtime_error(
        "Can not pickle rref in python pickler, rref can only be pickled when using RPC");
  }
  auto given = reference.handle->keeper().give(*reference.handle, *freight);
  if (!given) raise(given.error());
  return py::bytes(*given);
}

Reference take(const std::string& bytes) {
  rpc::Freight* const freight = current_freight();
  if (freight == nullptr || freight->references() == nullptr) {
    raise_runtime_error(
        "Can not unpickle rref in python pickler, rref can only be unpickled when using RPC");
  }
  const auto data = rref::decode_fork_data(bytes);
  if (!data) raise(data.error());
  // There is only one kind.
  auto& keeper = static_cast<rref::Keeper&>(*freight->references());
  auto taken = keeper.take(bytes, data->type, *freight);
  if (!taken) raise(taken.error());
  return Reference(std::move(*taken));
}

// What was given away with the message that this thread pickles is not, after all.
void take_back() {
  rpc::Freight* const freight = current_freight();
  if (freight == nullptr || freight->forks.empty()) return;
  freight->references()->not_sent(std::exchange(freight->forks, {}));
}

rpc::WorkerInfo owner(const Reference& reference) {
  auto info = reference.handle->keeper().owner_of(*reference.handle);
  if (!info) raise(info.error());
  return *info;
}

// A future of how the call went that makes the value.
Future creation(const Reference& reference) {
  AnswerPromise promise;
  AnswerFuture future = promise.future();
  const auto made = reference.handle->creation();
  if (!made) {
    promise.set(Answer::of_value(py::none()));
    return Future(std::move(future));
  }
  auto shared = std::make_shared<AnswerPromise>(std::move(promise));
  made->on_done([shared](const rpc::CallResult<>& outcome) {
    if (!outcome) {
      shared->set(rpc::call_failed(outcome.error()));
      return;
    }
    const Gil gil;
    shared->set(Answer::of_value(py::none()));
  });
  return Future(std::move(future));
}

}  // namespace

void bind_references(py::module_& module) {
  module.def("take_back_references", &take_back);
  py::class_<Reference>(module, "Reference")
      .def_static("make_local", &make_local)
      .def_static("take", &take)
      .def("give", &give)
      .def("local_value", &local_value)
      .def("fetch", &fetch)
      .def("creation", &creation)
      .def("owner", &owner)
      .def("owner_id", [](const Reference& self) { return self.handle->owner(); })
      .def("is_owner", [](const Reference& self) { return self.handle->is_owner(); })
      .def("is_confirmed",
           [](const Reference& self) { return self.handle->keeper().is_confirmed(*self.handle); })
      .def("type", [](const Reference& self) { return self.handle->type(); })
      .def("rref_id", [](const Reference& self) { return self.handle->rref().bits(); })
      .def("text", [](const Reference& self) { return self.handle->text(); });
}

}  // namespace muster::python
