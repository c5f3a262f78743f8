// BackendContract: what every rendezvous::Backend promises, whatever is behind it.
//
// A test program includes this header in one source, writes a BackendFixture and instantiates the
// suite:
//
//   INSTANTIATE_TEST_SUITE_P(Etcd, BackendContract,
//                            ::testing::Values(BackendKind{"Etcd", make_fixture, why_missing}),
//                            backend_kind_name);
//
// The numbers in comments are the rows of the specification.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rendezvous/backend.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

// One run without state, and as many clients of it as are asked for.
class BackendFixture {
 public:
  virtual ~BackendFixture() = default;

  // Clients with different numbers share nothing but what is stored. Made at the first call; all on
  // one loop.
  virtual Backend& client(std::size_t index) = 0;
  virtual Loop& loop() = 0;
  // Puts `junk` where the state is kept, whatever is there.
  virtual void overwrite_state(std::string junk) = 0;
  // What `overwrite_state` left there, to see that nobody touched it.
  virtual std::string raw_state() = 0;
  // Runs the loop until `done` returns true. False if it did not within a bound that only a broken
  // implementation exceeds.
  virtual bool run_until(const std::function<bool()>& done) = 0;
};

struct BackendKind {
  std::string name;
  std::function<std::unique_ptr<BackendFixture>()> make;
  // Why it cannot run here; empty if it can.
  std::function<std::string()> why_missing = [] { return std::string(); };
};
inline void PrintTo(const BackendKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string backend_kind_name(const ::testing::TestParamInfo<BackendKind>& info) {
  return info.param.name;
}

class BackendContract : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
    fixture_ = GetParam().make();
  }

  Backend& a() { return fixture_->client(0); }
  Backend& b() { return fixture_->client(1); }
  BackendFixture& fixture() { return *fixture_; }

  TimePoint patience() { return after(fixture_->loop().now(), std::chrono::seconds(30)); }
  TimePoint shortly() { return after(fixture_->loop().now(), std::chrono::milliseconds(30)); }

  // A call that was started and not awaited; destroying it cancels it.
  template <typename T>
  class Call {
   public:
    explicit Call(Task<Result<T>> task) { scope_.start(keep(std::move(task), result_)); }
    bool done() const { return result_.has_value(); }
    Result<T> take() { return std::move(*result_); }

   private:
    static Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>& result) {
      Result<T> value = co_await task;
      result.emplace(std::move(value));
    }
    std::optional<Result<T>> result_;
    TaskScope scope_;  // last: the task writes into result_
  };
  template <typename T>
  std::unique_ptr<Call<T>> begin(Task<Result<T>> task) {
    return std::make_unique<Call<T>>(std::move(task));
  }
  template <typename T>
  Result<T> finish(Call<T>& call) {
    if (!fixture_->run_until([&] { return call.done(); })) {
      ADD_FAILURE() << "the call does not come to an end";
      return fail(ErrorKind::Cancelled, "the call does not come to an end");
    }
    return call.take();
  }
  template <typename T>
  Result<T> await(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    return finish(call);
  }

  void loop_until_done(Task<void> task) {
    TaskScope scope;
    scope.start(std::move(task));
    EXPECT_TRUE(fixture_->run_until([&] { return scope.empty(); }));
  }

  // Must succeed and return something.
  Written write(Backend& backend, std::string blob, std::optional<Token> token) {
    return write_with(backend, std::move(blob), std::move(token), false);
  }
  Written write_with(Backend& backend, std::string blob, std::optional<Token> token, bool signal) {
    const Result<std::optional<Written>> result =
        await(backend.set_state(std::move(blob), std::move(token), signal));
    if (!result) {
      ADD_FAILURE() << name_of(result.error().kind) << ": " << result.error().message;
      return {};
    }
    if (!*result) {
      ADD_FAILURE() << "nothing came back";
      return {};
    }
    return **result;
  }
  void expect_state(Backend& backend, const std::string& blob, const Token& token) {
    const Result<std::optional<Stored>> result = await(backend.get_state());
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_TRUE(*result);
    EXPECT_EQ((*result)->blob, blob);
    EXPECT_EQ((*result)->token, token);
  }
  template <typename T>
  void expect_corrupt(const Result<T>& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(name_of(result.error().kind), name_of(ErrorKind::Corrupt));
    EXPECT_FALSE(result.error().message.empty());
  }
  void expect_woken(Result<bool> result) {
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_TRUE(*result);
  }

 private:
  std::unique_ptr<BackendFixture> fixture_;
};

// ---- the state

TEST_P(BackendContract, HasNoStateAtFirst) {  // 28
  const Result<std::optional<Stored>> result = await(a().get_state());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(*result);
}

