// Programs that end without rpc::shutdown: each is a process of its own.
#include "muster/base/log.h"
#include "muster/rpc/call.h"
#include "muster/worker/testing.h"
#include "muster/worker/worker.h"
#include "tests/rpc/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <latch>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using ::testing::ExitedWithCode;
using testing::StoreHost;

const Procedure<void()> kExit("worker exit test, exit");
const Procedure<void()> kExitInline("worker exit test, exit inline");
const Procedure<void()> kWait("worker exit test, wait");

// Was there before RPC, and is destroyed when the program ends.
struct Witness {
  bool speaks = false;
  ~Witness() {
    if (!speaks) return;
    const std::string_view seen = is_running() ? "RPC still runs\n" : "RPC was stopped in time\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, seen.data(), seen.size());
  }
};
Witness witness;

std::latch* has_begun = nullptr;
std::latch* may_end = nullptr;

// One worker alone, in a process that ends before it can hang for ever.
void start_rpc() {
  ::alarm(60);
  has_begun = new std::latch(1);
  may_end = new std::latch(1);
  if (!define(kExit, [] { std::exit(3); })) std::abort();
  if (!define(kExitInline, [] { std::exit(3); }, {.run = Run::Inline})) std::abort();
  const auto waited = define(kWait, [] {
    has_begun->count_down();
    may_end->wait();
  });
  if (!waited) std::abort();
  auto* const store = new StoreHost;
  InitOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.store = "127.0.0.1:" + std::to_string(store->port());
  if (!init(options)) std::abort();
  if (!call("worker0", Procedure<void()>("muster.testing.nothing"))) std::abort();
  witness.speaks = true;
}
[[noreturn]] void wait_for_the_end() {
  for (;;) ::pause();
}

class WorkerExit : public ::testing::Test {
 protected:
  // Threads of ours run, so the process is not forked but started anew.
  WorkerExit() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

constexpr const char* kStopped = "ends without rpc::shutdown.*RPC was stopped in time";

TEST_F(WorkerExit, StopsRpcBeforeAnythingIsDestroyed) {
  EXPECT_EXIT(
      {
        start_rpc();
        std::exit(3);
      },
      ExitedWithCode(3), kStopped);
}

TEST_F(WorkerExit, StopsRpcWhicheverThreadOfTheProgramEndsIt) {
  EXPECT_EXIT(
      {
        start_rpc();
        std::thread([] { std::exit(3); }).join();
      },
      ExitedWithCode(3), kStopped);
}

TEST_F(WorkerExit, WaitsForAFunctionThatRuns) {
  EXPECT_EXIT(
      {
        start_rpc();
        const auto running = async("worker0", kWait);
        has_begun->wait();
        // It fails when RPC is being stopped, and not before.
        running.on_done([](const auto&) { may_end->count_down(); });
        std::exit(3);
      },
      ExitedWithCode(3), kStopped);
}

TEST_F(WorkerExit, LeavesAFunctionBehindThatNeverEnds) {
  EXPECT_EXIT(
      {
        start_rpc();
        testing::set_exit_patience(1ms);
        const auto running = async("worker0", kWait);
        has_begun->wait();
        std::exit(3);
      },
      ExitedWithCode(3), "ends without rpc::shutdown.*they are left behind");
}

// These would wait for themselves.
TEST_F(WorkerExit, StopsNothingWhenAFunctionEndsTheProgram) {
  EXPECT_EXIT(
      {
        start_rpc();
        (void)call("worker0", kExit);
        wait_for_the_end();
      },
      ExitedWithCode(3), "ends without rpc::shutdown.*RPC still runs");
}
TEST_F(WorkerExit, StopsNothingWhenAnInlineFunctionEndsTheProgram) {
  EXPECT_EXIT(
      {
        start_rpc();
        (void)async("worker0", kExitInline);
        wait_for_the_end();
      },
      ExitedWithCode(3), "ends without rpc::shutdown.*RPC still runs");
}
TEST_F(WorkerExit, StopsNothingWhenACallbackEndsTheProgram) {
  EXPECT_EXIT(
      {
        start_rpc();
        const auto running = async("worker0", kWait);
        running.on_done([](const auto&) { std::exit(3); });
        may_end->count_down();
        wait_for_the_end();
      },
      ExitedWithCode(3), "ends without rpc::shutdown.*RPC still runs");
}

TEST_F(WorkerExit, SaysNothingAfterAShutdown) {
  EXPECT_EXIT(
      {
        start_rpc();
        if (!shutdown()) std::abort();
        log::set_sink([](log::Level, std::string_view, std::string_view) { ::_exit(9); });
        std::exit(3);
      },
      ExitedWithCode(3), "RPC was stopped in time");
}

// It has none of the threads, and what they locked stays locked.
TEST_F(WorkerExit, LeavesRpcAloneInAChildThatWasForked) {
  EXPECT_EXIT(
      {
        static bool is_child = false;
        // Called after what `init` arranged, and before a sanitizer looks for leaks: what threads
        // had that are not there in a child looks like some.
        std::atexit([] {
          if (is_child) ::_exit(5);
        });
        start_rpc();
        const pid_t child = ::fork();
        if (child == 0) {
          is_child = true;
          log::set_sink([](log::Level, std::string_view, std::string_view) { ::_exit(9); });
          std::exit(5);
        }
        int status = 0;
        if (::waitpid(child, &status, 0) != child) std::abort();
        if (!shutdown()) std::abort();
        std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
      },
      ExitedWithCode(5), "RPC was stopped in time");
}

}  // namespace
}  // namespace muster::rpc
