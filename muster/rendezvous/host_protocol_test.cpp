#include "muster/rendezvous/host_protocol.h"

#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::node;

Hello full_hello() {
  Hello hello;
  hello.run_id = "run";
  hello.joins = true;
  hello.closes = true;
  hello.knows_closed = true;
  hello.node = {"host", 258, 2, 0x0102030405060708};
  hello.settings.run_id = "run";
  hello.settings.min_nodes = 2;
  hello.settings.max_nodes = 3;
  hello.settings.timeouts.last_call = 7s;
  // Only their product travels, so this is what comes back.
  hello.settings.keep_alive_interval = 15s;
  hello.settings.keep_alive_max_attempt = 1;
  hello.settings.grace = 100ms;
  hello.settings.timeouts.regroup = 3s;
  hello.place = Place{{9, 5}, 1, 3};
  return hello;
}

template <typename T>
void expect_invalid(const Result<T>& decoded, std::string_view text) {
  ASSERT_FALSE(decoded) << text;
  EXPECT_EQ(decoded.error().kind, ErrorKind::Invalid);
  EXPECT_NE(decoded.error().message.find(text), std::string::npos) << decoded.error().message;
}

// What a message costs on the wire. Opening a conversation also names the service.
std::size_t opening_bytes(std::string_view message) {
  wire::Request request;
  request.operation = wire::Operation::Open;
  request.number = 1;
  request.value = message;
  std::string bytes;
  wire::encode_request(request, bytes);
  return bytes.size();
}
std::size_t saying_bytes(std::string_view message) {
  wire::Request request;
  request.operation = wire::Operation::Say;
  request.value = message;
  std::string bytes;
  wire::encode_request(request, bytes);
  return bytes.size();
}
std::size_t telling_bytes(std::string_view message) {
  std::string bytes;
  const std::size_t start = wire::begin_reply(1, wire::kStatusChange, bytes);
  bytes += message;
  wire::end_reply(start, bytes);
  return bytes.size();
}

// ---- what nodes say

TEST(HostProtocol, BringsAHelloBack) {
  EXPECT_EQ(*decode_hello(encode(full_hello())), full_hello());
  Hello plain = full_hello();
  plain.joins = plain.closes = plain.knows_closed = false;
  plain.place.reset();
  EXPECT_EQ(*decode_hello(encode(plain)), plain);
}

TEST(HostProtocol, SendsTheWindowAndNotWhatItIsMadeOf) {
  Hello hello = full_hello();
  hello.settings.keep_alive_interval = 5s;
  hello.settings.keep_alive_max_attempt = 3;
  EXPECT_EQ(decode_hello(encode(hello))->settings.window(), 15s);
}

