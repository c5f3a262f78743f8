// What a ledger does for the values that its worker owns.
#include "tests/rref/ledger_fixture.h"

namespace muster::rref::testing {
namespace {

class Owner : public LedgerTest {};

TEST_F(Owner, CountsAReferenceOnlyWhenItsFunctionHasReturned) {
  const auto made = *a.ledger.create(b.id);
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  EXPECT_EQ(b.ledger.counters(), Ledger::Counters());
  EXPECT_TRUE(b.ledger.held_forks().empty());
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.out.ready, std::vector{made.rref});
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  const std::vector<Ledger::HeldFork> held = {{made.rref, made.fork, a.id}};
  EXPECT_EQ(b.ledger.held_forks(), held);
}

TEST_F(Owner, RefusesACallThatComesTwice) {
  const auto made = *a.ledger.create(b.id);
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Refuse);
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Refuse);
  a.ledger.creation_finished(made.fork, std::nullopt, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  const auto late = b.ledger.begin_creation(made.rref, made.fork, a.id);
  EXPECT_EQ(late.creation, Creation::Refuse);
  EXPECT_NE(late.error->message.find("came twice"), std::string::npos);
  expect_all_empty();
}

TEST_F(Owner, RefusesACallWhoseIdsAreNotItsCallers) {
  const GlobalId rref(0, 7);
  EXPECT_EQ(b.ledger.begin_creation(rref, GlobalId(0, 9), a.id).creation, Creation::Refuse);
  EXPECT_EQ(b.ledger.begin_creation(rref, GlobalId(0, 8), c.id).creation, Creation::Refuse);
  EXPECT_EQ(b.ledger.begin_creation(rref, rref, a.id).creation, Creation::Refuse);
  EXPECT_EQ(b.ledger.begin_creation(GlobalId(1, 7), GlobalId(1, 8), b.id).creation,
            Creation::Refuse);
  EXPECT_TRUE(b.ledger.is_empty());
}

TEST_F(Owner, RunsACallForNobodyWhenItsDeleteCameFirst) {
  const auto made = *a.ledger.create(b.id);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_EQ(b.out.unknown.size(), 1U);
  b.out = {};
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::RunAndDiscard);
  EXPECT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Refuse);
  b.ledger.created(made.rref, b.out);
  EXPECT_TRUE(b.out.empty());
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Refused);
  expect_all_empty();
}

TEST_F(Owner, ReleasesAtOnceWhatWasDeletedWhileItsFunctionRan) {
  const auto made = *a.ledger.create(b.id);
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_TRUE(b.out.released.empty());
  EXPECT_TRUE(b.ledger.holds(made.rref));
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.out.ready, std::vector{made.rref});
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  expect_all_empty();
}

TEST_F(Owner, KeepsWhatOthersHaveThoughItsCreatorLetGoBeforeItCame) {
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, c);
  ASSERT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  settle();
  EXPECT_EQ(c.ledger.state_of(data.fork), State::Confirmed);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 0U);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  EXPECT_TRUE(b.out.released.empty());
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  expect_all_empty();
}

TEST_F(Owner, LetsAFetchWaitThatOvertookTheCreation) {
  const auto made = *a.ledger.create(b.id);
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Wait);
  ASSERT_EQ(b.ledger.begin_creation(made.rref, made.fork, a.id).creation, Creation::Run);
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Wait);
  EXPECT_TRUE(b.out.empty());
  b.ledger.created(made.rref, b.out);
  EXPECT_EQ(b.out.ready, std::vector{made.rref});
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Ready);
}

