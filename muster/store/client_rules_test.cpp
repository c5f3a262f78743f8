#include "muster/store/client_rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::store {
namespace {

using wire::Operation;

constexpr wire::Limits kLimits;

wire::Request request_for(Operation operation, std::string_view key = {}) {
  wire::Request request;
  request.operation = operation;
  request.key = key;
  return request;
}

void expect_refused(const wire::Request& request, std::string_view part) {
  const auto allowed = check_limits(request);
  ASSERT_FALSE(allowed);
  EXPECT_EQ(allowed.error().kind, ErrorKind::Invalid);
  EXPECT_NE(allowed.error().message.find(part), std::string::npos) << allowed.error().message;
}

TEST(ClientRules, PutASlashBeforeEveryUserKey) {
  EXPECT_EQ(wire_key("k"), "/k");
  EXPECT_EQ(wire_key("/k"), "//k");
  EXPECT_EQ(wire_key(""), "/");
  EXPECT_EQ(wire_keys({"a", "b"}), (std::vector<std::string>{"/a", "/b"}));
  for (const char* key : {"k", "/k", "", "a/b"}) EXPECT_EQ(user_key(wire_key(key)), key);
  EXPECT_EQ(user_key("init/"), "init/");
}

TEST(ClientRules, AllowAKeyOfTheLimitAndRefuseALongerOne) {
  const std::string longest(kLimits.key_bytes, 'k');
  const std::string longer(kLimits.key_bytes + 1, 'k');
  EXPECT_TRUE(check_limits(request_for(Operation::Get, longest)));
  expect_refused(request_for(Operation::Get, longer), "a key of 8193 bytes");

  wire::Request list = request_for(Operation::Wait);
  list.keys = {"a", longest};
  EXPECT_TRUE(check_limits(list));
  list.keys = {"a", longer};
  expect_refused(list, "a key of 8193 bytes");
}

TEST(ClientRules, AllowAValueOfTheLimitAndRefuseALongerOne) {
  const std::string largest(kLimits.value_bytes, 'v');
  const std::string larger(kLimits.value_bytes + 1, 'v');
  wire::Request set = request_for(Operation::Set, "/k");
  set.value = largest;
  EXPECT_TRUE(check_limits(set));
  set.value = larger;
  expect_refused(set, "a value of 8388609 bytes");

  wire::Request compare = request_for(Operation::CompareSet, "/k");
  compare.desired = largest;
  EXPECT_TRUE(check_limits(compare));
  compare.desired = larger;
  expect_refused(compare, "a value of 8388609 bytes");

  wire::Request many = request_for(Operation::MultiSet);
  many.keys = {"/a", "/b"};
  many.values = {"1", largest};
  EXPECT_TRUE(check_limits(many));
  many.values = {"1", larger};
  expect_refused(many, "a value of 8388609 bytes");
}

TEST(ClientRules, AllowAsManyKeysAsTheLimitAndRefuseOneMore) {
  wire::Request list = request_for(Operation::Check);
  list.keys.assign(kLimits.key_count, "/k");
  EXPECT_TRUE(check_limits(list));
  list.keys.emplace_back("/k");
  expect_refused(list, "131073 keys at once");
}

TEST(ClientRules, RefuseARequestThatWouldNotFitIntoAFrame) {
  // Each part is within its limit, their sum is not.
  const std::string value(kLimits.value_bytes, 'v');
  wire::Request many = request_for(Operation::MultiSet);
  many.keys.assign(kLimits.frame_bytes / kLimits.value_bytes + 1, "/k");
  many.values.assign(many.keys.size(), value);
  expect_refused(many, "bytes is over the limit");

  const std::string key(kLimits.key_bytes, 'k');
  wire::Request list = request_for(Operation::Wait);
  list.keys.assign(kLimits.key_count, key);
  expect_refused(list, "bytes is over the limit");
}

TEST(ClientRules, LetOnlyReadsBeRepeated) {
  for (const Operation operation :
       {Operation::Get, Operation::Check, Operation::Wait, Operation::NumKeys, Operation::MultiGet,
        Operation::Ping, Operation::QueueLength, Operation::ListKeys, Operation::Info,
        Operation::WatchKey, Operation::WatchPrefix}) {
    EXPECT_TRUE(is_repeatable(request_for(operation))) << wire::name_of(operation);
  }
  for (const Operation operation :
       {Operation::Set, Operation::CompareSet, Operation::Add, Operation::DeleteKey,
        Operation::Append, Operation::MultiSet, Operation::QueuePush, Operation::QueuePop,
        Operation::Barrier, Operation::DropNamespace}) {
    EXPECT_FALSE(is_repeatable(request_for(operation))) << wire::name_of(operation);
  }
}

TEST(ClientRules, NameWhatWasWaitedFor) {
  EXPECT_EQ(describe_wait(request_for(Operation::Get, "/k")), R"(timed out waiting for key "k")");
  EXPECT_EQ(describe_wait(request_for(Operation::QueuePop, "/q")),
            R"(timed out waiting for queue "q")");
  wire::Request barrier = request_for(Operation::Barrier, "/b");
  barrier.number = 3;
  EXPECT_EQ(describe_wait(barrier), R"(timed out at barrier "b": not all 3 members came)");
}

TEST(ClientRules, NameNoMoreThanThreeKeysThatWereWaitedFor) {
  wire::Request list = request_for(Operation::Wait);
  list.keys = {"/a"};
  EXPECT_EQ(describe_wait(list), R"(timed out waiting for key "a")");
  list.keys = {"/a", "/b", "/c"};
  EXPECT_EQ(describe_wait(list), R"(timed out waiting for keys "a", "b", "c")");
  list.keys = {"/a", "/b", "/c", "/d", "/e"};
  EXPECT_EQ(describe_wait(list), R"(timed out waiting for keys "a", "b", "c" and 2 more)");
}

TEST(ClientRules, QuoteKeysThatAreNotText) {
  const std::string message = describe_wait(request_for(Operation::Get, "/a\n\x01"));
  EXPECT_EQ(message, R"(timed out waiting for key "a\x0a\x01")");
}

TEST(ClientRules, SayThatAWriteIsUncertainAndWhy) {
  const net::Endpoint endpoint{"node-3", 4400};
  const std::string message =
      describe_uncertain(request_for(Operation::Add, "/n"), endpoint, "connection reset by peer");
  EXPECT_EQ(
      message,
      "lost the connection to the store at node-3:4400 (connection reset by peer) after ADD of "
      "key \"n\" was sent; it may or may not have taken effect");
}

TEST(ClientRules, SayHowLongTheServerDidNotAnswer) {
  TcpStoreOptions options;
  options.endpoint = {"::1", 4400};
  options.reply_timeout = std::chrono::seconds(60);
  EXPECT_EQ(describe_no_reply(request_for(Operation::Set, "/k"), options),
            "the store at [::1]:4400 did not answer SET within 60s");
}

}  // namespace
}  // namespace muster::store
