#include "tests/rendezvous_sim/day.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// A clock that loses or gains more than this is broken.
constexpr std::uint64_t kDriftMax = 20'000;  // parts per million
constexpr std::uint64_t kSkewSecondsMax = 600;
// What is a moment for a group must be one for its connections, too.
constexpr Duration kLatencyMax = 250ms;
// Over a shared store everything takes several exchanges, each of several messages.
constexpr Duration kSharedLatencyMax = 40ms;
constexpr std::size_t kSharedWindowMin = 4096;

constexpr Duration kPatience = 600s;

template <typename T, std::size_t kCount>
const T& pick(const T (&choices)[kCount], Random& random) {
  return choices[random.below(kCount)];
}

Duration below(Random& random, Duration bound) {
  return Duration(random.below(static_cast<std::uint64_t>(bound.count())));
}

}  // namespace

Plan draw_plan(std::uint64_t seed, bool hosted) {
  Random random(seed);
  Plan plan;
  constexpr Kind kShared[] = {Kind::Extension, Kind::Modern, Kind::Legacy};
  plan.world.seed = random.next();
  plan.world.kind = hosted ? Kind::Hosted : pick(kShared, random);

  plan.node_count = random.chance(30) ? 10 + random.below(31) : 2 + random.below(7);
  Settings& settings = plan.world.settings;
  settings.run_id = "run";
  const auto count = static_cast<std::uint64_t>(plan.node_count);
  settings.min_nodes = static_cast<std::int64_t>(1 + random.below(count));
  // Sometimes there are more nodes than seats, sometimes fewer.
  settings.max_nodes = settings.min_nodes + static_cast<std::int64_t>(random.below(count + 1));
  constexpr Duration kIntervals[] = {500ms, 2s, 5s};
  // Over a shared store a short one is mainly more of the same work.
  settings.keep_alive_interval =
      hosted ? pick(kIntervals, random) : kIntervals[1 + random.below(2)];
  settings.keep_alive_max_attempt = 3;
  constexpr Duration kGraces[] = {Duration::zero(), 500ms, 3s};
  settings.grace = pick(kGraces, random);
  constexpr Duration kLastCalls[] = {1ms, 1s, 7s};
  settings.timeouts.last_call = pick(kLastCalls, random);
  constexpr Duration kJoins[] = {20s, 60s, 600s};
  settings.timeouts.join = pick(kJoins, random);
  settings.timeouts.close = 10s;
  settings.timeouts.heartbeat = 5s;

  sim::Weather& weather = plan.world.weather;
  weather = sim::draw_weather(random);
  weather.latency_max = std::min(weather.latency_max, hosted ? kLatencyMax : kSharedLatencyMax);
  if (!hosted) weather.window_bytes = std::max(weather.window_bytes, kSharedWindowMin);
  weather.latency_min = std::min(weather.latency_min, weather.latency_max);
  weather.silence_max = 8s;

  plan.fault_count = static_cast<int>(random.below(40));
  plan.restarts_server = random.chance(400);
  plan.closes = random.chance(200);
  plan.has_skew = random.chance(500);
  return plan;
}

std::string describe(const Plan& plan) {
  const Settings& settings = plan.world.settings;
  return fmt::format(
      "{}: {} nodes for {}..{} seats, {} faults{}{}{}, interval={} grace={} last_call={} join={}, "
      "{}",
      name_of(plan.world.kind), plan.node_count, settings.min_nodes, settings.max_nodes,
      plan.fault_count, plan.restarts_server ? " with server restarts" : "",
      plan.closes ? ", closed in the end" : "", plan.has_skew ? ", clocks differ" : "",
      muster::describe(settings.keep_alive_interval), muster::describe(settings.grace),
      muster::describe(settings.timeouts.last_call), muster::describe(settings.timeouts.join),
      sim::describe(plan.world.weather));
}

Day::Day(Plan plan) : plan_(std::move(plan)), random_(plan_.world.seed), world_(plan_.world) {}
Day::~Day() = default;

// -- the life of a node ---------------------------------------------------------------------------

void Day::start(Agent& agent) {
  agent.process = &world_.add(agent.host_name);
  agent.phase = Agent::Phase::Opening;
  agent.place.reset();
  agent.ending.reset();
  agent.process->calls().start(live(agent));
}

