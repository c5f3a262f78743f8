#include "muster/watchdog/lineage.h"

#include "muster/base/fd.h"
#include "muster/watchdog/watchdog_test.h"

#include <gtest/gtest.h>

#include <array>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::watchdog {
namespace {

TEST(Lineage, ReadsTheParentBehindAnyName) {
  EXPECT_EQ(parse_parent("12 (sh) S 7 12 12 0"), 7);
  EXPECT_EQ(parse_parent("12 (a) S 3 (b)) S 7 12"), 7);
  EXPECT_EQ(parse_parent("12 () Z 0 "), 0);
  for (const char* text : {"", "12", "12 (sh)", "12 (sh) S", "12 (sh) S x", "12 (sh) S -4 1"})
    EXPECT_EQ(parse_parent(text), std::nullopt) << text;
}

TEST(Lineage, KnowsTheParentOfAProcess) {
  Sleeper sleeper;
  EXPECT_EQ(parent_of(sleeper.pid()), ::getpid());
  const pid_t pid = sleeper.pid();
  sleeper.end();
  EXPECT_EQ(parent_of(pid), std::nullopt);
  EXPECT_EQ(parent_of(0), std::nullopt);
}

// A child that has a child of its own; both end when this end of the pipe is closed.
struct Family {
  Family() {
    std::array<int, 2> hold{};
    std::array<int, 2> tell{};
    EXPECT_EQ(::pipe2(hold.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(tell.data(), O_CLOEXEC), 0);
    child = ::fork();
    if (child == 0) {
      ::close(hold[1]);
      const pid_t second = ::fork();
      if (second > 0) [[maybe_unused]]
        const ssize_t told = ::write(tell[1], &second, sizeof second);
      char ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(hold[0], &ignored, 1);
      if (second > 0) ::waitpid(second, nullptr, 0);
      ::_exit(0);
    }
    ::close(hold[0]);
    ::close(tell[1]);
    holder = Fd(hold[1]);
    const Fd teller(tell[0]);
    EXPECT_EQ(::read(teller.get(), &grandchild, sizeof grandchild),
              static_cast<ssize_t>(sizeof grandchild));
  }
  ~Family() {
    holder.reset();
    ::waitpid(child, nullptr, 0);
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  Fd holder;
  pid_t child = 0;
  pid_t grandchild = 0;
};

TEST(Lineage, FindsTheWorkerThatAProcessDescendsFrom) {
  const Family family;
  const auto is_worker = [&](pid_t pid) { return pid == family.child; };
  EXPECT_EQ(nearest_ancestor(family.grandchild, ::getpid(), is_worker), family.child);
  EXPECT_EQ(nearest_ancestor(family.child, ::getpid(), is_worker), family.child);
  EXPECT_EQ(nearest_ancestor(::getpid(), ::getpid(), is_worker), std::nullopt);
  EXPECT_EQ(nearest_ancestor(1, ::getpid(), is_worker), std::nullopt);
  EXPECT_EQ(nearest_ancestor(-1, ::getpid(), is_worker), std::nullopt);
}

TEST(Lineage, DoesNotLookBeyondTheAgent) {
  const Family family;
  const auto accepts_all_but_workers = [&](pid_t pid) {
    EXPECT_NE(pid, ::getpid());
    EXPECT_NE(pid, ::getppid());
    return false;
  };
  EXPECT_EQ(nearest_ancestor(family.grandchild, ::getpid(), accepts_all_but_workers), std::nullopt);
}

TEST(Lineage, ReadsTheEnvironmentThatAProcessBeganWith) {
  // Its end is the exec, before which the environment is still ours.
  std::array<int, 2> exec{};
  ASSERT_EQ(::pipe2(exec.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const char* arguments[] = {"cat", nullptr};
    const char* environment[] = {"TOKENS=no", "TOKEN=a=b", "EMPTY=", "ODD", nullptr};
    // Waits for input that never comes.
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) == 0) ::dup2(ends[0], 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execve("/bin/cat", const_cast<char**>(arguments), const_cast<char**>(environment));
    ::_exit(127);
  }
  ::close(exec[1]);
  char ignored = 0;
  EXPECT_EQ(::read(exec[0], &ignored, 1), 0);
  ::close(exec[0]);
  EXPECT_EQ(environment_of(child, "TOKEN"), "a=b");
  EXPECT_EQ(environment_of(child, "EMPTY"), "");
  EXPECT_EQ(environment_of(child, "ODD"), std::nullopt);
  EXPECT_EQ(environment_of(child, "OKEN"), std::nullopt);
  EXPECT_EQ(environment_of(child, ""), std::nullopt);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(environment_of(child, "TOKEN"), std::nullopt);
}

}  // namespace
}  // namespace muster::watchdog
