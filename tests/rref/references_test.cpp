// Remote references between real agents, over both transports: making and reading them, sharing
// them, methods, and what the counters show.
#include "muster/rref/rref.h"
#include "tests/rpc/fake_devices.h"
#include "tests/rref/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rref {

// Never sent.
class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) {}
  std::int64_t add(std::int64_t amount) { return value_ += amount; }
  std::int64_t get() const { return value_; }

 private:
  std::int64_t value_;
};

}  // namespace muster::rref

template <>
inline constexpr bool muster::rpc::kIsObject<muster::rref::Counter> = true;

namespace muster::rref {
namespace {

using namespace std::chrono_literals;
using rpc::Procedure;
using rpc::RRef;
using rpc::testing::FakeDevices;
using testing::Worker;
using testing::Workers;

using Number = std::int64_t;

const Procedure<Number(Number, Number)> kAdd("add");
const Procedure<Number()> kThrow("throw");
const Procedure<Number(RRef<Number>, RRef<Number>)> kSum("sum");
const Procedure<Number(RRef<Number>)> kRead("read");
const Procedure<bool(RRef<Number>)> kIsConfirmed("is_confirmed");
const Procedure<RRef<Number>(std::string, Number)> kMakeOn("make_on");
const Procedure<std::vector<RRef<Number>>(Number)> kMakeMany("make_many");
const Procedure<RRef<Number>(RRef<Number>)> kSame("same");
const Procedure<void(RRef<Number>)> kKeep("keep");
const Procedure<void()> kForget("forget");
const Procedure<Number()> kGated("gated");
const Procedure<Counter(Number)> kMakeCounter("counter");
const Procedure<Number(RRef<Counter>, Number)> kCounterAdd("counter.add");
const Procedure<Number(RRef<Counter>)> kCounterGet("counter.get");
const Procedure<Counter(Number)> kMakeCounterLater("counter_later");
const Procedure<Number(RRef<Counter>)> kCounterGated("counter.gated");
const Procedure<rpc::Tensor(rpc::Tensor)> kEcho("echo");
const Procedure<rpc::Tensor(std::int32_t)> kMakeTensor("tensor");

enum class Way { Tcp, SharedMemory };

class References : public ::testing::TestWithParam<Way> {
 protected:
  void start(int count, bool is_static = true) {
    workers_ = testing::start_group(
        store_, count, [this](Worker& worker) { add_functions(worker); },
        [is_static](rpc::AgentOptions& options) {
          options.uses_shared_memory = GetParam() == Way::SharedMemory;
          if (!is_static) options.world_size.reset();
        });
  }

  void add_functions(Worker& worker) {
    const auto add = [&worker](const auto& procedure, auto function) {
      ASSERT_TRUE(worker.functions.add(procedure.name(), function));
    };
    add(kAdd, [](Number a, Number b) { return a + b; });
    add(kThrow, []() -> Number { throw std::out_of_range("far too much"); });
    add(kSum, [](const RRef<Number>& a, const RRef<Number>& b) {
      return a.to_here().value() + b.to_here().value();
    });
    add(kRead, [](const RRef<Number>& a) { return a.to_here().value(); });
    add(kIsConfirmed, [](const RRef<Number>& a) { return a.confirmed_by_owner(); });
    add(kMakeOn, [&worker](const std::string& where, Number value) {
      return rpc::remote(*worker.agent, where, kAdd, value, 0).value();
    });
    add(kMakeMany, [&worker](Number count) {
      std::vector<RRef<Number>> made;
      for (Number i = 0; i < count; ++i) made.push_back(rpc::make_rref(*worker.agent, i).value());
      return made;
    });
    add(kSame, [](const RRef<Number>& a) { return a; });
    add(kKeep, [this](const RRef<Number>& a) {
      const std::lock_guard lock(mutex_);
      kept_.push_back(a);
    });
    add(kForget, [this] {
      const std::lock_guard lock(mutex_);
      kept_.clear();
    });
    add(kGated, [this] { return opened_.get(); });
    add(kMakeCounter, [](Number start) { return Counter(start); });
    add(kCounterAdd, rpc::method(&Counter::add));
    add(kCounterGet, rpc::method(&Counter::get));
    add(kMakeCounterLater, [this](Number start) { return Counter(start + opened_.get()); });
    add(kCounterGated, [this](const RRef<Counter>& counter) {
      return opened_.get() + counter.local_value().value()->get();
    });
    add(kEcho, [](rpc::Tensor tensor) { return tensor; });
    add(kMakeTensor, [](std::int32_t index) { return FakeDevices::counting(rpc::cuda(index), 3); });
  }

