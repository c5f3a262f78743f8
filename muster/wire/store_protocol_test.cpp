#include "muster/wire/store_protocol.h"

#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::wire {
namespace {

using namespace std::string_literals;
using namespace tests;
using Status = RequestParser::Status;

constexpr Limits kDefaults;

std::string blob_length(std::uint64_t size) {
  std::string out;
  put(out, size);
  return out;
}

std::string opcode(Operation operation, Dialect dialect) {
  return std::string(1, static_cast<char>(*opcode_of(operation, dialect)));
}

// One parser in the dialect, with nothing unparsed.
Feeder feeder_in(Dialect dialect, const Limits& limits) {
  Feeder feeder(limits);
  feeder.feed(dialect == Dialect::Modern ? std::string(kValidate)
                                         : bytes_of(num_keys(), Dialect::Legacy));
  EXPECT_EQ(feeder.parser().dialect(), dialect);
  EXPECT_EQ(feeder.unparsed_bytes(), 0U);
  return feeder;
}

// Every operation of the dialect, with what is easily forgotten: nothing, zeros, long lists.
std::vector<Request> samples(Dialect dialect) {
  static const std::string long_value(3000, 'v');
  static const std::string_view binary("\0\x01\xff/\n", 5);
  std::vector<Request> all = {
      set("/k", "v1"),
      set("", ""),
      set(binary, long_value),
      compare_set("/cs", "", "first"),
      compare_set("/cs", "first", ""),
      compare_set(binary, binary, long_value),
      get("/k"),
      get(""),
      add("init/", 1),
      add("/n", INT64_MIN),
      add("", -1),
      check({}),
      check({"/a", "", "/b"}),
      wait({}),
      wait({"/a"}),
      wait({"/a", "/a", binary}),
      num_keys(),
      delete_key("/k"),
  };
  if (dialect == Dialect::Legacy) {
    all.push_back(watch_key("/wk"));
    return all;
  }
  const std::vector<Request> newer = {
      append("/k", "po"), append("/k", ""),
      multi_get({}),      multi_get({"/a", "/b", "/c"}),
      multi_set({}),      multi_set({{"/a", "1"}, {"/b", ""}, {"", long_value}}),
      cancel_wait(),      ping(0),
      ping(0xffffffff),   queue_push("/q", "xy"),
      queue_pop("/q"),    queue_length("/q"),
      list_keys(),        barrier("/b", 2),
      barrier("/b", -2),  upgrade(1, ""),
      upgrade(7, "ns"),
  };
  all.insert(all.end(), newer.begin(), newer.end());
  return all;
}

// The number of an operation that has none is of no interest.
KeptRequest comparable(KeptRequest request) {
  switch (request.operation) {
    case Operation::Add:
    case Operation::Barrier:
    case Operation::Ping:
    case Operation::Upgrade:
      break;
    default:
      request.number = 0;
  }
  return request;
}

std::vector<KeptRequest> comparable(std::vector<KeptRequest> requests) {
  for (KeptRequest& request : requests) request = comparable(request);
  return requests;
}

std::string describe_all(const std::vector<KeptRequest>& requests) {
  std::string text;
  for (const KeptRequest& request : requests) text += std::string(name_of(request.operation)) + " ";
  return text;
}

void expect_same(const std::vector<KeptRequest>& actual, const std::vector<KeptRequest>& expected) {
  EXPECT_TRUE(comparable(actual) == comparable(expected))
      << "got " << describe_all(actual) << "instead of " << describe_all(expected);
}

// All samples as one client sends them.
std::string conversation(Dialect dialect) {
  std::string bytes = dialect == Dialect::Modern ? std::string(kValidate) : "";
  for (const Request& sample : samples(dialect)) bytes += bytes_of(sample, dialect);
  return bytes;
}

std::vector<KeptRequest> expected_requests(Dialect dialect) {
  std::vector<KeptRequest> expected;
  for (const Request& sample : samples(dialect)) expected.push_back(keep(sample));
  return expected;
}

// --- Numbers -------------------------------------------------------------------------------------

TEST(StoreProtocol, NumbersTheOperationsAsPyTorchDoes) {
  struct Row {
    Operation operation;
    int legacy;
    int modern;
  };
  const std::vector<Row> rows = {
      {Operation::Set, 0x00, 0x01},       {Operation::CompareSet, 0x01, 0x02},
      {Operation::Get, 0x02, 0x03},       {Operation::Add, 0x03, 0x04},
      {Operation::Check, 0x04, 0x05},     {Operation::Wait, 0x05, 0x06},
      {Operation::NumKeys, 0x06, 0x07},   {Operation::WatchKey, 0x07, -1},
      {Operation::DeleteKey, 0x08, 0x08}, {Operation::Append, -1, 0x09},
      {Operation::MultiGet, -1, 0x0a},    {Operation::MultiSet, -1, 0x0b},
      {Operation::CancelWait, -1, 0x0c},  {Operation::Ping, -1, 0x0d},
      {Operation::QueuePush, -1, 0x0e},   {Operation::QueuePop, -1, 0x0f},
      {Operation::QueueLength, -1, 0x10}, {Operation::ListKeys, -1, 0x11},
      {Operation::Barrier, -1, 0x12},     {Operation::Upgrade, -1, 0x80},
      {Operation::WatchPrefix, -1, -1},   {Operation::DropNamespace, -1, -1},
      {Operation::Info, -1, -1},          {Operation::Open, -1, -1},
      {Operation::Say, -1, -1},
  };
  ASSERT_EQ(rows.size(), kOperationCount);
  for (const Row& row : rows) {
    const auto number = [&](Dialect dialect) {
      const auto found = opcode_of(row.operation, dialect);
      return found ? static_cast<int>(*found) : -1;
    };
    EXPECT_EQ(number(Dialect::Legacy), row.legacy) << name_of(row.operation);
    EXPECT_EQ(number(Dialect::Modern), row.modern) << name_of(row.operation);
  }
}

TEST(StoreProtocol, FindsEveryOperationByItsNumberAndNothingByOthers) {
  for (const Dialect dialect : {Dialect::Legacy, Dialect::Modern, Dialect::Extension}) {
    int found = 0;
    for (int number = 0; number <= 0xff; ++number) {
      const auto operation = operation_of(static_cast<std::uint8_t>(number), dialect);
      if (!operation) continue;
      ++found;
      EXPECT_EQ(opcode_of(*operation, dialect), number) << name_of(*operation);
    }
    int numbered = 0;
    for (std::size_t index = 0; index < kOperationCount; ++index) {
      if (opcode_of(static_cast<Operation>(index), dialect)) ++numbered;
    }
    EXPECT_EQ(found, numbered) << name_of(dialect);
  }
}

TEST(StoreProtocol, HasNoNumbersBeforeTheDialectIsDecided) {
  EXPECT_FALSE(operation_of(0, Dialect::Undecided));
  EXPECT_FALSE(opcode_of(Operation::Set, Dialect::Undecided));
}

TEST(StoreProtocol, NamesEveryOperationAndDialectDifferently) {
  std::vector<std::string_view> names;
  for (std::size_t index = 0; index < kOperationCount; ++index) {
    names.push_back(name_of(static_cast<Operation>(index)));
  }
  for (const Dialect dialect :
       {Dialect::Undecided, Dialect::Legacy, Dialect::Modern, Dialect::Extension}) {
    names.push_back(name_of(dialect));
  }
  std::sort(names.begin(), names.end());
  EXPECT_TRUE(std::adjacent_find(names.begin(), names.end()) == names.end());
  EXPECT_FALSE(names.front().empty());
}

// --- Both PyTorch dialects -----------------------------------------------------------------------

class EachDialect : public ::testing::TestWithParam<Dialect> {};

TEST_P(EachDialect, HasASampleOfEveryOperation) {
  for (std::size_t index = 0; index < kOperationCount; ++index) {
    const auto operation = static_cast<Operation>(index);
    const auto all = samples(GetParam());
    const bool sampled = std::any_of(all.begin(), all.end(), [&](const Request& sample) {
      return sample.operation == operation;
    });
    EXPECT_EQ(sampled, opcode_of(operation, GetParam()).has_value()) << name_of(operation);
  }
}

TEST_P(EachDialect, ParsesWhatItEncodes) {
  for (const Request& sample : samples(GetParam())) {
    Feeder feeder = feeder_in(GetParam(), kDefaults);
    const std::size_t before = feeder.requests().size();
    feeder.feed(bytes_of(sample, GetParam()));
    ASSERT_EQ(feeder.requests().size(), before + 1) << name_of(sample.operation);
    expect_same({feeder.requests().back()}, {keep(sample)});
    EXPECT_EQ(feeder.unparsed_bytes(), 0U);
  }
}

TEST_P(EachDialect, ParsesRequestsThatComeInOnePiece) {
  Feeder feeder(kDefaults);
  feeder.feed(conversation(GetParam()));
  EXPECT_FALSE(feeder.broken()) << feeder.parser().reason();
  EXPECT_EQ(feeder.unparsed_bytes(), 0U);
  expect_same(feeder.requests(), expected_requests(GetParam()));
}

TEST_P(EachDialect, ParsesRequestsThatComeByteByByte) {
  Feeder feeder(kDefaults);
  const std::string bytes = conversation(GetParam());
  for (const char byte : bytes) feeder.feed({&byte, 1});
  EXPECT_FALSE(feeder.broken()) << feeder.parser().reason();
  expect_same(feeder.requests(), expected_requests(GetParam()));
}

TEST_P(EachDialect, ParsesTheSameWhereverTheBytesAreSplit) {
  // The long values make no difference to a split, only to the time this takes.
  std::string bytes = GetParam() == Dialect::Modern ? std::string(kValidate) : "";
  std::vector<KeptRequest> expected;
  for (const Request& sample : samples(GetParam())) {
    const std::string encoded = bytes_of(sample, GetParam());
    if (encoded.size() > 200) continue;
    bytes += encoded;
    expected.push_back(keep(sample));
  }
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    Feeder feeder(kDefaults);
    feeder.feed(std::string_view(bytes).substr(0, split));
    feeder.feed(std::string_view(bytes).substr(split));
    ASSERT_TRUE(comparable(feeder.requests()) == comparable(expected)) << "split at " << split;
  }
}

