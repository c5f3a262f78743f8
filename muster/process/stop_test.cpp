// Stopping and sweeping with real processes: whatever a worker does, nothing of it is left.
#include "muster/process/host.h"
#include "muster/process/test_support.h"

#include <cstring>
#include <sys/ptrace.h>

namespace muster::process {
namespace {

// A daemon: in a session of its own, and nobody's child any more.
const std::string kDaemon = "(setsid sh -c 'echo ready; exec sleep 1000' &); ";
// Likewise, with nothing in its environment.
const std::string kHiddenDaemon =
    "(setsid env -i /bin/sh -c 'echo ready; exec /bin/sleep 1000' &); ";
// Waits until it is asked to end, and then says so. The trap comes after the fork, or a child that
// has not yet become `sleep` would swallow the signal.
const std::string kAnswers =
    "sleep 1000 & trap 'echo heard; exit 7' TERM; echo ready; wait $!; wait $!";

// A daemon that does nothing but exec; while it does, it shows no environment, and so no token.
const std::string kExecsForEver =
    "export AGAIN='exec sh -c \"$AGAIN\"'; "
    "(setsid sh -c 'echo ready; echo $$; exec sh -c \"$AGAIN\"' &); ";

StopOptions patient() { return {.signal = SIGTERM, .grace = 600s, .linger = 0s, .kill_wait = 60s}; }
StopOptions impatient() {
  return {.signal = SIGTERM, .grace = 50ms, .linger = 0s, .kill_wait = 60s};
}

class StopTest : public HostTest {
 protected:
  // Nobody is left: not as a child, not as a holder of the pipe.
  void expect_nothing_left() {
    out_.rest();
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT), -1);
    EXPECT_EQ(errno, ECHILD);
  }
  Task<std::vector<Stuck>> stop_and_escalate(std::vector<Process*> processes) {
    Timer timer(loop_, [this] { host_->escalate(); });
    timer.set(loop_.now() + 1ms);
    const StopOptions options = patient();
    auto stuck = co_await host_->stop(std::move(processes), options);
    co_return stuck;
  }
};

TEST_F(StopTest, EndsAnObedientWorkerWithItsOwnStatus) {
  auto worker = start_talking(kAnswers);
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  EXPECT_EQ(wait(*worker).code, 7);
  EXPECT_EQ(out_.rest(), "heard\n");
  expect_nothing_left();
}

TEST_F(StopTest, SendsTheSignalItWasGiven) {
  auto worker = start_talking("echo ready; exec sleep 1000");
  StopOptions options = patient();
  options.signal = SIGINT;
  EXPECT_TRUE(stop({worker.get()}, options).empty());
  EXPECT_EQ(wait(*worker).code, -SIGINT);
}

TEST_F(StopTest, KillsADeafWorkerWhenTheGraceIsOver) {
  auto worker = start_talking("trap '' TERM; echo ready; exec sleep 1000");
  EXPECT_TRUE(stop({worker.get()}, impatient()).empty());
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
  expect_nothing_left();
}

TEST_F(StopTest, LetsAStoppedWorkerHearTheSignal) {
  auto worker = start_talking(kAnswers);
  worker->process->signal(SIGSTOP);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(worker->process->pid()), &info, WSTOPPED), 0);
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  EXPECT_EQ(wait(*worker).code, 7);
  expect_nothing_left();
}

TEST_F(StopTest, GivesTheGraceToTheWholeGroupAndNotOnlyToItsLeader) {
  // The shell ends at once; the program behind it has something to save.
  auto worker = start_talking(
      "(sleep 1000 & trap 'echo saving; echo saved; exit 0' TERM; echo ready; wait $!; wait $!) & "
      "wait");
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  EXPECT_EQ(wait(*worker).code, -SIGTERM);
  EXPECT_EQ(out_.rest(), "saving\nsaved\n");
}

