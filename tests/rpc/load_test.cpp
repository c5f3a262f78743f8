// 64 workers in one process, many threads that call, connections that are cut and workers that
// stop: every call ends exactly once, with the right value or an error that says why there is none.
#include "muster/base/random.h"
#include "tests/rpc/cluster.h"
#include "tests/seeds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dirent.h>
#include <functional>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::StoreHost;
using testing::Worker;

constexpr int kCallsPerThread = tests::kIsSlow ? 250 : 4000;
constexpr int kWorkers = 64;
constexpr int kCallingThreads = 8;
constexpr std::size_t kUnderWayMax = 16;  // of one thread
constexpr Duration kPatience = 60s;       // nothing takes nearly as long unless it hangs

using Bytes = std::vector<std::byte>;
using Echo = Bytes(Bytes);
using Add = std::int64_t(std::int64_t, std::int64_t);
using Forward = std::int64_t(std::string, std::int64_t);

std::string name_of(std::size_t rank) { return "worker" + std::to_string(rank); }

Bytes random_bytes(Random& random) {
  // Mostly small, some as large as what is read straight into its place, a few larger than a ring.
  const std::uint64_t kind = random.below(100);
  const std::size_t most = kind < 80 ? 200 : kind < 98 ? 100'000 : 3'000'000;
  Bytes bytes(random.below(most));
  const std::uint64_t first = random.next();
  for (std::size_t index = 0; index < bytes.size(); ++index) {
    bytes[index] = static_cast<std::byte>(first + index * 7);
  }
  return bytes;
}

// The workers, any of which may be stopped and started again while others use it.
class Cluster {
 public:
  Cluster() : slots_(kWorkers) {
    std::vector<std::thread> starting;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      starting.emplace_back([this, rank] { start(rank); });
    }
    for (std::thread& one : starting) one.join();
  }

  std::shared_ptr<Worker> at(std::size_t rank) const {
    const std::lock_guard lock(mutex_);
    return slots_[rank];
  }
  void restart(std::size_t rank) {
    const std::lock_guard lock(restarting_);
    at(rank)->stop();
    start(rank);
    ++restart_count;
  }
  // Ends a connection between two workers, from outside, as if the network had broken.
  void cut_one(Random& random) {
    std::vector<int> descriptors;
    DIR* const folder = ::opendir("/proc/self/fd");
    ASSERT_NE(folder, nullptr);
    while (const dirent* const entry = ::readdir(folder)) {
      if (entry->d_name[0] != '.') descriptors.push_back(std::atoi(entry->d_name));
    }
    ::closedir(folder);
    constexpr int kTries = 20;
    for (int tries = 0; tries < kTries; ++tries) {
      if (!cut(descriptors[random.below(descriptors.size())])) continue;
      ++cut_count;
      return;
    }
  }

  std::atomic<int> cut_count = 0;
  std::atomic<int> restart_count = 0;

 private:
  // If that is what the descriptor is. Not the way to the store, which has other tests.
  bool cut(int fd) const {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens != 0) {
      return false;
    }
    sockaddr_storage near{};
    sockaddr_storage far{};
    socklen_t near_size = sizeof near;
    socklen_t far_size = sizeof far;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&near), &near_size) != 0 ||
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&far), &far_size) != 0) {
      return false;
    }
    if (is_store(near) || is_store(far)) return false;
    return ::shutdown(fd, SHUT_RDWR) == 0;
  }
  void start(std::size_t rank) {
    auto worker = std::make_shared<Worker>();
    Worker* const raw = worker.get();
    EXPECT_TRUE(raw->functions.add("echo", [](Bytes bytes) { return bytes; }));
    EXPECT_TRUE(raw->functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; },
                                   {.run = Run::Inline}));
    EXPECT_TRUE(raw->functions.add("forward", [raw](std::string to, std::int64_t number) {
      return raw->async<Add>(to, std::nullopt, "add", number, 1);
    }));
    EXPECT_TRUE(raw->functions.add("throw", [](std::int64_t a, std::int64_t) -> std::int64_t {
      throw std::runtime_error(std::to_string(a));
    }));
    AgentOptions options =
        testing::options_for(name_of(rank), static_cast<std::int64_t>(rank), kWorkers);
    options.uses_shared_memory = rank % 2 == 0;
    options.spins = rank % 4 < 2;
    options.callback_thread_count = 2;
    options.timeout = Duration::zero();  // whatever is not ended by somebody hangs
    const Result<> started = worker->start(std::move(options), store_, kPatience, 2);
    EXPECT_TRUE(started) << (started ? "" : started.error().message);
    const std::lock_guard lock(mutex_);
    slots_[rank] = std::move(worker);
  }
  bool is_store(const sockaddr_storage& address) const {
    if (address.ss_family != AF_INET) return false;
    const auto* const internet = reinterpret_cast<const sockaddr_in*>(&address);
    return ntohs(internet->sin_port) == store_.port();
  }

  StoreHost store_;
  std::mutex restarting_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Worker>> slots_;  // guarded by it
};

// What all calls came to.
struct Tally {
  std::atomic<std::int64_t> started = 0;
  std::atomic<std::int64_t> ended = 0;
  std::atomic<std::int64_t> values = 0;
  std::atomic<std::int64_t> timeouts = 0;
  std::atomic<std::int64_t> lost = 0;

