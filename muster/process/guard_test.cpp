// The guard, with a real agent that is killed.
#include "muster/process/guard.h"

#include "muster/base/random.h"
#include "muster/process/cgroup.h"
#include "muster/process/host.h"
#include "muster/process/test_support.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sys/prctl.h>
#include <sys/resource.h>

namespace muster::process {
namespace {

// This process adopts what the agents of the tests leave behind, so that it can see all of it end.
class GuardTest : public testing::Test {
 protected:
  GuardTest() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    ::sigemptyset(&child_signal_);
    ::sigaddset(&child_signal_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child_signal_, nullptr);
  }
  ~GuardTest() override {
    expect_no_children();
    ::pthread_sigmask(SIG_UNBLOCK, &child_signal_, nullptr);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  }

  // Waits until every child has ended.
  void expect_no_children() const {
    const SystemClock clock;
    const TimePoint deadline = clock.now() + kPatience;
    while (clock.now() < deadline) {
      int status = 0;
      const pid_t reaped = ::waitpid(-1, &status, WNOHANG);
      if (reaped > 0) continue;
      if (reaped < 0 && errno == ECHILD) return;
      const timespec pause{0, 100'000'000};
      ::sigtimedwait(&child_signal_, nullptr, &pause);
    }
    ADD_FAILURE() << "children are left";
  }

  // An agent with a guard and `count` workers that write into the pipe: first "guard PID", then
  // what the script says. Returns its pid.
  pid_t start_agent(Pipe& out, const std::string& script, int count, const std::string& cgroup) {
    const pid_t agent = ::fork();
    if (agent != 0) {
      out.close_writer();
      return agent;
    }
    auto guard = Guard::start();
    if (!guard) ::_exit(1);
    guard->watch_cgroup(cgroup);
    net::EpollLoop loop;
    Host host(loop, &*guard);
    ::dprintf(out.writer(), "guard %d\n", guard->pid());
    std::vector<std::unique_ptr<Process>> workers;
    for (int index = 0; index < count; ++index) {
      Command command = shell(script);
      command.output = out.writer();
      command.cgroup = cgroup;
      auto process = host.start(command, [](Exit) {});
      if (!process) ::_exit(2);
      workers.push_back(std::move(*process));
    }
    loop.run();
    ::_exit(3);
  }
  pid_t start_agent(Pipe& out, const std::string& script, int count) {
    return start_agent(out, script, count, "");
  }

  sigset_t child_signal_;
};

const std::string kFamily =
    "trap '' TERM HUP INT; sleep 1000 & "
    "(setsid sh -c 'echo ready; sleep 1000 & exec sleep 1000' &); echo ready; exec sleep 1000";

std::string private_kilobytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
  long total = 0;
  for (std::string name; file >> name;) {
    long value = 0;
    if (name == "Private_Clean:" || name == "Private_Dirty:") {
      file >> value;
      total += value;
    }
  }
  return std::to_string(total);
}

TEST_F(GuardTest, EndsWorkersAndTheirDaemonsWhenTheAgentIsKilled) {
  Pipe out;
  const pid_t agent = start_agent(out, kFamily, 4);
  ASSERT_TRUE(out.line()->starts_with("guard "));
  for (int line = 0; line < 8; ++line) EXPECT_EQ(out.line(), "ready");
  ::kill(agent, SIGKILL);
  EXPECT_EQ(out.rest(), "");
  expect_no_children();
}

TEST_F(GuardTest, EndsThemWhicheverMomentTheAgentIsKilledAt) {
  Random random(4);
  for (int round = 0; round < 20; ++round) {
    Pipe out;
    const pid_t agent = start_agent(out, kFamily, 6);
    const std::uint64_t line_count = random.below(12);
    for (std::uint64_t line = 0; line < line_count; ++line) out.line();
    ::kill(agent, SIGKILL);
    out.rest();
    expect_no_children();
  }
}

TEST_F(GuardTest, EndsGroupsAndTheCgroupEvenOfThoseWhoHideTheirOrigin) {
  auto cgroup = Cgroup::create(fmt::format("muster-test-guard-{}", ::getpid()));
  if (!cgroup) GTEST_SKIP() << "SKIPPED, cgroups are not tested: " << cgroup.error().message;
  Pipe out;
  const pid_t agent = start_agent(
      out, "(setsid env -i /bin/sh -c 'echo ready; exec /bin/sleep 1000' &); exec sleep 1000", 2,
      cgroup->folder());
  out.line();
  EXPECT_EQ(out.line(), "ready");
  EXPECT_EQ(out.line(), "ready");
  ::kill(agent, SIGKILL);
  EXPECT_EQ(out.rest(), "");
  expect_no_children();
}

TEST_F(GuardTest, RemovesTheCgroupOnceThoseInItAreGone) {
  // They take a moment to end, since their memory has to be given back.
  const std::string script =
      "exec python3 -c 'import time; m = bytearray(1 << 27); print(\"ready\", flush=True); "
      "time.sleep(1000)'";
  auto cgroup = Cgroup::create(fmt::format("muster-test-busy-{}", ::getpid()));
  if (!cgroup) GTEST_SKIP() << "SKIPPED, cgroups are not tested: " << cgroup.error().message;
  Pipe out;
  const pid_t agent = start_agent(out, script, 2, cgroup->folder());
  for (int line = 0; line < 3; ++line) ASSERT_TRUE(out.line());
  ::kill(agent, SIGKILL);
  out.rest();
  expect_no_children();
  EXPECT_FALSE(std::filesystem::exists(cgroup->folder()));
}

