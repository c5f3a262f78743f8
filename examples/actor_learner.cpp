// Actors and a learner: worker0 learns what the other workers find out.
//
//   muster run --nproc-per-node 3 build/bin/actor_learner
//
// Two kinds of objects, which never leave their workers. The Policy is on the learner. An Actor,
// with an environment of its own, is on each of the other workers; the learner makes it there with
// `remote`, and gives it a reference to the policy. From then on all they do are method calls: the
// learner asks its actors to play, they read the policy and report to it through their reference.
//
// Each environment rewards an action the more, the nearer it is to a goal that only it knows. So
// the policy that is best on average is the mean of the goals, and that has to come out.
//
// Nobody says when an object is to go. The learner drops its references to the actors; that ends
// the actors, with them their references to the policy, and with those the last hold that others
// had on it. The counters show it. All of that also holds while messages are lost and delayed:
//
//   MUSTER_FAULTS="seed=7 fail:RREF_*:first=2 delay:*:p=0.05:for=5ms" muster run …
//
// or connections are cut, as with disconnect:RREF_*:p=0.3. A call that was under way then fails,
// and nobody knows whether it ran. So all that is called here may be called again: an actor that
// plays a round twice reports the same, and a report of a round that is over counts for nothing.

#include "muster/rpc.h"
#include "muster/worker/testing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace rpc = muster::rpc;
using namespace std::chrono_literals;
using Vector = std::vector<double>;

constexpr std::size_t kActionSize = 4;
constexpr std::int64_t kRounds = 40;
constexpr double kLearningRate = 0.5;
// Far beyond what anything here takes: passing it means that something is stuck.
constexpr auto kPatience = 60s;
// How often something is tried again that was cut off, and the longest pause before that.
constexpr int kAttemptsMax = 50;
constexpr auto kPauseMax = 500ms;

// What worker `actor`'s environment is after.
Vector goal_of(std::int64_t actor) {
  Vector goal(kActionSize);
  for (std::size_t i = 0; i < kActionSize; ++i) {
    goal[i] = static_cast<double>(actor) * static_cast<double>(i + 1);
  }
  return goal;
}

// ---- the learner's object -----------------------------------------------------------------------

// The action of one round.
struct Turn {
  std::int64_t round = 0;
  Vector action;
};
template <typename Archive>
void describe_fields(Archive& archive, Turn& turn) {
  archive(turn.round, turn.action);
}

// Its methods are called by several threads at once.
class Policy {
 public:
  Turn turn() {
    const std::lock_guard lock(*mutex_);
    return {round_, action_};
  }

  // An actor reports in which direction its reward grows.
  void report(std::int64_t actor, std::int64_t round, Vector slope) {
    const std::lock_guard lock(*mutex_);
    if (round == round_) slopes_[actor] = std::move(slope);
  }
  bool has_report_of(std::int64_t actor) {
    const std::lock_guard lock(*mutex_);
    return slopes_.contains(actor);
  }

  // All have reported. The slopes are added in the order of the actors, whoever came first, so that
  // every run ends with the same numbers.
  void learn() {
    const std::lock_guard lock(*mutex_);
    for (std::size_t i = 0; i < kActionSize; ++i) {
      double sum = 0;
      for (const auto& [actor, slope] : slopes_) sum += slope.at(i);
      action_[i] += kLearningRate * sum / static_cast<double>(slopes_.size());
    }
    slopes_.clear();
    ++round_;
  }

 private:
  // An object is moved to the place where it then stays; a mutex cannot be.
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::int64_t round_ = 0;
  Vector action_ = Vector(kActionSize);
  std::map<std::int64_t, Vector> slopes_;
};

// ---- the actors' objects ------------------------------------------------------------------------

class Actor {
 public:
  Actor(rpc::RRef<Policy> policy, std::int64_t id)
      : policy_(std::move(policy)), id_(id), goal_(goal_of(id)) {}

  // Tries the policy's action, and what is a little to both sides of it.
  void play();

 private:
  double reward(const Vector& action) const {
    double distance = 0;
    for (std::size_t i = 0; i < kActionSize; ++i) distance += std::pow(action[i] - goal_[i], 2);
    return -distance / 2;
  }

  rpc::RRef<Policy> policy_;
  std::int64_t id_;
  Vector goal_;
};

}  // namespace

// Neither is ever sent, so nothing says how: others can only have references.
template <>
inline constexpr bool muster::rpc::kIsObject<Policy> = true;
template <>
inline constexpr bool muster::rpc::kIsObject<Actor> = true;

