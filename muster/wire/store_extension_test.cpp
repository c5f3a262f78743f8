#include "muster/wire/store_extension.h"

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
constexpr Limits kSmall = {
    .key_bytes = 4, .value_bytes = 6, .key_count = 3, .frame_bytes = 64, .message_bytes = 8};

Feeder upgraded(const Limits& limits) {
  Feeder feeder(limits);
  feeder.parser().upgrade();
  return feeder;
}

// Every operation of the extension, with what is easily forgotten.
std::vector<Request> samples() {
  static const std::string long_value(3000, 'v');
  static const std::string_view binary("\0\x01\xff/\n", 5);
  return {
      with_id(1, set("/k", "v1")),
      with_id(0, set("", "")),
      with_id(0xffffffff, set(binary, long_value)),
      with_id(2, compare_set("/cs", "", "first")),
      with_id(3, compare_set(binary, long_value, binary)),
      with_id(4, get("/k")),
      with_id(5, blocking(get("/k"))),
      with_id(6, add("/n", INT64_MIN)),
      with_id(7, check({})),
      with_id(8, check({"/a", "", "/b"})),
      with_id(9, wait({"/a", "/a", binary})),
      with_id(10, num_keys()),
      with_id(11, watch_key("/w")),
      with_id(12, delete_key("/k")),
      with_id(13, append("/k", "po")),
      with_id(14, multi_get({"/a", "/b"})),
      with_id(15, blocking(multi_get({}))),
      with_id(16, multi_set({})),
      with_id(17, multi_set({{"/a", "1"}, {"", ""}, {"/b", long_value}})),
      with_id(18, cancel(0xfffffffe)),
      with_id(19, request(Operation::Ping)),
      with_id(20, queue_push("/q", "xy")),
      with_id(21, queue_pop("/q")),
      with_id(22, blocking(queue_pop("/q"))),
      with_id(23, queue_length("/q")),
      with_id(24, list_keys("/a")),
      with_id(25, barrier("/b", -2)),
      with_id(26, watch_prefix("")),
      with_id(27, drop_namespace("ns")),
      with_id(28, info()),
      with_id(29, open_service(1, "hello")),
      with_id(30, open_service(255, "")),
      with_id(31, say(binary)),
      with_id(32, say("")),
  };
}