TEST_P(EachDialect, CompletesARequestWithItsLastByteAndNotBefore) {
  for (const Request& sample : samples(GetParam())) {
    const std::string bytes = bytes_of(sample, GetParam());
    Feeder feeder = feeder_in(GetParam(), kDefaults);
    const std::size_t before = feeder.requests().size();
    feeder.feed(std::string_view(bytes).substr(0, bytes.size() - 1));
    EXPECT_EQ(feeder.requests().size(), before) << name_of(sample.operation);
    feeder.feed(std::string_view(bytes).substr(bytes.size() - 1));
    EXPECT_EQ(feeder.requests().size(), before + 1) << name_of(sample.operation);
  }
}

TEST_P(EachDialect, LeavesNothingOfTheRequestBeforeInTheNextOne) {
  const auto all = samples(GetParam());
  const Request first = compare_set("key", "expected", "desired");
  for (const Request& second : all) {
    Feeder feeder = feeder_in(GetParam(), kDefaults);
    feeder.feed(bytes_of(first, GetParam()) + bytes_of(second, GetParam()));
    expect_same({feeder.requests().back()}, {keep(second)});
  }
}

TEST_P(EachDialect, RefusesEveryOpcodeItDoesNotKnow) {
  for (int number = 0; number <= 0xff; ++number) {
    if (operation_of(static_cast<std::uint8_t>(number), GetParam())) continue;
    Feeder feeder = feeder_in(GetParam(), kDefaults);
    EXPECT_EQ(feeder.feed(std::string(1, static_cast<char>(number))), Status::Broken) << number;
    EXPECT_NE(feeder.parser().reason().find("unknown opcode"), std::string::npos);
  }
}

