#include "muster/base/task.h"

namespace muster {
namespace internal {

// The coroutine at the root of a scope's task: linked into the scope, and freed when it ends.
struct RootTask {
  using promise_type = RootPromise;
  std::coroutine_handle<RootPromise> handle;
};

class RootPromise {
 public:
  ~RootPromise() {
    if (previous != nullptr) *previous = next;
    if (next != nullptr) next->previous = previous;
  }
  RootTask get_return_object() { return {std::coroutine_handle<RootPromise>::from_promise(*this)}; }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept { return {}; }  // frees the frame, which unlinks it
  void return_void() {}
  void unhandled_exception() noexcept { std::terminate(); }

  RootPromise** previous = nullptr;  // the pointer that points here
  RootPromise* next = nullptr;
};

namespace {
RootTask run_root(Task<void> task) { co_await task; }
}  // namespace

}  // namespace internal

void TaskScope::start(Task<void> task) {
  const internal::RootTask root = internal::run_root(std::move(task));
  internal::RootPromise& promise = root.handle.promise();
  promise.previous = &first_;
  promise.next = first_;
  if (first_ != nullptr) first_->previous = &promise.next;
  first_ = &promise;
  root.handle.resume();
}

void TaskScope::cancel_all() {
  while (first_ != nullptr)
    std::coroutine_handle<internal::RootPromise>::from_promise(*first_).destroy();
}

}  // namespace muster