TEST(HostProtocol, NeedsOnlyTheRunIdOfAnObserver) {
  Hello hello;
  hello.run_id = "run";
  hello.observes = true;
  const std::string bytes = encode(hello);
  EXPECT_EQ(bytes.size(), 9U);
  const auto decoded = decode_hello(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(decoded->observes);
  EXPECT_EQ(decoded->run_id, "run");
  EXPECT_EQ(decoded->node, Node());
}

TEST(HostProtocol, HasTheseBytesForAHello) {
  const std::string bytes = encode(full_hello());
  std::string expected = {2, 29};
  wire::put_string(expected, "run");
  wire::put_string(expected, "host");
  for (const std::int64_t number : {258, 2}) wire::put(expected, number);
  wire::put<std::uint64_t>(expected, 0x0102030405060708);
  for (const std::int64_t number :
       {std::int64_t{2}, std::int64_t{3}, std::int64_t{7'000'000'000}, std::int64_t{3'000'000'000},
        std::int64_t{15'000'000'000}, std::int64_t{100'000'000}}) {
    wire::put(expected, number);
  }
  for (const std::uint64_t number : {9U, 5U}) wire::put(expected, number);
  for (const std::int64_t number : {1, 3}) wire::put(expected, number);
  EXPECT_EQ(bytes, expected);
}

TEST(HostProtocol, RefusesAHelloThatIsCutOrHasMore) {
  const std::string bytes = encode(full_hello());
  for (std::size_t length = 1; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_hello(std::string_view(bytes).substr(0, length))) << length;
  EXPECT_FALSE(decode_hello(bytes + '\0'));
}

TEST(HostProtocol, SaysWhichVersionItSpeaks) {
  std::string bytes = encode(full_hello());
  bytes[0] = 3;
  const auto hello = decode_hello(bytes);
  ASSERT_FALSE(hello);
  EXPECT_EQ(hello.error().kind, ErrorKind::Unimplemented);
  EXPECT_NE(hello.error().message.find("version 2"), std::string::npos);
}

TEST(HostProtocol, ChecksWhatANodeComesWith) {
  const auto refuses = [](std::string_view text, auto change) {
    Hello hello = full_hello();
    change(hello);
    expect_invalid(decode_hello(encode(hello)), text);
  };
  refuses("run id", [](Hello& hello) { hello.run_id = ""; });
  refuses("run id", [](Hello& hello) { hello.run_id.assign(kRunIdBytesMax + 1, 'r'); });
  refuses("nodes", [](Hello& hello) { hello.settings.min_nodes = 0; });
  refuses("nodes", [](Hello& hello) { hello.settings.max_nodes = 1; });
  refuses("last_call", [](Hello& hello) { hello.settings.timeouts.last_call = 0s; });
  refuses("keep_alive", [](Hello& hello) { hello.settings.keep_alive_interval = -1s; });
  refuses("grace", [](Hello& hello) { hello.settings.grace = -1ns; });
  refuses("last_call", [](Hello& hello) { hello.settings.timeouts.last_call = Duration::max(); });
  refuses("rank", [](Hello& hello) { hello.place->rank = 3; });
  refuses("rank", [](Hello& hello) { hello.place->rank = -1; });
  refuses("world", [](Hello& hello) { hello.place->world_size = 4; });
  refuses("world", [](Hello& hello) { *hello.place = {{9, 5}, 0, 1}; });
  refuses("birth", [](Hello& hello) { hello.place->id.birth = 0; });
}

TEST(HostProtocol, RefusesFlagsThatNobodyKnows) {
  std::string bytes = encode(full_hello());
  bytes[1] = static_cast<char>(bytes[1] | 64);
  expect_invalid(decode_hello(bytes), "flags");
}

TEST(HostProtocol, BringsWhatIsSaidBack) {
  for (const Said::Kind kind : {Said::Kind::Join, Said::Kind::Leave, Said::Kind::Close,
                                Said::Kind::Alive, Said::Kind::Show, Said::Kind::Beat}) {
    Said said;
    said.kind = kind;
    if (kind == Said::Kind::Join) said.after = {3, 4};
    EXPECT_EQ(*decode_said(encode(said)), said);
  }
  EXPECT_EQ(encode(Said{Said::Kind::Alive, {}}), "\x04");
}

TEST(HostProtocol, RefusesWhatNobodySays) {
  expect_invalid(decode_said(""), "kind");
  expect_invalid(decode_said(std::string(1, '\0')), "kind");
  expect_invalid(decode_said("\x07"), "kind");
  expect_invalid(decode_said("\x04\x04"), "length");
  expect_invalid(decode_said("\x01"), "length");
  expect_invalid(decode_said(std::string("\x01") + std::string(15, 'x')), "length");
  expect_invalid(decode_said(std::string("\x01") + std::string(17, 'x')), "length");
}

// ---- what they are told

TEST(HostProtocol, BringsAPlaceBack) {
  const Place place{{1, 2}, 3, 4};
  const auto told = decode_told(encode_joined(place));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, Told::Kind::Joined);
  EXPECT_EQ(told->place, place);
}

TEST(HostProtocol, BringsAnErrorBack) {
  for (int kind = 0; kind < kErrorKindCount; ++kind) {
    const auto told = decode_told(encode_failed(static_cast<ErrorKind>(kind), "why"));
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, Told::Kind::Failed);
    EXPECT_EQ(told->error, (Error{static_cast<ErrorKind>(kind), "why"}));
  }
  std::string newer = encode_failed(ErrorKind::Closed, "why");
  newer[1] = 99;
  EXPECT_EQ(decode_told(newer)->error.kind, ErrorKind::Invalid);
  const auto cut = decode_told(encode_failed(ErrorKind::Closed, std::string(100'000, 'e')));
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->error.message.size(), 4096U);
}

TEST(HostProtocol, BringsAStatusBack) {
  for (int flags = 0; flags < 16; ++flags) {
    const Status status{.round = 7,
                        .waiting = 5,
                        .closed = (flags & 1) != 0,
                        .lost = (flags & 2) != 0,
                        .member = (flags & 4) != 0};
    const bool spare = (flags & 8) != 0;
    const auto told = decode_told(encode_status(status, spare));
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, Told::Kind::Status);
    EXPECT_EQ(told->status, status);
    EXPECT_EQ(told->spare, spare);
  }
}

TEST(HostProtocol, BringsASnapshotBack) {
  Snapshot snapshot;
  snapshot.exists = true;
  snapshot.round = 3;
  snapshot.complete = true;
  snapshot.lost = true;
  snapshot.min_nodes = 1;
  snapshot.max_nodes = 2;
  snapshot.world_size = 2;
  snapshot.last_call_left = 5s;
  snapshot.members = {{node("a"), 1, 3s, true}};
  snapshot.waiting = {{node("w"), {}, {}, false}, {node("x"), {}, 1ns, {}}};
  snapshot.spare = {{node("r"), {}, {}, {}}};
  const std::string bytes = encode_snapshot(snapshot);
  const auto told = decode_told(bytes);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, Told::Kind::Snapshot);
  EXPECT_EQ(encode_snapshot(told->snapshot), bytes);
  EXPECT_EQ(told->snapshot.members.at(0).rank, 1);
  EXPECT_EQ(told->snapshot.members.at(0).last_heard, 3s);
  EXPECT_EQ(told->snapshot.waiting.at(0).connected, false);
  EXPECT_FALSE(told->snapshot.waiting.at(1).connected);
  EXPECT_EQ(told->snapshot.last_call_left, 5s);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_told(std::string_view(bytes).substr(0, length))) << length;
}

