#include "muster/rpc/membership.h"

#include "muster/base/random.h"
#include "muster/rpc/texts.h"
#include "tests/rpc/group_workers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::member;
using Whom = std::vector<std::uint64_t>;

MemberList list_of(std::uint64_t version, std::vector<Member> members) {
  return {version, std::move(members)};
}

TimePoint at(Duration since_start) { return TimePoint() + since_start; }

// ---- the list as bytes

TEST(MemberListCodec, GivesBackWhatItWasGiven) {
  for (const MemberList& list :
       {list_of(1, {}), list_of(7, {member("a-1", 0, 5)}),
        list_of(~std::uint64_t{0}, {member("b", 3, 9), member("a", 32767, 1)})}) {
    const auto back = decode_list("members", encode_list(list));
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, list);
  }
}

TEST(MemberListCodec, HasOneFormThatDoesNotChange) {
  Member a = member("a", 2, 3);
  a.address = "h:1";
  const std::string expected(
      "MusterRL\x02\0\0\0"
      "\x04\0\0\0\0\0\0\0"
      "\x01\0\0\0"
      "\x03\0\0\0\0\0\0\0"
      "\x02\0\0\0\0\0\0\0"
      "\x01\0\0\0a"
      "\x03\0\0\0h:1"
      "\0\0\0\0"
      "\xff\xff\xff\xff\0\0\0\0\0\0\0\0",
      12 + 8 + 4 + 16 + 5 + 7 + 4 + 12);
  EXPECT_EQ(encode_list(list_of(4, {a})), expected);
}

TEST(MemberListCodec, HasAsManyMembersAsThereAreIdsAndNoMore) {
  constexpr std::int64_t kMost = std::int64_t{kWorkerIdMax} + 1;
  MemberList list = list_of(1, {});
  for (std::int64_t id = 0; id < kMost; ++id) {
    list.members.push_back(
        member("w" + std::to_string(id), id, static_cast<std::uint64_t>(id) + 1));
  }
  const auto back = decode_list("members", encode_list(list));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->members.size(), static_cast<std::size_t>(kMost));
  list.members.push_back(member("one-more", 0, static_cast<std::uint64_t>(kMost) + 1));
  const auto refused = decode_list("members", encode_list(list));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("it counts more RPC workers than it has"),
            std::string::npos)
      << refused.error().message;
}

TEST(MemberListCodec, RefusesWhatIsCutShortOrTooLong) {
  const std::string whole = encode_list(list_of(2, {member("a", 0, 1), member("b", 1, 2)}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto read = decode_list("members", whole.substr(0, size));
    ASSERT_FALSE(read) << size;
    EXPECT_EQ(read.error().kind, ErrorKind::Corrupt);
    EXPECT_NE(read.error().message.find("\"members\""), std::string::npos);
  }
  EXPECT_FALSE(decode_list("members", whole + "x"));
}

TEST(MemberListCodec, RefusesListsThatCannotBe) {
  const Member a = member("a", 0, 1);
  EXPECT_FALSE(decode_list("k", encode_list(list_of(0, {a}))));
  EXPECT_FALSE(decode_list("k", encode_list(list_of(1, {a, member("b", 0, 2)}))));
  EXPECT_FALSE(decode_list("k", encode_list(list_of(1, {member("b", 1, 2), a}))));
  EXPECT_FALSE(decode_list("k", encode_list(list_of(1, {a, member("a", 1, 2)}))));
  EXPECT_FALSE(decode_list("k", encode_list(list_of(1, {a, member("b", 1, 1)}))));
}

TEST(MemberListCodec, IsNotLedAstrayByDamage) {
  Random random(1);
  const std::string whole = encode_list(list_of(2, {member("a", 0, 1), member("b", 1, 2)}));
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole;
    for (std::uint64_t count = 1 + random.below(3); count > 0; --count) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    const auto read = decode_list("members", damaged);
    // What is read all the same is a list like any other.
    if (read) {
      EXPECT_EQ(encode_list(*read), damaged);
    } else {
      EXPECT_EQ(read.error().kind, ErrorKind::Corrupt);
    }
  }
}

// ---- who may come in

