// Whole groups of ledgers from seeds: random programs on a bad network, with workers that die,
// return and lose sight of each other.
#include "tests/rref/sim_world.h"
#include "tests/seeds.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref::testing {

// ---- the program --------------------------------------------------------------------------------

void World::do_something() {
  if (net_.processes.empty()) return start(0);
  auto chosen = net_.processes.begin();
  std::advance(chosen, random().below(net_.processes.size()));
  const ProcessPtr process = chosen->second;
  if (random().chance(deaths_)) {
    return random().chance(500) ? die(process->id) : cut_off(process->id);
  }
  const std::uint64_t what = random().below(100);
  if (what < 20) return create_remote(process);
  if (what < 28) return create_here(process);
  if (process->handles.empty()) return;
  if (what < 60) return pass(process);
  if (what < 72) return fetch(process);
  drop(process, random().below(process->handles.size()));
}

void World::create_remote(const ProcessPtr& process) {
  const auto owner =
      static_cast<WorkerId>(random().below(static_cast<std::uint64_t>(worker_count_)));
  if (owner == process->id) return;
  const auto made = process->ledger.create(owner);
  EXPECT_EQ(!made, process->ledger.is_lost(owner));
  if (!made) return;
  std::vector<ForkData> forks;
  if (!process->handles.empty() && random().chance(300)) {
    const Handle& argument = process->handles[random().below(process->handles.size())];
    if (auto data = fork(*process, argument, owner)) forks.push_back(*data);
  }
  process->handles.push_back({made->rref, made->fork, owner, false});
  ++process->user_counts[made->fork];
  if (process->sessions[owner] == 0) {
    const CallError error{CallErrorKind::Rejected, "could not find destination", {}, false};
    Effects out;
    process->ledger.creation_finished(made->fork, error, out);
    carrier_failed(*process, forks, error, out);
    return apply(process, std::move(out));
  }
  const Duration timeout = random().chance(200) ? net_.some(1500) : Duration(10s);
  net_.call(
      process, owner,
      [this, from = process->id, made = *made, forks](Process& to, const Respond& respond) {
        serve_creation(to, from, made, respond);
        receive(to, forks);
      },
      [this, process, made = *made, forks](const Answer& answer) {
        Effects out;
        if (answer.ok) {
          process->ledger.creation_finished(made.fork, std::nullopt, out);
        } else {
          process->ledger.creation_finished(made.fork, answer.error, out);
          carrier_failed(*process, forks, answer.error, out);
        }
        apply(process, std::move(out));
      },
      timeout);
}

void World::serve_creation(Process& to, WorkerId from, const Ledger::NewReference& made,
                           const Respond& respond) {
  const auto begin = to.ledger.begin_creation(made.rref, made.fork, from);
  if (begin.creation == Ledger::Creation::Refuse) {
    return respond(failure(CallErrorKind::Remote, begin.error->message, true));
  }
  const bool keeps = begin.creation == Ledger::Creation::Run;
  EXPECT_TRUE(run_.insert(made.rref).second) << made.rref.text() << " was created twice";
  if (!keeps) ++met_["a call ran for nobody"];
  net_.at(net_.some(2000), [=, this, process = net_.processes.at(to.id)] {
    if (!process->is_alive) return;
    if (keeps) {
      Value& value = process->values[made.rref];
      value.exists = value.is_held = true;
      Effects out;
      process->ledger.created(made.rref, out);
      apply(process, std::move(out));
    }
    respond({});
  });
}

void World::create_here(const ProcessPtr& process) {
  const bool is_local = random().chance(500);
  const GlobalId rref = is_local ? process->ledger.create_local() : process->ledger.create_self();
  process->values[rref] = {true, !is_local, 1};
  process->handles.push_back({rref, {}, process->id, true});
  if (is_local) return;
  // The request and the end of the call, in any order: the call may time out first.
  net_.at(net_.some(500), [process, rref] {
    const auto begin = process->ledger.begin_creation(rref, rref, process->id);
    EXPECT_NE(begin.creation, Ledger::Creation::Refuse);
  });
  net_.at(net_.some(1500), [this, process, rref] {
    Effects out;
    process->ledger.self_finished(rref, out);
    if (process->is_alive) apply(process, std::move(out));
  });
}

