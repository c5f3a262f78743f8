#include "muster/rpc/gather_hall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using Ticket = GatherHall::Ticket;

constexpr const char* kSet = "all";

// A leader's hall, and workers that come to it.
class GatherHallTest : public ::testing::Test {
 protected:
  // Comes to `place`; the ticket.
  Ticket come(const std::string& name, const GatherPlace& place, const std::string& value = "") {
    GatherArrival arrival = arrival_at(name, place);
    arrival.value = value;
    return arrive(std::move(arrival));
  }
  // Of a worker that waits for nothing else.
  GatherArrival arrival_at(const std::string& name, const GatherPlace& place) const {
    GatherArrival arrival;
    arrival.set = kSet;
    arrival.name = name;
    arrival.process = members.at(name);
    arrival.place = place;
    arrival.awaits_era = place.era.number;
    arrival.awaits_count = place.count;
    return arrival;
  }
  Ticket arrive(GatherArrival arrival) {
    const Ticket ticket = ++last_ticket;
    auto arrived = hall.arrive(std::move(arrival), ticket);
    take(std::move(arrived.replies));
    if (arrived.needs_look) look();
    return ticket;
  }
  void look() { take(hall.look(kSet, "a", members)); }
  void take(std::vector<GatherHall::Reply> replies) {
    for (auto& reply : replies) {
      EXPECT_TRUE(answers.emplace(reply.ticket, std::move(reply.answer)).second);
    }
  }
  // The era that the leader tells a worker that comes from another one, with that line.
  GatherEra era_for(const std::string& name, std::uint64_t line = 1) {
    const Ticket ticket = come(name, {line, {99, 1}, 0});
    EXPECT_TRUE(is(ticket, GatherVerdict::Again));
    return answers.at(ticket)->era;
  }
  bool is_answered(Ticket ticket) const { return answers.contains(ticket); }
  bool is(Ticket ticket, GatherVerdict verdict) const {
    const auto found = answers.find(ticket);
    return found != answers.end() && found->second && found->second->verdict == verdict;
  }
  const GatherValues& values(Ticket ticket) const { return *answers.at(ticket)->values; }

  GatherHall hall;
  GatherMembers members{{"a", 11}, {"b", 21}, {"c", 31}};
  Ticket last_ticket = 0;
  std::map<Ticket, CallResult<GatherAnswer>> answers;
};

TEST_F(GatherHallTest, AnswersAllWhenTheLastHasCome) {
  const GatherEra era = era_for("a");
  const Ticket a = come("a", {1, era, 0}, "A");
  const Ticket c = come("c", {5, era, 0}, "C");
  EXPECT_FALSE(is_answered(a) || is_answered(c));
  const Ticket b = come("b", {2, era, 0}, "B");
  for (const Ticket ticket : {a, b, c}) {
    ASSERT_TRUE(is(ticket, GatherVerdict::Complete));
    EXPECT_EQ(values(ticket), (GatherValues{{"a", "A"}, {"b", "B"}, {"c", "C"}}));
  }
  EXPECT_EQ(hall.waiting_count(), 0U);
}

TEST_F(GatherHallTest, SaysNothingBeforeTheLeaderHasLooked) {
  const auto arrived = hall.arrive(arrival_at("b", {1, {99, 1}, 0}), 1);
  EXPECT_TRUE(arrived.replies.empty());
  EXPECT_TRUE(arrived.needs_look);
  look();
  EXPECT_TRUE(is(1, GatherVerdict::Again));
}