TEST_P(BackendContract, ReturnsWhatWasWritten) {  // 29
  const Written written = write(a(), "x", std::nullopt);
  expect_state(a(), "x", written.now.token);
  expect_state(b(), "x", written.now.token);
}

TEST_P(BackendContract, ReportsAnUnreadableStateAndLeavesIt) {  // 30
  const Written before = write(a(), "x", std::nullopt);
  for (const std::string& junk : {std::string("junk"), std::string("\0\xff", 2)}) {
    fixture().overwrite_state(junk);
    expect_corrupt(await(a().get_state()));
    expect_corrupt(await(b().set_state("y", std::nullopt, true)));
    expect_corrupt(await(b().set_state("y", before.now.token, true)));
    EXPECT_EQ(fixture().raw_state(), junk);
  }
}

TEST_P(BackendContract, WritesTheFirstStateWithoutAToken) {  // 31
  const Written written = write(a(), "x", std::nullopt);
  EXPECT_TRUE(written.was_set);
  EXPECT_EQ(written.now.blob, "x");
  EXPECT_FALSE(written.now.token.empty());
}

TEST_P(BackendContract, ReplacesTheStateThatTheTokenNames) {  // 32
  const Written first = write(a(), "x", std::nullopt);
  const Written second = write(b(), "y", first.now.token);
  EXPECT_TRUE(second.was_set);
  EXPECT_EQ(second.now.blob, "y");
  EXPECT_NE(second.now.token, first.now.token);
  expect_state(a(), "y", second.now.token);
}

TEST_P(BackendContract, RefusesAStaleTokenAndReturnsWhatIsStored) {  // 33
  const Written first = write(a(), "x", std::nullopt);
  const Written second = write(a(), "y", first.now.token);
  const Written late = write(b(), "z", first.now.token);
  EXPECT_FALSE(late.was_set);
  EXPECT_EQ(late.now, second.now);
  expect_state(a(), "y", second.now.token);
}

TEST_P(BackendContract, RefusesToReplaceAStateWithoutAToken) {  // 34
  const Written first = write(a(), "x", std::nullopt);
  const Written second = write(b(), "y", std::nullopt);
  EXPECT_FALSE(second.was_set);
  EXPECT_EQ(second.now, first.now);
}

TEST_P(BackendContract, TakesAMalformedTokenForAStaleOne) {  // 35
  const Written first = write(a(), "x", std::nullopt);
  for (const Token& token : {Token("malformed"), Token(), Token("-1"), Token("0"), Token("99999"),
                             " " + first.now.token, first.now.token + "x", "0" + first.now.token,
                             Token("99999999999999999999999"), Token("\0", 1)}) {
    const Written second = write(b(), "y", token);
    EXPECT_FALSE(second.was_set) << ::testing::PrintToString(token);
    EXPECT_EQ(second.now, first.now) << ::testing::PrintToString(token);
  }
}

TEST_P(BackendContract, LetsExactlyOneOfTwoWritersWithOneTokenWin) {  // 36
  Written last = write(a(), "start", std::nullopt);
  for (int round = 0; round < 10; ++round) {
    const auto first = begin(a().set_state("of a", last.now.token, false));
    const auto second = begin(b().set_state("of b", last.now.token, false));
    const Result<std::optional<Written>> of_a = finish(*first);
    const Result<std::optional<Written>> of_b = finish(*second);
    ASSERT_TRUE(of_a && *of_a && of_b && *of_b);
    ASSERT_NE((*of_a)->was_set, (*of_b)->was_set);
    EXPECT_EQ((*of_a)->now, (*of_b)->now);
    EXPECT_EQ((*of_a)->now.blob, (*of_a)->was_set ? "of a" : "of b");
    last = **of_a;
  }
}

TEST_P(BackendContract, ReturnsNothingForATokenWithoutAState) {  // B6
  for (const Token& token : {Token("5"), Token("malformed")}) {
    const auto result = await(a().set_state("x", token, true));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_FALSE(*result);
  }
  const auto state = await(a().get_state());
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_FALSE(*state);
}

TEST_P(BackendContract, GivesEqualBlobsDifferentTokens) {
  const Written first = write(a(), "x", std::nullopt);
  const Written second = write(a(), "x", first.now.token);
  EXPECT_TRUE(second.was_set);
  EXPECT_NE(second.now.token, first.now.token);
  EXPECT_FALSE(write(b(), "x", first.now.token).was_set);
}

TEST_P(BackendContract, KeepsAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 256));
  const Written first = write(a(), bytes, std::nullopt);
  expect_state(b(), bytes, first.now.token);
  const Written second = write(a(), "", first.now.token);
  EXPECT_TRUE(second.was_set);
  expect_state(b(), "", second.now.token);
}