TEST(Membership, LetsNewcomersInByTheirIds) {
  MemberList list;
  for (const std::int64_t id : {5, 1, 3}) {
    const Member newcomer = member("w" + std::to_string(id), id, static_cast<std::uint64_t>(id));
    const Admission admission = admit(list, newcomer, {});
    EXPECT_TRUE(admission.holders.empty());
    ASSERT_TRUE(admission.next);
    EXPECT_EQ(admission.next->version, list.version + 1);
    list = *admission.next;
  }
  EXPECT_EQ(list.members,
            (std::vector<Member>{member("w1", 1, 1), member("w3", 3, 3), member("w5", 5, 5)}));
  EXPECT_TRUE(decode_list("k", encode_list(list)));
}

TEST(Membership, RecognisesAWorkerThatIsInAlready) {
  const MemberList list = list_of(3, {member("a", 0, 1)});
  const Admission admission = admit(list, member("a", 0, 1), {});
  EXPECT_FALSE(admission.next);
  EXPECT_TRUE(admission.holders.empty());
}

TEST(Membership, NamesThoseWhoHaveTheNameOrTheId) {
  const MemberList list = list_of(3, {member("a", 0, 1), member("b", 1, 2), member("c", 2, 3)});
  const Admission admission = admit(list, member("a", 1, 4), {});
  EXPECT_FALSE(admission.next);
  EXPECT_EQ(admission.holders, (std::vector<Member>{list.members[0], list.members[1]}));
  EXPECT_EQ(refusal_text(member("a", 1, 4), list.members[0]),
            duplicate_name_text(list.members[0].info, 1));
  EXPECT_EQ(refusal_text(member("a", 1, 4), list.members[1]), duplicate_id_text(1));
}

TEST(Membership, LetsNewcomersTakeThePlaceOfTheDead) {
  const MemberList list = list_of(3, {member("a", 0, 1), member("b", 1, 2), member("c", 2, 3)});
  const Admission half = admit(list, member("a", 1, 4), {1});
  EXPECT_EQ(half.holders, std::vector<Member>{list.members[1]});
  const Admission whole = admit(list, member("a", 1, 4), {1, 2});
  ASSERT_TRUE(whole.next);
  EXPECT_EQ(*whole.next, list_of(4, {member("a", 1, 4), member("c", 2, 3)}));
}

TEST(Membership, TakesOutByIncarnation) {
  const MemberList list = list_of(3, {member("a", 0, 1), member("b", 1, 2)});
  EXPECT_EQ(without(list, {2, 7}), list_of(4, {member("a", 0, 1)}));
  EXPECT_EQ(without(list, {7}), std::nullopt);
}

// ---- leases

TEST(Lease, IsTwoNumbersAndNothingElse) {
  const Lease lease{12, 345};
  EXPECT_EQ(encode_lease(lease), "12 345");
  EXPECT_EQ(decode_lease("12 345"), lease);
  for (const char* text :
       {"", "12", "12 ", " 1 2", "1  2", "1 2 ", "1 -2", "x 2", "1 2x", "99999999999999999999 1"}) {
    EXPECT_EQ(decode_lease(text), std::nullopt) << text;
  }
}

TEST(Leases, AreOverWhenTheyHaveStoodStillBeforeTheObserversEyes) {
  Leases leases(5s, 1s);
  for (int second = 0; second < 10; ++second) leases.note(1, "x", at(second * 1s));
  EXPECT_TRUE(leases.is_over(1));
  Leases exact(5s, 1s);
  for (int second = 0; second < 5; ++second) exact.note(1, "x", at(100s + second * 1s));
  EXPECT_FALSE(exact.is_over(1));
  exact.note(1, "x", at(105s));
  EXPECT_TRUE(exact.is_over(1));
  EXPECT_FALSE(exact.is_over(2));
}

TEST(Leases, LastAsLongAsTheyAreRenewed) {
  Leases leases(5s, 1s);
  for (int second = 0; second < 60; ++second) {
    leases.note(1, std::to_string(second / 4), at(second * 1s));
    EXPECT_FALSE(leases.is_over(1)) << second;
  }
  EXPECT_TRUE(leases.was_renewed(1));
}

TEST(Leases, AreOverWhenTheirValuesAreGone) {
  Leases leases(5s, 1s);
  leases.note(1, "x", at(0s));
  for (int second = 1; second <= 5; ++second) leases.note(1, "", at(second * 1s));
  EXPECT_TRUE(leases.is_over(1));
  EXPECT_FALSE(leases.was_renewed(1));
}

