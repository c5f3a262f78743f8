#include "muster/rpc/gather.h"

#include "muster/base/assert.h"
#include "muster/rpc/function_server.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace muster::rpc {
namespace {

constexpr std::string_view kArrive = "muster.gather.arrive";
constexpr std::string_view kPresent = "muster.gather.present";
constexpr std::string_view kSettled = "muster.gather.settled";
constexpr std::string_view kWaiting = "muster.gather.waiting";
constexpr std::string_view kGone = "muster.gather.gone";
using ArriveType = GatherAnswer(GatherArrival);
using PresentType = void();
using WaitingType = std::vector<std::string>(std::string, std::string);
using GoneType = void(std::string, std::string, std::string, std::string);
using SettledType = void(std::string, std::uint64_t, std::uint64_t, std::uint64_t);

// How long the leader waits before it looks whether those who are missing are alive, and between
// two looks; and everybody, before they look whether they wait for the right one.
constexpr Duration kLookInterval = std::chrono::seconds(1);
// Likewise, while one of them seems to be gone.
constexpr Duration kSecondLookInterval = std::chrono::milliseconds(50);
// How often the leader looks who is in a group whose members come and go.
constexpr Duration kMembersInterval = std::chrono::milliseconds(100);
// Before the next attempt.
constexpr Duration kPause = std::chrono::milliseconds(20);
// A worker to which nothing could be sent for so long, and so often in a row, is gone. Once is not
// enough: its connection may have been cut just then, which the next call mends.
constexpr Duration kGoneAfter = std::chrono::milliseconds(300);
constexpr int kUnsentMin = 2;
// How long others may take to hear of an end before this worker leaves.
constexpr Duration kPartMax = std::chrono::seconds(2);
// Who may ask at once whether somebody here has heard of an end. Others are told so.
constexpr std::size_t kAskingMax = 1024;

// Whether a worker is gone, from failures to reach it.
class Contact {
 public:
  bool is_gone(const CallError& error, TimePoint now) {
    if (error.kind != CallErrorKind::Unreachable) return true;
    if (error.sent) unsent_count_ = 0;
    if (error.sent) return false;
    if (unsent_count_++ == 0) since_ = now;
    return unsent_count_ >= kUnsentMin && now - since_ >= kGoneAfter;
  }

 private:
  int unsent_count_ = 0;
  TimePoint since_;
};

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

double seconds_until(TimePoint deadline, TimePoint now) {
  if (deadline == kNever) return 0;
  return std::max(std::chrono::duration<double>(deadline - now).count(), kShortestSeconds);
}

void pause_until(TimePoint time) {
  const Promise<void> nobody;
  (void)nobody.future().wait_until(time);
}

CallError gather_error(std::string text) {
  return {CallErrorKind::Remote, std::move(text), "", true};
}

CallError cannot_come(const std::string& name, const std::string& reason) {
  return {CallErrorKind::Unreachable,
          fmt::format("{} cannot come to the gather any more: {}", name, reason), "", true};
}

CallError lost_leader(const std::string& leader, std::uint64_t process_now) {
  return {CallErrorKind::Unreachable,
          fmt::format("worker {}, which led the gather, {}", leader,
                      process_now == 0 ? "has left the group" : "was started again"),
          "", true};
}

}  // namespace

// Who gathers.
struct Gather::Circle {
  std::string key;
  std::vector<std::string> names;  // unless it is everyone
  bool is_everyone = false;

  GatherMembers members(const Agent& agent) const {
    GatherMembers members;
    for (const std::string& name : names) members.emplace(name, agent.process_of(name));
    if (!is_everyone) return members;
    for (const WorkerInfo& info : agent.workers()) {
      members.emplace(info.name(), agent.process_of(info.name()));
    }
    return members;
  }
};

// What one who gathers takes to the leader.
struct Gather::Errand {
  GatherArrival arrival;
  double seconds = 0;  // 0: no limit
  TimePoint deadline = kNever;
};

