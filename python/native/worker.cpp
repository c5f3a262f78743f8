// The life of a worker: init, shutdown, and what there is to know in between.
#include "muster/worker/worker.h"

#include "muster/base/log.h"
#include "muster/rpc/function_server.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/texts.h"
#include "muster/rref/keeper.h"
#include "python/native/bind.h"
#include "python/native/errors.h"
#include "python/native/interpreter.h"
#include "python/native/line.h"
#include "python/native/loop_thread.h"
#include "python/native/references.h"

#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::python {
namespace {

using rpc::WorkerInfo;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Of calls. So long that no deadline can be counted: none.
Duration timeout_of(double seconds) {
  if (!(seconds >= 0)) throw py::value_error(rpc::negative_default_timeout_text(seconds));
  const Duration timeout = duration_of(seconds);
  return timeout < Duration::zero() ? Duration::zero() : timeout;
}

// A device as Python gives it: ("cpu", 0), ("cuda", 1).
using NamedDevice = std::pair<std::string, std::int32_t>;

rpc::Device device_of(const NamedDevice& named) {
  if (named.first == "cpu") return {rpc::DeviceKind::Cpu, 0};
  return {rpc::DeviceKind::Cuda, named.second};
}

rpc::DeviceOptions devices_of(
    const std::map<std::string, std::vector<std::pair<NamedDevice, NamedDevice>>>& maps,
    const std::vector<NamedDevice>& devices, std::int32_t device_count) {
  rpc::DeviceOptions options;
  const auto require = [](const Result<>& done) {
    if (!done) throw py::value_error(done.error().message);
  };
  for (const auto& [to, entries] : maps) {
    rpc::DeviceMap map;
    for (const auto& [from, target] : entries) map[device_of(from)] = device_of(target);
    require(options.add_device_map(to, map));
  }
  std::vector<rpc::Device> own;
  for (const auto& device : devices) own.push_back(device_of(device));
  require(options.set_devices(std::move(own)));
  require(options.set_device_count(device_count));
  return options;
}

// What another thread has done, for one that waits for it and may be interrupted.
template <typename T>
class Outcome {
 public:
  // False if nobody waits any more.
  bool set(T value) {
    const std::lock_guard lock(mutex_);
    value_.emplace(std::move(value));
    changed_.notify_all();
    was_in_time_ = !is_given_up_;
    return was_in_time_;
  }
  // Of one whose wait was interrupted: whether it was set before.
  bool was_in_time() {
    const std::lock_guard lock(mutex_);
    return was_in_time_;
  }
  // Throws what the handler of a signal raised.
  T wait() {
    try {
      (void)wait_interruptibly([this](TimePoint look) {
        std::unique_lock lock(mutex_);
        return rpc::internal::wait_until(changed_, lock, look,
                                         [this] { return value_.has_value(); });
      });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      is_given_up_ = true;
      throw;
    }
    return std::move(*value_);
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<T> value_;
  bool is_given_up_ = false;
  bool was_in_time_ = false;
};

void init(const py::kwargs& given) {
  rpc::InitOptions options;
  options.name = given["name"].cast<std::string>();
  // Without a name, C++ programs get one.
  if (auto info = WorkerInfo::create(options.name, 0); !info)
    raise_runtime_error(info.error().message);
  options.rank = given["rank"].cast<std::int64_t>();
  options.world_size = given["world_size"].cast<std::optional<std::int64_t>>();
  options.dynamic = !options.world_size.has_value();
  options.store = given["store"].cast<std::string>();
  options.group = given["group"].cast<std::string>();
  options.timeout = timeout_of(given["timeout"].cast<double>());
  options.thread_count = given["thread_count"].cast<std::size_t>();
  options.shared_memory = given["shared_memory"].cast<bool>();
  options.devices = devices_of(
      given["device_maps"]
          .cast<std::map<std::string, std::vector<std::pair<NamedDevice, NamedDevice>>>>(),
      given["devices"].cast<std::vector<NamedDevice>>(),
      given["device_count"].cast<std::int32_t>());
  if (const py::object faults = given["faults"]; !faults.is_none()) {
    rpc::FaultPreset preset;
    preset.messages_to_fail = faults[py::int_(0)].cast<std::vector<std::string>>();
    preset.messages_to_delay = faults[py::int_(1)].cast<std::map<std::string, double>>();
    preset.fail_count = faults[py::int_(2)].cast<std::int64_t>();
    auto made = rpc::faults_of(preset);
    if (!made) raise(made.error());
    options.faults = std::move(*made);
  }
  const auto begun = std::make_shared<Outcome<Result<>>>();
  std::thread([begun, options = std::move(options)]() mutable {
    // If nobody waits for it any more, it has not been.
    if (!begun->set(rpc::init(std::move(options)))) (void)rpc::shutdown({.graceful = false});
  }).detach();
  Result<> outcome;
  try {
    outcome = begun->wait();
  } catch (...) {
    // Interrupted in the very moment in which it has begun.
    const Unlocked released;
    if (begun->was_in_time()) (void)rpc::shutdown({.graceful = false});
    throw;
  }
  if (!outcome) raise(outcome.error());
}

// The user has had enough: what it waits for fails then. What is left are functions of this worker
// that do not end; who has had enough of those, too, ends the process.
void end_at_once(const std::shared_ptr<rpc::Agent>& agent, Outcome<rpc::CallResult<>>& ended) {
  std::thread([agent] { agent->shutdown(); }).detach();
  try {
    (void)ended.wait();
  } catch (const py::error_already_set&) {
    log::warn("rpc", "interrupted while functions that others have called do not end");
    ::_exit(130);
  }
}

// `clean_up` is called when all workers have nothing left to do. What it raises is raised again,
// once RPC has ended.
void shutdown(bool graceful, double timeout, bool ignores_leaks, const py::object& clean_up) {
  const auto agent = agent_or_raise();
  if (rpc::caller() != nullptr || agent->callbacks().is_current()) {
    raise_runtime_error(
        "shutdown was called by a function or a callback that RPC runs, and would wait for its "
        "end; "
        "call it from a thread of your own");
  }
  std::optional<py::error_already_set> thrown;
  rpc::ShutdownOptions options{graceful, duration_of(timeout), ignores_leaks};
  options.end_references = [&] {
    const Gil gil;
    try {
      clean_up();
    } catch (py::error_already_set& error) {
      thrown.emplace(std::move(error));
    }
  };
  Outcome<rpc::CallResult<>> ended;
  std::thread thread([&] { ended.set(rpc::shutdown(std::move(options))); });
  rpc::CallResult<> outcome;
  try {
    outcome = ended.wait();
  } catch (py::error_already_set& interrupted) {
    end_at_once(agent, ended);
    {
      const Unlocked released;
      thread.join();
    }
    throw std::move(interrupted);
  }
  {
    const Unlocked released;
    thread.join();
  }
  if (thrown) throw std::move(*thrown);
  if (!outcome) raise(outcome.error());
}

py::dict gather(std::vector<std::string> names, const py::bytes& value,
                std::optional<double> timeout) {
  std::optional<Duration> limit;
  if (timeout) limit = duration_of(*timeout);
  rpc::CallResult<std::map<std::string, std::string>> all;
  std::string bytes = value;
  {
    const Unlocked released;
    Line::step_aside();
    all = rpc::gather(std::move(names), std::move(bytes), limit);
  }
  if (!all) raise(all.error());
  py::dict result;
  for (const auto& [name, brought] : *all) result[py::str(name)] = py::bytes(brought);
  return result;
}

WorkerInfo find(const py::object& who) {
  const auto agent = agent_or_raise();
  auto found = py::isinstance<py::str>(who) ? agent->find(who.cast<std::string>())
                                            : agent->find(who.cast<std::int64_t>());
  if (!found) raise(found.error());
  return *found;
}

bool is_static() {
  const auto agent = agent_or_raise();
  const auto* const network = dynamic_cast<const rpc::NetworkAgent*>(agent.get());
  return network != nullptr && network->is_static();
}

std::map<std::string, std::string> with_waits(std::map<std::string, std::string> figures) {
  if (measures_waits()) {
    figures["agent.gil_average_wait_time_us"] = std::to_string(average_wait());
  }
  return figures;
}

void end_references(double patience) {
  const Unlocked released;
  rpc::end_references(duration_of(patience));
}

std::map<std::string, std::string> reference_info() {
  const auto agent = agent_or_raise();
  return rref::Keeper::of(*agent)->debug_info();
}

void bind_worker_info(py::module_& module) {
  py::class_<WorkerInfo>(module, "WorkerInfo",
                         "The name and the number under which a worker is known to its group.")
      .def(py::init([](std::string name, std::int16_t id) {
             auto made = WorkerInfo::create(std::move(name), id);
             if (!made) raise(made.error());
             return *made;
           }),
           py::arg("name"), py::arg("id"))
      .def_property_readonly("name", &WorkerInfo::name)
      .def_property_readonly("id", &WorkerInfo::id)
      .def(
          "__eq__", [](const WorkerInfo& a, const WorkerInfo& b) { return a == b; },
          py::is_operator())
      .def("__hash__", [](const WorkerInfo& self) { return self.id(); })
      .def("__repr__", &WorkerInfo::describe)
      .def(py::pickle([](const WorkerInfo& self) { return py::make_tuple(self.name(), self.id()); },
                      [](const py::tuple& state) {
                        if (state.size() != 2) raise_runtime_error("Invalid WorkerInfo state.");
                        auto made = WorkerInfo::create(state[0].cast<std::string>(),
                                                       state[1].cast<std::int64_t>());
                        if (!made) raise(made.error());
                        return *made;
                      }));
}

}  // namespace

void bind_worker(py::module_& module) {
  bind_worker_info(module);
  module.def("init", &init);
  module.def("shutdown", &shutdown, py::arg("graceful"), py::arg("timeout"),
             py::arg("ignores_leaks"), py::arg("clean_up"));
  module.def("is_running", &rpc::is_running);
  module.def("self_info", [] { return agent_or_raise()->self(); });
  module.def("worker_infos", [] { return agent_or_raise()->workers(); });
  module.def("find_worker", &find);
  module.def("is_static", &is_static);
  module.def("timeout", [] { return seconds_of(agent_or_raise()->timeout()); });
  module.def("set_timeout",
             [](double seconds) { agent_or_raise()->set_timeout(timeout_of(seconds)); });
  module.def("gather", &gather, py::arg("names"), py::arg("value"), py::arg("timeout"));
  module.def("end_references", &end_references, py::arg("patience"));
  module.def("metrics", [] { return with_waits(rpc::metrics()); });
  module.def("debug_info", [] { return with_waits(rpc::debug_info()); });
  module.def("set_measures_waits", &set_measures_waits);
  module.def("reference_info", &reference_info);
}

}  // namespace muster::python
