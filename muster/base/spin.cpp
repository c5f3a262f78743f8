#include "muster/base/spin.h"

#include "muster/base/fd.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <sched.h>
#include <string_view>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace muster {
namespace {

constexpr Duration kFirst = std::chrono::microseconds(20);
constexpr int kMissesMax = 4;
constexpr int kSkipsMax = 1024;
constexpr Duration kAskEvery = std::chrono::milliseconds(1);
constexpr int kRestsPerLoss = 32;
constexpr int kWeightMax = 32;
constexpr Duration kRestMin = std::chrono::milliseconds(2);
constexpr Duration kRestMax = std::chrono::seconds(1);

// Less than this part of the time is nothing: threads of one's own take some, too, and to be woken
// takes longer than to wait for those. Where others want the processor all the time, it is far
// more.
constexpr int kLittle = 2;
// Where more threads want to run than there are processors, much will be lost again.
constexpr Duration kLostWhereShort = std::chrono::milliseconds(8);
// And is not even to be tried; to ask again soon costs little.
constexpr Duration kForesight = std::chrono::microseconds(250);
// Whoever has not asked for so long did not look meanwhile.
constexpr Duration kStale = std::chrono::milliseconds(100);

// When the calling thread last asked what it has lost.
struct Account {
  TimePoint asked;
  long switch_count = -1;  // it has not asked yet
  Duration waited = Duration::zero();
};
thread_local Account last;
thread_local TimePoint gave_way = {};

// Of the whole machine: those that run, or could if there was a processor.
std::optional<int> running_thread_count() {
  const Fd file(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  if (!file.is_open() || ::read(file.get(), text.data(), text.size() - 1) <= 0) return {};
  // Three averages, then those that run / all there are.
  std::string_view rest = text.data();
  for (int averages = 0; averages < 3; ++averages) rest.remove_prefix(rest.find(' ') + 1);
  int count = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), count);
  if (read.ec != std::errc() || count <= 0) return {};
  return count;
}

// Whether clearly more threads want to run than there are processors: one more may be about to
// sleep. Nothing where the calling thread may use only some of them, since nobody tells who wants
// those.
std::optional<bool> are_processors_short() {
  cpu_set_t own;
  if (::sched_getaffinity(0, sizeof own, &own) != 0) return {};
  const std::optional<int> running = running_thread_count();
  if (!running || CPU_COUNT(&own) < ::sysconf(_SC_NPROCESSORS_ONLN)) return {};
  return *running > CPU_COUNT(&own) + 1;
}

// By the calling thread, so far.
Duration waited_for_processor() {
  const Fd file(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  if (!file.is_open() || ::read(file.get(), text.data(), text.size() - 1) <= 0) return {};
  // How long it ran, how long it waited, how often it ran.
  char* rest = text.data();
  std::strtoull(rest, &rest, 10);
  return std::chrono::nanoseconds(std::strtoull(rest, &rest, 10));
}

}  // namespace

void Rest::begin(TimePoint now, Duration lost) {
  const bool is_again = now - until_ < length_;
  weight_ = is_again ? std::min(weight_ * 2, kWeightMax) : 1;
  length_ = std::clamp(lost * kRestsPerLoss * weight_, kRestMin, kRestMax);
  until_ = now + length_;
}

void SpinBudget::came(Duration total, bool while_looking) {
  if (while_looking) {
    misses_ = 0;
    next_skips_ = kSkipsMin;
    return;
  }
  if (total > kNear) return nothing_came(total);
  if (skips_ > 0) {
    --skips_;
    return;
  }
  if (budget_ >= kLongest && ++misses_ >= kMissesMax) {
    // It always takes a little longer than we look.
    budget_ = Duration::zero();
    misses_ = 0;
    skips_ = std::exchange(next_skips_, std::min(2 * next_skips_, kSkipsMax));
    return;
  }
  budget_ = std::clamp(budget_ * 2, kFirst, kLongest);
}

void SpinBudget::nothing_came(Duration total) {
  if (total <= kNear) return;
  budget_ = Duration::zero();
  misses_ = 0;
}

bool SpinBudget::wants_to_know(TimePoint now) {
  if (at(now) == Duration::zero() || now - asked_ < kAskEvery) return false;
  asked_ = now;
  return true;
}

void SpinBudget::preempted(TimePoint now, Duration lost) {
  if (lost > Duration::zero()) rest_.begin(now, lost);
}

bool Moves::is_another_due(TimePoint now, Duration lost) {
  if (now - first_ > kWithin) {
    first_ = now;
    count_ = 0;
    lost_ = Duration::zero();
  }
  lost_ += lost;
  return ++count_ <= kMax;
}

bool move_to_another_processor() {
  if (are_processors_short().value_or(true)) return false;
  const int here = ::sched_getcpu();
  cpu_set_t all;
  if (here < 0 || ::sched_getaffinity(0, sizeof all, &all) != 0) return false;
  cpu_set_t others = all;
  CPU_CLR(static_cast<unsigned int>(here), &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return false;
  ::sched_setaffinity(0, sizeof all, &all);
  return true;
}

void forget_losses(TimePoint now) {
  last = {};
  gave_way = now;
}

Duration lost_to_others(TimePoint now, TimePoint since) {
  rusage usage{};
  if (::getrusage(RUSAGE_THREAD, &usage) != 0) return Duration::zero();
  const bool is_new = last.switch_count < 0 || last.asked < since;
  // Cheap, and mostly nothing has happened.
  if (!is_new && usage.ru_nivcsw == last.switch_count) return Duration::zero();
  const Account before = std::exchange(last, {now, usage.ru_nivcsw, waited_for_processor()});
  const Duration passed = now - before.asked;
  const bool is_known = !is_new && passed < kStale;
  const Duration lost = is_known ? last.waited - before.waited : Duration::zero();
  if (is_known && lost <= passed / kLittle) return Duration::zero();
  // Those to whom it gave way want to run, too.
  const bool is_lasting = now - gave_way > kStale && are_processors_short().value_or(false);
  if (!is_lasting) return lost;
  return is_known ? std::max(lost, kLostWhereShort) : kForesight;
}

}  // namespace muster
