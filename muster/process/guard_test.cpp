// The guard, with a real agent below it. The process that a test starts becomes the guard, and its
// child the agent, which tells its own pid through the pipe.
#include "muster/process/guard.h"

#include "muster/base/clock.h"
#include "muster/base/random.h"
#include "muster/process/cgroup.h"
#include "muster/process/host.h"
#include "muster/process/test_support.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sched.h>
#include <set>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <thread>

namespace muster::process {
namespace {

// What a guard and its agent were started as.
struct Pair {
  pid_t guard = 0;
  pid_t agent = 0;
};

// This process adopts what guards leave behind, so that it can see whether they do.
class GuardTest : public testing::Test {
 protected:
  GuardTest() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }
  ~GuardTest() override {
    expect_nobody();
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  }

  void expect_nobody() const {
    siginfo_t info{};
    const bool is_nobody = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0;
    EXPECT_TRUE(is_nobody) << "processes are left";
    if (is_nobody) return;
    for (const Member& member : descendants({})) ::kill(member.stat.pid, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }

  // The process becomes a guard after `before`, and its agent does `work`.
  Pair start(Pipe& out, const std::function<void()>& before,
             const std::function<void(Guard&)>& work) {
    Pair pair;
    pair.guard = ::fork();
    if (pair.guard == 0) {
      if (before) before();
      auto guard = Guard::start();
      if (!guard) ::_exit(1);
      ::dprintf(out.writer(), "%d\n", ::getpid());
      work(*guard);
      ::_exit(0);
    }
    out.close_writer();
    const auto line = out.line();
    EXPECT_TRUE(line);
    pair.agent = line ? std::stoi(*line) : 0;
    return pair;
  }

  // An agent with `count` workers that write into the pipe what the script says.
  Pair start_workers(Pipe& out, const std::string& script, int count,
                     const std::string& cgroup = std::string()) {
    return start(out, nullptr, [&](Guard& guard) {
      guard.watch_cgroup(cgroup);
      net::EpollLoop loop;
      Host host(loop, &guard);
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
    });
  }

  // An agent that says which signals it gets, and from whom, until SIGTERM.
  Pair start_listener(Pipe& out, const std::function<void()>& before) {
    return start(out, before, [&](Guard& guard) {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      ::dprintf(out.writer(), "listens\n");
      for (int number = 0; number != SIGTERM;) {
        siginfo_t info{};
        number = ::sigwaitinfo(&all, &info);
        if (number <= 0 || number == SIGCONT) continue;
        ::dprintf(out.writer(), "%d%s\n", number, info.si_pid == guard.pid() ? "" : " directly");
      }
    });
  }

  // How a process ended: its status, or minus its signal.
  static int end_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  // Once the guard has ended, nothing is left at once: not in a while.
  void kill_agent(const Pair& pair) {
    ::kill(pair.agent, SIGKILL);
    EXPECT_EQ(end_of(pair.guard), -SIGKILL);
    expect_nobody();
  }

  static void await_state(pid_t pid, bool stopped) {
    const SystemClock clock;
    const TimePoint deadline = clock.now() + kPatience;
    auto stat = read_stat(pid);
    while (stat && (stat->state == 'T') != stopped && clock.now() < deadline) {
      stat = read_stat(pid);
    }
    EXPECT_TRUE(stat && (stat->state == 'T') == stopped);
  }
};

const std::string kFamily =
    "trap '' TERM HUP INT; sleep 1000 & "
    "(setsid sh -c 'echo ready; sleep 1000 & exec sleep 1000' &); echo ready; exec sleep 1000";
// In a session of their own, without a token and without parents.
const std::string kHidden =
    "for i in 1 2 3; do env -i /usr/bin/setsid -f /bin/sh -c 'trap \"\" TERM; echo ready; "
    "/bin/sleep 1000 & exec /bin/sleep 1000'; done; exec sleep 1000";

std::set<std::string> descriptors_of(pid_t pid) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    found.insert(entry.path().filename());
  }
  return found;
}

std::string command_line_of(pid_t pid) {
  std::string words;
  std::getline(std::ifstream(fmt::format("/proc/{}/cmdline", pid)), words, '\0');
  return words;
}

long private_kilobytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
  long total = 0;
  for (std::string name; file >> name;) {
    long value = 0;
    if (name == "Private_Clean:" || name == "Private_Dirty:") {
      file >> value;
      total += value;
    }
  }
  return total;
}

