#include "muster/observe/health.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;

HealthFacts facts(GroupState state, Duration age) {
  HealthFacts made;
  made.state = state;
  made.progress_age = age;
  return made;
}

TEST(Health, IsGoodUpToTheTimeoutAndBadBeyond) {
  EXPECT_EQ(judge(facts(GroupState::Healthy, 60s)).status, 200);
  EXPECT_EQ(judge(facts(GroupState::Healthy, 60s + 1ns)).status, 503);
  HealthFacts patient = facts(GroupState::Healthy, 1h);
  patient.timeout = -1s;
  EXPECT_EQ(judge(patient).status, 200);
}

TEST(Health, IsAboutTheAgentAndNotAboutTheWorkersOutcome) {
  for (const GroupState state : {GroupState::Init, GroupState::Healthy, GroupState::Stopped,
                                 GroupState::Succeeded, GroupState::Failed}) {
    EXPECT_EQ(judge(facts(state, 1s)).status, 200) << name_of(state);
  }
  EXPECT_EQ(judge(facts(GroupState::Unhealthy, 0s)).status, 503);
  EXPECT_EQ(judge(facts(GroupState::Unknown, 0s)).status, 503);
}

TEST(Health, SaysWhatItKnows) {
  HealthFacts good = facts(GroupState::Healthy, 1500ms);
  good.round = 3;
  good.phase = "running";
  EXPECT_EQ(judge(good).body,
            "{\"healthy\": true, \"state\": \"HEALTHY\", \"phase\": \"running\", \"round\": 3, "
            "\"last_progress_age_seconds\": 1.5, \"timeout_seconds\": 60.0}\n");
  EXPECT_EQ(judge(facts(GroupState::Init, 90s)).body,
            "{\"healthy\": false, \"state\": \"INIT\", \"round\": null, "
            "\"last_progress_age_seconds\": 90.0, \"timeout_seconds\": 60.0, "
            "\"reason\": \"no progress for 90s\"}\n");
  EXPECT_NE(judge(facts(GroupState::Unhealthy, 0s)).body.find("the worker group is unhealthy"),
            std::string::npos);
}

}  // namespace
}  // namespace muster::observe