  rpc::Agent& agent(int rank) { return *workers_[static_cast<std::size_t>(rank)]->agent; }
  Keeper& keeper(int rank) { return *workers_[static_cast<std::size_t>(rank)]->keeper; }

  // Waits until the counters are so.
  void expect_counters(int rank, const Ledger::Counters& wanted) {
    const auto holds = [&](const Ledger::Counters& now) { return now == wanted; };
    if (keeper(rank).wait_until(SystemClock().now() + 30s, holds)) return;
    const Ledger::Counters now = keeper(rank).counters();
    FAIL() << "worker" << rank << " has " << now.owner_rrefs << " owners, " << now.forks
           << " forks, " << now.pending_users << " pending users, " << now.pending_children
           << " pending children and " << now.pending_futures << " control messages under way";
  }
  void expect_owners_and_forks(int rank, std::size_t owners, std::size_t forks) {
    expect_counters(rank, {.owner_rrefs = owners, .forks = forks});
  }
  // All three forms, in a time that is not enough.
  void expect_methods_to_time_out(const RRef<Counter>& counter,
                                  const Procedure<Number(RRef<Counter>)>& procedure) {
    const auto check = [](const auto& outcome) {
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().kind, rpc::CallErrorKind::Timeout) << outcome.error().message;
      EXPECT_NE(outcome.error().message.find("RPC ran for more than"), std::string::npos);
    };
    check(counter.within(20ms).call(procedure));
    check(counter.within(20ms).async(procedure).wait());
    const auto left_there = counter.within(20ms).remote(procedure);
    ASSERT_TRUE(left_there);
    check(left_there->creation()->wait());
  }
  // What worker1 holds and owns when it goes.
  void expect_released_with_their_holder();
  void expect_failed_with_their_owner();
  void expect_nothing_left() {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      expect_counters(static_cast<int>(rank), {});
    }
  }

  rpc::testing::StoreHost store_;
  std::mutex mutex_;
  std::vector<RRef<Number>> kept_;
  std::promise<Number> gate_;
  const std::shared_future<Number> opened_ = gate_.get_future().share();
  Workers workers_;
};

std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return info.param == Way::Tcp ? "Tcp" : "SharedMemory";
}
INSTANTIATE_TEST_SUITE_P(Over, References, ::testing::Values(Way::Tcp, Way::SharedMemory),
                         name_of_way);

// ---- making and reading -------------------------------------------------------------------------

TEST_P(References, a_result_left_on_another_worker_can_be_fetched) {
  start(2);
  for (Number i = 0; i < 10; ++i) {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, i, 5);
    ASSERT_TRUE(made);
    EXPECT_EQ(made->to_here().value(), i + 5);
    EXPECT_FALSE(made->is_owner());
    EXPECT_EQ(made->owner()->name(), "worker1");
  }
  expect_nothing_left();
}

TEST_P(References, a_result_left_on_the_worker_itself_is_read_without_a_copy) {
  start(1);
  const auto made = rpc::remote(agent(0), "worker0", kAdd, 2, 3);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->is_owner());
  Number* const value = made->local_value().value();
  EXPECT_EQ(*value, 5);
  *value = 9;
  EXPECT_EQ(made->to_here().value(), 9);
  EXPECT_TRUE(made->confirmed_by_owner());
}

TEST_P(References, a_local_value_changes_no_counter_until_it_is_shared) {
  start(2);
  const auto made = rpc::make_rref(agent(0), Number{35});
  ASSERT_TRUE(made);
  EXPECT_EQ(*made->local_value().value(), 35);
  EXPECT_EQ(keeper(0).counters().owner_rrefs, 0U);
  ASSERT_TRUE(rpc::async(agent(0), "worker1", kKeep, *made).wait());
  expect_owners_and_forks(0, 1, 1);
  EXPECT_EQ(keeper(0).counters().pending_users, 0U);
  ASSERT_TRUE(rpc::async(agent(0), "worker1", kForget).wait());
  expect_owners_and_forks(0, 0, 0);
  EXPECT_EQ(*made->local_value().value(), 35) << "the local handle still has it";
}

