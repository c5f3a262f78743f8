// What a server must withstand from its clients: each case has a bystander who is served before,
// during and after, and an offender about whom exactly one line is logged.
#include "muster/base/random.h"
#include "tests/server/log_capture.h"
#include "tests/server/raw_client.h"
#include "tests/server/requests.h"
#include "tests/server/server_thread.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace muster::tests {
namespace {

using Ending = RawClient::Ending;

constexpr wire::Limits kLimits;

std::string integer(std::uint64_t value) {
  std::string bytes;
  wire::put(bytes, value);
  return bytes;
}

std::string frame(std::string_view body) {
  std::string bytes;
  wire::put_string(bytes, body);
  return bytes;
}

// An announcement of something too large, of which nothing follows.
struct Offence {
  std::string name;
  Dialect dialect = Dialect::Modern;
  std::string bytes;
  std::string reason;
};
void PrintTo(const Offence& offence, std::ostream* out) { *out << offence.name; }

std::vector<Offence> offences() {
  const auto opcode = [](Dialect dialect, Operation operation) {
    return std::string(1, static_cast<char>(*wire::opcode_of(operation, dialect)));
  };
  const std::string modern_set = opcode(Dialect::Modern, Operation::Set);
  const std::string legacy_set = opcode(Dialect::Legacy, Operation::Set);
  std::string text_then_add = request_bytes(Dialect::Modern, Operation::Set, "/text", "abc") +
                              request_bytes(Dialect::Modern, Operation::Add, "/text", {}, 1);
  std::string legacy_add = request_bytes(Dialect::Legacy, Operation::Set, "/text", "") +
                           request_bytes(Dialect::Legacy, Operation::Add, "/text", {}, 1);
  wire::Request long_key;
  long_key.operation = Operation::Get;
  const std::string key(kLimits.key_bytes + 1, 'k');
  long_key.key = key;
  const std::string long_frame_key = bytes_of(long_key, Dialect::Extension);
  std::string many_keys;
  wire::put<std::uint32_t>(many_keys, 1);
  many_keys += opcode(Dialect::Extension, Operation::Wait);
  wire::put<std::uint32_t>(many_keys, static_cast<std::uint32_t>(kLimits.key_count + 1));
  std::string trailing = request_bytes(Dialect::Extension, Operation::NumKeys);
  trailing = frame(trailing.substr(4) + "more");
  std::string upgrade_to_zero = request_bytes(Dialect::Modern, Operation::Upgrade, "", {}, 0);
  std::string long_namespace =
      request_bytes(Dialect::Modern, Operation::Upgrade, std::string(256, 'n'), {}, 1);
  std::string huge_frame;
  wire::put(huge_frame, static_cast<std::uint32_t>(kLimits.frame_bytes + 1));

  return {
      {"ModernKey", Dialect::Modern, modern_set + integer(kLimits.key_bytes + 1),
       "SET with a key of 8193 bytes, more than the limit of 8192"},
      {"ModernValue", Dialect::Modern, modern_set + blob("/k") + integer(kLimits.value_bytes + 1),
       "SET with a value of 8388609 bytes"},
      {"ModernHugeValue", Dialect::Modern, modern_set + blob("/k") + integer(~std::uint64_t{0}),
       "SET with a value of 18446744073709551615 bytes"},
      {"ModernCount", Dialect::Modern,
       opcode(Dialect::Modern, Operation::Wait) + integer(kLimits.key_count + 1),
       "WAIT of 131073 keys"},
      {"ModernPairs", Dialect::Modern,
       opcode(Dialect::Modern, Operation::MultiSet) + integer(kLimits.key_count + 1),
       "MULTI_SET of 131073 keys"},
      {"ModernKeyInAList", Dialect::Modern,
       opcode(Dialect::Modern, Operation::Check) + integer(2) + blob("/a") +
           integer(kLimits.key_bytes + 1),
       "CHECK with a key of 8193 bytes"},
      {"ModernOpcode", Dialect::Modern, "\x7f", "unknown opcode 0x7f in the modern dialect"},
      {"ModernSecondValidate", Dialect::Modern, std::string(kValidate),
       "unknown opcode 0x00 in the modern dialect"},
      {"ModernAddToText", Dialect::Modern, text_then_add, "not a number"},
      {"ModernUpgradeToZero", Dialect::Modern, upgrade_to_zero, "version 0"},
      {"ModernLongNamespace", Dialect::Modern, long_namespace, "a namespace name of 256 bytes"},
      {"LegacyKey", Dialect::Legacy, legacy_set + integer(kLimits.legacy_key_bytes + 1),
       "SET with a key of 1048577 bytes"},
      {"LegacyValue", Dialect::Legacy,
       legacy_set + blob("/k") + integer(kLimits.legacy_value_bytes + 1),
       "SET with a value of 1073741825 bytes"},
      {"LegacyCount", Dialect::Legacy,
       opcode(Dialect::Legacy, Operation::Check) + integer(kLimits.key_count + 1),
       "CHECK of 131073 keys"},
      {"LegacyOpcode", Dialect::Legacy, request_bytes(Dialect::Legacy, Operation::NumKeys) + "\x09",
       "unknown opcode 0x09 in the legacy dialect"},
      {"LegacyAddToAnEmptyValue", Dialect::Legacy, legacy_add, "not a number"},
      {"Probe", Dialect::Legacy, std::string("\x00\xCE\xF7\x85\x3D\x07\x07\x07\x07", 9),
       "SET with a key of"},
      {"Http", Dialect::Legacy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "first byte 0x47"},
      {"Tls", Dialect::Legacy, std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8),
       "first byte 0x16"},
      {"ExtensionFrame", Dialect::Extension, huge_frame, "a frame of 1073741825 bytes"},
      {"ExtensionShortFrame", Dialect::Extension, frame("abcd"), "a frame shorter than its header"},
      {"ExtensionKey", Dialect::Extension, long_frame_key, "GET"},
      {"ExtensionCount", Dialect::Extension, frame(many_keys), "WAIT"},
      {"ExtensionTrailingBytes", Dialect::Extension, trailing, "GETNUMKEYS"},
  };
}