TEST_P(EachDialect, RefusesGiantLengthsAsSoonAsTheyAreAnnounced) {
  const std::string set_opcode = opcode(Operation::Set, GetParam());
  const std::string empty_key = blob_length(0);
  const std::vector<std::uint64_t> giants = {std::uint64_t{1} << 50U, std::uint64_t{1} << 63U,
                                             ~std::uint64_t{0}, ~std::uint64_t{0} - 7};
  for (const std::uint64_t giant : giants) {
    for (const std::string& before : {set_opcode, set_opcode + empty_key}) {
      const std::string length = blob_length(giant);
      Feeder feeder = feeder_in(GetParam(), kDefaults);
      EXPECT_EQ(feeder.feed(before + length.substr(0, 7)), Status::Incomplete);
      EXPECT_EQ(feeder.feed(length.substr(7)), Status::Broken) << giant;
      EXPECT_NE(feeder.parser().reason().find("SET"), std::string::npos);
    }
  }
}

TEST_P(EachDialect, RefusesGiantCountsAsSoonAsTheyAreAnnounced) {
  std::vector<Operation> lists = {Operation::Check, Operation::Wait};
  if (GetParam() == Dialect::Modern) {
    lists.insert(lists.end(), {Operation::MultiGet, Operation::MultiSet});
  }
  for (const Operation operation : lists) {
    for (const std::uint64_t giant : {std::uint64_t{1} << 61U, std::uint64_t{1} << 63U,
                                      ~std::uint64_t{0}, std::uint64_t{kDefaults.key_count} + 1}) {
      const std::string length = blob_length(giant);
      Feeder feeder = feeder_in(GetParam(), kDefaults);
      EXPECT_EQ(feeder.feed(opcode(operation, GetParam()) + length.substr(0, 7)),
                Status::Incomplete);
      EXPECT_EQ(feeder.feed(length.substr(7)), Status::Broken) << name_of(operation);
    }
  }
}

