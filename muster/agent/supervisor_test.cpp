#include "muster/agent/supervisor.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;
using rendezvous::Status;

Status calm() {
  Status status;
  status.member = true;
  return status;
}
Status with_arrival() {
  Status status = calm();
  status.waiting = 1;
  return status;
}
Status with_departure() {
  Status status = calm();
  status.lost = true;
  return status;
}
Status closed() {
  Status status = calm();
  status.closed = true;
  return status;
}

// A supervisor of two workers, brought to where a test begins.
class SupervisorTest : public ::testing::Test {
 protected:
  void run() {
    EXPECT_EQ(describe(supervisor.begin()), "join");
    EXPECT_EQ(describe(supervisor.joined(calm())), "start");
    supervisor.started();
  }
  void confirm() {
    run();
    EXPECT_EQ(describe(ended_well()), "");
    EXPECT_EQ(describe(ended_well()), "confirm");
  }
  Actions ended_well() { return supervisor.worker_exited({0, true, 0s}); }
  Actions failed(bool restart_left, Duration delay = 0s) {
    return supervisor.worker_exited({1, restart_left, delay});
  }

  Supervisor supervisor{2};
};

TEST_F(SupervisorTest, StartsTheWorkersWhenTheRoundIsComplete) {
  run();
  EXPECT_EQ(supervisor.phase(), Phase::Running);
  EXPECT_EQ(supervisor.state(), GroupState::Healthy);
}

TEST_F(SupervisorTest, ConfirmsWhenAllWorkersEndedWellAndEndsWhenAllNodesDid) {
  confirm();
  EXPECT_EQ(supervisor.state(), GroupState::Succeeded);
  EXPECT_EQ(describe(supervisor.heard(News::Done, 0s)), "close end(succeeded)");
}

