#include "muster/rpc/ring_stream.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <numeric>
#include <optional>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::rpc {
namespace {

constexpr int kPatienceMs = 60'000;

struct Pair {
  std::unique_ptr<RingStream> first;
  std::unique_ptr<RingStream> second;
};

std::array<Fd, 2> make_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Pair make_pair(std::size_t ring_bytes = kRingBytesMin) {
  auto sockets = make_sockets();
  const auto memory = make_ring_memory(ring_bytes);
  EXPECT_TRUE(memory);
  auto first = RingStream::create(std::move(sockets[0]), *memory,
                                  {.is_first = true, .ring_bytes = ring_bytes});
  auto second = RingStream::create(std::move(sockets[1]), *memory,
                                   {.is_first = false, .ring_bytes = ring_bytes});
  EXPECT_TRUE(first && second);
  return {std::move(*first), std::move(*second)};
}

Result<std::size_t> write(Stream& stream, std::string_view text) {
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  return stream.write({&piece, 1});
}

std::string read(Stream& stream, std::size_t bytes_max = 100) {
  std::string text(bytes_max, '\0');
  const auto got = stream.read(std::as_writable_bytes(std::span(text)));
  if (!got) return "error: " + got.error().message;
  text.resize(*got);
  return text;
}

bool is_ready(const Stream& stream, int patience_ms = 0) {
  pollfd watch{stream.fd(), POLLIN, 0};
  return ::poll(&watch, 1, patience_ms) == 1;
}

// As a loop does.
bool sleep(Stream& stream) {
  const bool ready = is_ready(stream, kPatienceMs);
  if (ready) stream.woken();
  return ready;
}

TEST(RingStream, CarriesBytesBothWays) {
  const Pair pair = make_pair();
  EXPECT_EQ(write(*pair.first, "to and").value(), 6U);
  EXPECT_EQ(write(*pair.second, "fro").value(), 3U);
  EXPECT_EQ(read(*pair.second), "to and");
  EXPECT_EQ(read(*pair.first), "fro");
  EXPECT_EQ(read(*pair.first), "");
  EXPECT_EQ(pair.first->kind(), "shared memory");
}

TEST(RingStream, WakesOnlyAReaderThatSleeps) {
  const Pair pair = make_pair();
  ASSERT_TRUE(write(*pair.first, "a"));
  EXPECT_FALSE(is_ready(*pair.second));
  EXPECT_FALSE(pair.second->ask_for_bytes());
  EXPECT_EQ(read(*pair.second), "a");
  EXPECT_TRUE(pair.second->ask_for_bytes());
  ASSERT_TRUE(write(*pair.first, "b"));
  EXPECT_TRUE(is_ready(*pair.second));
  pair.second->woken();
  EXPECT_FALSE(is_ready(*pair.second));
  EXPECT_EQ(read(*pair.second), "b");
}

TEST(RingStream, WakesAWriterThatWaitsForRoom) {
  const Pair pair = make_pair();
  const std::string much(kRingBytesMin + 1, 'x');
  EXPECT_EQ(write(*pair.first, much).value(), kRingBytesMin);
  EXPECT_EQ(write(*pair.first, much).value(), 0U);
  EXPECT_TRUE(pair.first->ask_for_room());
  EXPECT_FALSE(is_ready(*pair.first));
  EXPECT_EQ(read(*pair.second, kRingBytesMin / 2).size(), kRingBytesMin / 2);
  EXPECT_TRUE(is_ready(*pair.first));
  pair.first->woken();
  EXPECT_FALSE(pair.first->ask_for_room());
  EXPECT_EQ(write(*pair.first, much).value(), kRingBytesMin / 2);
}

// Says how much came, or nothing if something was wrong.
std::optional<std::uint64_t> receive(Stream& stream) {
  std::vector<std::byte> into(5000);
  std::uint64_t position = 0;
  while (true) {
    const auto got = stream.read(into);
    if (!got) return got.error().kind == ErrorKind::Closed ? std::optional(position) : std::nullopt;
    for (std::size_t index = 0; index < *got; ++index) {
      if (into[index] != static_cast<std::byte>((position + index) % 251)) return std::nullopt;
    }
    position += *got;
    if (*got == 0 && stream.ask_for_bytes() && !sleep(stream)) return std::nullopt;
  }
}

bool send(Stream& stream, std::uint64_t total) {
  Random random(7);
  std::vector<std::byte> bytes(6000);
  for (std::uint64_t position = 0; position < total;) {
    const std::size_t size = std::min(random.below(bytes.size()) + 1, total - position);
    for (std::size_t index = 0; index < size; ++index)
      bytes[index] = static_cast<std::byte>((position + index) % 251);
    const iovec piece{bytes.data(), size};
    const auto taken = stream.write({&piece, 1});
    if (!taken) return false;
    position += *taken;
    if (*taken == 0 && stream.ask_for_room() && !sleep(stream)) return false;
  }
  return true;
}

TEST(RingStream, CarriesBytesBetweenThreadsThatSleepWheneverTheyCan) {
  constexpr std::uint64_t kTotal = std::uint64_t{1} << 20U;
  const Pair pair = make_pair();
  bool sent = false;
  std::thread sending([&] {
    sent = send(*pair.first, kTotal);
    pair.first->close();
  });
  EXPECT_EQ(receive(*pair.second), kTotal);
  sending.join();
  EXPECT_TRUE(sent);
}

TEST(RingStream, DeliversWhatWasWrittenBeforeTheEnd) {
  Pair pair = make_pair();
  EXPECT_TRUE(pair.second->ask_for_bytes());
  EXPECT_FALSE(is_ready(*pair.second));
  ASSERT_TRUE(write(*pair.first, "the last words"));
  pair.first.reset();
  // The signal for the bytes comes first, then the end.
  ASSERT_TRUE(sleep(*pair.second));
  ASSERT_TRUE(sleep(*pair.second));
  EXPECT_FALSE(pair.second->ask_for_bytes());
  EXPECT_EQ(read(*pair.second, 4), "the ");
  EXPECT_EQ(read(*pair.second), "last words");
  std::byte byte{};
  EXPECT_EQ(pair.second->read({&byte, 1}).error().kind, ErrorKind::Closed);
  EXPECT_EQ(write(*pair.second, "x").error().kind, ErrorKind::Unavailable);
  EXPECT_FALSE(pair.second->ask_for_room());
}

TEST(RingStream, EndsForBothSidesWhenOneClosesIt) {
  const Pair pair = make_pair();
  std::thread closing([&] { pair.first->close(); });
  ASSERT_TRUE(sleep(*pair.second));
  closing.join();
  std::byte byte{};
  for (Stream* stream : {pair.first.get(), pair.second.get()}) {
    EXPECT_EQ(stream->read({&byte, 1}).error().kind, ErrorKind::Closed);
    EXPECT_EQ(write(*stream, "x").error().kind, ErrorKind::Unavailable);
    EXPECT_TRUE(is_ready(*stream)) << "whoever sleeps must notice";
  }
}

TEST(RingStream, EndsOnAWriterThatCannotWakeItsPeer) {
  Pair pair = make_pair();
  EXPECT_TRUE(pair.second->ask_for_bytes());
  pair.second.reset();
  EXPECT_TRUE(write(*pair.first, "x"));
  EXPECT_EQ(write(*pair.first, "x").error().kind, ErrorKind::Unavailable);
}

TEST(RingStream, NoticesThatItsPeerWasKilled) {
  Pair pair = make_pair();
  // Before there is anything: it is woken once, and by the bytes.
  EXPECT_TRUE(pair.first->ask_for_bytes());
  const pid_t child = ::fork();
  if (child == 0) {
    pair.first.reset();
    const bool done = write(*pair.second, "I live").has_value();
    while (done) ::pause();
    ::_exit(1);
  }
  pair.second.reset();
  EXPECT_TRUE(sleep(*pair.first));
  EXPECT_EQ(read(*pair.first), "I live");
  EXPECT_TRUE(pair.first->ask_for_bytes());
  EXPECT_FALSE(is_ready(*pair.first));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(sleep(*pair.first));
  EXPECT_EQ(read(*pair.first), "error: it closed the connection");
  ::waitpid(child, nullptr, 0);
}

TEST(RingStream, IsNotStoppedByAPeerThatFloodsTheSocket) {
  auto sockets = make_sockets();
  const int flooded = ::dup(sockets[1].get());
  const Fd flood(flooded);
  const auto memory = make_ring_memory(kRingBytesMin);
  auto stream = RingStream::create(std::move(sockets[0]), *memory,
                                   {.is_first = true, .ring_bytes = kRingBytesMin});
  ASSERT_TRUE(stream);
  const std::string noise(1000, 'x');
  EXPECT_EQ(::send(flood.get(), noise.data(), noise.size(), 0), 1000);
  for (int count = 0; count < 1000 && is_ready(**stream); ++count) (*stream)->woken();
  EXPECT_FALSE(is_ready(**stream));
  EXPECT_EQ(read(**stream), "");
}

Fd memory_file(std::size_t size, int seals, unsigned int flags = MFD_ALLOW_SEALING) {
  Fd memory(::memfd_create("test", MFD_CLOEXEC | flags));
  EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(size)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  }
  return memory;
}

