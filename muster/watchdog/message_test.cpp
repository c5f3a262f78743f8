#include "muster/watchdog/message.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

Message parsed(std::string_view line) {
  const auto message = parse_message(line);
  EXPECT_TRUE(message) << line << ": " << message.error().message;
  return message.value_or(Message{});
}

std::string refused(std::string_view line) {
  const auto message = parse_message(line);
  EXPECT_FALSE(message) << line;
  if (message) return {};
  EXPECT_EQ(message.error().kind, ErrorKind::Invalid);
  return message.error().message;
}

TEST(Message, SaysThatAWorkerIsAliveOrReady) {
  EXPECT_EQ(parsed("alive").kind, MessageKind::Alive);
  EXPECT_EQ(parsed("ready").kind, MessageKind::Ready);
  EXPECT_EQ(parsed("  ready \r").kind, MessageKind::Ready);
  EXPECT_EQ(refused("alive now"), "`alive` takes no arguments");
}

TEST(Message, GivesADeadline) {
  const Message plain = parsed("expires step 2.5");
  EXPECT_EQ(plain.kind, MessageKind::Expires);
  EXPECT_EQ(plain.scope, "step");
  EXPECT_EQ(plain.length, 2500ms);
  EXPECT_EQ(plain.signal, SIGKILL);
  const Message full = parsed("expires\tload:data  1m30s\tTERM");
  EXPECT_EQ(full.scope, "load:data");
  EXPECT_EQ(full.length, 90s);
  EXPECT_EQ(full.signal, SIGTERM);
  EXPECT_EQ(parsed("expires step 0 none").signal, 0);
}

TEST(Message, RefusesDeadlinesThatAreNone) {
  EXPECT_EQ(refused("expires"), "expected `expires SCOPE SECONDS [SIGNAL]`");
  EXPECT_EQ(refused("expires step"), "expected `expires SCOPE SECONDS [SIGNAL]`");
  EXPECT_EQ(refused("expires step 1 KILL me"), "expected `expires SCOPE SECONDS [SIGNAL]`");
  EXPECT_EQ(refused("expires step soon"),
            "\"soon\" is no number of seconds: expected `expires SCOPE SECONDS [SIGNAL]`");
  EXPECT_EQ(refused("expires step -1"),
            "\"-1\" is no number of seconds: expected `expires SCOPE SECONDS [SIGNAL]`");
  EXPECT_EQ(refused("expires step 1 BOO"),
            "\"BOO\" is no signal: expected `expires SCOPE SECONDS [SIGNAL]`");
}

TEST(Message, ReleasesAScope) {
  EXPECT_EQ(parsed("release step").kind, MessageKind::Release);
  EXPECT_EQ(parsed("release step").scope, "step");
  EXPECT_EQ(refused("release"), "expected `release SCOPE`");
  EXPECT_EQ(refused("release two scopes"), "expected `release SCOPE`");
}

TEST(Message, CarriesAStatusText) {
  EXPECT_EQ(parsed("status epoch 3,  loss 0.25").text, "epoch 3,  loss 0.25");
  EXPECT_EQ(parsed("status").text, "");
  EXPECT_EQ(parsed("status gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80").text,
            "gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80");
}

TEST(Message, IsTextAndNothingElse) {
  const std::string bad[] = {
      "status \x01",         "status \x7F",     std::string("status \0", 8),
      "status \xFF",         "status \xC3",     "status \xC0\x80",
      "status \xED\xA0\x80", "status \x80",     "status \xF4\x90\x80\x80",
      "status \xE0\x80\x80", "status \xC3\x28", "status \xF0\x80\x80\x80",
  };
  for (const std::string& line : bad) EXPECT_EQ(refused(line), "the line is not UTF-8 text");
}

TEST(Message, MustBeKnown) {
  EXPECT_EQ(refused("hello"),
            "\"hello\" is not known; expected alive, ready, expires, release or status");
  EXPECT_EQ(refused(""), "\"\" is not known; expected alive, ready, expires, release or status");
}

TEST(Message, MayHaveTheLimitAndNotMore) {
  std::string line = "status ";
  line.append(kMessageBytesMax - line.size(), 'x');
  EXPECT_EQ(parsed(line).text.size(), kMessageBytesMax - 7);
  EXPECT_EQ(refused(line + "x"), "the line is longer than 4096 bytes, which is the limit");
}

TEST(Message, TakesASignalByAnyOfItsNames) {
  EXPECT_EQ(parsed("expires a 1 KILL").signal, SIGKILL);
  EXPECT_EQ(parsed("expires a 1 sigusr1").signal, SIGUSR1);
  EXPECT_EQ(parsed("expires a 1 15").signal, SIGTERM);
  EXPECT_EQ(parsed("expires a 1 0").signal, 0);
  EXPECT_EQ(parsed("expires a 1 None").signal, 0);
}

}  // namespace
}  // namespace muster::watchdog