TEST_P(References, a_user_is_refused_the_local_value_in_words_that_name_both_workers) {
  start(2);
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_TRUE(made);
  const auto value = made->local_value();
  ASSERT_FALSE(value);
  EXPECT_NE(value.error().message.find(
                "UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), "
                "fork_id=GloballyUniqueId(created_on=0, local_id=1)), can't call localValue() on "
                "user"),
            std::string::npos)
      << value.error().message;
  EXPECT_NE(value.error().message.find("worker1"), std::string::npos) << value.error().message;
}

TEST_P(References, the_texts_show_the_ids_in_the_order_they_were_drawn) {
  start(2);
  const auto local = rpc::make_rref(agent(0), Number{1});
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  EXPECT_EQ(local->text(), "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))");
  EXPECT_EQ(made->text(),
            "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), "
            "ForkId = GloballyUniqueId(created_on=0, local_id=2))");
}

TEST_P(References, a_function_that_fails_leaves_its_failure_in_the_reference) {
  start(2);
  const auto made = rpc::remote(agent(0), "worker1", kThrow);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->creation()->wait()) << "the creation itself went well";
  for (int i = 0; i < 2; ++i) {
    const auto value = made->to_here();
    ASSERT_FALSE(value);
    EXPECT_EQ(value.error().message, "far too much");
    EXPECT_EQ(value.error().type, "std::out_of_range");
  }
  const auto here = rpc::remote(agent(0), "worker0", kThrow);
  const auto value = here->local_value();
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().message, "far too much");
}

TEST_P(References, a_function_that_the_owner_lacks_fails_every_use_and_leaves_nothing) {
  start(2);
  {
    const Procedure<Number()> lacking("no such function");
    const auto made = rpc::remote(agent(0), "worker1", lacking);
    ASSERT_TRUE(made);
    (void)made->creation()->wait();
    const auto value = made->to_here();
    ASSERT_FALSE(value);
    EXPECT_NE(value.error().message.find("no such function"), std::string::npos)
        << value.error().message;
  }
  expect_nothing_left();
}

TEST_P(References, an_unknown_destination_is_refused_at_once) {
  start(1);
  const auto made = rpc::remote(agent(0), "worker7", kAdd, 1, 2);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("could not find destination"), std::string::npos);
  expect_nothing_left();
}

TEST_P(References, a_fetch_that_overtakes_the_creation_waits_for_it) {
  start(2);
  const auto made = rpc::remote(agent(0), "worker1", kGated);
  ASSERT_TRUE(made);
  const auto later = made->to_here_async();
  const auto in_time = made->to_here(50ms);
  ASSERT_FALSE(in_time);
  EXPECT_EQ(in_time.error().kind, rpc::CallErrorKind::Timeout);
  EXPECT_EQ(keeper(1).counters().owner_rrefs, 0U) << "it does not exist yet";
  EXPECT_FALSE(made->confirmed_by_owner());
  gate_.set_value(7);
  EXPECT_EQ(later.wait().value(), 7);
  ASSERT_TRUE(made->creation()->wait());
  EXPECT_TRUE(made->confirmed_by_owner());
}

TEST_P(References, a_creation_that_times_out_fails_later_uses_and_is_undone_when_it_comes) {
  start(2);
  {
    const auto made = rpc::remote(agent(0), rpc::to("worker1").within(30ms), kGated);
    ASSERT_TRUE(made);
    const auto created = made->creation()->wait();
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().kind, rpc::CallErrorKind::Timeout);
    const auto value = made->to_here();
    ASSERT_FALSE(value);
    EXPECT_NE(value.error().message.find(
                  "RRef creation via rpc.remote() timed out, and it is possible that the RRef on "
                  "the owner node does not exist."),
              std::string::npos)
        << value.error().message;
    const auto sent = rpc::async(agent(0), "worker1", kRead, *made).wait();
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().kind, rpc::CallErrorKind::Rejected);
    EXPECT_NE(sent.error().message.find("RRef creation"), std::string::npos);
  }
  gate_.set_value(7);
  expect_nothing_left();
}

TEST_P(References, a_reference_can_not_be_written_outside_of_a_call) {
  start(1);
  const auto made = rpc::make_rref(agent(0), Number{1});
  rpc::Writer writer;
  writer.write(*made);
  EXPECT_FALSE(writer.finish());
}

