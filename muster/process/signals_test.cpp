#include "muster/process/signals.h"

#include "muster/process/test_support.h"

namespace muster::process {
namespace {

using Received = std::vector<std::pair<int, pid_t>>;

// Lets the loop go round once, including what its descriptors have to say.
void turn(net::EpollLoop& loop) {
  loop.post([&] { loop.stop(); });
  loop.run();
}

TEST(Signals, TellsTheSignalAndItsSender) {
  net::EpollLoop loop;
  Received received;
  const Signals signals(loop, {SIGTERM, SIGUSR1},
                        [&](int number, pid_t sender) { received.emplace_back(number, sender); });
  ::kill(::getpid(), SIGUSR1);
  EXPECT_TRUE(received.empty());
  turn(loop);
  ::kill(::getpid(), SIGTERM);
  turn(loop);
  EXPECT_EQ(received, (Received{{SIGUSR1, ::getpid()}, {SIGTERM, ::getpid()}}));
}

TEST(Signals, TellsWhatArrivedBeforeItExisted) {
  net::EpollLoop loop;
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  block_signals({SIGTERM});
  ::kill(::getpid(), SIGTERM);
  Received received;
  {
    const Signals signals(loop, {SIGTERM},
                          [&](int number, pid_t sender) { received.emplace_back(number, sender); });
    turn(loop);
  }
  EXPECT_EQ(received.size(), 1U);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Signals, DropsWhatWasNotToldAndGivesTheSignalsBack) {
  net::EpollLoop loop;
  {
    const Signals signals(loop, {SIGTERM}, [](int, pid_t) { ADD_FAILURE(); });
    ::kill(::getpid(), SIGTERM);
  }
  // Had it not been dropped, it would have ended this process.
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  EXPECT_EQ(::sigismember(&now, SIGTERM), 0);
}

TEST(Signals, TellsASignalThatIsIgnored) {
  net::EpollLoop loop;
  ::signal(SIGUSR2, SIG_IGN);
  EXPECT_TRUE(is_ignored(SIGUSR2));
  int count = 0;
  {
    const Signals signals(loop, {SIGUSR2}, [&](int, pid_t) { ++count; });
    ::kill(::getpid(), SIGUSR2);
    turn(loop);
  }
  EXPECT_EQ(count, 1);
  ::signal(SIGUSR2, SIG_DFL);
  EXPECT_FALSE(is_ignored(SIGUSR2));
}

TEST(Signals, MayBeDestroyedByItsOwnFunction) {
  net::EpollLoop loop;
  std::unique_ptr<Signals> signals;
  int count = 0;
  signals = std::make_unique<Signals>(loop, std::vector<int>{SIGUSR1, SIGUSR2}, [&](int, pid_t) {
    ++count;
    signals.reset();
  });
  ::kill(::getpid(), SIGUSR1);
  ::kill(::getpid(), SIGUSR2);
  turn(loop);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(signals, nullptr);
}

}  // namespace
}  // namespace muster::process