TEST_F(SupervisorTest, RestartsAfterAFailureWhileRestartsAreLeft) {
  run();
  EXPECT_EQ(describe(failed(true)), "announce(restart) stop(failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, GivesUpAfterAFailureWithoutARestartLeft) {
  run();
  EXPECT_EQ(describe(failed(false)), "announce(failed) stop(failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(failed)");
  EXPECT_EQ(supervisor.state(), GroupState::Failed);
}

TEST_F(SupervisorTest, GivesUpWhenANodeIsLostOnceTooOften) {
  run();
  EXPECT_EQ(describe(supervisor.membership(with_departure(), false)),
            "announce(failed) stop(departure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(failed)");
}

TEST_F(SupervisorTest, ReplacesAWorkerAloneAndGoesOn) {
  run();
  Supervisor::Exit exit{1, true, 100ms};
  exit.alone = true;
  exit.worker = 1;
  EXPECT_EQ(describe(supervisor.worker_exited(exit)), "replace(1, 100ms)");
  EXPECT_EQ(supervisor.phase(), Phase::Running);
  EXPECT_EQ(supervisor.state(), GroupState::Healthy);
  EXPECT_EQ(describe(ended_well()), "") << "the one that was replaced still runs";
  EXPECT_EQ(describe(ended_well()), "confirm");
}

TEST_F(SupervisorTest, EndsTheJobWhenAWorkerMayNotBeReplacedAgain) {
  run();
  Supervisor::Exit exit{1, false, 0s};
  exit.alone = true;
  EXPECT_EQ(describe(supervisor.worker_exited(exit)), "announce(failed) stop(failure, signal 15)");
}

TEST_F(SupervisorTest, DoesNotBlameAWorkerThatDiedBecauseANodeWasLost) {
  run();
  EXPECT_EQ(describe(supervisor.worker_exited({1, false, 0s, 300ms})), "stop(failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "delay(300ms)");
  EXPECT_EQ(describe(supervisor.membership(with_departure())), "join");
}

TEST_F(SupervisorTest, DoesNotBlameAWorkerIfTheLossIsKnownBeforeAllAreStopped) {
  run();
  supervisor.worker_exited({1, false, 0s, 300ms});
  EXPECT_EQ(describe(supervisor.membership(with_departure())), "");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, GivesUpWhenNobodyTurnsOutToBeLost) {
  run();
  supervisor.worker_exited({1, false, 0s, 300ms});
  supervisor.stopped();
  EXPECT_EQ(describe(supervisor.membership(with_arrival())), "");
  EXPECT_EQ(describe(supervisor.delay_over()), "announce(failed) close end(failed)");
  EXPECT_EQ(supervisor.state(), GroupState::Failed);
}

TEST_F(SupervisorTest, WaitsBeforeARestartIfToldTo) {
  run();
  failed(true, 3s);
  EXPECT_EQ(describe(supervisor.stopped()), "delay(3s)");
  EXPECT_EQ(describe(supervisor.delay_over()), "join");
}

TEST_F(SupervisorTest, DoesNotTakeWorkersThatItStopsForNewFailures) {
  run();
  failed(true);
  EXPECT_EQ(describe(failed(false)), "");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, JoinsTheNextRoundWhenANodeWaits) {
  run();
  EXPECT_EQ(describe(supervisor.membership(with_arrival())), "stop(arrival, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, JoinsTheNextRoundWhenAMemberIsGone) {
  run();
  EXPECT_EQ(describe(supervisor.membership(with_departure())), "stop(departure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, JoinsAgainWhenTheOthersTookItForDead) {
  run();
  EXPECT_EQ(describe(supervisor.membership(Status())), "stop(expulsion, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, EndsWhenTheRunIsClosed) {
  run();
  EXPECT_EQ(describe(supervisor.membership(closed())), "stop(closed, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(closed)");
}

TEST_F(SupervisorTest, TakesNoNoticeOfACalmStatus) {
  run();
  EXPECT_EQ(describe(supervisor.membership(calm())), "");
}

TEST_F(SupervisorTest, DoesNotStartIntoARoundThatIsOverAlready) {
  supervisor.begin();
  EXPECT_EQ(describe(supervisor.joined(with_departure())), "join");
  EXPECT_EQ(describe(supervisor.joined(closed())), "close end(closed)");
}

TEST_F(SupervisorTest, BeginsAgainWithTheOthersWhenOneOfThemFailed) {
  run();
  EXPECT_EQ(describe(supervisor.heard(News::Restart, 2s)), "stop(peer failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "delay(2s)");
}

TEST_F(SupervisorTest, FailsWithTheOthers) {
  run();
  EXPECT_EQ(describe(supervisor.heard(News::Failed, 0s)), "stop(peer failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(failed)");
}

TEST_F(SupervisorTest, FailsWithTheOthersEvenIfItWasStoppingToBeginAgain) {
  run();
  supervisor.membership(with_arrival());
  EXPECT_EQ(describe(supervisor.heard(News::Failed, 0s)), "");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(failed)");
}

TEST_F(SupervisorTest, FailsWithTheOthersWhileItWaitsToBeginAgain) {
  run();
  failed(true, 3s);
  supervisor.stopped();
  EXPECT_EQ(describe(supervisor.heard(News::Failed, 0s)), "close end(failed)");
}

TEST_F(SupervisorTest, BeginsAgainIfAPeerFailsWhileItWaitsForTheOthersToEnd) {
  confirm();
  EXPECT_EQ(describe(supervisor.heard(News::Restart, 0s)), "stop(peer failure, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "join");
}

TEST_F(SupervisorTest, FailsAtOnceIfAPeerFailsForGoodWhileItWaitsForTheOthersToEnd) {
  confirm();
  EXPECT_EQ(describe(supervisor.heard(News::Failed, 0s)), "close end(failed)");
}

TEST_F(SupervisorTest, BeginsAgainIfAPeerVanishesBeforeItConfirmed) {
  confirm();
  EXPECT_EQ(describe(supervisor.membership(with_departure())), "stop(departure, signal 15)");
}

TEST_F(SupervisorTest, NeverCallsItSuccessIfTheOthersDidNotConfirm) {
  confirm();
  EXPECT_EQ(describe(supervisor.confirmation_late()), "leave end(unconfirmed)");
}

TEST_F(SupervisorTest, PassesTheFirstSignalToTheWorkersAndKillsAtTheSecond) {
  run();
  EXPECT_EQ(describe(supervisor.signalled(SIGINT)), "stop(signal, signal 2)");
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "escalate");
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "escalate");
  EXPECT_EQ(describe(supervisor.stopped()), "leave end(signalled)");
  EXPECT_EQ(supervisor.signal(), SIGINT);
}

TEST_F(SupervisorTest, EndsWithoutAStoreOnceItNeedsOne) {
  Supervisor joining(1);
  joining.begin();
  EXPECT_EQ(describe(joining.store_lost()), "leave end(error)");
  run();
  EXPECT_EQ(describe(supervisor.store_lost()), "");
  EXPECT_EQ(supervisor.phase(), Phase::Running);
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "stop(signal, signal 15)");
  EXPECT_EQ(describe(supervisor.store_lost()), "");
  Supervisor confirming(1);
  confirming.begin();
  confirming.joined(calm());
  confirming.started();
  EXPECT_EQ(describe(confirming.worker_exited({0, true, 0s})), "confirm");
  EXPECT_EQ(describe(confirming.store_lost()), "leave end(unconfirmed)");
  EXPECT_EQ(describe(confirming.store_lost()), "");
}

TEST_F(SupervisorTest, TakesARepeatedHangUpForOne) {
  run();
  EXPECT_EQ(describe(supervisor.signalled(SIGHUP)), "stop(signal, signal 1)");
  EXPECT_EQ(describe(supervisor.signalled(SIGHUP)), "");
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "escalate");
  EXPECT_EQ(describe(supervisor.signalled(SIGHUP)), "");
}

TEST_F(SupervisorTest, EndsAfterAStopThatASignalCameInto) {
  run();
  failed(true);
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "");
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "escalate");
  EXPECT_EQ(describe(supervisor.stopped()), "leave end(signalled)");
}

TEST_F(SupervisorTest, StaysFailedIfASignalComesAfterTheLastFailure) {
  run();
  failed(false);
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "");
  EXPECT_EQ(describe(supervisor.stopped()), "close end(failed)");
}

