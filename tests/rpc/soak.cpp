// Millions of calls between two processes, first through shared memory, then over TCP, with sizes
// mixed: says how much memory both have at intervals, and fails if it grows.
//
// usage: rpc_soak [--calls N]      10000000 for each of the two ways, if it is not given
//
// The other process is this program with `--serve shm|tcp`; it also has the store.
#include "muster/rpc.h"
#include "tests/rpc/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <spawn.h>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace muster::rpc {
namespace {

constexpr std::int64_t kCallsDefault = 10'000'000;
constexpr std::size_t kUnderWay = 64;
constexpr int kLooks = 20;
// What buffers, threads and the allocator may add after the first fifth.
constexpr std::int64_t kGrowthKibibytesMax = 8 * 1024;

const Procedure<std::int64_t(std::int64_t, std::int64_t)> kAdd("add");
const Procedure<std::string(std::string)> kEcho("echo");
const Procedure<Buffer(Buffer)> kEchoBuffer("echo buffer");

template <typename T>
void check(const T& outcome) {
  if (outcome) return;
  fmt::print(stderr, "rpc_soak: {}\n", outcome.error().message);
  std::exit(1);
}

std::int64_t resident_kibibytes(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  std::string word;
  while (file >> word) {
    if (word != "VmRSS:") continue;
    std::int64_t kibibytes = 0;
    file >> kibibytes;
    return kibibytes;
  }
  return 0;
}

InitOptions options_for(std::string_view way, std::int64_t rank, const std::string& store) {
  InitOptions options;
  options.rank = rank;
  options.world_size = 2;
  options.store = store;
  options.shared_memory = way == "shm";
  options.thread_count = 2;
  return options;
}

int serve(std::string_view way) {
  check(define(kAdd, [](std::int64_t a, std::int64_t b) { return a + b; }, {.run = Run::Inline}));
  check(define(kEcho, [](std::string text) { return text; }));
  check(define(kEchoBuffer, [](Buffer buffer) { return buffer; }, {.run = Run::Inline}));
  const testing::StoreHost store;
  fmt::print("127.0.0.1:{}\n", store.port());
  std::fflush(stdout);
  check(init(options_for(way, 1, fmt::format("127.0.0.1:{}", store.port()))));
  check(shutdown());  // once the other has nothing left to do
  return 0;
}

// A server process, and the address of its store.
std::pair<pid_t, std::string> start_server(std::string way) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::string name = "rpc_soak";
  std::string serve_option = "--serve";
  char* const arguments[] = {name.data(), serve_option.data(), way.data(), nullptr};
  pid_t process = 0;
  if (::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments, environ) != 0) {
    std::abort();
  }
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string address;
  for (char byte = 0; ::read(ends[0], &byte, 1) == 1 && byte != '\n';) address += byte;
  ::close(ends[0]);
  return {process, address};
}

// One call, of a size that its number decides; true if it brought what it should.
Future<bool> call_number(std::int64_t number) {
  if (number % 100 == 99) {
    const std::vector<std::byte> bytes(static_cast<std::size_t>(number / 100 % 65536));
    const std::size_t size = bytes.size();
    return async("worker1", kEchoBuffer, copy_of(bytes))
        .then([size](const CallResult<Buffer>& back) { return back && back->size() == size; });
  }
  if (number % 10 == 9) {
    std::string text(static_cast<std::size_t>(number % 1000), 'x');
    const std::size_t size = text.size();
    return async("worker1", kEcho, std::move(text))
        .then([size](const CallResult<std::string>& back) { return back && back->size() == size; });
  }
  return async("worker1", kAdd, number, 1).then([number](const CallResult<std::int64_t>& sum) {
    return sum && *sum == number + 1;
  });
}

bool run(const std::string& way, std::int64_t call_count) {
  const auto [server, store] = start_server(way);
  check(init(options_for(way, 0, store)));
  std::deque<Future<bool>> under_way;
  const auto finish_first = [&] {
    if (!under_way.front().get()) {
      fmt::print(stderr, "rpc_soak: a call failed or brought something else\n");
      std::exit(1);
    }
    under_way.pop_front();
  };
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t first_kibibytes[2] = {0, 0};
  std::int64_t last_kibibytes[2] = {0, 0};
  for (int look = 1; look <= kLooks; ++look) {
    const std::int64_t until = call_count * look / kLooks;
    for (std::int64_t number = call_count * (look - 1) / kLooks; number < until; ++number) {
      under_way.push_back(call_number(number));
      if (under_way.size() >= kUnderWay) finish_first();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    last_kibibytes[0] = resident_kibibytes(::getpid());
    last_kibibytes[1] = resident_kibibytes(server);
    if (look == kLooks / 5) std::copy_n(last_kibibytes, 2, first_kibibytes);
    fmt::print("{} {:>9} calls {:>7.1f} s   client {:>6} KiB, server {:>6} KiB\n", way, until,
               took.count(), last_kibibytes[0], last_kibibytes[1]);
    std::fflush(stdout);
  }
  while (!under_way.empty()) finish_first();
  check(shutdown());
  int status = 0;
  ::waitpid(server, &status, 0);
  bool flat = true;
  for (int side = 0; side < 2; ++side) {
    flat &= last_kibibytes[side] - first_kibibytes[side] <= kGrowthKibibytesMax;
  }
  if (!flat) fmt::print(stderr, "rpc_soak: memory grows\n");
  return flat && status == 0;
}

int run_all(std::int64_t call_count) {
  bool good = true;
  for (const char* const way : {"shm", "tcp"}) good &= run(way, call_count);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace muster::rpc

int main(int argc, char** argv) {
  const std::string_view option = argc > 1 ? argv[1] : "";
  if (argc == 3 && option == "--serve") return muster::rpc::serve(argv[2]);
  if (argc == 3 && option == "--calls") return muster::rpc::run_all(std::atoll(argv[2]));
  if (argc == 1) return muster::rpc::run_all(muster::rpc::kCallsDefault);
  std::fputs("usage: rpc_soak [--calls N]\n", stderr);
  return 2;
}