TEST_F(GatherHallTest, TakesThoseWhoWereToldNoEraAsTheyCount) {
  std::vector<Ticket> tickets;
  for (const char* const name : {"b", "c", "a"}) {
    GatherArrival second = arrival_at(name, {1, {}, 1});
    second.value = "second";
    second.awaits_count = 0;  // by another thread
    tickets.push_back(arrive(std::move(second)));
    tickets.push_back(come(name, {1, {}, 0}, "first"));
  }
  for (std::size_t index = 0; index < tickets.size(); ++index) {
    ASSERT_TRUE(is(tickets[index], GatherVerdict::Complete));
    EXPECT_EQ(values(tickets[index]).at("c"), index % 2 == 0 ? "second" : "first");
  }
  // One that did not hear of the end comes again; and one that has heard is told of the era.
  const GatherEra era = answers.at(tickets[0])->era;
  EXPECT_TRUE(is(come("b", {1, {}, 1}), GatherVerdict::Complete));
  come("a", {1, era, 2});
  come("c", {1, era, 2});
  const Ticket b = come("b", {1, {}, 2});
  EXPECT_TRUE(is(b, GatherVerdict::Complete));
}

TEST_F(GatherHallTest, BeginsANewEraForAllWhenOneWasStartedAgain) {
  const GatherEra era = era_for("a");
  for (std::uint64_t count = 0; count < 3; ++count) {
    for (const char* const name : {"a", "b", "c"}) come(name, {1, era, count});
  }
  const Ticket a = come("a", {1, era, 3});
  const Ticket b = come("b", {1, era, 3});
  members["c"] = 32;
  const Ticket first = come("c", {1, {}, 0});
  ASSERT_TRUE(is(a, GatherVerdict::Again));
  ASSERT_TRUE(is(b, GatherVerdict::Again));
  ASSERT_TRUE(is(first, GatherVerdict::Again));
  const GatherEra next = answers.at(b)->era;
  const Ticket c = come("c", {1, next, 0});
  EXPECT_EQ(answers.at(a)->era, next);
  EXPECT_GT(next.number, era.number);
  come("a", {1, next, 0});
  EXPECT_FALSE(is_answered(c));
  come("b", {1, next, 0});
  EXPECT_TRUE(is(c, GatherVerdict::Complete));
}

// It counts from 0, as its predecessor did, and others may still ask how that ended.
TEST_F(GatherHallTest, DoesNotTellAProcessWhatCameOfItsPredecessorsGather) {
  for (const char* const name : {"a", "b", "c"}) come(name, {1, {}, 0}, "old");
  EXPECT_EQ(hall.outcome_count(kSet), 1U);
  members["c"] = 32;
  EXPECT_TRUE(is(come("c", {1, {}, 0}), GatherVerdict::Again));
  EXPECT_TRUE(is(come("b", {1, {}, 0}), GatherVerdict::Complete)) << "it has not heard of it";
}

// Of a process that died after it had come, and one that takes its place.
TEST_F(GatherHallTest, IsNotCompleteWithAProcessThatIsNotInTheSetAnyMore) {
  const GatherEra era = era_for("a");
  come("b", {1, era, 0});
  come("c", {1, era, 0});
  members["c"] = 32;
  const Ticket a = come("a", {1, era, 0});
  EXPECT_TRUE(is(a, GatherVerdict::Again));
}

TEST_F(GatherHallTest, SendsAwayAProcessThatItDoesNotKnow) {
  const GatherEra era = era_for("a");
  GatherArrival arrival = arrival_at("c", {1, era, 0});
  arrival.process = 99;
  EXPECT_TRUE(is(arrive(arrival), GatherVerdict::Elsewhere));
}

TEST_F(GatherHallTest, SendsAllAwayWhenAnotherOneLeads) {
  const GatherEra era = era_for("a");
  const Ticket a = come("a", {1, era, 0});
  const Ticket b = come("b", {1, era, 0});
  members["Z"] = 1;  // before "a"
  look();
  EXPECT_TRUE(is(a, GatherVerdict::Elsewhere));
  EXPECT_TRUE(is(b, GatherVerdict::Elsewhere));
  members.erase("Z");
  EXPECT_GT(era_for("b").number, era.number) << "others have counted since";
}

