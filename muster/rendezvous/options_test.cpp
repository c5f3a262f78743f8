#include "muster/rendezvous/options.h"

#include "muster/rendezvous/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Parameters with(Config config) { return {.backend = "c10d", .config = std::move(config)}; }

std::string refusal(std::string_view backend, const Config& config) {
  const auto checked = check_options(backend, config);
  if (checked) return "";
  EXPECT_EQ(checked.error().kind, ErrorKind::Invalid);
  return checked.error().message;
}

// Row 12
TEST(ParseOptions, SplitsAtCommasAndAtTheFirstEqualsSignAndTrims) {
  const auto config = parse_options(" b= dummy2  ,c=dummy3=dummy4,  a =dummy1,d=dummy5/dummy6");
  ASSERT_TRUE(config);
  EXPECT_EQ(
      *config,
      (Config{{"a", "dummy1"}, {"b", "dummy2"}, {"c", "dummy3=dummy4"}, {"d", "dummy5/dummy6"}}));
}

// Row 13
TEST(ParseOptions, MakesAnEmptyMapOfNothing) {
  EXPECT_EQ(*parse_options(""), Config());
  EXPECT_EQ(*parse_options("   "), Config());
}

// Row 14
TEST(ParseOptions, RefusesAnItemWithoutAKeyAsAFormatError) {
  for (const std::string_view text :
       {"a=1,", "a=1,,c=2", "a=1,   ,c=2", "a=1, = ,c=2", " ,  ", ",", "=", "=1", " = "}) {
    const auto config = parse_options(text);
    ASSERT_FALSE(config) << text;
    EXPECT_EQ(config.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(config.error().message, "key=value")) << config.error().message;
  }
}

// Row 15
TEST(ParseOptions, RefusesAKeyWithoutAValueNamingTheKey) {
  for (const std::string_view text : {"b=1,a,c=2", "b=1,a=,c=2", "  a ", "a= "}) {
    const auto config = parse_options(text);
    ASSERT_FALSE(config) << text;
    EXPECT_EQ(config.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(config.error().message, "\"a\" needs a value")) << config.error().message;
  }
}

TEST(ParseOptions, LetsTheLastValueOfARepeatedKeyWin) {
  EXPECT_EQ(*parse_options("a=1,b=2,a=3"), (Config{{"a", "3"}, {"b", "2"}}));
}

TEST(OptionCatalogue, HasEachNameOnceWithAMeaningAndKnownBackends) {
  const std::set<std::string_view> backends = {"muster", "c10d",    "file",
                                               "etcd",   "etcd-v2", "static"};
  std::set<std::string_view> names;
  for (const Option& option : option_catalogue()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_FALSE(option.meaning.empty()) << option.name;
    EXPECT_FALSE(option.backends.empty()) << option.name;
    for (const std::string_view backend : option.backends)
      EXPECT_TRUE(backends.contains(backend)) << option.name << " " << backend;
    EXPECT_EQ(option.type == OptionType::Word, !option.words.empty()) << option.name;
    if (!option.same_as.empty()) {
      ASSERT_NE(find_option(option.same_as), nullptr) << option.name;
      EXPECT_EQ(find_option(option.same_as)->type, option.type) << option.name;
    }
  }
  EXPECT_EQ(find_option("no_such_option"), nullptr);
}

TEST(OptionCatalogue, HasDefaultsThatPassItsOwnChecks) {
  for (const Option& option : option_catalogue()) {
    if (option.otherwise.empty()) continue;
    Config config{{std::string(option.name), std::string(option.otherwise)}};
    EXPECT_EQ(refusal(option.backends.front(), config), "") << option.name;
  }
}

TEST(CheckOptions, AcceptsWhatTheBackendUses) {
  EXPECT_TRUE(check_options("c10d", {})->empty());
  EXPECT_TRUE(check_options("c10d", {{"join_timeout", "60"},
                                     {"last_call_timeout", 1},
                                     {"close_timeout", "10"},
                                     {"heartbeat_timeout", "2"},
                                     {"keep_alive_interval", "1"},
                                     {"keep_alive_max_attempt", "2"},
                                     {"grace", "250ms"},
                                     {"store_type", " tCp "},
                                     {"is_host", "yes"},
                                     {"read_timeout", "5"}})
                  ->empty());
  EXPECT_TRUE(check_options("etcd", {{"protocol", "hTTps"},
                                     {"cert", "a.pem"},
                                     {"key", "a.key"},
                                     {"cacert", "ca.pem"},
                                     {"etcd_prefix", "/x"},
                                     {"user", "root"},
                                     {"password", "secret"}})
                  ->empty());
  EXPECT_TRUE(check_options("static", {{"rank", "0"}, {"timeout", "900"}})->empty());
}