TEST_P(EachDialect, TakesAsManyKeysAsTheLimitAllows) {
  Request most = wait({});
  most.keys.assign(kDefaults.key_count, "k");
  Feeder feeder = feeder_in(GetParam(), kDefaults);
  feeder.feed(bytes_of(most, GetParam()));
  ASSERT_FALSE(feeder.broken()) << feeder.parser().reason();
  EXPECT_EQ(feeder.requests().back().keys.size(), kDefaults.key_count);
}

// A slow sender must not make the server look at its bytes again and again. What has been looked at
// is spoiled here: were it read again, the lengths would be refused.
TEST_P(EachDialect, LooksAtEveryLengthOnlyOnce) {
  constexpr std::size_t kKeys = 3000;
  Request long_wait = wait({});
  long_wait.keys.assign(kKeys, "/key");
  const std::string bytes = bytes_of(long_wait, GetParam());
  const std::size_t header = 1 + sizeof(std::uint64_t);
  const std::size_t element = sizeof(std::uint64_t) + 4;

  RequestParser parser(kDefaults);
  Request request;
  std::size_t consumed = 0;
  if (GetParam() == Dialect::Modern) parser.next(kValidate, request, consumed);
  std::string so_far;
  so_far.reserve(bytes.size());
  std::size_t spoiled = 0;
  Status status = Status::Incomplete;
  for (std::size_t start = 0; start < bytes.size(); start += 7) {
    ASSERT_EQ(status, Status::Incomplete);
    so_far += bytes.substr(start, 7);
    status = parser.next(so_far, request, consumed);
    for (; header + (spoiled + 1) * element <= so_far.size(); ++spoiled) {
      so_far.replace(header + spoiled * element, sizeof(std::uint64_t),
                     std::string(sizeof(std::uint64_t), '\xff'));
    }
    if (so_far.size() > header) so_far.replace(0, header, std::string(header, '\xff'));
  }
  ASSERT_EQ(status, Status::Complete) << parser.reason();
  EXPECT_EQ(consumed, bytes.size());
  ASSERT_EQ(request.keys.size(), kKeys);
  EXPECT_TRUE(std::all_of(request.keys.begin(), request.keys.end(),
                          [](std::string_view key) { return key == "/key"; }));
}

