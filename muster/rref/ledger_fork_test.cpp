// Handles on their way from worker to worker: the four ways to receive one, and what becomes of
// those that may not have arrived.
#include "tests/rref/ledger_fixture.h"

namespace muster::rref::testing {
namespace {

class Fork : public LedgerTest {};

// ---- the four ways ------------------------------------------------------------------------------

TEST_F(Fork, FromTheOwnerToItselfIsTakenBackAndUsesTheValue) {
  const GlobalId rref = b.ledger.create_local();
  const ForkData data = *b.ledger.fork_owned(rref, b.id);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  EXPECT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  EXPECT_EQ(b.out.released, std::vector{rref});
  EXPECT_TRUE(b.out.sends.empty());
  expect_all_empty();
}

TEST_F(Fork, FromTheOwnerIsConfirmedAtOnceWithoutAMessage) {  // S143, X-21
  const GlobalId rref = b.ledger.create_local();
  const ForkData data = *b.ledger.fork_owned(rref, c.id);
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Confirmed);
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Confirmed);
  EXPECT_TRUE(c.out.empty());
  EXPECT_TRUE(b.ledger.has_fork(rref, data.fork));
}

TEST_F(Fork, FromAUserToTheOwnerUsesTheValueAndReleasesTheParent) {  // S134
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, b);
  EXPECT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  const Effects::Send accept = b.take(MessageType::RrefChildAccept);
  EXPECT_EQ(accept.to, a.id);
  deliver(b, accept);
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
}

TEST_F(Fork, FromAUserToTheOwnerMayComeBeforeTheCreation) {
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, b);
  EXPECT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  EXPECT_EQ(b.ledger.counters().forks, 0U);
  settle();
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
}

TEST_F(Fork, ToTheOwnerFailsWhenTheCreatorLetsGoBeforeTheCreationComes) {
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, b);
  ASSERT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  ASSERT_EQ(b.out.failed.size(), 1U);
  // And one that comes after the creator's delete fails at once.
  ForkData late = data;
  late.fork = GlobalId(0, 40);
  EXPECT_EQ(b.ledger.received(late, b.out).arrival, Arrival::Failed);
  settle();
  expect_all_empty();
}

TEST_F(Fork, FromAUserToAnotherIsConfirmedByTheOwnerAndThenAccepted) {  // S135, S142
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  EXPECT_EQ(c.ledger.counters().pending_users, 1U);
  const Effects::Send request = c.take(MessageType::RrefForkRequest);
  EXPECT_EQ(request.to, b.id);
  EXPECT_TRUE(c.out.sends.empty());
  EXPECT_EQ(deliver(c, request), Ack::Done);
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Confirmed);
  EXPECT_FALSE(c.settled(data.fork)->error);
  EXPECT_EQ(b.ledger.counters().forks, 2U);
  const Effects::Send accept = c.take(MessageType::RrefChildAccept);
  EXPECT_EQ(accept.to, a.id);
  EXPECT_EQ(deliver(c, accept), Ack::Done);
  EXPECT_EQ(serve(c, accept), Ack::Done);  // once more
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
}

TEST_F(Fork, DroppedWhileItIsPendingIsConfirmedAcceptedAndThenDeleted) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  c.ledger.dropped(data.fork, c.out);
  deliver(c, c.take(MessageType::RrefForkRequest));
  c.take(MessageType::RrefChildAccept);
  c.take(MessageType::RrefUserDelete);
}

TEST_F(Fork, ToAThirdAndBackIsAnotherHandle) {
  const auto made = remote(a, b);
  const ForkData there = fork(a, made, c);
  c.ledger.received(there, c.out);
  const ForkData back = *c.ledger.fork_user(there.rref, there.fork, a.id);
  EXPECT_EQ(a.ledger.received(back, a.out).arrival, Arrival::Pending);
  settle();
  EXPECT_EQ(b.ledger.counters().forks, 3U);
  a.ledger.dropped(made.fork, a.out);
  c.ledger.dropped(there.fork, c.out);
  settle();
  EXPECT_TRUE(b.out.released.empty());
  a.ledger.dropped(back.fork, a.out);
  settle();
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  expect_all_empty();
}

// ---- requests that fail -------------------------------------------------------------------------