class Abuse : public testing::TestWithParam<Offence> {
 protected:
  void expect_one_warning(const std::string& offender, std::string_view reason) {
    server.run([](store::Server&, net::Transport&) {});
    const auto warnings = log.warnings();
    ASSERT_EQ(warnings.size(), 1U) << testing::PrintToString(warnings);
    EXPECT_NE(warnings[0].find("peer=" + offender), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find(reason), std::string::npos) << warnings[0];
  }

  LogCapture log{log::Level::Debug};
  ServerThread server;
  Bystander bystander{server.port()};
};

TEST_P(Abuse, CostsOnlyTheOffenderItsConnection) {
  const Offence& offence = GetParam();
  ASSERT_TRUE(bystander.served());
  RawClient offender(server.port(), offence.dialect);
  offender.send(offence.bytes);
  ASSERT_TRUE(bystander.served());
  // Not a reset, which would end a PyTorch 1.13 process.
  EXPECT_EQ(offender.read_to_end(), Ending::Closed);
  ASSERT_TRUE(bystander.served());
  expect_one_warning(offender.name(), offence.reason);
}

TEST_P(Abuse, IsEndedInGoodOrderWhileMoreIsOnTheWay) {
  const Offence& offence = GetParam();
  RawClient offender(server.port(), offence.dialect);
  // The server is kept busy meanwhile, so that it finds all of this at once.
  std::promise<void> sent;
  std::thread sender([&] {
    offender.send(offence.bytes + std::string(300'000, '\x7f'));
    sent.set_value();
    offender.send(std::string(1'000'000, '\x7f'));
  });
  server.run([&](store::Server&, net::Transport&) {
    sent.get_future().wait_for(std::chrono::seconds(1));
  });
  EXPECT_EQ(offender.read_to_end(), Ending::Closed);
  sender.join();
  ASSERT_TRUE(bystander.served());
  expect_one_warning(offender.name(), "");
}

INSTANTIATE_TEST_SUITE_P(OfAServer, Abuse, testing::ValuesIn(offences()),
                         [](const auto& offence) { return offence.param.name; });

// ---- what is not refused

class Endurance : public testing::TestWithParam<Dialect> {
 protected:
  void expect_silence() {
    server.run([](store::Server&, net::Transport&) {});
    EXPECT_TRUE(log.warnings().empty()) << testing::PrintToString(log.warnings());
  }
  // SET and GET, and the size of the answer.
  std::string set_and_get(std::string_view key, std::string_view value) const {
    return request_bytes(GetParam(), Operation::Set, key, value) +
           request_bytes(GetParam(), Operation::Get, key);
  }
  std::size_t reply_bytes(std::string_view value) const {
    // The extension answers a set too, and marks a value as present.
    return GetParam() == Dialect::Extension ? 2 * wire::kFrameHeaderBytes + 1 + 4 + value.size()
                                            : blob(value).size();
  }

  LogCapture log{log::Level::Debug};
  ServerThread server;
  Bystander bystander{server.port()};
};
INSTANTIATE_TEST_SUITE_P(OfAServer, Endurance,
                         testing::Values(Dialect::Legacy, Dialect::Modern, Dialect::Extension),
                         [](const auto& dialect) {
                           return std::string(wire::name_of(dialect.param));
                         });

TEST_P(Endurance, TakesWhatIsExactlyAtTheLimits) {
  RawClient client(server.port(), GetParam());
  const std::string key(kLimits.key_bytes, 'k');
  const std::string value(kLimits.value_bytes, 'v');
  EXPECT_EQ(client.ask(set_and_get(key, value), reply_bytes(value)).size(), reply_bytes(value));
  const std::vector<std::string> keys(kLimits.key_count, "/k");
  const std::size_t status_bytes =
      GetParam() == Dialect::Extension ? wire::kFrameHeaderBytes + 1 : 1;
  EXPECT_EQ(client.ask(request_bytes(GetParam(), Operation::Check, keys), status_bytes).size(),
            status_bytes);
  ASSERT_TRUE(bystander.served());
  expect_silence();
}

TEST_P(Endurance, ServesASenderThatSendsOneByteAtATime) {
  RawClient slow(server.port());
  std::string bytes = opening(GetParam()) + set_and_get("/k", "value");
  for (const char byte : bytes) {
    ASSERT_TRUE(slow.send({&byte, 1}));
    ASSERT_TRUE(bystander.served());  // by then the server has seen the byte
  }
  const std::size_t version_bytes = GetParam() == Dialect::Extension ? 4 : 0;
  const std::string reply = slow.receive(version_bytes + reply_bytes("value"));
  EXPECT_EQ(reply.substr(reply.size() - 5), "value");
  expect_silence();
}

TEST_P(Endurance, DoesNotApplyARequestThatNeverEnds) {
  auto half = std::make_unique<RawClient>(server.port(), GetParam());
  const std::string bytes = request_bytes(GetParam(), Operation::Set, "/half", "value");
  half->send(bytes.substr(0, bytes.size() - 1));
  ASSERT_TRUE(bystander.served());
  EXPECT_EQ(bystander.get("/half"), "");
  EXPECT_FALSE(half->has_input());
  half->close();
  ASSERT_TRUE(log.wait_for("connection ended"));
  EXPECT_EQ(bystander.get("/half"), "");
  EXPECT_EQ(server.connection_count(), 1U);
  expect_silence();
}

TEST_P(Endurance, AnswersAClientThatHasFinishedSending) {
  const std::string value(std::size_t{6} << 20U, 'v');
  RawClient client(server.port(), GetParam());
  client.send(set_and_get("/k", value));
  for (int count = 0; count < 4; ++count) {
    client.send(request_bytes(GetParam(), Operation::Get, "/k"));
  }
  client.shutdown_write();
  ASSERT_TRUE(bystander.served());
  const std::size_t get_bytes = GetParam() == Dialect::Extension
                                    ? wire::kFrameHeaderBytes + 1 + 4 + value.size()
                                    : blob(value).size();
  EXPECT_EQ(client.receive(reply_bytes(value) + 4 * get_bytes).size(),
            reply_bytes(value) + 4 * get_bytes);
  EXPECT_EQ(client.read_to_end(), Ending::Closed);
  ASSERT_TRUE(bystander.served());
  expect_silence();
}

TEST_P(Endurance, ForgetsAClientThatIsResetWhileItWaits) {
  RawClient client(server.port(), GetParam());
  client.send(request_bytes(GetParam(), Operation::Wait, std::vector<std::string>{"/k"}));
  ASSERT_TRUE(bystander.served());
  client.reset();
  ASSERT_TRUE(log.wait_for("connection"));
  EXPECT_EQ(server.connection_count(), 1U);
  ASSERT_TRUE(bystander.served());
  expect_silence();
}

TEST_P(Endurance, BoundsWhatAClientThatNeverReadsCanCost) {
  constexpr int kGets = 200;
  const std::string value(std::size_t{1} << 20U, 'v');
  RawClient lazy(server.port(), GetParam());
  ASSERT_EQ(lazy.ask(set_and_get("/k", value), reply_bytes(value)).size(), reply_bytes(value));
  std::string bytes;
  for (int count = 0; count < kGets; ++count) {
    bytes += request_bytes(GetParam(), Operation::Get, "/k");
  }
  ASSERT_TRUE(lazy.send(bytes));
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(bystander.served());
    // The value itself, and one answer more than may be pending.
    ASSERT_LT(server.memory_bytes(), 4 * value.size());
  }
  // It is not closed, and gets everything once it reads.
  const std::size_t get_bytes = GetParam() == Dialect::Extension
                                    ? wire::kFrameHeaderBytes + 1 + 4 + value.size()
                                    : blob(value).size();
  for (int count = 0; count < kGets; ++count) {
    ASSERT_EQ(lazy.receive(get_bytes).size(), get_bytes) << count;
  }
  ASSERT_TRUE(bystander.served());
  expect_silence();
}

TEST_P(Endurance, ServesRequestsThatComeAllAtOnce) {
  // Far more than one read takes, in one piece.
  RawClient client(server.port(), GetParam());
  constexpr std::size_t kRequests = 20'000;
  std::string bytes;
  for (std::size_t count = 0; count < kRequests; ++count) {
    bytes += request_bytes(GetParam(), Operation::Add, "/n", {}, 1);
  }
  std::thread sender([&] { client.send(bytes); });
  const std::size_t sum_bytes = GetParam() == Dialect::Extension ? wire::kFrameHeaderBytes + 8 : 8;
  const std::string replies = client.receive(kRequests * sum_bytes);
  sender.join();
  ASSERT_EQ(replies.size(), kRequests * sum_bytes);
  EXPECT_EQ(replies.substr(replies.size() - 8), number(kRequests));
  ASSERT_TRUE(bystander.served());
  EXPECT_EQ(bystander.get("/n"), std::to_string(kRequests));
  expect_silence();
}

TEST(RandomBytes, AreServedOrRefusedAndDisturbNobody) {
  const LogCapture log;
  ServerThread server;
  Bystander bystander(server.port());
  Random random(20260314);
  for (int round = 0; round < 300; ++round) {
    constexpr Dialect kDialects[] = {Dialect::Legacy, Dialect::Modern, Dialect::Extension};
    std::string bytes = opening(kDialects[random.below(3)]);
    const std::size_t size = 1 + random.below(2000);
    for (std::size_t index = 0; index < size; ++index) {
      // Small numbers are opcodes and lengths, so that some requests are whole.
      bytes += static_cast<char>(random.chance(500) ? random.below(256) : random.below(20));
      if (random.chance(300)) bytes.append(7, '\0');
    }
    RawClient client(server.port());
    client.send(bytes);
    client.shutdown_write();
    ASSERT_NE(client.read_to_end(), Ending::Open) << round;
    ASSERT_TRUE(bystander.served()) << round;
  }
}

// ---- limits of the server as a whole

TEST(ServerLimits, LetConnectionsBeyondTheMaximumWaitUntilOthersClose) {
  LogCapture log{log::Level::Debug};
  store::ServerOptions options;
  options.connections_max = 3;
  ServerThread server(options);
  Bystander bystander(server.port());
  RawClient second(server.port(), Dialect::Modern);
  RawClient third(server.port(), Dialect::Modern);
  const std::string count_keys = request_bytes(Dialect::Modern, Operation::NumKeys);
  ASSERT_EQ(second.ask(count_keys, 8), number(0));
  ASSERT_EQ(third.ask(count_keys, 8), number(0));
  RawClient fourth(server.port(), Dialect::Modern);
  fourth.send(count_keys);
  for (int round = 0; round < 10; ++round) ASSERT_TRUE(bystander.served());
  EXPECT_FALSE(fourth.has_input());
  EXPECT_EQ(server.connection_count(), 3U);
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1U) << testing::PrintToString(warnings);
  EXPECT_NE(warnings[0].find("3 connections, the most this server takes"), std::string::npos);

  second.close();
  EXPECT_EQ(fourth.receive(8), number(1));
  ASSERT_TRUE(bystander.served());
}

