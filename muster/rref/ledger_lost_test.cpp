// What a ledger does when workers are lost, and when others have their ids.
#include "tests/rref/ledger_fixture.h"

namespace muster::rref::testing {
namespace {

constexpr const char* kReason = "worker one was killed";

class LostWorker : public LedgerTest {
 protected:
  static bool mentions(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(LostWorker, TakesWhatItHeldWithIt) {
  const auto created = remote(a, b);
  const auto shared = remote(c, b);
  const ForkData data = fork(c, shared, a);
  a.ledger.received(data, a.out);
  settle();
  const GlobalId local = b.ledger.create_local();
  ASSERT_TRUE(b.ledger.fork_owned(local, a.id));
  EXPECT_EQ(b.ledger.counters().forks, 4U);
  b.ledger.worker_lost(a.id, kReason, b.out);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  EXPECT_TRUE(b.ledger.has_fork(shared.rref, shared.fork));
  const std::vector<GlobalId> released = {local, created.rref};
  EXPECT_EQ(b.out.released, released);
}

TEST_F(LostWorker, LosesWhatItIsCreatingWhenTheFunctionReturns) {
  const auto made = *a.ledger.create(b.id);
  b.ledger.begin_creation(made.rref, made.fork, a.id);
  b.ledger.worker_lost(a.id, kReason, b.out);
  EXPECT_TRUE(b.out.released.empty());
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  EXPECT_TRUE(b.ledger.is_empty());
}

TEST_F(LostWorker, FailsWhatIsOwnedByIt) {
  const auto made = remote(a, b);
  const auto pending = *a.ledger.create(b.id);
  const auto other = remote(a, c);
  a.ledger.worker_lost(b.id, kReason, a.out);
  EXPECT_EQ(a.ledger.state_of(made.fork), State::Failed);
  EXPECT_TRUE(mentions(a.error_of(made.rref, made.fork), "has lost its owner: worker 1 is lost"));
  EXPECT_TRUE(mentions(a.error_of(made.rref, made.fork), kReason));
  const std::string text = a.settled(pending.fork)->error->message;
  EXPECT_TRUE(text.starts_with("RRef creation via rpc.remote() failed: worker 1 is lost"));
  EXPECT_EQ(a.ledger.counters().pending_users, 0U);
  EXPECT_EQ(a.ledger.state_of(other.fork), State::Confirmed);
  // The end of the call says nothing new.
  a.ledger.creation_finished(pending.fork, std::nullopt, a.out);
  EXPECT_EQ(a.ledger.state_of(pending.fork), State::Failed);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.dropped(pending.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
}

TEST_F(LostWorker, HasASuccessorThatMayDrawTheSameIdsAgain) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Ledger::Creation::Refuse)
      << "from the same process it would be the same call a second time";
  b.ledger.worker_lost(a.id, kReason, b.out);
  b.ledger.worker_joined(a.id);
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Ledger::Creation::Run);
}

TEST_F(LostWorker, HasASuccessorWhoIsNotToldOfTheEndOfWhatItOwned) {
  const auto made = remote(a, b);
  a.ledger.worker_lost(b.id, kReason, a.out);
  a.ledger.worker_joined(b.id);
  a.ledger.dropped(made.fork, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_TRUE(a.ledger.is_empty());
}

TEST_F(LostWorker, EndsWhatWasDroppedWhileItWasPending) {
  const auto made = *a.ledger.create(b.id);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.worker_lost(b.id, kReason, a.out);
  EXPECT_TRUE(a.ledger.is_empty());
}

TEST_F(LostWorker, LeavesItsParentsWithoutPendingChildren) {
  const auto made = remote(a, b);
  fork(a, made, c);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.worker_lost(c.id, kReason, a.out);
  EXPECT_EQ(a.ledger.counters().pending_children, 0U);
  a.take(MessageType::RrefUserDelete);
}

TEST_F(LostWorker, LeavesItsChildrenToTheirOwner) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  c.ledger.worker_lost(a.id, kReason, c.out);
  EXPECT_EQ(deliver(c, c.take(MessageType::RrefForkRequest)), Ack::Done);
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Confirmed);
  EXPECT_TRUE(c.out.sends.empty());
}

TEST_F(LostWorker, AbandonsTheRequestsToItAndReleasesTheirParents) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  const Effects::Send request = c.take(MessageType::RrefForkRequest);
  c.ledger.worker_lost(b.id, kReason, c.out);
  EXPECT_EQ(c.out.abandoned, std::vector{request.ticket});
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Failed);
  EXPECT_EQ(c.ledger.counters().pending_futures, 1U) << "nobody waits for the request any more";
  EXPECT_EQ(c.take(MessageType::RrefChildAccept).to, a.id);
  c.ledger.failed(request.ticket, kCut, c.out);
  EXPECT_TRUE(c.out.sends.empty());
  EXPECT_EQ(c.ledger.counters().pending_futures, 1U) << "the child accept";
}