// -- the end of the agent ----------------------------------------------------------------------

TEST_F(GuardTest, EndsWorkersAndTheirDaemonsWhenTheAgentIsKilled) {
  Pipe out;
  const Pair pair = start_workers(out, kFamily, 4);
  for (int line = 0; line < 8; ++line) EXPECT_EQ(out.line(), "ready");
  kill_agent(pair);
  EXPECT_EQ(out.rest(), "");
}

TEST_F(GuardTest, EndsDaemonsThatHideWithoutAnyCgroup) {
  Pipe out;
  const Pair pair = start_workers(out, kHidden, 2);
  for (int line = 0; line < 6; ++line) EXPECT_EQ(out.line(), "ready");
  kill_agent(pair);
  EXPECT_EQ(out.rest(), "");
}

TEST_F(GuardTest, EndsThemWhicheverMomentTheAgentIsKilledAt) {
  Random random(4);
  for (int round = 0; round < 20; ++round) {
    Pipe out;
    const Pair pair = start_workers(out, round % 2 == 0 ? kFamily : kHidden, 4);
    const std::uint64_t line_count = random.below(8);
    for (std::uint64_t line = 0; line < line_count; ++line) out.line();
    kill_agent(pair);
    out.rest();
  }
}

TEST_F(GuardTest, RemovesTheCgroupOnceThoseInItAreGone) {
  // They take a moment to end, since their memory has to be given back.
  const std::string script =
      "exec python3 -c 'import time; m = bytearray(1 << 27); print(\"ready\", flush=True); "
      "time.sleep(1000)'";
  auto cgroup = Cgroup::create(fmt::format("muster-test-busy-{}", ::getpid()));
  if (!cgroup) GTEST_SKIP() << "SKIPPED, cgroups are not tested: " << cgroup.error().message;
  Pipe out;
  const Pair pair = start_workers(out, script, 2, cgroup->folder());
  for (int line = 0; line < 2; ++line) ASSERT_TRUE(out.line());
  kill_agent(pair);
  EXPECT_FALSE(std::filesystem::exists(cgroup->folder()));
}

TEST_F(GuardTest, EndsAsTheAgentEnds) {
  for (const int status : {0, 1, 7, 255}) {
    Pipe out;
    EXPECT_EQ(end_of(start(out, nullptr, [&](Guard&) { ::_exit(status); }).guard), status);
  }
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int number : {SIGTERM, SIGKILL, SIGSEGV, SIGABRT, SIGUSR1, SIGRTMIN}) {
    Pipe out;
    const Pair pair = start(out, nullptr, [&](Guard&) {
      ::signal(number, SIG_DFL);  // a sanitizer takes some of them
      ::raise(number);
    });
    EXPECT_EQ(end_of(pair.guard), -number);
  }
}

TEST_F(GuardTest, EndsWhatIsLeftOfAnAgentThatEndsByItself) {
  Pipe out;
  const Pair pair = start(out, nullptr, [&](Guard&) {
    if (::fork() != 0) ::_exit(3);
    ::setsid();
    for (;;) ::pause();
  });
  EXPECT_EQ(end_of(pair.guard), 3);
  expect_nobody();
}

TEST_F(GuardTest, LeavesChildrenAloneThatItHadBefore) {
  Pipe out;
  const Pair pair = start_workers(out, kFamily, 1);
  ::kill(pair.agent, SIGKILL);
  end_of(pair.guard);
  Pipe second;
  pid_t stranger = 0;
  Pipe told;
  const Pair other = start(
      second,
      [&] {
        stranger = ::fork();
        if (stranger == 0) {
          for (;;) ::pause();
        }
        ::dprintf(told.writer(), "%d\n", stranger);
      },
      [](Guard&) {
        for (;;) ::pause();
      });
  stranger = std::stoi(told.line().value_or("0"));
  ::kill(other.agent, SIGKILL);
  EXPECT_EQ(end_of(other.guard), -SIGKILL);
  EXPECT_TRUE(is_alive(stranger));
  ::kill(stranger, SIGKILL);
  end_of(stranger);
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
  Pipe out;
  const Pair pair = start(out, nullptr, [&](Guard& guard) {
    guard.watch_scratch(folder + "/scratch");
    guard.watch_empty_folders(folder + "/logs");
    ::raise(SIGKILL);
  });
  EXPECT_EQ(end_of(pair.guard), -SIGKILL);
  EXPECT_FALSE(fs::exists(folder + "/scratch"));
  EXPECT_FALSE(fs::exists(folder + "/logs/attempt_0"));
  EXPECT_TRUE(fs::exists(folder + "/logs/attempt_1/0/stdout.log"));
  fs::remove_all(folder);
}

