#include "muster/rendezvous/settings.h"

#include "muster/rendezvous/parameters.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <utility>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

template <typename T>
std::string refusal(const Result<T>& made) {
  if (made) return "";
  EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
  return made.error().message;
}

Parameters with(Config config) {
  return {.backend = "c10d",
          .run_id = "run",
          .min_nodes = 2,
          .max_nodes = 4,
          .config = std::move(config)};
}

TEST(Timeouts, HaveTheirDefaultsUnlessSet) {
  const auto defaults = Timeouts::create({});
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->join, 600s);
  EXPECT_EQ(defaults->last_call, 30s);
  EXPECT_EQ(defaults->close, 30s);
  EXPECT_EQ(defaults->heartbeat, 5s);
  const auto set = Timeouts::create({.join = 50s, .last_call = 1ms, .close = 70s, .heartbeat = 8s});
  ASSERT_TRUE(set);
  EXPECT_EQ(*set, (Timeouts{.join = 50s, .last_call = 1ms, .close = 70s, .heartbeat = 8s}));
}

TEST(Timeouts, RefuseWhatIsNotPositiveNamingTheTimeoutAndItsValue) {
  for (const Duration length : {Duration(0s), Duration(-10s)}) {
    const std::string value = length == 0s ? "not 0s" : "not -10s";
    const std::pair<std::string, TimeoutOptions> cases[] = {
        {"join_timeout", {.join = length}},
        {"last_call_timeout", {.last_call = length}},
        {"regroup_timeout", {.regroup = length}},
        {"close_timeout", {.close = length}},
        {"heartbeat_timeout", {.heartbeat = length}}};
    for (const auto& [name, options] : cases) {
      const std::string message = refusal(Timeouts::create(options));
      EXPECT_TRUE(contains(message, name)) << message;
      EXPECT_TRUE(contains(message, value)) << message;
    }
  }
}

TEST(Timeouts, HaveALongestLength) {
  EXPECT_TRUE(Timeouts::create({.join = kSettingDurationMax}));
  EXPECT_TRUE(contains(refusal(Timeouts::create({.join = kSettingDurationMax + 1ns})), "at most"));
}

TEST(Settings, AreAcceptedWithTheirDefaults) {
  const auto made = Settings::create({.run_id = "run", .min_nodes = 1, .max_nodes = 3});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->keep_alive_interval, 5s);
  EXPECT_EQ(made->keep_alive_max_attempt, 3);
  EXPECT_EQ(made->window(), 15s);
  EXPECT_EQ(made->grace, 500ms);
}

TEST(Settings, NeedARunIdAndLimitsThatFit) {
  EXPECT_TRUE(contains(refusal(Settings::create({.run_id = ""})), "run id"));
  EXPECT_TRUE(contains(refusal(Settings::create({.run_id = "r", .min_nodes = 0})), "not 0"));
  const std::string both =
      refusal(Settings::create({.run_id = "r", .min_nodes = 3, .max_nodes = 2}));
  EXPECT_TRUE(contains(both, "(2)") && contains(both, "(3)")) << both;
}

TEST(Settings, RefuseTimesThatAreNotPositive) {
  Settings settings{.run_id = "r"};
  settings.keep_alive_interval = 0s;
  EXPECT_TRUE(contains(refusal(Settings::create(settings)), "keep_alive_interval"));
  settings = Settings{.run_id = "r"};
  settings.keep_alive_max_attempt = 0;
  EXPECT_TRUE(contains(refusal(Settings::create(settings)), "keep_alive_max_attempt"));
  settings = Settings{.run_id = "r"};
  settings.grace = -1ms;
  EXPECT_TRUE(contains(refusal(Settings::create(settings)), "grace"));
  settings.grace = 0ms;
  EXPECT_TRUE(Settings::create(settings));
  settings.timeouts.close = -1s;
  EXPECT_TRUE(contains(refusal(Settings::create(settings)), "close_timeout"));
}

TEST(Settings, RefuseAWindowThatWouldOverflow) {
  Settings settings{.run_id = "r"};
  settings.keep_alive_max_attempt = kSettingDurationMax / 5s;
  ASSERT_TRUE(Settings::create(settings));
  EXPECT_LE(settings.window(), kSettingDurationMax);
  ++settings.keep_alive_max_attempt;
  EXPECT_NE(refusal(Settings::create(settings)), "");
  settings.keep_alive_max_attempt = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(refusal(Settings::create(settings)), "");
}

// Row 106
TEST(SettingsFrom, ReadsTheTimeoutsFromOptionsInSeconds) {
  const auto made = settings_from(with({{"join_timeout", "50"},
                                        {"last_call_timeout", "60"},
                                        {"regroup_timeout", "100ms"},
                                        {"close_timeout", "70"},
                                        {"heartbeat_timeout", "8"},
                                        {"keep_alive_interval", "2"},
                                        {"keep_alive_max_attempt", "4"},
                                        {"grace", "250ms"}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(
      made->timeouts,
      (Timeouts{.join = 50s, .last_call = 60s, .regroup = 100ms, .close = 70s, .heartbeat = 8s}));
  EXPECT_EQ(made->window(), 8s);
  EXPECT_EQ(made->grace, 250ms);
  EXPECT_EQ(made->run_id, "run");
  EXPECT_EQ(made->min_nodes, 2);
  EXPECT_EQ(made->max_nodes, 4);
}

// Row 106
TEST(SettingsFrom, LeavesTheDefaultsWhereThereAreNoOptions) {
  const auto made = settings_from(with({}));
  ASSERT_TRUE(made);
  EXPECT_EQ(*made, (Settings{.run_id = "run", .min_nodes = 2, .max_nodes = 4}));
  EXPECT_EQ(made->timeouts.join, 600s);
  EXPECT_EQ(made->timeouts.last_call, 30s);
  EXPECT_EQ(made->timeouts.close, 30s);
  EXPECT_EQ(made->timeouts.heartbeat, 5s);
}

TEST(SettingsFrom, TakesNullAsUnsetExceptForTheKeepAlive) {
  const auto made = settings_from(with({{"join_timeout", Null()}, {"grace", Null()}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->timeouts.join, 600s);
  EXPECT_EQ(made->grace, 500ms);
  for (const char* option : {"keep_alive_interval", "keep_alive_max_attempt"}) {
    const std::string message = refusal(settings_from(with({{option, Null()}})));
    EXPECT_TRUE(contains(message, option)) << message;
  }
}

TEST(SettingsFrom, RefusesUnusableOptionsNamingThem) {
  for (const char* option :
       {"join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout",
        "keep_alive_interval", "keep_alive_max_attempt"}) {
    for (const char* value : {"0", "-3", "x", "9223372036854775807"}) {
      const std::string message = refusal(settings_from(with({{option, value}})));
      EXPECT_TRUE(contains(message, option)) << option << "=" << value << ": " << message;
    }
  }
  EXPECT_NE(refusal(settings_from(with({{"grace", "-1"}}))), "");
  Parameters nameless = with({});
  nameless.run_id = "";
  EXPECT_NE(refusal(settings_from(nameless)), "");
}

}  // namespace
}  // namespace muster::rendezvous