TEST_F(GatherHallTest, TellsWhoComesAgainHowItEnded) {
  const GatherEra era = era_for("a");
  for (const char* const name : {"a", "b", "c"}) come(name, {1, era, 0}, name);
  // The next one is over, too, and a new era has begun.
  for (const char* const name : {"a", "c"}) come(name, {1, era, 1}, "x");
  GatherArrival ahead = arrival_at("b", {1, era, 1});
  ahead.awaits_count = 0;  // by another thread, which has not heard yet
  arrive(ahead);
  members["c"] = 32;
  look();
  GatherArrival repeat = ahead;
  repeat.place.count = 0;
  repeat.is_repeat = true;
  const Ticket again = arrive(repeat);
  ASSERT_TRUE(is(again, GatherVerdict::Complete));
  EXPECT_EQ(values(again).at("b"), "b");
}

TEST_F(GatherHallTest, ForgetsAnOutcomeOnceAllHaveHeardOfIt) {
  const GatherEra era = era_for("a");
  for (std::uint64_t count = 0; count < 1000; ++count) {
    for (const char* const name : {"a", "b", "c"}) come(name, {1, era, count});
    EXPECT_LE(hall.outcome_count(kSet), 2U);
  }
  // One that comes to what it has heard of was sent twice. It leaves nothing behind.
  EXPECT_TRUE(is(come("b", {1, era, 5}), GatherVerdict::Elsewhere));
  EXPECT_EQ(hall.waiting_count(), 0U);
}

TEST_F(GatherHallTest, BeginsANewEraWhenAWorkerHasLostCount) {
  const GatherEra era = era_for("a");
  for (const char* const name : {"a", "b", "c"}) come(name, {1, era, 0}, "old");
  const Ticket a = come("a", {1, era, 1});
  const GatherEra next = era_for("b", 2);
  EXPECT_GT(next.number, era.number);
  EXPECT_TRUE(is(a, GatherVerdict::Again));
  EXPECT_FALSE(is_answered(come("b", {2, next, 0})));
  // Also if it was told of this era before.
  const Ticket b = come("b", {3, next, 0});
  ASSERT_TRUE(is(b, GatherVerdict::Again));
  EXPECT_GT(answers.at(b)->era.number, next.number);
}

TEST_F(GatherHallTest, GivesWhoComesTooLateTheErrorOfTheOthers) {
  const GatherEra era = era_for("a");
  const Ticket a = come("a", {1, era, 0});
  const Ticket b = come("b", {1, era, 0});
  EXPECT_EQ(hall.missing(kSet, a), std::vector<std::string>{"c"});
  take(hall.fail(kSet, a, {CallErrorKind::Remote, "too late", "", true}));
  const Ticket c = come("c", {1, era, 0});
  for (const Ticket ticket : {a, b, c}) {
    ASSERT_TRUE(is_answered(ticket));
    ASSERT_FALSE(answers.at(ticket));
    EXPECT_EQ(answers.at(ticket).error().message, "too late");
  }
  // And all go on with the next one.
  const Ticket next = come("a", {1, era, 1});
  come("b", {1, era, 1});
  come("c", {1, era, 1});
  EXPECT_TRUE(is(next, GatherVerdict::Complete));
}

TEST_F(GatherHallTest, FailsAGatherOnWhichAWorkerHasGivenUpBeforeItCame) {
  const GatherEra era = era_for("a");
  const Ticket a = come("a", {1, era, 0});
  const Ticket b = come("b", {1, era, 0});
  const Ticket c = come("c", {1, era, 1});
  for (const Ticket ticket : {a, b}) {
    ASSERT_TRUE(is_answered(ticket));
    ASSERT_FALSE(answers.at(ticket));
    EXPECT_EQ(answers.at(ticket).error().message, "worker c has given up on this gather");
  }
  come("a", {1, era, 1});
  come("b", {1, era, 1});
  EXPECT_TRUE(is(c, GatherVerdict::Complete));
}

