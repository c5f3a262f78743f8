#include "muster/rendezvous/registry.h"

#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A handler that has a name and does nothing.
class NamedHandler final : public Handler {
 public:
  explicit NamedHandler(std::string name) : name_(std::move(name)) {}
  std::string_view backend() const override { return name_; }
  const std::string& run_id() const override { return name_; }
  Task<Result<Info>> next_rendezvous() override { co_return Info(); }
  Task<Result<bool>> is_closed() override { co_return false; }
  Task<Result<>> set_closed() override { co_return Result<>(); }
  Task<Result<std::int64_t>> num_nodes_waiting() override { co_return 0; }
  Task<Result<bool>> shutdown() override { co_return true; }
  Task<Result<>> leave() override { co_return Result<>(); }
  Status status() const override { return {}; }
  Task<Result<Status>> wait_status(Status seen, TimePoint) override { co_return seen; }

 private:
  std::string name_;
};

Task<Result<std::unique_ptr<Handler>>> make_named(std::string name) {
  co_return std::make_unique<NamedHandler>(std::move(name));
}

Task<Result<std::unique_ptr<Handler>>> make_after(Loop& loop, std::string name) {
  co_await sleep_until(loop, loop.now() + std::chrono::seconds(1));
  co_return std::make_unique<NamedHandler>(std::move(name));
}

std::shared_ptr<const Creator> creator_of(std::string origin, std::string name) {
  return make_creator(std::move(origin),
                      [name](const Parameters&, Environment&) { return make_named(name); });
}

class RegistryTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Handler>> create(const Parameters& parameters) {
    return loop_.block_on(registry_.create(parameters, environment_));
  }

  sim::Loop loop_;
  Random random_{1};
  Environment environment_{loop_, random_, nullptr};
  Registry registry_;
};

// Row 24
TEST_F(RegistryTest, TakesTheSameCreatorTwiceAndNoOtherUnderItsName) {
  const auto creator = creator_of("the first", "x");
  EXPECT_TRUE(registry_.add("x", creator));
  EXPECT_TRUE(registry_.add("x", creator));
  const auto refused = registry_.add("x", creator_of("the second", "x"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  for (const char* part : {"\"x\"", "the first", "the second"})
    EXPECT_TRUE(contains(refused.error().message, part)) << refused.error().message;
  EXPECT_EQ(registry_.names(), std::vector<std::string>{"x"});
}

TEST_F(RegistryTest, TakesOneCreatorUnderSeveralNames) {
  const auto creator = creator_of("built-in", "etcd");
  EXPECT_TRUE(registry_.add("etcd-v2", creator));
  EXPECT_TRUE(registry_.add("etcd", creator));
  EXPECT_EQ(registry_.names(), (std::vector<std::string>{"etcd", "etcd-v2"}));
  EXPECT_TRUE(registry_.has("etcd"));
  EXPECT_FALSE(registry_.has("etc"));
}

TEST_F(RegistryTest, RefusesAnEmptyName) {
  const auto refused = registry_.add("", creator_of("any", ""));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
}

// Row 25
TEST_F(RegistryTest, SaysThatABackendIsUnknownAndThatNoneIsRegistered) {
  const auto made = create({.backend = "dummy"});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
  EXPECT_TRUE(contains(made.error().message, "\"dummy\"")) << made.error().message;
  EXPECT_TRUE(contains(made.error().message, "register")) << made.error().message;
}

TEST_F(RegistryTest, SuggestsABackendAndListsTheOthers) {
  ASSERT_TRUE(registry_.add("static", creator_of("built-in", "static")));
  ASSERT_TRUE(registry_.add("c10d", creator_of("built-in", "c10d")));
  const auto made = create({.backend = "c1od"});
  ASSERT_FALSE(made);
  EXPECT_TRUE(contains(made.error().message, "did you mean c10d?")) << made.error().message;
  EXPECT_TRUE(contains(made.error().message, "c10d, static")) << made.error().message;
}

// Row 26
TEST_F(RegistryTest, RefusesAHandlerThatCallsItselfSomethingElse) {
  ASSERT_TRUE(registry_.add("x", creator_of("the creator", "y")));
  const auto made = create({.backend = "x"});
  ASSERT_FALSE(made);
  EXPECT_TRUE(contains(made.error().message, "\"x\"")) << made.error().message;
  EXPECT_TRUE(contains(made.error().message, "\"y\"")) << made.error().message;
  EXPECT_TRUE(contains(made.error().message, "the creator")) << made.error().message;
}

TEST_F(RegistryTest, HandsTheVeryParametersToTheCreator) {
  const Parameters* seen = nullptr;
  const Environment* seen_environment = nullptr;
  ASSERT_TRUE(registry_.add(
      "x", make_creator("any", [&](const Parameters& parameters, Environment& environment) {
        seen = &parameters;
        seen_environment = &environment;
        return make_named("x");
      })));
  const Parameters parameters{.backend = "x"};
  const auto made = create(parameters);
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)->backend(), "x");
  EXPECT_EQ(seen, &parameters);
  EXPECT_EQ(seen_environment, &environment_);
}

TEST_F(RegistryTest, WaitsForACreatorThatTakesTime) {
  ASSERT_TRUE(registry_.add(
      "slow", make_creator("any", [](const Parameters& parameters, Environment& environment) {
        return make_after(environment.loop, parameters.backend);
      })));
  const auto made = create({.backend = "slow"});
  ASSERT_TRUE(made);
  EXPECT_EQ(loop_.now(), TimePoint(std::chrono::seconds(1)));
}

TEST_F(RegistryTest, PassesOnTheCreatorsError) {
  ASSERT_TRUE(registry_.add("x", make_creator("any", [](const Parameters&, Environment&) {
                              return [](ErrorKind kind) -> Task<Result<std::unique_ptr<Handler>>> {
                                co_return fail(kind, "no store there");
                              }(ErrorKind::Unavailable);
                            })));
  const auto made = create({.backend = "x"});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error(), (Error{ErrorKind::Unavailable, "no store there"}));
}

}  // namespace
}  // namespace muster::rendezvous
