#include "muster/rpc/calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

constexpr PeerId kConnection = 7;
constexpr TimePoint kDeadline{1s};

// Waits for an answer also when its time is over, as a call does that fetches a value.
class PatientSink final : public CallSink {
 public:
  explicit PatientSink(std::function<void()> destroyed = {}) : destroyed_(std::move(destroyed)) {}
  ~PatientSink() override {
    if (destroyed_) destroyed_();
  }
  void ended(CallResult<Message>, Calls& calls) override { calls.finished(); }
  bool wants_late_answer() const override { return true; }

 private:
  std::function<void()> destroyed_;
};

// The last reference to a value may go with what waited for it. Its end is told with a call.
class LateCall : public ::testing::Test {
 protected:
  CallId start_and_time_out() {
    std::unique_ptr<CallSink> sink = std::make_unique<PatientSink>([this] {
      std::unique_ptr<CallSink> last = std::make_unique<PatientSink>();
      const auto id = calls.start({kConnection + 1}, last);
      ASSERT_TRUE(id);
      calls.withdraw(*id, {});
      ++called_count;
    });
    const auto id = calls.start({kConnection, kDeadline}, sink);
    EXPECT_TRUE(id);
    calls.expire(kDeadline);
    EXPECT_EQ(calls.active_count(), 0);
    EXPECT_EQ(called_count, 0) << "its answer may still come";
    return *id;
  }

  Calls calls{[] {}};
  int called_count = 0;
};

TEST_F(LateCall, MayCallWhenItsConnectionIsLost) {
  start_and_time_out();
  calls.lost(kConnection + 2, {});
  EXPECT_EQ(called_count, 0);
  calls.lost(kConnection, {});
  EXPECT_EQ(called_count, 1);
}

TEST_F(LateCall, MayCallWhenTheAnswerHasCome) {
  const CallId id = start_and_time_out();
  EXPECT_TRUE(calls.responded(kConnection, {MessageType::ScriptRet, id, "", {}}));
  EXPECT_EQ(called_count, 1);
}

TEST_F(LateCall, IsNotKeptWhenItsRequestWasNeverHandedOver) {
  const CallId id = start_and_time_out();
  EXPECT_FALSE(calls.is_wanted(id));
  EXPECT_EQ(called_count, 0);
  calls.forget(id);
  EXPECT_EQ(called_count, 1);
  EXPECT_FALSE(calls.responded(kConnection, {MessageType::ScriptRet, id, "", {}}));
}

TEST(Calls, AreWantedWhileTheyWait) {
  Calls calls([] {});
  std::unique_ptr<CallSink> sink = std::make_unique<PatientSink>();
  const auto id = calls.start({kConnection, kDeadline}, sink);
  ASSERT_TRUE(id);
  EXPECT_TRUE(calls.is_wanted(*id));
  calls.forget(*id);
  EXPECT_TRUE(calls.is_wanted(*id)) << "only what is over is forgotten";
  calls.expire(kDeadline);
  EXPECT_FALSE(calls.is_wanted(*id));
}

}  // namespace
}  // namespace muster::rpc
