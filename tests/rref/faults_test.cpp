// References and calls while messages are failed, lost and delayed on purpose, between real agents
// over both transports.
#include "muster/rpc/faults.h"

#include "muster/rref/rref.h"
#include "tests/rref/cluster.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rref {
namespace {

using namespace std::chrono_literals;
using rpc::CallErrorKind;
using rpc::Procedure;
using rpc::RRef;
using testing::Worker;
using testing::Workers;

using Number = std::int64_t;

const Procedure<Number(Number, Number)> kAdd("add");
const Procedure<Number(Number)> kTwice("twice");
const Procedure<Number(RRef<Number>, Number)> kAddTo("add_to");
const Procedure<Number(RRef<Number>)> kRead("read");
const Procedure<std::vector<RRef<Number>>(Number)> kMakeMany("make_many");
const Procedure<std::vector<RRef<Number>>(Number)> kMakeManyLater("make_many_later");

constexpr const char* kCreationFailed = "RRef creation via rpc.remote() timed out";

enum class Way { Tcp, SharedMemory };

class FaultyReferences : public ::testing::TestWithParam<Way> {
 protected:
  ~FaultyReferences() override {
    // Nobody waits for a test that has failed.
    if (opened_.wait_for(0s) != std::future_status::ready) gate_.set_value();
  }
  void start(int count, const rpc::FaultPreset& preset) {
    auto faults = rpc::faults_of(preset);
    ASSERT_TRUE(faults);
    start(count, std::move(*faults));
  }
  void start(int count, const rpc::FaultOptions& faults) {
    workers_ = testing::start_group(
        store_, count, [this](Worker& worker) { add_functions(worker); },
        [&](rpc::AgentOptions& options) {
          options.uses_shared_memory = GetParam() == Way::SharedMemory;
          options.faults = faults;
        });
  }

  void add_functions(Worker& worker) {
    ASSERT_TRUE(worker.functions.add("add", [](Number a, Number b) { return a + b; }));
    ASSERT_TRUE(worker.functions.add("twice", [this](Number a) {
      ++twice_count_;
      return 2 * a;
    }));
    ASSERT_TRUE(worker.functions.add(
        "add_to", [](const RRef<Number>& a, Number b) { return a.to_here().value() + b; }));
    const auto make_many = [&worker](Number count) {
      std::vector<RRef<Number>> made;
      for (Number i = 0; i < count; ++i) made.push_back(rpc::make_rref(*worker.agent, i).value());
      return made;
    };
    ASSERT_TRUE(worker.functions.add("make_many", make_many));
    ASSERT_TRUE(worker.functions.add("make_many_later", [this, make_many](Number count) {
      ++make_many_later_count_;
      opened_.wait();
      return make_many(count);
    }));
    ASSERT_TRUE(
        worker.functions.add("read", [](const RRef<Number>& a) { return a.to_here().value(); }));
  }

  rpc::Agent& agent(int rank) { return *workers_[static_cast<std::size_t>(rank)]->agent; }
  Keeper& keeper(int rank) { return *workers_[static_cast<std::size_t>(rank)]->keeper; }

