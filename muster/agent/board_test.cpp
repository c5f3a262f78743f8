#include "muster/agent/board.h"

#include "muster/net/epoll_loop.h"
#include "muster/store/memory_store.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

Introduction introduction(std::string role, std::int64_t worker_count) {
  return {{std::move(role), worker_count}, "host", {}};
}

template <typename T>
Task<void> keep(Task<T> task, std::optional<T>& result) {
  result.emplace(co_await task);
}

Task<Result<>> nothing() { co_return Result<>(); }

class BoardTest : public ::testing::Test {
 protected:
  // With a wall clock that nobody has wound up, unless the test gives one.
  std::unique_ptr<Board> board(
      std::int64_t rank, std::int64_t count, observe::WallClock wall_clock = [] { return 0; }) {
    return std::make_unique<Board>(loop, store, rank, count, 0, std::move(wall_clock));
  }
  TimePoint soon() const { return after(loop.now(), 10s); }
  Task<void> pass() { co_await sleep_until(loop, loop.now()); }

  net::EpollLoop loop;
  std::shared_ptr<store::Store> store = store::make_memory_store(loop);
};

TEST_F(BoardTest, TellsEveryNodeItsPlace) {
  std::vector<std::unique_ptr<Board>> boards;
  std::vector<std::optional<Result<Placing>>> placings(3);
  TaskScope scope;
  for (int rank = 0; rank < 3; ++rank) {
    boards.push_back(board(rank, 3));
    Introduction mine = introduction(rank == 1 ? "ps" : "trainer", rank + 1);
    mine.failed_rounds = {{static_cast<std::uint64_t>(rank), std::chrono::seconds(rank)}};
    scope.start(keep(boards.back()->introduce(mine, soon(), nothing),
                     placings[static_cast<std::size_t>(rank)]));
  }
  for (int turn = 0; turn < 100 && !placings[2]; ++turn) loop.block_on(pass());
  const std::vector<FailedRound> all = {{0, 0s}, {1, 1s}, {2, 2s}};
  EXPECT_EQ(**placings[0], (Placing{{0, 6, 0, 4}, 0, all}));
  EXPECT_EQ(**placings[1], (Placing{{1, 6, 0, 2}, 0, all}));
  EXPECT_EQ(**placings[2], (Placing{{3, 6, 1, 4}, 0, all}));
}

TEST_F(BoardTest, TellsEveryNodeHowFarItsClockIsOff) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::vector<std::int64_t> leads = {0, 600 * kSecond, -600 * kSecond, 0};
  std::int64_t ticks = 1000 * kSecond;  // each look at a clock takes a microsecond
  std::vector<std::unique_ptr<Board>> boards;
  std::vector<std::optional<Result<Placing>>> placings(leads.size());
  TaskScope scope;
  for (std::size_t rank = 0; rank < leads.size(); ++rank) {
    boards.push_back(board(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(leads.size()),
                           [&ticks, lead = leads[rank]] { return (ticks += 1000) + lead; }));
    scope.start(keep(boards.back()->introduce(introduction("default", 1), soon(), nothing),
                     placings[rank]));
  }
  const auto all_told = [&] {
    return std::all_of(placings.begin(), placings.end(), [](const auto& one) { return !!one; });
  };
  for (int turn = 0; turn < 100 && !all_told(); ++turn) loop.block_on(pass());
  ASSERT_TRUE(all_told());
  for (std::size_t rank = 0; rank < leads.size(); ++rank) {
    const std::int64_t found = (*placings[rank])->clock_lead_nanoseconds;
    EXPECT_GE(found, leads[rank]);
    EXPECT_LE(found, leads[rank] + 1'000'000);
    if (leads[rank] == 0) {
      EXPECT_EQ(found, 0);
    }
  }
}