TEST_F(GuardTest, WorksWithFewDescriptors) {
  Pipe out;
  const Pair pair = start(
      out,
      [] {
        const rlimit few{32, 32};
        ::setrlimit(RLIMIT_NOFILE, &few);
      },
      [](Guard&) {
        for (;;) ::pause();
      });
  kill_agent(pair);
}

// -- the end of the guard ----------------------------------------------------------------------

TEST_F(GuardTest, TheAgentSeesThatItsGuardWasKilled) {
  Pipe out;
  const Pair pair = start(out, nullptr, [&](Guard& guard) {
    pollfd ended{guard.pidfd(), POLLIN, 0};
    const int early = ::poll(&ended, 1, 0);
    ::dprintf(out.writer(), "%d\n", early);
    const int count = ::poll(&ended, 1, kPatienceMilliseconds);
    ::dprintf(out.writer(), "%d\n", count);
  });
  EXPECT_EQ(out.line(), "0");
  ::kill(pair.guard, SIGKILL);
  EXPECT_EQ(out.line(), "1");
  EXPECT_EQ(end_of(pair.guard), -SIGKILL);
  EXPECT_EQ(end_of(pair.agent), 0);  // ours now
}

// -- two processes that look like one ----------------------------------------------------------

TEST_F(GuardTest, HoldsNothingOfItsOwnAndIsToldApartFromTheAgent) {
  Pipe out;
  const std::string name = command_line_of(::getpid());
  const Pair pair = start_listener(out, nullptr);
  EXPECT_EQ(out.line(), "listens");
  const auto guard = read_stat(pair.guard);
  const auto agent = read_stat(pair.agent);
  ASSERT_TRUE(guard && agent);
  EXPECT_EQ(guard->group, ::getpgrp());
  EXPECT_EQ(agent->group, pair.agent);
  EXPECT_EQ(agent->session, guard->session);
  EXPECT_EQ(agent->parent, pair.guard);
  EXPECT_EQ(agent->name, "muster-agent");
  EXPECT_NE(guard->name, agent->name);
  EXPECT_EQ(command_line_of(pair.agent), "muster-agent");
  EXPECT_EQ(command_line_of(pair.guard), name);
  // The agent has one more: that on the guard itself, which the guard closes as soon as it runs.
  const auto has_closed_it = [&] {
    return descriptors_of(pair.agent).size() == descriptors_of(pair.guard).size() + 1;
  };
  const TimePoint deadline = SystemClock().now() + std::chrono::seconds(30);
  while (!has_closed_it() && SystemClock().now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(has_closed_it());
  const long kilobytes = private_kilobytes(pair.guard);
  RecordProperty("private_kilobytes", std::to_string(kilobytes));
  if (!kSanitized) {
    EXPECT_LT(kilobytes, 1024);
  }
  kill_agent(pair);
}

TEST_F(GuardTest, PassesEverySignalOnOnce) {
  Pipe out;
  const Pair pair = start_listener(out, nullptr);
  EXPECT_EQ(out.line(), "listens");
  for (const int number : {SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGURG,
                           SIGPIPE, SIGRTMIN, SIGRTMAX, SIGTERM}) {
    ::kill(pair.guard, number);
    EXPECT_EQ(out.line(), std::to_string(number));
  }
  EXPECT_EQ(out.rest(), "");
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, PassesOnWhatArrivedBeforeThereWasAnAgent) {
  Pipe out;
  const Pair pair = start_listener(out, [] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    ::raise(SIGTERM);
  });
  EXPECT_EQ(out.line(), "listens");
  EXPECT_EQ(out.line(), std::to_string(SIGTERM));
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, PassesASignalForTheWholeGroupOnOnce) {
  Pipe out;
  const Pair pair = start_listener(out, [] { ::setpgid(0, 0); });
  EXPECT_EQ(out.line(), "listens");
  for (const int number : {SIGINT, SIGUSR1, SIGTERM}) {
    ::kill(-pair.guard, number);
    EXPECT_EQ(out.line(), std::to_string(number));
  }
  EXPECT_EQ(out.rest(), "");
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, TakesASignalForTheProcessAndForItsGroupFromOneSenderForOne) {
  Pipe out;
  const Pair pair = start_listener(out, [] {
    ::setpgid(0, 0);
    // On one processor whoever gets a signal interrupts the sender, between the two.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ::sched_setaffinity(0, sizeof one, &one);
  });
  EXPECT_EQ(out.line(), "listens");
  cpu_set_t theirs;
  ASSERT_EQ(::sched_getaffinity(pair.guard, sizeof theirs, &theirs), 0);
  for (int round = 0; round < 100; ++round) {
    const pid_t sender = ::fork();
    if (sender == 0) {
      ::sched_setaffinity(0, sizeof theirs, &theirs);
      ::kill(pair.guard, SIGUSR1);
      ::kill(-pair.guard, SIGUSR1);
      ::pause();
    }
    EXPECT_EQ(out.line(), std::to_string(SIGUSR1));
    ::kill(sender, SIGKILL);
    end_of(sender);
    // Comes after a second one, if there is one.
    ::kill(pair.guard, SIGUSR2);
    EXPECT_EQ(out.line(), std::to_string(SIGUSR2));
  }
  ::kill(pair.guard, SIGTERM);
  EXPECT_EQ(out.rest(), fmt::format("{}\n", SIGTERM));
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, StopsAndGoesOnTogetherWithTheAgent) {
  for (const int number : {SIGTSTP, SIGTTIN, SIGTTOU}) {
    Pipe out;
    const Pair pair = start_listener(out, [] { ::setpgid(0, 0); });
    EXPECT_EQ(out.line(), "listens");
    for (int round = 0; round < 3; ++round) {
      ::kill(-pair.guard, number);
      int status = 0;
      EXPECT_EQ(::waitpid(pair.guard, &status, WUNTRACED), pair.guard);
      EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == number);
      await_state(pair.agent, true);
      ::kill(-pair.guard, SIGCONT);
      await_state(pair.agent, false);
      ::kill(pair.guard, SIGUSR1);
      EXPECT_EQ(out.line(), std::to_string(SIGUSR1));
    }
    ::kill(pair.guard, SIGTERM);
    EXPECT_EQ(out.rest(), fmt::format("{}\n", SIGTERM));
    EXPECT_EQ(end_of(pair.guard), 0);
  }
}