Task<void> Day::live(Agent& agent) {
  Process& process = *agent.process;
  Loop& loop = process.host().loop();
  for (;;) {
    agent.phase = Agent::Phase::Opening;
    auto opened = co_await process.open();
    if (!opened) continue;
    agent.phase = Agent::Phase::Joining;
    // Nodes that give up and try again one after the other could keep a round from ever forming:
    // every one that comes back begins a new last call. In peace, nobody is impatient.
    const Duration patience = quiet_ ? kPatience : plan_.world.settings.timeouts.join;
    auto place = co_await process.join(after(loop.now(), patience));
    if (!place) {
      const ErrorKind kind = place.error().kind;
      if (kind == ErrorKind::Closed || kind == ErrorKind::Finished) {
        agent.ending = kind;
        break;
      }
      if (kind != ErrorKind::Timeout && kind != ErrorKind::Unavailable) {
        agent.trouble = place.error().message;
        break;
      }
      // Tries again after a while, as a new agent on that machine would.
      const TimePoint until = loop.now() + below(process.random(), 1s);
      co_await sleep_until(loop, until);
      continue;
    }
    agent.place = *place;
    agent.phase = Agent::Phase::Running;
    co_await run_workers(agent);
    agent.place.reset();
    if (agent.ending) break;
  }
  agent.phase = Agent::Phase::Over;
  process.driver().stop();
}

// Until there is a reason to meet again, or the run is closed.
Task<void> Day::run_workers(Agent& agent) {
  Process& process = *agent.process;
  Loop& loop = process.host().loop();
  TimePoint failure = loop.now() + below(process.random(), 60s);
  Status status = process.driver().status();
  while (status.waiting == 0 && !status.lost && status.member && !status.closed) {
    if (quiet_) failure = kNever;
    if (loop.now() >= failure) break;
    auto next = co_await process.driver().wait_status(status, failure);
    if (!next) break;
    status = *next;
  }
  if (status.closed) {
    agent.ending = ErrorKind::Closed;
    co_return;
  }
  // Workers need a moment to stop.
  const TimePoint stopped = loop.now() + below(process.random(), 300ms);
  co_await sleep_until(loop, stopped);
}

Task<void> Day::leave(Agent& agent) {
  Process& process = *agent.process;
  const TimePoint deadline = process.host().loop().now() + 5s;
  auto left = co_await process.driver().leave(deadline);
  (void)left;  // if nobody heard it, silence will do
  process.driver().stop();
  agent.phase = Agent::Phase::Over;
}

Task<void> Day::close(Agent& agent) {
  Process& process = *agent.process;
  for (;;) {
    const TimePoint deadline =
        after(process.host().loop().now(), plan_.world.settings.timeouts.close);
    auto closed = co_await process.driver().close(deadline);
    if (closed) break;
    const TimePoint until = process.host().loop().now() + 100ms;
    co_await sleep_until(process.host().loop(), until);
  }
  agent.ending = ErrorKind::Closed;
  agent.phase = Agent::Phase::Over;
  process.driver().stop();
}

// -- faults ---------------------------------------------------------------------------------------

void Day::inject() {
  Agent& agent = *agents_[random_.below(agents_.size())];
  sim::Network& network = world_.network();
  sim::Host& host = network.host(agent.host_name);
  sim::Host& server = world_.server().host();
  switch (random_.below(16)) {
    case 0:
    case 1:
      network.reset_all(host);
      break;
    case 2:
      network.reset_all(server);
      break;
    case 3:
      network.cut(host, server);
      break;
    case 4:
      random_.chance(500) ? network.cut_one_way(host, server) : network.cut_one_way(server, host);
      break;
    case 5:
    case 6:
      network.heal_all();
      break;
    case 7:
    case 8:
      host.loop().stopped() ? network.resume(host) : network.pause(host);
      break;
    case 9:
      server.loop().stopped() ? network.resume(server) : network.pause(server);
      break;
    case 10:
    case 11:
      if (agent.process == nullptr) break;
      world_.kill(*std::exchange(agent.process, nullptr),
                  random_.chance(500) ? sim::Crash::Loud : sim::Crash::Silent);
      break;
    case 12:
    case 13:
      if (agent.process == nullptr) start(agent);
      break;
    case 14:
      if (agent.process == nullptr || !agent.process->is_open()) break;
      if (agent.phase != Agent::Phase::Joining && agent.phase != Agent::Phase::Running) break;
      agent.phase = Agent::Phase::Leaving;
      agent.place.reset();
      agent.process->cancel();
      agent.process->calls().start(leave(agent));
      break;
    case 15:
      if (!plan_.restarts_server) break;
      if (world_.server().is_running()) {
        world_.kill_server(random_.chance(500) ? sim::Crash::Loud : sim::Crash::Silent);
        if (random_.chance(500)) break;
      }
      world_.restart_server();
      break;
  }
}