TEST_P(BackendContract, LosesNoneOfManyContendersForEver) {
  Written last = write(a(), "", std::nullopt);
  for (std::size_t contender = 0; contender < 4; ++contender) {
    // Each retries with what it was handed back: no further read is needed.
    Backend& backend = fixture().client(contender);
    Written mine = write(backend, "stale", std::string("0"));
    for (int attempt = 0; attempt < 5 && !mine.was_set; ++attempt)
      mine = write(backend, mine.now.blob + static_cast<char>('0' + contender), mine.now.token);
    EXPECT_TRUE(mine.was_set);
    last = mine;
  }
  EXPECT_EQ(last.now.blob, "0123");
}

// ---- signals

TEST_P(BackendContract, WakesThoseWhoWaitForASignal) {
  const Written first = write(a(), "x", std::nullopt);
  const auto waiting = begin(b().wait_signal(first.now.token, false, patience()));
  const auto second_waiting = begin(a().wait_signal(first.now.token, false, patience()));
  write_with(a(), "y", first.now.token, true);
  expect_woken(finish(*waiting));
  expect_woken(finish(*second_waiting));
}

TEST_P(BackendContract, TellsAtOnceOfASignalThatHasBeenGivenAlready) {
  const Written first = write(a(), "x", std::nullopt);
  const Written second = write_with(a(), "y", first.now.token, true);
  write(a(), "z", second.now.token);
  expect_woken(await(b().wait_signal(first.now.token, false, patience())));
}

TEST_P(BackendContract, WakesThoseWhoWaitForAFirstState) {
  const auto waiting = begin(b().wait_signal(std::nullopt, false, patience()));
  write_with(a(), "x", std::nullopt, true);
  expect_woken(finish(*waiting));
  expect_woken(await(b().wait_signal(std::nullopt, false, patience())));
}

TEST_P(BackendContract, GivesUpWaitingForASignalAtTheDeadline) {
  const Written first = write_with(a(), "x", std::nullopt, true);
  const Result<bool> result = await(b().wait_signal(first.now.token, true, shortly()));
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(*result);
  const Result<bool> again = await(a().wait_signal(first.now.token, false, shortly()));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(*again);
}

TEST_P(BackendContract, HearsOfEveryOneOfManySignals) {
  Written last = write(a(), "0", std::nullopt);
  for (int i = 1; i <= 20; ++i) {
    const auto waiting = begin(b().wait_signal(last.now.token, i % 2 == 0, patience()));
    const Written next = write_with(a(), std::to_string(i), last.now.token, true);
    ASSERT_TRUE(next.was_set);
    expect_woken(finish(*waiting));
    last = next;
  }
}

TEST_P(BackendContract, ForgetsAWaitThatIsDestroyed) {
  const Written first = write(a(), "x", std::nullopt);
  auto destroyed = begin(b().wait_signal(first.now.token, true, kNever));
  const auto kept = begin(b().wait_signal(first.now.token, false, patience()));
  destroyed.reset();
  write_with(a(), "y", first.now.token, true);
  expect_woken(finish(*kept));
}

TEST_P(BackendContract, LosersDoNotSignal) {
  const Written first = write_with(a(), "x", std::nullopt, true);
  EXPECT_FALSE(write_with(b(), "y", std::string("1"), true).was_set);
  const Result<bool> result = await(b().wait_signal(first.now.token, false, shortly()));
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(*result);
}

// ---- signs of life

TEST_P(BackendContract, ShowsTheSignsOfThoseWhoBeat) {
  const auto before = await(b().signs({"n1", "n2"}));
  ASSERT_TRUE(before) << before.error().message;
  ASSERT_EQ(before->size(), 2U);
  EXPECT_FALSE(before->at(0).present);
  EXPECT_FALSE(before->at(1).present);
  ASSERT_TRUE(await(a().beat("n2", std::chrono::seconds(60))));
  const auto after_one = await(b().signs({"n1", "n2", "n2"}));
  ASSERT_TRUE(after_one) << after_one.error().message;
  ASSERT_EQ(after_one->size(), 3U);
  EXPECT_FALSE(after_one->at(0).present);
  EXPECT_TRUE(after_one->at(1).present);
  EXPECT_TRUE(after_one->at(2).present);
  const auto none = await(b().signs({}));
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->empty());
}