// It comes to the next one before anybody else has come to this one.
TEST_F(GatherHallTest, FailsAGatherToWhichOthersComeAfterAWorkerHasGivenUpOnIt) {
  const GatherEra era = era_for("a");
  const Ticket c = come("c", {1, era, 1});
  for (const char* const name : {"b", "a"}) {
    const Ticket late = come(name, {1, era, 0});
    ASSERT_TRUE(is_answered(late));
    ASSERT_FALSE(answers.at(late));
    EXPECT_EQ(answers.at(late).error().message, "worker c has given up on this gather");
  }
  come("a", {1, era, 1});
  come("b", {1, era, 1});
  EXPECT_TRUE(is(c, GatherVerdict::Complete));
}

// A worker that has never heard of an era does not know that counts began anew.
TEST_F(GatherHallTest, BeginsAnewWithThoseWhoseFirstGatherHasFailed) {
  const Ticket first = come("a", {1, {}, 0});
  come("b", {1, {}, 0});
  take(hall.fail(kSet, first, {CallErrorKind::Unreachable, "c is gone", "", true}));
  members["c"] = 32;
  Ticket last = 0;
  for (const char* const name : {"c", "a", "b"}) {
    const Ticket ticket = come(name, {1, {}, *name == 'c' ? 0U : 1U});
    ASSERT_TRUE(is(ticket, GatherVerdict::Again));
    last = come(name, {1, answers.at(ticket)->era, 0});
  }
  EXPECT_TRUE(is(last, GatherVerdict::Complete));
}

// As one that tries again and again, with little patience, while the leader is busy.
TEST_F(GatherHallTest, KeepsFewArrivalsOfAWorkerThatGivesUpAgainAndAgain) {
  for (std::uint64_t count = 0; count < 100; ++count) {
    const auto arrived = hall.arrive(arrival_at("b", {1, {}, count}), ++last_ticket);
    EXPECT_EQ(arrived.replies.size(), count > GatherHall::kGivenUpMax ? 1U : 0U);
    EXPECT_LE(hall.waiting_count(), GatherHall::kGivenUpMax + 1);
  }
}

TEST_F(GatherHallTest, KeepsFewArrivalsOfAWorkerWhileTheLeaderDoesNotComeAgain) {
  const GatherEra era = era_for("a");
  for (std::uint64_t count = 0; count < 100; ++count) {
    come("b", {1, era, count});
    EXPECT_LE(hall.waiting_count(), GatherHall::kGivenUpMax + 1);
    EXPECT_EQ(hall.outcome_count(kSet), 0U);
  }
  for (std::uint64_t count = 0; count < 100; ++count) {
    come("c", {1, era, count});
    const Ticket a = come("a", {1, era, count});
    ASSERT_TRUE(is_answered(a)) << count;
    EXPECT_EQ(answers.at(a).has_value(), count + 1 + GatherHall::kGivenUpMax >= 100) << count;
  }
}

// Its connection was lost before the leader came.
TEST_F(GatherHallTest, LetsAnArrivalThatComesAgainTakeThePlaceOfTheFirst) {
  GatherArrival arrival = arrival_at("b", {1, {}, 0});
  (void)hall.arrive(arrival, ++last_ticket);
  arrival.is_repeat = true;
  const auto again = hall.arrive(arrival, ++last_ticket);
  ASSERT_EQ(again.replies.size(), 1U);
  EXPECT_EQ(again.replies[0].ticket, last_ticket - 1);
  EXPECT_EQ(hall.waiting_count(), 1U);
}