std::optional<ForkData> World::fork(Process& process, const Handle& handle, WorkerId to,
                                    rpc::ConnectionNumber by) {
  if (!handle.is_owner) {
    auto data = process.ledger.fork_user(handle.rref, handle.fork, to, by);
    return data ? std::optional<ForkData>(*data) : std::nullopt;
  }
  // An owner's handle that has come before the value, and whose value will not come.
  if (!process.values.at(handle.rref).exists && !process.ledger.holds(handle.rref)) return {};
  const bool was_held = process.ledger.holds(handle.rref);
  auto data = process.ledger.fork_owned(handle.rref, to, by);
  if (!data) return std::nullopt;
  if (!was_held) ++met_["an owner shared its value again"];
  if (process.values.at(handle.rref).exists) process.values.at(handle.rref).is_held = true;
  return *data;
}

void World::carrier_failed(Process& process, const std::vector<ForkData>& forks,
                           const CallError& error, Effects& out) {
  for (const ForkData& data : forks) {
    if (!error.sent) {
      ++met_["a fork was undone"];
      process.ledger.undo_fork(data.fork, out);
    } else {
      process.ledger.fork_uncertain(data.fork, out);
    }
  }
}

void World::receive(Process& process, const std::vector<ForkData>& forks) {
  for (const ForkData& data : forks) {
    Effects out;
    const Result<ForkData> decoded = decode_fork_data(encode(data));
    const Ledger::Received received = process.ledger.received(*decoded, out);
    const bool is_owner = received.arrival == Ledger::Arrival::Owner;
    EXPECT_FALSE(is_owner && freed_.contains(data.rref)) << data.rref.text() << " was freed";
    if (is_owner) ++process.values[data.rref].handle_count;
    apply(net_.processes.at(process.id), std::move(out));
    if (is_owner || process.ledger.state_of(data.fork) != Ledger::State::Deleted) {
      process.handles.push_back({data.rref, data.fork, data.owner, is_owner});
      if (!is_owner) ++process.user_counts[data.fork];
    } else {
      ++met_["a handle was born failed"];
      EXPECT_TRUE(received.error);
    }
  }
}

void World::pass(const ProcessPtr& process) {
  const auto to = static_cast<WorkerId>(random().below(static_cast<std::uint64_t>(worker_count_)));
  std::vector<ForkData> forks;
  for (std::uint64_t count = random().below(3); count < 3; ++count) {
    const Handle& handle = process->handles[random().below(process->handles.size())];
    if (auto data = fork(*process, handle, to)) forks.push_back(*data);
  }
  net_.call(
      process, to,
      [this, forks, from = process->id](Process& target, const Respond& respond) {
        receive(target, forks);
        Answer answer;
        const rpc::ConnectionNumber by = ++connection_count_;
        if (!is_ending_ && !target.handles.empty() && random().chance(400)) {
          const Handle& handle = target.handles[random().below(target.handles.size())];
          if (auto data = fork(target, handle, from, by)) answer.forks.push_back(*data);
        }
        // Nobody says whether a response has come, so it is asked for.
        if (!answer.forks.empty()) {
          net_.at(1s + net_.some(9000), [=, this, process = net_.processes.at(target.id)] {
            if (!process->is_alive) return;
            Effects out;
            process->ledger.connection_lost(by, out);
            apply(process, std::move(out));
          });
        }
        respond(answer);
      },
      [this, forks, process](const Answer& answer) {
        Effects out;
        if (!answer.ok) carrier_failed(*process, forks, answer.error, out);
        apply(process, std::move(out));
        receive(*process, answer.forks);
      },
      1s + net_.some(4000));
}

void World::fetch(const ProcessPtr& process) {
  const Handle handle = process->handles[random().below(process->handles.size())];
  if (handle.is_owner || process->ledger.use_error({handle.rref, handle.fork, "read it"})) return;
  net_.call(
      process, handle.owner,
      [this, process, handle](Process& to, const Respond& respond) {
        serve_fetch(to, process, handle, respond);
      },
      [](const Answer&) {}, 5s);
}

void World::serve_fetch(Process& to, const ProcessPtr& from, const Handle& handle,
                        const Respond& respond) {
  const Ledger::Fetch fetch = to.ledger.fetch({handle.rref, handle.fork}, from->id);
  switch (fetch.answer) {
    case Ledger::FetchAnswer::Ready:
      EXPECT_TRUE(to.values.contains(handle.rref)) << handle.rref.text() << " is freed";
      return respond({});
    case Ledger::FetchAnswer::Wait:
      ++met_["a fetch waited"];
      to.waiting[handle.rref].push_back(respond);
      return;
    case Ledger::FetchAnswer::Refused:
      EXPECT_FALSE(is_good(*from, handle)) << fetch.error->message;
      return respond(failure(CallErrorKind::Remote, fetch.error->message, true));
  }
}

