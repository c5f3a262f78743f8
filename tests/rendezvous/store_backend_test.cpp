// What the contract does not say: which keys there are, and what happens when connections break.
#include "muster/rendezvous/store_backend.h"

#include "muster/sim/loop.h"
#include "muster/store/memory_store.h"
#include "tests/rendezvous/faulty_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::FaultyStore;

class StoreBackendTest : public ::testing::Test {
 protected:
  template <typename T>
  T await(Task<T> task) {
    return loop.block_on(std::move(task));
  }
  Result<std::optional<Written>> write(std::string blob, std::optional<Token> token,
                                       bool signal = false) {
    return await(backend->set_state(std::move(blob), std::move(token), signal));
  }
  std::vector<std::string> keys(std::string prefix) {
    return *await(memory->list_keys(std::move(prefix)));
  }

  sim::Loop loop;
  Random random{3};
  std::unique_ptr<store::Store> memory = store::make_memory_store(loop);
  FaultyStore store{*memory};
  std::unique_ptr<Backend> backend = make_store_backend(loop, store, random, "run");
};

TEST_F(StoreBackendTest, KeepsOutOfTheWayOfOtherRunsAndPrograms) {
  ASSERT_TRUE(write("x", std::nullopt, true));
  ASSERT_TRUE(await(backend->beat("node", 1min)));
  for (const std::string& key : keys(""))
    EXPECT_TRUE(key.starts_with("muster.rendezvous.run")) << key;
  auto other = make_store_backend(loop, store, random, "other");
  EXPECT_FALSE(*await(other->get_state()));
  EXPECT_FALSE((*await(other->signs({"node"})))[0].present);
}

TEST_F(StoreBackendTest, KeepsOneBlobOnly) {
  auto written = write("first", std::nullopt);
  for (int i = 0; i < 10; ++i) {
    written = write("blob " + std::to_string(i), (**written).now.token);
    ASSERT_TRUE((**written).was_set);
    // Those who lose leave nothing, either.
    EXPECT_FALSE((**write("loser", Token("malformed"))).was_set);
    EXPECT_FALSE((**write("loser", std::nullopt)).was_set);
  }
  EXPECT_EQ(keys("muster.rendezvous.run/state/").size(), 1U);
}

TEST_F(StoreBackendTest, KeepsFewSignals) {
  auto written = write("first", std::nullopt, true);
  for (int i = 0; i < 200; ++i) written = write("next", (**written).now.token, true);
  EXPECT_EQ(keys("muster.rendezvous.run/signal/").size(), 64U);
}

TEST_F(StoreBackendTest, FindsOutThatAWriteTookEffectWhoseAnswerWasLost) {
  const auto first = write("first", std::nullopt);
  store.compare_set_breaks = FaultyStore::Break::After;
  const auto second = write("second", (**first).now.token, true);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_TRUE((**second).was_set);
  EXPECT_EQ(*await(backend->get_state()), (**second).now);
  // And the signal was given.
  EXPECT_TRUE(*await(backend->wait_signal((**first).now.token, false, loop.now())));
}

TEST_F(StoreBackendTest, DoesNotTakeAnUnansweredWriteForALostState) {
  // Whether the store will still see it, nobody knows.
  for (const bool is_first : {true, false}) {
    std::optional<Token> token;
    if (!is_first) token = (**write("first", std::nullopt)).now.token;
    store.compare_set_breaks = FaultyStore::Break::Before;
    const auto written = write("mine", token);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().kind, ErrorKind::Unavailable);
  }
}

TEST_F(StoreBackendTest, HasLostWhenSomebodyElseHasWrittenMeanwhile) {
  const auto first = write("first", std::nullopt);
  auto rival = make_store_backend(loop, *memory, random, "run");
  const auto second = await(rival->set_state("rival", (**first).now.token, false));
  ASSERT_TRUE((**second).was_set);
  store.compare_set_breaks = FaultyStore::Break::Before;
  const auto written = write("mine", (**first).now.token);
  ASSERT_TRUE(written);
  EXPECT_FALSE((**written).was_set);
  EXPECT_EQ((**written).now, (**second).now);
}

TEST_F(StoreBackendTest, IsUnavailableWhenTheStoreIs) {  // B7
  const auto first = write("first", std::nullopt);
  store.unreachable = true;
  const Token token = (**first).now.token;
  EXPECT_EQ(await(backend->get_state()).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(write("x", token).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->wait_signal(token, false, kNever)).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->beat("n", 1s)).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->retire("n")).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->signs({"n"})).error().kind, ErrorKind::Unavailable);
}

TEST_F(StoreBackendTest, DoesWithoutDeletion) {
  store.cannot_delete = true;
  auto written = write("first", std::nullopt, true);
  for (int i = 0; i < 3; ++i) {
    written = write("blob " + std::to_string(i), (**written).now.token, true);
    ASSERT_TRUE((**written).was_set);
  }
  EXPECT_EQ((*await(backend->get_state()))->blob, "blob 2");
  ASSERT_TRUE(await(backend->take_wish_number()));
  ASSERT_TRUE(await(backend->wish("n", 1, "one")));
  await(backend->clear_wishes({1}));
  EXPECT_EQ(keys("muster.rendezvous.run/wish/1").size(), 1U);
  // Nobody looks at it again.
  EXPECT_TRUE((*await(backend->wishes({1, {}}))).empty());
}

TEST_F(StoreBackendTest, CannotWishWhenTheStoreCannotBeReached) {
  ASSERT_TRUE(await(backend->take_wish_number()));
  store.unreachable = true;
  EXPECT_EQ(await(backend->take_wish_number()).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->wish("n", 1, "one")).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->withdraw("n", 1)).error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(await(backend->wishes({})).error().kind, ErrorKind::Unavailable);
}

TEST_F(StoreBackendTest, ReportsAPointerToNothing) {  // B8
  ASSERT_TRUE(write("first", std::nullopt));
  for (std::string& key : keys("muster.rendezvous.run/state/"))
    ASSERT_TRUE(await(memory->delete_key(std::move(key))));
  EXPECT_EQ(await(backend->get_state()).error().kind, ErrorKind::Corrupt);
}

TEST_F(StoreBackendTest, DoesNotMistakeABeatOfANodeThatBeganAnewForAnOldOne) {
  ASSERT_TRUE(await(backend->beat("n", 1min)));
  const auto before = (*await(backend->signs({"n"})))[0].mark;
  ASSERT_TRUE(await(backend->retire("n")));
  ASSERT_TRUE(await(backend->beat("n", 1min)));
  EXPECT_NE((*await(backend->signs({"n"})))[0].mark, before);
}

}  // namespace
}  // namespace muster::rendezvous