TEST_F(StopTest, EndsDaemonsOfAWorker) {
  auto worker = start_talking(kDaemon + "exec sleep 1000");
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, EndsDaemonsThatHideTheirOrigin) {
  auto worker = start_talking(kHiddenDaemon + "exec sleep 1000");
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, EndsWhatAnEndedWorkerLeftInItsGroup) {
  auto worker = start_talking("sleep 1000 & sleep 1000 & echo ready; exit 0");
  EXPECT_EQ(wait(*worker).code, 0);
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, EndsDeafRemainsOfAnEndedWorker) {
  auto worker = start_talking("trap '' TERM; sleep 1000 & echo ready; exit 0");
  EXPECT_EQ(wait(*worker).code, 0);
  EXPECT_TRUE(stop({worker.get()}, impatient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, GivesDaemonsTimeToTidyUp) {
  // The daemon notices the end of its worker by the end of a pipe, as torch_shm_manager does.
  auto worker = start_talking(
      "{ echo ready; exec sleep 1000; } | setsid sh -c 'read line; echo \"$line\"; "
      "read line; echo tidied up'");
  StopOptions options = patient();
  options.linger = 60s;
  EXPECT_TRUE(stop({worker.get()}, options).empty());
  EXPECT_EQ(out_.rest(), "tidied up\n");
}

TEST_F(StopTest, LeavesTheDaemonsOfOtherWorkersAlone) {
  Pipe other_out;
  Command other = shell("(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000");
  other.output = other_out.writer();
  auto living = start(other);
  const auto daemon = other_out.line();
  ASSERT_TRUE(daemon);
  auto worker = start_talking(kDaemon + "exec sleep 1000");
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  out_.rest();
  EXPECT_TRUE(is_alive(std::stoi(*daemon)));
  EXPECT_TRUE(living->process->is_running());
  EXPECT_TRUE(stop({living.get()}, patient()).empty());
  other_out.rest();
}

TEST_F(StopTest, SharesOneGraceAmongManyDeafWorkers) {
  constexpr std::size_t kCount = 64;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Worker*> pointers;
  for (std::size_t index = 0; index < kCount; ++index) {
    workers.push_back(start_talking("trap '' TERM; echo ready; exec sleep 1000"));
    pointers.push_back(workers.back().get());
  }
  EXPECT_TRUE(stop(pointers, impatient()).empty());
  for (auto& worker : workers) EXPECT_EQ(wait(*worker).code, -SIGKILL);
  expect_nothing_left();
}

TEST_F(StopTest, KillsAtOnceWhenItIsEscalated) {
  auto worker = start_talking("trap '' TERM; echo ready; exec sleep 1000");
  EXPECT_TRUE(loop_.block_on(stop_and_escalate({worker->process.get()})).empty());
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
  expect_nothing_left();
}

TEST_F(StopTest, LetsProcessesBeDestroyedMeanwhile) {
  auto worker = start_talking("trap '' TERM; echo ready; exec sleep 1000");
  std::unique_ptr<Process> process = std::move(worker->process);
  Timer timer(loop_, [&] { process.reset(); });
  timer.set(loop_.now());
  std::vector<Process*> processes{process.get()};
  EXPECT_TRUE(loop_.block_on(host_->stop(std::move(processes), patient())).empty());
  expect_nothing_left();
}

TEST_F(StopTest, IsDoneAtOnceWithNobody) { EXPECT_TRUE(stop({}, patient()).empty()); }

TEST_F(StopTest, ReportsAProcessThatCannotBeKilledAndGoesOn) {
  auto worker = start_talking("echo ready; exec sleep 1000");
  const pid_t pid = worker->process->pid();
  // A tracer holds it on its way out: SIGKILL does not get it past that point.
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT) != 0) {
    GTEST_SKIP() << "SKIPPED: cannot trace processes here: " << ::strerror(errno);
  }
  const StopOptions options{.signal = SIGTERM, .grace = 0s, .linger = 0s, .kill_wait = 200ms};
  const std::vector<Stuck> stuck = stop({worker.get()}, options);
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].pid, pid);
  EXPECT_FALSE(stuck[0].name.empty());
  EXPECT_NE(describe(stuck[0]).find("does not end after SIGKILL: state "), std::string::npos);
  EXPECT_TRUE(worker->process->is_running());
  EXPECT_EQ(::ptrace(PTRACE_CONT, pid, nullptr, nullptr), 0);
  EXPECT_LT(wait(*worker).code, 0);
}

TEST_F(StopTest, SweepsAfterAWorkerThatHasEnded) {
  auto worker = start_talking(kDaemon + "sleep 1000 & read line </dev/null; exit 0");
  EXPECT_EQ(wait(*worker).code, 0);
  EXPECT_TRUE(loop_.block_on(host_->sweep({worker->process->token()}, SweepOptions())).empty());
  expect_nothing_left();
}