TEST(ClockLead, IsNoneWhileTheClocksMayAgree) {
  EXPECT_EQ(clock_lead(100, 150, 200), 0);
  EXPECT_EQ(clock_lead(100, 100, 100), 0);
  EXPECT_EQ(clock_lead(100, 99, 130), 31);   // the answer came before the question
  EXPECT_EQ(clock_lead(100, 201, 200), -1);  // it was read before it was written
  EXPECT_EQ(clock_lead(5000, 0, 6000), 0);   // nobody said
  EXPECT_EQ(clock_lead(5000, 150, 5200), 5050);
}

TEST_F(BoardTest, NeedsNoStoreForASingleNode) {
  Board alone(loop, nullptr, 0, 1, 0);
  const auto placing = loop.block_on(alone.introduce(introduction("default", 4), soon(), nothing));
  ASSERT_TRUE(placing);
  EXPECT_EQ(placing->ranks, (Ranks{0, 4, 0, 4}));
  EXPECT_FALSE(*loop.block_on(alone.look()));
  ASSERT_TRUE(loop.block_on(alone.confirm()));
  EXPECT_EQ(loop.block_on(alone.wait_word(soon()))->news, News::Done);
  EXPECT_TRUE(loop.block_on(alone.meet("end", soon())));
}

TEST_F(BoardTest, HasOneWordARoundTheFirst) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  const Word failed = {News::Failed, 0, "host-0", {"{\"rank\":1}"}};
  EXPECT_EQ(*loop.block_on(first->say(failed)), failed);
  EXPECT_EQ(*loop.block_on(second->say({News::Restart, 1, "host-1", {}})), failed);
  EXPECT_EQ(**loop.block_on(second->look()), failed);
  EXPECT_EQ(*loop.block_on(second->wait_word(soon())), failed);
}

TEST_F(BoardTest, WakesWhoeverWaitsForTheWord) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  std::optional<Result<Word>> heard;
  TaskScope scope;
  scope.start(keep(second->wait_word(soon()), heard));
  EXPECT_FALSE(heard);
  ASSERT_TRUE(loop.block_on(first->say({News::Restart, 0, "host", {}})));
  for (int turn = 0; turn < 100 && !heard; ++turn) loop.block_on(pass());
  ASSERT_TRUE(heard);
  EXPECT_EQ((*heard)->news, News::Restart);
}

TEST_F(BoardTest, IsDoneWhenTheLastNodeConfirms) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  ASSERT_TRUE(loop.block_on(first->confirm()));
  EXPECT_FALSE(*loop.block_on(first->look()));
  ASSERT_TRUE(loop.block_on(second->confirm()));
  EXPECT_EQ((*loop.block_on(first->look()))->news, News::Done);
}

TEST_F(BoardTest, IsNotDoneIfAFailureWasSaidFirst) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  ASSERT_TRUE(loop.block_on(first->say({News::Failed, 0, "host", {}})));
  ASSERT_TRUE(loop.block_on(first->confirm()));
  ASSERT_TRUE(loop.block_on(second->confirm()));
  EXPECT_EQ((*loop.block_on(first->look()))->news, News::Failed);
}

TEST_F(BoardTest, GathersTheFailuresOfAllNodes) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  EXPECT_TRUE(loop.block_on(first->failures())->empty());
  ASSERT_TRUE(loop.block_on(first->add_failures({"a", "b"})));
  ASSERT_TRUE(loop.block_on(second->add_failures({"c"})));
  const std::vector<std::string> all = {"a", "b", "c"};
  EXPECT_EQ(*loop.block_on(first->failures()), all);
}

TEST_F(BoardTest, LetsNobodyPassAMeetingPointBeforeAllHaveCome) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  EXPECT_FALSE(loop.block_on(first->meet("early", loop.now())));
  std::optional<bool> met;
  TaskScope scope;
  scope.start(keep(first->meet("end", soon()), met));
  loop.block_on(pass());
  EXPECT_FALSE(met);
  EXPECT_TRUE(loop.block_on(second->meet("end", soon())));
  for (int turn = 0; turn < 100 && !met; ++turn) loop.block_on(pass());
  EXPECT_TRUE(met && *met);
}

