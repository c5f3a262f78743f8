#include "bench/rpc/raw_shm.h"

#include "bench/rpc/large_bytes.h"
#include "muster/base/fd.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace muster::bench {
namespace {

using Words = std::array<std::uint64_t, 4>;

// One direction of one caller. Each part is written by one side only and has its cache line.
struct alignas(64) Mailbox {
  std::atomic<std::uint32_t> count{0};  // of messages so far
  Words message{};
};

struct Slot {
  Mailbox request;
  Mailbox reply;
};

struct Region {
  std::atomic<std::uint32_t> slots_taken{0};
  std::array<Slot, 64> slots;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Waiting {
 public:
  explicit Waiting(const RpcOptions& options) : spins_(options.transport == "spin") {
    if (!spins_ && options.transport != "futex") {
      throw std::runtime_error("there is no transport " + options.transport);
    }
  }

  void put(Mailbox& box, std::uint32_t count, const Words& message) const {
    box.message = message;
    box.count.store(count, std::memory_order_release);
    if (!spins_) ::syscall(SYS_futex, &box.count, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  Words take(Mailbox& box, std::uint32_t count) const {
    while (true) {
      const std::uint32_t now = box.count.load(std::memory_order_acquire);
      if (now == count) return box.message;
      if (spins_) {
        pause_briefly();
      } else {
        ::syscall(SYS_futex, &box.count, FUTEX_WAIT, now, nullptr, nullptr, 0);
      }
    }
  }

 private:
  bool spins_;
};

Region* map(int fd) {
  void* memory = ::mmap(nullptr, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  return static_cast<Region*>(memory);
}

class ShmCaller final : public Caller {
 public:
  explicit ShmCaller(const RpcOptions& options) : waiting_(options) {
    const Fd fd(::open(options.address.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.is_open()) fail("open");
    Region* region = map(fd.get());
    slot_ = &region->slots.at(region->slots_taken.fetch_add(1));
  }

  void noop() override {
    ++count_;
    waiting_.put(slot_->request, count_, Words{count_, 0, 0, 0});
    const Words reply = waiting_.take(slot_->reply, count_);
    if (reply[0] != count_) throw std::runtime_error("a reply of another call");
  }

  void echo(std::span<const std::byte>) override {
    throw std::runtime_error("the bound of an echo through shared memory is the case memcpy");
  }
  std::span<const std::byte> reply() const override { return {}; }
  std::uint64_t keep_in_flight(std::size_t, RpcClock::time_point) override {
    throw std::runtime_error("raw shared memory has one call in flight");
  }

 private:
  Waiting waiting_;
  Slot* slot_ = nullptr;
  std::uint32_t count_ = 0;
};

}  // namespace

void serve_raw_shm(const RpcOptions& options) {
  const Waiting waiting(options);
  const Fd fd(::memfd_create("rpc_raw", MFD_CLOEXEC));
  if (!fd.is_open() || ::ftruncate(fd.get(), sizeof(Region)) != 0) fail("memfd_create");
  auto* region = new (map(fd.get())) Region;
  for (std::size_t index = 0; index < options.threads; ++index) {
    std::thread([waiting, slot = &region->slots.at(index)] {
      for (std::uint32_t count = 1;; ++count) {
        const Words message = waiting.take(slot->request, count);
        waiting.put(slot->reply, count, message);
      }
    }).detach();
  }
  announce(fmt::format("/proc/{}/fd/{}", ::getpid(), fd.get()));
  wait_for_end_of_input();
  ::_exit(0);
}

std::unique_ptr<Caller> connect_raw_shm(const RpcOptions& options) {
  return std::make_unique<ShmCaller>(options);
}

RpcResult measure_memcpy(const RpcOptions& options) {
  const bool there_and_back = options.case_name == "memcpy-echo";
  LargeBytes here(options.bytes);
  LargeBytes there(options.bytes);
  std::memset(here.data(), 'a', here.size());
  std::memset(there.data(), 'b', there.size());
  const auto copy = [&] {
    std::memcpy(there.data(), here.data(), here.size());
    // So that the compiler copies each time.
    asm volatile("" : : "r"(there.data()) : "memory");
    if (there_and_back) {
      std::memcpy(here.data(), there.data(), there.size());
      asm volatile("" : : "r"(here.data()) : "memory");
    }
  };
  for (int warm = 0; warm < 3; ++warm) copy();
  const double cpu_before = process_cpu_seconds();
  const RpcClock::time_point begun = RpcClock::now();
  std::uint64_t copies = 0;
  for (; seconds_since(begun) < options.seconds; ++copies) copy();
  const double elapsed = seconds_since(begun);
  RpcResult result;
  result.bytes_per_s =
      static_cast<double>(copies * options.bytes * (there_and_back ? 2 : 1)) / elapsed;
  result.cpu_s = process_cpu_seconds() - cpu_before;
  return result;
}

}  // namespace muster::bench
