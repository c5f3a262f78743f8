// The seat of a node in a rendezvous, as Python holds it.
#include "muster/backends/builtin.h"
#include "muster/backends/machine.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/parameters.h"
#include "python/native/bind.h"
#include "python/native/interpreter.h"
#include "python/native/store.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

namespace py = pybind11;

namespace muster::python {
namespace {

using rendezvous::Handler;
using rendezvous::Parameters;

// Of the loop.
struct HeldHandler {
  HeldHandler(LoopThread& thread, Parameters given)
      : machine(thread.loop(), thread.transport()),
        environment{thread.loop(), thread.random()},
        parameters(std::move(given)) {
    backends::add_builtin_backends(registry, thread.loop(), machine);
  }
  backends::SystemMachine machine;
  rendezvous::Environment environment;
  rendezvous::Registry registry = {};
  Parameters parameters;
  std::unique_ptr<Handler> handler = {};
};

Task<Result<>> fill(std::shared_ptr<HeldHandler> held) {
  auto created = co_await held->registry.create(held->parameters, held->environment);
  if (!created) co_return fail(created.error());
  held->handler = std::move(*created);
  co_return Result<>();
}

class HandlerHandle {
 public:
  explicit HandlerHandle(Parameters parameters)
      : thread_(LoopThread::of_process()),
        held_(std::make_shared<HeldHandler>(thread_, std::move(parameters))) {
    try {
      value_or_raise(thread_.run([this] { return fill(held_); }));
    } catch (...) {
      let_go();
      throw;
    }
  }
  HandlerHandle(const HandlerHandle&) = delete;
  HandlerHandle& operator=(const HandlerHandle&) = delete;
  ~HandlerHandle() { let_go(); }

  template <typename Call>
  auto ask(Call call) const {
    Handler& handler = *held_->handler;
    return value_or_raise(thread_.run([&] { return call(handler); }));
  }

  bool use_agent_store() const { return held_->handler->use_agent_store(); }

  py::tuple next() const {
    rendezvous::Info info = ask([](Handler& handler) { return handler.next_rendezvous(); });
    auto round = std::make_shared<HeldStore>();
    round->store = std::move(info.store);
    return py::make_tuple(std::make_shared<StoreHandle>(thread_, std::move(round)), info.rank,
                          info.world_size, info.round, info.bootstrap.master_addr,
                          info.bootstrap.master_port);
  }

 private:
  // A server that it hosts has let go of its port when this returns.
  void let_go() {
    if (!thread_.runs_here()) {
      new std::shared_ptr<HeldHandler>(std::move(held_));
      return;
    }
    const Unlocked unlocked;
    thread_.do_there([this] { held_.reset(); });
  }

  LoopThread& thread_;
  std::shared_ptr<HeldHandler> held_;
};

rendezvous::Value value_of(const py::handle& object) {
  if (object.is_none()) return rendezvous::Null();
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<std::int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  return rendezvous::OtherValue{py::str(py::type::handle_of(object).attr("__name__"))};
}

std::shared_ptr<HandlerHandle> open_rendezvous(const std::string& backend,
                                               const std::string& endpoint,
                                               const std::string& run_id, std::int64_t min_nodes,
                                               std::int64_t max_nodes,
                                               const std::string& local_addr,
                                               const py::dict& config) {
  Parameters parameters;
  parameters.backend = backend;
  parameters.endpoint = endpoint;
  parameters.run_id = run_id;
  parameters.min_nodes = min_nodes;
  parameters.max_nodes = max_nodes;
  parameters.local_addr = local_addr;
  for (const auto& [name, value] : config) {
    parameters.config.emplace(name.cast<std::string>(), value_of(value));
  }
  return std::make_shared<HandlerHandle>(value_or_raise(Parameters::create(std::move(parameters))));
}

py::dict parse_config(const std::string& text) {
  py::dict config;
  for (const auto& [name, value] : value_or_raise(rendezvous::parse_options(text))) {
    const auto* const word = std::get_if<std::string>(&value);
    config[py::str(name)] = word != nullptr ? py::object(py::str(*word)) : py::none();
  }
  return config;
}

}  // namespace

void bind_rendezvous(py::module_& module) {
  py::class_<HandlerHandle, std::shared_ptr<HandlerHandle>>(module, "RendezvousHandle")
      .def("next", &HandlerHandle::next)
      .def_property_readonly("use_agent_store", &HandlerHandle::use_agent_store)
      .def("is_closed",
           [](const HandlerHandle& self) {
             return self.ask([](Handler& handler) { return handler.is_closed(); });
           })
      .def("set_closed",
           [](const HandlerHandle& self) {
             self.ask([](Handler& handler) { return handler.set_closed(); });
           })
      .def("num_nodes_waiting",
           [](const HandlerHandle& self) {
             return self.ask([](Handler& handler) { return handler.num_nodes_waiting(); });
           })
      .def("leave",
           [](const HandlerHandle& self) {
             self.ask([](Handler& handler) { return handler.leave(); });
           })
      .def("shutdown", [](const HandlerHandle& self) {
        return self.ask([](Handler& handler) { return handler.shutdown(); });
      });
  module.def("open_rendezvous", &open_rendezvous);
  module.def("parse_rendezvous_config", &parse_config);
}

}  // namespace muster::python