// Whether those live who are missing.
class Gather::Watch {
 public:
  Watch(Agent& agent, std::atomic<std::int64_t>& call_count)
      : agent_(agent), call_count_(call_count) {}
  ~Watch() {
    for (const auto& [name, look] : looks_) look.on_done([](const CallResult<>&) {});
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  struct Gone {
    std::string name;
    CallError error;
  };
  // One that is gone.
  std::optional<Gone> look(const std::vector<std::string>& names, TimePoint now) {
    std::optional<Gone> gone;
    is_in_doubt_ = false;
    for (const std::string& name : names) {
      const auto found = looks_.find(name);
      if (found != looks_.end() && found->second.done()) {
        const CallResult<> outcome = found->second.wait();
        looks_.erase(found);
        if (outcome) contacts_.erase(name);
        is_in_doubt_ = is_in_doubt_ || !outcome;
        if (!outcome && contacts_[name].is_gone(outcome.error(), now)) {
          gone = Gone{name, outcome.error()};
        }
      }
      if (looks_.contains(name)) continue;
      ++call_count_;
      looks_.emplace(name, call<PresentType, void>(agent_, name, 0, kPresent));
    }
    return gone;
  }
  // When to look again.
  Duration interval() const { return is_in_doubt_ ? kSecondLookInterval : kLookInterval; }

 private:
  Agent& agent_;
  std::atomic<std::int64_t>& call_count_;
  std::map<std::string, Future<void>> looks_;
  std::map<std::string, Contact> contacts_;
  bool is_in_doubt_ = false;
};

struct Gather::Deputy {
  Watch watch;
  std::optional<Future<std::vector<std::string>>> asked;  // who waits
  TimePoint asks_at = TimePoint();
  std::vector<std::string> missing;

  ~Deputy() {
    if (asked) asked->on_done([](const CallResult<std::vector<std::string>>&) {});
  }
};

// Any thread. Shared with the functions that others call, which may be called for longer.
class Gather::Hall {
 public:
  // While a thread of this worker gathers. Only then is it known who is in the circle, and only
  // then does it matter.
  class Visit {
   public:
    Visit(Hall& hall, const Agent& agent, const Circle& circle)
        : hall_(hall), visitor_{&agent, &circle} {
      const std::lock_guard lock(hall_.mutex_);
      hall_.visitors_.emplace(circle.key, visitor_);
    }
    ~Visit() {
      const std::lock_guard lock(hall_.mutex_);
      const auto [begin, end] = hall_.visitors_.equal_range(visitor_.circle->key);
      hall_.visitors_.erase(std::find_if(
          begin, end, [this](const auto& one) { return one.second.circle == visitor_.circle; }));
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    friend class Hall;
    struct Visitor {
      const Agent* agent = nullptr;
      const Circle* circle = nullptr;
    };
    Hall& hall_;
    const Visitor visitor_;
  };

  struct Place {
    GatherHall::Ticket ticket = 0;
    Future<GatherAnswer> answer;
  };
  Place arrive(GatherArrival arrival) {
    std::unique_lock lock(mutex_);
    const GatherHall::Ticket ticket = ++last_ticket_;
    Promise<GatherAnswer> promise;
    Place place{ticket, promise.future()};
    if (parting_) {
      // Perhaps it has not heard how its gather ended, as it lost its connection.
      CallResult<GatherAnswer> answer = core_.outcome_of(arrival).value_or(*parting_);
      lock.unlock();
      promise.set(std::move(answer));
      return place;
    }
    promises_.emplace(ticket, std::move(promise));
    const std::string set = arrival.set;
    GatherHall::Arrived arrived = core_.arrive(std::move(arrival), ticket);
    if (arrived.needs_look) {
      for (auto& reply : look_at(set)) arrived.replies.push_back(std::move(reply));
    }
    answer(std::move(lock), std::move(arrived.replies));
    return place;
  }

  // Who is in the circle may have changed. Requires: a visit to it.
  void look(const std::string& set) {
    std::unique_lock lock(mutex_);
    auto replies = look_at(set);
    answer(std::move(lock), std::move(replies));
  }

  std::vector<std::string> missing(const std::string& set, GatherHall::Ticket ticket) {
    const std::lock_guard lock(mutex_);
    return core_.missing(set, ticket);
  }
  void fail(const std::string& set, GatherHall::Ticket ticket, const CallError& error) {
    std::unique_lock lock(mutex_);
    auto replies = core_.fail(set, ticket, error);
    answer(std::move(lock), std::move(replies));
  }