INSTANTIATE_TEST_SUITE_P(RequestParser, EachDialect,
                         ::testing::Values(Dialect::Legacy, Dialect::Modern),
                         [](const auto& instance) {
                           return instance.param == Dialect::Legacy ? "Legacy" : "Modern";
                         });

// --- Limits --------------------------------------------------------------------------------------

constexpr Limits kSmall = {.key_bytes = 4,
                           .value_bytes = 6,
                           .key_count = 3,
                           .legacy_key_bytes = 5,
                           .legacy_value_bytes = 8,
                           .frame_bytes = 64};

Status parse_in(Dialect dialect, const Limits& limits, const Request& request) {
  Feeder feeder = feeder_in(dialect, limits);
  const std::size_t before = feeder.requests().size();
  feeder.feed(bytes_of(request, dialect));
  if (feeder.broken()) return Status::Broken;
  return feeder.requests().size() == before + 1 ? Status::Complete : Status::Incomplete;
}

TEST(RequestParser, TakesAKeyAtTheLimitAndRefusesOneByteMore) {
  const std::vector<Request> at_limit = {set("1234", ""),
                                         compare_set("1234", "", ""),
                                         get("1234"),
                                         add("1234", 1),
                                         check({"1234"}),
                                         wait({"", "1234"}),
                                         delete_key("1234"),
                                         append("1234", ""),
                                         multi_get({"1234"}),
                                         multi_set({{"1234", ""}}),
                                         queue_push("1234", ""),
                                         queue_pop("1234"),
                                         queue_length("1234"),
                                         barrier("1234", 1),
                                         upgrade(1, "1234")};
  for (const Request& request : at_limit) {
    EXPECT_EQ(parse_in(Dialect::Modern, kSmall, request), Status::Complete)
        << name_of(request.operation);
    Request one_past = request;
    if (!one_past.key.empty()) one_past.key = "12345";
    if (!one_past.keys.empty()) one_past.keys.back() = "12345";
    EXPECT_EQ(parse_in(Dialect::Modern, kSmall, one_past), Status::Broken)
        << name_of(request.operation);
  }
}

TEST(RequestParser, TakesAValueAtTheLimitAndRefusesOneByteMore) {
  const std::string_view at("123456");
  const std::string_view past("1234567");
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, set("k", at)), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, set("k", past)), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, append("k", at)), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, append("k", past)), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, queue_push("k", at)), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, queue_push("k", past)), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, compare_set("k", at, at)), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, compare_set("k", past, at)), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, compare_set("k", at, past)), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_set({{"k", at}, {"l", at}})), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_set({{"k", past}, {"l", at}})), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_set({{"k", at}, {"l", past}})), Status::Broken);
}

TEST(RequestParser, TakesACountAtTheLimitAndRefusesOneMore) {
  for (const Dialect dialect : {Dialect::Legacy, Dialect::Modern}) {
    EXPECT_EQ(parse_in(dialect, kSmall, wait({"1", "2", "3"})), Status::Complete);
    EXPECT_EQ(parse_in(dialect, kSmall, wait({"1", "2", "3", "4"})), Status::Broken);
    EXPECT_EQ(parse_in(dialect, kSmall, check({"1", "2", "3"})), Status::Complete);
    EXPECT_EQ(parse_in(dialect, kSmall, check({"1", "2", "3", "4"})), Status::Broken);
  }
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_get({"1", "2", "3"})), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_get({"1", "2", "3", "4"})), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kSmall, multi_set({{"1", ""}, {"2", ""}, {"3", ""}})),
            Status::Complete);
  EXPECT_EQ(
      parse_in(Dialect::Modern, kSmall, multi_set({{"1", ""}, {"2", ""}, {"3", ""}, {"4", ""}})),
      Status::Broken);
}