TEST_P(References, an_empty_reference_travels_as_one_and_says_so_when_used) {
  start(2);
  const auto same = rpc::async(agent(0), "worker1", kSame, RRef<Number>()).wait();
  ASSERT_TRUE(same);
  EXPECT_FALSE(*same);
  EXPECT_NE(same->to_here().error().message.find("refers to nothing"), std::string::npos);
}

// ---- sharing ------------------------------------------------------------------------------------

TEST_P(References, go_from_a_user_to_their_owner) {
  start(2);
  {
    const auto a = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
    const auto b = rpc::remote(agent(0), "worker1", kAdd, 3, 4);
    EXPECT_EQ(rpc::async(agent(0), "worker1", kSum, *a, *b).wait().value(), 10);
    EXPECT_EQ(rpc::remote(agent(0), "worker1", kSum, *a, *b)->to_here().value(), 10);
  }
  expect_nothing_left();
}

TEST_P(References, go_from_a_user_to_a_third_worker_where_they_are_confirmed) {
  start(3);
  {
    const auto a = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
    const auto b = rpc::remote(agent(0), "worker1", kAdd, 3, 4);
    EXPECT_EQ(rpc::async(agent(0), "worker2", kSum, *a, *b).wait().value(), 10);
    EXPECT_EQ(rpc::remote(agent(0), "worker2", kSum, *a, *b)->to_here().value(), 10);
    EXPECT_TRUE(rpc::async(agent(0), "worker2", kIsConfirmed, *a).wait().value());
    EXPECT_TRUE(rpc::remote(agent(0), "worker2", kIsConfirmed, *a)->to_here().value());
  }
  expect_nothing_left();
}

TEST_P(References, go_from_the_owner_to_a_user_and_to_itself) {
  start(2);
  {
    const auto local = rpc::make_rref(agent(0), Number{40});
    const auto self = rpc::remote(agent(0), "worker0", kAdd, 20, 20);
    for (const auto& a : {*local, *self}) {
      for (const char* const to : {"worker1", "worker0"}) {
        EXPECT_EQ(rpc::async(agent(0), to, kRead, a).wait().value(), 40) << to;
        EXPECT_EQ(rpc::remote(agent(0), to, kRead, a)->to_here().value(), 40) << to;
        EXPECT_TRUE(rpc::async(agent(0), to, kIsConfirmed, a).wait().value()) << to;
      }
    }
  }
  expect_nothing_left();
}

TEST_P(References, come_back_as_results) {
  start(3);
  {
    const auto third = rpc::async(agent(0), "worker1", kMakeOn, std::string("worker2"), 8).wait();
    ASSERT_TRUE(third);
    EXPECT_EQ(third->owner()->name(), "worker2");
    EXPECT_EQ(third->to_here().value(), 8);
    const auto own = rpc::async(agent(0), "worker1", kMakeOn, std::string("worker0"), 9).wait();
    ASSERT_TRUE(own);
    EXPECT_TRUE(own->is_owner());
    EXPECT_EQ(*own->local_value().value(), 9);
    const auto many = rpc::async(agent(0), "worker1", kMakeMany, 20).wait();
    ASSERT_TRUE(many);
    for (std::size_t i = 0; i < many->size(); ++i) {
      EXPECT_EQ((*many)[i].to_here().value(), static_cast<Number>(i));
    }
    const auto same = rpc::async(agent(0), "worker2", kSame, *third).wait();
    ASSERT_TRUE(same);
    EXPECT_EQ(same->to_here().value(), 8);
  }
  expect_nothing_left();
}

TEST_P(References, to_references_are_fetched_level_by_level) {
  start(3);
  {
    const auto outer = rpc::remote(agent(0), "worker1", kMakeOn, std::string("worker2"), 11);
    ASSERT_TRUE(outer);
    const auto inner = outer->to_here();
    ASSERT_TRUE(inner) << inner.error().message;
    EXPECT_EQ(inner->to_here().value(), 11);
  }
  expect_nothing_left();
}

