// Muster's remote references in the reference comparison: the three workers of a group.
//
//   rref_load owner --transport tcp|shm                     prints "listening ADDRESS"; values live
//                                                           here
//   rref_load third --transport tcp|shm --address ADDRESS   gets references passed
//   rref_load user  --transport tcp|shm --address ADDRESS   prints "ready", then reads a case a
//                                                           line, answers with a line of JSON
//
//   after  case=create|create-fetch|fetch|pass|delete seconds=S   one after the other: p50_us,
//   p99_us many   case=… seconds=S in_flight=N                     N under way all the time: per_s
//   many   case=delete count=N                              N are dropped at once: per_s
//   hold   count=N                                          so many references, until `release`
//   release
//
// Used as programs use it: rpc::init, rpc::remote, RRef. All functions are inline functions, as the
// no-op of the RPC comparison is. The owner hosts the store in which the three find each other, and
// its address is the one that is announced. All end when their input does.
//
// After each case nothing may be left of what it made, here and on the owner.
#include "bench/rpc/program.h"
#include "muster/rpc.h"
#include "muster/rpc/network_agent.h"
#include "muster/rref/keeper.h"
#include "tests/rpc/store_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

using Number = std::int64_t;
using Reference = rpc::RRef<Number>;

const rpc::Procedure<Number(Number)> kMake("make");
const rpc::Procedure<void(Reference)> kTouch("touch");
const rpc::Procedure<std::uint64_t()> kOwned("owned");

constexpr double kWarmUpSeconds = 0.1;
constexpr std::size_t kCreationsUnderWay = 1000;  // where only the result counts
// Far beyond what anything here takes.
constexpr Duration kPatience = std::chrono::seconds(60);

template <typename T>
void check(const T& outcome) {
  if (!outcome) throw std::runtime_error(outcome.error().message);
}

RpcClock::time_point in_seconds(double seconds) {
  return RpcClock::now() +
         std::chrono::duration_cast<RpcClock::duration>(std::chrono::duration<double>(seconds));
}

// ---- the group ----------------------------------------------------------------------------------

struct Place {
  std::string role;
  std::string transport = "tcp";
  std::string address{};
};

void join(const Place& place) {
  const std::vector<std::string> roles = {"owner", "user", "third"};
  rpc::InitOptions init;
  init.name = place.role;
  init.rank = std::find(roles.begin(), roles.end(), place.role) - roles.begin();
  init.world_size = 3;
  init.store = place.address;
  init.shared_memory = place.transport == "shm";
  init.thread_count = 1;
  const rpc::FunctionOptions at_once{.run = rpc::Run::Inline};
  check(rpc::define(
      kMake, [](Number value) { return value; }, at_once));
  check(rpc::define(
      kTouch, [](const Reference&) {}, at_once));
  check(rpc::define(
      kOwned, [] { return rref::Keeper::of(*rpc::current_agent())->counters().owner_rrefs; },
      at_once));
  check(rpc::init(init));
}

// ---- what is measured ---------------------------------------------------------------------------

// The references of this worker to values of the owner.
class User {
 public:
  explicit User(const Place& place) : agent_(rpc::current_agent()) {
    keeper_ = rref::Keeper::of(*agent_);
    for (const char* const peer : {"owner", "third"}) {
      check(rpc::call(peer, kOwned));
      const std::string expected = place.transport == "shm" ? "shared memory" : "tcp";
      const auto agent = std::dynamic_pointer_cast<rpc::NetworkAgent>(agent_);
      if (agent->kind_of_connection(peer) != expected) {
        throw std::runtime_error("the connection is not over " + expected);
      }
    }
  }

  struct Case {
    std::string name;
    double seconds = 0.5;
    std::size_t in_flight = 1;
    std::size_t count = 0;
  };

  // The lengths, in microseconds.
  std::vector<double> one_after_the_other(const Case& given) {
    prepare(given.name);
    std::vector<double> lengths;
    const auto until = [&](RpcClock::time_point ends) {
      while (RpcClock::now() < ends) lengths.push_back(timed(given.name));
    };
    until(in_seconds(kWarmUpSeconds));
    lengths.clear();
    until(in_seconds(given.seconds));
    release();
    return lengths;
  }

  // How many a second.
  double many_at_once(const Case& given) {
    prepare(given.name);
    const double rate = given.name == "delete" ? delete_at_once(given.count) : keep_many(given);
    release();
    return rate;
  }

  // So many references, all of them known to the owner.
  void hold(std::size_t count) {
    held_.reserve(held_.size() + count);
    std::deque<rpc::Future<>> creations;
    for (std::size_t i = 0; i < count; ++i) {
      creations.push_back(create());
      if (creations.size() < kCreationsUnderWay) continue;
      check(creations.front().wait());
      creations.pop_front();
    }
    for (const auto& creation : creations) check(creation.wait());
  }

