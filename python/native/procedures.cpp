// Procedures: functions with a name and the types of C++, called and served by Python.
//
// What travels is what C++ programs send each other (muster/rpc/call.h), so neither side knows in
// which language the other is written.
#include "muster/rpc/call.h"
#include "muster/rref/keeper.h"
#include "python/native/bind.h"
#include "python/native/errors.h"
#include "python/native/futures.h"
#include "python/native/line_function.h"
#include "python/native/references.h"
#include "python/native/typed_values.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace muster::python {
namespace {

using rpc::Message;
using rpc::MessageType;

// What is asked of the Python sources: see python/muster/rpc/procedures.py.
struct Runners {
  py::object run;        // (function, arguments) -> (True, result) or (False, class, text)
  py::object run_async;  // (function, arguments, completion)
};
Runners& runners() {
  static auto* const kRunners = new Runners;  // never destroyed: the interpreter goes first
  return *kRunners;
}

// A name and a plan; what Python's Procedure is made of.
struct Declared {
  std::string name;
  std::shared_ptr<const Plan> plan;

  const Signature& signature() const { return *plan->signature; }
  PlannedType result() const { return {plan, &signature().result()}; }
};

Declared declare(std::string name, const std::string& text, const py::dict& forms) {
  if (name.empty() || name.size() > rpc::kFunctionNameBytesMax) {
    throw py::value_error("the name of a procedure has between 1 and 255 bytes");
  }
  const auto parsed = Signature::parse(text);
  if (!parsed) throw py::value_error(parsed.error().message);
  auto plan = std::make_shared<Plan>(*parsed);
  for (const auto& [structure, form] : forms) {
    auto wanted = structure.cast<std::string>();
    // Without the spaces. One that refers to what is around it cannot stand alone.
    if (const auto alone = Signature::parse_type(wanted)) wanted = (*alone)->text();
    const auto parts = form.cast<py::tuple>();
    bool is_there = false;
    for (std::size_t i = 0; i < plan->forms.size(); ++i) {
      const Type& type = (*parsed)->structure(i);
      if ((*parsed)->text_of(type) != wanted) continue;
      if (py::len(parts[0]) != type.parts.size()) {
        throw py::value_error(
            fmt::format("{} has {} fields, not {}", wanted, type.parts.size(), py::len(parts[0])));
      }
      is_there = true;
      plan->forms[i].names = Ref(parts[0]);
      if (!parts[1].is_none()) plan->forms[i].make = Ref(parts[1]);
    }
    if (!is_there) {
      throw py::value_error(
          fmt::format("there is no structure {} in {}", wanted, (*parsed)->text()));
    }
  }
  return {std::move(name), std::move(plan)};
}

// ---- calling ------------------------------------------------------------------------------------

// Requires the lock.
Message encode(const Declared& procedure, MessageType type, std::string head,
               rpc::internal::Route& route, const py::tuple& arguments) {
  const Signature& signature = procedure.signature();
  if (arguments.size() != signature.parameters().size()) {
    throw py::type_error(fmt::format("{}{} takes {} arguments, not {}", procedure.name,
                                     signature.text(), signature.parameters().size(),
                                     arguments.size()));
  }
  rpc::Writer writer(std::move(head));
  writer.set_freight(&route);
  writer.set_route(route.devices());
  writer.write(std::string_view(procedure.name), signature.hash());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    write_value(writer, {procedure.plan, signature.parameters()[i].get()}, arguments[i],
                fmt::format("argument {} of {}", i + 1, procedure.name));
  }
  if (auto written = writer.finish(); !written) throw py::value_error(written.error().message);
  Message message{type, rpc::kNoMessageId, writer.take_control(), {}};
  message.buffers = writer.take_buffers();
  return message;
}

Future call(const Declared& procedure, const py::handle& to, const py::tuple& arguments,
            std::optional<double> timeout) {
  const auto agent = agent_for_call();
  if (procedure.signature().result().kind == TypeKind::Object) {
    throw py::type_error(procedure.name + " makes what is never sent; call it with rpc.remote");
  }
  const rpc::Destination destination = destination_of(to, timeout);
  if (auto found = rpc::internal::find(*agent, destination); !found) raise(found.error());
  rpc::internal::Route route(*agent, destination);
  Message request;
  try {
    request = encode(procedure, MessageType::ScriptCall, "", route, arguments);
  } catch (...) {
    if (!route.forks.empty()) route.references()->not_sent(route.forks);
    throw;
  }
  AnswerPromise promise;
  AnswerFuture future = promise.future();
  auto sink = answer_sink(std::move(promise), agent, MessageType::ScriptRet, procedure.result());
  const Unlocked released;
  route.submit(std::move(request), std::move(sink));
  return Future(std::move(future));
}

