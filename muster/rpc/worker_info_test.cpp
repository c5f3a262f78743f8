#include "muster/rpc/worker_info.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

namespace muster::rpc {
namespace {

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "there is no '" << part << "' in '" << text << "'";
}

WorkerInfo info(std::string name, std::int64_t id) {
  return WorkerInfo::create(std::move(name), id).value();
}

std::string refusal(std::string name, std::int64_t id) {
  const auto made = WorkerInfo::create(std::move(name), id);
  if (made) return "";
  EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
  return made.error().message;
}

TEST(WorkerInfo, HasTheNameAndTheIdThatItWasGiven) {
  const WorkerInfo worker = info("trainer:0_a-B", 3);
  EXPECT_EQ(worker.name(), "trainer:0_a-B");
  EXPECT_EQ(worker.id(), 3);
}

TEST(WorkerInfo, IsDescribedWithItsIdFirstAndWithoutQuotes) {
  EXPECT_EQ(info("a", 3).describe(), "WorkerInfo(id=3, name=a)");
  EXPECT_EQ(info("ps:1", -1).describe(), "WorkerInfo(id=-1, name=ps:1)");
}

TEST(WorkerInfo, IsEqualWhenNameAndIdAre) {
  EXPECT_EQ(info("a", 1), info("a", 1));
  EXPECT_NE(info("a", 1), info("b", 1));
  EXPECT_NE(info("a", 1), info("a", 2));
}

TEST(WorkerInfo, IsHashedByItsIdAlone) {
  const std::hash<WorkerInfo> hash;
  EXPECT_EQ(hash(info("a", 7)), hash(info("b", 7)));
  EXPECT_NE(hash(info("a", 7)), hash(info("a", 8)));
  const std::unordered_set<WorkerInfo> workers = {info("a", 1), info("a", 1), info("b", 1)};
  EXPECT_EQ(workers.size(), 2u);
}

TEST(WorkerInfo, RefusesANameWithACharacterThatIsNotAllowed) {
  for (const char* name :
       {"abc*", "abc ", " ", "a b", "a.b", "a/b", "a,b", "a\n", "[a]", "@", "`"}) {
    EXPECT_TRUE(has(refusal(name, 0), "Worker name must match")) << name;
  }
  EXPECT_NE(refusal(std::string("a\0b", 3), 0), "");
}

TEST(WorkerInfo, RefusesAnEmptyName) { EXPECT_TRUE(has(refusal("", 0), "must be non-empty")); }

TEST(WorkerInfo, RefusesANameOfFiveHundredLetters) {
  EXPECT_TRUE(has(refusal(std::string(500, 'a'), 0), "shorter than 128"));
}

TEST(WorkerInfo, TakesANameOf127BytesAndNotOneMore) {
  EXPECT_EQ(refusal(std::string(127, 'a'), 0), "");
  EXPECT_NE(refusal(std::string(128, 'a'), 0), "");
  EXPECT_EQ(kWorkerNameBytesMax, 127u);
}

TEST(WorkerInfo, SaysTheSameWhateverIsWrongWithTheName) {
  for (const std::string& name : {std::string("abc*"), std::string(), std::string(200, 'a')}) {
    const std::string text = refusal(name, 0);
    EXPECT_TRUE(has(text, "Worker name must match"));
    EXPECT_TRUE(has(text, "must be non-empty"));
    EXPECT_TRUE(has(text, "shorter than 128"));
  }
  EXPECT_TRUE(has(refusal("abc*", 0), "\"abc*\""));
}

TEST(WorkerInfo, KnowsTheLettersOfAsciiOnly) {
  // In Latin-1 and in UTF-8.
  EXPECT_NE(refusal("caf\xe9", 0), "");
  EXPECT_NE(refusal("caf\xc3\xa9", 0), "");
  for (int character = 0; character < 256; ++character) {
    const bool allowed = (character >= '0' && character <= '9') ||
                         (character >= 'A' && character <= 'Z') ||
                         (character >= 'a' && character <= 'z') || character == '-' ||
                         character == '_' || character == ':';
    EXPECT_EQ(is_worker_name(std::string(1, static_cast<char>(character))), allowed) << character;
  }
}

TEST(WorkerInfo, RefusesAnIdThatDoesNotFitSixteenBits) {
  EXPECT_EQ(refusal("a", 32768), "RPC worker id 32768 out of bound of int16_t.");
  EXPECT_EQ(refusal("a", -32769), "RPC worker id -32769 out of bound of int16_t.");
  // These would become 0 and 1 if they were cut off.
  EXPECT_NE(refusal("a", 65536), "");
  EXPECT_NE(refusal("a", -65535), "");
  EXPECT_NE(refusal("a", std::numeric_limits<std::int64_t>::max()), "");
  EXPECT_NE(refusal("a", std::numeric_limits<std::int64_t>::min()), "");
}

TEST(WorkerInfo, TakesEveryIdOfSixteenBits) {
  EXPECT_EQ(info("a", 32767).id(), 32767);
  EXPECT_EQ(info("a", 0).id(), 0);
  EXPECT_EQ(info("a", -1).id(), -1);
  EXPECT_EQ(info("a", -32768).id(), -32768);
}

TEST(WorkerInfo, NamesTheBadNameWhenTheIdIsBadToo) {
  EXPECT_TRUE(has(refusal("abc*", 100000), "Worker name must match"));
  EXPECT_TRUE(has(WorkerInfo::create_member("", -1).error().message, "must be non-empty"));
}

TEST(WorkerInfo, CannotJoinAGroupWithANegativeId) {
  EXPECT_EQ(WorkerInfo::create_member("a", 0).value(), info("a", 0));
  const auto refused = WorkerInfo::create_member("a", -1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_TRUE(has(refused.error().message, "RPC worker id -1"));
  EXPECT_TRUE(has(WorkerInfo::create_member("a", -40000).error().message, "out of bound"));
}

}  // namespace
}  // namespace muster::rpc