  template <typename Holds>
  [[nodiscard]] bool comes_to(int rank, Holds holds) {
    return keeper(rank).wait_until(SystemClock().now() + 30s, holds);
  }
  // Until all that this worker was asked is answered, whether the answers arrive or not.
  [[nodiscard]] bool answers_all(int rank) {
    const auto count = [&] { return agent(rank).metrics().at("agent.server_active_calls"); };
    const TimePoint deadline = SystemClock().now() + 60s;
    while (SystemClock().now() < deadline) {
      // Looked at once: what is given back right after it counts as a call, too.
      if (count() == "0") return true;
      std::this_thread::yield();
    }
    return false;
  }
  void flush(int rank) {
    EXPECT_TRUE(comes_to(rank, [](const Ledger::Counters& now) {
      return now.pending_futures == 0 && now.pending_users == 0;
    }));
  }
  void expect_owners_and_forks(int rank, std::size_t owners, std::size_t forks) {
    EXPECT_TRUE(comes_to(rank,
                         [&](const Ledger::Counters& now) {
                           return now.owner_rrefs == owners && now.forks == forks;
                         }))
        << "worker" << rank;
  }
  // As all workers do when their work is done; none is left with anything.
  void clean_up() {
    std::vector<std::future<void>> cleaning;
    for (auto& worker : workers_) {
      cleaning.push_back(
          std::async(std::launch::async, [&worker] { worker->keeper->clean_up(30s); }));
    }
    for (auto& one : cleaning) one.get();
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      EXPECT_EQ(keeper(static_cast<int>(rank)).counters(), Ledger::Counters()) << rank;
      workers_[rank]->stop();
      EXPECT_EQ(workers_[rank]->leaks, "") << rank;
    }
  }
  template <typename T>
  static void expect_creation_failed(const rpc::CallResult<T>& outcome) {
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message.find(kCreationFailed), std::string::npos)
        << outcome.error().message;
  }
  template <typename T>
  static void expect_timed_out(const rpc::CallResult<T>& outcome) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout) << outcome.error().message;
    EXPECT_NE(outcome.error().message.find("RPC ran for more than"), std::string::npos);
  }

  rpc::testing::StoreHost store_;
  std::atomic<int> twice_count_ = 0;
  std::atomic<int> make_many_later_count_ = 0;
  std::promise<void> gate_;
  const std::shared_future<void> opened_ = gate_.get_future().share();
  Workers workers_;
};

std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return info.param == Way::Tcp ? "Tcp" : "SharedMemory";
}
INSTANTIATE_TEST_SUITE_P(Over, FaultyReferences, ::testing::Values(Way::Tcp, Way::SharedMemory),
                         name_of_way);

rpc::FaultPreset failing(std::vector<std::string> types, std::int64_t count = 3) {
  return {.messages_to_fail = std::move(types), .fail_count = count};
}

// S5
TEST_P(FaultyReferences, control_messages_that_fail_three_times_succeed_by_retry) {
  start(3, failing({"RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE",
                    "CLEANUP_AUTOGRAD_CONTEXT_REQ"}));
  {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
    ASSERT_TRUE(made);
    const auto more = rpc::remote(agent(0), "worker2", kAddTo, *made, 5);
    ASSERT_TRUE(more);
    EXPECT_EQ(made->to_here().value(), 3);
    EXPECT_EQ(more->to_here().value(), 8);
  }
  clean_up();
}

// S8
TEST_P(FaultyReferences, the_delete_of_a_confirmed_child_shares_the_count_of_its_fork_request) {
  const tests::LogCapture log(log::Level::Debug);
  start(3, failing({"RREF_FORK_REQUEST", "RREF_USER_DELETE"}, 2));
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_TRUE(made);
  ASSERT_TRUE(made->creation()->wait());
  EXPECT_EQ(rpc::async(agent(0), "worker2", kRead, *made).wait().value(), 3);
  // The owner has heard of the handle of worker2, and that it is gone.
  ASSERT_TRUE(comes_to(2, [](const Ledger::Counters& now) { return now == Ledger::Counters(); }));
  expect_owners_and_forks(1, 1, 1);
  EXPECT_EQ(log.count("failed intentionally for RREF_FORK_REQUEST"), 2U);
  EXPECT_EQ(log.count("failed intentionally for RREF_USER_DELETE"), 0U);
}

