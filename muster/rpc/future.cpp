#include "muster/rpc/future.h"

#include "muster/base/log.h"
#include "muster/rpc/functions.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>

namespace muster::rpc {

CallException::CallException(CallError error)
    : std::runtime_error(render(error)), error_(std::move(error)) {}

namespace internal {
namespace {

constexpr int kCallbackDepthMax = 100;

thread_local int callback_depth = 0;
thread_local std::deque<std::function<void()>> put_off_callbacks;

}  // namespace

CallbackNest::CallbackNest() { ++callback_depth; }

CallbackNest::~CallbackNest() {
  if (callback_depth == 1) {
    while (!put_off_callbacks.empty()) {
      const std::function<void()> work = std::move(put_off_callbacks.front());
      put_off_callbacks.pop_front();
      work();
    }
  }
  --callback_depth;
}

bool CallbackNest::is_deep() const { return callback_depth > kCallbackDepthMax; }

void CallbackNest::put_off(std::function<void()> work) {
  put_off_callbacks.push_back(std::move(work));
}

void complain(const CallError& error) {
  // When a worker is lost there may be thousands of them.
  constexpr Duration kInterval = std::chrono::seconds(1);
  static std::mutex mutex;
  static TimePoint last;  // both guarded by the mutex
  static std::uint64_t silent_count = 0;
  const TimePoint now = SystemClock().now();
  std::uint64_t others = 0;
  {
    const std::lock_guard lock(mutex);
    if (last != TimePoint() && now - last < kInterval) {
      ++silent_count;
      return;
    }
    last = now;
    others = std::exchange(silent_count, 0);
  }
  const std::string more = others > 0 ? fmt::format(" (and {} more before it)", others) : "";
  log::warn("rpc", "a call failed and nobody asked for its outcome{}: {}", more, render(error));
}

bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                TimePoint deadline, const std::function<bool()>& holds) {
  if (deadline == kNever) {
    condition.wait(lock, holds);
    return true;
  }
  const SystemClock clock;
  // In steps that every clock can represent.
  constexpr Duration kStepMax = std::chrono::hours(1);
  while (!holds()) {
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) return false;
    condition.wait_for(lock, std::min(left, kStepMax));
  }
  return true;
}

void complain_about_callback() {
  const Failure failure = describe_current_exception();
  log::error("rpc", "a callback of a future threw {}: {}", failure.type, failure.text);
}

CallError error_of_exception(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const CallException& exception) {
    return exception.error();
  } catch (...) {
    Failure failure = describe_current_exception();
    return {CallErrorKind::Remote, std::move(failure.text), std::move(failure.type), true};
  }
}

}  // namespace internal
}  // namespace muster::rpc