TEST(RequestParser, AllowsLegacyClientsLargerKeysAndValues) {
  EXPECT_EQ(parse_in(Dialect::Legacy, kSmall, set("12345", "12345678")), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Legacy, kSmall, set("123456", "")), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Legacy, kSmall, set("", "123456789")), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Legacy, kSmall, wait({"12345"})), Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Legacy, kSmall, wait({"123456"})), Status::Broken);
}

TEST(RequestParser, AcceptsByDefaultWhatPyTorchsOwnServersAccept) {
  const std::string longest_key(8192, 'k');
  const std::string key_past(8193, 'k');
  const std::string longest_value(8'388'608, 'v');
  const std::string value_past(8'388'609, 'v');
  EXPECT_EQ(parse_in(Dialect::Modern, kDefaults, set(longest_key, longest_value)),
            Status::Complete);
  EXPECT_EQ(parse_in(Dialect::Modern, kDefaults, set(key_past, "")), Status::Broken);
  EXPECT_EQ(parse_in(Dialect::Modern, kDefaults, set("", value_past)), Status::Broken);
  EXPECT_EQ(kDefaults.key_count, 131'072U);
  // Sizes that were seen to work with a server of 1.13.
  const std::string legacy_key(100'000, 'k');
  const std::string legacy_value(std::size_t{20} << 20U, 'v');
  EXPECT_EQ(parse_in(Dialect::Legacy, kDefaults, set(legacy_key, legacy_value)), Status::Complete);
}

TEST(RequestParser, SaysWhichLimitWasPassed) {
  Feeder feeder = feeder_in(Dialect::Modern, kSmall);
  feeder.feed(bytes_of(set("12345", ""), Dialect::Modern));
  EXPECT_EQ(feeder.parser().reason(), "SET with a key of 5 bytes, more than the limit of 4");
  Feeder count = feeder_in(Dialect::Modern, kSmall);
  count.feed(bytes_of(wait({"1", "2", "3", "4"}), Dialect::Modern));
  EXPECT_EQ(count.parser().reason(), "WAIT of 4 keys, more than the limit of 3");
}

// --- Telling the dialects apart ------------------------------------------------------------------

TEST(RequestParser, IsUndecidedWhileNothingHasCome) {
  Feeder feeder(kDefaults);
  EXPECT_EQ(feeder.feed(""), Status::Incomplete);
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Undecided);
}

TEST(RequestParser, WaitsForFiveBytesWhenTheFirstIsZero) {
  for (std::size_t size = 1; size < kValidate.size(); ++size) {
    Feeder feeder(kDefaults);
    EXPECT_EQ(feeder.feed(kValidate.substr(0, size)), Status::Incomplete);
    EXPECT_EQ(feeder.parser().dialect(), Dialect::Undecided) << size;
    EXPECT_EQ(feeder.unparsed_bytes(), size);
  }
}

TEST(RequestParser, IsModernAfterValidateAndConsumesIt) {
  Feeder feeder(kDefaults);
  EXPECT_EQ(feeder.feed(kValidate), Status::Incomplete);
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Modern);
  EXPECT_EQ(feeder.unparsed_bytes(), 0U);
  EXPECT_TRUE(feeder.requests().empty());
}

TEST(RequestParser, IsModernWhereverValidateIsSplit) {
  for (std::size_t split = 1; split < kValidate.size(); ++split) {
    Feeder feeder(kDefaults);
    feeder.feed(kValidate.substr(0, split));
    feeder.feed(kValidate.substr(split));
    feeder.feed(bytes_of(ping(7), Dialect::Modern));
    EXPECT_EQ(feeder.parser().dialect(), Dialect::Modern);
    ASSERT_EQ(feeder.requests().size(), 1U);
    EXPECT_EQ(feeder.requests()[0].number, 7);
  }
}

