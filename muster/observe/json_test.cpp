#include "muster/observe/json.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

namespace muster::observe {
namespace {

TEST(JsonWriter, SpacesAsPythonDoes) {
  JsonWriter json;
  json.begin_object().field("a", 1).key("b").begin_array().integer(1).null().end_array();
  json.key("c").begin_object().end_object().field("d", std::optional<int>()).end_object();

  EXPECT_EQ(json.take(), R"({"a": 1, "b": [1, null], "c": {}, "d": null})");
  EXPECT_EQ(json.str(), "");
}

TEST(JsonWriter, WritesNumbersWhoseTypeDoesNotDependOnTheirValue) {
  JsonWriter json;
  json.begin_array().number(12).number(0.25).number(1e300).boolean(true).end_array();
  EXPECT_EQ(json.take(), "[12.0, 0.25, 1e+300, true]");
}

TEST(JsonWriter, WritesWhatIsNoNumberAsNull) {
  JsonWriter json;
  json.begin_array().number(std::numeric_limits<double>::quiet_NaN());
  json.number(std::numeric_limits<double>::infinity()).end_array();
  EXPECT_EQ(json.take(), "[null, null]");
}

TEST(JsonWriter, IsPlainAsciiAndOneLineWhateverTheText) {
  JsonWriter json;
  json.text(std::string("\"\\\n\r\t\b\f\0\x1f\x7f \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", 22));
  EXPECT_EQ(json.take(), R"("\"\\\n\r\t\b\f\u0000\u001f\u007f \u00e4 \u20ac \ud83d\ude00")");
}

TEST(JsonWriter, ReplacesEveryByteThatIsNoUtf8) {
  // A lone continuation, an overlong slash, a surrogate, a value past the last, a sequence cut off.
  EXPECT_EQ(valid_utf8("a\x80z"), "a\xef\xbf\xbdz");
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80").size(), 9U);
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80").size(), 12U);
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xff"), "\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4"),
            "\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4");
}

TEST(JsonWriter, IsReadableByAStrictParserForEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  JsonWriter json;
  json.text(all);
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(json.str(), error);
  ASSERT_FALSE(error) << error.message();
  EXPECT_EQ(std::string(value.as_string()), valid_utf8(all));
}

}  // namespace
}  // namespace muster::observe
