// The program that runs on simulated workers: makes references, gives them away, reads and drops
// them, while workers die and return; and what must hold meanwhile and in the end.
#pragma once

#include "tests/rref/sim_network.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref::testing {

// How often something rare was met, so that a test can tell that it was.
using Met = std::map<std::string, std::size_t>;
inline constexpr const char* kToBeMet[] = {
    "a handle was confirmed",
    "a value was released",
    "a call ran for nobody",
    "a fork was undone",
    "a fork was kept",
    "a fork was cancelled",
    "a handle was born failed",
    "a fork request failed",
    "a fork request came too late",
    "a message was parked",
    "a worker was lost",
    "a fetch waited",
    "a reference was never created",
    "an owner shared its value again",
    "a message was meant for another process",
};

class World {
 public:
  World(std::uint64_t seed, Met& met) : net_(seed), met_(met) {
    const std::uint64_t most = random().chance(100) ? 16 : 5;
    worker_count_ = static_cast<WorkerId>(2 + random().below(most - 1));
    const std::uint64_t bad = random().below(4);
    is_sloppy_ = random().chance(300);
    net_.weather = {bad * random().below(270), bad * random().below(40), bad * random().below(80),
                    bad * random().below(100)};
    deaths_ = random().chance(500) ? random().below(60) : 0;
    for (WorkerId id = 0; id < worker_count_; ++id) start(id);
  }

  void run(std::size_t step_count) {
    for (std::size_t step = 0; step < step_count && !failed(); ++step) {
      const TimePoint until = net_.now() + net_.some(300);
      while (net_.next() <= until && !failed()) advance();
      do_something();
      check();
      check_counters();
    }
  }

  // The weather clears up, everybody lets go of everything.
  void finish() {
    net_.weather = {};
    is_ending_ = true;
    if (random().chance(300)) {
      // Or the workers stop, and the handles are ended though programs have them.
      for (const auto& [id, process] : copy_of_processes()) {
        Effects out;
        process->ledger.end_users(out);
        apply(process, std::move(out));
      }
    }
    for (int round = 0; round < 6 && !failed(); ++round) {
      for (const auto& [id, process] : copy_of_processes()) {
        while (!process->handles.empty()) drop(process, process->handles.size() - 1);
        for (const auto& [other, unused] : net_.processes) {
          Effects out;
          process->ledger.worker_heard(other, out);
          apply(process, std::move(out));
        }
      }
      for (std::size_t count = 0; advance() && !failed(); ++count) ASSERT_LT(count, 200000U);
    }
    if (!failed()) check_end();
  }

 private:
  using ProcessMap = std::map<WorkerId, ProcessPtr>;

  Random& random() { return net_.random; }
  static bool failed() { return ::testing::Test::HasFailure(); }
  ProcessMap copy_of_processes() const { return net_.processes; }
  bool advance() {
    if (!net_.step()) return false;
    check();
    return true;
  }

  // ---- workers that come and go