// S9, S11, S13, S15, S16
TEST_P(FaultyReferences, a_creation_that_fails_at_the_sender_fails_every_later_use) {
  const tests::LogCapture log(log::Level::Debug);
  start(2, failing({"SCRIPT_REMOTE_CALL"}));
  std::vector<RRef<Number>> all;
  for (Number i = 0; i < 3; ++i) {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, i, 2);
    ASSERT_TRUE(made);
    all.push_back(*made);
  }
  flush(0);
  for (const RRef<Number>& one : all) {
    expect_creation_failed(one.to_here());
    const auto passed = rpc::async(agent(0), "worker1", kRead, one).wait();
    expect_creation_failed(passed);
    EXPECT_EQ(passed.error().kind, CallErrorKind::Rejected) << "nothing was sent";
    EXPECT_TRUE(one.confirmed_by_owner());
    EXPECT_EQ(one.owner()->name(), "worker1");
    EXPECT_NE(one.text().find("UserRRef("), std::string::npos);
  }
  clean_up();
  // All that the owner has heard of them.
  EXPECT_EQ(log.count("a reference was deleted that is not known here"), 3U);
  EXPECT_EQ(log.warnings(), std::vector<std::string>());
}

// S10, S12, S14
TEST_P(FaultyReferences, a_creation_on_the_worker_itself_that_fails_fails_every_later_use) {
  start(2, failing({"SCRIPT_REMOTE_CALL"}));
  const auto made = rpc::remote(agent(0), "worker0", kAdd, 1, 2);
  ASSERT_TRUE(made);
  (void)made->creation()->wait();
  expect_creation_failed(made->to_here());
  expect_creation_failed(made->local_value());
  clean_up();
}

// S17, S19, S21
TEST_P(FaultyReferences, a_creation_that_comes_late_is_still_made_and_still_released) {
  start(2, rpc::FaultPreset{.messages_to_delay = {{"SCRIPT_REMOTE_CALL", 0.3},
                                                  {"SCRIPT_RREF_FETCH_CALL", 0.2}}});
  {
    const auto first = rpc::remote(agent(0), rpc::to("worker1").within(1ms), kAdd, 1, 2);
    ASSERT_TRUE(first);
    expect_timed_out(first->creation()->wait());
    flush(0);
    expect_creation_failed(first->to_here());
    const auto second = rpc::remote(agent(0), rpc::to("worker1").within(20s), kTwice, 4);
    ASSERT_TRUE(second);
    expect_timed_out(second->to_here(1ms));
    expect_owners_and_forks(1, 2, 2);
    EXPECT_EQ(second->to_here().value(), 8);
  }
  expect_owners_and_forks(1, 0, 0);
  clean_up();
}

TEST_P(FaultyReferences, a_creation_that_comes_when_its_creator_has_let_go_leaves_nothing) {
  start(2, rpc::FaultPreset{.messages_to_delay = {{"SCRIPT_REMOTE_CALL", 0.2}}});
  {
    const auto made = rpc::remote(agent(0), rpc::to("worker1").within(1ms), kAdd, 1, 2);
    expect_timed_out(made->creation()->wait());
  }
  // The call after it is late as well, and comes behind it.
  const auto other = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_TRUE(other->creation()->wait());
  expect_owners_and_forks(1, 1, 1);
  clean_up();
}

// S18, S20, S22
TEST_P(FaultyReferences, a_creation_on_the_worker_itself_that_comes_late_fails_every_later_use) {
  start(1, rpc::FaultPreset{.messages_to_delay = {{"SCRIPT_REMOTE_CALL", 0.1}}});
  const auto made = rpc::remote(agent(0), rpc::to("worker0").within(1ms), kAdd, 1, 2);
  ASSERT_TRUE(made);
  expect_timed_out(made->creation()->wait());
  expect_creation_failed(made->to_here());
  clean_up();
}

// S23
TEST_P(FaultyReferences, a_fetch_that_is_late_times_out_and_the_next_succeeds) {
  start(2, rpc::FaultPreset{.messages_to_delay = {{"SCRIPT_RREF_FETCH_CALL", 0.1}}});
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_TRUE(made);
  expect_timed_out(made->to_here(10ms));
  EXPECT_EQ(made->to_here().value(), 3);
  clean_up();
}

