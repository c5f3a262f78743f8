#include "muster/rendezvous/state_codec.h"

#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/wishes.h"
#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::node;
using testing::settings;

// As it is after the journey: without times.
State without_times(State state) {
  state.last_heartbeats.clear();
  if (state.deadline) state.deadline = TimePoint::min();
  return state;
}

State full_round() {
  State state;
  state.birth = 0x1122334455667788;
  state.round = 7;
  state.complete = true;
  state.lost = true;
  state.min_nodes = 1;
  state.max_nodes = 3;
  state.world_size = 3;
  state.last_call_count = 2;
  state.wishes = {9, {4, 8}};
  state.participants = {{node("a"), 0}, {{"b", -5, 6, 0xFFFFFFFFFFFFFFFF}, 2}};
  state.wait_list = {node("w")};
  state.redundancy_list = {node(""), node("\xC3\xBC\n")};
  return state;
}

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  int high = -1;
  for (const char digit : hex) {
    if (digit == ' ' || digit == '\n') continue;
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    if (high < 0) {
      high = value;
    } else {
      bytes.push_back(static_cast<char>(high * 16 + value));
      high = -1;
    }
  }
  return bytes;
}

void expect_corrupt(std::string_view bytes, std::string_view text) {
  const auto state = decode(bytes);
  ASSERT_FALSE(state) << text;
  EXPECT_EQ(state.error().kind, ErrorKind::Corrupt);
  EXPECT_NE(state.error().message.find(text), std::string::npos) << state.error().message;
}

TEST(StateCodec, BringsEverythingButTimesBack) {
  const State complete = full_round();
  EXPECT_EQ(*decode(encode(complete)), without_times(complete));

  State closed = full_round();
  closed.closed = true;
  closed.lost = false;
  EXPECT_EQ(*decode(encode(closed)), without_times(closed));

  State forming;
  const Settings limits = settings(2, 4);
  for (const char* name : {"a", "b", "c"})
    apply(Action::AddToParticipants, node(name), limits, TimePoint(5s), forming);
  ASSERT_TRUE(forming.deadline);
  EXPECT_EQ(*decode(encode(forming)), without_times(forming));

  EXPECT_EQ(*decode(encode(State())), State());
}

TEST(StateCodec, HasTheseBytes) {
  State state;
  state.birth = 0x0102030405060708;
  state.round = 3;
  state.complete = true;
  state.lost = true;
  state.min_nodes = 1;
  state.max_nodes = 2;
  state.world_size = 2;
  state.last_call_count = 4;
  state.wishes = {6, {5}};
  state.participants = {{{"h", 258, 2, 9}, 1}};
  state.redundancy_list = {{"r", 1, 0, 5}};
  EXPECT_EQ(encode(state), bytes_of("4d75737465725256 02000000"
                                    "0807060504030201 0300000000000000 05"
                                    "0100000000000000 0200000000000000 0200000000000000"
                                    "0400000000000000"
                                    "0600000000000000 01000000 0500000000000000"
                                    "01000000"
                                    "01000000 68 0201000000000000 0200000000000000"
                                    "0900000000000000 0100000000000000"
                                    "00000000"
                                    "01000000"
                                    "01000000 72 0100000000000000 0000000000000000"
                                    "0500000000000000"));
}

TEST(StateCodec, SaysWhatIsWrongWithBytesThatAreNone) {
  expect_corrupt("", "it is empty");
  expect_corrupt("gAN9cQAu", "not written by Muster");
  expect_corrupt("MusterR", "not written by Muster");
  expect_corrupt("MusterRV", "cut short");
  std::string other = encode(full_round());
  other[8] = 3;
  expect_corrupt(other, "it has format 3");
}

TEST(StateCodec, RefusesEveryPrefixAndEveryAddition) {
  const std::string bytes = encode(full_round());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto state = decode(std::string_view(bytes).substr(0, length));
    ASSERT_FALSE(state) << length;
    EXPECT_EQ(state.error().kind, ErrorKind::Corrupt);
  }
  expect_corrupt(bytes + '\0', "longer than it should be");
}

TEST(StateCodec, RefusesFlagsThatNobodyKnows) {
  std::string bytes = encode(full_round());
  bytes[28] = static_cast<char>(bytes[28] | 16);
  expect_corrupt(bytes, "flags that nobody knows");
}

TEST(StateCodec, IsNotFooledByCounts) {
  std::string bytes = encode(State());
  // The count of participants.
  bytes.replace(bytes.size() - 12, 4, "\xFF\xFF\xFF\xFF");
  expect_corrupt(bytes, "lists of nodes are damaged");
}

