#include "muster/rpc/call_table.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using Answer = CallTable::Answer;
using Calls = std::vector<EndedCall>;

TimePoint at(Duration time) { return TimePoint(1h) + time; }

constexpr PeerId kPeer = 1;
constexpr PeerId kOther = 2;

NewCall call(PeerId peer, TimePoint deadline = kNever, std::uint64_t token = 0) {
  return {.peer = peer, .deadline = deadline, .token = token};
}

TEST(CallTable, NumbersCallsFromZeroWhateverTheirPeer) {
  CallTable table;
  EXPECT_EQ(table.add(call(kPeer)).value(), 0);
  EXPECT_EQ(table.add(call(kOther)).value(), 1);
  EXPECT_EQ(table.add(call(kPeer)).value(), 2);
  EXPECT_EQ(table.next_id(), 3);
}

TEST(CallTable, NeverUsesANumberAgain) {
  CallTable table;
  for (CallId id = 0; id < 1000; ++id) {
    EXPECT_EQ(table.add(call(kPeer, at(1s))).value(), id);
    EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Live);
  }
  std::ignore = table.clear();
  EXPECT_EQ(table.add(call(kPeer)).value(), 1000);
}

TEST(CallTable, HandsTheTokenToTheResponse) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 77)).value();
  const auto response = table.responded(id, kPeer);
  EXPECT_EQ(response.answer, Answer::Live);
  EXPECT_EQ(response.token, 77u);
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(table.late_count(), 0u);
}

TEST(CallTable, DoesNotKnowANumberThatWasNeverGiven) {
  CallTable table;
  EXPECT_EQ(table.responded(0, kPeer).answer, Answer::Unknown);
  table.add(call(kPeer)).value();
  for (const CallId id : {CallId{1}, CallId{-1}, CallId{-2}, std::numeric_limits<CallId>::max(),
                          std::numeric_limits<CallId>::min()}) {
    EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Unknown) << id;
  }
  EXPECT_EQ(table.live_count(), 1u);
}

TEST(CallTable, DoesNotKnowACallThatWasAnsweredBefore) {
  CallTable table;
  const CallId id = table.add(call(kPeer)).value();
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Live);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Unknown);
}

TEST(CallTable, DoesNotLetOnePeerAnswerForAnother) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 5)).value();
  EXPECT_EQ(table.responded(id, kOther).answer, Answer::Unknown);
  EXPECT_EQ(table.responded(id, kPeer).token, 5u);
}

TEST(CallTable, DropsALateResponseOnceAndThenDoesNotKnowIt) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 5)).value();
  EXPECT_EQ(table.due(at(1s)), (Calls{{id, 5}}));
  EXPECT_EQ(table.late_count(), 1u);
  const auto late = table.responded(id, kPeer);
  EXPECT_EQ(late.answer, Answer::Late);
  EXPECT_EQ(late.token, 0u);
  EXPECT_EQ(table.late_count(), 0u);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Unknown);
}

TEST(CallTable, DoesNotLetAnotherPeerAnswerALateCall) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s))).value();
  std::ignore = table.due(at(1s));
  EXPECT_EQ(table.responded(id, kOther).answer, Answer::Unknown);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Late);
}

TEST(CallTable, TimesOutAtTheDeadlineAndNotBefore) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 9)).value();
  EXPECT_EQ(table.next_deadline(), at(1s));
  EXPECT_TRUE(table.due(at(1s) - 1ns).empty());
  EXPECT_EQ(table.due(at(1s)), (Calls{{id, 9}}));
  EXPECT_TRUE(table.due(at(1h)).empty());
  EXPECT_EQ(table.next_deadline(), kNever);
}

TEST(CallTable, TimesOutTheEarliestFirstAndTheOldestAmongEquals) {
  CallTable table;
  const CallId last = table.add(call(kPeer, at(3s))).value();
  const CallId first = table.add(call(kOther, at(1s))).value();
  const CallId second = table.add(call(kPeer, at(2s))).value();
  const CallId third = table.add(call(kPeer, at(2s))).value();
  EXPECT_EQ(table.due(at(9s)), (Calls{{first, 0}, {second, 0}, {third, 0}, {last, 0}}));
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(table.late_count(), 4u);
}

TEST(CallTable, NeverTimesOutACallWithoutADeadline) {
  CallTable table;
  const CallId id = table.add(call(kPeer)).value();
  EXPECT_EQ(table.next_deadline(), kNever);
  EXPECT_TRUE(table.due(kNever).empty());
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Live);
}

