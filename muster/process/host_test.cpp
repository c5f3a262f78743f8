#include "muster/process/host.h"

#include "muster/base/random.h"
#include "muster/process/test_support.h"

#include <algorithm>
#include <sys/prctl.h>

namespace muster::process {
namespace {

// Waits until the process has ended, without reaping it.
void await_zombie(pid_t pid) {
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

TEST_F(HostTest, TellsTheExitStatus) {
  for (const int status : {0, 1, 3, 127, 255}) {
    EXPECT_EQ(code_of("exit " + std::to_string(status)), status);
  }
}

TEST_F(HostTest, TellsTheSignalThatEndedAProcess) {
  for (const int number : {SIGABRT, SIGKILL, SIGSEGV, SIGTERM}) {
    EXPECT_EQ(code_of("ulimit -c 0; kill -" + std::to_string(number) + " $$"), -number);
  }
}

TEST(Exit, IsDescribedInWords) {
  EXPECT_EQ(describe(Exit{.code = 3, .when = {}}), "exited with status 3");
  EXPECT_EQ(describe(Exit{.code = -9, .when = {}}), "was ended by SIGKILL (9)");
  EXPECT_EQ(describe(Exit{.code = -11, .core_dumped = true, .when = {}}),
            "was ended by SIGSEGV (11), core dumped");
}

TEST_F(HostTest, NeverTellsAnEndInsideAnotherCall) {
  bool told = false;
  auto process = host_->start(shell("exit 0"), [&](Exit) { told = true; });
  ASSERT_TRUE(process);
  await_zombie((*process)->pid());
  (*process)->signal(SIGTERM);
  EXPECT_FALSE(told);
  EXPECT_TRUE((*process)->is_running());
  process->reset();
  EXPECT_FALSE(told);
  host_.reset();
  EXPECT_FALSE(told);
}

TEST_F(HostTest, GivesEachProcessASessionAndGroupOfItsOwn) {
  auto worker = start_talking("echo ready; while :; do sleep 1000; done");
  const auto stat = read_stat(worker->process->pid());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->group, worker->process->pid());
  EXPECT_EQ(stat->session, worker->process->pid());
  EXPECT_EQ(token_of(worker->process->pid()), worker->process->token());
  worker->process->signal(SIGKILL);
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
  EXPECT_FALSE(worker->process->signal(SIGKILL));
}

TEST_F(HostTest, SignalsTheWholeGroup) {
  auto worker = start_talking("sleep 1000 & echo ready; wait");
  worker->process->signal(SIGKILL);
  out_.rest();
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
}

TEST_F(HostTest, CountsExitsInTheOrderInWhichTheyHappened) {
  constexpr std::size_t kCount = 40;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::size_t> sequence;
  for (std::size_t index = 0; index < kCount; ++index) {
    workers.push_back(start(shell("exec sleep 1000")));
    sequence.push_back(index);
  }
  Random random(20);
  for (std::size_t index = kCount - 1; index > 0; --index) {
    std::swap(sequence[index], sequence[random.below(index + 1)]);
  }
  // The loop stands still meanwhile and finds all of them at once.
  for (const std::size_t index : sequence) {
    workers[index]->process->signal(SIGKILL);
    await_zombie(workers[index]->process->pid());
  }
  std::uint64_t order = 0;
  for (const std::size_t index : sequence) EXPECT_EQ(wait(*workers[index]).order, ++order);
}

TEST_F(HostTest, KillsAProcessWhoseHandleIsDestroyed) {
  auto worker = start_talking("sleep 1000 & echo ready; wait");
  worker->process.reset();
  out_.rest();
  EXPECT_EQ(code_of("exit 0"), 0);
  EXPECT_FALSE(worker->ended.is_set());
}

TEST_F(HostTest, LeavesNothingOfAGroupWhoseStartFailedInTheMiddle) {
  std::vector<std::unique_ptr<Process>> group;
  Command good = shell("sleep 1000 & wait");
  good.output = out_.writer();
  Command bad = good;
  bad.executable = "./no-such-program";
  for (const Command* command : {&good, &good, &good, &bad, &good}) {
    auto process = host_->start(*command, [](Exit) {});
    if (!process) break;
    group.push_back(std::move(*process));
  }
  EXPECT_EQ(group.size(), 3U);
  group.clear();
  EXPECT_EQ(out_.rest(), "");
}

TEST_F(HostTest, LetsTheProcessBeDestroyedWhenItsEndIsTold) {
  std::unique_ptr<Process> process;
  Oneshot<Result<Exit>> ended(loop_);
  auto started = host_->start(shell("exit 4"), [&](Exit exit) {
    process.reset();
    ended.set(Result<Exit>(exit));
  });
  ASSERT_TRUE(started);
  process = std::move(*started);
  const auto exit = loop_.block_on(end_of(ended));
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 4);
}

TEST_F(HostTest, SeesEndsEvenIfItsParentHadThemIgnored) {
  host_.reset();
  ::signal(SIGCHLD, SIG_IGN);
  host_ = std::make_unique<Host>(loop_);
  EXPECT_EQ(code_of("exit 6"), 6);
}

TEST_F(HostTest, KillsEverythingWhenItIsDestroyed) {
  auto first = start_talking("(setsid sh -c 'echo ready; exec sleep 1000' &); exec sleep 1000");
  auto second = start_talking("trap '' TERM INT; echo ready; exec sleep 1000");
  first->process.reset();
  second->process.reset();
  host_.reset();
  out_.rest();
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG), -1);
}