TEST_F(GatherHallTest, TellsOnlyTheFirstOfThoseWhoWaitWhoTheyAre) {
  EXPECT_TRUE(hall.waiting_with(kSet, "b").empty());
  for (const char* const name : {"b", "c"}) {
    (void)hall.arrive(arrival_at(name, {1, {}, 0}), ++last_ticket);
  }
  EXPECT_EQ(hall.waiting_with(kSet, "b"), (std::vector<std::string>{"b", "c"}));
  EXPECT_TRUE(hall.waiting_with(kSet, "a").empty()) << "it does not wait";
  EXPECT_TRUE(hall.waiting_with(kSet, "c").empty());
  const GatherEra era = era_for("a");
  for (const char* const name : {"b", "c"}) come(name, {1, era, 0});
  EXPECT_EQ(hall.waiting_with(kSet, "b"), (std::vector<std::string>{"b", "c"}));
  EXPECT_TRUE(hall.waiting_with(kSet, "c").empty());
}

TEST_F(GatherHallTest, FailsThoseWhoWaitForALeaderAndForOneThatCannotCome) {
  const CallError error{CallErrorKind::Unreachable, "c is gone", "", true};
  (void)hall.arrive(arrival_at("b", {1, {}, 0}), ++last_ticket);
  take(hall.fail_without(kSet, "b", error));
  EXPECT_FALSE(is_answered(last_ticket)) << "it has come";
  take(hall.fail_without(kSet, "c", error));
  EXPECT_TRUE(is_answered(last_ticket) && !answers.at(last_ticket));
  // And those who have counted together go on to do so.
  const GatherEra era = era_for("a");
  const Ticket waits = come("b", {1, era, 0});
  take(hall.fail_without(kSet, "b", error));
  EXPECT_FALSE(is_answered(waits));
  take(hall.fail_without(kSet, "c", error));
  EXPECT_TRUE(is_answered(waits) && !answers.at(waits));
  come("b", {1, era, 1});
  come("c", {1, era, 1});
  const Ticket late = come("a", {1, era, 0});
  ASSERT_TRUE(is_answered(late) && !answers.at(late));
  EXPECT_EQ(answers.at(late).error().message, "c is gone");
  EXPECT_TRUE(is(come("a", {1, era, 1}), GatherVerdict::Complete));
}

TEST_F(GatherHallTest, RefusesToGuessHowAForgottenGatherEnded) {
  const GatherEra era = era_for("a");
  const auto at = [&](const std::string& name, std::uint64_t count) {
    GatherArrival arrival = arrival_at(name, {1, era, count});
    arrival.awaits_count = 0;  // it has heard of none
    return arrival;
  };
  for (std::uint64_t count = 0; count < GatherHall::kOutcomesMax; ++count) {
    for (const char* const name : {"a", "b", "c"}) arrive(at(name, count));
  }
  EXPECT_EQ(hall.outcome_count(kSet), GatherHall::kOutcomesMax);
  EXPECT_TRUE(is(arrive(at("b", 0)), GatherVerdict::Complete));
  for (const char* const name : {"a", "b", "c"}) arrive(at(name, GatherHall::kOutcomesMax));
  EXPECT_EQ(hall.outcome_count(kSet), GatherHall::kOutcomesMax);
  const Ticket late = arrive(at("b", 0));
  ASSERT_TRUE(is_answered(late));
  ASSERT_FALSE(answers.at(late));
  EXPECT_NE(answers.at(late).error().message.find("forgotten"), std::string::npos);
}

TEST_F(GatherHallTest, KnowsNoMoreSetsThanItsMaximum) {
  std::uint64_t ticket = 1'000'000;
  const auto gather = [&](const std::string& set) {
    GatherArrival arrival;
    arrival.set = set;
    arrival.name = "a";
    arrival.process = 11;
    arrival.place = {1, {}, 0};
    (void)hall.arrive(arrival, ++ticket);
    return hall.look(set, "a", {{"a", 11}});
  };
  for (std::size_t number = 0; number < GatherHall::kSetsMax; ++number) {
    gather("set" + std::to_string(number));
  }
  EXPECT_EQ(hall.set_count(), GatherHall::kSetsMax);
  const auto replies = gather("one more");
  EXPECT_EQ(hall.set_count(), GatherHall::kSetsMax);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].answer->verdict, GatherVerdict::Complete);
}