TEST(CallTable, DoesNotTimeOutACallThatWasAnswered) {
  CallTable table;
  const CallId answered = table.add(call(kPeer, at(1s))).value();
  const CallId open = table.add(call(kPeer, at(2s))).value();
  std::ignore = table.responded(answered, kPeer);
  EXPECT_EQ(table.next_deadline(), at(2s));
  EXPECT_EQ(table.due(at(5s)), (Calls{{open, 0}}));
}

TEST(CallTable, FailsTheCallsOfALostConnectionOldestFirst) {
  CallTable table;
  Calls expected;
  for (std::uint64_t token = 0; token < 100; ++token) {
    const PeerId peer = token % 2 == 0 ? kPeer : kOther;
    const CallId id = table.add(call(peer, at(1s), token)).value();
    if (peer == kPeer) expected.push_back({id, token});
  }
  EXPECT_EQ(table.lost(kPeer), expected);
  EXPECT_EQ(table.live_count(), 50u);
  EXPECT_TRUE(table.lost(kPeer).empty());
  EXPECT_EQ(table.due(at(1s)).size(), 50u);
}

TEST(CallTable, ForgetsLateCallsWithTheirConnection) {
  CallTable table;
  const CallId late = table.add(call(kPeer, at(1s))).value();
  const CallId late_elsewhere = table.add(call(kOther, at(1s))).value();
  std::ignore = table.due(at(1s));
  EXPECT_TRUE(table.lost(kPeer).empty());
  EXPECT_EQ(table.late_count(), 1u);
  EXPECT_EQ(table.responded(late, kPeer).answer, Answer::Unknown);
  EXPECT_EQ(table.responded(late_elsewhere, kOther).answer, Answer::Late);
}

TEST(CallTable, DoesNotKnowTheCallsOfALostConnection) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s))).value();
  std::ignore = table.lost(kPeer);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Unknown);
  EXPECT_TRUE(table.due(at(2s)).empty());
  EXPECT_EQ(table.next_deadline(), kNever);
}

TEST(CallTable, TakesBackACallThatWasNotSent) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 4)).value();
  EXPECT_EQ(table.withdraw(id), 4u);
  EXPECT_EQ(table.withdraw(id), std::nullopt);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Unknown);
  EXPECT_TRUE(table.due(at(1s)).empty());
  EXPECT_EQ(table.withdraw(-1), std::nullopt);
}

TEST(CallTable, DropsTheResponseToACallThatNobodyWaitsForAnyMore) {
  CallTable table;
  const CallId id = table.add(call(kPeer, at(1s), 4)).value();
  EXPECT_EQ(table.abandon(id), 4u);
  EXPECT_EQ(table.abandon(id), std::nullopt);
  EXPECT_EQ(table.withdraw(id), std::nullopt);
  EXPECT_TRUE(table.due(at(1s)).empty());
  EXPECT_EQ(table.late_count(), 1u);
  EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Late);
}

TEST(CallTable, EndsAllCallsWhenTheAgentStops) {
  CallTable table;
  const CallId first = table.add(call(kPeer, at(1s), 1)).value();
  const CallId second = table.add(call(kOther, kNever, 2)).value();
  table.add(call(kPeer, at(0s), 3)).value();
  std::ignore = table.due(at(0s));
  EXPECT_EQ(table.clear(), (Calls{{first, 1}, {second, 2}}));
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(table.late_count(), 0u);
  EXPECT_EQ(table.next_deadline(), kNever);
  EXPECT_EQ(table.responded(first, kPeer).answer, Answer::Unknown);
}

TEST(CallTable, IsBoundedAndCallsWhoseTimeIsOverDoNotCount) {
  CallTable table(3);
  table.add(call(kPeer, at(1s))).value();
  table.add(call(kPeer, at(1s))).value();
  EXPECT_EQ(table.due(at(1s)).size(), 2u);
  CallId live = 0;
  for (int count = 0; count < 3; ++count) live = table.add(call(kPeer)).value();
  const auto one_more = table.add(call(kPeer));
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().kind, ErrorKind::Unavailable);
  // A call that was refused has no number.
  EXPECT_EQ(table.next_id(), live + 1);
  EXPECT_EQ(table.responded(live, kPeer).answer, Answer::Live);
  EXPECT_EQ(table.add(call(kPeer)).value(), live + 1);
}