TEST(ServerLimits, RefuseAWriterWhenTheMemoryIsUsedUpAndServeTheOthers) {
  LogCapture log{log::Level::Debug};
  store::ServerOptions options;
  options.hub.memory_bytes_max = std::size_t{4} << 20U;
  ServerThread server(options);
  Bystander bystander(server.port());
  ASSERT_TRUE(bystander.served());
  RawClient writer(server.port(), Dialect::Modern);
  const std::string value(200'000, 'v');
  for (int count = 0; count < 40; ++count) {
    writer.send(request_bytes(Dialect::Modern, Operation::Set, "/" + std::to_string(count), value));
  }
  EXPECT_EQ(writer.read_to_end(), Ending::Closed);
  EXPECT_LE(server.memory_bytes(), options.hub.memory_bytes_max);
  ASSERT_TRUE(bystander.served());
  EXPECT_EQ(bystander.get("/0").size(), value.size());
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1U) << testing::PrintToString(warnings);
  EXPECT_NE(warnings[0].find("peer=" + writer.name()), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("--max-memory"), std::string::npos) << warnings[0];

  // A client of the extension is told, and stays.
  RawClient extension(server.port(), Dialect::Extension);
  const std::string reply = extension.ask(
      request_bytes(Dialect::Extension, Operation::Set, "/more", value), wire::kFrameHeaderBytes);
  ASSERT_EQ(reply.size(), wire::kFrameHeaderBytes);
  EXPECT_EQ(static_cast<std::uint8_t>(reply.back()),
            wire::kStatusErrorBase + static_cast<std::uint8_t>(ErrorKind::Unavailable));
  EXPECT_EQ(log.warnings().size(), 1U);
}

