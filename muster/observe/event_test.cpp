#include "muster/observe/event.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;

const JobFacts kJob = {"run-7", "trainer", "node-1.example.org", "c10d", "train.py"};
const AgentFacts kAgent = {
    .group_rank = 1, .group_world_size = 2, .run_time = 12900ms, .restarts_used = 1};
const WorkerFacts kWorker = {.global_rank = 3,
                             .local_rank = 1,
                             .role_rank = 3,
                             .role_world_size = 4,
                             .pid = 4711,
                             .exit_code = -9};

boost::json::value parse(const std::string& text) {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(text, error);
  EXPECT_FALSE(error) << error.message() << " in " << text;
  return value;
}

TEST(Event, IsOneLineWithTheKnownKeysInTheKnownOrder) {
  EventDetails details;
  details.duration = 1500us;
  details.timestamp_ms = 1700000000123;
  const Event event = agent_event(kJob, kAgent, EventState::Rendezvous, details);

  EXPECT_EQ(to_json(event),
            R"({"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", )"
            R"("timestamp": 1700000000123, "metadata": {"run_id": "run-7", "global_rank": null, )"
            R"("group_rank": 1, "worker_id": null, "role": "trainer", )"
            R"("hostname": "node-1.example.org", "state": "RENDEZVOUS", "total_run_time": 12, )"
            R"("rdzv_backend": "c10d", "raw_error": null, "metadata": )"
            R"("{\"group_world_size\": 2, \"entry_point\": \"train.py\"}", )"
            R"("agent_restarts": 1, "duration_ms": 1.5}})");
}

TEST(Event, OfAWorkerHasItsValuesInArraysInsideOfTheInnerText) {
  EventDetails details;
  details.raw_error = R"({"message": "no"})";
  const Event event = worker_event(kJob, kAgent, kWorker, EventState::Failed, details);

  EXPECT_EQ(event.name, "torchelastic.worker.status.FAILED");
  const boost::json::value json = parse(to_json(event));
  EXPECT_EQ(json.at("source").as_string(), "WORKER");
  const boost::json::value& metadata = json.at("metadata");
  EXPECT_EQ(metadata.at("global_rank").as_int64(), 3);
  EXPECT_EQ(metadata.at("worker_id").as_string(), "4711");
  EXPECT_EQ(metadata.at("raw_error").as_string(), R"({"message": "no"})");
  EXPECT_TRUE(metadata.at("duration_ms").is_null());
  EXPECT_EQ(
      metadata.at("metadata").as_string(),
      R"({"group_world_size": 2, "entry_point": "train.py", "local_rank": [1], )"
      R"("role_rank": [3], "role_world_size": [4], "exit_code": [-9], "worker_pid": [4711]})");
}

TEST(Event, HasNullForWhatIsNotKnownYet) {
  WorkerFacts worker;
  worker.local_rank = 2;
  const Event event = worker_event(kJob, AgentFacts{}, worker, EventState::Start, EventDetails{});
  const boost::json::value metadata = parse(to_json(event)).at("metadata");
  for (const char* key : {"global_rank", "group_rank", "worker_id", "raw_error"}) {
    EXPECT_TRUE(metadata.at(key).is_null()) << key;
  }
  EXPECT_EQ(metadata.at("metadata").as_string(),
            R"({"group_world_size": null, "entry_point": "train.py", "local_rank": [2], )"
            R"("role_rank": [null], "role_world_size": [null], "exit_code": [null], )"
            R"("worker_pid": [null]})");
}

TEST(Event, OfMusterHasAPrefixAndItsOwnMetadataBehindTheKnown) {
  EventDetails details;
  details.more = {{"round", std::int64_t{4}}, {"collateral", true}, {"cause", std::string("x")}};
  const Event event = muster_event("worker.failed", kJob, kAgent, kWorker, "FAILED", details);

  EXPECT_EQ(event.name, "muster.worker.failed");
  EXPECT_EQ(event.source, EventSource::Worker);
  ASSERT_EQ(event.metadata.size(), 16U);
  EXPECT_EQ(event.metadata[12].key, "duration_ms");
  EXPECT_EQ(event.metadata[13], (EventField{"round", std::int64_t{4}}));
  EXPECT_EQ(muster_event("round.began", kJob, kAgent, {}, "HEALTHY", {}).source,
            EventSource::Agent);
}

TEST(Event, OfTheWatchdogIsNamedAfterItsMomentAndHasTheTimerAsText) {
  const WatchdogTimer timer = {
      .worker_pid = 4711, .scope_id = "a.py#3", .expiration_time = 1700000000.5, .signal = 9};
  const Event event = watchdog_event(kJob, kAgent, WatchdogMoment::TimerExpired, timer);

  EXPECT_EQ(event.name, "timer expired");
  EXPECT_EQ(event.source, EventSource::Agent);
  const boost::json::value metadata = parse(to_json(event)).at("metadata");
  EXPECT_EQ(metadata.at("state").as_string(), "RUNNING");
  EXPECT_FALSE(metadata.as_object().contains("duration_ms"));
  EXPECT_EQ(metadata.at("metadata").as_string(),
            R"({"watchdog_event": "timer expired", "worker_pid": "4711", "scope_id": "a.py#3", )"
            R"("expiration_time": "1700000000.5", "signal": "9"})");
}

TEST(Event, OfTheWatchdogWithoutATimerHasOnlyItsMoment) {
  const Event event = watchdog_event(kJob, kAgent, WatchdogMoment::Started, {});
  const boost::json::value metadata = parse(to_json(event)).at("metadata");
  EXPECT_EQ(metadata.at("metadata").as_string(), R"({"watchdog_event": "watchdog started"})");
  EXPECT_EQ(name_of(WatchdogMoment::KillWorker), "kill worker process");
  EXPECT_EQ(name_of(WatchdogMoment::Stopped), "watchdog stopped");
}

TEST(RendezvousRecord, IsFlat) {
  RendezvousRecord record;
  record.name = "next_rendezvous";
  record.run_id = "run-7";
  record.message = "joined";
  record.hostname = "node-1";
  record.pid = 12;
  record.node_state = "RUNNING";
  record.master_endpoint = "node-0:29400";
  record.local_id = 0;
  record.timestamp_ms = 5;
  EXPECT_EQ(to_json(record),
            R"({"name": "next_rendezvous", "run_id": "run-7", "message": "joined", )"
            R"("hostname": "node-1", "pid": 12, "node_state": "RUNNING", )"
            R"("master_endpoint": "node-0:29400", "rank": null, "local_id": 0, )"
            R"("error_trace": "", "timestamp": 5})");
}

}  // namespace
}  // namespace muster::observe