TEST_F(LostWorker, DoesNotLeaveAForkOnItsSuccessorThatWasMeantForIt) {
  for (const bool is_acked : {true, false}) {
    const auto made = *a.ledger.create(b.id);
    const ForkData data = fork(a, made, c);
    c.ledger.received(data, c.out);
    const Effects::Send request = c.take(MessageType::RrefForkRequest);
    c.ledger.worker_lost(b.id, kReason, c.out);
    c.ledger.worker_joined(b.id);
    EXPECT_EQ(serve(c, request), Ack::Done);  // to the next process, which knows nothing of it
    if (is_acked) {
      c.ledger.acked(request.ticket, encode(Ack::Done), c.out);
    } else {
      c.ledger.failed(request.ticket, kCut, c.out);
    }
    settle();
    EXPECT_EQ(b.ledger.counters().forks, 0U);
  }
}

TEST_F(LostWorker, IsSentNothing) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  a.ledger.dropped(made.fork, a.out);
  a.ledger.fork_uncertain(data.fork, a.out);
  a.ledger.failed(a.take(MessageType::RrefForkCancel).ticket, kCut, a.out);
  EXPECT_EQ(a.ledger.parked_count(), 1U);
  a.ledger.worker_lost(b.id, kReason, a.out);
  a.ledger.worker_lost(c.id, kReason, a.out);
  EXPECT_TRUE(a.out.sends.empty());
  EXPECT_EQ(a.ledger.parked_count(), 0U);
  EXPECT_TRUE(a.ledger.is_empty());
  EXPECT_FALSE(a.ledger.create(b.id));
  EXPECT_FALSE(a.ledger.fork_owned(a.ledger.create_local(), c.id));
}

TEST_F(LostWorker, IsRefusedUntilItJoinsAgain) {
  const auto made = *a.ledger.create(b.id);
  b.ledger.worker_lost(a.id, kReason, b.out);
  const Control control{MessageType::RrefUserDelete, made.rref, made.fork};
  const auto reply = b.ledger.on_control(a.id, control.type, encode(control), b.out);
  ASSERT_FALSE(reply);
  EXPECT_TRUE(mentions(reply.error().message, kReason));
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Refuse);
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Refused);
  EXPECT_TRUE(b.ledger.is_empty());
  b.ledger.worker_joined(a.id);
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
}

TEST_F(LostWorker, FailsWhatItDidNotLiveToCreate) {
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  settle();
  EXPECT_EQ(b.ledger.fetch({data.rref, data.fork}, c.id).answer, FetchAnswer::Wait);
  b.ledger.worker_lost(a.id, kReason, b.out);
  ASSERT_EQ(b.out.failed.size(), 1U);
  EXPECT_TRUE(mentions(b.out.failed[0].error.message, kReason));
  EXPECT_TRUE(b.ledger.is_empty());
  EXPECT_EQ(b.ledger.fetch({data.rref, data.fork}, c.id).answer, FetchAnswer::Refused);
}

TEST_F(LostWorker, IsNotWaitedForWhenAnotherProcessHasItsId) {
  b.ledger.worker_joined(a.id, first_of_incarnation(0));
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, c);
  const ForkData token = fork(a, made, b);
  b.ledger.worker_lost(a.id, kReason, b.out);
  b.ledger.worker_joined(a.id, first_of_incarnation(7));
  c.ledger.received(data, c.out);
  EXPECT_EQ(serve(c, c.take(MessageType::RrefForkRequest)), Ack::Ended);
  EXPECT_EQ(b.ledger.fetch({data.rref, data.fork}, c.id).answer, FetchAnswer::Refused);
  EXPECT_EQ(b.ledger.received(token, b.out).arrival, Arrival::Failed);
  b.out = {};
  // What the new one creates is waited for.
  a.ids.begin_at(first_of_incarnation(7));
  const auto next = *a.ledger.create(b.id);
  EXPECT_EQ(b.ledger.fetch({next.rref, next.fork}, a.id).answer, FetchAnswer::Wait);
}

TEST_F(LostWorker, MakesHandlesUselessThatCameThroughAWorkerThatDidNotKnow) {
  a.ledger.worker_joined(b.id, first_of_incarnation(3));
  c.ledger.worker_joined(b.id, first_of_incarnation(4));
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  EXPECT_EQ(data.owner_series, 3);
  const auto received = c.ledger.received(data, c.out);
  EXPECT_EQ(received.arrival, Arrival::Failed);
  EXPECT_TRUE(mentions(received.error->message, "another process is known by its id"));
  EXPECT_EQ(c.take(MessageType::RrefChildAccept).to, a.id);
  EXPECT_TRUE(c.out.sends.empty());
}

TEST_F(LostWorker, MakesHandlesUselessThatComeLaterFromOthers) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.worker_lost(b.id, kReason, c.out);
  EXPECT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Failed);
  EXPECT_EQ(c.take(MessageType::RrefChildAccept).to, a.id);
  EXPECT_TRUE(c.out.sends.empty());
}

TEST_F(LostWorker, CannotUseGarbageAsAMessage) {
  const auto reply = b.ledger.on_control(a.id, MessageType::RrefUserDelete, "garbage", b.out);
  ASSERT_FALSE(reply);
  EXPECT_FALSE(b.ledger.on_control(a.id, MessageType::ScriptCall, "", b.out));
  EXPECT_TRUE(b.out.empty());
}

}  // namespace
}  // namespace muster::rref::testing
