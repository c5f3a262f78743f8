// Small stories in every order in which their messages can arrive: the invariants of references,
// without luck.
#include "tests/rref/ledger_fixture.h"

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref::testing {
namespace {

// Walks through all sequences of choices, one after the other.
class Choices {
 public:
  std::size_t choose(std::size_t count) {
    if (depth_ == taken_.size()) taken_.push_back({0, count});
    EXPECT_EQ(taken_[depth_].count, count) << "the story is not the same twice";
    return taken_[depth_++].choice;
  }
  // On to the next sequence; false after the last.
  bool next() {
    depth_ = 0;
    while (!taken_.empty() && taken_.back().choice + 1 == taken_.back().count) taken_.pop_back();
    if (taken_.empty()) return false;
    ++taken_.back().choice;
    return true;
  }

 private:
  struct Taken {
    std::size_t choice;
    std::size_t count;
  };
  std::vector<Taken> taken_;
  std::size_t depth_ = 0;
};

class Story {
 public:
  Story(Choices& choices, bool with_copies) : choices_(choices), with_copies_(with_copies) {}

  void may_happen(std::function<void()> what) { open_.push_back(std::move(what)); }

  // The creator's call, its answer, and perhaps a timeout instead of it.
  Ledger::NewReference create(bool may_time_out) {
    const auto made = *a.ledger.create(b.id);
    may_happen([this, made] {
      const auto begin = b.ledger.begin_creation(made.rref, made.fork, a.id);
      EXPECT_NE(begin.creation, Creation::Refuse);
      if (begin.creation == Creation::Run) {
        may_happen([this, made] {
          b.ledger.created(made.rref, b.out);
          ++created_count;
          may_happen([this, made] { finish_creation(made, std::nullopt); });
        });
      }
    });
    if (may_time_out) may_happen([this, made] { finish_creation(made, kTimeout); });
    return made;
  }
  void finish_creation(const Ledger::NewReference& made, const std::optional<CallError>& error) {
    a.ledger.creation_finished(made.fork, error, a.out);
  }
  void hold(Worker& worker, GlobalId rref, GlobalId fork) {
    handles_.push_back({&worker, rref, fork});
    may_happen([&worker, fork] { worker.ledger.dropped(fork, worker.out); });
  }
  // A message with this fork is on its way.
  void carry(const ForkData& data, Worker& to) {
    may_happen([this, data, &to] {
      const auto received = to.ledger.received(data, to.out);
      if (data.owner != to.id && received.arrival != Arrival::Failed) {
        hold(to, data.rref, data.fork);
      }
    });
  }

  void tell() {
    while (!open_.empty()) {
      const std::size_t choice = choices_.choose(open_.size());
      const std::function<void()> what = std::move(open_[choice]);
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(choice));
      what();
      for (Worker* worker : {&a, &b, &c}) {
        for (const Effects::Send& send : std::exchange(worker->out.sends, {})) post(*worker, send);
        released_count += worker->out.released.size();
        failed_count += worker->out.failed.size();
        worker->out = {};
      }
      check();
    }
    for (Worker* worker : {&a, &b, &c}) {
      EXPECT_TRUE(worker->ledger.is_empty()) << "worker " << worker->id;
      EXPECT_EQ(worker->ledger.counters(), Ledger::Counters());
    }
    EXPECT_EQ(released_count, created_count);
  }

  Worker a{0};
  Worker b{1};
  Worker c{2};
  std::size_t created_count = 0;
  std::size_t released_count = 0;
  std::size_t failed_count = 0;

 private:
  struct Held {
    Worker* worker;
    GlobalId rref;
    GlobalId fork;
  };

  Worker& at(WorkerId id) { return id == 0 ? a : id == 1 ? b : c; }
  void post(Worker& from, const Effects::Send& send) {
    const auto arrive = [this, &from, send](bool is_copy) {
      Worker& to = at(send.to);
      const auto reply = to.ledger.on_control(from.id, send.type, send.payload, to.out);
      if (is_copy) return;
      const auto answer = [&from, send, payload = *reply] {
        from.ledger.acked(send.ticket, payload, from.out);
      };
      // When the others are answered makes no difference.
      const bool matters =
          send.type == MessageType::RrefForkRequest || send.type == MessageType::RrefForkCancel;
      matters ? may_happen(answer) : answer();
    };
    may_happen([arrive] { arrive(false); });
    if (with_copies_) may_happen([arrive] { arrive(true); });
  }
  // A handle that is confirmed and not deleted is known to the owner, who has an entry for it.
  void check() {
    for (const Held& held : handles_) {
      if (held.worker->ledger.state_of(held.fork) != State::Confirmed) continue;
      EXPECT_TRUE(b.ledger.has_fork(held.rref, held.fork)) << held.fork.text();
      EXPECT_TRUE(b.ledger.holds(held.rref));
    }
  }

  Choices& choices_;
  bool with_copies_;
  std::vector<std::function<void()>> open_;
  std::vector<Held> handles_;
};

// The number of orders.
std::size_t in_every_order(bool with_copies, const std::function<void(Story&)>& begin) {
  constexpr std::size_t kOrdersMax = 200'000;
  Choices choices;
  std::size_t count = 0;
  do {
    Story story(choices, with_copies);
    begin(story);
    story.tell();
    if (++count > kOrdersMax) ADD_FAILURE() << "there are too many orders";
  } while (!::testing::Test::HasFailure() && choices.next());
  return count;
}

TEST(InEveryOrder, AReferenceLivesExactlyAsLongAsItIsHeld) {
  const std::size_t count = in_every_order(true, [](Story& story) {
    const auto made = story.create(false);
    story.hold(story.a, made.rref, made.fork);
  });
  EXPECT_GT(count, 5U);
}

TEST(InEveryOrder, ACreationThatTimesOutLeavesNothingWheneverItComes) {
  const std::size_t count = in_every_order(true, [](Story& story) {
    const auto made = story.create(true);
    story.hold(story.a, made.rref, made.fork);
  });
  EXPECT_GT(count, 50U);
}

TEST(InEveryOrder, AHandleGivenToAThirdWorkerKeepsTheValue) {
  const std::size_t count = in_every_order(false, [](Story& story) {
    const auto made = story.create(false);
    story.carry(*story.a.ledger.fork_user(made.rref, made.fork, story.c.id), story.c);
    story.hold(story.a, made.rref, made.fork);
  });
  EXPECT_GT(count, 500U);
}

TEST(InEveryOrder, AHandleGivenBackToTheOwnerIsSettledWhenTheCreationTimesOut) {
  const std::size_t count = in_every_order(false, [](Story& story) {
    const auto made = story.create(true);
    story.carry(*story.a.ledger.fork_user(made.rref, made.fork, story.b.id), story.b);
    story.hold(story.a, made.rref, made.fork);
  });
  EXPECT_GT(count, 500U);
}

TEST(InEveryOrder, AHandleThatMayNotHaveArrivedIsEitherKeptOrTakenBack) {
  const std::size_t count = in_every_order(true, [](Story& story) {
    const GlobalId rref = story.b.ledger.create_local();
    story.created_count = 1;
    const ForkData data = *story.b.ledger.fork_owned(rref, story.c.id);
    story.carry(data, story.c);
    story.may_happen([&story, data] { story.b.ledger.fork_uncertain(data.fork, story.b.out); });
  });
  EXPECT_GT(count, 50U);
}

TEST(InEveryOrder, AHandleOfAUserThatMayNotHaveArrivedIsEitherKeptOrTakenBack) {
  const std::size_t count = in_every_order(false, [](Story& story) {
    const auto made = *story.a.ledger.create(story.b.id);
    story.b.ledger.begin_creation(made.rref, made.fork, story.a.id);
    story.b.ledger.created(made.rref, story.b.out);
    story.finish_creation(made, std::nullopt);
    story.created_count = 1;
    const ForkData data = *story.a.ledger.fork_user(made.rref, made.fork, story.c.id);
    story.carry(data, story.c);
    story.hold(story.a, made.rref, made.fork);
    story.may_happen([&story, data] { story.a.ledger.fork_uncertain(data.fork, story.a.out); });
  });
  EXPECT_GT(count, 500U);
}

}  // namespace
}  // namespace muster::rref::testing
