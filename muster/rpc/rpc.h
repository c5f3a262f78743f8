// The API of Muster's RPC: functions that workers of a group call of each other.
//
//   const rpc::Procedure<double(std::vector<double>, double)> kScaledNorm("scaled_norm");
//
//   rpc::define(kScaledNorm, [](std::vector<double> v, double scale) { … });   // whoever is called
//   rpc::init();                                                            // under `muster run`
//   CallResult<double> norm = rpc::call("worker1", kScaledNorm, values, 2.0);    // waits
//   Future<double> later = rpc::async(rpc::to("worker1").within(2s), kScaledNorm, values, 2.0);
//   rpc::shutdown();                                             // when all have nothing left to
//   do
//
// A Procedure is the name and the types of a function, declared once for those who call it and for
// whoever defines it: the compiler checks both, and the workers check on every call that they mean
// the same. What may be an argument or a result is said in value.h. docs/rpc.md tells the rest.
//
// Everything here may be used from any thread.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/function_server.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/future.h"

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::rpc {

// What is not given is taken from the environment that `muster run` (or torchrun) sets.
struct InitOptions {
  std::string name;                        // "worker<rank>"
  std::optional<std::int64_t> rank;        // RANK
  std::optional<std::int64_t> world_size;  // WORLD_SIZE
  // Workers come and go: there is no world size, and `rank` is only a number that nobody else has.
  bool dynamic = false;
  std::string store;    // "host:port"; MASTER_ADDR and MASTER_PORT
  std::string address;  // where others reach this worker: the way to the store, if it is not given
  Duration timeout = std::chrono::seconds(60);  // of calls; 0: none
  std::size_t thread_count = 16;                // that run functions
  // How long to wait until all workers have come; nothing: `timeout`, or for ever if that is 0.
  std::optional<Duration> start_timeout;
  bool shared_memory = true;
  // Where tensors of accelerators go, and who moves them; see device_maps.h.
  DeviceOptions devices{};
  std::shared_ptr<DeviceSupport> device_support{};
};

// Joins the group. Invalid: a name that is taken, and the like; Timeout: the error says who is
// missing.
Result<> init(InitOptions options = {});

struct ShutdownOptions {
  // Waits until all workers call it and nothing is left to do; otherwise this worker just goes.
  bool graceful = true;
  Duration timeout = Duration::zero();  // 0: as long as all are alive
};
// Whatever it answers, RPC has ended on this worker; but for Rejected, when it cannot even begin:
// RPC does not run, another thread is at it already, or it was called by a function or a callback
// that RPC itself runs.
CallResult<> shutdown(ShutdownOptions options = {});

bool is_running();
// This worker, and all of the group. Throws CallException if RPC is not running.
WorkerInfo self();
std::vector<WorkerInfo> workers();
// The accelerators of this worker: the option, or else those that the device maps of all name, by
// index. Throws CallException if RPC is not running.
std::vector<Device> devices();

// Waits until all workers have come here.
CallResult<> barrier();
// The figures of docs/rpc.md, by name.
std::map<std::string, std::string> metrics();

// The functions of this process. They outlive any number of `init` and `shutdown`.
Functions& functions();

// ---- calling ------------------------------------------------------------------------------------

// Whom to call, by name, id or info; and how long to wait for it.
class Destination {
 public:
  Destination(const char* name) : name_(name) {}
  Destination(std::string name) : name_(std::move(name)) {}
  Destination(std::string_view name) : name_(name) {}
  Destination(const WorkerInfo& info) : name_(info.name()) {}
  template <std::integral Id>
  Destination(Id id) : id_(static_cast<std::int64_t>(id)) {}

  // The timeout of this call; 0: none.
  Destination within(Duration timeout) && {
    timeout_seconds_ = std::chrono::duration<double>(timeout).count();
    return std::move(*this);
  }

  const std::string& name() const { return name_; }
  std::optional<std::int64_t> id() const { return id_; }
  std::optional<double> timeout_seconds() const { return timeout_seconds_; }

 private:
  std::string name_;
  std::optional<std::int64_t> id_;
  std::optional<double> timeout_seconds_;
};
inline Destination to(Destination destination) { return destination; }

template <typename F>
class Procedure;
template <typename R, typename... Args>
class Procedure<R(Args...)> {
 public:
  explicit Procedure(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

namespace internal {

// Whom a call goes to, once that is known.
class Route {
 public:
  // Requires: both outlive it.
  Route(Agent& agent, const Destination& to);
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  const DeviceRoute& devices() const { return devices_; }
  // Sends it; what is wrong with it is told to the sink.
  void submit(Result<Message> request, std::unique_ptr<CallSink> sink) const;

 private:
  Agent& agent_;
  const Destination& to_;
  CallResult<std::string> found_;  // the name, if the destination was given by its id
  DeviceRoute devices_;
};
CallError not_initialized();

// The argument as the callee expects it; not copied if it is that already.
template <typename Parameter, typename Argument>
decltype(auto) as_parameter(Argument&& argument) {
  using Value = std::remove_cvref_t<Parameter>;
  if constexpr (std::is_same_v<Value, std::remove_cvref_t<Argument>>) {
    return std::forward<Argument>(argument);
  } else {
    return static_cast<Value>(std::forward<Argument>(argument));
  }
}

}  // namespace internal

// Makes `function` what workers get that call `procedure` here. Its types must be those of the
// procedure; it may answer with R, Result<R> or Future<R>.
template <typename R, typename... Args, typename F>
Result<> define(const Procedure<R(Args...)>& procedure, F function, FunctionOptions options = {}) {
  static_assert(std::is_same_v<typename internal::CallableTypes<F>::Values,
                               std::tuple<std::remove_cvref_t<Args>...>>,
                "the parameters of the function are not those of the procedure");
  static_assert(
      std::is_same_v<typename ResultTraits<typename internal::CallableTypes<F>::Return>::Value, R>,
      "the result of the function is not that of the procedure");
  return functions().add(procedure.name(), std::move(function), options);
}

// Calls, and goes on. The future fails at once when the call cannot even be sent.
template <typename R, typename... Args, typename... Given>
Future<R> async(const Destination& to, const Procedure<R(Args...)>& procedure, Given&&... given) {
  static_assert(sizeof...(Args) == sizeof...(Given), "the procedure takes other arguments");
  const auto agent = current_agent();
  if (!agent) return Future<R>::ready(call_failed(internal::not_initialized()));
  Promise<R> promise;
  Future<R> future = promise.future();
  const internal::Route route(*agent, to);
  auto request =
      encode_call<R(Args...)>(route.devices(), procedure.name(),
                              internal::as_parameter<Args>(std::forward<Given>(given))...);
  const auto decode = [support = agent->device_support()](CallResult<Message> outcome) {
    return decode_response<R>(std::move(outcome), support.get());
  };
  auto sink = std::make_unique<PromiseSink<R, decltype(decode)>>(std::move(promise),
                                                                 agent->callbacks(), decode);
  route.submit(std::move(request), std::move(sink));
  return future;
}

// Calls, and waits for the result.
template <typename R, typename... Args, typename... Given>
CallResult<R> call(const Destination& to, const Procedure<R(Args...)>& procedure,
                   Given&&... given) {
  return async(to, procedure, std::forward<Given>(given)...).take();
}

}  // namespace muster::rpc
