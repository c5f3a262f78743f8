// The agent that programs mean when they name none.
#include "muster/rpc/agent.h"
#include "muster/rpc/texts.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <vector>

namespace muster::rpc {
namespace {

class CurrentAgent : public ::testing::Test {
 protected:
  ~CurrentAgent() override {
    if (current_agent()) (void)clear_current_agent();
  }
  static void expect_refused(const Result<>& outcome, ErrorKind kind, const std::string& text) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, kind);
    EXPECT_EQ(outcome.error().message.find(text), 0U) << outcome.error().message;
  }

  testing::StoreHost store;
  std::vector<std::unique_ptr<testing::Worker>> workers = testing::start_static_group(store, 2);
};

TEST_F(CurrentAgent, IsNoneAtFirst) { EXPECT_EQ(current_agent(), nullptr); }

TEST_F(CurrentAgent, IsTheOneThatWasSetUntilItIsCleared) {
  ASSERT_TRUE(set_current_agent(workers[0]->agent));
  EXPECT_EQ(current_agent(), workers[0]->agent);
  ASSERT_TRUE(clear_current_agent());
  EXPECT_EQ(current_agent(), nullptr);
  ASSERT_TRUE(set_current_agent(workers[1]->agent));
  EXPECT_EQ(current_agent(), workers[1]->agent);
}

TEST_F(CurrentAgent, IsNotReplacedByAnother) {
  ASSERT_TRUE(set_current_agent(workers[0]->agent));
  for (const auto& worker : workers) {
    expect_refused(set_current_agent(worker->agent), ErrorKind::Conflict,
                   "Current RPC agent is set!");
  }
  EXPECT_EQ(current_agent(), workers[0]->agent);
}

TEST_F(CurrentAgent, CannotBeClearedIfThereIsNone) {
  expect_refused(clear_current_agent(), ErrorKind::Invalid, "Current RPC agent is not set!");
  ASSERT_TRUE(set_current_agent(workers[0]->agent));
  ASSERT_TRUE(clear_current_agent());
  expect_refused(clear_current_agent(), ErrorKind::Invalid, "Current RPC agent is not set!");
}

TEST_F(CurrentAgent, IsClearedByNoneThatIsSet) {
  expect_refused(set_current_agent(nullptr), ErrorKind::Invalid, "Current RPC agent is not set!");
  ASSERT_TRUE(set_current_agent(workers[0]->agent));
  EXPECT_TRUE(set_current_agent(nullptr));
  EXPECT_EQ(current_agent(), nullptr);
}

TEST_F(CurrentAgent, IsSetByOneOfManyThatTryAtOnce) {
  std::vector<std::future<bool>> tries;
  for (std::size_t index = 0; index < 8; ++index) {
    tries.push_back(std::async(std::launch::async, [this, index] {
      return set_current_agent(workers[index % 2]->agent).has_value();
    }));
  }
  EXPECT_EQ(std::count_if(tries.begin(), tries.end(), [](auto& one) { return one.get(); }), 1);
}

}  // namespace
}  // namespace muster::rpc
