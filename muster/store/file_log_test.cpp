#include "muster/store/file_log.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

namespace muster::store {
namespace {

std::string bytes_of(std::string_view hexadecimal) {
  std::string out;
  std::string digits;
  for (const char letter : hexadecimal) {
    if (letter == ' ') continue;
    digits.push_back(letter);
    if (digits.size() < 2) continue;
    out.push_back(static_cast<char>(std::stoi(digits, nullptr, 16)));
    digits.clear();
  }
  return out;
}

std::string record(std::string_view key, std::string_view value) {
  std::string out;
  for (const std::string_view part : {key, value}) {
    for (std::size_t index = 0; index < 4; ++index) {
      out.push_back(static_cast<char>((part.size() >> (8 * index)) & 0xff));
    }
    out.append(part);
  }
  return out;
}

constexpr int kNameCount = 5;

std::string random_name(Random& random) {
  return "name" + std::to_string(random.below(kNameCount));
}

std::string random_value(Random& random) {
  std::string out;
  const std::uint64_t size = random.chance(200) ? 0 : random.below(40);
  for (std::uint64_t index = 0; index < size; ++index) {
    out.push_back(static_cast<char>(random.below(256)));
  }
  return out;
}

std::string random_record(Random& random) {
  const std::string name = random_name(random);
  std::string out;
  switch (random.below(5)) {
    case 0:
      append_delete(name, out);
      break;
    case 1:
      append_push(name, random_value(random), out);
      break;
    case 2:
      append_pop(name, out);
      break;
    case 3:
      return record("refcount/", random_value(random));
    default:
      append_set(name, random_value(random), out);
  }
  return out;
}

// Everything that can be seen of a log.
std::string describe(FileLog log) {
  std::string out = std::to_string(log.position()) + " " + std::to_string(log.key_count());
  for (const std::string& key : log.keys("")) out += " " + key + "=" + *log.find(key);
  for (int index = 0; index < kNameCount; ++index) {
    const std::string queue = "name" + std::to_string(index);
    out += " " + queue + ":";
    while (const std::string* const item = log.front(queue)) {
      out += *item + ",";
      std::string pop;
      append_pop(queue, pop);
      EXPECT_TRUE(log.replay(pop, {}));
    }
  }
  return out;
}

void expect_invalid(std::string_view bytes, std::string_view reason) {
  const auto result = decode_record(bytes);
  ASSERT_FALSE(result) << reason;
  EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
  EXPECT_NE(result.error().message.find(reason), std::string::npos) << result.error().message;
}

void expect_unfinished(std::string_view bytes) {
  const auto result = decode_record(bytes);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->has_value());
}

TEST(FileLog, WritesTheBytesThatPyTorchWrites) {
  std::string out;
  append_set("k", "v1", out);
  append_set("c", "5", out);
  append_set("c", "-2", out);
  append_delete("k", out);
  EXPECT_EQ(out, bytes_of("02000000 2f6b 02000000 7631"
                          "02000000 2f63 01000000 35"
                          "02000000 2f63 02000000 2d32"
                          "03000000 2d2f6b 00000000"));

  FileLog log;
  const auto replayed = log.replay(out, {});
  ASSERT_TRUE(replayed);
  EXPECT_EQ(*replayed, out.size());
  EXPECT_EQ(log.find("k"), nullptr);
  EXPECT_EQ(*log.find("c"), "-2");
  EXPECT_EQ(log.keys(""), std::vector<std::string>{"c"});
}

TEST(FileLog, WritesQueueRecordsThatPyTorchTakesForDeletions) {
  std::string out;
  append_push("q", "item", out);
  append_pop("q", out);
  EXPECT_EQ(out, bytes_of("03000000 2d3c71 04000000 6974656d"
                          "03000000 2d3e71 00000000"));
}

TEST(FileLog, ComesToTheStateOfAWholeRecordAtEveryByteOfALog) {
  Random random(11);
  std::string bytes;
  FileLog exact;
  std::vector<std::size_t> ends{0};
  std::vector<std::string> states{describe(exact)};
  for (int count = 0; count < 120; ++count) {
    const std::string next = random_record(random);
    bytes += next;
    ASSERT_EQ(exact.replay(next, {}).value_or(0), next.size());
    ends.push_back(bytes.size());
    states.push_back(describe(exact));
  }

  std::size_t whole = 0;
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    if (whole + 1 < ends.size() && ends[whole + 1] == size) ++whole;
    FileLog log;
    const auto replayed = log.replay(std::string_view(bytes).substr(0, size), {});
    ASSERT_TRUE(replayed) << replayed.error().message;
    EXPECT_EQ(*replayed, ends[whole]);
    EXPECT_EQ(describe(log), states[whole]);
  }
}

TEST(FileLog, DoesNotDependOnHowTheBytesWereCutIntoPieces) {
  Random random(12);
  std::string bytes;
  for (int count = 0; count < 300; ++count) bytes += random_record(random);
  FileLog at_once;
  ASSERT_TRUE(at_once.replay(bytes, {}));

  FileLog in_pieces;
  std::string pending;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::size_t size = 1 + random.below(50);
    pending += bytes.substr(offset, size);
    offset += size;
    const auto replayed = in_pieces.replay(pending, {});
    ASSERT_TRUE(replayed);
    pending.erase(0, *replayed);
  }
  EXPECT_EQ(describe(in_pieces), describe(at_once));
}