TEST_F(GatherHallTest, RefusesOneSetMoreWhenSomebodyWaitsInAllOfThem) {
  GatherArrival arrival;
  arrival.name = "b";
  for (std::size_t number = 0; number <= GatherHall::kSetsMax; ++number) {
    arrival.set = "set" + std::to_string(number);
    const auto arrived = hall.arrive(arrival, number);
    EXPECT_EQ(arrived.replies.empty(), number < GatherHall::kSetsMax);
  }
  EXPECT_EQ(hall.set_count(), GatherHall::kSetsMax);
}

TEST_F(GatherHallTest, LetsNoMoreWaitThanItsMaximum) {
  GatherArrival arrival;
  arrival.set = kSet;
  arrival.name = "b";
  for (std::size_t number = 0; number <= GatherHall::kWaitingMax; ++number) {
    arrival.place.count = number;
    const auto arrived = hall.arrive(arrival, number);
    ASSERT_EQ(arrived.replies.empty(), number < GatherHall::kWaitingMax);
  }
  EXPECT_EQ(hall.waiting_count(), GatherHall::kWaitingMax);
}

// As a leader does that leaves its group: one may have lost its connection before it heard.
TEST_F(GatherHallTest, KnowsHowGathersEndedAfterAllWereDismissed) {
  const GatherEra era = era_for("a");
  for (const char* const name : {"a", "b", "c"}) come(name, {1, era, 0}, name);
  const Ticket b = come("b", {1, era, 1});
  take(hall.dismiss(GatherAnswer{GatherVerdict::Parting, era, nullptr}));
  EXPECT_TRUE(is(b, GatherVerdict::Parting));
  EXPECT_EQ(hall.waiting_count(), 0U);
  const auto outcome = hall.outcome_of(arrival_at("c", {1, era, 0}));
  ASSERT_TRUE(outcome && *outcome);
  EXPECT_EQ((*outcome)->values->at("c"), "c");
  EXPECT_FALSE(hall.outcome_of(arrival_at("b", {1, era, 1})));
  EXPECT_FALSE(hall.outcome_of(arrival_at("b", {1, {}, 0})));
}

// Its connection was lost, and what had been sent by it arrives after what was sent by the next.
TEST_F(GatherHallTest, PrefersTheLaterAttemptHoweverTheyArrive) {
  const auto attempt_of_b = [&](const GatherEra& era, std::uint64_t attempt) {
    GatherArrival arrival = arrival_at("b", {1, era, 0});
    arrival.attempt = attempt;
    const Ticket ticket = ++last_ticket;
    take(hall.arrive(std::move(arrival), ticket).replies);
    return ticket;
  };
  Ticket later = attempt_of_b({}, 2);
  EXPECT_TRUE(is(attempt_of_b({}, 1), GatherVerdict::Elsewhere));
  EXPECT_FALSE(is_answered(later));
  const GatherEra era = era_for("a");
  later = attempt_of_b(era, 4);
  EXPECT_TRUE(is(attempt_of_b(era, 3), GatherVerdict::Elsewhere));
  EXPECT_FALSE(is_answered(later));
}

// A set that was forgotten is not mixed up with what it was.
TEST_F(GatherHallTest, BeginsAForgottenSetAnew) {
  const GatherEra era = era_for("a");
  for (const char* const name : {"a", "b", "c"}) come(name, {1, era, 0}, "old");
  hall.clear(call_failed(CallError()));
  EXPECT_TRUE(is(come("a", {1, era, 1}), GatherVerdict::Again));
  GatherArrival repeat = arrival_at("b", {1, era, 0});
  repeat.is_repeat = true;
  const Ticket b = arrive(repeat);
  ASSERT_TRUE(is_answered(b));
  EXPECT_FALSE(answers.at(b)) << "it may have been complete";
}

// ---- lines --------------------------------------------------------------------------------------

