#include "muster/rpc/message.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <optional>
#include <vector>

namespace muster::rpc {
namespace {

struct Golden {
  const char* name;
  int number;
  bool is_request;
  bool is_response;
  bool is_retried;
};

constexpr Golden kGolden[] = {
    {"SCRIPT_CALL", 256, true, false, false},
    {"SCRIPT_RET", 513, false, true, false},
    {"PYTHON_CALL", 258, true, false, false},
    {"PYTHON_RET", 515, false, true, false},
    {"SCRIPT_REMOTE_CALL", 260, true, false, false},
    {"PYTHON_REMOTE_CALL", 261, true, false, false},
    {"REMOTE_RET", 518, false, true, false},
    {"SCRIPT_RREF_FETCH_CALL", 263, true, false, false},
    {"PYTHON_RREF_FETCH_CALL", 264, true, false, false},
    {"SCRIPT_RREF_FETCH_RET", 521, false, true, false},
    {"PYTHON_RREF_FETCH_RET", 522, false, true, false},
    {"RREF_USER_DELETE", 267, true, false, true},
    {"RREF_FORK_REQUEST", 268, true, false, true},
    {"RREF_CHILD_ACCEPT", 269, true, false, true},
    {"RREF_ACK", 526, false, true, false},
    {"FORWARD_AUTOGRAD_REQ", 271, true, false, false},
    {"FORWARD_AUTOGRAD_RESP", 528, false, true, false},
    {"BACKWARD_AUTOGRAD_REQ", 273, true, false, false},
    {"BACKWARD_AUTOGRAD_RESP", 530, false, true, false},
    {"CLEANUP_AUTOGRAD_CONTEXT_REQ", 275, true, false, true},
    {"CLEANUP_AUTOGRAD_CONTEXT_RESP", 532, false, true, false},
    {"RUN_WITH_PROFILING_REQ", 277, true, false, false},
    {"RUN_WITH_PROFILING_RESP", 534, false, true, false},
    {"RREF_BACKWARD_REQ", 279, true, false, false},
    {"RREF_BACKWARD_RESP", 536, false, true, false},
    {"RREF_FORK_CANCEL", 281, true, false, true},
    {"EXCEPTION", 567, false, true, false},
    {"UNKNOWN", 60, false, false, false},
};

TEST(MessageType, HasTheNamesAndNumbersThatProgramsKnow) {
  for (const Golden& golden : kGolden) {
    const auto type = static_cast<MessageType>(golden.number);
    EXPECT_EQ(name_of(type), golden.name);
    EXPECT_EQ(message_type_named(golden.name), type) << golden.name;
  }
}

TEST(MessageType, IsARequestOrAResponseByItsFlag) {
  for (const Golden& golden : kGolden) {
    const auto type = static_cast<MessageType>(golden.number);
    EXPECT_EQ(is_request(type), golden.is_request) << golden.name;
    EXPECT_EQ(is_response(type), golden.is_response) << golden.name;
  }
}

TEST(MessageType, IsRetriedOnlyWhereRepeatingDoesNoHarm) {
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(is_retried(static_cast<MessageType>(golden.number)), golden.is_retried)
        << golden.name;
  }
  EXPECT_FALSE(is_retried(static_cast<MessageType>(0x1ff)));
}

TEST(MessageType, IsListedOnceInTheOrderOfLowBytes) {
  const std::vector<MessageType>& all = all_message_types();
  ASSERT_EQ(all.size(), std::size(kGolden));
  for (std::size_t index = 0; index < all.size(); ++index) {
    EXPECT_EQ(static_cast<int>(all[index]), kGolden[index].number) << index;
  }
}

TEST(MessageType, IsShownAsANumberWhenNobodyKnowsIt) {
  EXPECT_EQ(name_of(static_cast<MessageType>(0x1ff)), "0x1ff");
  EXPECT_EQ(name_of(static_cast<MessageType>(0)), "0x0");
  // The low byte of one that is known, with the wrong flag.
  EXPECT_EQ(name_of(static_cast<MessageType>(0x200)), "0x200");
  EXPECT_EQ(name_of(static_cast<MessageType>(0xffff)), "0xffff");
}

TEST(MessageType, IsNotFoundUnderANameThatNobodyKnows) {
  EXPECT_EQ(message_type_named(""), std::nullopt);
  EXPECT_EQ(message_type_named("script_call"), std::nullopt);
  EXPECT_EQ(message_type_named("SCRIPT_CALL "), std::nullopt);
  EXPECT_EQ(message_type_named("SCRIPT"), std::nullopt);
  EXPECT_EQ(message_type_named("0x100"), std::nullopt);
}

TEST(Message, HasNoNumberAndNoTypeUntilItIsGivenThem) {
  const Message message;
  EXPECT_EQ(message.id, kNoMessageId);
  EXPECT_EQ(message.id, -1);
  EXPECT_FALSE(is_request(message.type));
  EXPECT_FALSE(is_response(message.type));
  EXPECT_TRUE(message.payload.empty());
  EXPECT_TRUE(message.buffers.empty());
}

}  // namespace
}  // namespace muster::rpc
