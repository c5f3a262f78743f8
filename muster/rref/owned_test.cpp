#include "muster/rref/owned.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster::rref {
namespace {

std::shared_ptr<rpc::Object> object_of(std::int64_t number) {
  return std::make_shared<rpc::TypedObject<std::int64_t>>(number);
}
std::int64_t number_in(const Owned::Outcome& outcome) {
  return static_cast<rpc::TypedObject<std::int64_t>&>(**outcome).value();
}
Owned::Outcome failure() {
  return rpc::call_failed({rpc::CallErrorKind::Remote, "it broke", "", true});
}

TEST(Owned, gives_its_value_to_those_who_waited_and_to_those_who_come_later) {
  Owned owned(GlobalId(1, 2), "i64");
  EXPECT_EQ(owned.object(), nullptr);
  const ObjectFuture early = owned.value();
  std::vector<std::int64_t> seen;
  early.on_done([&](const Owned::Outcome& outcome) { seen.push_back(number_in(outcome)); });
  EXPECT_FALSE(early.done());
  owned.set(object_of(7));
  EXPECT_EQ(seen, std::vector<std::int64_t>{7});
  ASSERT_TRUE(owned.value().done());
  EXPECT_EQ(number_in(owned.value().wait()), 7);
  EXPECT_EQ(number_in(owned.wait()), 7);
  EXPECT_EQ(early.wait().value(), owned.object()) << "there is one object";
}

TEST(Owned, keeps_the_first_outcome) {
  Owned made(GlobalId(1, 2), "i64");
  made.set(object_of(7));
  made.set(object_of(8));
  made.set(failure());
  EXPECT_EQ(number_in(made.wait()), 7);

  Owned failed(GlobalId(1, 3), "i64");
  failed.set(failure());
  failed.set(object_of(8));
  EXPECT_EQ(failed.object(), nullptr);
  const auto outcome = failed.wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, "it broke");
}

TEST(Owned, that_goes_without_a_value_does_not_leave_anybody_waiting) {
  auto owned = std::make_unique<Owned>(GlobalId(1, 2), "i64");
  const ObjectFuture value = owned->value();
  owned.reset();
  ASSERT_TRUE(value.done());
  EXPECT_FALSE(value.wait());
}

TEST(Owned, holds_the_value_and_lets_go_of_it) {
  std::weak_ptr<rpc::Object> object;
  {
    Owned owned(GlobalId(1, 2), "i64");
    const ObjectFuture early = owned.value();
    owned.set(object_of(7));
    object = owned.object();
    EXPECT_FALSE(object.expired());
  }
  EXPECT_TRUE(object.expired());
}

}  // namespace
}  // namespace muster::rref
