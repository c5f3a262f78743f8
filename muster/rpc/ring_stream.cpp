#include "muster/rpc/ring_stream.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <utility>

#if defined(__SANITIZE_THREAD__)
#define MUSTER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MUSTER_TSAN 1
#endif
#endif
#ifdef MUSTER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace muster::rpc {
namespace {

// The controls of both rings, then the bytes of the first side's ring, then those of the other.
constexpr std::size_t kHeadBytes = 4096;
static_assert(2 * sizeof(RingControl) <= kHeadBytes);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Newer kernels want to be told that it holds no program; older ones do not know the flag.
constexpr unsigned int kNoExecutable = 0x0008U;

std::size_t memory_bytes(std::size_t ring_bytes) { return kHeadBytes + 2 * ring_bytes; }

// `index` 0 is the ring that the first side writes.
RingMemory ring_in(std::span<std::byte> mapping, std::size_t index) {
  const std::size_t ring_bytes = (mapping.size() - kHeadBytes) / 2;
  // Atomics of this kind are no more than their bytes, and zeros are their beginning.
  auto* control = reinterpret_cast<RingControl*>(mapping.data() + index * sizeof(RingControl));
  return {*control, mapping.subspan(kHeadBytes + index * ring_bytes, ring_bytes)};
}

// Whatever the descriptor is: afterwards nobody can take pages away under us, which would end this
// process on its next access.
Result<> check_memory(int memory, std::size_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin || ring_bytes > kRingBytesMax)
    return fail(ErrorKind::Invalid, fmt::format("a ring cannot have {} bytes", ring_bytes));
  const int seals = ::fcntl(memory, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return fail(ErrorKind::Invalid, "the memory's size is not sealed");
  struct statfs system {};
  // Huge pages can be sealed too, and may be missing on access.
  if (::fstatfs(memory, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return fail(ErrorKind::Invalid, "the memory is not of the usual kind");
  struct stat status {};
  if (::fstat(memory, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != memory_bytes(ring_bytes)) {
    return fail(ErrorKind::Invalid, "the memory's size is not that of two rings");
  }
  return {};
}

// Both ends may be in one process, and ThreadSanitizer cannot know that two mappings are one
// memory. We tell it what it takes for granted with sockets: who reads comes after who wrote.
#ifdef MUSTER_TSAN
char all_streams = 0;
void tell_sanitizer_of_write() { __tsan_release(&all_streams); }
void tell_sanitizer_of_read() { __tsan_acquire(&all_streams); }
#else
void tell_sanitizer_of_write() {}
void tell_sanitizer_of_read() {}
#endif

}  // namespace

Result<Fd> make_ring_memory(std::size_t ring_bytes) {
  constexpr const char* kName = "muster rings";
  constexpr unsigned int kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd memory(::memfd_create(kName, kFlags | kNoExecutable));
  if (!memory.is_open() && errno == EINVAL) memory = Fd(::memfd_create(kName, kFlags));
  if (!memory.is_open() ||
      ::ftruncate(memory.get(), static_cast<off_t>(memory_bytes(ring_bytes))) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot make memory to share: {}", describe_errno(errno)));
  }
  return memory;
}

Result<std::unique_ptr<RingStream>> RingStream::create(Fd socket, const Fd& memory,
                                                       RingStreamOptions options) {
  if (auto checked = check_memory(memory.get(), options.ring_bytes); !checked)
    return fail(std::move(checked.error()));
  const std::size_t size = memory_bytes(options.ring_bytes);
  void* const begin =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (begin == MAP_FAILED) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot map the shared memory: {}", describe_errno(errno)));
  }
  const std::span<std::byte> mapping(static_cast<std::byte*>(begin), size);
  return std::unique_ptr<RingStream>(new RingStream(std::move(socket), mapping, options));
}

RingStream::RingStream(Fd socket, std::span<std::byte> mapping, RingStreamOptions options)
    : socket_(std::move(socket)),
      mapping_(mapping),
      writer_(ring_in(mapping, options.is_first ? 0 : 1), [this] { wake_peer(); }),
      reader_(ring_in(mapping, options.is_first ? 1 : 0), [this] { wake_peer(); }) {}

RingStream::~RingStream() { ::munmap(mapping_.data(), mapping_.size()); }

Result<std::size_t> RingStream::write(std::span<const iovec> pieces) {
  if (ended_.load(std::memory_order_acquire))
    return fail(ErrorKind::Unavailable, "it closed the connection");
  tell_sanitizer_of_write();
  return writer_.write(pieces);
}

Result<std::size_t> RingStream::read(std::span<std::byte> into) {
  // Looked at first: what comes before the end is in the ring by then.
  const bool ended = ended_.load(std::memory_order_acquire);
  Result<std::size_t> got = reader_.read(into);
  if (got && *got > 0) tell_sanitizer_of_read();
  if (got && *got == 0 && ended && !into.empty())
    return fail(ErrorKind::Closed, "it closed the connection");
  return got;
}

bool RingStream::ask_for_bytes() {
  return !ended_.load(std::memory_order_acquire) && reader_.ask();
}

bool RingStream::ask_for_room() { return !ended_.load(std::memory_order_acquire) && writer_.ask(); }

void RingStream::woken() {
  // Whatever comes over the socket says only that it came; what does not fit is told again.
  std::array<char, 64> signals{};
  ssize_t got = 0;
  do {
    got = ::recv(socket_.get(), signals.data(), signals.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
    ended_.store(true, std::memory_order_release);
}

void RingStream::wake_peer() {
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // One that has not taken its signals yet has enough of them. If it cannot be woken it would sleep
  // for ever: better an end that both notice.
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) close();
}

void RingStream::close() {
  ended_.store(true, std::memory_order_release);
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace muster::rpc
