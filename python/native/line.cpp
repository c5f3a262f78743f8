#include "python/native/line.h"

#include <chrono>
#include <utility>

namespace muster::python {
namespace {

// How long the line may stand still until another thread joins in.
constexpr std::chrono::microseconds kPatience{500};

}  // namespace

// A thread that serves.
struct Line::Serving {
  Line& line;
  rpc::Pool& pool;
  bool is_aside = false;

  static thread_local Serving* current;
};
thread_local Line::Serving* Line::Serving::current = nullptr;

bool Line::start_serving(rpc::Pool& pool) {
  ++server_count_;
  if (pool.post([this, &pool] { serve(pool); })) return true;
  --server_count_;
  return false;
}

void Line::add(std::function<void()> run, rpc::Pool& pool) {
  std::deque<std::function<void()>> dropped;  // without the lock
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(run));
  if (server_count_ == 0) {
    if (!start_serving(pool)) dropped.swap(entries_);
  } else if (!is_watched_) {
    is_watched_ = pool.post([this, &pool] { watch(pool); });
  }
}

void Line::step_aside() {
  Serving* const serving = Serving::current;
  if (serving == nullptr || serving->is_aside) return;
  Line& line = serving->line;
  const std::lock_guard lock(line.mutex_);
  serving->is_aside = true;
  --line.server_count_;
  // If nobody can come, it goes on with them itself afterwards.
  if (line.server_count_ == 0 && !line.entries_.empty()) (void)line.start_serving(serving->pool);
}

void Line::serve(rpc::Pool& pool) {
  Serving serving{*this, pool};
  Serving::current = &serving;
  std::unique_lock lock(mutex_);
  while (!entries_.empty()) {
    auto run = std::move(entries_.front());
    entries_.pop_front();
    ++taken_count_;
    lock.unlock();
    run();
    run = nullptr;
    lock.lock();
    if (!serving.is_aside) continue;
    serving.is_aside = false;
    ++server_count_;
    if (server_count_ > 1) break;  // others are here
  }
  --server_count_;
  if (is_watched_) served_.notify_all();
  Serving::current = nullptr;
}

void Line::watch(rpc::Pool& pool) {
  std::unique_lock lock(mutex_);
  while (!entries_.empty()) {
    const std::uint64_t taken_before = taken_count_;
    served_.wait_for(lock, kPatience, [this] { return entries_.empty(); });
    if (entries_.empty() || taken_count_ != taken_before) continue;
    // Whoever serves is held up. Somebody else watches from now on.
    ++server_count_;
    is_watched_ = entries_.size() > 1 && pool.post([this, &pool] { watch(pool); });
    lock.unlock();
    return serve(pool);
  }
  is_watched_ = false;
}

}  // namespace muster::python