  void start(WorkerId id) {
    first_[id] = first_of_incarnation(++incarnation_count_);
    const auto process = std::make_shared<Process>(id, first_[id]);
    process->sessions[id] = 1;
    const bool is_first = net_.processes.size() < static_cast<std::size_t>(id) + 1 && !is_going_;
    for (const auto& [other, peer] : net_.processes) {
      set_session(id, other, ++session_count_);
      if (!is_first) continue;
      process->sessions[other] = peer->sessions[id] = session_count_;
      process->ledger.worker_joined(other, first_[other]);
      peer->ledger.worker_joined(id, first_[id]);
    }
    net_.processes[id] = process;
    if (!is_first) {
      for (WorkerId other = 0; other < worker_count_; ++other) {
        Effects out;
        if (other != id) process->ledger.worker_lost(other, "it is no member", out);
      }
      for (const auto& [other, peer] : net_.processes) spread(id, other);
    }
    is_going_ = is_going_ || id + 1 == worker_count_;
  }
  void set_session(WorkerId one, WorkerId other, std::uint64_t session) {
    target_[{one, other}] = target_[{other, one}] = session;
  }
  // Both learn of the session as it then is, each in its own time.
  void spread(WorkerId one, WorkerId other) {
    if (one == other) return;
    net_.at(net_.some(5000), [=, this] { learn(one, other); });
    net_.at(net_.some(5000), [=, this] { learn(other, one); });
  }
  void learn(WorkerId who, WorkerId about) {
    const ProcessPtr process = net_.find(who);
    if (process == nullptr) return;
    std::uint64_t& session = process->sessions[about];
    const std::uint64_t target = target_[{who, about}];
    if (session == target) return;
    if (session != 0) {
      session = 0;
      Effects out;
      process->ledger.worker_lost(about, fmt::format("worker{} is gone", about), out);
      apply(process, std::move(out));
      ++met_["a worker was lost"];
    }
    session = target;
    if (target != 0) process->ledger.worker_joined(about, first_[about]);
  }
  void die(WorkerId id) {
    net_.processes.at(id)->is_alive = false;
    net_.processes.erase(id);
    for (const auto& [other, peer] : net_.processes) {
      set_session(id, other, 0);
      spread(id, other);
    }
    if (random().chance(600)) {
      net_.at(net_.some(12000), [this, id] {
        if (net_.find(id) == nullptr) start(id);
      });
    }
  }
  // It lives, but is taken for dead; later it notices, and joins again as a new member.
  void cut_off(WorkerId id) {
    for (const auto& [other, peer] : net_.processes) {
      if (other == id) continue;
      set_session(id, other, 0);
      net_.at(net_.some(5000), [=, this, other = other] { learn(other, id); });
    }
    net_.at(net_.some(9000), [this, id, process = net_.processes.at(id)] {
      if (!process->is_alive) return;
      for (const auto& [other, peer] : copy_of_processes()) {
        if (other == id) continue;
        set_session(id, other, 0);
        learn(id, other);
        set_session(id, other, ++session_count_);
        spread(id, other);
      }
      first_[id] = first_of_incarnation(++incarnation_count_);
      process->ids.begin_at(first_[id]);
    });
  }

  // ---- the shell