  // Nobody if that is not for `deputy` to know: the leader is here, or another one is the first.
  std::vector<std::string> waiting(const std::string& set, const std::string& deputy) {
    const std::lock_guard lock(mutex_);
    if (visitors_.contains(set)) return {};
    return core_.waiting_with(set, deputy);
  }
  void fail_without(const std::string& set, const std::string& deputy, const std::string& name,
                    const CallError& error) {
    std::unique_lock lock(mutex_);
    if (visitors_.contains(set) || core_.waiting_with(set, deputy).empty()) return;
    auto replies = core_.fail_without(set, name, error);
    answer(std::move(lock), std::move(replies));
  }

  // Nobody is let in any more, until `open`, but for those who have yet to hear of an end: they are
  // returned.
  std::vector<GatherHall::Unsettled> part(std::uint64_t process) {
    std::unique_lock lock(mutex_);
    parting_ = GatherAnswer{GatherVerdict::Parting, {process, 0}, nullptr};
    auto unsettled = core_.unsettled();
    auto replies = core_.dismiss(*parting_);
    answer(std::move(lock), std::move(replies));
    return unsettled;
  }
  void open() {
    std::unique_lock lock(mutex_);
    parting_.reset();
    auto replies = core_.clear(call_failed(gather_error("the group of this gather has ended")));
    answer(std::move(lock), std::move(replies));
  }

 private:
  std::vector<GatherHall::Reply> look_at(const std::string& set) {
    const auto visitor = visitors_.find(set);
    if (visitor == visitors_.end()) return {};
    const auto& [agent, circle] = visitor->second;
    return core_.look(set, agent->self().name(), circle->members(*agent));
  }
  // Without the lock: whoever is told may do anything.
  void answer(std::unique_lock<std::mutex> lock, std::vector<GatherHall::Reply> replies) {
    std::vector<Promise<GatherAnswer>> promises;
    for (const GatherHall::Reply& reply : replies) {
      auto node = promises_.extract(reply.ticket);
      MUSTER_ASSERT(!node.empty());
      promises.push_back(std::move(node.mapped()));
    }
    lock.unlock();
    for (std::size_t index = 0; index < replies.size(); ++index) {
      promises[index].set(std::move(replies[index].answer));
    }
  }