TEST(FileLog, TellsWhatEachRecordDid) {
  std::string out;
  append_delete("k", out);
  append_set("k", "1", out);
  append_set("k", "1", out);
  append_push("q", "item", out);
  append_pop("q", out);
  append_pop("q", out);
  append_delete("k", out);
  out += record("cleanup/", "1");
  out += record("-cleanup/", "");

  std::string told;
  FileLog log;
  ASSERT_TRUE(log.replay(out, [&](const FileChange& change) {
    told += "CUDP"[static_cast<int>(change.kind)];
    told += std::string(change.name) + "=" + std::string(change.value) + " ";
  }));
  EXPECT_EQ(told, "Ck=1 Uk=1 Pq=item Dk= ");
  EXPECT_EQ(log.key_count(), 0U);
}

TEST(FileLog, CountsPyTorchsOwnKeysButDoesNotListThem) {
  FileLog log;
  ASSERT_TRUE(log.replay(
      record("refcount/", "2") + record("/refcount/", "mine") + record("-<q", "item"), {}));
  EXPECT_EQ(log.key_count(), 2U);
  EXPECT_EQ(log.keys(""), std::vector<std::string>{"refcount/"});
  EXPECT_EQ(*log.find("refcount/"), "mine");
}

TEST(FileLog, ListsKeysByPrefixInOrder) {
  FileLog log;
  ASSERT_TRUE(log.replay(
      record("/b/2", "") + record("/b/1", "") + record("/a", "") + record("/c", ""), {}));
  EXPECT_EQ(log.keys("b/"), (std::vector<std::string>{"b/1", "b/2"}));
  EXPECT_EQ(log.keys("d"), std::vector<std::string>());
  EXPECT_EQ(log.keys("").size(), 4U);
}

TEST(FileLog, AddsAsPyTorchDoes) {
  FileLog log;
  ASSERT_TRUE(log.replay(record("/empty", "") + record("/text", "abc") + record("/trail", "12abc") +
                             record("/largest", "9223372036854775807"),
                         {}));
  EXPECT_EQ(log.sum("absent", 3).value_or(0), 3);
  EXPECT_EQ(log.sum("empty", -4).value_or(0), -4);
  EXPECT_EQ(log.sum("trail", 1).value_or(0), 13);
  EXPECT_EQ(log.sum("largest", 1).value_or(0), INT64_MIN);
  const auto refused = log.sum("text", 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(refused.error().message,
            R"(cannot add to key "text": its value "abc" is not a number)");
}

TEST(FileLog, AcceptsTheLargestRecordAndNothingLarger) {
  const std::string largest =
      record("-/" + std::string(kFileKeyBytesMax, 'k'), std::string(kFileValueBytesMax, 'v'));
  EXPECT_EQ(largest.size(), kFileRecordBytesMax);
  const auto decoded = decode_record(largest);
  ASSERT_TRUE(decoded && *decoded);
  EXPECT_EQ((*decoded)->bytes, kFileRecordBytesMax);

  expect_invalid(record(std::string(kFileRecordKeyBytesMax + 1, '/'), ""), "a key of 8195 bytes");
  expect_invalid(record("/k", std::string(kFileValueBytesMax + 1, 'v')),
                 "a value of 8388609 bytes");
}

TEST(FileLog, RecognisesGarbageFromAsFewBytesAsPossible) {
  expect_invalid("hi", "a key of 26984 bytes or more");
  expect_invalid("#!/bin/sh\n", "a key of");
  expect_invalid(std::string(4, '\0'), "a key of 0 bytes");
  expect_invalid(bytes_of("00000001"), "a key of 16777216 bytes");
  expect_invalid(bytes_of("05000000 0001"), R"(the key "\x00\x01")");
  expect_invalid(bytes_of("02000000 2f6b 00000001"), "a value of 16777216 bytes");
  expect_invalid(bytes_of("02000000 2f6b 000081"), "a value of 8454144 bytes");

  expect_unfinished("");
  expect_unfinished(bytes_of("05"));
  expect_unfinished(bytes_of("0120"));
  expect_unfinished(bytes_of("05000000 72"));
  expect_unfinished(bytes_of("02000000 2f6b 000080"));
}

TEST(FileLog, KeepsWhatCameBeforeGarbage) {
  FileLog log;
  const std::string good = record("/k", "v");
  ASSERT_FALSE(log.replay(good + std::string(100, '\xff'), {}));
  EXPECT_EQ(log.position(), good.size());
  EXPECT_EQ(*log.find("k"), "v");
}

TEST(FileLog, ReadsAnyBytesWithoutHarm) {
  Random random(13);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int count = 0; count < 4; ++count) bytes += random_record(random);
    for (int count = 0; count < 3; ++count) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    }
    FileLog log;
    const auto replayed = log.replay(bytes, {});
    if (replayed) {
      EXPECT_LE(*replayed, bytes.size());
    }
    EXPECT_LE(log.position(), bytes.size());
  }
}

}  // namespace
}  // namespace muster::store