TEST(Leases, DoNotSufferFromAnObserverThatDidNotLook) {
  Leases leases(5s, 1s);
  leases.note(1, "x", at(0s));
  leases.note(1, "x", at(1000s));
  EXPECT_FALSE(leases.is_over(1));
  leases.note(1, "x", at(1001s));
  leases.note(1, "x", at(1002s));
  EXPECT_FALSE(leases.is_over(1));
  leases.note(1, "x", at(1003s));
  EXPECT_TRUE(leases.is_over(1));
}

TEST(Leases, AreObservedByTheTwoLowestWhoAreObservedByAll) {
  const MemberList list =
      list_of(1, {member("a", 0, 10), member("b", 1, 11), member("c", 5, 12), member("d", 9, 13)});
  Leases leases(5s, 1s);
  EXPECT_EQ(leases.whom_to_watch(list, 10), (Whom{11, 12, 13}));
  EXPECT_EQ(leases.whom_to_watch(list, 11), (Whom{10, 12, 13}));
  EXPECT_EQ(leases.whom_to_watch(list, 12), (Whom{10, 11}));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11}));
  EXPECT_EQ(leases.whom_to_watch(list_of(1, {member("a", 0, 10)}), 10), Whom{});
}

TEST(Leases, OfSuspectsAreLookedAtUntilTheyAreRenewed) {
  const MemberList list =
      list_of(1, {member("a", 0, 10), member("b", 1, 11), member("c", 5, 12), member("d", 9, 13)});
  Leases leases(5s, 1s);
  leases.suspect(12);
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11, 12}));
  leases.note(12, "1", at(0s));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11, 12}));
  leases.note(12, "2", at(1s));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11}));
  // What it did before it was suspected again proves nothing, however lately that was.
  leases.suspect(12);
  leases.note(12, "3", at(2s));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11, 12}));
  for (int second = 3; second <= 7; ++second) leases.note(12, "3", at(second * 1s));
  EXPECT_TRUE(leases.is_over(12));
  leases.forget_absent(list_of(2, {member("a", 0, 10)}));
  EXPECT_FALSE(leases.is_over(12));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11}));
}

TEST(Leases, AreObservedByTheLowestIncarnationsWhateverTheirIds) {
  const MemberList list =
      list_of(1, {member("a", 0, 13), member("b", 1, 10), member("c", 5, 12), member("d", 9, 11)});
  const Leases leases(5s, 1s);
  EXPECT_EQ(leases.whom_to_watch(list, 10), (Whom{13, 12, 11}));
  EXPECT_EQ(leases.whom_to_watch(list, 11), (Whom{13, 10, 12}));
  EXPECT_EQ(leases.whom_to_watch(list, 13), (Whom{10, 11}));
}

TEST(Leases, AreObservedByTheOthersWhenBothObserversAreSilent) {
  MemberList list = list_of(1, {});
  for (std::int64_t id = 0; id < 100; ++id) {
    list.members.push_back(
        member("w" + std::to_string(id), id, static_cast<std::uint64_t>(id) + 1));
  }
  Leases leases(6s, 1s);
  const auto look = [&](TimePoint when, std::string_view second) {
    leases.note(1, "x", when);
    leases.note(2, second, when);
  };
  for (int second = 0; second < 6; ++second) look(at(second * 1s), std::to_string(second));
  EXPECT_EQ(leases.whom_to_watch(list, 99), (Whom{1, 2}));  // one is enough
  look(at(6s), "x");
  look(at(8s), "x");
  EXPECT_EQ(leases.whom_to_watch(list, 99), (Whom{1, 2}));
  look(at(9s), "x");
  const Whom whom = leases.whom_to_watch(list, 99);
  ASSERT_EQ(whom.size(), 64U);
  EXPECT_EQ(whom.front(), 1U);
  EXPECT_EQ(whom[62], 63U);
  EXPECT_EQ(whom.back(), 100U);
  look(at(10s), "y");
  EXPECT_EQ(leases.whom_to_watch(list, 99), (Whom{1, 2}));
}

}  // namespace
}  // namespace muster::rpc
