#include "muster/rref/owned.h"

namespace muster::rref {

void Owned::set(Outcome outcome) {
  std::shared_ptr<Promise> promise;
  {
    const std::lock_guard lock(mutex_);
    if (object_ || has_failed_) return;
    if (outcome) {
      object_ = *outcome;
      promise.swap(promise_);
    } else {
      has_failed_ = true;
      if (!promise_) promise_ = std::make_shared<Promise>();
      promise = promise_;
    }
  }
  if (promise) promise->set(std::move(outcome));
}

void Owned::set_not_created(const rpc::CallError& error) {
  {
    const std::lock_guard lock(mutex_);
    if (object_ || has_failed_) return;
    is_not_created_ = true;
  }
  set(rpc::call_failed(error));
}

std::optional<rpc::CallError> Owned::creation_error() const {
  ObjectFuture future = ObjectFuture::ready(nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (!is_not_created_ || !promise_) return std::nullopt;
    future = promise_->future();
  }
  const auto& outcome = future.wait();
  return outcome ? std::nullopt : std::optional(outcome.error());
}

std::shared_ptr<rpc::Object> Owned::object() const {
  const std::lock_guard lock(mutex_);
  return object_;
}

ObjectFuture Owned::value() const {
  const std::lock_guard lock(mutex_);
  if (object_) return ObjectFuture::ready(object_);
  if (!promise_) promise_ = std::make_shared<Promise>();
  return promise_->future();
}

Owned::Outcome Owned::wait() const {
  if (auto made = object()) return made;
  return value().wait();
}

}  // namespace muster::rref