TEST_F(Owner, FailsAFetchThatWaitsWhenTheCreatorLetsGo) {
  const auto made = *a.ledger.create(b.id);
  ASSERT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Wait);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  ASSERT_EQ(b.out.failed.size(), 1U);
  EXPECT_EQ(b.out.failed[0].rref, made.rref);
  EXPECT_TRUE(b.out.failed[0].error.message.starts_with("RRef creation via rpc.remote()"));
  // One that comes later still is refused, by whomever.
  EXPECT_EQ(b.ledger.fetch({made.rref, made.fork}, a.id).answer, FetchAnswer::Refused);
  EXPECT_EQ(b.ledger.fetch({made.rref, GlobalId(0, 77)}, c.id).answer, FetchAnswer::Refused);
  expect_all_empty();
}

TEST_F(Owner, AnswersAFetchOfWhatHasEnded) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  settle();
  const Ledger::Fetch fetch = b.ledger.fetch({made.rref, made.fork}, a.id);
  EXPECT_EQ(fetch.answer, FetchAnswer::Refused);
  EXPECT_NE(fetch.error->message.find("no such reference"), std::string::npos);
  // Its own, too, which no other worker could create.
  EXPECT_EQ(b.ledger.fetch({GlobalId(1, 99), made.fork}, a.id).answer, FetchAnswer::Refused);
}

TEST_F(Owner, KeepsAValueForAsLongAsOneForkIsLeft) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  settle();
  EXPECT_EQ(b.ledger.counters().forks, 2U);
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_TRUE(b.out.released.empty());
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(b.out.released, std::vector{made.rref});
  expect_all_empty();
}

TEST_F(Owner, AcksAForkRequestThatComesTwiceAndCountsItOnce) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  const Effects::Send request = c.take(MessageType::RrefForkRequest);
  EXPECT_EQ(serve(c, request), Ack::Done);
  EXPECT_EQ(serve(c, request), Ack::Done);
  EXPECT_EQ(b.ledger.counters().forks, 2U);
}

TEST_F(Owner, DoesNotBringBackAForkByARequestThatComesAfterItsDelete) {
  const auto made = remote(a, b);
  const ForkData data = fork(a, made, c);
  c.ledger.received(data, c.out);
  const Effects::Send request = c.take(MessageType::RrefForkRequest);
  deliver(c, request);
  c.ledger.dropped(data.fork, c.out);
  settle();
  EXPECT_EQ(serve(c, request), Ack::Ended);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
}

TEST_F(Owner, RefusesAForkRequestThatItsDeleteHasOvertaken) {
  const auto made = remote(a, b);
  const Control control{MessageType::RrefForkRequest, made.rref, GlobalId(0, 50)};
  const std::string payload = encode(control);
  ASSERT_TRUE(b.ledger.on_control(c.id, MessageType::RrefUserDelete, payload, b.out));
  const auto reply = b.ledger.on_control(c.id, MessageType::RrefForkRequest, payload, b.out);
  EXPECT_EQ(*reply, encode(Ack::Ended));
  EXPECT_EQ(b.ledger.counters().forks, 1U);
}

TEST_F(Owner, RefusesAForkRequestForAReferenceThatHasEnded) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  settle();
  const Control control{MessageType::RrefForkRequest, made.rref, GlobalId(0, 50)};
  const auto reply = b.ledger.on_control(c.id, control.type, encode(control), b.out);
  EXPECT_EQ(*reply, encode(Ack::Ended));
  expect_all_empty();
}

TEST_F(Owner, RefusesARequestAgainThatItRefusedBeforeItSharedItsValueAgain) {
  const GlobalId rref = b.ledger.create_local();
  const ForkData first = *b.ledger.fork_owned(rref, a.id);
  b.ledger.undo_fork(first.fork, b.out);
  const Control control{MessageType::RrefForkRequest, rref, GlobalId(0, 50)};
  const std::string payload = encode(control);
  EXPECT_EQ(*b.ledger.on_control(c.id, control.type, payload, b.out), encode(Ack::Ended));
  ASSERT_TRUE(b.ledger.fork_owned(rref, a.id));
  EXPECT_EQ(*b.ledger.on_control(c.id, control.type, payload, b.out), encode(Ack::Ended));
}