TEST(CallTable, ForgetsTheOlderHalfOfTheLateCallsWhenThereAreTooMany) {
  CallTable table(100, 4);
  const CallId live = table.add(call(kOther)).value();
  std::vector<CallId> late;
  for (int count = 0; count < 5; ++count) {
    EXPECT_EQ(table.forget_late(), std::vector<CallId>()) << count;
    late.push_back(table.add(call(kPeer, at(1s))).value());
    EXPECT_EQ(table.due(at(1s)).size(), 1u);
  }
  EXPECT_EQ(table.forget_late(), (std::vector<CallId>{late[0], late[1], late[2]}));
  EXPECT_EQ(table.late_count(), 2u);
  EXPECT_EQ(table.live_count(), 1u);
  // Their responses are nobody's fault, though.
  for (const CallId id : late) EXPECT_EQ(table.responded(id, kPeer).answer, Answer::Late) << id;
  EXPECT_EQ(table.responded(late[4], kPeer).answer, Answer::Unknown) << "the second, of a late one";
  EXPECT_EQ(table.responded(live, kPeer).answer, Answer::Unknown) << "another connection's";
  EXPECT_EQ(table.responded(live, kOther).answer, Answer::Live);
  EXPECT_EQ(table.responded(-1, kPeer).answer, Answer::Unknown);
}

TEST(CallTable, FindsOldCallsAmongManyShortOnes) {
  CallTable table;
  std::vector<CallId> old;
  for (std::uint64_t token = 0; token < 500; ++token) {
    old.push_back(table.add(call(kPeer, kNever, token)).value());
  }
  for (int count = 0; count < 200'000; ++count) {
    const CallId id = table.add(call(kOther, at(60s))).value();
    ASSERT_EQ(table.responded(id, kOther).answer, Answer::Live);
  }
  for (std::uint64_t token = 0; token < 500; ++token) {
    EXPECT_EQ(table.responded(old[token], kPeer).token, token);
  }
  EXPECT_EQ(table.live_count(), 0u);
}

TEST(CallTable, DoesNotKeepTheDeadlinesOfCallsThatHaveEnded) {
  CallTable table;
  for (int open = 0; open < 100; ++open) table.add(call(kPeer, at(30s))).value();
  for (int count = 0; count < 100'000; ++count) {
    const CallId id = table.add(call(kPeer, at(60s))).value();
    std::ignore = table.responded(id, kPeer);
    ASSERT_LE(table.deadline_count(), 300u);
  }
  EXPECT_EQ(table.due(at(60s)).size(), 100u);
  EXPECT_EQ(table.deadline_count(), 0u);
}

// The same, said with maps, and checked after every step.
class Model {
 public:
  struct Entry {
    PeerId peer = 0;
    TimePoint deadline;
    std::uint64_t token = 0;
    bool is_live = true;
  };

  Answer responded(CallId id, PeerId peer) {
    const auto found = entries.find(id);
    if (found == entries.end() || found->second.peer != peer) return Answer::Unknown;
    const Answer answer = found->second.is_live ? Answer::Live : Answer::Late;
    entries.erase(found);
    return answer;
  }
  Calls due(TimePoint now) {
    std::map<std::pair<TimePoint, CallId>, std::uint64_t> ended;
    for (auto& [id, entry] : entries) {
      if (!entry.is_live || entry.deadline == kNever || entry.deadline > now) continue;
      entry.is_live = false;
      ended[{entry.deadline, id}] = entry.token;
    }
    Calls calls;
    for (const auto& [key, token] : ended) calls.push_back({key.second, token});
    return calls;
  }
  Calls lost(PeerId peer) {
    Calls calls;
    for (auto entry = entries.begin(); entry != entries.end();) {
      if (entry->second.peer != peer) {
        ++entry;
        continue;
      }
      if (entry->second.is_live) calls.push_back({entry->first, entry->second.token});
      entry = entries.erase(entry);
    }
    return calls;
  }
  std::size_t live_count() const {
    std::size_t count = 0;
    for (const auto& [id, entry] : entries) count += entry.is_live ? 1 : 0;
    return count;
  }
  TimePoint next_deadline() const {
    TimePoint next = kNever;
    for (const auto& [id, entry] : entries) {
      if (entry.is_live) next = std::min(next, entry.deadline);
    }
    return next;
  }

  std::map<CallId, Entry> entries;
};