namespace {

// What is called of another worker. Declared once, for both sides.
const rpc::Procedure<Turn(rpc::RRef<Policy>)> kTurn("policy.turn");
const rpc::Procedure<void(rpc::RRef<Policy>, std::int64_t actor, std::int64_t round, Vector slope)>
    kReport("policy.report");
const rpc::Procedure<Actor(rpc::RRef<Policy>, std::int64_t id)> kMakeActor("actor");
const rpc::Procedure<void(rpc::RRef<Actor>)> kPlay("actor.play");

// What a call gave. Its failure is for the caller of the method, who gets it as an error again.
template <typename T>
T value_of(rpc::CallResult<T> outcome) {
  if (!outcome) throw rpc::CallException(outcome.error());
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

// Likewise, for what may be done again when it was cut off with its connection.
template <typename Attempt>
auto repeated(Attempt attempt) {
  auto outcome = attempt();
  std::chrono::milliseconds pause = 1ms;
  for (int count = 1; count < kAttemptsMax; ++count) {
    if (outcome || outcome.error().kind != rpc::CallErrorKind::Unreachable) break;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::milliseconds>(2 * pause, kPauseMax);
    outcome = attempt();
  }
  return value_of(std::move(outcome));
}

void Actor::play() {
  constexpr double kStep = 0.25;
  const Turn turn = repeated([&] { return policy_.within(kPatience).call(kTurn); });
  Vector action = turn.action;
  Vector slope(kActionSize);
  for (std::size_t i = 0; i < kActionSize; ++i) {
    const double center = action[i];
    action[i] = center + kStep;
    const double above = reward(action);
    action[i] = center - kStep;
    slope[i] = (above - reward(action)) / (2 * kStep);
    action[i] = center;
  }
  repeated([&] { return policy_.within(kPatience).call(kReport, id_, turn.round, slope); });
}

// ---- counters -----------------------------------------------------------------------------------

// The values that this worker owns and others refer to, and how many references they have.
std::string counters() {
  const auto figures = rpc::debug_info();
  return fmt::format("{} owned, {} forks", figures.at("num_owner_rrefs"), figures.at("num_forks"));
}

// Others are told of a reference, and of its end, while the program goes on; so a counter may be
// behind for a moment.
void expect(const rpc::testing::OwnersAndForks& wanted) {
  const auto came = rpc::testing::wait_until_owners_and_forks_on(rpc::self(), wanted, kPatience);
  if (!came) throw std::runtime_error(came.error().message);
}

void say(std::string_view text) {
  fmt::print("{}: {}\n", rpc::self().name(), text);
  std::fflush(stdout);
}

// ---- the learner --------------------------------------------------------------------------------

using Actors = std::map<std::int64_t, rpc::RRef<Actor>>;

// One whose creation was cut off is of no use, whether or not it was made; dropped, it is released.
rpc::RRef<Actor> make_actor(const rpc::WorkerInfo& worker, const rpc::RRef<Policy>& policy) {
  return repeated([&]() -> rpc::CallResult<rpc::RRef<Actor>> {
    const std::int64_t id = worker.id();
    auto made = rpc::remote(worker, kMakeActor, policy, id);
    if (!made) return made;
    if (const auto created = made->creation()->wait(); !created) {
      return rpc::call_failed(created.error());
    }
    return made;
  });
}

// Until all have reported. Those whose answer was lost may have done so all the same.
void play_round(const Actors& actors, Policy& policy) {
  repeated([&]() -> rpc::CallResult<> {
    std::vector<rpc::Future<void>> playing;
    for (const auto& [id, actor] : actors) {
      if (!policy.has_report_of(id)) playing.push_back(actor.within(kPatience).async(kPlay));
    }
    rpc::CallResult<> outcome;
    for (const auto& one : playing) {
      if (const auto& played = one.wait(); !played) outcome = played;
    }
    return outcome;
  });
}

// Throws what goes wrong.
void learn() {
  const auto policy = value_of(rpc::make_rref(Policy()));
  Policy& here = *value_of(policy.local_value());

  Actors actors;
  for (const rpc::WorkerInfo& worker : rpc::workers()) {
    if (worker.id() != 0) actors.emplace(worker.id(), make_actor(worker, policy));
  }
  for (std::int64_t round = 0; round < kRounds; ++round) {
    play_round(actors, here);
    here.learn();
  }

  const Vector learned = here.turn().action;
  for (std::size_t i = 0; i < kActionSize; ++i) {
    double mean = 0;
    for (std::size_t k = 1; k <= actors.size(); ++k) {
      mean += goal_of(static_cast<std::int64_t>(k))[i] / static_cast<double>(actors.size());
    }
    if (std::abs(learned[i] - mean) > 1e-9) {
      throw std::runtime_error(fmt::format("learned {}, which is not the mean", learned));
    }
  }
  say(fmt::format("learned {}", fmt::join(learned, " ")));

  // Each actor has one reference to the policy.
  expect({1, static_cast<std::int64_t>(actors.size())});
  say(counters());
  actors.clear();
  expect({0, 0});
  say(counters());
}

// Others may call it as soon as `init` returns on any worker.
template <typename F>
void offer(const auto& procedure, F function) {
  if (const auto defined = rpc::define(procedure, function); !defined) {
    throw std::runtime_error(defined.error().message);
  }
}

void work() {
  offer(kTurn, rpc::method(&Policy::turn));
  offer(kReport, rpc::method(&Policy::report));
  offer(kMakeActor,
        [](const rpc::RRef<Policy>& policy, std::int64_t id) { return Actor(policy, id); });
  offer(kPlay, rpc::method(&Actor::play));
  if (const auto started = rpc::init(); !started) {
    throw std::runtime_error(started.error().message);
  }
  if (rpc::workers().size() < 2) throw std::runtime_error("at least one actor is needed");
  if (rpc::self().id() == 0) learn();
  // The actors wait here for the learner, and serve it meanwhile. A reference that somebody had
  // kept would be an error.
  value_of(rpc::shutdown({.ignores_leaks = false}));
}

}  // namespace

int main() {
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "actor_learner: {}\n", error.what());
    return 1;
  }
  return 0;
}