TEST(ServerNamespaces, OfTwoPortsAreApartAndOneCanBeDropped) {
  LogCapture log{log::Level::Debug};
  ServerThread server;
  int second_port = 0;
  server.run([&](store::Server& store, net::Transport& transport) {
    const auto port = store.listen(transport, {"127.0.0.1", 0}, "job-1");
    ASSERT_TRUE(port) << port.error().message;
    second_port = *port;
  });
  Bystander bystander(server.port());
  RawClient inside(second_port, Dialect::Legacy);
  const std::string set_and_get = request_bytes(Dialect::Legacy, Operation::Set, "/k", "inside") +
                                  request_bytes(Dialect::Legacy, Operation::Get, "/k");
  ASSERT_EQ(inside.ask(set_and_get, blob("inside").size()), blob("inside"));
  EXPECT_EQ(bystander.get("/k"), "");
  ASSERT_TRUE(bystander.served());
  EXPECT_TRUE(
      server.look<bool>([](store::Server& store) { return store.drop_namespace("job-1"); }));
  EXPECT_EQ(inside.read_to_end(), Ending::Closed);
  EXPECT_FALSE(
      server.look<bool>([](store::Server& store) { return store.drop_namespace("job-1"); }));
  ASSERT_TRUE(bystander.served());
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1U) << testing::PrintToString(warnings);
  EXPECT_NE(warnings[0].find("peer=" + inside.name()), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("was dropped"), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace muster::tests
