#include "muster/base/fd.h"
#include "muster/net/epoll_loop.h"
#include "muster/store/file_store.h"
#include "tests/store/contract.h"
#include "tests/store/store_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace muster::store {
namespace {

using namespace std::chrono_literals;
using testing::expect_error;

// Several processes: real time, so whatever waits is bounded by what only a broken store needs.
class FileStoreAmongProcesses : public ::testing::Test, protected testing::StoreFolder {
 protected:
  std::unique_ptr<Store> open() { return open({.path = path()}); }
  std::unique_ptr<Store> open(FileStoreOptions options) {
    return testing::open_store(loop_, random_, std::move(options));
  }
  static TimePoint now() { return SystemClock().now(); }
  static TimePoint bound() { return now() + 60s; }
  template <typename T>
  Result<T> run(Task<Result<T>> task) {
    return loop_.block_on(std::move(task));
  }

  net::EpollLoop loop_;
  Random random_{1};
};

// Runs `body` in a child; its result is the exit status. The child makes a loop and a store of its
// own.
pid_t fork_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(120);  // never outlives a test that failed
    ::_exit(body());
  }
  return pid;
}

int status_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// A store in a child, and the loop it needs.
struct ChildStore {
  ChildStore(const std::string& path, std::uint64_t seed) : random(seed) {
    store = make_file_store(loop, random, {.path = path}).value();
  }
  net::EpollLoop loop;
  Random random;
  std::unique_ptr<Store> store;
};

struct Pipe {
  Pipe() {
    std::array<int, 2> numbers{};
    EXPECT_EQ(::pipe2(numbers.data(), O_CLOEXEC), 0);
    read = Fd(numbers[0]);
    write = Fd(numbers[1]);
  }
  Fd read;
  Fd write;
};