TEST_F(GuardTest, IsNotStoppedWhereNobodyCouldLetItGoOn) {
  Pipe out;
  const Pair pair = start_listener(out, [] { ::setsid(); });
  EXPECT_EQ(out.line(), "listens");
  ::kill(pair.guard, SIGTSTP);
  ::kill(pair.guard, SIGTERM);
  EXPECT_EQ(out.line(), std::to_string(SIGTERM));
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, PassesASignalOfJobControlOnThatTheAgentWants) {
  Pipe out;
  const Pair pair = start(
      out, [] { ::setpgid(0, 0); },
      [&](Guard& guard) {
        guard.pass_on({SIGTSTP, SIGRTMAX});
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
        ::dprintf(out.writer(), "listens\n");
        int number = 0;
        ::sigwait(&all, &number);
        ::dprintf(out.writer(), "%d\n", number);
      });
  EXPECT_EQ(out.line(), "listens");
  ::kill(pair.guard, SIGTSTP);
  EXPECT_EQ(out.line(), std::to_string(SIGTSTP));
  EXPECT_EQ(end_of(pair.guard), 0);
}

TEST_F(GuardTest, AStoppedAgentWakesUpWhenItsGuardIsKilled) {
  Pipe out;
  const Pair pair = start(out, nullptr, [&](Guard& guard) {
    pollfd ended{guard.pidfd(), POLLIN, 0};
    ::dprintf(out.writer(), "waits\n");
    while (::poll(&ended, 1, kPatienceMilliseconds) < 0 && errno == EINTR) {
    }
    ::dprintf(out.writer(), "awake\n");
  });
  EXPECT_EQ(out.line(), "waits");
  ::kill(pair.agent, SIGSTOP);
  await_state(pair.agent, true);
  ::kill(pair.guard, SIGKILL);
  EXPECT_EQ(end_of(pair.guard), -SIGKILL);
  EXPECT_EQ(out.line(), "awake");
  EXPECT_EQ(end_of(pair.agent), 0);
}

}  // namespace
}  // namespace muster::process