TEST(StateCodec, RefusesAStateThatCannotBe) {
  const auto changed = [](const std::function<void(State&)>& change) {
    State state = full_round();
    change(state);
    return encode(state);
  };
  const auto refuses = [&](std::string_view text, const std::function<void(State&)>& change) {
    expect_corrupt(changed(change), text);
  };
  refuses("in two lists", [](State& state) { state.wait_list.insert(node("a")); });
  refuses("in two lists", [](State& state) { state.redundancy_list.insert(node("w")); });
  refuses("in two lists", [](State& state) { state.redundancy_list.insert(node("a")); });
  refuses("in last call", [](State& state) { state.deadline = TimePoint(); });
  refuses("no members", [](State& state) { state.participants.clear(); });
  refuses("limits", [](State& state) { state.min_nodes = state.max_nodes = 0; });
  refuses("limits", [](State& state) { state.min_nodes = 4; });
  refuses("limits", [](State& state) { state.min_nodes = -1; });
  refuses("more members", [](State& state) { state.max_nodes = 1; });
  refuses("size", [](State& state) { state.world_size = 1; });
  refuses("size", [](State& state) { state.world_size = 4; });
  refuses("rank", [](State& state) { state.participants[node("a")] = 2; });
  refuses("rank", [](State& state) { state.participants[node("a")] = 3; });
  refuses("rank", [](State& state) { state.participants[node("a")] = -1; });
  refuses("size", [](State& state) { state.complete = false; });
  refuses("size", [](State& state) {
    state.min_nodes = 3;
    state.world_size = 2;
    state.participants.erase(std::prev(state.participants.end()));
  });
  refuses("not complete", [](State& state) {
    state = State();
    state.min_nodes = state.max_nodes = 1;
    state.participants[node("a")] = 0;
  });
  refuses("full group", [](State& state) { state.max_nodes = state.world_size = 2; });
  refuses("too few", [](State& state) {
    state = State();
    state.min_nodes = 3;
    state.max_nodes = 3;
    state.participants[node("a")] = 0;
    state.deadline = TimePoint();
  });
}

TEST(StateCodec, RefusesWishesThatCannotBe) {
  State state = full_round();
  for (const WishMarks& marks : {WishMarks{3, {4}}, WishMarks{3, {0}}}) {
    state.wishes = marks;
    expect_corrupt(encode(state), "wishes are damaged");
  }
  state.wishes = {1000, {}};
  for (std::uint64_t number = 1; number <= kWishesMissingMax; ++number) {
    state.wishes.missing.insert(number);
  }
  EXPECT_EQ(*decode(encode(state)), without_times(state));
  state.wishes.missing.insert(kWishesMissingMax + 1);
  expect_corrupt(encode(state), "wishes are damaged");
  state.wishes = {9, {4, 8}};
  std::string bytes = encode(state);
  bytes[bytes.find('\x08', 70)] = 4;  // the second of the two is that of the first
  expect_corrupt(bytes, "wishes are damaged");
}

TEST(StateCodec, RefusesNodesThatAreNotInOrder) {
  State state = full_round();
  state.redundancy_list = {node("x"), node("y")};
  std::string bytes = encode(state);
  bytes[bytes.rfind('y')] = 'x';
  expect_corrupt(bytes, "damaged");
  bytes[bytes.rfind('x')] = 'a';
  expect_corrupt(bytes, "damaged");
}

TEST(StateCodec, RefusesAnAddressThatIsTooLong) {
  State state = full_round();
  state.redundancy_list = {node(std::string(kAddressBytesMax, 'x'))};
  EXPECT_TRUE(decode(encode(state)));
  state.redundancy_list = {node(std::string(kAddressBytesMax + 1, 'x'))};
  expect_corrupt(encode(state), "damaged");
}

TEST(StateCodec, StaysWithinItsBudget) {  // 60
  const std::pair<std::int64_t, std::size_t> budgets[] = {
      {5, 2}, {50, 16}, {500, 160}, {5000, 1600}};
  for (const auto& [half, kib_max] : budgets) {
    State state;
    state.birth = 1;
    state.min_nodes = 1;
    state.max_nodes = half + 1;
    state.complete = true;
    state.world_size = half;
    for (std::int64_t i = 0; i < 2 * half; ++i) {
      std::string name = "node-" + std::to_string(i) + ".";
      name.resize(40, 'x');
      const Node one{name, 1'000'000 + i, 0, 0x1234567890ABCDEF};
      if (i < half) {
        state.participants[one] = i;
      } else {
        state.wait_list.insert(one);
      }
    }
    std::int64_t rank = 0;
    for (auto& [member, its_rank] : state.participants) its_rank = rank++;
    const std::string bytes = encode(state);
    EXPECT_LE(bytes.size(), kib_max * 1024);
    EXPECT_EQ(*decode(bytes), without_times(state));
  }
}

}  // namespace
}  // namespace muster::rendezvous