void World::drop(const ProcessPtr& process, std::size_t index) {
  const Handle handle = process->handles[index];
  process->handles.erase(process->handles.begin() + static_cast<std::ptrdiff_t>(index));
  if (handle.is_owner) {
    --process->values.at(handle.rref).handle_count;
    return free_if_unused(*process, handle.rref);
  }
  if (--process->user_counts.at(handle.fork) > 0) return;
  process->user_counts.erase(handle.fork);
  Effects out;
  process->ledger.dropped(handle.fork, out);
  apply(process, std::move(out));
}

// ---- what must hold -----------------------------------------------------------------------------

// Nothing has happened to this handle that would allow its value to be gone.
bool World::is_good(const Process& process, const Handle& handle) const {
  if (handle.is_owner || !process.is_alive || never_.contains(handle.rref)) return false;
  if (process.ledger.state_of(handle.fork) != Ledger::State::Confirmed) return false;
  const ProcessPtr owner = net_.find(handle.owner);
  if (owner == nullptr) return false;
  const auto there = owner->sessions.find(process.id);
  const auto here = process.sessions.find(handle.owner);
  return there != owner->sessions.end() && here != process.sessions.end() && here->second != 0 &&
         here->second == there->second;
}

void World::check() const {
  for (const auto& [id, process] : net_.processes) {
    for (const Handle& handle : process->handles) {
      if (!is_good(*process, handle)) continue;
      const Ledger& owner = net_.find(handle.owner)->ledger;
      EXPECT_TRUE(owner.has_fork(handle.rref, handle.fork))
          << user_text(handle.rref, handle.fork) << " on " << id << " is not known to its owner";
      EXPECT_FALSE(freed_.contains(handle.rref)) << handle.rref.text() << " is freed";
    }
    const auto awaited_count = std::count_if(
        process->sending.begin(), process->sending.end(), [&process = process](const auto& one) {
          return !process->abandoned.contains(one.second.ticket);
        });
    EXPECT_EQ(process->ledger.counters().pending_futures, static_cast<std::size_t>(awaited_count));
  }
}

void World::check_counters() const {
  for (const auto& [id, process] : net_.processes) {
    const Ledger& ledger = process->ledger;
    EXPECT_EQ(ledger.counters().forks, ledger.held_forks().size());
    std::size_t existing = 0;
    for (const auto& [rref, value] : process->values) {
      // A value that the program has and the tables hold, or that only they hold.
      if (value.exists && ledger.holds(rref)) ++existing;
      EXPECT_EQ(value.is_held, value.exists && ledger.holds(rref)) << rref.text();
    }
    EXPECT_GE(ledger.counters().owner_rrefs, existing);
  }
}

void World::check_end() const {
  EXPECT_EQ(net_.open_calls, 0U);
  for (const auto& [id, process] : net_.processes) {
    EXPECT_TRUE(process->ledger.is_empty()) << "worker " << id << "\n"
                                            << process->ledger.leak_report();
    EXPECT_EQ(process->ledger.counters(), Ledger::Counters()) << "worker " << id;
    EXPECT_TRUE(process->values.empty()) << "worker " << id;
    EXPECT_TRUE(process->user_counts.empty()) << "worker " << id;
    EXPECT_EQ(process->schedule.entry_count(), 0U);
    for (const auto& [rref, waiting] : process->waiting) EXPECT_TRUE(waiting.empty()) << id;
  }
}

// ---- the tests ----------------------------------------------------------------------------------

namespace {

TEST(LedgerSim, FreesEverythingAndNothingTooEarly) {  // S161
  Met met;
  const auto seeds =
      tests::kIsSlow ? tests::seeds_to_run(250, 50) : tests::seeds_to_run(16000, 4000);
  for (const std::uint64_t seed : seeds) {
    SCOPED_TRACE(tests::replay_command(seed));
    World world(seed, met);
    world.run(120);
    world.finish();
    if (HasFailure()) return;
  }
  if (seeds.size() < 250) return;
  // Otherwise the days were too good, and this test says nothing.
  for (const char* const what : kToBeMet) EXPECT_GT(met[what], 0U) << what;
}

}  // namespace
}  // namespace muster::rref::testing