TEST_F(GuardTest, SurvivesEverySignalThatCanBeBlocked) {
  Pipe out;
  const pid_t agent = start_agent(out, kFamily, 1);
  const auto line = out.line();
  ASSERT_TRUE(line && line->starts_with("guard "));
  const pid_t guard = std::stoi(line->substr(6));
  EXPECT_EQ(out.line(), "ready");
  EXPECT_EQ(out.line(), "ready");
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGALRM}) {
    ::kill(guard, number);
  }
  ::kill(agent, SIGKILL);
  EXPECT_EQ(out.rest(), "");
}

TEST_F(GuardTest, IsSmallAndSeparateAndHasItsOwnName) {
  auto guard = Guard::start();
  ASSERT_TRUE(guard);
  const pid_t pid = guard->pid();
  // It is where it waits when it sleeps in its read.
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kPatience;
  auto stat = read_stat(pid);
  while (stat && (stat->name != "muster-guard" || stat->state != 'S') && clock.now() < deadline) {
    stat = read_stat(pid);
  }
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "muster-guard");
  EXPECT_EQ(stat->session, pid);
  std::string command_line;
  std::getline(std::ifstream(fmt::format("/proc/{}/cmdline", pid)), command_line, '\0');
  EXPECT_EQ(command_line, "muster-guard");
  std::size_t descriptor_count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    static_cast<void>(entry);
    ++descriptor_count;
  }
  EXPECT_EQ(descriptor_count, 4U);
  const std::string kilobytes = private_kilobytes(pid);
  RecordProperty("private_kilobytes", kilobytes);
  if (!kSanitized) {
    EXPECT_LT(std::stol(kilobytes), 1024);
  }
}

TEST_F(GuardTest, KillsNobodyWhenItIsDismissed) {
  auto guard = Guard::start();
  ASSERT_TRUE(guard);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::pause();
    ::_exit(0);
  }
  ::setpgid(child, child);
  guard->adopt(child);
  guard->dismiss();
  guard->dismiss();
  EXPECT_TRUE(is_alive(child));
  EXPECT_FALSE(is_alive(guard->pid()));
  ::kill(child, SIGKILL);
  expect_no_children();
}

TEST_F(GuardTest, KillsTheGroupsItWasTold) {
  std::vector<pid_t> children;
  for (int index = 0; index < 2; ++index) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);
      ::pause();
      ::_exit(0);
    }
    ::setpgid(child, child);
    children.push_back(child);
  }
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto guard = Guard::start();
    if (!guard) ::_exit(1);
    guard->adopt(children[0]);
    guard->adopt(children[1]);
    guard->forget(children[1]);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(children[0], &status, 0), children[0]);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(is_alive(children[1]));
  ::kill(children[1], SIGKILL);
}

TEST_F(GuardTest, RemovesWhatTheAgentWouldHaveRemoved) {
  std::string folder = testing::TempDir() + "guard-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  namespace fs = std::filesystem;
  fs::create_directories(folder + "/scratch");
  std::ofstream(folder + "/scratch/agent") << "a socket";
  fs::create_directories(folder + "/logs/attempt_0/0");
  fs::create_directories(folder + "/logs/attempt_1/0");
  std::ofstream(folder + "/logs/attempt_1/0/stdout.log") << "said";
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto guard = Guard::start();
    if (!guard) ::_exit(1);
    guard->watch_scratch(folder + "/scratch");
    guard->watch_empty_folders(folder + "/logs");
    ::kill(::getpid(), SIGKILL);
  }
  expect_no_children();
  EXPECT_FALSE(fs::exists(folder + "/scratch"));
  EXPECT_FALSE(fs::exists(folder + "/logs/attempt_0"));
  EXPECT_TRUE(fs::exists(folder + "/logs/attempt_1/0/stdout.log"));
  fs::remove_all(folder);
}

TEST_F(GuardTest, WorksWithFewDescriptors) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::pause();
    ::_exit(0);
  }
  ::setpgid(child, child);
  const pid_t agent = ::fork();
  if (agent == 0) {
    const rlimit few{32, 32};
    ::setrlimit(RLIMIT_NOFILE, &few);
    auto guard = Guard::start();
    if (!guard) ::_exit(1);
    guard->adopt(child);
    guard->dismiss();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(agent, &status, 0), agent);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_alive(child));
  ::kill(child, SIGKILL);
}

TEST_F(GuardTest, IsDismissedEvenIfSomebodyHasStoppedOrKilledIt) {
  auto stopped = Guard::start();
  ASSERT_TRUE(stopped);
  ::kill(stopped->pid(), SIGSTOP);
  stopped->dismiss();
  auto killed = Guard::start();
  ASSERT_TRUE(killed);
  ::kill(killed->pid(), SIGKILL);
  killed->dismiss();
}

TEST_F(GuardTest, TakesNoMoreGroupsThanItHasRoomFor) {
  auto guard = Guard::start();
  ASSERT_TRUE(guard);
  for (std::size_t index = 0; index <= kGuardGroupCountMax; ++index) guard->adopt(0x3fffffff);
  guard->forget(0x3fffffff);
}

}  // namespace
}  // namespace muster::process
