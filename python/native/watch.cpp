#include "python/native/watch.h"

#include "python/native/interpreter.h"

#include <utility>

namespace muster::python {
namespace {

tl::unexpected<Error> closed() { return fail(ErrorKind::Closed, "the watch was closed"); }

}  // namespace

// Someone waits, as long as this lives: in the frame of the task, which may be destroyed.
class WatchHandle::Waiting {
 public:
  Waiting(std::shared_ptr<Held> held, Oneshot<Result<store::Change>>& outcome)
      : held_(std::move(held)) {
    held_->interrupt = [&outcome] { outcome.set(closed()); };
  }
  ~Waiting() {
    held_->interrupt = nullptr;
    if (held_->is_closing) held_->watch.reset();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::shared_ptr<Held> held_;
};

std::shared_ptr<WatchHandle> WatchHandle::begin(const StoreHandle& store, std::string key,
                                                store::Store::WatchScope scope) {
  auto held = std::make_shared<Held>();
  held->store = store.held();
  store::Store& watched = *held->store->store;
  LoopThread& thread = store.thread();
  // Held before it begins, so that it is let go of on the loop whatever happens.
  std::shared_ptr<WatchHandle> handle(new WatchHandle(thread, std::move(held)));
  handle->held_->watch =
      value_or_raise(thread.run([&] { return watched.watch(std::move(key), scope); }));
  return handle;
}

WatchHandle::~WatchHandle() {
  if (!thread_.runs_here()) {
    new std::shared_ptr<Held>(std::move(held_));
    return;
  }
  thread_.do_there_soon([held = std::move(held_)] { held->watch.reset(); });
}

Task<Result<store::Change>> WatchHandle::next_of(Loop& loop, std::shared_ptr<Held> held,
                                                 TimePoint deadline) {
  if (!held->watch || held->is_closing) co_return closed();
  if (held->interrupt) {
    co_return fail(ErrorKind::Conflict, "another thread waits for the next change already");
  }
  Oneshot<Result<store::Change>> outcome(loop);
  const Waiting waiting(held, outcome);
  TaskScope scope;
  scope.start(internal::deliver<store::Change>(held->watch->next(deadline), outcome));
  co_return co_await outcome;
}

store::Change WatchHandle::next(TimePoint deadline) {
  return value_or_raise(thread_.run([&] { return next_of(thread_.loop(), held_, deadline); }));
}

void WatchHandle::close() {
  if (!thread_.runs_here()) return;
  const Unlocked unlocked;
  thread_.do_there([this] {
    held_->is_closing = true;
    if (held_->interrupt) {
      held_->interrupt();
    } else {
      held_->watch.reset();
    }
  });
}

}  // namespace muster::python
