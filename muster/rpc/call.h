// Calling functions of other workers, and defining those that they call here.
//
//   const rpc::Procedure<double(std::vector<double>, double)> kScaledNorm("scaled_norm");
//
//   rpc::define(kScaledNorm, [](std::vector<double> v, double scale) { … });   // whoever is called
//   CallResult<double> norm = rpc::call("worker1", kScaledNorm, values, 2.0);    // waits
//   Future<double> later = rpc::async(rpc::to("worker1").within(2s), kScaledNorm, values, 2.0);
//
// A Procedure is the name and the types of a function, declared once for those who call it and for
// whoever defines it: the compiler checks both, and the workers check on every call that they mean
// the same. What may be an argument or a result is said in value.h.
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
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::rpc {

// The functions of this process. They outlive any number of agents.
Functions& functions();

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
    return std::move(*this).within_seconds(std::chrono::duration<double>(timeout).count());
  }
  Destination within_seconds(double timeout) && {
    timeout_seconds_ = timeout;
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

// Whom a call goes to, and what it carries there.
class Route final : public Freight {
 public:
  // Requires: both outlive it.
  Route(Agent& agent, const Destination& to);
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  const DeviceRoute& devices() const { return devices_; }
  CallResult<std::int16_t> peer() override;
  // Sends it; what is wrong with it is told to the sink.
  void submit(Result<Message> request, std::unique_ptr<CallSink> sink);

 private:
  Agent& agent_;
  const Destination& to_;
  CallResult<std::string> found_;  // the name, if the destination was given by its id
  DeviceRoute devices_;
};
// The worker that is meant.
CallResult<WorkerInfo> find(const Agent& agent, const Destination& to);
CallError not_initialized();

template <typename T>
struct ElementOfSpan {};
template <typename T, std::size_t extent>
struct ElementOfSpan<std::span<T, extent>> {
  using Type = std::remove_const_t<T>;
};

// A row of numbers that is gone when the call is made, where a std::span would be lent: the row
// itself is sent then, which is the same to the callee.
template <typename Value, typename Argument>
concept GoneRow = !std::is_lvalue_reference_v<Argument> && requires {
  typename ElementOfSpan<Value>::Type;
}
&&std::ranges::range<Argument> && !std::ranges::borrowed_range<Argument>;

// The argument as the callee expects it; not copied if it is that already.
template <typename Parameter, typename Argument>
decltype(auto) as_parameter(Argument&& argument) {
  using Value = std::remove_cvref_t<Parameter>;
  if constexpr (std::is_same_v<Value, std::remove_cvref_t<Argument>>) {
    return std::forward<Argument>(argument);
  } else if constexpr (GoneRow<Value, Argument>) {
    using Row = std::vector<typename ElementOfSpan<Value>::Type>;
    if constexpr (std::is_same_v<Row, Argument>) {
      return std::move(argument);
    } else {
      const Value row(argument);
      return Row(row.begin(), row.end());
    }
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
Future<R> async(Agent& agent, const Destination& to, const Procedure<R(Args...)>& procedure,
                Given&&... given) {
  static_assert(sizeof...(Args) == sizeof...(Given), "the procedure takes other arguments");
  Promise<R> promise;
  Future<R> future = promise.future();
  internal::Route route(agent, to);
  auto request = encode_call<R(Args...)>(
      Envelope{.freight = &route, .devices = &route.devices()}, procedure.name(),
      internal::as_parameter<Args>(std::forward<Given>(given))...);
  const auto decode = [references = agent.references(),
                       support = agent.device_support()](CallResult<Message> outcome) {
    return decode_response<R>(std::move(outcome), {references, support.get()});
  };
  auto sink = std::make_unique<PromiseSink<R, decltype(decode)>>(std::move(promise),
                                                                 agent.callbacks(), decode);
  route.submit(std::move(request), std::move(sink));
  return future;
}
template <typename R, typename... Args, typename... Given>
Future<R> async(const Destination& to, const Procedure<R(Args...)>& procedure, Given&&... given) {
  const auto agent = current_agent();
  if (!agent) return Future<R>::ready(call_failed(internal::not_initialized()));
  return async(*agent, to, procedure, std::forward<Given>(given)...);
}

// Calls, and waits for the result.
template <typename R, typename... Args, typename... Given>
CallResult<R> call(const Destination& to, const Procedure<R(Args...)>& procedure,
                   Given&&... given) {
  return async(to, procedure, std::forward<Given>(given)...).take();
}

}  // namespace muster::rpc
