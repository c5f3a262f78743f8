#include "muster/rpc/pool.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace muster::rpc {
namespace {

// What the kernel keeps of a thread's name.
constexpr std::size_t kThreadNameBytesMax = 15;

thread_local Pool* current_pool = nullptr;

}  // namespace

Pool::Pool(std::string name, std::size_t thread_count, std::size_t threads_max)
    : name_(std::move(name)), thread_count_(thread_count), threads_max_(threads_max) {
  MUSTER_ASSERT(thread_count > 0);
}

Pool::~Pool() { stop(); }

bool Pool::post(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (stopped_) return false;
  queue_.push_back(std::move(work));
  if (sleeping_count_ > 0) changed_.notify_one();
  // One that has been woken but does not run yet still counts as asleep, for one piece of work.
  const std::string problem = add_thread_if_needed();
  const bool is_taken = alive_count_ > 0;
  if (!is_taken) {
    work = std::move(queue_.back());  // what it holds may call back into the pool
    queue_.pop_back();
  }
  std::vector<std::thread> ended = take_ended();
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
  if (!problem.empty()) log::warn("rpc", "{}", problem);
  return is_taken;
}

std::string Pool::add_thread_if_needed() {
  // Whoever sleeps has been woken, or will look before it sleeps.
  if (queue_.size() <= sleeping_count_ || active_count() >= thread_count_) return {};
  if (alive_count_ >= threads_max_) return {};
  threads_.emplace_back();
  try {
    threads_.back() = std::thread([this] { run(); });
    ++alive_count_;  // it does not look before we let go of the lock
    is_short_ = false;
    return {};
  } catch (const std::system_error& thrown) {
    // Too many threads or processes, or no memory for a stack. The next piece of work tries again.
    threads_.pop_back();
    if (std::exchange(is_short_, true)) return {};
    return fmt::format("cannot start a thread of {} beside the {} that there are: {}", name_,
                       alive_count_, thrown.code().message());
  }
}

std::vector<std::thread> Pool::take_ended() {
  std::vector<std::thread> ended;
  for (const std::thread::id id : ended_) {
    const auto found = std::find_if(threads_.begin(), threads_.end(),
                                    [&](const std::thread& one) { return one.get_id() == id; });
    ended.push_back(std::move(*found));
    threads_.erase(found);
  }
  ended_.clear();
  return ended;
}

void Pool::run() {
  ::pthread_setname_np(::pthread_self(), name_.substr(0, kThreadNameBytesMax).c_str());
  current_pool = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    // One that stood in for a thread that waited is not needed once that one is back.
    if (active_count() > thread_count_) break;
    if (!queue_.empty()) {
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;  // what it holds may call back into the pool
      lock.lock();
      continue;
    }
    if (stopped_) break;
    ++sleeping_count_;
    changed_.wait(lock);
    --sleeping_count_;
  }
  --alive_count_;
  ended_.push_back(std::this_thread::get_id());
  changed_.notify_all();
}

void Pool::stop() {
  std::unique_lock lock(mutex_);
  MUSTER_ASSERT(!is_current());
  stopped_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return alive_count_ == 0 && queue_.empty(); });
  std::vector<std::thread> threads = std::move(threads_);
  threads_.clear();
  ended_.clear();
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
}

bool Pool::is_stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

bool Pool::is_current() const { return current_pool == this; }

std::size_t Pool::idle_count() const {
  const std::lock_guard lock(mutex_);
  const std::size_t active = active_count();
  const std::size_t missing = active < thread_count_ ? thread_count_ - active : 0;
  return missing + sleeping_count_;
}

std::size_t Pool::waiting_count() const {
  const std::lock_guard lock(mutex_);
  return waiting_count_;
}

Pool::Waiting::Waiting() : pool_(current_pool) {
  if (pool_ == nullptr) return;
  std::string problem;
  {
    const std::lock_guard lock(pool_->mutex_);
    ++pool_->waiting_count_;
    problem = pool_->add_thread_if_needed();  // what has ended is joined by others
  }
  if (!problem.empty()) log::warn("rpc", "{}", problem);
}

Pool::Waiting::~Waiting() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  --pool_->waiting_count_;
  // One of those that sleep may be too many now.
  if (pool_->active_count() > pool_->thread_count_) pool_->changed_.notify_all();
}

}  // namespace muster::rpc
