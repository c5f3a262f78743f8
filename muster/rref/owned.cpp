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
