#include "muster/rpc/gather.h"

#include "muster/base/assert.h"
#include "muster/rpc/function_server.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace muster::rpc {
namespace {

constexpr std::string_view kArrive = "muster.gather.arrive";
constexpr std::string_view kPresent = "muster.gather.present";
using ArriveType = std::map<std::string, std::string>(std::string, std::string, std::string);
using PresentType = void();

// How long the leader waits before it looks whether those who are missing are alive, and between
// two looks.
constexpr Duration kLookInterval = std::chrono::seconds(1);
// Likewise, while one of them seems to be gone.
constexpr Duration kSecondLookInterval = std::chrono::milliseconds(50);
// A worker to which nothing could be sent so often in a row is gone. Once is not enough: its
// connection may have been cut just then, which the next call mends.
constexpr int kUnsentMax = 2;

// Counts failures to reach a worker. Whether the last of them means that it is gone.
bool is_gone(const CallError& error, int& unsent_count) {
  if (error.kind != CallErrorKind::Unreachable) return true;
  unsent_count = error.sent ? 0 : unsent_count + 1;
  return unsent_count >= kUnsentMax;
}

template <typename F, typename T, typename... Args>
Future<T> call(Agent& agent, std::string_view to, std::optional<double> timeout_seconds,
               std::string_view name, Args&&... args) {
  Promise<T> promise;
  Future<T> future = promise.future();
  auto request = encode_call<F>(name, std::forward<Args>(args)...);
  MUSTER_ASSERT(request);
  const auto decode = [](CallResult<Message> outcome) {
    return decode_response<T>(std::move(outcome));
  };
  agent.submit(to, std::move(*request), timeout_seconds,
               std::make_unique<PromiseSink<T, decltype(decode)>>(std::move(promise),
                                                                  agent.callbacks(), decode));
  return future;
}

// 0: never.
TimePoint deadline_after(double seconds, TimePoint now) {
  if (seconds <= 0) return kNever;
  return now + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// What is left when none is; 0 would be for ever.
constexpr double kShortestSeconds = 0.001;

CallError gather_error(std::string text) {
  return {CallErrorKind::Remote, std::move(text), "", true};
}

}  // namespace

// Any thread.
class Gather::Hall {
 public:
  // `leader_of`: given by the leader itself, the names of all.
  Future<Values> arrive(const std::string& key, const std::string& name, std::string value,
                        const std::vector<std::string>* all_names) {
    std::shared_ptr<Meeting> complete;
    std::unique_lock lock(mutex_);
    if (const auto over = over_.find(set_of(key)); over != over_.end() && over->second.key == key) {
      return Future<Values>::ready(over->second.outcome);
    }
    auto& meeting = meetings_[key];
    if (!meeting) meeting = std::make_shared<Meeting>();
    Future<Values> future = meeting->promise.future();
    const auto [place, is_first] = meeting->values.try_emplace(name, value);
    if (!is_first && place->second != value) {
      return Future<Values>::ready(
          call_failed(gather_error(fmt::format("worker {} has come twice to one gather", name))));
    }
    if (all_names != nullptr) meeting->all_names = *all_names;
    if (!meeting->all_names.empty() && meeting->values.size() >= meeting->all_names.size()) {
      complete = meeting;
      over_[set_of(key)] = {key, complete->values};
      meetings_.erase(key);
    }
    lock.unlock();
    if (complete) complete->promise.set(complete->values);
    return future;
  }

  std::vector<std::string> missing(const std::string& key) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    const auto found = meetings_.find(key);
    if (found == meetings_.end()) return names;
    for (const std::string& name : found->second->all_names) {
      if (!found->second->values.contains(name)) names.push_back(name);
    }
    return names;
  }

  void fail(const std::string& key, const CallError& error) {
    std::unique_lock lock(mutex_);
    const auto found = meetings_.find(key);
    if (found == meetings_.end()) return;
    const auto meeting = std::move(found->second);
    meetings_.erase(found);
    over_[set_of(key)] = {key, call_failed(error)};
    lock.unlock();
    meeting->promise.set(call_failed(error));
  }

  void fail_all(const CallError& error) {
    std::unique_lock lock(mutex_);
    const auto meetings = std::exchange(meetings_, {});
    over_.clear();
    lock.unlock();
    for (const auto& [key, meeting] : meetings) meeting->promise.set(call_failed(error));
  }

 private:
  struct Meeting {
    std::vector<std::string> all_names;  // once the leader has come
    Values values;
    Promise<Values> promise;
  };
  struct Over {
    std::string key;
    CallResult<Values> outcome;
  };
  static std::string set_of(const std::string& key) { return key.substr(0, key.rfind('/')); }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;
  // The last gather of each set. Whoever did not hear of its end cannot be further.
  std::map<std::string, Over> over_;
};

Gather::Gather(Functions& functions) : hall_(std::make_shared<Hall>()) {
  const auto arrive = [hall = hall_](std::string key, std::string name, std::string value) {
    return hall->arrive(key, name, std::move(value), nullptr);
  };
  const auto added = functions.add(std::string(kArrive), arrive, {.run = Run::Inline});
  const auto present = functions.add(std::string(kPresent), [] {}, {.run = Run::Inline});
  MUSTER_ASSERT(added && present);
}

Gather::~Gather() = default;

void Gather::begin(std::string group) {
  hall_->fail_all(gather_error("the group of this gather has ended"));
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  counts_.clear();
}