  std::mutex mutex_;
  GatherHall core_;
  GatherHall::Ticket last_ticket_ = 0;
  std::unordered_map<GatherHall::Ticket, Promise<GatherAnswer>> promises_;
  std::multimap<std::string, Visit::Visitor> visitors_;
  std::optional<GatherAnswer> parting_;
};

Gather::Gather(Functions& functions, GatherOptions options)
    : options_(options), hall_(std::make_shared<Hall>()) {
  const auto arrive = [hall = hall_](GatherArrival arrival) {
    return hall->arrive(std::move(arrival)).answer;
  };
  const auto ask_settled = [this](std::string set, std::uint64_t leader, std::uint64_t number,
                                  std::uint64_t count) {
    return settled(set, {leader, number}, count);
  };
  const auto tell_waiting = [hall = hall_](std::string set, std::string deputy) {
    return hall->waiting(set, deputy);
  };
  const auto hear_gone = [hall = hall_](std::string set, std::string deputy, std::string name,
                                        std::string reason) {
    hall->fail_without(set, deputy, name, cannot_come(name, reason));
  };
  const auto told = functions.add(std::string(kWaiting), tell_waiting, {.run = Run::Inline});
  const auto heard = functions.add(std::string(kGone), hear_gone, {.run = Run::Inline});
  const auto added = functions.add(std::string(kArrive), arrive, {.run = Run::Inline});
  const auto present = functions.add(std::string(kPresent), [] {}, {.run = Run::Inline});
  const auto asked = functions.add(std::string(kSettled), ask_settled, {.run = Run::Inline});
  MUSTER_ASSERT(added && present && asked && told && heard);
}

Gather::~Gather() = default;

void Gather::begin(std::string group) {
  hall_->open();
  std::unique_lock lock(mutex_);
  group_ = std::move(group);
  lines_.clear();
  tell_settled(std::move(lock));
}

std::string Gather::key_of(std::string_view kind) {
  const std::lock_guard lock(mutex_);
  return fmt::format("{}/{}", group_, kind);
}

CallResult<Gather::Values> Gather::all(Agent& agent, std::vector<std::string> names,
                                       std::string value, std::optional<double> timeout_seconds) {
  std::sort(names.begin(), names.end());
  Circle circle;
  circle.key = key_of(fmt::format("of {}", fmt::join(names, ",")));
  circle.names = std::move(names);
  return gather(agent, circle, std::move(value), timeout_seconds);
}

CallResult<Gather::Values> Gather::everyone(Agent& agent, std::string value,
                                            std::optional<double> timeout_seconds) {
  Circle circle;
  circle.key = key_of("everyone");
  circle.is_everyone = true;
  return gather(agent, circle, std::move(value), timeout_seconds);
}

CallResult<Gather::Values> Gather::gather(Agent& agent, const Circle& circle, std::string value,
                                          std::optional<double> timeout_seconds) {
  const SystemClock clock;
  const std::string self = agent.self().name();
  Errand errand;
  errand.seconds = timeout_seconds.value_or(0);
  errand.deadline = deadline_after(errand.seconds, clock.now());
  GatherArrival& arrival = errand.arrival;
  arrival.set = circle.key;
  arrival.name = self;
  arrival.value = std::move(value);
  const Hall::Visit visit(*hall_, agent, circle);
  {
    const std::lock_guard lock(mutex_);
    auto place = lines_.take(circle.key);
    if (!place) return call_failed(std::move(place.error()));
    arrival.place = *place;
  }
  TimePoint sent_away_since = kNever;
  std::pair<std::string, std::uint64_t> sent_away_by;
  std::uint64_t parting = 0;  // a leader that leaves
  CallResult<Values> outcome;
  while (true) {
    hall_->look(circle.key);
    const GatherMembers members = circle.members(agent);
    const auto own = members.find(self);
    if (own == members.end()) {
      std::vector<std::string> names;
      for (const auto& [name, process] : members) names.push_back(name);
      outcome = call_failed(
          {CallErrorKind::Rejected,
           fmt::format("{} is not one of those who gather: {}", self, fmt::join(names, ", ")), "",
           false});
      break;
    }
    if (own->second == 0) {
      // Another thread has stopped the agent, or others have taken this worker out.
      outcome = call_failed({CallErrorKind::Rejected,
                             fmt::format("{} is not in its group any more", self), "", true});
      break;
    }
    {
      const std::lock_guard lock(mutex_);
      arrival.process = own->second;
      arrival.leader = members.begin()->second;
      arrival.place = lines_.go_to(circle.key, arrival.place, arrival.leader);
      lines_.fill_awaits(arrival);
    }
    const auto& [leader, process] = *members.begin();
    if (sent_away_by != std::pair(leader, process)) sent_away_since = kNever;
    sent_away_by = {leader, process};
    CallResult<GatherAnswer> answer = GatherAnswer();
    if (process == 0 || process != parting) {
      answer = leader == self ? lead(agent, circle, errand) : follow(agent, circle, leader, errand);
    }
    if (!answer) {
      outcome = call_failed(std::move(answer.error()));
      break;
    }
    if (answer->verdict == GatherVerdict::Complete) {
      outcome = *answer->values;
      const std::lock_guard lock(mutex_);
      lines_.came_to(circle.key, arrival.place, answer->era);
      break;
    }
    if (answer->verdict == GatherVerdict::Again) {
      const std::lock_guard lock(mutex_);
      arrival.place = lines_.take_again(circle.key, arrival.place, answer->era);
      sent_away_since = kNever;
      continue;
    }
    if (answer->verdict == GatherVerdict::Parting) {
      parting = answer->era.leader;
      leave(circle.key, arrival.place);  // the leader waits until this was heard
    }
    const TimePoint now = clock.now();
    if (sent_away_since == kNever) sent_away_since = now;
    if (now >= errand.deadline) {
      outcome = call_failed(
          {CallErrorKind::Timeout,
           fmt::format("nobody led the gather within {:.2f} seconds", errand.seconds), "", true});
      break;
    }
    if (now - sent_away_since >= options_.disagreement_max) {
      outcome = call_failed(gather_error(
          fmt::format("{} and {}, which leads, do not agree on who gathers", self, leader)));
      break;
    }
    pause_until(std::min(errand.deadline, now + kPause));
    const std::lock_guard lock(mutex_);
    arrival.place = lines_.keep_or_take(circle.key, arrival.place);
  }
  leave(circle.key, arrival.place);
  return outcome;
}

void Gather::leave(const std::string& set, const GatherPlace& place) {
  std::unique_lock lock(mutex_);
  lines_.leave(set, place);
  tell_settled(std::move(lock));
}

void Gather::tell_settled(std::unique_lock<std::mutex> lock) {
  const auto still_waits = [this](const Asking& one) {
    return lines_.waits_at(one.set, one.era, one.count);
  };
  const auto middle = std::partition(asking_.begin(), asking_.end(), still_waits);
  std::vector<Asking> done(std::make_move_iterator(middle), std::make_move_iterator(asking_.end()));
  asking_.erase(middle, asking_.end());
  lock.unlock();
  for (const Asking& one : done) one.promise.set({});
}

Future<void> Gather::settled(const std::string& set, const GatherEra& era, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  if (!lines_.waits_at(set, era, count) || asking_.size() >= kAskingMax) {
    return Future<void>::ready({});
  }
  asking_.push_back({set, era, count, {}});
  return asking_.back().promise.future();
}

void Gather::part(Agent& agent) {
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kPartMax;
  std::vector<Future<void>> heard;
  for (const auto& [set, name, era, count] : hall_->part(agent.process_of(agent.self().name()))) {
    ++own_call_count_;
    heard.push_back(call<SettledType, void>(agent, name, seconds_until(deadline, clock.now()),
                                            kSettled, set, era.leader, era.number, count));
  }
  for (const Future<void>& one : heard) (void)one.wait();
}

CallResult<GatherAnswer> Gather::follow(Agent& agent, const Circle& circle,
                                        const std::string& leader, const Errand& errand) {
  const SystemClock clock;
  GatherArrival arrival = errand.arrival;
  // A process that may have the arrival, and may have told others what came of it.
  std::uint64_t holder = 0;
  Contact contact;
  Deputy deputy{{agent, own_call_count_}, {}, clock.now() + kLookInterval, {}};
  while (true) {
    const std::uint64_t process = agent.process_of(leader);
    const auto is_lost = [&] { return holder != 0 && agent.process_of(leader) != holder; };
    if (is_lost()) return call_failed(lost_leader(leader, process));
    arrival.is_repeat = holder != 0;
    arrival.attempt = ++last_attempt_;
    ++own_call_count_;
    const Future<GatherAnswer> future =
        call<ArriveType, GatherAnswer>(agent, leader, seconds_until(errand.deadline, clock.now()),
                                       kArrive, std::as_const(arrival));
    const CallResult<GatherAnswer>* outcome = nullptr;
    while (outcome == nullptr) {
      outcome = future.wait_until(clock.now() + deputy.watch.interval());
      if (outcome != nullptr) break;
      // Others may take this worker for the leader.
      hall_->look(circle.key);
      // Who does not live any more is taken out of a group whose members come and go.
      if (!circle.is_everyone) stand_in(agent, circle, leader, deputy);
      if (!is_lost()) continue;
      future.on_done([](const CallResult<GatherAnswer>&) {});
      return call_failed(lost_leader(leader, agent.process_of(leader)));
    }
    if (*outcome) {
      const GatherAnswer& answer = **outcome;
      if (holder != 0 && answer.verdict != GatherVerdict::Complete && answer.era.leader != holder) {
        return call_failed(lost_leader(leader, answer.era.leader));
      }
      return *outcome;
    }
    const CallError& error = outcome->error();
    if (error.kind == CallErrorKind::Unreachable && error.sent) holder = process;
    const bool is_unsent = !error.sent && (error.kind == CallErrorKind::Unreachable ||
                                           error.kind == CallErrorKind::Rejected);
    // Whether it is still in the group is for the group to say; and who leads then.
    if (circle.is_everyone && is_unsent && holder == 0) return GatherAnswer();
    if (!(circle.is_everyone && is_unsent) && contact.is_gone(error, clock.now())) return *outcome;
    if (!error.sent) pause_until(clock.now() + kPause);
  }
}

CallResult<GatherAnswer> Gather::lead(Agent& agent, const Circle& circle, const Errand& errand) {
  const SystemClock clock;
  const auto [ticket, future] = hall_->arrive(errand.arrival);
  Watch watch(agent, own_call_count_);
  while (!future.done()) {
    const Duration interval = circle.is_everyone ? kMembersInterval : watch.interval();
    const TimePoint next = std::min(errand.deadline, clock.now() + interval);
    if (future.wait_until(next) != nullptr) break;
    if (clock.now() >= errand.deadline) {
      hall_->fail(circle.key, ticket,
                  gather_error(fmt::format(
                      "Followers [{}] timed out in _all_gather after {:.2f} seconds",
                      fmt::join(hall_->missing(circle.key, ticket), ", "), errand.seconds)));
      break;
    }
    hall_->look(circle.key);
    // Who does not live any more is taken out of a group whose members come and go.
    if (circle.is_everyone) continue;
    if (const auto gone = watch.look(hall_->missing(circle.key, ticket), clock.now())) {
      hall_->fail(circle.key, ticket, cannot_come(gone->name, gone->error.message));
    }
  }
  return future.wait();
}

void Gather::stand_in(Agent& agent, const Circle& circle, const std::string& leader,
                      Deputy& deputy) {
  const TimePoint now = SystemClock().now();
  const std::string self = agent.self().name();
  if (deputy.asked && deputy.asked->done()) {
    const CallResult<std::vector<std::string>> waiting = deputy.asked->wait();
    deputy.asked.reset();
    deputy.asks_at = now + kLookInterval;
    deputy.missing.clear();
    if (waiting && !waiting->empty()) {
      std::set_difference(circle.names.begin(), circle.names.end(), waiting->begin(),
                          waiting->end(), std::back_inserter(deputy.missing));
      std::erase(deputy.missing, leader);  // whose connection tells
    }
  }
  if (!deputy.asked && now >= deputy.asks_at) {
    ++own_call_count_;
    deputy.asked =
        call<WaitingType, std::vector<std::string>>(agent, leader, 0, kWaiting, circle.key, self);
  }
  const auto gone = deputy.watch.look(deputy.missing, now);
  if (!gone) return;
  ++own_call_count_;
  call<GoneType, void>(agent, leader, 0, kGone, circle.key, self, gone->name, gone->error.message)
      .on_done([](const CallResult<>&) {});
}

CallResult<> Gather::quiesce(Agent& agent, const std::vector<std::string>& names,
                             std::optional<double> timeout_seconds) {
  const SystemClock clock;
  const double seconds = timeout_seconds.value_or(0);
  const TimePoint deadline = deadline_after(seconds, clock.now());
  // One look at all of them is not enough: a call may have wandered behind it. But when no call was
  // made between two looks that both saw none under way, there was none. Each brings what it saw in
  // its last look, so that all come to the same decision, also one that was started again and has
  // not seen it.
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
    const auto outcome =
        all(agent, names, fmt::format("{} {} {}", started, active, started_before), left);
    if (!outcome) return call_failed(outcome.error());
    std::int64_t all_started = 0;
    std::int64_t all_active = 0;
    std::set<std::int64_t> seen_before;
    for (const auto& [name, text] : *outcome) {
      char* next = nullptr;
      all_started += std::strtoll(text.c_str(), &next, 10);
      all_active += std::strtoll(next, &next, 10);
      seen_before.insert(std::strtoll(next, nullptr, 10));
    }
    if (all_active == 0 && seen_before == std::set{all_started}) return {};
    started_before = all_active == 0 ? all_started : -1;
  }
}

}  // namespace muster::rpc