TEST_F(StopTest, SweepsOnlyWhatBelongsToTheTokensItWasGiven) {
  Pipe other_out;
  Command other = shell("(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000");
  other.output = other_out.writer();
  auto living = start(other);
  const auto daemon = other_out.line();
  ASSERT_TRUE(daemon);
  auto worker = start_talking(kDaemon + "sleep 1000 & exit 0");
  wait(*worker);
  // Naming the living one changes nothing.
  std::vector<std::string> tokens{worker->process->token(), living->process->token()};
  EXPECT_TRUE(loop_.block_on(host_->sweep(std::move(tokens), SweepOptions())).empty());
  out_.rest();
  EXPECT_TRUE(is_alive(std::stoi(*daemon)));
  EXPECT_TRUE(is_alive(living->process->pid()));
}

TEST_F(StopTest, SweepsTheWorkersOfAHostWithinAWorker) {
  // What a `muster run` inside a worker would have started, had it been killed.
  auto worker = start_talking(
      "(MUSTER_WORKER_TOKEN=$MUSTER_WORKER_TOKEN/inner.1 "
      "setsid sh -c 'echo ready; exec sleep 1000' &); exit 0");
  auto living = start(shell("exec sleep 1000"));
  wait(*worker);
  EXPECT_TRUE(loop_.block_on(host_->sweep({worker->process->token()}, SweepOptions())).empty());
  out_.rest();
  EXPECT_TRUE(living->process->is_running());
}

TEST_F(StopTest, FindsADaemonInTheMiddleOfAnExec) {
  constexpr int kRounds = 60;
  auto living = start(shell("exec sleep 1000"));
  for (int round = 0; round < kRounds; ++round) {
    auto worker = start_talking(kExecsForEver + "exit 0");
    const auto daemon = out_.line();
    ASSERT_TRUE(daemon);
    wait(*worker);
    EXPECT_TRUE(loop_.block_on(host_->sweep({worker->process->token()}, SweepOptions())).empty());
    ASSERT_FALSE(is_alive(std::stoi(*daemon))) << "round " << round;
  }
  EXPECT_TRUE(living->process->is_running());
}

TEST_F(StopTest, LeavesADaemonInTheMiddleOfAnExecToItsWorker) {
  constexpr int kRounds = 40;
  auto living = start_talking(kExecsForEver + "exec sleep 1000");
  const auto daemon = out_.line();
  ASSERT_TRUE(daemon);
  for (int round = 0; round < kRounds; ++round) {
    auto worker = start(shell("exec sleep 1000"));
    EXPECT_TRUE(stop({worker.get()}, patient()).empty());
    ASSERT_TRUE(is_alive(std::stoi(*daemon))) << "round " << round;
  }
  EXPECT_TRUE(stop({living.get()}, patient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, TakesADaemonWithoutAnyEnvironmentForNobodys) {
  auto living = start_talking("(setsid env -i /bin/sleep 1000 &); echo ready; exec sleep 1000");
  auto worker = start(shell("exec sleep 1000"));
  EXPECT_TRUE(stop({worker.get()}, patient()).empty());
  EXPECT_TRUE(living->process->is_running());
  EXPECT_TRUE(stop({living.get()}, patient()).empty());
  expect_nothing_left();
}

TEST_F(StopTest, AsksNobodyWhomItGivesNoTime) {
  const StopOptions options{.signal = SIGTERM, .grace = 0s, .linger = 0s, .kill_wait = 60s};
  constexpr std::size_t kCount = 16;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Worker*> pointers;
  for (std::size_t index = 0; index < kCount; ++index) {
    workers.push_back(start_talking("trap 'echo asked' TERM; echo ready; while :; do :; done"));
    pointers.push_back(workers.back().get());
  }
  EXPECT_TRUE(stop(pointers, options).empty());
  EXPECT_EQ(out_.rest(), "");
}

TEST_F(StopTest, CatchesUpWithAForkingDaemon) {
  auto worker = start_talking(
      "echo ready; (setsid sh -c 'while :; do sleep 1000 & (setsid sleep 1000 &); "
      "read line </dev/null; done' &); read line </dev/null; exit 0");
  wait(*worker);
  EXPECT_TRUE(loop_.block_on(host_->sweep({worker->process->token()}, SweepOptions())).empty());
  expect_nothing_left();
}

}  // namespace
}  // namespace muster::process