TEST(GatherLines, CountsEachSetForItself) {
  GatherLines lines;
  EXPECT_EQ(lines.take("x")->count, 0U);
  EXPECT_EQ(lines.take("x")->count, 1U);
  EXPECT_EQ(lines.take("y")->count, 0U);
}

TEST(GatherLines, MovesAllThreadsToTheNewEraOnce) {
  GatherLines lines;
  const GatherPlace first = *lines.take("x");
  const GatherPlace second = *lines.take("x");
  const GatherEra told{7, 3};
  EXPECT_EQ(lines.take_again("x", first, told), (GatherPlace{first.line, told, 0}));
  EXPECT_EQ(lines.take_again("x", second, told), (GatherPlace{first.line, told, 1}));
  EXPECT_EQ(lines.take("x")->count, 2U);
}

TEST(GatherLines, GoesOnToCountInTheFirstEra) {
  GatherLines lines;
  const GatherPlace first = *lines.take("x");
  const GatherPlace second = *lines.take("x");
  lines.came_to("x", first, {7, 3});
  EXPECT_EQ(lines.keep_or_take("x", second), second);
  EXPECT_EQ(*lines.take("x"), (GatherPlace{first.line, {7, 3}, 2}));
  EXPECT_EQ(lines.take_again("x", second, {7, 4}), (GatherPlace{first.line, {7, 4}, 0}));
  EXPECT_EQ(lines.keep_or_take("x", first), (GatherPlace{first.line, {7, 4}, 1}));
}

TEST(GatherLines, IgnoresWhatTheLeaderSaidBefore) {
  GatherLines lines;
  const GatherPlace first = *lines.take("x");
  const GatherPlace second = *lines.take("x");
  const GatherPlace third = lines.take_again("x", first, {7, 4});
  EXPECT_EQ(lines.take_again("x", second, {7, 3}).era, (GatherEra{7, 4}));
  EXPECT_EQ(lines.take_again("x", third, {7, 3}), third);
  EXPECT_EQ(lines.keep_or_take("x", third), third);
}

TEST(GatherLines, BeginsANewLineWithAnotherLeader) {
  GatherLines lines;
  const GatherPlace first = lines.take_again("x", *lines.take("x"), {7, 3});
  const GatherPlace other = lines.take_again("x", first, {8, 1});
  const GatherPlace back = lines.take_again("x", other, {7, 3});
  EXPECT_LT(first.line, other.line);
  EXPECT_LT(other.line, back.line);
  EXPECT_EQ(back.count, 0U);
}

TEST(GatherLines, SaysWhatItStillWaitsFor) {
  GatherLines lines;
  GatherPlace first = lines.take_again("x", *lines.take("x"), {7, 3});
  GatherArrival arrival;
  arrival.set = "x";
  arrival.place = *lines.take("x");
  lines.fill_awaits(arrival);
  EXPECT_EQ(arrival.awaits_count, 0U);
  EXPECT_TRUE(lines.waits_at("x", {7, 3}, 0));
  lines.leave("x", first);
  lines.fill_awaits(arrival);
  EXPECT_EQ(arrival.awaits_count, 1U);
  EXPECT_FALSE(lines.waits_at("x", {7, 3}, 0));
}

TEST(GatherLines, KnowsNoMoreSetsThanItsMaximum) {
  GatherLines lines;
  std::vector<GatherPlace> places;
  for (std::size_t number = 0; number < GatherLines::kLinesMax; ++number) {
    const auto place = lines.take("set" + std::to_string(number));
    ASSERT_TRUE(place);
    places.push_back(*place);
  }
  EXPECT_FALSE(lines.take("one more")) << "somebody waits in all of them";
  lines.leave("set5", places[5]);
  EXPECT_TRUE(lines.take("one more"));
  EXPECT_EQ(lines.line_count(), GatherLines::kLinesMax);
  lines.leave("set6", places[6]);
  EXPECT_GT(lines.take("set5")->line, places[5].line);
}

}  // namespace
}  // namespace muster::rpc