Reference call_remote(const Declared& procedure, const py::handle& to, const py::tuple& arguments,
                      std::optional<double> timeout) {
  const auto agent = agent_for_call();
  const rpc::Destination destination = destination_of(to, timeout);
  const auto keeper = rref::Keeper::of(*agent);
  std::optional<py::error_already_set> thrown;
  const std::string type(procedure.signature().text_of(procedure.signature().result()));
  const auto encode_it = [&](std::string head, rpc::internal::Route& route) -> Result<Message> {
    const Gil gil;
    try {
      return encode(procedure, MessageType::ScriptRemoteCall, std::move(head), route, arguments);
    } catch (py::error_already_set& error) {
      thrown.emplace(std::move(error));
    } catch (const py::builtin_exception& error) {
      error.set_error();
      thrown.emplace();
    }
    return muster::fail(ErrorKind::Invalid, "the arguments cannot be sent");
  };
  const auto handle = [&] {
    const Unlocked released;
    return keeper->remote({destination, type, encode_it});
  }();
  if (thrown) throw std::move(*thrown);
  if (!handle) raise(handle.error());
  Reference reference(*handle);
  reference.type = procedure.result();
  return reference;
}

// ---- serving ------------------------------------------------------------------------------------

// A result that stays here; other workers see a value of its C++ type.
class KeptValue final : public HeldObject {
 public:
  KeptValue(py::object object, PlannedType as)
      : object_(std::move(object)),
        as_(std::move(as)),
        type_(as_.plan->signature->text_of(*as_.type)) {}

  const std::string& type() const override { return type_; }
  void write(rpc::Writer& writer) const override {
    const Gil gil;
    try {
      write_value(writer, as_, object_.get(), "the value");
    } catch (const std::exception& thrown) {
      writer.fail(thrown.what());
    }
  }
  py::object object() const override { return object_.get(); }

 private:
  Ref object_;
  const PlannedType as_;
  const std::string type_;
};

// Calls of procedures, by the types of their signatures.
class ServedProcedure final : public LineFunction {
 public:
  ServedProcedure(Declared procedure, py::object function, bool is_asynchronous)
      : LineFunction(procedure.name, procedure.signature().text(), is_asynchronous),
        procedure_(std::move(procedure)),
        function_(std::move(function)),
        how_{[type = procedure_.result()](const py::object& result) {
               return std::make_shared<KeptValue>(result, type);
             },
             [type = procedure_.result(), what = "the result of " + procedure_.name](
                 rpc::Writer& writer, const py::object& result) {
               write_value(writer, type, result, what);
             }} {}

 private:
  Result<py::object> load(rpc::Reader& arguments) const override {
    const auto& parameters = procedure_.signature().parameters();
    py::tuple values(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      values[i] = read_value(arguments, {procedure_.plan, parameters[i].get()});
    }
    if (auto finished = arguments.finish(); !finished) return muster::fail(finished.error());
    return py::object(std::move(values));
  }

  void run(const py::object& values, rpc::Reply reply) const override {
    if (is_asynchronous()) {
      py::object completion = py::cast(Completion(std::move(reply), how_));
      try {
        runners().run_async(function_.get(), values, completion);
        py::cast<Completion&>(completion).answers_later();
      } catch (const std::exception& thrown) {
        py::cast<Completion&>(completion).fail("", thrown.what());
      }
      return;
    }
    py::object result;
    try {
      const py::tuple outcome = runners().run(function_.get(), values);
      if (!outcome[0].cast<bool>()) {
        rpc::Failure failure{outcome[1].cast<std::string>(), outcome[2].cast<std::string>()};
        return python::fail(std::move(reply), std::move(failure));
      }
      result = outcome[1];
    } catch (const std::exception& thrown) {
      return python::fail(std::move(reply), {"", thrown.what()});
    }
    answer(std::move(reply), result, how_);
  }

  const Declared procedure_;
  const Ref function_;
  const Answering how_;
};

void define(const Declared& procedure, py::object function, bool is_asynchronous) {
  const auto added = rpc::functions().add(
      std::make_unique<ServedProcedure>(procedure, std::move(function), is_asynchronous));
  if (!added) raise(added.error());
}

void set_hooks(const py::kwargs& given) {
  TypeHooks& types = type_hooks();
  const std::pair<const char*, py::object*> slots[] = {
      {"rref_class", &types.rref_class},
      {"rref_of", &types.rref_of},
      {"alternative_class", &types.alternative_class},
      {"numbers", &types.numbers},
      {"array_of", &types.array_of},
      {"describe_tensor", &types.describe_tensor},
      {"make_tensor", &types.make_tensor},
      {"run", &runners().run},
      {"run_async", &runners().run_async},
  };
  for (const auto& [name, slot] : slots) *slot = given[name];
}

}  // namespace

void bind_procedures(py::module_& module) {
  py::class_<Declared>(module, "DeclaredProcedure")
      .def(py::init(&declare))
      .def_readonly("name", &Declared::name)
      .def_property_readonly("signature",
                             [](const Declared& self) { return self.signature().text(); })
      .def("call", &call)
      .def("call_remote", &call_remote)
      .def("define", &define);
  module.def("set_procedure_hooks", &set_hooks);
}

}  // namespace muster::python