TEST_F(SupervisorTest, EndsAtASignalWhereverNoWorkerRuns) {
  supervisor.begin();
  EXPECT_EQ(describe(supervisor.signalled(SIGTERM)), "leave end(signalled)");
  Supervisor confirming(1);
  confirming.begin();
  confirming.joined(calm());
  confirming.started();
  confirming.worker_exited({0, true, 0s});
  EXPECT_EQ(describe(confirming.signalled(SIGTERM)), "leave end(signalled)");
  Supervisor delaying(1);
  delaying.begin();
  delaying.joined(calm());
  delaying.started();
  delaying.worker_exited({1, true, 9s});
  delaying.stopped();
  EXPECT_EQ(describe(delaying.signalled(SIGTERM)), "leave end(signalled)");
}

TEST_F(SupervisorTest, TellsTheOthersThatItsWorkersCannotBeStarted) {
  supervisor.begin();
  supervisor.joined(calm());
  EXPECT_EQ(describe(supervisor.start_failed()), "announce(failed) close end(failed)");
}

TEST_F(SupervisorTest, EndsWithSuccessAsASpareThatWasNotNeeded) {
  supervisor.begin();
  EXPECT_EQ(describe(supervisor.join_failed(ErrorKind::Finished)), "end(released)");
}

TEST_F(SupervisorTest, EndsIfItCannotJoin) {
  supervisor.begin();
  EXPECT_EQ(describe(supervisor.join_failed(ErrorKind::Timeout)), "leave end(error)");
  Supervisor late(1);
  late.begin();
  EXPECT_EQ(describe(late.join_failed(ErrorKind::Closed)), "close end(closed)");
}

TEST_F(SupervisorTest, StopsTheWorkersBeforeItEndsWithAnErrorOfItsOwn) {
  run();
  EXPECT_EQ(describe(supervisor.broke()), "stop(closed, signal 15)");
  EXPECT_EQ(describe(supervisor.stopped()), "leave end(error)");
}

// Whatever happens in whatever order: no start while workers run, no end before they are stopped,
// nothing at all after the end.
TEST(Supervisor, NeverLeavesWorkersBehindWhateverHappens) {
  std::uint64_t seed = 1;
  const auto draw = [&seed](std::uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33U) % below;
  };
  for (int day = 0; day < 20000; ++day) {
    Supervisor supervisor(2);
    int running = 0;
    bool stopping = false;
    bool signalled = false;
    bool done = false;
    const auto carry_out = [&](const Actions& actions) {
      for (const Action& one : actions) {
        ASSERT_FALSE(done) << describe(actions);
        switch (one.kind) {
          case Action::Kind::Start:
            ASSERT_EQ(running, 0);
            ASSERT_FALSE(signalled);
            running = 2;
            supervisor.started();
            break;
          case Action::Kind::Join:
            ASSERT_EQ(running, 0);
            ASSERT_FALSE(signalled);
            break;
          case Action::Kind::Stop:
            stopping = true;
            break;
          case Action::Kind::End:
            ASSERT_EQ(running, 0);
            done = true;
            break;
          default:
            break;
        }
      }
    };
    carry_out(supervisor.begin());
    for (int step = 0; step < 40 && !done; ++step) {
      switch (draw(10)) {
        case 0:
          carry_out(supervisor.joined(draw(4) == 0 ? with_arrival() : calm()));
          break;
        case 1:
        case 2:
          if (running == 0) break;
          --running;
          carry_out(supervisor.worker_exited({static_cast<int>(draw(2)), draw(2) == 0,
                                              std::chrono::seconds(draw(2)),
                                              std::chrono::seconds(draw(2))}));
          break;
        case 3:
          if (!stopping) break;
          stopping = false;
          running = 0;
          carry_out(supervisor.stopped());
          break;
        case 4:
          carry_out(supervisor.membership(draw(2) == 0 ? with_departure() : closed()));
          break;
        case 5:
          carry_out(supervisor.heard(static_cast<News>(draw(3)), 0s));
          break;
        case 6:
          if (draw(5) != 0) break;
          signalled = true;
          carry_out(supervisor.signalled(SIGTERM));
          break;
        case 7:
          carry_out(supervisor.delay_over());
          break;
        case 8:
          if (draw(5) == 0) carry_out(supervisor.broke());
          break;
        default:
          if (draw(5) == 0) carry_out(supervisor.confirmation_late());
          break;
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace muster::agent