TEST_F(BoardTest, CountsThoseWhoDoNotWaitAtAMeetingPoint) {
  auto first = board(0, 2);
  auto second = board(1, 2);
  EXPECT_TRUE(loop.block_on(second->pass("end", soon())));
  EXPECT_TRUE(loop.block_on(first->meet("end", soon())));
}

TEST(PlaceAll, CountsNoFailureOfARoundThatLostANode) {
  const auto from = [](std::uint64_t round, std::int64_t node_count) {
    Introduction one = introduction("default", 1);
    one.failed_rounds = {{1, 9s}, {4, 1s}};
    one.origin = {round, node_count};
    return one;
  };
  const std::vector<FailedRound> both = {{1, 9s}, {4, 1s}};
  const std::vector<FailedRound> earlier = {{1, 9s}};
  // All came back, and a newcomer with them.
  EXPECT_EQ(place_all({from(4, 2), from(4, 2), introduction("default", 1)}, 5)[0].failed_rounds,
            both);
  // One of three is missing; a newcomer does not make up for it.
  EXPECT_EQ(place_all({from(4, 3), introduction("default", 1), from(4, 3)}, 5)[0].failed_rounds,
            earlier);
}

TEST(PlaceAll, NumbersTheRoundsOnAfterAStoreThatForgotThem) {
  Introduction old = introduction("default", 1);
  EXPECT_EQ(place_all({old, old}, 0)[1].round, 0U);
  EXPECT_EQ(place_all({old, old}, 7)[1].round, 7U);
  old.origin = {7, 2};
  EXPECT_EQ(place_all({introduction("default", 1), old}, 0)[0].round, 8U);
  EXPECT_EQ(place_all({introduction("default", 1), old}, 12)[0].round, 12U);
}

TEST(BoardTexts, AreReadAsTheyWereWritten) {
  Introduction newcomer = introduction("default", 1);
  EXPECT_EQ(*decode_introduction(encode(newcomer)), newcomer);
  Introduction mine = {{"ps \"1\"", 3}, "host", {{7, 1500ms}}};
  mine.origin = {7, 3};
  EXPECT_EQ(*decode_introduction(encode(mine)), mine);
  const Placing placing = {{1, 2, 3, 4}, 9, {{7, 1500ms}}, 1'700'000'000'123'456'789};
  EXPECT_EQ(*decode_placing(encode(placing)), placing);
  const Word word = {News::Failed, 3, "host", {"{}", "\n"}};
  EXPECT_EQ(*decode_word(encode(word)), word);
}

TEST(BoardTexts, OfSomebodyElseAreRefused) {
  for (const char* text :
       {"", "{", "[]", "7", "null", "{\"role\":1}",
        R"({"role":"a","workers":0,"host":"h","failed_rounds":[]})",
        R"({"role":"a","workers":1,"host":"h","failed_rounds":[[1]]})",
        R"({"role":"a","workers":1,"host":"h","failed_rounds":[[-1,2]]})",
        R"({"role":"a","workers":1,"host":"h","failed_rounds":[],"origin":[1]})",
        R"({"ranks":[1,2,3],"round":0,"failed_rounds":[]})",
        R"({"ranks":[1,2,3,4],"round":-1,"failed_rounds":[]})",
        R"({"ranks":[1,2,3,4],"failed_rounds":[]})",
        R"({"ranks":[1,2,3,4],"round":0,"failed_rounds":[],"written_nanoseconds":-1})",
        R"({"ranks":[1,2,3,4],"round":0,"failed_rounds":[],"written_nanoseconds":""})",
        R"({"news":"maybe","node_rank":0,"host":"h","failures":[]})",
        R"({"news":"done","node_rank":0,"host":"h","failures":[1]})"}) {
    EXPECT_FALSE(decode_introduction(text)) << text;
    EXPECT_FALSE(decode_placing(text)) << text;
    EXPECT_FALSE(decode_word(text)) << text;
  }
}

}  // namespace
}  // namespace muster::agent