TEST_P(References, of_many_threads_at_once_leave_nothing) {
  start(3);
  {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this, t] {
        for (Number i = 0; i < 50; ++i) {
          const auto a = rpc::remote(agent(t % 3), "worker1", kAdd, i, 1);
          const auto b = rpc::remote(agent(t % 3), "worker2", kAdd, i, 2);
          ASSERT_TRUE(a && b);
          const auto to = "worker" + std::to_string(i % 3);
          const auto sum = rpc::async(agent(t % 3), to, kSum, *a, *b).wait();
          ASSERT_TRUE(sum) << sum.error().message;
          EXPECT_EQ(*sum, 2 * i + 3);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  expect_nothing_left();
}

// ---- methods ------------------------------------------------------------------------------------

TEST_P(References, to_objects_that_are_never_sent_have_their_methods_called_on_the_owner) {
  start(2);
  for (const char* const where : {"worker1", "worker0"}) {
    const auto counter = rpc::remote(agent(0), where, kMakeCounter, 10);
    ASSERT_TRUE(counter);
    EXPECT_EQ(counter->call(kCounterAdd, 1).value(), 11);
    EXPECT_EQ(counter->async(kCounterAdd, 1).wait().value(), 12);
    EXPECT_EQ(counter->remote(kCounterAdd, 1)->to_here().value(), 13);
    EXPECT_EQ(counter->within(5s).call(kCounterGet).value(), 13);
  }
}

// S103
TEST_P(References, whose_methods_take_longer_than_they_may_time_out_by_all_three_forms) {
  start(2);
  {
    const auto counter = rpc::remote(agent(0), "worker1", kMakeCounter, 10);
    ASSERT_TRUE(counter->creation()->wait());
    expect_methods_to_time_out(*counter, kCounterGated);
    gate_.set_value(1);
    EXPECT_EQ(counter->call(kCounterGated).value(), 11);
  }
  expect_nothing_left();
}

// S104
TEST_P(References, whose_values_are_not_made_yet_let_methods_time_out_by_all_three_forms) {
  start(2);
  {
    const auto counter = rpc::remote(agent(0), "worker1", kMakeCounterLater, 10);
    ASSERT_TRUE(counter);
    expect_methods_to_time_out(*counter, kCounterGet);
    gate_.set_value(1);
    EXPECT_EQ(counter->call(kCounterGet).value(), 11);
  }
  expect_nothing_left();
}

// S187
TEST_P(References, to_tensors_on_unmapped_devices_are_refused_or_not_fetched_and_hold_no_threads) {
  start(2);
  for (int time = 0; time < 4 + 5; ++time) {  // there are 4 threads
    for (const char* const to : {"worker1", "worker0"}) {
      const auto sent = rpc::remote(agent(0), to, kEcho, FakeDevices::counting(rpc::cuda(0), 3));
      ASSERT_FALSE(sent);
      EXPECT_EQ(sent.error().kind, rpc::CallErrorKind::Rejected);
      EXPECT_NE(sent.error().message.find(
                    std::string("Request device mapping is not available for destination ") + to),
                std::string::npos)
          << sent.error().message;
    }
    const auto made = rpc::remote(agent(0), "worker1", kMakeTensor, 0);
    ASSERT_TRUE(made);
    const auto fetched = made->to_here();
    ASSERT_FALSE(fetched);
    EXPECT_EQ(fetched.error().kind, rpc::CallErrorKind::Remote);
    EXPECT_NE(fetched.error().message.find("Response device mapping is not available"),
              std::string::npos)
        << fetched.error().message;
    EXPECT_EQ(rpc::async(agent(0), "worker1", kAdd, 1, 2).wait().value(), 3);
  }
  expect_nothing_left();
}

TEST_P(References, a_plain_call_of_a_function_that_makes_an_object_says_how_to_call_it) {
  start(2);
  // Another program may think that the object can be sent.
  const Procedure<Number(Number)> wrong("counter");
  const auto outcome = rpc::async(agent(0), "worker1", wrong, 1).wait();
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().message.find("counter"), std::string::npos);
}

// ---- workers that go ----------------------------------------------------------------------------

void References::expect_released_with_their_holder() {
  const auto local = rpc::make_rref(agent(0), Number{5});
  ASSERT_TRUE(rpc::async(agent(0), "worker1", kSame, *local).wait());
  {
    // As a program that ends without a thought for what it holds.
    const auto held = rpc::async(agent(1), "worker0", kMakeMany, 10).wait();
    ASSERT_TRUE(held);
    expect_owners_and_forks(0, 10, 10);
    workers_[1]->stop();
    expect_owners_and_forks(0, 0, 0);
  }
  EXPECT_EQ(*local->local_value().value(), 5);
}

void References::expect_failed_with_their_owner() {
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_EQ(made->to_here().value(), 3);
  const auto gated = rpc::remote(agent(0), "worker1", kGated);
  ASSERT_TRUE(gated);
  const auto waiting = gated->to_here_async();
  gate_.set_value(1);
  workers_[1]->stop();
  // Either it was answered before the end, or it says who is gone.
  if (const auto& outcome = waiting.wait(); !outcome) {
    const std::string& text = outcome.error().message;
    EXPECT_TRUE(text.find("worker1") != std::string::npos ||
                text.find("Error on Node 1") != std::string::npos)
        << text;
  }
  std::string text;
  for (int i = 0; i < 10'000 && text.find("is lost") == std::string::npos; ++i) {
    const auto value = made->to_here();
    ASSERT_FALSE(value) << "its owner is gone";
    text = value.error().message;
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_NE(text.find("worker1"), std::string::npos) << text;
  const auto passed = rpc::async(agent(0), "worker2", kRead, *made).wait();
  ASSERT_FALSE(passed);
  EXPECT_NE(passed.error().message.find("worker1"), std::string::npos) << passed.error().message;
  expect_owners_and_forks(0, 0, 0);
}

TEST_P(References, that_a_worker_held_when_it_left_are_released) {
  start(3, false);
  expect_released_with_their_holder();
}

TEST_P(References, that_a_worker_of_a_static_group_held_when_it_died_are_released) {
  start(3);
  expect_released_with_their_holder();
}

TEST_P(References, of_a_worker_that_left_fail_with_its_name_and_at_once) {
  start(3, false);
  expect_failed_with_their_owner();
}

TEST_P(References, of_a_worker_of_a_static_group_that_died_fail_with_its_name_and_at_once) {
  start(3);
  expect_failed_with_their_owner();
}

// ---- the end ------------------------------------------------------------------------------------

TEST_P(References, are_ended_by_the_clean_up_though_programs_still_hold_them) {
  start(2);
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  const auto local = rpc::make_rref(agent(0), Number{5});
  ASSERT_TRUE(rpc::async(agent(0), "worker1", kKeep, *local).wait());
  ASSERT_EQ(made->to_here().value(), 3);
  auto other = std::async(std::launch::async, [this] { keeper(1).clean_up(20s); });
  keeper(0).clean_up(20s);
  other.get();
  expect_nothing_left();
  const auto value = made->to_here();
  ASSERT_FALSE(value);
  EXPECT_NE(
      value.error().message.find("has been deleted. Cannot call to_here() on it after deletion."),
      std::string::npos)
      << value.error().message;
  const auto passed = rpc::async(agent(0), "worker1", kRead, *made).wait();
  ASSERT_FALSE(passed);
  EXPECT_NE(passed.error().message.find("Cannot call fork an UserRRef after deletion."),
            std::string::npos)
      << passed.error().message;
}

TEST_P(References, that_others_still_hold_are_named_at_the_end) {
  start(2);
  const auto local = rpc::make_rref(agent(0), Number{5});
  ASSERT_TRUE(rpc::async(agent(0), "worker1", kKeep, *local).wait());
  workers_[0]->stop();
  EXPECT_EQ(workers_[0]->leaks,
            "Leaking RRef GloballyUniqueId(created_on=0, local_id=0) with fork Id "
            "GloballyUniqueId(created_on=0, local_id=1)\n");
}

TEST_P(References, outlive_the_agent_and_only_say_that_it_has_ended) {
  start(2);
  const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
  ASSERT_EQ(made->to_here().value(), 3);
  workers_.clear();
  const auto value = made->to_here();
  ASSERT_FALSE(value);
  EXPECT_NE(value.error().message.find("RPC has not been initialized"), std::string::npos);
  EXPECT_FALSE(made->owner());
}

TEST_P(References, are_released_though_all_threads_of_the_owner_are_busy) {
  start(2);
  std::vector<rpc::Future<Number>> busy;
  {
    const auto made = rpc::remote(agent(0), "worker1", kAdd, 1, 2);
    ASSERT_EQ(made->to_here().value(), 3);
    expect_owners_and_forks(1, 1, 1);
    for (int i = 0; i < 8; ++i) busy.push_back(rpc::async(agent(0), "worker1", kGated));
    for (int i = 0; i < 10'000 && workers_[1]->server->idle_count() > 0; ++i) {
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_EQ(workers_[1]->server->idle_count(), 0U);
  }
  expect_owners_and_forks(1, 0, 0);
  gate_.set_value(1);
  for (const auto& one : busy) EXPECT_TRUE(one.wait());
}

}  // namespace
}  // namespace muster::rref