// S24, S25
TEST_P(FaultyReferences, calls_that_are_late_time_out_as_their_timeouts_say) {
  start(2, rpc::FaultPreset{.messages_to_delay = {{"SCRIPT_CALL", 0.1}}});
  for (const char* const to : {"worker1", "worker0"}) {
    expect_timed_out(rpc::async(agent(0), rpc::to(to).within(50ms), kTwice, 4).wait());
    EXPECT_EQ(rpc::async(agent(0), to, kTwice, 4).wait().value(), 8);
    agent(0).set_timeout(1ms);
    expect_timed_out(rpc::async(agent(0), to, kTwice, 4).wait());
    EXPECT_EQ(rpc::async(agent(0), rpc::to(to).within(0s), kTwice, 4).wait().value(), 8);
    agent(0).set_timeout(60s);
  }
}

// ---- Muster's own -------------------------------------------------------------------------------

TEST_P(FaultyReferences, a_request_that_is_lost_on_the_way_gives_its_references_back) {
  rpc::FaultOptions faults = rpc::parse_faults("drop:SCRIPT_CALL:to=worker2").value();
  start(3, faults);
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_TRUE(made->creation()->wait());
  expect_timed_out(rpc::async(agent(0), rpc::to("worker2").within(20ms), kRead, *made).wait());
  EXPECT_TRUE(comes_to(0, [](const Ledger::Counters& now) { return now == Ledger::Counters(); }))
      << "worker2 was asked, and will never have it";
  const auto local = rpc::make_rref(agent(0), Number{7});
  expect_timed_out(rpc::async(agent(0), rpc::to("worker2").within(20ms), kRead, *local).wait());
  expect_owners_and_forks(0, 0, 0);
  clean_up();
}

TEST_P(FaultyReferences, an_answer_that_is_late_gives_back_the_references_in_it) {
  start(2, rpc::FaultOptions());
  // Again if it was not even sent in that time.
  while (make_many_later_count_ == 0) {
    expect_timed_out(
        rpc::async(agent(0), rpc::to("worker1").within(20ms), kMakeManyLater, 5).wait());
  }
  {
    const auto many = rpc::remote(agent(0), "worker1", kMakeManyLater, 5);
    ASSERT_TRUE(many);
    expect_timed_out(many->to_here(20ms));
    gate_.set_value();
    ASSERT_TRUE(many->creation()->wait());
    ASSERT_TRUE(answers_all(1));
    expect_owners_and_forks(1, 1, 1);
  }
  expect_owners_and_forks(1, 0, 0);
  clean_up();
}

TEST_P(FaultyReferences, an_answer_that_is_lost_with_its_connection_gives_back_its_references) {
  start(2, rpc::parse_faults("disconnect:SCRIPT_RET,SCRIPT_RREF_FETCH_RET:first=1").value());
  const auto lost = rpc::async(agent(0), "worker1", kMakeMany, 5).wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().kind, CallErrorKind::Unreachable) << lost.error().message;
  expect_owners_and_forks(1, 0, 0);
  {
    const auto many = rpc::remote(agent(0), "worker1", kMakeMany, 5);
    ASSERT_TRUE(many);
    ASSERT_TRUE(many->creation()->wait());
    EXPECT_FALSE(many->to_here());
    expect_owners_and_forks(1, 1, 1);
  }
  clean_up();
}

TEST_P(FaultyReferences,
       an_answer_that_arrived_before_its_connection_was_lost_keeps_its_references) {
  start(2, rpc::parse_faults("disconnect:EXCEPTION").value());
  const auto many = rpc::async(agent(0), "worker1", kMakeMany, 5).wait();
  ASSERT_TRUE(many);
  // There is no such function; the answer that says so is cut off.
  const Procedure<Number()> none("none");
  EXPECT_EQ(rpc::async(agent(0), "worker1", none).wait().error().kind, CallErrorKind::Unreachable);
  // The owner asks for each of them.
  const auto cancels = [](const Ledger::Counters& now) { return now.pending_futures > 0; };
  (void)keeper(1).wait_until(SystemClock().now() + 2s, cancels);
  flush(1);
  for (Number i = 0; i < 5; ++i) {
    EXPECT_EQ((*many)[static_cast<std::size_t>(i)].to_here().value(), i);
  }
  expect_owners_and_forks(1, 5, 5);
}