TEST(HostProtocol, RefusesWhatNobodyIsTold) {
  expect_invalid(decode_told(""), "kind");
  expect_invalid(decode_told(std::string(1, '\0')), "kind");
  expect_invalid(decode_told("\x07"), "kind");
  expect_invalid(decode_told("\x05!"), "length");
  for (const std::string& bytes : {encode_joined({{1, 2}, 0, 1}), encode_status({}, false),
                                   encode_failed({}, "x"), encode_snapshot({})}) {
    EXPECT_FALSE(decode_told(bytes + "x"));
    EXPECT_FALSE(decode_told(std::string_view(bytes).substr(0, bytes.size() - 1)));
  }
}

// ---- what it costs

TEST(HostProtocol, TakesAtMost250BytesForAFirstJoin) {
  Hello hello = full_hello();
  hello.run_id = "job-0123456789ab";
  hello.node.addr = "ip-10-123-123-123.eu-central-1.compute.interna";
  ASSERT_EQ(hello.run_id.size(), 16U);
  ASSERT_EQ(hello.node.addr.size(), 46U);
  hello.place.reset();
  EXPECT_LE(opening_bytes(encode(hello)) + telling_bytes(encode_joined({})), 250U);
}

TEST(HostProtocol, TakesAtMost32BytesForAHeartbeat) {
  EXPECT_LE(saying_bytes(encode(Said{Said::Kind::Alive, {}})) +
                telling_bytes(encode_plain(Told::Kind::Alive)),
            32U);
}

TEST(HostProtocol, TakesTheSameForAnyNumberOfNodes) {
  EXPECT_EQ(encode_joined({{1, 1}, 0, 1}).size(),
            encode_joined({{1, 1}, 999'999, 1'000'000}).size());
  EXPECT_EQ(encode_status({.waiting = 1}, false).size(),
            encode_status({.waiting = 1'000'000}, false).size());
}

}  // namespace
}  // namespace muster::rendezvous