TEST(CheckOptions, RefusesAnUnknownOptionWithASuggestion) {
  const std::string message = refusal("c10d", {{"join_timeuot", "60"}});
  EXPECT_TRUE(contains(message, "c10d")) << message;
  EXPECT_TRUE(contains(message, "\"join_timeuot\"")) << message;
  EXPECT_TRUE(contains(message, "did you mean join_timeout?")) << message;
}

TEST(CheckOptions, SuggestsTheWholeNameForItsBeginning) {
  const std::string message = refusal("c10d", {{"heartbeat", "60"}});
  EXPECT_TRUE(contains(message, "did you mean heartbeat_timeout?")) << message;
}

TEST(CheckOptions, SuggestsOnlyWhatTheBackendUses) {
  const std::string message = refusal("static", {{"timeouts", "60"}});
  EXPECT_TRUE(contains(message, "did you mean timeout?")) << message;
  EXPECT_FALSE(contains(refusal("c10d", {{"ssl_certs", "x"}}), "did you mean")) << message;
}

TEST(CheckOptions, ListsTheOptionsWhenNoneIsNear) {
  const std::string message = refusal("static", {{"completely_different", "60"}});
  EXPECT_TRUE(contains(message, "it has: timeout, rank")) << message;
}

TEST(CheckOptions, RefusesAnOptionOfOtherBackendsAndSaysWhose) {
  const std::string message = refusal("c10d", {{"ssl_cert", "x"}});
  EXPECT_TRUE(contains(message, "backend c10d does not use the option ssl_cert")) << message;
  EXPECT_TRUE(contains(message, "etcd, etcd-v2 do")) << message;
  EXPECT_NE(refusal("etcd", {{"store_type", "tcp"}}), "");
  EXPECT_NE(refusal("static", {{"join_timeout", "5"}}), "");
  EXPECT_NE(refusal("file", {{"grace", "1"}}), "");
}

TEST(CheckOptions, OnlyWarnsAboutWhatLaunchersAlwaysPass) {
  for (const std::string_view backend : {"muster", "c10d", "file", "etcd", "etcd-v2"}) {
    const auto checked = check_options(backend, {{"timeout", "900"}, {"rank", "0"}});
    ASSERT_TRUE(checked) << backend;
    ASSERT_EQ(checked->size(), 2U) << backend;
    EXPECT_TRUE(contains(checked->at(0), "rank")) << checked->at(0);
    EXPECT_TRUE(contains(checked->at(1), "timeout")) << checked->at(1);
    EXPECT_TRUE(contains(checked->at(1), backend)) << checked->at(1);
    EXPECT_TRUE(contains(checked->at(1), "join_timeout")) << checked->at(1);
  }
}

TEST(CheckOptions, LeavesBackendsOfOthersAlone) {
  const auto checked = check_options("someone_elses", {{"anything", "goes"}, {"rank", "-3"}});
  ASSERT_TRUE(checked);
  EXPECT_TRUE(checked->empty());
}

// Rows 37, 43 and 45, as far as they are about values.
TEST(CheckOptions, RefusesUnusableValuesNamingOptionAndValue) {
  const std::vector<std::pair<std::string_view, std::pair<std::string, Value>>> cases = {
      {"c10d", {"keep_alive_interval", "0"}},
      {"c10d", {"keep_alive_interval", -5}},
      {"c10d", {"keep_alive_interval", Null()}},
      {"c10d", {"keep_alive_interval", "soon"}},
      {"c10d", {"keep_alive_max_attempt", "0"}},
      {"c10d", {"keep_alive_max_attempt", Null()}},
      {"c10d", {"read_timeout", "0"}},
      {"c10d", {"read_timeout", "-10"}},
      {"muster", {"read_timeout", 0}},
      {"etcd", {"read_timeout", -10}},
      {"c10d", {"store_type", "dummy"}},
      {"c10d", {"store_type", 5}},
      {"c10d", {"is_host", "maybe"}},
      {"c10d", {"grace", "-1"}},
      {"c10d", {"grace", "later"}},
      {"c10d", {"grace", "2000000h"}},
      {"c10d", {"join_timeout", "0"}},
      {"c10d", {"join_timeout", "1.5"}},
      {"c10d", {"join_timeout", "9223372036854775807"}},
      {"c10d", {"last_call_timeout", "-1"}},
      {"c10d", {"close_timeout", "x"}},
      {"c10d", {"heartbeat_timeout", "0"}},
      {"etcd", {"protocol", "dummy"}},
      {"etcd", {"etcd_prefix", ""}},
      {"static", {"rank", "-1"}},
      {"static", {"rank", "first"}},
      {"static", {"timeout", "0"}}};
  for (const auto& [backend, option] : cases) {
    const auto& [name, value] = option;
    const std::string message = refusal(backend, {{name, value}});
    EXPECT_TRUE(contains(message, name)) << name << " " << describe(value) << ": " << message;
    EXPECT_TRUE(contains(message, describe(value))) << name << ": " << message;
  }
}

