#include "muster/rpc/faults.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

FaultOptions parsed(std::string_view text) {
  auto options = parse_faults(text);
  EXPECT_TRUE(options) << (options ? "" : options.error().message);
  return options.value_or(FaultOptions{});
}

std::string problem_of(std::string_view text) {
  const auto options = parse_faults(text);
  return options ? "" : options.error().message;
}

Message message_of(MessageType type, std::string payload = "payload") {
  return {type, 1, std::move(payload), {}};
}

std::optional<FaultAction> action_for(Faults& faults, MessageType type,
                                      std::string_view to = "worker1") {
  const auto verdict = faults.decide(message_of(type), to);
  return verdict ? std::optional(verdict->action) : std::nullopt;
}

TEST(Faults, without_rules_let_everything_pass) {
  Faults faults(parsed(""));
  for (const MessageType type : all_message_types()) EXPECT_FALSE(action_for(faults, type));
}

TEST(Faults, are_read_from_a_text_with_all_their_parts) {
  const auto options = parsed("seed=7 delay:SCRIPT_CALL,PYTHON_CALL:p=0.25:to=worker1:for=50ms");
  EXPECT_EQ(options.seed, 7U);
  ASSERT_EQ(options.rules.size(), 1U);
  const FaultRule& rule = options.rules[0];
  EXPECT_EQ(rule.action, FaultAction::Delay);
  EXPECT_EQ(rule.types, (std::vector{MessageType::ScriptCall, MessageType::PythonCall}));
  EXPECT_EQ(rule.probability, 0.25);
  EXPECT_EQ(rule.to, "worker1");
  EXPECT_EQ(rule.length, 50ms);
  EXPECT_FALSE(rule.first);
}

TEST(Faults, name_many_types_by_how_they_begin) {
  Faults faults(parsed("drop:RREF_*"));
  EXPECT_EQ(action_for(faults, MessageType::RrefUserDelete), FaultAction::Drop);
  EXPECT_EQ(action_for(faults, MessageType::RrefAck), FaultAction::Drop);
  EXPECT_FALSE(action_for(faults, MessageType::ScriptCall));
  Faults all(parsed("drop:*"));
  for (const MessageType type : all_message_types()) {
    EXPECT_EQ(action_for(all, type), FaultAction::Drop);
  }
}

TEST(Faults, that_cannot_be_read_say_which_part_and_what_there_is) {
  EXPECT_NE(problem_of("lose:*").find("no action \"lose\"; there are fail, drop"),
            std::string::npos);
  EXPECT_NE(problem_of("drop:SCRIPT_CAL").find("\"SCRIPT_CAL\""), std::string::npos);
  EXPECT_NE(problem_of("drop").find("action:TYPE"), std::string::npos);
  EXPECT_NE(problem_of("drop:*:p=2").find("probability"), std::string::npos);
  EXPECT_NE(problem_of("drop:*:p=x").find("probability"), std::string::npos);
  EXPECT_NE(problem_of("fail:*:first=-1").find("count"), std::string::npos);
  EXPECT_NE(problem_of("delay:*:for=soon").find("duration"), std::string::npos);
  EXPECT_NE(problem_of("drop:*:from=worker1").find("none of p=, first=, to=, for="),
            std::string::npos);
  EXPECT_NE(problem_of("seed=x").find("seed="), std::string::npos);
}

TEST(Faults, are_for_one_destination_if_they_say_so) {
  Faults faults(parsed("drop:*:to=worker2"));
  EXPECT_FALSE(action_for(faults, MessageType::ScriptCall, "worker1"));
  EXPECT_EQ(action_for(faults, MessageType::ScriptCall, "worker2"), FaultAction::Drop);
}

TEST(Faults, of_one_seed_are_always_the_same_and_about_as_many_as_asked_for) {
  Faults left(parsed("seed=3 drop:*:p=0.25"));
  Faults right(parsed("seed=3 drop:*:p=0.25"));
  Faults other(parsed("seed=4 drop:*:p=0.25"));
  int count = 0;
  int difference = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto verdict = action_for(left, MessageType::ScriptCall);
    EXPECT_EQ(verdict, action_for(right, MessageType::ScriptCall));
    if (verdict) ++count;
    if (verdict != action_for(other, MessageType::ScriptCall)) ++difference;
  }
  EXPECT_NEAR(count, 1000, 150);
  EXPECT_GT(difference, 500);
}