TEST_F(FileStoreAmongProcesses, LosesNoAdditionOfSeveralProcesses) {
  constexpr int kProcesses = 4;
  constexpr int kAdditions = 500;
  std::vector<pid_t> children;
  for (int child = 0; child < kProcesses; ++child) {
    children.push_back(fork_child([&] {
      ChildStore mine(path(), static_cast<std::uint64_t>(child));
      for (int count = 0; count < kAdditions; ++count) {
        if (!mine.loop.block_on(mine.store->add("counter", 1))) return 1;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(*run(open()->get("counter", bound())), std::to_string(kProcesses * kAdditions));
}

TEST_F(FileStoreAmongProcesses, GivesEachItemToOneProcess) {
  constexpr int kProcesses = 3;
  constexpr int kItems = 200;
  std::vector<pid_t> children;
  for (int child = 0; child < kProcesses; ++child) {
    children.push_back(fork_child([&] {
      ChildStore mine(path(), static_cast<std::uint64_t>(child));
      for (;;) {
        const auto item = mine.loop.block_on(mine.store->queue_pop("work", bound()));
        if (!item) return 1;
        if (*item == "stop") return 0;
        if (!mine.loop.block_on(mine.store->add("done/" + *item, 1))) return 2;
      }
    }));
  }
  const auto store = open();
  for (int item = 0; item < kItems; ++item) {
    EXPECT_TRUE(run(store->queue_push("work", std::to_string(item))));
  }
  for (int child = 0; child < kProcesses; ++child) {
    EXPECT_TRUE(run(store->queue_push("work", "stop")));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  const auto done = *run(store->list_keys("done/"));
  EXPECT_EQ(done.size(), static_cast<std::size_t>(kItems));
  for (const std::string& key : done) EXPECT_EQ(*run(store->get(key, bound())), "1");
}

// So many pages that writing them takes a while: a kill is likely to cut one in two.
std::string value_of(std::uint32_t number) {
  return std::to_string(number) + std::string(1u << 20, static_cast<char>('a' + number % 26));
}

// Writes numbered values, adds one for each to "count", and acknowledges each with its number.
int write_until_killed(const std::string& path, std::uint32_t first, std::uint32_t count,
                       int acks) {
  ChildStore mine(path, first);
  for (std::uint32_t number = first; number < first + count; ++number) {
    const std::string value = value_of(number);
    if (!mine.loop.block_on(mine.store->set(std::to_string(number), value))) return 1;
    if (!mine.loop.block_on(mine.store->add("count", 1))) return 2;
    if (::write(acks, &number, sizeof number) != sizeof number) return 3;
  }
  return 0;
}

TEST_F(FileStoreAmongProcesses, LosesNoAcknowledgedWriteWhenWritersAreKilled) {
  constexpr int kRounds = 20;
  constexpr std::uint32_t kNumbers = 8;
  Random random(7);
  for (int round = 0; round < kRounds; ++round) {
    Pipe acks;
    const auto start = [&](std::uint32_t first) {
      return fork_child(
          [&] { return write_until_killed(path(), first, kNumbers, acks.write.get()); });
    };
    const pid_t victim = start(1000);
    const pid_t survivor = start(2000);
    acks.write.reset();

    const std::uint64_t kill_after = 1 + random.below(kNumbers);
    // Not at the instant of an acknowledgement, but anywhere in what the victim does next.
    std::uint64_t spin = random.below(100'000);
    std::vector<std::uint32_t> acknowledged;
    std::uint32_t number = 0;
    while (::read(acks.read.get(), &number, sizeof number) == sizeof number) {
      acknowledged.push_back(number);
      if (acknowledged.size() != kill_after) continue;
      while (spin > 0) static_cast<void>(random.next()), --spin;
      ::kill(victim, SIGKILL);
    }
    EXPECT_EQ(status_of(survivor), 0);
    const int ended = status_of(victim);
    EXPECT_TRUE(ended == -SIGKILL || ended == 0) << ended;

    const auto store = open();
    for (const std::uint32_t each : acknowledged) {
      EXPECT_EQ(*run(store->try_get(std::to_string(each))), value_of(each)) << "round " << round;
    }
    const std::int64_t count = *run(store->add("count", 0));
    EXPECT_GE(count, static_cast<std::int64_t>(acknowledged.size()));
    EXPECT_LE(count, static_cast<std::int64_t>(acknowledged.size()) + 1);
    std::filesystem::remove(path());
  }
}

TEST_F(FileStoreAmongProcesses, GivesUpOnTheLockOfAStoppedProcess) {
  const pid_t stopped = fork_child([&] {
    const Fd held = lock_as_another(LOCK_EX);
    ::raise(SIGSTOP);
    return held.is_open() ? 0 : 1;
  });
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status));

  const auto impatient = open({.path = path(), .lock_patience = 50ms});
  const std::string text = "kept the store file " + path() + " locked for 50ms";
  expect_error(run(impatient->set("k", "v")), ErrorKind::Unavailable, text);
  expect_error(run(impatient->try_get("k")), ErrorKind::Unavailable, text);
  expect_error(run(impatient->get("k", bound())), ErrorKind::Unavailable, text);

  const auto patient = open();
  expect_error(run(patient->get("k", now() + 20ms)), ErrorKind::Timeout, path());
  expect_error(run(patient->barrier("b", 1, now() + 20ms)), ErrorKind::Timeout, path());
  { const testing::Call<void> cancelled(patient->set("never", "written")); }
  testing::Call<void> set(patient->set("k", "v"));
  EXPECT_FALSE(set.done());

  ::kill(stopped, SIGCONT);
  EXPECT_EQ(status_of(stopped), 0);
  EXPECT_TRUE(run(open()->wait({"k"}, bound())));
  EXPECT_TRUE(set.done() && set.result());
  EXPECT_EQ(*run(impatient->list_keys("")), std::vector<std::string>{"k"});
}

// Looking again by itself would come too late by far.
FileStoreOptions told_or_never(const std::string& path) {
  return {.path = path, .look_first = 24h, .look_max = 24h};
}

Task<void> keep(Task<Result<std::string>> task, Oneshot<Result<std::string>>& outcome) {
  outcome.set(co_await task);
}

// What "k" is in the end. It is awaited before `meanwhile` is called.
Task<Result<std::string>> get_meanwhile(Loop& loop, Store& store, TimePoint deadline,
                                        std::function<void()> meanwhile) {
  Oneshot<Result<std::string>> outcome(loop);
  TaskScope scope;
  scope.start(keep(store.get("k", deadline), outcome));
  EXPECT_FALSE(outcome.is_set());
  meanwhile();
  co_return co_await outcome;
}

// Writes when it is told to.
pid_t start_writer(const std::string& path, const Pipe& signal) {
  return fork_child([&path, &signal] {
    char byte = 0;
    if (::read(signal.read.get(), &byte, 1) != 1) return 1;
    ChildStore mine(path, 1);
    return mine.loop.block_on(mine.store->set("k", "v")) ? 0 : 2;
  });
}

TEST_F(FileStoreAmongProcesses, ToldByTheKernelWakesAWaiterWithoutLooking) {
  const Pipe signal;
  const pid_t writer = start_writer(path(), signal);
  const auto store = open(told_or_never(path()));
  const auto value = run(get_meanwhile(loop_, *store, bound(),
                                       [&] { EXPECT_EQ(::write(signal.write.get(), "!", 1), 1); }));
  EXPECT_EQ(status_of(writer), 0);
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(*value, "v");
}

TEST_F(FileStoreAmongProcesses, ToldByTheKernelReportsEveryChangeToAWatcher) {
  constexpr int kWrites = 200;
  const auto store = open(told_or_never(path()));
  auto watch = run(store->watch("n", Store::WatchScope::Key));
  ASSERT_TRUE(watch);
  EXPECT_EQ(run((*watch)->next(bound()))->kind, Change::Kind::Absent);
  const pid_t writer = fork_child([&] {
    ChildStore mine(path(), 1);
    for (int count = 0; count < kWrites; ++count) {
      if (!mine.loop.block_on(mine.store->add("n", 1))) return 1;
    }
    return 0;
  });
  for (int count = 1; count <= kWrites; ++count) {
    const auto change = run((*watch)->next(bound()));
    ASSERT_TRUE(change) << change.error().message;
    EXPECT_EQ(change->value, std::to_string(count));
  }
  EXPECT_EQ(status_of(writer), 0);
}

TEST_F(FileStoreAmongProcesses, ToldByTheKernelNoticesThatTheFileIsGone) {
  const auto store = open(told_or_never(path()));
  ASSERT_TRUE(run(store->set("other", "v")));
  const auto value = run(get_meanwhile(loop_, *store, bound(), [&] {
    const pid_t remover = fork_child([&] { return std::filesystem::remove(path()) ? 0 : 1; });
    EXPECT_EQ(status_of(remover), 0);
  }));
  expect_error(value, ErrorKind::Closed, path());
}

// What the file may not grow beyond stands for a full disk: the write that crosses it is cut short.
int write_past_a_limit(const std::string& path) {
  ChildStore mine(path, 1);
  if (!mine.loop.block_on(mine.store->set("before", "v"))) return 1;
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
  const auto large = mine.loop.block_on(mine.store->set("large", std::string(5000, 'v')));
  if (large || large.error().kind != ErrorKind::Unavailable) return 3;
  if (large.error().message != "cannot write the store file " + path + ": file too large") return 4;
  if (std::filesystem::file_size(path) != 16) return 5;
  if (!mine.loop.block_on(mine.store->set("small", "v"))) return 6;
  return 0;
}

TEST_F(FileStoreAmongProcesses, TakesBackAWriteThatFailedHalfWay) {
  EXPECT_EQ(status_of(fork_child([&] { return write_past_a_limit(path()); })), 0);
  const auto store = open();
  EXPECT_EQ(*run(store->list_keys("")), (std::vector<std::string>{"before", "small"}));
}

}  // namespace
}  // namespace muster::store
