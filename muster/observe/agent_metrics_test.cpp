#include "muster/observe/agent_metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;

class Metrics : public testing::Test {
 protected:
  Metrics() {
    points_.set_handler([this](const DataPoint& point) { lines_.push_back(console_line(point)); });
  }
  bool has(const std::string& line) {
    return ("\n" + registry_.text()).find("\n" + line + "\n") != std::string::npos;
  }

  Registry registry_;
  DataPoints points_{registry_, [] { return 1'700'000'000'250'000'000; }};
  std::vector<std::string> lines_;
  AgentMetrics agent_{registry_, points_, "trainer", 3};
};

TEST_F(Metrics, OfTheGroupKeepTheirNamesAndTheConsoleForm) {
  agent_.group_is(GroupState::Healthy, 3);
  EXPECT_EQ(lines_, (std::vector<std::string>{
                        "[1700000000.25][torchelastic]: workers.trainer.remaining_restarts=3",
                        "[1700000000.25][torchelastic]: workers.trainer.healthy=1"}));
  EXPECT_TRUE(has("muster_torchelastic{name=\"workers.trainer.remaining_restarts\"} 3"));
  EXPECT_TRUE(has("muster_torchelastic{name=\"workers.trainer.healthy\"} 1"));
  EXPECT_TRUE(has("muster_group_state{role=\"trainer\",state=\"healthy\"} 1"));
  EXPECT_TRUE(has("muster_group_state{role=\"trainer\",state=\"failed\"} 0"));
  EXPECT_TRUE(has("muster_remaining_restarts{role=\"trainer\"} 3"));
}

TEST_F(Metrics, ShowOneStateOnly) {
  agent_.group_is(GroupState::Healthy, 3);
  agent_.group_is(GroupState::Failed, 2);
  EXPECT_TRUE(has("muster_torchelastic{name=\"workers.trainer.healthy\"} 0"));
  EXPECT_TRUE(has("muster_torchelastic{name=\"workers.trainer.failed\"} 1"));
  // A handler hears only of what is.
  EXPECT_EQ(lines_.back(), "[1700000000.25][torchelastic]: workers.trainer.failed=1");
}

TEST_F(Metrics, OfAPhaseHaveOutcomeAndDuration) {
  agent_.timed(Phase::Rendezvous, 1500ms, true);
  agent_.timed(Phase::StopWorkers, 2ms, false);
  EXPECT_EQ(lines_,
            (std::vector<std::string>{
                "[1700000000.25][torchelastic]: SimpleElasticAgent._rendezvous.success=1",
                "[1700000000.25][torchelastic]: SimpleElasticAgent._rendezvous.duration.ms=1500",
                "[1700000000.25][torchelastic]: LocalElasticAgent._stop_workers.failure=1",
                "[1700000000.25][torchelastic]: LocalElasticAgent._stop_workers.duration.ms=2"}));
  EXPECT_TRUE(has("muster_phase_duration_seconds_sum{phase=\"rendezvous\",role=\"trainer\"} 1.5"));
}

TEST_F(Metrics, OfTheEndHaveExactlyOneOutcome) {
  agent_.run_ended(false, 1);
  const std::string prefix = "[1700000000.25][torchelastic]: workers.trainer.";
  EXPECT_EQ(lines_, (std::vector<std::string>{
                        prefix + "flakiness=50", prefix + "run_total=1",
                        prefix + "run_success_with_retries=1", prefix + "run_success_no_retries=0",
                        prefix + "run_failed_with_retries=0", prefix + "run_failed_no_retries=0"}));
  lines_.clear();
  agent_.run_ended(true, 3);
  EXPECT_EQ(lines_.front(), prefix + "flakiness=100");
  EXPECT_EQ(lines_.back(), prefix + "run_failed_no_retries=1");
}

TEST_F(Metrics, CountRoundsRestartsExitsAndExpiries) {
  agent_.round_began(7);
  agent_.round_ended(90s);
  agent_.restarted("failure");
  agent_.worker_exited(0);
  agent_.worker_exited(3);
  agent_.worker_exited(-9);
  agent_.watchdog_expired("timer");
  agent_.log_totals("stdout", 100, 4);
  agent_.log_totals("stdout", 150, 6);
  agent_.workers_are({.running = 4, .failed = 1});

  EXPECT_TRUE(has("muster_round{role=\"trainer\"} 7"));
  EXPECT_TRUE(has("muster_rounds_total{role=\"trainer\"} 1"));
  EXPECT_TRUE(has("muster_round_duration_seconds_bucket{role=\"trainer\",le=\"60\"} 0"));
  EXPECT_TRUE(has("muster_round_duration_seconds_bucket{role=\"trainer\",le=\"300\"} 1"));
  EXPECT_TRUE(has("muster_restarts_total{cause=\"failure\",role=\"trainer\"} 1"));
  EXPECT_TRUE(has("muster_restarts_total{cause=\"arrival\",role=\"trainer\"} 0"));
  for (const char* outcome : {"success", "error", "signal"}) {
    EXPECT_TRUE(has("muster_worker_exits_total{outcome=\"" + std::string(outcome) +
                    "\",role=\"trainer\"} 1"));
  }
  EXPECT_TRUE(has("muster_watchdog_expiries_total{kind=\"timer\",role=\"trainer\"} 1"));
  EXPECT_TRUE(has("muster_log_bytes_total{role=\"trainer\",stream=\"stdout\"} 150"));
  EXPECT_TRUE(has("muster_log_lines_total{role=\"trainer\",stream=\"stdout\"} 6"));
  EXPECT_TRUE(has("muster_workers{role=\"trainer\",state=\"running\"} 4"));
  EXPECT_TRUE(has("muster_workers{role=\"trainer\",state=\"stopped\"} 0"));
}

TEST_F(Metrics, CountEvents) {
  EventLog events;
  agent_.count_events(events);
  events.record(Event{});
  events.record(RendezvousRecord{});
  EXPECT_TRUE(has("muster_events_total 2"));
  EXPECT_TRUE(has("muster_events_lost_total 0"));
}

TEST_F(Metrics, OfTheProcessAreThere) {
  add_process_metrics(registry_);
  registry_.text();
  EXPECT_GT(registry_.gauge("process_resident_memory_bytes", "").value(), 100'000);
  EXPECT_GE(registry_.gauge("process_threads", "").value(), 1);
  EXPECT_GE(registry_.gauge("process_open_fds", "").value(), 3);
  EXPECT_GT(registry_.gauge("process_max_fds", "").value(), 0);
  EXPECT_GT(registry_.gauge("process_start_time_seconds", "").value(), 1.6e9);
}

TEST(Flakiness, IsTheShareOfTheBudgetThatWasUsedRoundedDown) {
  EXPECT_EQ(flakiness(true, 3, 3), 100);
  EXPECT_EQ(flakiness(false, 3, 3), 0);
  EXPECT_EQ(flakiness(false, 0, 3), 75);
  EXPECT_EQ(flakiness(false, 1, 2), 33);
  EXPECT_EQ(flakiness(false, 0, 2), 66);
  EXPECT_EQ(flakiness(false, 0, 0), 0);
}

}  // namespace
}  // namespace muster::observe