TEST_F(Owner, RefusesAForkRequestForTheCreatorsOwnFork) {
  const auto made = remote(a, b);
  const Control control{MessageType::RrefForkRequest, made.rref, made.fork};
  const auto reply = b.ledger.on_control(c.id, control.type, encode(control), b.out);
  EXPECT_EQ(*reply, encode(Ack::Ended));
  EXPECT_EQ(b.ledger.counters().forks, 1U);
}

TEST_F(Owner, AcksADeleteThatHitsNothing) {
  const auto made = remote(a, b);
  a.ledger.dropped(made.fork, a.out);
  const Effects::Send ended = a.take(MessageType::RrefUserDelete);
  EXPECT_EQ(serve(a, ended), Ack::Done);
  EXPECT_TRUE(b.out.unknown.empty());
  EXPECT_EQ(serve(a, ended), Ack::Done);
  EXPECT_EQ(b.out.released.size(), 1U);
  ASSERT_EQ(b.out.unknown.size(), 1U);
  EXPECT_EQ(b.out.unknown[0].rref, made.rref);
  EXPECT_EQ(b.out.unknown[0].fork, made.fork);
  EXPECT_TRUE(b.ledger.is_empty());
}

TEST_F(Owner, HoldsAReferenceToItselfUntilItsCallHasEnded) {
  const GlobalId rref = b.ledger.create_self();
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  EXPECT_EQ(b.ledger.counters().forks, 1U);
  EXPECT_EQ(b.ledger.begin_creation(rref, rref, b.id).creation, Creation::Run);
  EXPECT_EQ(b.ledger.begin_creation(rref, rref, b.id).creation, Creation::Refuse);
  b.ledger.self_finished(rref, b.out);
  EXPECT_EQ(b.out.released, std::vector{rref});
  expect_all_empty();
}

TEST_F(Owner, DoesNotLoseAReferenceToItselfByForksThatEndEarly) {
  const GlobalId rref = b.ledger.create_self();
  const ForkData data = *b.ledger.fork_owned(rref, a.id);
  EXPECT_EQ(a.ledger.received(data, a.out).arrival, Arrival::Confirmed);
  a.ledger.dropped(data.fork, a.out);
  settle();
  EXPECT_TRUE(b.out.released.empty());
  b.ledger.self_finished(rref, b.out);
  EXPECT_EQ(b.out.released, std::vector{rref});
}

TEST_F(Owner, RunsACallToItselfThatHasTimedOut) {
  const GlobalId rref = b.ledger.create_self();
  b.ledger.self_finished(rref, b.out);
  EXPECT_EQ(b.ledger.begin_creation(rref, rref, b.id).creation, Creation::RunAndDiscard);
  const GlobalId shared = b.ledger.create_self();
  ASSERT_TRUE(b.ledger.fork_owned(shared, a.id));
  b.ledger.self_finished(shared, b.out);
  EXPECT_EQ(b.ledger.begin_creation(shared, shared, b.id).creation, Creation::Run);
}

TEST_F(Owner, KnowsALocalReferenceFromItsFirstForkOn) {  // S153
  const GlobalId rref = b.ledger.create_local();
  EXPECT_TRUE(b.ledger.is_empty());
  const ForkData data = *b.ledger.fork_owned(rref, a.id);
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  EXPECT_EQ(b.ledger.counters().pending_children, 0U);
  a.ledger.received(data, a.out);
  a.ledger.dropped(data.fork, a.out);
  settle();
  EXPECT_EQ(b.out.released, std::vector{rref});
  EXPECT_TRUE(b.ledger.is_empty());
}