void Day::heal() {
  sim::Network& network = world_.network();
  network.heal_all();
  if (!world_.server().is_running()) world_.restart_server();
  network.resume(world_.server().host());
  sim::Weather calm = plan_.world.weather;
  calm.resets_per_million = 0;
  network.set_weather(calm);
  for (const auto& agent : agents_) {
    network.resume(network.host(agent->host_name));
    // Those who have left come back as somebody else; some who crashed stay away.
    const bool has_left =
        agent->phase == Agent::Phase::Leaving ||
        (agent->phase == Agent::Phase::Over && !agent->ending && agent->trouble.empty());
    if (agent->process != nullptr && has_left) {
      world_.kill(*std::exchange(agent->process, nullptr), sim::Crash::Loud);
    }
    if (agent->process == nullptr && random_.chance(700)) start(*agent);
  }
  // There must be enough of them for a round.
  auto live_count = std::count_if(agents_.begin(), agents_.end(),
                                  [](const auto& agent) { return agent->process != nullptr; });
  for (const auto& agent : agents_) {
    if (live_count >= plan_.world.settings.min_nodes) break;
    if (agent->process != nullptr) continue;
    start(*agent);
    ++live_count;
  }
}

// -- the course of the day ------------------------------------------------------------------------

std::string Day::trouble() {
  for (const auto& agent : agents_) {
    if (!agent->trouble.empty()) return agent->host_name + ": " + agent->trouble;
  }
  if (!world_.ledger().faults().empty()) return world_.ledger().faults().front();
  return "";
}

std::string Day::run_faults() {
  for (int count = 0; count < plan_.fault_count; ++count) {
    // A while after the last one; now and then for longer than anybody may be silent.
    const Duration pause = random_.chance(100) ? 2 * plan_.world.settings.window() : 4s;
    world_.run_until([&] { return !world_.ledger().faults().empty(); }, below(random_, pause));
    if (auto found = trouble(); !found.empty()) return found;
    inject();
  }
  return "";
}

bool Day::all_over() {
  return std::all_of(agents_.begin(), agents_.end(), [](const auto& agent) {
    return agent->process == nullptr || agent->phase == Agent::Phase::Over;
  });
}

// Everybody is in the same round, or a spare of it, and nobody has a reason to meet again.
bool Day::all_met() {
  const State& state = world_.state();
  if (!state.complete || state.closed) return false;
  std::int64_t in_count = 0;
  for (const auto& agent : agents_) {
    if (agent->process == nullptr) continue;
    if (agent->phase == Agent::Phase::Running) {
      const Status status = agent->process->status();
      if (agent->place->id != RoundId{state.birth, state.round}) return false;
      if (status.waiting > 0 || status.lost || !status.member) return false;
      ++in_count;
    } else if (!state.redundancy_list.contains(agent->process->node())) {
      return false;
    }
  }
  return in_count == state.world_size &&
         state.participants.size() == static_cast<std::size_t>(in_count);
}

std::string Day::describe(const Agent& agent) {
  constexpr std::string_view kPhases[] = {"opening", "joining", "running", "leaving", "over"};
  if (agent.process == nullptr) return "down";
  std::string text(kPhases[static_cast<std::size_t>(agent.phase)]);
  if (agent.process->host().loop().stopped()) text += " (stopped)";
  if (agent.place) {
    text += fmt::format(" in round {} of {:x} as {} of {}", agent.place->id.round,
                        agent.place->id.birth, agent.place->rank, agent.place->world_size);
  }
  const Status status = agent.process->status();
  text += fmt::format(", sees round {} waiting={}{}{}{}", status.round, status.waiting,
                      status.closed ? " closed" : "", status.lost ? " lost" : "",
                      status.member ? " member" : "");
  return text;
}

std::string Day::report() {
  std::string text = "\n  stored: " + testing::describe(world_.state());
  for (const auto& agent : agents_) {
    text += fmt::format("\n  {}: {}", agent->host_name, describe(*agent));
  }
  return text;
}