TEST_F(HostTest, LeavesNoneOfManyUnreapedWhenItIsDestroyed) {
  // Some of them end between two looks of the destructor.
  for (int round = 0; round < 20; ++round) {
    auto worker = start_talking(
        "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sleep 1000 &); done; echo ready; "
        "exec sleep 1000");
    worker->process.reset();
    host_.reset();
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG), -1) << "round " << round;
    while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) info = {};
    host_ = std::make_unique<Host>(loop_);
  }
}

TEST_F(HostTest, ReapsWhatItHasAdopted) {
  auto worker =
      start_talking("(sh -c 'exit 0' &); (sh -c 'exit 1' &); echo ready; exec sleep 1000");
  worker->process->signal(SIGKILL);
  wait(*worker);
  loop_.block_on(host_->sweep({worker->process->token()}, SweepOptions()));
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(HostTest, KnowsWhoDescendsFromItsWorkers) {
  // The daemon does not exec once it has spoken: while a process does, /proc shows no environment.
  Command command =
      shell("(setsid sh -c 'echo $$; while sleep 1000; do :; done' &); exec sleep 1000");
  command.output = out_.writer();
  auto worker = start(command);
  const auto daemon = out_.line();
  ASSERT_TRUE(daemon);
  EXPECT_TRUE(host_->owns(worker->process->pid()));
  EXPECT_TRUE(host_->owns(std::stoi(*daemon)));
  EXPECT_FALSE(host_->owns(::getpid()));
  EXPECT_FALSE(host_->owns(::getppid()));
  EXPECT_FALSE(host_->owns(0));
  EXPECT_FALSE(host_->owns(-1));
}

TEST_F(HostTest, ContainsTheTokenOfTheHostItRunsBelow) {
  ::setenv("MUSTER_WORKER_TOKEN", "outer.7", 1);
  const Host inner(loop_);
  ::unsetenv("MUSTER_WORKER_TOKEN");
  EXPECT_TRUE(is_within(inner.id(), "outer.7"));
  EXPECT_FALSE(is_within(host_->id(), "outer.7"));
}

TEST_F(HostTest, StartsFiveHundredAndTwelveWorkers) {
  constexpr std::size_t kCount = 512;
  Command command;
  command.executable = "/bin/true";
  command.arguments = {"true"};
  command.environment = own_environment();
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t index = 0; index < kCount; ++index) workers.push_back(start(command));
  std::vector<std::uint64_t> orders;
  for (auto& worker : workers) {
    const Exit exit = wait(*worker);
    EXPECT_EQ(exit.code, 0);
    orders.push_back(exit.order);
  }
  std::sort(orders.begin(), orders.end());
  EXPECT_EQ(orders.front(), 1U);
  EXPECT_EQ(orders.back(), kCount);
  EXPECT_EQ(std::adjacent_find(orders.begin(), orders.end()), orders.end());
  EXPECT_EQ(host_->running_count(), 0U);
}

}  // namespace
}  // namespace muster::process