TEST_P(FaultyReferences, an_answer_that_is_lost_is_missed_by_its_call_alone) {
  start(2, rpc::parse_faults("drop:SCRIPT_RET:first=1").value());
  const auto lost = rpc::async(agent(0), rpc::to("worker1").within(0s), kTwice, 4);
  const TimePoint deadline = SystemClock().now() + 60s;
  while (twice_count_ == 0 && SystemClock().now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(answers_all(1));
  EXPECT_EQ(rpc::async(agent(0), "worker1", kTwice, 4).wait().value(), 8);
  EXPECT_FALSE(lost.done());
  workers_.clear();
  EXPECT_FALSE(lost.wait());
}

TEST_P(FaultyReferences, whatever_happens_to_control_messages_all_is_released_in_the_end) {
  start(3, rpc::parse_faults("seed=11 reorder:RREF_*:p=0.5:for=20ms duplicate:RREF_*:p=0.3 "
                             "delay:RREF_ACK:p=0.3:for=10ms duplicate:SCRIPT_RREF_FETCH_CALL:p=0.2")
               .value());
  for (Number i = 0; i < 40; ++i) {
    const int from = static_cast<int>(i % 3);
    const auto owner = "worker" + std::to_string((i + 1) % 3);
    const auto third = "worker" + std::to_string((i + 2) % 3);
    const auto made = rpc::remote(agent(from), owner, kAdd, i, 1);
    ASSERT_TRUE(made);
    const auto sum = rpc::async(agent(from), third, kAddTo, *made, 10).wait();
    ASSERT_TRUE(sum) << sum.error().message;
    EXPECT_EQ(*sum, i + 11);
    EXPECT_EQ(rpc::async(agent(from), owner, kRead, *made).wait().value(), i + 1);
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(comes_to(rank, [](const Ledger::Counters& now) {
      return now == Ledger::Counters();
    })) << rank;
  }
  clean_up();
}

TEST_P(FaultyReferences, a_remote_call_that_comes_twice_runs_once) {
  start(2, rpc::parse_faults("duplicate:SCRIPT_REMOTE_CALL").value());
  {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
    ASSERT_TRUE(made);
    EXPECT_EQ(made->to_here().value(), 3);
    expect_owners_and_forks(1, 1, 1);
  }
  expect_owners_and_forks(1, 0, 0);
  clean_up();
}

TEST_P(FaultyReferences, connections_that_are_cut_cost_only_the_calls_under_way) {
  start(2, rpc::parse_faults("seed=5 disconnect:SCRIPT_CALL:p=0.2").value());
  for (Number i = 0; i < 30; ++i) {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, i, 1);
    ASSERT_TRUE(made);
    ASSERT_TRUE(made->creation()->wait());
    // The one that is made just then goes by the next connection.
    const auto twice = rpc::async(agent(0), "worker1", kTwice, i).wait();
    ASSERT_TRUE(twice) << twice.error().message;
    EXPECT_EQ(*twice, 2 * i);
  }
  clean_up();
}

TEST_P(FaultyReferences, all_is_released_though_control_messages_cut_connections) {
  start(3, rpc::parse_faults("seed=3 disconnect:RREF_*:p=0.2").value());
  for (Number i = 0; i < 9; ++i) {
    const int from = static_cast<int>(i % 3);
    const auto owner = "worker" + std::to_string((i + 1) % 3);
    const auto third = "worker" + std::to_string((i + 2) % 3);
    // Calls that are under way when a connection is cut fail, and nobody knows whether they ran.
    const auto made = rpc::remote(agent(from), owner, kAdd, i, 1);
    ASSERT_TRUE(made);
    (void)made->creation()->wait();
    (void)rpc::async(agent(from), third, kAddTo, *made, 10).wait();
    (void)rpc::async(agent(from), owner, kRead, *made).wait();
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(keeper(rank).wait_until(SystemClock().now() + 60s, [](const Ledger::Counters& now) {
      return now == Ledger::Counters();
    })) << rank;
  }
}

}  // namespace
}  // namespace muster::rref