  // Nothing is left, here and on the owner.
  void release() {
    held_.clear();
    wait_until_told();
    held_.shrink_to_fit();
    const auto ends = std::chrono::steady_clock::now() + kPatience;
    // The third worker may still be about to tell the owner.
    while (rpc::call("owner", kOwned).value() != 0) {
      if (std::chrono::steady_clock::now() > ends) {
        throw std::runtime_error("the owner still has references");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  // What a case needs to be there.
  void prepare(std::string_view name) {
    held_.clear();
    if (name == "fetch" || name == "pass") hold(1);
  }

  static Reference make() {
    auto made = rpc::remote("owner", kMake, Number{7});
    check(made);
    return std::move(*made);
  }
  rpc::Future<> create() {
    held_.push_back(make());
    return *held_.back().creation();
  }

  // One of them: how long it takes, in microseconds. What is not part of it is done before.
  double timed(const std::string& name) {
    if (name == "delete") {
      hold(1);
      wait_until_told();
    }
    const RpcClock::time_point begun = RpcClock::now();
    if (name == "create") {
      check(create().wait());
    } else if (name == "create-fetch") {
      check(make().to_here());
    } else if (name == "fetch") {
      check(held_.front().to_here());
    } else if (name == "pass") {
      check(rpc::call("third", kTouch, held_.front()));
    } else if (name == "delete") {
      held_.clear();
      wait_until_told();
    } else {
      throw std::runtime_error("there is no case " + name);
    }
    return seconds_since(begun) * 1e6;
  }

  template <typename T, typename Start>
  double keep_under_way(const Case& given, const Start& start) {
    const auto until = [&](RpcClock::time_point ends) {
      std::size_t answered = 0;
      std::deque<rpc::Future<T>> calls;
      while (true) {
        const bool goes_on = RpcClock::now() < ends;
        while (goes_on && calls.size() < given.in_flight) calls.push_back(start());
        if (calls.empty()) return answered;
        // The oldest, and those that have come as well.
        do {
          check(calls.front().wait());
          calls.pop_front();
          ++answered;
        } while (!calls.empty() && calls.front().done());
      }
    };
    until(in_seconds(kWarmUpSeconds));
    const RpcClock::time_point begun = RpcClock::now();
    const std::size_t answered = until(in_seconds(given.seconds));
    return static_cast<double>(answered) / seconds_since(begun);
  }

  double keep_many(const Case& given) {
    if (given.name == "create") {
      const auto start = [this] { return create(); };
      return keep_under_way<void>(given, start);
    }
    if (given.name == "create-fetch") {
      const auto start = [] { return make().to_here_async(); };
      return keep_under_way<Number>(given, start);
    }
    if (given.name == "fetch") {
      const auto start = [this] { return held_.front().to_here_async(); };
      return keep_under_way<Number>(given, start);
    }
    if (given.name == "pass") {
      const auto start = [this] { return rpc::async("third", kTouch, held_.front()); };
      return keep_under_way<void>(given, start);
    }
    throw std::runtime_error("there is no case " + given.name);
  }

  double delete_at_once(std::size_t count) {
    hold(count);
    const RpcClock::time_point begun = RpcClock::now();
    held_.clear();
    wait_until_told();
    return static_cast<double>(count) / seconds_since(begun);
  }

  // The owner has acknowledged everything that it was told.
  void wait_until_told() const {
    while (true) {
      const auto now = keeper_->counters();
      if (now.pending_futures == 0 && now.pending_users == 0 && now.pending_children == 0) return;
      std::this_thread::yield();
    }
  }

  std::shared_ptr<rpc::Agent> agent_;
  std::shared_ptr<rref::Keeper> keeper_;
  std::vector<Reference> held_;
};

// ---- the command line ---------------------------------------------------------------------------

double at_fraction(std::vector<double>& lengths, double fraction) {
  const auto last = static_cast<double>(lengths.size() - 1);
  const auto place = lengths.begin() + static_cast<std::ptrdiff_t>(fraction * last);
  std::nth_element(lengths.begin(), place, lengths.end());
  return *place;
}

std::string answer(User& user, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  User::Case given;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "case") given.name = value;
    if (key == "seconds") given.seconds = std::strtod(value.c_str(), nullptr);
    if (key == "in_flight") given.in_flight = std::strtoull(value.c_str(), nullptr, 10);
    if (key == "count") given.count = std::strtoull(value.c_str(), nullptr, 10);
  }
  if (command == "after") {
    auto lengths = user.one_after_the_other(given);
    return fmt::format("{{\"p50_us\": {:.6g}, \"p99_us\": {:.6g}}}", at_fraction(lengths, 0.5),
                       at_fraction(lengths, 0.99));
  }
  if (command == "many") return fmt::format("{{\"per_s\": {:.6g}}}", user.many_at_once(given));
  if (command == "hold") {
    user.hold(given.count);
    return fmt::format("{{\"held\": {}}}", given.count);
  }
  if (command == "release") {
    user.release();
    return "{}";
  }
  throw std::runtime_error("there is no command " + command);
}

void say(std::string_view line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void run(const Place& place) {
  join(place);
  if (place.role != "user") {
    wait_for_end_of_input();
    return;
  }
  User user(place);
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    try {
      say(answer(user, line));
    } catch (const std::exception& error) {
      say(fmt::format("{{\"error\": \"{}\"}}", error.what()));
    }
  }
}

int run_role(int argc, char** argv) {
  Place place;
  place.role = argc > 1 ? argv[1] : "";
  for (int at = 2; at + 1 < argc; at += 2) {
    const std::string_view name = argv[at];
    if (name == "--transport") place.transport = argv[at + 1];
    if (name == "--address") place.address = argv[at + 1];
  }
  try {
    if (place.role == "owner") {
      const rpc::testing::StoreHost store;
      place.address = fmt::format("127.0.0.1:{}", store.port());
      announce(place.address);
      run(place);
      check(rpc::shutdown({.graceful = false}));
    } else if (place.role == "user" || place.role == "third") {
      run(place);
      check(rpc::shutdown({.graceful = false}));
    } else {
      throw std::runtime_error("the first argument must be owner, user or third");
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "rref_load: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::run_role(argc, argv); }