TEST_F(Fork, WhoseRequestFailsForGoodFailsReleasesTheParentAndIsDeleted) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  const Effects::Send request = c.take(MessageType::RrefForkRequest);
  EXPECT_EQ(serve(c, request), Ack::Done);  // only the answer is lost
  c.ledger.failed(request.ticket, kCut, c.out);
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Failed);
  EXPECT_EQ(c.ledger.counters().pending_users, 0U);
  EXPECT_NE(c.settled(data.fork)->error->message.find("was not confirmed by its owner"),
            std::string::npos);
  EXPECT_NE(c.error_of(data.rref, data.fork).find("the connection broke"), std::string::npos);
  settle();
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  c.ledger.dropped(data.fork, c.out);
  EXPECT_TRUE(c.out.sends.empty());
  EXPECT_EQ(serve(c, request), Ack::Ended);  // a copy that comes late
  EXPECT_EQ(b.ledger.counters().forks, 1U);
}

TEST_F(Fork, WhoseReferenceHasEndedFailsAndReleasesTheParent) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  b.ledger.worker_lost(a.id, "worker0 is gone", b.out);
  c.ledger.received(data, c.out);
  EXPECT_EQ(deliver(c, c.take(MessageType::RrefForkRequest)), Ack::Ended);
  EXPECT_NE(c.error_of(data.rref, data.fork).find("no such reference"), std::string::npos);
  c.take(MessageType::RrefChildAccept);
  c.ledger.dropped(data.fork, c.out);
  EXPECT_TRUE(c.out.sends.empty());
}

TEST_F(Fork, WhoseAnswerIsGarbageFails) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  c.ledger.acked(c.take(MessageType::RrefForkRequest).ticket, "garbage", c.out);
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Failed);
}

// ---- carriers that do not arrive ----------------------------------------------------------------

TEST_F(Fork, ThatWasNeverSentIsUndone) {
  const auto made = remote(a, b);
  const ForkData child = fork(a, made, c);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.undo_fork(child.fork, a.out);
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  a.take(MessageType::RrefUserDelete);

  const GlobalId rref = b.ledger.create_local();
  const ForkData given = *b.ledger.fork_owned(rref, c.id);
  b.ledger.undo_fork(given.fork, b.out);
  EXPECT_EQ(b.out.released, std::vector{rref});
  b.ledger.undo_fork(given.fork, b.out);
  EXPECT_EQ(b.out.released.size(), 1U);
}

TEST_F(Fork, ThatMayNotHaveArrivedIsTakenBackWhenItHasNot) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  a.ledger.fork_uncertain(data.fork, a.out);
  EXPECT_EQ(a.ledger.counters().pending_children, 1U);
  const Effects::Send cancel = a.take(MessageType::RrefForkCancel);
  EXPECT_EQ(cancel.to, c.id);
  EXPECT_EQ(deliver(a, cancel), Ack::Cancelled);
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  EXPECT_EQ(serve(a, cancel), Ack::Cancelled);
  // It comes all the same.
  const auto received = c.ledger.received(data, c.out);
  EXPECT_EQ(received.arrival, Arrival::Failed);
  EXPECT_NE(received.error->message.find("came too late"), std::string::npos);
  EXPECT_TRUE(c.out.empty());
  EXPECT_TRUE(c.ledger.is_empty());
}

TEST_F(Fork, ThatMayNotHaveArrivedIsKeptWhenItHas) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  a.ledger.fork_uncertain(data.fork, a.out);
  const Effects::Send cancel = a.take(MessageType::RrefForkCancel);
  EXPECT_EQ(deliver(a, cancel), Ack::Kept);
  EXPECT_EQ(a.ledger.counters().pending_children, 1U);
  settle();
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  // Also when it has come and gone.
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(serve(a, cancel), Ack::Kept);
}

TEST_F(Fork, GivenByTheOwnerIsTakenBackOnlyWhenItHasNotArrived) {
  const GlobalId rref = b.ledger.create_local();
  const ForkData lost = *b.ledger.fork_owned(rref, c.id);
  const ForkData there = *b.ledger.fork_owned(rref, c.id);
  c.ledger.received(there, c.out);
  b.ledger.fork_uncertain(there.fork, b.out);
  settle();
  EXPECT_TRUE(b.ledger.has_fork(rref, there.fork));
  b.ledger.fork_uncertain(lost.fork, b.out);
  settle();
  EXPECT_FALSE(b.ledger.has_fork(rref, lost.fork));
  EXPECT_EQ(c.ledger.received(lost, c.out).arrival, Arrival::Failed);
  EXPECT_TRUE(b.ledger.has_fork(rref, there.fork));
}