void run_beside_the_model(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Random random(seed);
  CallTable table;
  Model model;
  TimePoint now = at(0s);
  for (std::uint64_t step = 0; step < 3000; ++step) {
    const std::uint64_t what = random.below(100);
    const PeerId peer = random.below(4);
    if (what < 50) {
      const bool is_timed = random.below(4) != 0;
      const TimePoint deadline = is_timed ? now + 1ms * static_cast<int>(random.below(50)) : kNever;
      const CallId id = table.add(call(peer, deadline, step)).value();
      model.entries[id] = {peer, deadline, step, true};
    } else if (what < 90) {
      const auto id =
          static_cast<CallId>(random.below(static_cast<std::uint64_t>(table.next_id()) + 1));
      const auto known = model.entries.find(id);
      const std::uint64_t token =
          known != model.entries.end() && known->second.is_live ? known->second.token : 0;
      const PeerId from = known != model.entries.end() && what < 85 ? known->second.peer : peer;
      const Answer expected = model.responded(id, from);
      const auto response = table.responded(id, from);
      ASSERT_EQ(response.answer, expected);
      ASSERT_EQ(response.token, expected == Answer::Live ? token : 0);
    } else if (what < 99) {
      now += 1ms * static_cast<int>(random.below(10));
      ASSERT_EQ(table.next_deadline(), model.next_deadline());
      ASSERT_EQ(table.due(now), model.due(now));
    } else {
      ASSERT_EQ(table.lost(peer), model.lost(peer));
    }
    ASSERT_EQ(table.live_count(), model.live_count());
    ASSERT_EQ(table.live_count() + table.late_count(), model.entries.size());
  }
}

TEST(CallTable, DoesWhatAPlainMapWouldDo) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) run_beside_the_model(seed);
}

// ---- timeouts -----------------------------------------------------------------------------------

std::optional<Duration> timeout(std::optional<double> seconds, Duration by_default = 60s) {
  return call_timeout(seconds, by_default).value();
}

TEST(CallTimeout, IsTheDefaultWhenNoneIsGiven) {
  EXPECT_EQ(timeout(std::nullopt), 60s);
  EXPECT_EQ(timeout(-1), 60s);
  EXPECT_EQ(timeout(std::nullopt, 1ms), 1ms);
}

TEST(CallTimeout, IsForEverWhenItIsZero) {
  EXPECT_EQ(timeout(0), std::nullopt);
  EXPECT_EQ(timeout(-0.0), std::nullopt);
  EXPECT_EQ(timeout(std::nullopt, 0s), std::nullopt);
  EXPECT_EQ(timeout(-1, 0s), std::nullopt);
}

TEST(CallTimeout, IsRoundedDownToWholeMilliseconds) {
  EXPECT_EQ(timeout(5), 5s);
  EXPECT_EQ(timeout(0.1), 100ms);
  EXPECT_EQ(timeout(0.0019), 1ms);
  EXPECT_EQ(timeout(1.9999), 1999ms);
  // Both are a little less than they say in binary.
  EXPECT_EQ(timeout(1.001), 1001ms);
  EXPECT_EQ(timeout(0.57), 570ms);
}

TEST(CallTimeout, IsAtLeastAMillisecondHoweverShortItIs) {
  EXPECT_EQ(timeout(0.001), 1ms);
  EXPECT_EQ(timeout(0.0005), 1ms);
  EXPECT_EQ(timeout(1e-30), 1ms);
}

TEST(CallTimeout, IsForEverWhenItIsLongerThanTimeCanBeCounted) {
  EXPECT_EQ(timeout(9e9), Duration(std::chrono::seconds(9'000'000'000)));
  EXPECT_EQ(timeout(9.1e9), std::nullopt);
  EXPECT_EQ(timeout(std::numeric_limits<double>::infinity()), std::nullopt);
}

TEST(CallTimeout, IsRefusedWhenItIsNegativeOrNoNumber) {
  for (const double seconds : {-5.0, -0.5, -1.0001, -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    const auto refused = call_timeout(seconds, 60s);
    ASSERT_FALSE(refused) << seconds;
    EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  }
}

TEST(DefaultTimeout, FollowsTheSameRulesExceptThatItCannotBeUnset) {
  EXPECT_EQ(default_timeout(60).value(), 60s);
  EXPECT_EQ(default_timeout(0.5).value(), 500ms);
  EXPECT_EQ(default_timeout(0.0001).value(), 1ms);
  EXPECT_EQ(default_timeout(0).value(), 0s);
  for (const double seconds : {-1.0, -5.0, std::numeric_limits<double>::quiet_NaN()}) {
    const auto refused = default_timeout(seconds);
    ASSERT_FALSE(refused) << seconds;
    EXPECT_NE(refused.error().message.find("RPC Timeout must be non-negative"), std::string::npos);
  }
}

}  // namespace
}  // namespace muster::rpc