  // An error that this call may end with.
  void failed(const CallError& error, bool may_time_out) {
    switch (error.kind) {
      case CallErrorKind::Timeout:
        EXPECT_TRUE(may_time_out) << error.message;
        ++timeouts;
        return;
      case CallErrorKind::Unreachable:
      case CallErrorKind::Rejected:  // the worker that calls has been stopped
        EXPECT_FALSE(error.message.empty());
        ++lost;
        return;
      default:
        ADD_FAILURE() << name_of(error.kind) << ": " << error.message;
    }
  }
};

// One thread that calls.
class Caller {
 public:
  Caller(Cluster& cluster, Tally& tally, std::uint64_t seed)
      : cluster_(cluster), tally_(tally), random_(seed) {}

  void run() {
    for (int count = 0; count < kCallsPerThread; ++count) {
      call();
      if (random_.below(40) == 0) cluster_.cut_one(random_);
      if (random_.below(500) == 0) cluster_.restart(random_.below(kWorkers));
      while (waits_.size() >= kUnderWayMax) finish_first();
    }
    while (!waits_.empty()) finish_first();
  }

 private:
  void call() {
    const std::shared_ptr<Worker> from = cluster_.at(random_.below(kWorkers));
    const std::string to = name_of(random_.below(kWorkers));
    const bool is_short = random_.below(50) == 0;
    const std::optional<double> timeout = is_short ? std::optional(0.001) : std::nullopt;
    const auto number = static_cast<std::int64_t>(random_.below(1'000'000));
    switch (random_.below(4)) {
      case 0: {
        const Bytes bytes = random_bytes(random_);
        const auto future = from->async<Echo>(to, timeout, "echo", bytes);
        return follow<Bytes>(
            future, [bytes](const Bytes& got) { return got == bytes; }, is_short);
      }
      case 1: {
        const std::string next = name_of(random_.below(kWorkers));
        // What goes wrong further on comes back as an error of the function.
        return follow<std::int64_t>(
            from->async<Forward>(to, timeout, "forward", next, number),
            [number](std::int64_t got) { return got == number + 1; }, is_short, true);
      }
      case 2: {
        auto thrown =
            from->async<Add>(to, timeout, "throw", number, 0)
                .then([](const CallResult<std::int64_t>& outcome) -> CallResult<std::int64_t> {
                  if (!outcome && outcome.error().kind == CallErrorKind::Remote &&
                      outcome.error().type == "std::runtime_error") {
                    return std::stoll(outcome.error().message);
                  }
                  return outcome;
                });
        return follow<std::int64_t>(
            thrown, [number](std::int64_t got) { return got == number; }, is_short);
      }
      default:
        return follow<std::int64_t>(
            from->async<Add>(to, timeout, "add", number, 2),
            [number](std::int64_t got) { return got == number + 2; }, is_short);
    }
  }

  template <typename T>
  void follow(const Future<T>& future, std::function<bool(const T&)> is_right, bool may_time_out,
              bool may_fail_there = false) {
    ++tally_.started;
    const auto told = std::make_shared<std::atomic<int>>(0);
    Tally& tally = tally_;
    future.on_done([told, &tally](const CallResult<T>&) {
      EXPECT_EQ(++*told, 1) << "a call ended twice";
      ++tally.ended;
    });
    waits_.push_back([=, &tally] {
      const CallResult<T>* const outcome = future.wait_until(SystemClock().now() + kPatience);
      ASSERT_NE(outcome, nullptr) << "a call hangs";
      if (*outcome) {
        EXPECT_TRUE(is_right(**outcome)) << "a wrong value";
        ++tally.values;
      } else if (may_fail_there && outcome->error().kind == CallErrorKind::Remote) {
        ++tally.lost;
      } else {
        tally.failed(outcome->error(), may_time_out);
      }
    });
  }

  void finish_first() {
    // Any of them: answers do not come in order.
    const std::size_t index = random_.below(waits_.size());
    std::swap(waits_[index], waits_.back());
    const std::function<void()> wait = std::move(waits_.back());
    waits_.pop_back();
    wait();
  }

  Cluster& cluster_;
  Tally& tally_;
  Random random_;
  std::vector<std::function<void()>> waits_;
};

TEST(RpcLoad, EveryCallEndsOnceThoughConnectionsBreakAndWorkersStop) {
  const std::uint64_t seed = tests::seeds_to_run(1).front();
  SCOPED_TRACE(tests::replay_command(seed));
  Tally tally;
  Cluster cluster;
  std::vector<std::thread> threads;
  for (std::uint64_t index = 1; index <= kCallingThreads; ++index) {
    threads.emplace_back([&, index] { Caller(cluster, tally, seed * 1000 + index).run(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tally.started, std::int64_t{kCallingThreads} * kCallsPerThread);
  EXPECT_GT(tally.values, tally.started / 4) << "most calls are not disturbed";
  EXPECT_GT(cluster.cut_count, 0);
  EXPECT_GT(cluster.restart_count, 0);
  // The last are told by threads of their own.
  for (std::size_t rank = 0; rank < kWorkers; ++rank) cluster.at(rank)->stop();
  EXPECT_EQ(tally.ended, tally.started);
  fmt::print(
      "{} calls: {} values, {} lost, {} timeouts; {} connections cut, {} workers restarted\n",
      tally.started.load(), tally.values.load(), tally.lost.load(), tally.timeouts.load(),
      cluster.cut_count.load(), cluster.restart_count.load());
}

}  // namespace
}  // namespace muster::rpc