TEST(CheckOptions, TakesNullAsNotGivenWhereItMayBe) {
  EXPECT_EQ(refusal("c10d", {{"join_timeout", Null()}, {"store_type", Null()}, {"grace", Null()}}),
            "");
  EXPECT_EQ(refusal("etcd", {{"ssl_cert", Null()}, {"user", Null()}}), "");
}

TEST(CheckOptions, RefusesOptionsThatContradictOneAnother) {
  const std::string twice =
      refusal("etcd", {{"protocol", "https"}, {"cert", "a"}, {"ssl_cert", "b"}});
  EXPECT_TRUE(contains(twice, "ssl_cert and cert are the same")) << twice;
  const std::string lone_key = refusal("etcd", {{"protocol", "https"}, {"key", "a"}});
  EXPECT_TRUE(contains(lone_key, "ssl_cert_key needs the option ssl_cert")) << lone_key;
  const std::string plain = refusal("etcd", {{"cacert", "a"}});
  EXPECT_TRUE(contains(plain, "ca_cert needs protocol=https")) << plain;
  const std::string nobody = refusal("etcd", {{"password", "a"}});
  EXPECT_TRUE(contains(nobody, "password needs the option user")) << nobody;
  const std::string no_password = refusal("etcd", {{"user", "a"}});
  EXPECT_TRUE(contains(no_password, "needs the option password or password_file")) << no_password;
  const std::string both =
      refusal("etcd", {{"user", "a"}, {"password", "b"}, {"password_file", "c"}});
  EXPECT_TRUE(contains(both, "exclude one another")) << both;
  EXPECT_EQ(refusal("etcd", {{"protocol", "https"}, {"cert", "a"}, {"ssl_cert_key", "b"}}), "");
}

TEST(ReadingAnOption, GivesItsValueOrItsDefault) {
  EXPECT_EQ(*duration_option(with({}), "read_timeout"), 60s);
  EXPECT_EQ(*duration_option(with({{"read_timeout", "7"}}), "read_timeout"), 7s);
  EXPECT_EQ(*duration_option(with({{"read_timeout", Null()}}), "read_timeout"), 60s);
  EXPECT_FALSE(duration_option(with({{"read_timeout", -10}}), "read_timeout"));
  EXPECT_EQ(*duration_option(with({}), "grace"), 500ms);
  EXPECT_EQ(*duration_option(with({{"grace", "2s"}}), "grace"), 2s);
  EXPECT_EQ(*int_option(with({}), "keep_alive_max_attempt"), 3);
  EXPECT_EQ(*int_option(with({{"rank", "0"}}), "rank"), 0);
}

// Rows 37 and 45
TEST(ReadingAnOption, TakesWordsInAnyCaseWithSpacesAround) {
  EXPECT_EQ(*word_option(with({{"store_type", "tCp"}}), "store_type"), "tcp");
  EXPECT_EQ(*word_option(with({{"store_type", " fIlE "}}), "store_type"), "file");
  EXPECT_EQ(*word_option(with({}), "store_type"), "tcp");
  EXPECT_EQ(word_option(with({{"store_type", "dummy"}}), "store_type").error().kind,
            ErrorKind::Invalid);
  EXPECT_EQ(*word_option(with({{"protocol", "hTTp"}}), "protocol"), "http");
  EXPECT_EQ(word_option(with({{"protocol", "dummy"}}), "protocol").error().kind,
            ErrorKind::Invalid);
}

TEST(ReadingAnOption, FindsATextByEitherOfItsNames) {
  EXPECT_EQ(*text_option(with({{"cert", "a"}}), "ssl_cert"), "a");
  EXPECT_EQ(*text_option(with({{"ssl_cert", "b"}}), "ssl_cert"), "b");
  EXPECT_EQ(*text_option(with({{"ssl_cert", Null()}, {"cert", "c"}}), "ssl_cert"), "c");
  EXPECT_EQ(*text_option(with({}), "ssl_cert"), std::nullopt);
  EXPECT_EQ(*text_option(with({}), "etcd_prefix"), "/torchelastic/p2p");
  EXPECT_FALSE(text_option(with({{"ssl_cert", 5}}), "ssl_cert"));
}

}  // namespace
}  // namespace muster::rendezvous