TEST_P(BackendContract, ChangesTheMarkWithEveryBeatUnlessItHasLeases) {
  std::vector<std::string> marks;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(await(a().beat("n1", std::chrono::seconds(60))));
    const auto signs = await(b().signs({"n1"}));
    ASSERT_TRUE(signs) << signs.error().message;
    ASSERT_TRUE(signs->at(0).present);
    marks.push_back(signs->at(0).mark);
  }
  if (a().has_leases()) return;
  EXPECT_NE(marks[0], marks[1]);
  EXPECT_NE(marks[1], marks[2]);
}

TEST_P(BackendContract, TakesASignBack) {
  ASSERT_TRUE(await(a().beat("n1", std::chrono::seconds(60))));
  ASSERT_TRUE(await(b().beat("n2", std::chrono::seconds(60))));
  ASSERT_TRUE(await(a().retire("n1")));
  const auto signs = await(b().signs({"n1", "n2"}));
  ASSERT_TRUE(signs) << signs.error().message;
  EXPECT_FALSE(signs->at(0).present);
  EXPECT_TRUE(signs->at(1).present);
  EXPECT_TRUE(await(a().retire("never there")));
  ASSERT_TRUE(await(a().beat("n1", std::chrono::seconds(60))));
  const auto again = await(b().signs({"n1"}));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->at(0).present);
}

TEST_P(BackendContract, KeepsTheSignsOfManyNodesApart) {
  std::vector<std::string> names;
  names.reserve(100);
  for (int i = 0; i < 100; ++i) names.push_back("host-" + std::to_string(i) + "/pid 7%");
  for (std::size_t i = 0; i < names.size(); i += 2)
    ASSERT_TRUE(await(a().beat(names[i], std::chrono::seconds(60))));
  const auto signs = await(b().signs(names));
  ASSERT_TRUE(signs) << signs.error().message;
  ASSERT_EQ(signs->size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(signs->at(i).present, i % 2 == 0) << i;
}

TEST_P(BackendContract, DoesNotMistakeASignForAChangeOfTheState) {
  const Written first = write(a(), "x", std::nullopt);
  ASSERT_TRUE(await(a().beat("n1", std::chrono::seconds(60))));
  EXPECT_TRUE(write(b(), "y", first.now.token).was_set);
}

// ---- wishes

TEST_P(BackendContract, GivesEveryWishANumberOfItsOwnIfItHasNumbers) {
  if (!a().has_wish_numbers()) GTEST_SKIP() << "not applicable: its wishes have no numbers";
  for (std::uint64_t number = 1; number <= 6; number += 2) {
    const auto of_a = await(a().take_wish_number());
    ASSERT_TRUE(of_a) << of_a.error().message;
    EXPECT_EQ(*of_a, number);
    const auto of_b = await(b().take_wish_number());
    ASSERT_TRUE(of_b) << of_b.error().message;
    EXPECT_EQ(*of_b, number + 1);
  }
}

TEST_P(BackendContract, ShowsTheWishesThatHaveNotBeenDealtWith) {
  if (!a().has_wish_numbers()) GTEST_SKIP() << "not applicable: its wishes have no numbers";
  const auto none = await(b().wishes({}));
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->empty());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(await(a().take_wish_number()));
  ASSERT_TRUE(await(a().beat("n1", std::chrono::seconds(60))));
  ASSERT_TRUE(await(a().wish("n1", 18, "eighteen")));
  ASSERT_TRUE(await(a().wish("n2", 20, std::string("\0twenty", 7))));
  ASSERT_TRUE(await(a().wish("n3", 16, "sixteen")));
  ASSERT_TRUE(await(a().withdraw("n3", 16)));
  auto wishes = await(b().wishes({17, {3, 16}}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_EQ(*wishes, (std::vector<Wish>{{3, std::nullopt},
                                        {16, ""},
                                        {18, "eighteen"},
                                        {19, std::nullopt},
                                        {20, std::string("\0twenty", 7)}}));
  // All of them are there.
  wishes = await(b().wishes({19, {16, 18}}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_EQ(*wishes,
            (std::vector<Wish>{{16, ""}, {18, "eighteen"}, {20, std::string("\0twenty", 7)}}));
  loop_until_done(b().clear_wishes({16, 18}));
  wishes = await(a().wishes({20, {16, 18}}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_EQ(*wishes, (std::vector<Wish>{{16, std::nullopt}, {18, std::nullopt}}));
}

TEST_P(BackendContract, DoesNotMistakeAWishForAChangeOfTheState) {
  if (!a().has_wish_numbers()) GTEST_SKIP() << "not applicable: its wishes have no numbers";
  const Written first = write(a(), "x", std::nullopt);
  ASSERT_TRUE(await(a().take_wish_number()));
  ASSERT_TRUE(await(a().wish("n1", 1, "one")));
  EXPECT_TRUE(write(b(), "y", first.now.token).was_set);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendContract);

}  // namespace muster::rendezvous::testing