CallResult<Gather::Values> Gather::all(Agent& agent, std::vector<std::string> names,
                                       std::string value, std::optional<double> timeout_seconds) {
  std::sort(names.begin(), names.end());
  const std::string& self = agent.self().name();
  if (!std::binary_search(names.begin(), names.end(), self)) {
    return call_failed(
        {CallErrorKind::Rejected,
         fmt::format("{} is not one of those who gather: {}", self, fmt::join(names, ", ")), "",
         false});
  }
  std::string key;
  {
    const std::lock_guard lock(mutex_);
    const std::string set = fmt::format("{}", fmt::join(names, ","));
    key = fmt::format("{}/{}/{}", group_, set, counts_[set]++);
  }
  if (names.front() == self) return lead(agent, key, names, std::move(value), timeout_seconds);
  return follow(agent, names.front(), key, std::move(value), timeout_seconds);
}

CallResult<Gather::Values> Gather::follow(Agent& agent, const std::string& leader,
                                          const std::string& key, std::string value,
                                          std::optional<double> timeout_seconds) {
  const SystemClock clock;
  const TimePoint deadline = deadline_after(timeout_seconds.value_or(0), clock.now());
  const std::uint64_t process = agent.process_of(leader);
  int unsent_count = 0;
  while (true) {
    double left = 0;
    if (deadline != kNever) left = std::chrono::duration<double>(deadline - clock.now()).count();
    if (deadline != kNever && left <= 0) left = kShortestSeconds;
    ++own_call_count_;
    const Future<Values> future =
        call<ArriveType, Values>(agent, leader, left, kArrive, key, agent.self().name(), value);
    const CallResult<Values>* outcome = nullptr;
    while (outcome == nullptr) {
      outcome = future.wait_until(clock.now() + kLookInterval);
      // One that was started again does not know of this gather, and would never answer.
      const std::uint64_t now = agent.process_of(leader);
      if (now != 0 && now != process && (outcome == nullptr || !*outcome)) {
        future.on_done([](const CallResult<Values>&) {});
        return call_failed(
            {CallErrorKind::Unreachable,
             fmt::format("worker {}, which led the gather, was started again", leader), "", true});
      }
    }
    if (*outcome || is_gone(outcome->error(), unsent_count)) return *outcome;
  }
}

CallResult<Gather::Values> Gather::lead(Agent& agent, const std::string& key,
                                        const std::vector<std::string>& names, std::string value,
                                        std::optional<double> timeout_seconds) {
  const SystemClock clock;
  const double seconds = timeout_seconds.value_or(0);
  const TimePoint deadline = deadline_after(seconds, clock.now());
  const Future<Values> future = hall_->arrive(key, agent.self().name(), std::move(value), &names);
  std::map<std::string, Future<void>> looks;
  std::map<std::string, int> unsent_counts;
  bool is_in_doubt = false;
  while (!future.done()) {
    const Duration interval = is_in_doubt ? kSecondLookInterval : kLookInterval;
    const TimePoint next = std::min(deadline, clock.now() + interval);
    if (future.wait_until(next) != nullptr) break;
    if (clock.now() >= deadline) {
      hall_->fail(key, gather_error(fmt::format(
                           "Followers [{}] timed out in _all_gather after {:.2f} seconds",
                           fmt::join(hall_->missing(key), ", "), seconds)));
      break;
    }
    is_in_doubt = false;
    for (const std::string& name : hall_->missing(key)) {
      const auto look = looks.find(name);
      if (look != looks.end() && look->second.done()) {
        const CallResult<> outcome = look->second.wait();
        if (outcome) unsent_counts.erase(name);
        is_in_doubt = is_in_doubt || !outcome;
        if (!outcome && is_gone(outcome.error(), unsent_counts[name])) {
          hall_->fail(key, {outcome.error().kind,
                            fmt::format("{} cannot come to the gather any more: {}", name,
                                        outcome.error().message),
                            "", true});
        }
        looks.erase(look);
      }
      if (looks.contains(name)) continue;
      ++own_call_count_;
      looks.emplace(name, call<PresentType, void>(agent, name, 0, kPresent));
    }
  }
  for (const auto& [name, look] : looks) look.on_done([](const CallResult<>&) {});
  return future.wait();
}

CallResult<> Gather::quiesce(Agent& agent, const std::vector<std::string>& names,
                             std::optional<double> timeout_seconds) {
  const SystemClock clock;
  const double seconds = timeout_seconds.value_or(0);
  const TimePoint deadline = deadline_after(seconds, clock.now());
  // One look at all of them is not enough: a call may have wandered behind it. But when no call was
  // made between two looks that both saw none under way, there was none.
  std::int64_t started_before = -1;
  while (true) {
    agent.calls().wait_until_idle([&] { return clock.now() < deadline; });
    const std::int64_t active = agent.calls().active_count();
    const std::int64_t started = agent.calls().started_count() - own_call_count_;
    const TimePoint now = clock.now();
    if (now >= deadline) {
      return call_failed({CallErrorKind::Timeout,
                          fmt::format("{} calls of this worker are still under way after {:.2f} "
                                      "seconds",
                                      active, seconds),
                          "", true});
    }
    std::optional<double> left;
    if (deadline != kNever) left = std::chrono::duration<double>(deadline - now).count();
    const auto outcome = all(agent, names, fmt::format("{} {}", started, active), left);
    if (!outcome) return call_failed(outcome.error());
    std::int64_t all_started = 0;
    std::int64_t all_active = 0;
    for (const auto& [name, text] : *outcome) {
      const std::size_t blank = text.find(' ');
      all_started += std::strtoll(text.c_str(), nullptr, 10);
      if (blank != std::string::npos) {
        all_active += std::strtoll(text.c_str() + blank, nullptr, 10);
      }
    }
    if (all_active == 0 && all_started == started_before) return {};
    started_before = all_active == 0 ? all_started : -1;
  }
}

}  // namespace muster::rpc