void Day::set_narrator(std::function<void(std::string_view)> narrator) {
  narrator_ = std::move(narrator);
  world_.set_spectator([this] { narrate(); });
}

void Day::narrate() {
  const auto tell = [&](const std::string& who, std::string what) {
    if (narrated_[who] == what) return;
    const double now = std::chrono::duration<double>(world_.now().time_since_epoch()).count();
    narrator_(fmt::format("{:9.4f} {}: {}", now, who, what));
    narrated_[who] = std::move(what);
  };
  const bool is_down = !world_.server().is_running();
  tell("store", is_down ? "down" : testing::describe(world_.state()));
  for (const auto& agent : agents_) tell(agent->host_name, describe(*agent));
}

std::string Day::wait_for_peace() {
  const Settings& settings = plan_.world.settings;
  const TimePoint begin = world_.now();
  // Ghosts are gone after a window; those who had seen them wait for another, or for their
  // connections to give up; and a few rounds are needed until all have found each other.
  const Duration bound = 6 * settings.window() + 4 * settings.timeouts.last_call + 120s;
  // Once together, they stay: nobody is given up, nobody sees a reason to meet again.
  const Duration hold = closing_ ? Duration::zero() : 2 * settings.window() + 10s;
  const auto is_wrong = [&] { return !world_.ledger().faults().empty(); };
  const auto settled = [&] { return closing_ ? all_over() : all_met(); };
  for (;;) {
    const Duration left = begin + bound - world_.now();
    if (left < Duration::zero()) break;
    const bool in_time = world_.run_until([&] { return is_wrong() || settled(); }, left);
    if (auto found = trouble(); !found.empty()) return found;
    if (!in_time) break;
    settled_after_ = world_.now() - begin;
    const bool moved = world_.run_until([&] { return is_wrong() || !settled(); }, hold);
    if (auto found = trouble(); !found.empty()) return found;
    if (!moved) return "";
  }
  return fmt::format("{} after the last fault {}{}", muster::describe(bound),
                     closing_ ? "some have not heard that the run is closed"
                              : "they are not together in one round",
                     report());
}

std::string Day::run() {
  for (std::size_t index = 0; index < plan_.node_count; ++index) {
    agents_.push_back(std::make_unique<Agent>());
    agents_.back()->host_name = fmt::format("node-{}", index);
  }
  // Clocks first: they are what they are before anything runs.
  std::vector<sim::Host*> hosts = {&world_.server().host()};
  for (const auto& agent : agents_) hosts.push_back(&world_.network().host(agent->host_name));
  Random clocks(plan_.world.seed + 1);
  for (sim::Host* host : hosts) {
    const auto skew = std::chrono::seconds(clocks.below(kSkewSecondsMax));
    const Duration ahead = clocks_ahead_ + (plan_.has_skew ? Duration(skew) : Duration::zero());
    host->loop().set_drift(std::chrono::duration_cast<std::chrono::microseconds>(ahead).count());
  }
  world_.run_for(1s);
  for (sim::Host* host : hosts) {
    const auto drift = static_cast<std::int64_t>(clocks.below(2 * kDriftMax)) -
                       static_cast<std::int64_t>(kDriftMax);
    host->loop().set_drift(plan_.has_skew ? drift : 0);
  }
  for (const auto& agent : agents_) {
    if (!random_.chance(200)) start(*agent);
  }
  if (auto found = run_faults(); !found.empty()) return found;
  if (plan_.closes) {
    // Whoever runs, if there is somebody; the rest of the faults are still there.
    const auto closer = std::find_if(agents_.begin(), agents_.end(), [](const auto& agent) {
      return agent->process != nullptr && agent->phase == Agent::Phase::Running;
    });
    if (closer != agents_.end()) {
      closing_ = true;
      (*closer)->place.reset();
      (*closer)->phase = Agent::Phase::Leaving;
      (*closer)->process->cancel();
      (*closer)->process->calls().start(close(**closer));
    }
  }
  quiet_ = true;
  if (closing_) {
    // It must be heard before the store forgets.
    sim::Network& network = world_.network();
    network.heal_all();
    if (!world_.server().is_running()) world_.restart_server();
    network.resume(world_.server().host());
    for (const auto& agent : agents_) network.resume(network.host(agent->host_name));
  } else {
    heal();
  }
  return wait_for_peace();
}

}  // namespace muster::rendezvous::testing