TEST(RequestParser, IsLegacyWhenZeroIsNotFollowedByTheMagicNumber) {
  const std::string request = bytes_of(set("/k", "v1"), Dialect::Legacy);
  Feeder feeder(kDefaults);
  feeder.feed(request.substr(0, 4));
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Undecided);
  feeder.feed(request.substr(4, 1));
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Legacy);
  feeder.feed(request.substr(5));
  ASSERT_EQ(feeder.requests().size(), 1U);
  expect_same(feeder.requests(), {keep(set("/k", "v1"))});
}

TEST(RequestParser, IsLegacyWhenOneBitOfTheMagicNumberIsWrong) {
  for (std::size_t byte = 1; byte < kValidate.size(); ++byte) {
    std::string wrong(kValidate);
    wrong[byte] = static_cast<char>(wrong[byte] ^ 1);
    Feeder feeder(kDefaults);
    feeder.feed(wrong);
    EXPECT_EQ(feeder.parser().dialect(), Dialect::Legacy);
    // As the SET that it is, it announces a key that nobody can have.
    EXPECT_EQ(feeder.feed(std::string(4, '\x07')), Status::Broken);
  }
}

TEST(RequestParser, IsLegacyFromTheFirstByteWhenThatIsOneToEight) {
  for (char first = 0x01; first <= 0x08; ++first) {
    Feeder feeder(kDefaults);
    EXPECT_NE(feeder.feed({&first, 1}), Status::Broken);
    EXPECT_EQ(feeder.parser().dialect(), Dialect::Legacy) << static_cast<int>(first);
  }
}

TEST(RequestParser, RefusesAClientWhoseFirstByteIsNineOrMore) {
  for (int first = 0x09; first <= 0xff; ++first) {
    Feeder feeder(kDefaults);
    EXPECT_EQ(feeder.feed(std::string(1, static_cast<char>(first))), Status::Broken) << first;
    EXPECT_EQ(feeder.parser().dialect(), Dialect::Undecided);
    EXPECT_NE(feeder.parser().reason().find("first byte"), std::string::npos);
  }
}

TEST(RequestParser, RefusesASecondValidate) {
  Feeder feeder(kDefaults);
  EXPECT_EQ(feeder.feed(std::string(kValidate) + std::string(kValidate)), Status::Broken);
  Feeder later = feeder_in(Dialect::Modern, kDefaults);
  later.feed(bytes_of(ping(1), Dialect::Modern));
  EXPECT_EQ(later.feed(kValidate), Status::Broken);
}

TEST(RequestParser, KeepsItsDialectForLife) {
  Feeder legacy = feeder_in(Dialect::Legacy, kDefaults);
  EXPECT_EQ(legacy.feed(std::string(kValidate) + std::string(4, '\x07')), Status::Broken);
  EXPECT_EQ(legacy.parser().dialect(), Dialect::Legacy);
}

TEST(RequestParser, ReadsTheProbeOfAnUnsureClientAsFourQuestions) {
  Feeder feeder(kDefaults);
  feeder.feed(kProbe);
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Modern);
  expect_same(feeder.requests(), std::vector<KeptRequest>(4, keep(num_keys())));
}

TEST(RequestParser, TakesRequestsAsFramesAfterTheUpgrade) {
  Feeder feeder = feeder_in(Dialect::Modern, kDefaults);
  feeder.feed(bytes_of(upgrade(1, "space"), Dialect::Modern));
  feeder.parser().upgrade();
  EXPECT_EQ(feeder.parser().dialect(), Dialect::Extension);
  feeder.feed(bytes_of(with_id(5, get("/k")), Dialect::Extension));
  ASSERT_EQ(feeder.requests().size(), 2U);
  EXPECT_EQ(feeder.requests()[1], keep(with_number(with_id(5, get("/k")), 0x03)));
}

}  // namespace
}  // namespace muster::wire
