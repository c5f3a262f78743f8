#include "muster/rendezvous/parameters.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Parameters sized(std::int64_t min_nodes, std::int64_t max_nodes) {
  return {.backend = "dummy", .min_nodes = min_nodes, .max_nodes = max_nodes};
}

Parameters with(Value value) { return {.backend = "dummy", .config = {{"opt", std::move(value)}}}; }

// Row 1
TEST(Parameters, NeedABackend) {
  const auto made = Parameters::create({.backend = ""});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
  EXPECT_TRUE(contains(made.error().message, "backend")) << made.error().message;
}

// Row 2
TEST(Parameters, RefuseAMaximumBelowTheMinimumAndNameBoth) {
  for (const std::int64_t max_nodes : {2, 1, -2}) {
    const auto made = Parameters::create(sized(3, max_nodes));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(made.error().message, "(3)")) << made.error().message;
    EXPECT_TRUE(contains(made.error().message, "(" + std::to_string(max_nodes) + ")"))
        << made.error().message;
  }
}

// Row 3
TEST(Parameters, RefuseAMinimumBelowOneAndNameIt) {
  for (const std::int64_t min_nodes : {0, -1, -5}) {
    const auto made = Parameters::create(sized(min_nodes, 3));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(made.error().message, "not " + std::to_string(min_nodes)))
        << made.error().message;
  }
}

TEST(Parameters, AreCheckedInTheOrderBackendMinimumMaximum) {
  const auto all_wrong = Parameters::create({.backend = "", .min_nodes = 0, .max_nodes = -7});
  EXPECT_TRUE(contains(all_wrong.error().message, "backend"));
  const auto two_wrong = Parameters::create(sized(0, -7));
  EXPECT_TRUE(contains(two_wrong.error().message, "minimum")) << two_wrong.error().message;
  EXPECT_FALSE(contains(two_wrong.error().message, "-7")) << two_wrong.error().message;
}

// Row 4
TEST(Parameters, AcceptEqualAndDifferentLimits) {
  EXPECT_TRUE(Parameters::create(sized(3, 3)));
  const auto made = Parameters::create(sized(1, 6));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->min_nodes, 1);
  EXPECT_EQ(made->max_nodes, 6);
}

TEST(Parameters, DoNotJudgeEndpointAndRunId) {
  const auto made = Parameters::create({.backend = "x", .endpoint = "", .run_id = ""});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->endpoint, "");
  EXPECT_EQ(made->run_id, "");
  EXPECT_EQ(made->local_addr, "");
}

// Row 5
TEST(Parameters, GiveNullOrTheDefaultForAnAbsentOption) {
  const Parameters parameters = sized(1, 1);
  EXPECT_TRUE(parameters.get("opt").is_null());
  EXPECT_EQ(parameters.get("opt", "text"), Value("text"));
  EXPECT_EQ(*parameters.get_as_bool("opt"), std::nullopt);
  EXPECT_EQ(*parameters.get_as_bool("opt", true), true);
  EXPECT_EQ(*parameters.get_as_int("opt"), std::nullopt);
  EXPECT_EQ(*parameters.get_as_int("opt", 5), 5);
  EXPECT_EQ(*parameters.get_as_string("opt"), std::nullopt);
  EXPECT_EQ(*parameters.get_as_string("opt", "tcp"), "tcp");
  EXPECT_EQ(*parameters.get_as_duration("opt"), std::nullopt);
  EXPECT_EQ(*parameters.get_as_duration("opt", 0.5), 500ms);
}

TEST(Parameters, JudgeTheDefaultLikeAStoredValue) {
  const Parameters parameters = sized(1, 1);
  EXPECT_EQ(*parameters.get_as_bool("opt", "YES"), true);
  EXPECT_FALSE(parameters.get_as_bool("opt", "maybe"));
  EXPECT_EQ(*parameters.get_as_int("opt", " 7 "), 7);
  EXPECT_FALSE(parameters.get_as_int("opt", "seven"));
}

// Row 6
TEST(Parameters, ReadTheSpellingsOfTrue) {
  for (const Value& value :
       std::vector<Value>{"1", "True", "tRue", "T", "t", "yEs", "Y", 1, true}) {
    const auto read = with(value).get_as_bool("opt");
    ASSERT_TRUE(read) << describe(value);
    EXPECT_EQ(*read, true) << describe(value);
  }
}

// Row 7
TEST(Parameters, ReadTheSpellingsOfFalse) {
  for (const Value& value :
       std::vector<Value>{"0", "False", "faLse", "F", "f", "nO", "N", 0, false}) {
    const auto read = with(value).get_as_bool("opt");
    ASSERT_TRUE(read) << describe(value);
    EXPECT_EQ(*read, false) << describe(value);
  }
}

// Row 8
TEST(Parameters, RefuseEverythingElseAsABooleanNamingTheOption) {
  for (const Value& value : std::vector<Value>{
           "01", "Flse", "Ture", "g", "4", "_", "truefalse", 2, -1, "", " true", 1.0, "true ", "on",
           "off", 0.0, std::int64_t{1} << 40, OtherValue{"list"}, OtherValue{"bytes"}}) {
    const auto read = with(value).get_as_bool("opt");
    ASSERT_FALSE(read) << describe(value);
    EXPECT_EQ(read.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(read.error().message, "option opt ")) << read.error().message;
    EXPECT_TRUE(contains(read.error().message, describe(value))) << read.error().message;
  }
}