TEST(Faults, that_count_do_so_by_content_and_not_by_type_or_destination) {
  Faults faults(parsed("fail:RREF_FORK_REQUEST,RREF_USER_DELETE:first=3"));
  const auto fails = [&](MessageType type, const char* payload, const char* to) {
    return faults.decide(message_of(type, payload), to).has_value();
  };
  EXPECT_TRUE(fails(MessageType::RrefForkRequest, "a", "worker1"));
  EXPECT_TRUE(fails(MessageType::RrefForkRequest, "a", "worker2"));
  EXPECT_TRUE(fails(MessageType::RrefForkRequest, "b", "worker1")) << "another content";
  EXPECT_TRUE(fails(MessageType::RrefUserDelete, "a", "worker1"));
  EXPECT_FALSE(fails(MessageType::RrefUserDelete, "a", "worker1")) << "the fourth";
  EXPECT_FALSE(fails(MessageType::RrefForkRequest, "a", "worker1"));
}

TEST(Faults, are_tried_in_their_order) {
  Faults faults(parsed("fail:SCRIPT_CALL:first=1 delay:SCRIPT_CALL:for=1s"));
  EXPECT_EQ(action_for(faults, MessageType::ScriptCall), FaultAction::Fail);
  EXPECT_EQ(action_for(faults, MessageType::ScriptCall), FaultAction::Delay);
}

TEST(Faults, fail_and_duplicate_only_requests) {
  Faults faults(parsed("fail:SCRIPT_RET duplicate:SCRIPT_RET corrupt:SCRIPT_RET"));
  EXPECT_EQ(action_for(faults, MessageType::ScriptRet), FaultAction::Corrupt);
  EXPECT_FALSE(faults.decide(message_of(MessageType::ScriptRet, ""), "worker1"))
      << "there is nothing to corrupt";
}

TEST(Faults, that_reorder_draw_a_while_of_at_most_what_they_say) {
  Faults faults(parsed("reorder:*:for=20ms"));
  Duration least = 1h;
  Duration most = 0ms;
  for (int i = 0; i < 200; ++i) {
    const auto verdict = faults.decide(message_of(MessageType::ScriptCall), "worker1");
    ASSERT_TRUE(verdict);
    least = std::min(least, verdict->length);
    most = std::max(most, verdict->length);
  }
  EXPECT_LT(least, 5ms);
  EXPECT_GT(most, 15ms);
  EXPECT_LE(most, 20ms);
}

// ---- the preset ---------------------------------------------------------------------------------

TEST(FaultPreset, fails_and_delays_what_it_names) {
  const auto options = faults_of({.messages_to_fail = {"RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT"},
                                  .messages_to_delay = {{"SCRIPT_CALL", 1.5}},
                                  .fail_count = 1});
  ASSERT_TRUE(options);
  Faults faults(*options);
  EXPECT_EQ(action_for(faults, MessageType::RrefForkRequest), FaultAction::Fail);
  EXPECT_FALSE(action_for(faults, MessageType::RrefForkRequest));
  EXPECT_FALSE(action_for(faults, MessageType::PythonCall));
  const auto late = faults.decide(message_of(MessageType::ScriptCall), "worker1");
  ASSERT_TRUE(late);
  EXPECT_EQ(late->action, FaultAction::Delay);
  EXPECT_EQ(late->length, 1500ms);
}

TEST(FaultPreset, with_empty_lists_does_nothing) {
  const auto options = faults_of({.fail_count = 3});
  ASSERT_TRUE(options);
  Faults faults(*options);
  for (const MessageType type : all_message_types()) EXPECT_FALSE(action_for(faults, type));
}

TEST(FaultPreset, refuses_what_cannot_be_meant_in_the_words_that_programs_know) {
  const auto text_of = [](const FaultPreset& preset) {
    const auto options = faults_of(preset);
    return options ? std::string() : options.error().message;
  };
  EXPECT_EQ(text_of({.messages_to_fail = {"NO_SUCH"}}),
            "No mapping to rpc::MessageType exists for NO_SUCH");
  EXPECT_EQ(text_of({.messages_to_delay = {{"NO_SUCH", 1.0}}}),
            "No mapping to rpc::MessageType exists for NO_SUCH");
  EXPECT_EQ(text_of({.messages_to_delay = {{"SCRIPT_CALL", -1.0}}}),
            "Delays passed to FaultyTensorPipeAgent must be non-negative.");
  EXPECT_EQ(text_of({.fail_count = -1}), "numFailSends should be non-negative");
}

}  // namespace
}  // namespace muster::rpc
