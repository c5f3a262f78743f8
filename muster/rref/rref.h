// RRef: a reference to a value that lives on one worker, and can be held, passed on and used by
// others. The value is released when the last reference to it, on whatever worker, is gone.
//
//   const rpc::Procedure<Counter(std::int64_t)> kMake("counter.make");
//   const rpc::Procedure<std::int64_t(RRef<Counter>, std::int64_t)> kAdd("counter.add");
//
//   rpc::define(kMake, [](std::int64_t start) { return Counter(start); });
//   rpc::define(kAdd, rpc::method(&Counter::add));
//
//   auto counter = rpc::remote("worker1", kMake, 5);      // at once; the value is made over there
//   auto sum = counter->call(kAdd, 2);                    // runs where the value is, and waits
//   auto copy = numbers->to_here();                       // for types that can be sent
//
// A reference may be an argument, a result, and a part of either, to whatever worker. It is a
// value: copies on one worker are the same reference. Any thread.
#pragma once

#include "muster/base/clock.h"
#include "muster/rpc/call.h"
#include "muster/rpc/object.h"
#include "muster/rref/keeper.h"

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace muster::rpc {

template <typename T>
class RRef;

template <typename R, typename... Args, typename... Given>
CallResult<RRef<R>> remote(Agent& agent, const Destination& to,
                           const Procedure<R(Args...)>& procedure, Given&&... given);

namespace internal {

CallError no_reference();
CallError not_the_owner(const rref::Handle& handle);
CallError another_type(const rref::Handle& handle);

// Calls a function where a value is, with a reference to it as the first argument.
template <typename T>
class OnOwner {
 public:
  OnOwner(RRef<T> reference, std::optional<Duration> timeout)
      : reference_(std::move(reference)), timeout_(timeout) {
    if (reference_) agent_ = reference_.handle()->keeper().agent();
  }

  // Waits for the result; gives a future of it; leaves it there, and gives a reference to it.
  template <typename R, typename... Args, typename... Given>
  CallResult<R> call(const Procedure<R(RRef<T>, Args...)>& procedure, Given&&... given) const {
    return async(procedure, std::forward<Given>(given)...).take();
  }
  template <typename R, typename... Args, typename... Given>
  Future<R> async(const Procedure<R(RRef<T>, Args...)>& procedure, Given&&... given) const {
    auto to = destination();
    if (!to) return Future<R>::ready(call_failed(std::move(to.error())));
    return rpc::async(*agent_, *to, procedure, reference_, std::forward<Given>(given)...);
  }
  template <typename R, typename... Args, typename... Given>
  CallResult<RRef<R>> remote(const Procedure<R(RRef<T>, Args...)>& procedure,
                             Given&&... given) const {
    auto to = destination();
    if (!to) return call_failed(std::move(to.error()));
    return rpc::remote(*agent_, *to, procedure, reference_, std::forward<Given>(given)...);
  }

 private:
  CallResult<Destination> destination() const {
    auto owner = reference_.owner();
    if (!owner) return call_failed(std::move(owner.error()));
    Destination to(*owner);
    if (timeout_) return std::move(to).within(*timeout_);
    return to;
  }

  RRef<T> reference_;
  std::optional<Duration> timeout_;
  std::shared_ptr<Agent> agent_;  // nothing: there is no destination
};

}  // namespace internal

template <typename T>
class RRef {
 public:
  // Refers to nothing.
  RRef() = default;
  explicit RRef(std::shared_ptr<rref::Handle> handle) : handle_(std::move(handle)) {}

  explicit operator bool() const { return handle_ != nullptr; }
  bool is_owner() const { return handle_ && handle_->is_owner(); }
  // An error once it has left the group, or RPC has ended here.
  CallResult<WorkerInfo> owner() const {
    if (!handle_) return call_failed(internal::no_reference());
    return handle_->keeper().owner_of(*handle_);
  }
  // Whether the owner knows of this reference, or never will.
  bool confirmed_by_owner() const { return handle_ && handle_->keeper().is_confirmed(*handle_); }
  // How the call of `remote` that made this reference went.
  std::optional<Future<>> creation() const { return handle_ ? handle_->creation() : std::nullopt; }
  std::string text() const { return handle_ ? handle_->text() : "RRef()"; }

  // The value itself, on its owner only. Waits until it is made. What threads do with it at the
  // same time is for the program to order.
  CallResult<T*> local_value() const requires(!std::is_void_v<T>) {
    if (!handle_) return call_failed(internal::no_reference());
    if (!handle_->is_owner()) return call_failed(internal::not_the_owner(*handle_));
    const auto outcome = handle_->owned()->wait();
    if (!outcome) return call_failed(outcome.error());
    T* const value = TypedObject<T>::value_of(**outcome);
    if (value == nullptr) return call_failed(internal::another_type(*handle_));
    return value;
  }

  // A copy of the value as it is now.
  CallResult<T> to_here() const { return fetch(std::nullopt).take(); }
  CallResult<T> to_here(Duration timeout) const {
    return fetch(std::chrono::duration<double>(timeout).count()).take();
  }
  Future<T> to_here_async() const { return fetch(std::nullopt); }

  // Calls with this reference as the first argument, on its owner.
  template <typename R, typename... Args, typename... Given>
  CallResult<R> call(const Procedure<R(RRef<T>, Args...)>& procedure, Given&&... given) const {
    return on_owner().call(procedure, std::forward<Given>(given)...);
  }
  template <typename R, typename... Args, typename... Given>
  Future<R> async(const Procedure<R(RRef<T>, Args...)>& procedure, Given&&... given) const {
    return on_owner().async(procedure, std::forward<Given>(given)...);
  }
  template <typename R, typename... Args, typename... Given>
  CallResult<RRef<R>> remote(const Procedure<R(RRef<T>, Args...)>& procedure,
                             Given&&... given) const {
    return on_owner().remote(procedure, std::forward<Given>(given)...);
  }
  // The same with a timeout: `reference.within(2s).call(…)`.
  internal::OnOwner<T> within(Duration timeout) const {
    return internal::OnOwner<T>(*this, timeout);
  }

  const std::shared_ptr<rref::Handle>& handle() const { return handle_; }

 private:
  internal::OnOwner<T> on_owner() const { return internal::OnOwner<T>(*this, std::nullopt); }

  Future<T> fetch(std::optional<double> timeout_seconds) const {
    if (!handle_) return Future<T>::ready(call_failed(internal::no_reference()));
    if (handle_->is_owner()) return fetch_here();
    static_assert(std::is_void_v<T> || Codable<T>,
                  "a value of this type is never sent; call functions with the reference");
    const auto agent = handle_->keeper().agent();
    if (!agent) return Future<T>::ready(call_failed(internal::not_initialized()));
    Promise<T> promise;
    Future<T> future = promise.future();
    // The reference is held until the answer is there: it must not end before.
    const auto decode = [handle = handle_,
                         support = agent->device_support()](CallResult<Message> outcome) {
      return decode_response<T>(std::move(outcome), {&handle->keeper(), support.get()},
                                MessageType::ScriptRrefFetchRet);
    };
    handle_->keeper().fetch(*agent, *handle_, timeout_seconds,
                            std::make_unique<PromiseSink<T, decltype(decode)>>(
                                std::move(promise), agent->callbacks(), decode));
    return future;
  }
  Future<T> fetch_here() const {
    return handle_->owned()->value().then([handle = handle_](const auto& outcome) -> CallResult<T> {
      if (!outcome) return call_failed(outcome.error());
      if constexpr (std::is_void_v<T>) {
        return {};
      } else {
        const T* const value = TypedObject<T>::value_of(**outcome);
        if (value == nullptr) return call_failed(internal::another_type(*handle));
        return *value;
      }
    });
  }

  std::shared_ptr<rref::Handle> handle_;
};

template <typename T>
struct Codec<RRef<T>> {
  static void write(Writer& writer, const RRef<T>& reference) {
    Freight* const freight = writer.freight();
    if (freight == nullptr || freight->references() == nullptr) {
      return writer.fail("a reference can only be sent in a call, while RPC runs");
    }
    std::string bytes;
    if (reference) {
      auto given = reference.handle()->keeper().give(*reference.handle(), *freight);
      if (!given) return writer.fail(given.error().message);
      bytes = std::move(*given);
    }
    writer.write(bytes);
  }
  static void read(Reader& reader, RRef<T>& reference) {
    const auto bytes = reader.read<std::string>();
    Freight* const freight = reader.freight();
    if (freight == nullptr || freight->references() == nullptr) {
      return reader.fail("a reference can only be received in a call, while RPC runs");
    }
    if (!reader.ok() || bytes.empty()) return;
    // There is only one kind.
    auto& keeper = static_cast<rref::Keeper&>(*freight->references());
    auto taken = keeper.take(bytes, type_text<T>(), *freight);
    if (!taken) return reader.fail("it has a reference to a value of another type");
    reference = RRef<T>(std::move(*taken));
  }
  static void sign(Signature& signature) {
    signature.append_text("rref<");
    signature.append_text(type_text<T>());
    signature.append_text(">");
  }
};

// Runs a function on a worker and leaves the result there. The reference can be used at once, also
// while the value is not made yet, and if that fails every later use says why. An error here: the
// call could not even be sent.
template <typename R, typename... Args, typename... Given>
CallResult<RRef<R>> remote(Agent& agent, const Destination& to,
                           const Procedure<R(Args...)>& procedure, Given&&... given) {
  static_assert(sizeof...(Args) == sizeof...(Given), "the procedure takes other arguments");
  static_assert(Referable<R>, "the result is neither sendable nor an object: see rpc/object.h");
  const auto keeper = rref::Keeper::of(agent);
  if (!keeper) return call_failed(internal::not_initialized());
  const auto encode = [&](std::string head, internal::Route& route) {
    return encode_call<R(Args...)>(
        {MessageType::ScriptRemoteCall, std::move(head), &route, &route.devices()},
        procedure.name(), internal::as_parameter<Args>(std::forward<Given>(given))...);
  };
  auto handle = keeper->remote({to, type_text<R>(), encode});
  if (!handle) return call_failed(std::move(handle.error()));
  return RRef<R>(std::move(*handle));
}
template <typename R, typename... Args, typename... Given>
CallResult<RRef<R>> remote(const Destination& to, const Procedure<R(Args...)>& procedure,
                           Given&&... given) {
  const auto agent = current_agent();
  if (!agent) return call_failed(internal::not_initialized());
  return remote(*agent, to, procedure, std::forward<Given>(given)...);
}

// A reference to a value of this worker.
template <typename T>
CallResult<RRef<std::remove_cvref_t<T>>> make_rref(const Agent& agent, T&& value) {
  using Value = std::remove_cvref_t<T>;
  static_assert(Referable<Value>, "neither sendable nor an object: see rpc/object.h");
  const auto keeper = rref::Keeper::of(agent);
  if (!keeper) return call_failed(internal::not_initialized());
  return RRef<Value>(
      keeper->make_local(std::make_shared<TypedObject<Value>>(std::forward<T>(value))));
}

template <typename T>
CallResult<RRef<std::remove_cvref_t<T>>> make_rref(T&& value) {
  const auto agent = current_agent();
  if (!agent) return call_failed(internal::not_initialized());
  return make_rref(*agent, std::forward<T>(value));
}

// A function that calls a method of the value that its first argument refers to, to be defined for
// a procedure. Only the owner can serve it.
template <typename R, typename C, typename... P>
auto method(R (C::*method)(P...)) {
  return [method](const RRef<C>& self, std::remove_cvref_t<P>... args) -> R {
    const auto value = self.local_value();
    if (!value) throw CallException(value.error());
    return ((*value)->*method)(std::move(args)...);
  };
}
template <typename R, typename C, typename... P>
auto method(R (C::*method)(P...) const) {
  return [method](const RRef<C>& self, std::remove_cvref_t<P>... args) -> R {
    const auto value = self.local_value();
    if (!value) throw CallException(value.error());
    return ((*value)->*method)(std::move(args)...);
  };
}

}  // namespace muster::rpc