// Row 9
TEST(Parameters, ReadWholeNumbers) {
  const std::vector<std::pair<Value, std::int64_t>> cases = {
      {"0", 0},        {"-10", -10},   {"5", 5},  {"  4", 4}, {"4  ", 4},     {" 4 ", 4}, {0, 0},
      {-4, -4},        {3, 3},         {5.9, 5},  {true, 1},  {false, 0},     {-5.9, -5}, {"+7", 7},
      {"1_000", 1000}, {"1_2_3", 123}, {"-0", 0}, {"007", 7}, {"\t12\n", 12}, {-0.5, 0}};
  for (const auto& [value, number] : cases) {
    const auto read = with(value).get_as_int("opt");
    ASSERT_TRUE(read) << describe(value);
    EXPECT_EQ(*read, number) << describe(value);
  }
}

// Row 10
TEST(Parameters, RefuseEverythingElseAsAWholeNumberNamingTheOption) {
  for (const Value& value : std::vector<Value>{"a",
                                               "0a",
                                               "3b",
                                               "abc",
                                               "",
                                               "5.0",
                                               "0x10",
                                               "1e3",
                                               " ",
                                               "-",
                                               "+",
                                               "- 5",
                                               "--5",
                                               "+-5",
                                               "1__0",
                                               "_1",
                                               "1_",
                                               "-_1",
                                               "_",
                                               "1 2",
                                               OtherValue{"list"},
                                               OtherValue{"map"}}) {
    const auto read = with(value).get_as_int("opt");
    ASSERT_FALSE(read) << describe(value);
    EXPECT_EQ(read.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(read.error().message, "option opt ")) << read.error().message;
    EXPECT_TRUE(contains(read.error().message, describe(value))) << read.error().message;
  }
}

TEST(Parameters, HoldWholeNumbersOf64Bits) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(*with("9223372036854775807").get_as_int("opt"), kMax);
  EXPECT_EQ(*with("-9223372036854775808").get_as_int("opt"), kMin);
  EXPECT_EQ(*with(kMin).get_as_int("opt"), kMin);
  EXPECT_EQ(*with(-0x1p63).get_as_int("opt"), kMin);
  EXPECT_FALSE(with("9223372036854775808").get_as_int("opt"));
  EXPECT_FALSE(with("-9223372036854775809").get_as_int("opt"));
  EXPECT_FALSE(with("99999999999999999999999999").get_as_int("opt"));
  EXPECT_FALSE(with(0x1p63).get_as_int("opt"));
  EXPECT_FALSE(with(-1e19).get_as_int("opt"));
}

TEST(Parameters, RefuseWhatIsNotANumberOrInfinite) {
  using Limits = std::numeric_limits<double>;
  for (const double number : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    const auto read = with(number).get_as_int("opt");
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::Invalid);
    EXPECT_FALSE(with(number).get_as_duration("opt"));
  }
}

// Row 11
TEST(Parameters, LetAStoredNullWinOverTheDefault) {
  const Parameters parameters = with(Null());
  EXPECT_TRUE(parameters.get("opt", 5).is_null());
  EXPECT_EQ(*parameters.get_as_int("opt", 5), std::nullopt);
  EXPECT_EQ(*parameters.get_as_bool("opt", true), std::nullopt);
  EXPECT_EQ(*parameters.get_as_string("opt", "tcp"), std::nullopt);
  EXPECT_EQ(*parameters.get_as_duration("opt", 1), std::nullopt);
}

TEST(Parameters, TakeOnlyStringsAsStrings) {
  EXPECT_EQ(*with("x").get_as_string("opt"), "x");
  EXPECT_EQ(*with("").get_as_string("opt"), "");
  for (const Value& value : std::vector<Value>{1, true, 1.5, OtherValue{"list"}}) {
    const auto read = with(value).get_as_string("opt");
    ASSERT_FALSE(read) << describe(value);
    EXPECT_EQ(read.error().kind, ErrorKind::Invalid);
  }
}

TEST(Parameters, ReadLengthsOfTime) {
  EXPECT_EQ(*with("0.5").get_as_duration("opt"), 500ms);
  EXPECT_EQ(*with(" 250ms ").get_as_duration("opt"), 250ms);
  EXPECT_EQ(*with(2).get_as_duration("opt"), 2s);
  EXPECT_EQ(*with(0.25).get_as_duration("opt"), 250ms);
  EXPECT_EQ(*with("0").get_as_duration("opt"), 0s);
  for (const Value& value :
       std::vector<Value>{"", "soon", "-1", -1, -0.1, true, 1e10, std::int64_t{1} << 60, "1e10"}) {
    const auto read = with(value).get_as_duration("opt");
    ASSERT_FALSE(read) << describe(value);
    EXPECT_EQ(read.error().kind, ErrorKind::Invalid);
    EXPECT_TRUE(contains(read.error().message, "option opt ")) << read.error().message;
  }
}

TEST(Value, IsDescribedForMessages) {
  EXPECT_EQ(describe(Value()), "null");
  EXPECT_EQ(describe(Value(true)), "true");
  EXPECT_EQ(describe(Value(-3)), "-3");
  EXPECT_EQ(describe(Value(1.5)), "1.5");
  EXPECT_EQ(describe(Value("a b")), "\"a b\"");
  EXPECT_EQ(describe(Value(OtherValue{"list"})), "a list");
}

}  // namespace
}  // namespace muster::rendezvous
