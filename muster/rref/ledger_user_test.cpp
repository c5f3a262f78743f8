// What a ledger does for the handles that its worker has of values elsewhere.
#include "tests/rref/ledger_fixture.h"

namespace muster::rref::testing {
namespace {

constexpr const char* kTimedOut =
    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node "
    "does not exist.";

class User : public LedgerTest {};

TEST_F(User, DrawsTheReferenceAndThenTheFork) {  // S129, S130
  const auto first = *a.ledger.create(b.id);
  EXPECT_EQ(first.rref, GlobalId(0, 0));
  EXPECT_EQ(first.fork, GlobalId(0, 1));
  EXPECT_EQ(a.ledger.create_local(), GlobalId(0, 2));
  EXPECT_EQ(a.ledger.create_self(), GlobalId(0, 3));
  EXPECT_EQ(fork(a, first, c).fork, GlobalId(0, 4));
}

TEST_F(User, IsPendingUntilItsCallHasEnded) {
  const auto made = *a.ledger.create(b.id);
  EXPECT_EQ(a.ledger.state_of(made.fork), State::Pending);
  EXPECT_EQ(a.ledger.counters().pending_users, 1U);
  EXPECT_EQ(a.error_of(made.rref, made.fork), "");
  a.ledger.creation_finished(made.fork, std::nullopt, a.out);
  EXPECT_EQ(a.ledger.state_of(made.fork), State::Confirmed);
  EXPECT_EQ(a.ledger.counters().pending_users, 0U);
  ASSERT_TRUE(a.settled(made.fork));
  EXPECT_FALSE(a.settled(made.fork)->error);
}

TEST_F(User, FailsWithTheTextThatProgramsKnowWhenItsCallTimesOut) {  // S11 to S14
  for (const CallErrorKind kind : {CallErrorKind::Timeout, CallErrorKind::Injected}) {
    const auto made = *a.ledger.create(b.id);
    a.ledger.creation_finished(made.fork, CallError{kind, "x", {}, false}, a.out);
    EXPECT_EQ(a.ledger.state_of(made.fork), State::Failed);
    EXPECT_EQ(a.error_of(made.rref, made.fork), kTimedOut);
    EXPECT_EQ(rpc::render(*a.settled(made.fork)->error), kTimedOut);
    const auto forked = a.ledger.fork_user(made.rref, made.fork, c.id);
    ASSERT_FALSE(forked);
    EXPECT_EQ(forked.error().message, kTimedOut);
    EXPECT_EQ(a.ledger.counters().pending_users, 0U);
  }
}

TEST_F(User, FailsForEveryErrorAndNamesItsCause) {
  for (const CallErrorKind kind :
       {CallErrorKind::Unreachable, CallErrorKind::Remote, CallErrorKind::Rejected}) {
    const auto made = *a.ledger.create(b.id);
    a.ledger.creation_finished(made.fork, CallError{kind, "the cause", {}, true}, a.out);
    EXPECT_EQ(a.error_of(made.rref, made.fork), "RRef creation via rpc.remote() failed: the cause");
  }
  EXPECT_EQ(a.ledger.counters().pending_users, 0U);
}

TEST_F(User, TellsTheOwnerOfItsEndAlsoWhenItsCallFailed) {
  const auto made = *a.ledger.create(b.id);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  a.ledger.dropped(made.fork, a.out);
  const Effects::Send ended = a.take(MessageType::RrefUserDelete);
  EXPECT_EQ(ended.to, b.id);
  EXPECT_EQ(ended.payload, encode(Control{ended.type, made.rref, made.fork}));
}

TEST_F(User, TellsNobodyWhenItsCallCouldNotEvenBeSent) {
  const auto made = *a.ledger.create(b.id);
  const CallError error{CallErrorKind::Rejected, "could not find destination", {}, false};
  a.ledger.creation_finished(made.fork, error, a.out);
  a.ledger.dropped(made.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_TRUE(a.ledger.is_empty());
}

TEST_F(User, IsNotDeletedWhileItIsPending) {
  const auto made = *a.ledger.create(b.id);
  a.ledger.dropped(made.fork, a.out);
  EXPECT_TRUE(a.out.empty());
  EXPECT_EQ(a.ledger.counters().pending_users, 1U);
  a.ledger.creation_finished(made.fork, std::nullopt, a.out);
  a.take(MessageType::RrefUserDelete);
}

TEST_F(User, IsNotDeletedWhileAForkOfItIsNotAccepted) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  EXPECT_EQ(a.ledger.counters().pending_children, 1U);
  a.ledger.dropped(made.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  ASSERT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  deliver(c, c.take(MessageType::RrefForkRequest));
  EXPECT_TRUE(a.out.sends.empty());
  deliver(c, c.take(MessageType::RrefChildAccept));
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  a.take(MessageType::RrefUserDelete);
}

TEST_F(User, IsDeletedOnce) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.end_users(a.out);
  EXPECT_EQ(a.out.sends.size(), 1U);
  EXPECT_EQ(a.ledger.counters().pending_futures, 1U);
  settle();
  EXPECT_EQ(a.ledger.counters().pending_futures, 0U);
}

TEST_F(User, CannotBeUsedAfterItWasEnded) {  // S157
  const auto made = remote(a, b);
  a.ledger.end_users(a.out);
  EXPECT_EQ(a.ledger.state_of(made.fork), State::Deleted);
  EXPECT_EQ(a.error_of(made.rref, made.fork),
            "UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), "
            "fork_id=GloballyUniqueId(created_on=0, local_id=1)) has been deleted. Cannot call "
            "to_here() on it after deletion.");
  const auto forked = a.ledger.fork_user(made.rref, made.fork, c.id);
  ASSERT_FALSE(forked);
  EXPECT_NE(
      forked.error().message.find("has been deleted. Cannot call fork an UserRRef after deletion."),
      std::string::npos);
  settle();
  expect_all_empty();
}

TEST_F(User, IsEndedWhenItIsSettledIfTheEndCameFirst) {
  const auto made = *a.ledger.create(b.id);
  a.ledger.end_users(a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_EQ(a.ledger.state_of(made.fork), State::Deleted);
  a.ledger.creation_finished(made.fork, std::nullopt, a.out);
  a.take(MessageType::RrefUserDelete);
}

TEST_F(User, SaysWhatItWaitsFor) {
  const auto made = remote(a, b);
  EXPECT_EQ(a.ledger.unsettled_report(), "");
  *a.ledger.create(b.id);
  fork(a, made, c);
  EXPECT_EQ(a.ledger.unsettled_report(),
            "UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=2), "
            "fork_id=GloballyUniqueId(created_on=0, local_id=3)) waits for its owner, worker 1\n"
            "UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), "
            "fork_id=GloballyUniqueId(created_on=0, local_id=4)) waits to be accepted by worker "
            "2\n");
}

TEST_F(User, SendsNothingAfterTheLedgerHasStopped) {
  const auto made = remote(a, b);
  a.ledger.stop();
  a.ledger.dropped(made.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_TRUE(a.ledger.is_empty());
  EXPECT_NE(b.ledger.leak_report(), "");
}

TEST_F(User, ShowsItsFiguresUnderTheNamesThatProgramsKnow) {
  const auto made = remote(a, b);
  fork(a, made, c);
  *a.ledger.create(b.id);
  const std::map<std::string, std::string> expected = {{"num_owner_rrefs", "0"},
                                                       {"num_pending_futures", "0"},
                                                       {"num_pending_users", "1"},
                                                       {"num_forks", "0"},
                                                       {"num_pending_children", "1"}};
  EXPECT_EQ(a.ledger.debug_info(), expected);
}

TEST_F(User, SendsADeleteAgainThatHasFailedForGood) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  const Effects::Send ended = a.take(MessageType::RrefUserDelete);
  a.ledger.failed(ended.ticket, kCut, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_EQ(a.ledger.counters().pending_futures, 0U);
  EXPECT_EQ(a.ledger.parked_count(), 1U);
  a.ledger.worker_heard(c.id, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  a.ledger.worker_heard(b.id, a.out);
  const Effects::Send again = a.take(MessageType::RrefUserDelete);
  EXPECT_EQ(again.payload, ended.payload);
  EXPECT_NE(again.ticket, ended.ticket);
  deliver(a, again);
  expect_all_empty();
}

TEST_F(User, TakesAMessageFromAWorkerForASignThatItIsThere) {
  const auto made = remote(a, b);
  const auto other = remote(b, a);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.failed(a.take(MessageType::RrefUserDelete).ticket, kCut, a.out);
  b.ledger.dropped(other.fork, b.out);
  settle();
  expect_all_empty();
}

}  // namespace
}  // namespace muster::rref::testing
