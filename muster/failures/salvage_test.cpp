#include "muster/failures/salvage.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace muster::failures {
namespace {

// All values as "path=value;", and the problem, if any, at the end.
std::string salvaged(std::string_view text) {
  std::string out;
  const std::string problem =
      salvage_json(text, [&out](const auto& path, ValueKind kind, std::string_view value) {
        if (kind == ValueKind::Container) return;
        for (const std::string& name : path) out += "/" + name;
        out += kind == ValueKind::Text ? "=" : kind == ValueKind::Null ? "=null " : "#";
        out += std::string(value) + ";";
      });
  return problem.empty() ? out : out + " " + problem;
}

TEST(Salvage, ReadsValidJson) {
  EXPECT_EQ(salvaged("{}"), "");
  EXPECT_EQ(salvaged(R"( {"a": "b", "c": {"d": 1.5, "e": [true, null, {"f": ""}]}} )"),
            "/a=b;/c/d#1.5;/c/e/#true;/c/e/=null null;/c/e//f=;");
  EXPECT_EQ(salvaged("\xEF\xBB\xBF{\"a\":[],\"b\":{}}"), "");
}

TEST(Salvage, UnderstandsEscapes) {
  EXPECT_EQ(salvaged(R"({"a": "\"\\\/\b\f\n\r\t\u00e4\u20AC\ud83d\ude00"})"),
            "/a=\"\\/\b\f\n\r\t\u00e4\u20ac\U0001F600;");
}

TEST(Salvage, KeepsWhatCameBeforeTheTextEnds) {
  const std::string whole = R"({"a": "first", "b": "second\u00e4", "c": 12})";
  EXPECT_EQ(salvaged(whole), "/a=first;/b=second\u00e4;/c#12;");
  EXPECT_EQ(salvaged(whole.substr(0, 24)), "/a=first;/b=sec; ends too early at byte 24");
  EXPECT_EQ(salvaged(whole.substr(0, 30)), "/a=first;/b=second; ends too early at byte 30");
  // A number that touches the end may have gone on.
  EXPECT_EQ(salvaged(whole.substr(0, whole.size() - 1)),
            "/a=first;/b=second\u00e4; ends too early at byte " + std::to_string(whole.size() - 1));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_NE(salvaged(whole.substr(0, bytes)).find("ends too early"), std::string::npos) << bytes;
}

TEST(Salvage, ForgivesWhatOtherWritersDo) {
  EXPECT_EQ(salvaged("{\"a\": \"two\nlines\tand a tab\"}"), "/a=two\nlines\tand a tab;");
  EXPECT_EQ(salvaged(R"({"a": NaN, "b": -Infinity})"), "/a#NaN;/b#-Infinity;");
  EXPECT_EQ(salvaged(R"({"a": "lone \udce4 end", "b": "\ud83dx"})"),
            "/a=lone \uFFFD end;/b=\uFFFDx;");
  EXPECT_EQ(salvaged(R"({"a": "C:\windows\uzzzz"})"), "/a=C:\\windows\\uzzzz;");
}

TEST(Salvage, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(salvaged("hello"), " is not a JSON object");
  EXPECT_EQ(salvaged("[1, 2]"), " is not a JSON object");
  EXPECT_EQ(salvaged(R"({"a": 1 "b": 2})"), "/a#1; makes no sense at byte 8");
  EXPECT_EQ(salvaged(R"({"a" 1})"), " makes no sense at byte 5");
  EXPECT_EQ(salvaged(R"({a: 1})"), " makes no sense at byte 1");
  EXPECT_EQ(salvaged(R"({"a": 1} x)"), "/a#1; has something after its end at byte 9");
  EXPECT_EQ(salvaged(""), " ends too early at byte 0");
}

TEST(Salvage, SurvivesAnyDamage) {
  const std::string whole =
      R"({"message": {"message": "E: \u00e4\ud83d\ude00", "list": [1, {"x": null}], "y": ""}, "t": 1.5})";
  std::mt19937 random(20260102);
  for (int repetition = 0; repetition < 5000; ++repetition) {
    std::string text = whole;
    for (auto damages = random() % 4; damages > 0; --damages) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, 1, "{}[]\",:\\u"[random() % 9]);
      }
      if (text.empty()) break;
    }
    EXPECT_NO_FATAL_FAILURE(salvaged(text));
  }
}

TEST(Salvage, BoundsTheDepth) {
  const auto nested = [](std::size_t depth) {
    std::string text;
    for (std::size_t level = 0; level < depth; ++level) text += R"({"a":)";
    return text + "1" + std::string(depth, '}');
  };
  EXPECT_EQ(salvaged(nested(kSalvageDepthMax)).find("nested too deeply"), std::string::npos);
  EXPECT_NE(salvaged(nested(kSalvageDepthMax + 1)).find("nested too deeply"), std::string::npos);
  EXPECT_NE(salvaged(nested(100'000)).find("nested too deeply"), std::string::npos);
}

}  // namespace
}  // namespace muster::failures