ErrorKind refusal(const Fd& memory, std::size_t ring_bytes) {
  auto sockets = make_sockets();
  const auto stream = RingStream::create(std::move(sockets[0]), memory,
                                         {.is_first = false, .ring_bytes = ring_bytes});
  EXPECT_FALSE(stream);
  return stream ? ErrorKind::Finished : stream.error().kind;
}

TEST(RingStream, RefusesMemoryThatIsNotWhatItMustBe) {
  constexpr std::size_t kSize = 4096 + 2 * kRingBytesMin;
  constexpr int kBoth = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(refusal(memory_file(kSize, 0), kRingBytesMin), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, F_SEAL_GROW), kRingBytesMin), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, F_SEAL_SHRINK), kRingBytesMin), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize - 1, kBoth), kRingBytesMin), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize + 1, kBoth), kRingBytesMin), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, kBoth), kRingBytesMin - 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, kBoth), 2 * kRingBytesMax), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, kBoth), 0), ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(4096 + 3 * kRingBytesMin, kBoth), 3 * kRingBytesMin / 2),
            ErrorKind::Invalid);
  EXPECT_EQ(refusal(memory_file(kSize, kBoth | F_SEAL_WRITE), kRingBytesMin),
            ErrorKind::Unavailable);
  const Fd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(refusal(file, kRingBytesMin), ErrorKind::Invalid);
}

// In KiB, as the kernel counts what this process has of memory that it shares.
long shared_kib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "RssShmem:") {
      long kib = 0;
      status >> kib;
      return kib;
    }
  }
  return -1;
}

TEST(RingStream, CostsLittleMemoryBeforeItIsUsedAndFewPagesForSmallMessages) {
  constexpr int kPairs = 20;
  const long before = shared_kib();
  std::vector<Pair> pairs;
  for (int count = 0; count < kPairs; ++count) pairs.push_back(make_pair(kRingBytesDefault));
  EXPECT_LE(shared_kib() - before, 2 * kPairs);
  const std::string message(100, 'x');
  for (const Pair& pair : pairs) {
    for (int count = 0; count < 400; ++count) {
      ASSERT_EQ(write(*pair.first, message).value(), 100U);
      ASSERT_EQ(read(*pair.second).size(), 100U);
    }
  }
  // One ring of each was used; both of its ends are in this process.
  EXPECT_LE(shared_kib() - before, 2 * kPairs * 32);
}

}  // namespace
}  // namespace muster::rpc