  void apply(const ProcessPtr& process, Effects out) {
    for (const Effects::Settled& settled : out.settled) {
      if (!settled.error) ++met_["a handle was confirmed"];
    }
    for (const GlobalId rref : out.ready) {
      for (const Respond& respond : std::exchange(process->waiting[rref], {})) respond({});
    }
    for (const Effects::FailedOwner& owner : out.failed) {
      ++met_["a reference was never created"];
      if (owner.error.message.find("was not created in time") != std::string::npos) {
        never_.insert(owner.rref);
      }
      Answer answer;
      answer.ok = false;
      answer.error = owner.error;
      for (const Respond& respond : std::exchange(process->waiting[owner.rref], {})) {
        respond(answer);
      }
      free_if_unused(*process, owner.rref);
    }
    for (const GlobalId rref : out.released) {
      ++met_["a value was released"];
      process->values[rref].is_held = false;
      free_if_unused(*process, rref);
    }
    for (const Ticket ticket : out.abandoned) process->abandoned.insert(ticket);
    for (const Effects::Send& send : out.sends) {
      EXPECT_NE(process->sessions[send.to], 0U) << "sent to a worker that is lost";
      const auto entry = process->schedule.add({}, net_.now());
      process->sending.emplace(*entry, send);
      transmit(process, *entry);
    }
  }
  void free_if_unused(Process& process, GlobalId rref) {
    const auto found = process.values.find(rref);
    if (found == process.values.end()) return;
    if (found->second.is_held || found->second.handle_count > 0) return;
    if (found->second.exists) freed_.insert(rref);
    process.values.erase(found);
  }
  void transmit(const ProcessPtr& process, rpc::RetryEntry entry) {
    const Effects::Send send = process->sending.at(entry);
    // A shell that is slow to hear of it lets such a message go to whoever is there now.
    if (process->abandoned.contains(send.ticket) && !is_sloppy_) {
      return ended(process, entry, failure(CallErrorKind::Rejected, "abandoned", false));
    }
    if (process->abandoned.contains(send.ticket)) ++met_["a message was meant for another process"];
    net_.call(
        process, send.to,
        [this, from = process->id, send](Process& to, const Respond& respond) {
          serve_control(to, from, send, respond);
        },
        [this, process, entry](const Answer& answer) { ended(process, entry, answer); }, 3s);
  }
  void serve_control(Process& to, WorkerId from, const Effects::Send& send,
                     const Respond& respond) {
    Effects out;
    const auto reply = to.ledger.on_control(from, send.type, send.payload, out);
    apply(net_.processes.at(to.id), std::move(out));
    Answer answer;
    if (reply) {
      answer.payload = *reply;
    } else {
      answer.ok = false;
      answer.error = reply.error();
    }
    if (reply == encode(Ack::Kept)) ++met_["a fork was kept"];
    if (reply == encode(Ack::Cancelled)) ++met_["a fork was cancelled"];
    if (reply == encode(Ack::Ended)) ++met_["a fork request came too late"];
    respond(answer);
  }
  void ended(const ProcessPtr& process, rpc::RetryEntry entry, const Answer& answer) {
    const Effects::Send send = process->sending.at(entry);
    Effects out;
    if (answer.ok) {
      process->schedule.succeeded(entry);
      process->sending.erase(entry);
      process->ledger.acked(send.ticket, answer.payload, out);
      return apply(process, std::move(out));
    }
    CallError error = answer.error;
    // Nobody rejects these for good: they are for a worker that is about to come.
    if (!process->abandoned.contains(send.ticket)) error.kind = CallErrorKind::Unreachable;
    const auto outcome = process->schedule.failed(entry, error, net_.now());
    if (!outcome.error) {
      net_.at(outcome.retry_at - net_.now(), [this, process] {
        if (!process->is_alive) return;
        for (const rpc::RetryEntry due : process->schedule.due(net_.now())) transmit(process, due);
      });
      return;
    }
    process->sending.erase(entry);
    if (send.type == MessageType::RrefForkRequest) ++met_["a fork request failed"];
    const std::size_t parked_count = process->ledger.parked_count();
    process->ledger.failed(send.ticket, *outcome.error, out);
    if (process->ledger.parked_count() > parked_count) ++met_["a message was parked"];
    apply(process, std::move(out));
  }

  // ---- the program

  void do_something();
  void create_remote(const ProcessPtr& process);
  void create_here(const ProcessPtr& process);
  void serve_creation(Process& to, WorkerId from, const Ledger::NewReference& made,
                      const Respond& respond);
  std::optional<ForkData> fork(Process& process, const Handle& handle, WorkerId to,
                               rpc::ConnectionNumber by = rpc::kNoConnection);
  void carrier_failed(Process& process, const std::vector<ForkData>& forks, const CallError& error,
                      Effects& out);
  void receive(Process& process, const std::vector<ForkData>& forks);
  void pass(const ProcessPtr& process);
  void fetch(const ProcessPtr& process);
  void serve_fetch(Process& to, const ProcessPtr& from, const Handle& handle,
                   const Respond& respond);
  void drop(const ProcessPtr& process, std::size_t index);

  // ---- what must hold

  bool is_good(const Process& process, const Handle& handle) const;
  void check() const;
  void check_counters() const;
  void check_end() const;

  Network net_;
  Met& met_;
  WorkerId worker_count_ = 0;
  std::uint64_t deaths_ = 0;  // of a thousand steps
  bool is_sloppy_ = false;
  bool is_going_ = false;
  bool is_ending_ = false;
  std::uint64_t incarnation_count_ = 0;
  std::map<WorkerId, std::int64_t> first_;  // of the present series of ids
  std::uint64_t session_count_ = 1;
  rpc::ConnectionNumber connection_count_ = 0;  // one for each call
  std::map<std::pair<WorkerId, WorkerId>, std::uint64_t> target_;
  std::set<GlobalId> freed_;
  std::set<GlobalId> never_;  // their creators died before they were created
  std::set<GlobalId> run_;    // created by a function that ran
};

}  // namespace muster::rref::testing