TEST_F(Owner, CanShareAValueAgainThatNobodyElseHadAnyMore) {
  const GlobalId rref = b.ledger.create_local();
  const ForkData first = *b.ledger.fork_owned(rref, a.id);
  a.ledger.received(first, a.out);
  a.ledger.dropped(first.fork, a.out);
  settle();
  EXPECT_EQ(b.ledger.fetch({rref, first.fork}, a.id).answer, FetchAnswer::Refused);
  const ForkData second = *b.ledger.fork_owned(rref, a.id);
  EXPECT_EQ(b.ledger.fetch({rref, second.fork}, a.id).answer, FetchAnswer::Ready);
  const Control late{MessageType::RrefForkRequest, rref, first.fork};
  EXPECT_EQ(*b.ledger.on_control(a.id, late.type, encode(late), b.out), encode(Ack::Ended));
}

TEST_F(Owner, RemembersTheLastEndOfAValueThatItSharedAgain) {
  IdSource ids;
  Ledger owner({.self = 1, .ended_ids_max = 3}, ids);
  Effects out;
  const auto made = *a.ledger.create(b.id);
  owner.begin_creation(made.rref, made.fork, a.id);
  owner.created(made.rref, out);
  const auto end = [&](GlobalId fork) {
    const Control control{MessageType::RrefUserDelete, made.rref, fork};
    ASSERT_TRUE(owner.on_control(a.id, control.type, encode(control), out));
  };
  owner.received(fork(a, made, b), out);  // a local program has it, too
  end(made.fork);
  end(owner.fork_owned(made.rref, a.id)->fork);
  for (int count = 0; count < 2; ++count) {
    owner.undo_fork(owner.fork_owned(owner.create_local(), a.id)->fork, out);
  }
  EXPECT_EQ(owner.fetch({made.rref, GlobalId(0, 99)}, a.id).answer, FetchAnswer::Refused);
}

TEST_F(Owner, FailsWhatWaitsWhenTheLastForkOfAGivenUpReferenceEnds) {
  const auto made = *a.ledger.create(b.id);
  const ForkData data = fork(a, made, c);
  a.ledger.worker_lost(c.id, "as far as it knows", a.out);
  a.ledger.creation_finished(made.fork, kTimeout, a.out);
  a.ledger.dropped(made.fork, a.out);
  settle();
  ASSERT_EQ(c.ledger.received(data, c.out).arrival, Arrival::Pending);
  EXPECT_EQ(deliver(c, c.take(MessageType::RrefForkRequest)), Ack::Done);
  EXPECT_EQ(b.ledger.fetch({data.rref, data.fork}, c.id).answer, FetchAnswer::Wait);
  c.ledger.dropped(data.fork, c.out);
  deliver(c, c.take(MessageType::RrefUserDelete));
  ASSERT_EQ(b.out.failed.size(), 1U);
  EXPECT_TRUE(b.ledger.is_empty());
}

TEST_F(Owner, ReportsEachForkThatIsLeft) {  // S155
  const auto made = remote(a, b);
  EXPECT_EQ(b.ledger.leak_report(),
            "Leaking RRef GloballyUniqueId(created_on=0, local_id=0) with fork Id "
            "GloballyUniqueId(created_on=0, local_id=1)\n");
  a.ledger.dropped(made.fork, a.out);
  settle();
  EXPECT_EQ(b.ledger.leak_report(), "");
}

TEST_F(Owner, DropsWhatNobodyHasAForkOfAtTheEnd) {
  const auto made = *a.ledger.create(b.id);
  const ForkData token = fork(a, made, b);
  ASSERT_EQ(b.ledger.received(token, b.out).arrival, Arrival::Owner);
  EXPECT_EQ(b.ledger.counters().owner_rrefs, 1U);
  const auto running = *a.ledger.create(b.id);
  b.ledger.begin_creation(running.rref, running.fork, a.id);
  b.ledger.end_unforked_owners(b.out);
  ASSERT_EQ(b.out.failed.size(), 1U);
  EXPECT_EQ(b.out.failed[0].rref, made.rref);
  EXPECT_TRUE(b.ledger.holds(running.rref));
}

}  // namespace
}  // namespace muster::rref::testing