TEST_F(Fork, ToTheOwnerThatMayNotHaveArrivedIsAskedForToo) {
  const auto made = remote(a, b);
  const ForkData there = fork(a, made, b);
  const ForkData lost = fork(a, made, b);
  b.ledger.received(there, b.out);
  a.ledger.fork_uncertain(there.fork, a.out);
  EXPECT_EQ(deliver(a, a.take(MessageType::RrefForkCancel)), Ack::Kept);
  a.ledger.fork_uncertain(lost.fork, a.out);
  EXPECT_EQ(deliver(a, a.take(MessageType::RrefForkCancel)), Ack::Cancelled);
  EXPECT_EQ(b.ledger.received(lost, b.out).arrival, Arrival::Failed);
  settle();
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
}

TEST_F(Fork, ThatIsSettledIsNotAskedFor) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  settle();
  a.ledger.fork_uncertain(data.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
}

TEST_F(Fork, ThatIsSettledWhileTheQuestionIsParkedIsNotAskedForAgain) {
  const auto made = remote(a, b);
  const ForkData accepted = fork(a, made, c);
  const ForkData unknown = fork(a, made, c);
  for (const GlobalId one : {accepted.fork, unknown.fork}) {
    a.ledger.fork_uncertain(one, a.out);
    const Effects::Send cancel = a.take(MessageType::RrefForkCancel);
    a.ledger.failed(cancel.ticket, {rpc::CallErrorKind::Unreachable, "cut", {}, true}, a.out);
  }
  EXPECT_EQ(a.ledger.parked_count(), 2U);
  c.ledger.received(accepted, c.out);
  settle();
  a.ledger.worker_heard(c.id, a.out);
  settle();
  EXPECT_EQ(a.ledger.parked_count(), 0U);
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  EXPECT_EQ(c.ledger.received(unknown, c.out).arrival, Arrival::Failed);
}

TEST_F(Fork, ThatWentWithAResponseIsAskedForWhenItsConnectionIsLost) {
  const auto made = remote(a, b);
  const ForkData lost = *a.ledger.fork_user(made.rref, made.fork, c.id, 7);
  const ForkData by_another = *a.ledger.fork_user(made.rref, made.fork, c.id, 8);
  const ForkData with_a_request = fork(a, made, c);
  a.ledger.connection_lost(7, a.out);
  ASSERT_EQ(a.out.sends.size(), 1U);
  EXPECT_EQ(deliver(a, a.take(MessageType::RrefForkCancel)), Ack::Cancelled);
  EXPECT_EQ(a.ledger.counters().pending_children, 2U);
  EXPECT_EQ(c.ledger.received(lost, c.out).arrival, Arrival::Failed);
  EXPECT_EQ(c.ledger.received(by_another, c.out).arrival, Arrival::Pending);
  EXPECT_EQ(c.ledger.received(with_a_request, c.out).arrival, Arrival::Pending);
}

TEST_F(Fork, OfTheOwnerThatWentWithAResponseIsReleasedUnlessItHadArrived) {
  const GlobalId rref = b.ledger.create_local();
  const ForkData there = *b.ledger.fork_owned(rref, c.id, 7);
  const ForkData lost = *b.ledger.fork_owned(rref, c.id, 7);
  c.ledger.received(there, c.out);
  b.ledger.connection_lost(7, b.out);
  EXPECT_EQ(b.out.sends.size(), 2U);
  settle();
  EXPECT_TRUE(b.ledger.has_fork(rref, there.fork));
  EXPECT_FALSE(b.ledger.has_fork(rref, lost.fork));
  c.ledger.dropped(there.fork, c.out);
  settle();
  expect_all_empty();
}

TEST_F(Fork, ThatHasEndedIsNotAskedForWhenItsConnectionIsLost) {
  const ForkData data = *b.ledger.fork_owned(b.ledger.create_local(), c.id, 7);
  c.ledger.received(data, c.out);
  c.ledger.dropped(data.fork, c.out);
  settle();
  b.ledger.connection_lost(7, b.out);
  EXPECT_TRUE(b.out.sends.empty());
}

TEST_F(Fork, ThatComesTwiceIsOneHandle) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  EXPECT_EQ(c.out.sends.size(), 1U);
  settle();
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Confirmed);
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Failed);
  EXPECT_TRUE(c.ledger.is_empty());
}

TEST_F(Fork, FromTheOwnerThatComesAgainAfterItsEndIsOfNoUse) {
  const ForkData data = *b.ledger.fork_owned(b.ledger.create_local(), c.id);
  c.ledger.received(data, c.out);
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Failed);
  expect_all_empty();
}

TEST_F(Fork, ThatComesTwiceToTheOwnerIsAcceptedOnce) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, b);
  EXPECT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  EXPECT_EQ(b.ledger.received(data, b.out).arrival, Arrival::Owner);
  b.take(MessageType::RrefChildAccept);
}

}  // namespace
}  // namespace muster::rref::testing