// The number of an operation that has none is of no interest.
KeptRequest comparable(KeptRequest request) {
  switch (request.operation) {
    case Operation::Add:
    case Operation::Barrier:
    case Operation::CancelWait:
    case Operation::Open:
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

std::vector<KeptRequest> expected_requests() {
  std::vector<KeptRequest> expected;
  for (const Request& sample : samples()) expected.push_back(comparable(keep(sample)));
  return expected;
}

std::string frame(std::uint32_t id, std::uint8_t opcode, std::string_view body) {
  std::string out;
  put(out, static_cast<std::uint32_t>(kFrameHeaderBytes - sizeof(std::uint32_t) + body.size()));
  put(out, id);
  put(out, opcode);
  out += body;
  return out;
}

// The frame of `request` with another body.
std::string with_body(const Request& request, std::string_view body) {
  return frame(request.id, *opcode_of(request.operation, Dialect::Extension), body);
}

std::string body_of(const Request& request) {
  return bytes_of(request, Dialect::Extension).substr(kFrameHeaderBytes);
}

Status parse(const Limits& limits, std::string_view bytes) {
  Feeder feeder = upgraded(limits);
  feeder.feed(bytes);
  if (feeder.broken()) return Status::Broken;
  return feeder.requests().empty() ? Status::Incomplete : Status::Complete;
}

Status parse(const Limits& limits, const Request& request) {
  return parse(limits, bytes_of(request, Dialect::Extension));
}

// --- Requests ------------------------------------------------------------------------------------

TEST(StoreExtension, HasASampleOfEveryOperation) {
  const auto all = samples();
  for (std::size_t index = 0; index < kOperationCount; ++index) {
    const auto operation = static_cast<Operation>(index);
    const bool sampled = std::any_of(all.begin(), all.end(), [&](const Request& sample) {
      return sample.operation == operation;
    });
    EXPECT_EQ(sampled, opcode_of(operation, Dialect::Extension).has_value()) << name_of(operation);
  }
}

TEST(StoreExtension, KeepsItsNumbers) {
  // What has been on the wire once is there for ever: old clients send it.
  EXPECT_EQ(opcode_of(Operation::WatchKey, Dialect::Extension), 0x13);
  EXPECT_EQ(opcode_of(Operation::WatchPrefix, Dialect::Extension), 0x14);
  EXPECT_EQ(opcode_of(Operation::DropNamespace, Dialect::Extension), 0x15);
  EXPECT_EQ(opcode_of(Operation::Info, Dialect::Extension), 0x16);
  EXPECT_EQ(opcode_of(Operation::Open, Dialect::Extension), 0x17);
  EXPECT_EQ(opcode_of(Operation::Say, Dialect::Extension), 0x18);
  for (int number = 0x01; number <= 0x12; ++number) {
    EXPECT_EQ(operation_of(static_cast<std::uint8_t>(number), Dialect::Extension),
              operation_of(static_cast<std::uint8_t>(number), Dialect::Modern));
  }
}

TEST(StoreExtension, WritesTheBytesThatOtherClientsRead) {
  EXPECT_EQ(bytes_of(with_id(7, set("/k", "v1")), Dialect::Extension),
            "\x11\0\0\0\x07\0\0\0\x01\x02\0\0\0/k\x02\0\0\0v1"s);
  EXPECT_EQ(bytes_of(with_id(8, blocking(get("/k"))), Dialect::Extension),
            "\x0c\0\0\0\x08\0\0\0\x03\x01\x02\0\0\0/k"s);
  EXPECT_EQ(bytes_of(with_id(9, cancel(8)), Dialect::Extension),
            "\x09\0\0\0\x09\0\0\0\x0c\x08\0\0\0"s);
  EXPECT_EQ(bytes_of(with_id(10, multi_set({{"a", "1"}})), Dialect::Extension),
            "\x13\0\0\0\x0a\0\0\0\x0b\x01\0\0\0\x01\0\0\0a\x01\0\0\0"
            "1"s);
  EXPECT_EQ(bytes_of(with_id(11, open_service(1, "hi")), Dialect::Extension),
            "\x08\0\0\0\x0b\0\0\0\x17\x01hi"s);
  EXPECT_EQ(bytes_of(with_id(11, say("x")), Dialect::Extension), "\x06\0\0\0\x0b\0\0\0\x18x"s);
}

TEST(StoreExtension, ParsesWhatItEncodes) {
  for (const Request& sample : samples()) {
    Feeder feeder = upgraded(kDefaults);
    feeder.feed(bytes_of(sample, Dialect::Extension));
    ASSERT_EQ(feeder.requests().size(), 1U)
        << name_of(sample.operation) << feeder.parser().reason();
    EXPECT_TRUE(comparable(feeder.requests()[0]) == comparable(keep(sample)))
        << name_of(sample.operation);
    EXPECT_EQ(feeder.unparsed_bytes(), 0U);
  }
}

TEST(StoreExtension, ParsesTheSameWhereverTheBytesAreSplit) {
  std::string bytes;
  std::vector<KeptRequest> expected;
  for (const Request& sample : samples()) {
    const std::string encoded = bytes_of(sample, Dialect::Extension);
    if (encoded.size() > 200) continue;
    bytes += encoded;
    expected.push_back(comparable(keep(sample)));
  }
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    Feeder feeder = upgraded(kDefaults);
    feeder.feed(std::string_view(bytes).substr(0, split));
    feeder.feed(std::string_view(bytes).substr(split));
    ASSERT_TRUE(comparable(feeder.requests()) == expected) << "split at " << split;
  }
}

TEST(StoreExtension, ParsesRequestsThatComeByteByByteAndInOnePiece) {
  std::string bytes;
  for (const Request& sample : samples()) bytes += bytes_of(sample, Dialect::Extension);
  Feeder whole = upgraded(kDefaults);
  whole.feed(bytes);
  EXPECT_TRUE(comparable(whole.requests()) == expected_requests());
  Feeder slow = upgraded(kDefaults);
  for (const char byte : bytes) slow.feed({&byte, 1});
  EXPECT_TRUE(comparable(slow.requests()) == expected_requests());
}

TEST(StoreExtension, ReadsEveryFlagButZeroAsBlocking) {
  for (const char flag : {'\x01', '\x02', '\xff'}) {
    Feeder feeder = upgraded(kDefaults);
    feeder.feed(with_body(with_id(1, get("/k")), std::string(1, flag) + "\x02\0\0\0/k"s));
    ASSERT_EQ(feeder.requests().size(), 1U);
    EXPECT_TRUE(feeder.requests()[0].blocking);
  }
}

// --- Malformed requests --------------------------------------------------------------------------

// Its body ends with a message, which is as long as the frame says.
bool is_message(const Request& request) {
  return request.operation == Operation::Open || request.operation == Operation::Say;
}

TEST(StoreExtension, RefusesABodyThatIsCutOffAnywhere) {
  for (const Request& sample : samples()) {
    if (is_message(sample)) continue;
    const std::string body = body_of(sample);
    for (std::size_t size = 0; size < std::min<std::size_t>(body.size(), 64); ++size) {
      EXPECT_EQ(parse(kDefaults, with_body(sample, body.substr(0, size))), Status::Broken)
          << name_of(sample.operation) << " cut to " << size;
    }
  }
}

TEST(StoreExtension, RefusesToOpenNoService) {
  EXPECT_EQ(parse(kDefaults, with_body(with_id(1, open_service(1, "")), "")), Status::Broken);
}

TEST(StoreExtension, RefusesBytesBehindTheBody) {
  for (const Request& sample : samples()) {
    if (is_message(sample)) continue;
    EXPECT_EQ(parse(kDefaults, with_body(sample, body_of(sample) + '\0')), Status::Broken)
        << name_of(sample.operation);
  }
}

TEST(StoreExtension, SaysWhichFrameIsMalformed) {
  Feeder feeder = upgraded(kDefaults);
  feeder.feed(with_body(with_id(1, get("/k")), ""));
  EXPECT_EQ(feeder.parser().reason(), "a malformed GET frame of 9 bytes, or one over the limits");
}

TEST(StoreExtension, RefusesAFrameShorterThanItsHeader) {
  for (std::uint32_t size = 0; size < 5; ++size) {
    std::string bytes;
    put(bytes, size);
    EXPECT_EQ(parse(kDefaults, bytes), Status::Broken) << size;
  }
}

TEST(StoreExtension, RefusesAFrameOverTheLimitAsSoonAsItIsAnnounced) {
  std::string at_limit;
  put(at_limit, static_cast<std::uint32_t>(kSmall.frame_bytes));
  EXPECT_EQ(parse(kSmall, at_limit), Status::Incomplete);
  std::string one_past;
  put(one_past, static_cast<std::uint32_t>(kSmall.frame_bytes + 1));
  EXPECT_EQ(parse(kSmall, one_past), Status::Broken);
  std::string giant;
  put<std::uint32_t>(giant, 0xffffffff);
  EXPECT_EQ(parse(kDefaults, giant.substr(0, 3)), Status::Incomplete);
  EXPECT_EQ(parse(kDefaults, giant), Status::Broken);
}

TEST(StoreExtension, TakesAFrameAtTheLimit) {
  Limits limits = kDefaults;
  const Request request = with_id(1, set("k", "value"));
  const std::string bytes = bytes_of(request, Dialect::Extension);
  limits.frame_bytes = bytes.size() - sizeof(std::uint32_t);
  EXPECT_EQ(parse(limits, bytes), Status::Complete);
  limits.frame_bytes -= 1;
  EXPECT_EQ(parse(limits, bytes), Status::Broken);
}

TEST(StoreExtension, TakesKeysAtTheLimitAndRefusesOneByteMore) {
  EXPECT_EQ(parse(kSmall, set("1234", "123456")), Status::Complete);
  EXPECT_EQ(parse(kSmall, set("12345", "")), Status::Broken);
  EXPECT_EQ(parse(kSmall, wait({"", "1234"})), Status::Complete);
  EXPECT_EQ(parse(kSmall, wait({"", "12345"})), Status::Broken);
  EXPECT_EQ(parse(kSmall, multi_set({{"1234", ""}})), Status::Complete);
  EXPECT_EQ(parse(kSmall, multi_set({{"12345", ""}})), Status::Broken);
  EXPECT_EQ(parse(kSmall, watch_prefix("1234")), Status::Complete);
  EXPECT_EQ(parse(kSmall, watch_prefix("12345")), Status::Broken);
}

TEST(StoreExtension, TakesValuesAtTheLimitAndRefusesOneByteMore) {
  EXPECT_EQ(parse(kSmall, set("k", "1234567")), Status::Broken);
  EXPECT_EQ(parse(kSmall, compare_set("k", "123456", "123456")), Status::Complete);
  EXPECT_EQ(parse(kSmall, compare_set("k", "1234567", "")), Status::Broken);
  EXPECT_EQ(parse(kSmall, compare_set("k", "", "1234567")), Status::Broken);
  EXPECT_EQ(parse(kSmall, multi_set({{"k", "123456"}})), Status::Complete);
  EXPECT_EQ(parse(kSmall, multi_set({{"k", "1234567"}})), Status::Broken);
}

TEST(StoreExtension, TakesMessagesAtTheLimitAndRefusesOneByteMore) {
  EXPECT_EQ(parse(kSmall, open_service(1, "12345678")), Status::Complete);
  EXPECT_EQ(parse(kSmall, open_service(1, "123456789")), Status::Broken);
  EXPECT_EQ(parse(kSmall, say("12345678")), Status::Complete);
  EXPECT_EQ(parse(kSmall, say("123456789")), Status::Broken);
}

TEST(StoreExtension, RefusesAMessageOverTheLimitAsSoonAsItIsAnnounced) {
  for (const Request& request : {open_service(1, "123456789"), say("123456789")}) {
    const std::string bytes = bytes_of(request, Dialect::Extension);
    EXPECT_EQ(parse(kSmall, bytes.substr(0, kFrameHeaderBytes - 1)), Status::Incomplete);
    EXPECT_EQ(parse(kSmall, bytes.substr(0, kFrameHeaderBytes)), Status::Broken);
  }
  for (const Request& request : {open_service(1, "12345678"), say("12345678")}) {
    const std::string bytes = bytes_of(request, Dialect::Extension);
    EXPECT_EQ(parse(kSmall, bytes.substr(0, bytes.size() - 1)), Status::Incomplete);
  }
  // Others may be longer.
  const std::string other = bytes_of(check({"1234", "1234"}), Dialect::Extension);
  EXPECT_EQ(parse(kSmall, other.substr(0, other.size() - 1)), Status::Incomplete);
}

TEST(StoreExtension, TakesACountAtTheLimitAndRefusesOneMore) {
  EXPECT_EQ(parse(kSmall, check({"1", "2", "3"})), Status::Complete);
  EXPECT_EQ(parse(kSmall, check({"1", "2", "3", "4"})), Status::Broken);
  EXPECT_EQ(parse(kSmall, multi_set({{"1", ""}, {"2", ""}, {"3", ""}})), Status::Complete);
  EXPECT_EQ(parse(kSmall, multi_set({{"1", ""}, {"2", ""}, {"3", ""}, {"4", ""}})), Status::Broken);
}

TEST(StoreExtension, RefusesACountThatTheFrameCannotHold) {
  for (const std::uint32_t count : {131'072U, 0xffffffffU}) {
    std::string body;
    put(body, count);
    EXPECT_EQ(parse(kDefaults, with_body(with_id(1, wait({})), body)), Status::Broken);
    EXPECT_EQ(parse(kDefaults, with_body(with_id(1, multi_set({})), body)), Status::Broken);
  }
}

TEST(StoreExtension, PassesAnOpcodeItDoesNotKnowOnAndContinuesBehindIt) {
  for (int number = 0; number <= 0xff; ++number) {
    const auto unknown = static_cast<std::uint8_t>(number);
    if (operation_of(unknown, Dialect::Extension)) continue;
    Feeder feeder = upgraded(kDefaults);
    feeder.feed(frame(77, unknown, "a body that nobody here understands") +
                bytes_of(with_id(78, get("/k")), Dialect::Extension));
    ASSERT_EQ(feeder.requests().size(), 2U) << number;
    EXPECT_EQ(feeder.requests()[0].operation, Operation::Upgrade);
    EXPECT_EQ(feeder.requests()[0].id, 77U);
    EXPECT_EQ(feeder.requests()[0].number, number);
    EXPECT_EQ(feeder.requests()[1].operation, Operation::Get);
    EXPECT_EQ(feeder.requests()[1].id, 78U);
  }
}

TEST(StoreExtension, LeavesNothingOfTheRequestBeforeInTheNextOne) {
  for (const Request& second : samples()) {
    Feeder feeder = upgraded(kDefaults);
    feeder.feed(
        bytes_of(with_id(1, compare_set("key", "expected", "desired")), Dialect::Extension) +
        bytes_of(with_id(2, multi_set({{"a", "1"}})), Dialect::Extension) +
        bytes_of(with_id(3, blocking(get("k"))), Dialect::Extension) +
        bytes_of(second, Dialect::Extension));
    EXPECT_TRUE(comparable(feeder.requests().back()) == comparable(keep(second)))
        << name_of(second.operation);
  }
}

// --- Replies -------------------------------------------------------------------------------------

std::string reply_bytes(std::uint32_t id, std::uint8_t status, std::string_view body) {
  std::string out;
  const std::size_t start = begin_reply(id, status, out);
  out += body;
  end_reply(start, out);
  return out;
}

TEST(StoreExtensionReply, IsReadBackAsItWasWritten) {
  for (const std::string& body : {""s, "x"s, std::string(1000, '\0')}) {
    const std::string bytes = reply_bytes(0xfffffffe, kStatusChange, body);
    Reply reply;
    EXPECT_EQ(decode_reply(bytes, 2000, reply), bytes.size());
    EXPECT_EQ(reply.id, 0xfffffffeU);
    EXPECT_EQ(reply.status, kStatusChange);
    EXPECT_EQ(reply.body, body);
  }
}

TEST(StoreExtensionReply, HasTheseBytes) {
  EXPECT_EQ(reply_bytes(7, kStatusOk, "ab"), "\x07\0\0\0\x07\0\0\0\0ab"s);
}

TEST(StoreExtensionReply, BeginsBehindWhatIsThereAlready) {
  std::string out = "before";
  const std::size_t first = begin_reply(1, kStatusOk, out);
  out += "one";
  end_reply(first, out);
  const std::size_t second = begin_reply(2, kStatusOk, out);
  end_reply(second, out);
  EXPECT_EQ(out, "before" + reply_bytes(1, kStatusOk, "one") + reply_bytes(2, kStatusOk, ""));
}

TEST(StoreExtensionReply, IsNotThereUntilItsLastByteHasCome) {
  const std::string bytes = reply_bytes(1, kStatusOk, "body");
  Reply reply;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<char> exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(decode_reply({exact.data(), exact.size()}, 100, reply), 0U) << size;
  }
}

TEST(StoreExtensionReply, IsFoundInFrontOfTheNextOne) {
  const std::string first = reply_bytes(1, kStatusOk, "one");
  const std::string both = first + reply_bytes(2, kStatusChange, "two");
  Reply reply;
  ASSERT_EQ(decode_reply(both, 100, reply), first.size());
  EXPECT_EQ(reply.body, "one");
  ASSERT_EQ(decode_reply(std::string_view(both).substr(first.size()), 100, reply),
            both.size() - first.size());
  EXPECT_EQ(reply.body, "two");
}

TEST(StoreExtensionReply, IsMalformedWhenShorterThanItsHeader) {
  for (std::uint32_t size = 0; size < 5; ++size) {
    std::string bytes;
    put(bytes, size);
    bytes += "12345678";
    Reply reply;
    EXPECT_EQ(decode_reply(bytes, 100, reply), std::nullopt) << size;
  }
}

TEST(StoreExtensionReply, IsMalformedWhenLargerThanTheReaderTakes) {
  const std::string bytes = reply_bytes(1, kStatusOk, "body");
  const std::size_t size = bytes.size() - sizeof(std::uint32_t);
  Reply reply;
  EXPECT_EQ(decode_reply(bytes, size, reply), bytes.size());
  EXPECT_EQ(decode_reply(bytes, size - 1, reply), std::nullopt);
  // Seen from the length alone.
  EXPECT_EQ(decode_reply(bytes.substr(0, 4), size - 1, reply), std::nullopt);
  std::string giant;
  put<std::uint32_t>(giant, 0xffffffff);
  EXPECT_EQ(decode_reply(giant, std::size_t{1} << 30U, reply), std::nullopt);
}

TEST(StoreExtensionReply, CarriesEveryKindOfError) {
  for (const ErrorKind kind : {ErrorKind::Invalid, ErrorKind::Unavailable, ErrorKind::Timeout,
                               ErrorKind::Conflict, ErrorKind::Closed, ErrorKind::Unimplemented,
                               ErrorKind::Cancelled, ErrorKind::Corrupt, ErrorKind::Finished}) {
    std::string bytes;
    encode_error(9, kind, "why", bytes);
    Reply reply;
    ASSERT_EQ(decode_reply(bytes, 100, reply), bytes.size());
    EXPECT_EQ(reply.id, 9U);
    const auto error = error_of(reply);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(*error, (Error{kind, "why"})) << name_of(kind);
  }
}

TEST(StoreExtensionReply, IsNoErrorWhenItIsOkOrAChange) {
  EXPECT_EQ(error_of({1, kStatusOk, "x"}), std::nullopt);
  EXPECT_EQ(error_of({1, kStatusChange, "x"}), std::nullopt);
}

TEST(StoreExtensionReply, GivesAReasonForAnErrorThatHasNone) {
  const auto error = error_of({1, status_of(ErrorKind::Conflict), ""});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::Conflict);
  EXPECT_EQ(error->message, "the server gave no reason");
}

TEST(StoreExtensionReply, ReadsKindsOfErrorItDoesNotKnowAsInvalid) {
  const int known = kErrorKindCount - 1;
  for (int status = kStatusErrorBase + known + 1; status <= 0xff; ++status) {
    const auto error = error_of({1, static_cast<std::uint8_t>(status), "newer"});
    ASSERT_TRUE(error.has_value()) << status;
    EXPECT_EQ(*error, (Error{ErrorKind::Invalid, "newer"}));
  }
}

}  // namespace
}  // namespace muster::wire
