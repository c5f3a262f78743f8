#include "muster/logs/record.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace muster::logs {
namespace {

using namespace std::string_literals;

std::string text_record(const Line& line) {
  std::string out;
  LineFormat::text("[default0]:").append(out, line, "");
  return out;
}

boost::json::object json_record(const Line& line) {
  const LineOrigin origin{
      .role = "a \"role\"", .rank = 7, .local_rank = 3, .stream = Stream::Err, .round = 2};
  std::string out;
  LineFormat::json(origin).append(out, line, "2026-03-14T09:26:53.589Z");
  EXPECT_TRUE(out.ends_with("}\n"));
  EXPECT_EQ(out.find('\n'), out.size() - 1);
  return boost::json::parse(out).as_object();
}

TEST(LineFormat, PutsThePrefixDirectlyBeforeTheText) {
  EXPECT_EQ(text_record({.text = "hello"}), "[default0]:hello\n");
  EXPECT_EQ(text_record({.text = ""}), "[default0]:\n");
}

TEST(LineFormat, MarksPiecesOfALine) {
  EXPECT_EQ(text_record({.text = "Loading", .unfinished = true}),
            "[default0]:Loading <unfinished ...>\n");
  EXPECT_EQ(text_record({.text = "done", .resumed = true}), "[default0]:<... resumed> done\n");
}

TEST(LineFormat, WritesOneObjectALine) {
  const boost::json::object record = json_record({.text = "he said \"hi\"\t\\"});
  EXPECT_EQ(record.at("time"), "2026-03-14T09:26:53.589Z");
  EXPECT_EQ(record.at("rank"), 7);
  EXPECT_EQ(record.at("local_rank"), 3);
  EXPECT_EQ(record.at("role"), "a \"role\"");
  EXPECT_EQ(record.at("stream"), "stderr");
  EXPECT_EQ(record.at("round"), 2);
  EXPECT_EQ(record.at("line"), "he said \"hi\"\t\\");
  EXPECT_EQ(record.size(), 7U);
}

TEST(LineFormat, TellsPiecesInJsonToo) {
  EXPECT_EQ(json_record({.text = "x", .unfinished = true}).at("unfinished"), true);
  EXPECT_EQ(json_record({.text = "x", .resumed = true}).at("resumed"), true);
}

TEST(LineFormat, WritesTheAgentsOwnLinesAsObjectsToo) {
  std::string out;
  append_agent_json(out, Stream::Err, "two\nlines", "now");
  EXPECT_EQ(out, "{\"time\":\"now\",\"stream\":\"stderr\",\"line\":\"two\\nlines\"}\n");
}

TEST(JsonString, KeepsValidUtf8AndReplacesTheRest) {
  const auto encoded = [](std::string_view text) {
    std::string out;
    append_json_string(out, text);
    // Boost refuses what is not valid, so this is a check as well.
    return std::string(boost::json::parse(out).as_string());
  };
  const std::string bad = "\uFFFD";
  EXPECT_EQ(encoded("gr\u00fc\u00dfe \u20ac \U0001F600"), "gr\u00fc\u00dfe \u20ac \U0001F600");
  EXPECT_EQ(encoded("a\xFFz"), "a" + bad + "z");
  EXPECT_EQ(encoded("a\xC3"), "a" + bad);
  EXPECT_EQ(encoded("\xC0\xAF"), bad + bad);                      // overlong
  EXPECT_EQ(encoded("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(encoded("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
  EXPECT_EQ(encoded("\xE0\x80\x80"), bad + bad + bad);
  EXPECT_EQ(encoded("a\0b\x01\x7F\r"s), "a\0b\x01\x7F\r"s);
}

}  // namespace
}  // namespace muster::logs
