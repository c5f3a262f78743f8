#include "muster/rpc/ring.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <semaphore>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPageBytes = 4096;

// A ring between two pages that nobody may touch, with both of its sides.
class Ring {
 public:
  explicit Ring(std::size_t size, std::function<void()> wake_reader = {},
                std::function<void()> wake_writer = {})
      : mapped_bytes_(size + 2 * kPageBytes),
        mapped_(static_cast<std::byte*>(
            ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        bytes(mapped_ + kPageBytes, size),
        writer(
            {control, bytes}, wake_reader ? std::move(wake_reader) : [this] { ++wakes; }),
        reader(
            {control, bytes}, wake_writer ? std::move(wake_writer) : [this] { ++wakes; }) {
    EXPECT_EQ(::mprotect(bytes.data(), size, PROT_READ | PROT_WRITE), 0);
  }
  ~Ring() { ::munmap(mapped_, mapped_bytes_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Result<std::size_t> write(std::span<const std::byte> data) {
    const iovec piece{const_cast<std::byte*>(data.data()), data.size()};
    return writer.write({&piece, 1});
  }

 private:
  std::size_t mapped_bytes_;
  std::byte* mapped_;

 public:
  RingControl control{};
  std::span<std::byte> bytes;
  int wakes = 0;
  RingWriter writer;
  RingReader reader;
};

// The byte at a position of the test's stream; never zero.
std::byte byte_at(std::uint64_t position) {
  return static_cast<std::byte>((position * 0x9E3779B97F4A7C15U >> 40U) | 1U);
}

std::vector<std::byte> bytes_from(std::uint64_t position, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t index = 0; index < count; ++index) bytes[index] = byte_at(position + index);
  return bytes;
}

TEST(Ring, CarriesEverySizeAcrossItsEnd) {
  Ring ring(kRingBytesMin);
  std::uint64_t position = 0;
  for (std::size_t size = 0; size <= kRingBytesMin; ++size) {
    const auto sent = bytes_from(position, size);
    position += size;
    ASSERT_EQ(ring.write(sent).value(), size);
    std::vector<std::byte> received(size + 1);
    ASSERT_EQ(ring.reader.read(received).value(), size);
    received.resize(size);
    ASSERT_EQ(received, sent) << size;
  }
}

TEST(Ring, TakesOnlyWhatThereIsRoomFor) {
  Ring ring(kRingBytesMin);
  const auto sent = bytes_from(0, kRingBytesMin + 10);
  EXPECT_EQ(ring.write(sent).value(), kRingBytesMin);
  EXPECT_EQ(ring.write(std::span(sent).last(10)).value(), 0U);

  std::vector<std::byte> received(kRingBytesMin + 10);
  EXPECT_EQ(ring.reader.read(std::span(received).first(3)).value(), 3U);
  EXPECT_EQ(ring.write(std::span(sent).last(10)).value(), 3U);
  EXPECT_EQ(ring.reader.read(std::span(received).subspan(3)).value(), kRingBytesMin);
  EXPECT_EQ(ring.reader.read(received).value(), 0U);
  received.resize(kRingBytesMin + 3);
  EXPECT_TRUE(std::equal(received.begin(), received.end(), sent.begin()));
}

TEST(Ring, TakesPiecesInTheirOrder) {
  Ring ring(kRingBytesMin);
  auto sent = bytes_from(0, 3000);
  const std::array<iovec, 5> pieces = {iovec{sent.data(), 1}, iovec{nullptr, 0},
                                       iovec{sent.data() + 1, 1500},
                                       iovec{sent.data() + 1501, 1499}, iovec{nullptr, 0}};
  EXPECT_EQ(ring.writer.write(pieces).value(), 3000U);
  EXPECT_EQ(ring.writer.write(pieces).value(), kRingBytesMin - 3000U);
  std::vector<std::byte> received(3000);
  EXPECT_EQ(ring.reader.read(received).value(), 3000U);
  EXPECT_EQ(received, sent);
}

TEST(Ring, UsesTheSamePagesAgainWhileLittleIsUnderWay) {
  Ring ring(kRingBytesDefault);
  std::uint64_t position = 0;
  while (position < 2 * kRingBytesDefault) {
    const auto sent = bytes_from(position, 100);
    position += 100;
    ASSERT_EQ(ring.write(sent).value(), 100U);
    std::vector<std::byte> received(100);
    ASSERT_EQ(ring.reader.read(received).value(), 100U);
    ASSERT_EQ(received, sent);
  }
  const auto rest = ring.bytes.subspan(std::size_t{32} << 10U);
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Ring, WakesAReaderOnceWhenItAsked) {
  Ring ring(kRingBytesMin);
  const auto sent = bytes_from(0, 10);
  EXPECT_EQ(ring.write(sent).value(), 10U);
  EXPECT_EQ(ring.wakes, 0);
  EXPECT_FALSE(ring.reader.ask()) << "there are bytes already";
  std::vector<std::byte> received(10);
  EXPECT_EQ(ring.reader.read(received).value(), 10U);
  EXPECT_TRUE(ring.reader.ask());
  EXPECT_EQ(ring.write(sent).value(), 10U);
  EXPECT_EQ(ring.wakes, 1);
  EXPECT_EQ(ring.write(sent).value(), 10U);
  EXPECT_EQ(ring.wakes, 1);
}

TEST(Ring, WakesAWriterWhenHalfOfItIsFree) {
  Ring ring(kRingBytesMin);
  const auto sent = bytes_from(0, kRingBytesMin);
  EXPECT_FALSE(ring.writer.ask()) << "there is room already";
  EXPECT_EQ(ring.write(sent).value(), kRingBytesMin);
  EXPECT_TRUE(ring.writer.ask());
  std::vector<std::byte> received(kRingBytesMin / 2 - 1);
  EXPECT_EQ(ring.reader.read(received).value(), received.size());
  EXPECT_EQ(ring.wakes, 0);
  EXPECT_TRUE(ring.writer.ask());
  EXPECT_EQ(ring.reader.read(std::span(received).first(1)).value(), 1U);
  EXPECT_EQ(ring.wakes, 1);
  EXPECT_FALSE(ring.writer.ask());
  EXPECT_EQ(ring.reader.read(received).value(), received.size());
  EXPECT_EQ(ring.wakes, 1);
}

// Both sleep whenever they can; a wake-up that got lost fails the test.
void carry_between_threads(std::size_t ring_bytes, std::size_t size_max, std::uint64_t total) {
  std::counting_semaphore<> bytes_came(0);
  std::counting_semaphore<> room_came(0);
  Ring ring(
      ring_bytes, [&] { bytes_came.release(); }, [&] { room_came.release(); });
  std::thread writing([&] {
    Random random(1);
    for (std::uint64_t position = 0; position < total;) {
      const std::size_t size =
          std::min<std::uint64_t>(random.below(size_max) + 1, total - position);
      const auto sent = bytes_from(position, size);
      for (std::size_t done = 0; done < size;) {
        const auto taken = ring.write(std::span(sent).subspan(done));
        ASSERT_TRUE(taken);
        done += *taken;
        if (*taken == 0 && ring.writer.ask()) {
          ASSERT_TRUE(room_came.try_acquire_for(60s));
        }
      }
      position += size;
    }
  });
  Random random(2);
  std::vector<std::byte> received(size_max);
  std::uint64_t wrong_count = 0;
  bool woken = true;
  for (std::uint64_t position = 0; position < total && woken;) {
    const std::size_t size = random.below(size_max) + 1;
    const auto got = ring.reader.read(std::span(received).first(size));
    ASSERT_TRUE(got);
    for (std::size_t index = 0; index < *got; ++index)
      wrong_count += received[index] == byte_at(position + index) ? 0U : 1U;
    position += *got;
    if (*got == 0 && ring.reader.ask()) woken = bytes_came.try_acquire_for(60s);
  }
  writing.join();
  EXPECT_TRUE(woken);
  EXPECT_EQ(wrong_count, 0U);
}

TEST(Ring, CarriesSmallSizesBetweenThreads) {
  carry_between_threads(std::size_t{64} << 10U, 300, std::uint64_t{1} << 20U);
}

TEST(Ring, CarriesSizesLikeItsOwnBetweenThreads) {
  carry_between_threads(kRingBytesMin, 2 * kRingBytesMin, std::uint64_t{1} << 20U);
}

TEST(Ring, CarriesLargeSizesBetweenThreads) {
  carry_between_threads(kRingBytesDefault, 3 * kRingBytesDefault, std::uint64_t{8} << 20U);
}

// Each waits for the other one's byte, now and then a little longer before it goes to sleep: a
// wake-up that got lost would leave both asleep.
TEST(Ring, LosesNoWakeUpOfTwoThatTakeTurns) {
  constexpr int kTurns = 10'000;
  std::array<std::counting_semaphore<>, 2> came = {std::counting_semaphore<>(0),
                                                   std::counting_semaphore<>(0)};
  Ring there(kRingBytesMin, [&] { came[1].release(); });
  Ring back(kRingBytesMin, [&] { came[0].release(); });
  const auto take_turns = [&](std::size_t side) {
    Random random(side);
    Ring& to = side == 0 ? there : back;
    Ring& from = side == 0 ? back : there;
    std::byte byte{};
    for (int turn = 0; turn < kTurns; ++turn) {
      if (side == 0 && to.write({&byte, 1}).value_or(0) != 1) return false;
      for (std::uint64_t looks = random.below(300);; looks -= looks > 0 ? 1 : 0) {
        if (from.reader.read({&byte, 1}).value_or(0) == 1) break;
        if (looks == 0 && from.reader.ask() && !came[side].try_acquire_for(60s)) return false;
      }
      if (side == 1 && to.write({&byte, 1}).value_or(0) != 1) return false;
    }
    return true;
  };
  bool done = false;
  std::thread other([&] { done = take_turns(1); });
  EXPECT_TRUE(take_turns(0));
  other.join();
  EXPECT_TRUE(done);
}

TEST(Ring, IsBrokenForAReaderWhoseWriterClaimsMoreThanFits) {
  Ring ring(kRingBytesMin);
  std::vector<std::byte> received(2 * kRingBytesMin);
  ring.control.written = kRingBytesMin + 1;
  EXPECT_EQ(ring.reader.read(received).error().kind, ErrorKind::Unavailable);
  ring.control.written = 1;
  EXPECT_EQ(ring.reader.read(received).error().kind, ErrorKind::Unavailable) << "for ever";
  EXPECT_FALSE(ring.reader.ask()) << "nothing to wait for";
}

TEST(Ring, IsBrokenForAReaderWhoseWriterGoesBack) {
  Ring ring(kRingBytesMin);
  std::vector<std::byte> received(10);
  ring.control.written = 20;
  EXPECT_EQ(ring.reader.read(received).value(), 10U);
  ring.control.written = 15;
  EXPECT_EQ(ring.reader.read(received).value(), 10U);
  EXPECT_EQ(ring.reader.read(received).error().kind, ErrorKind::Unavailable);
}

TEST(Ring, IsBrokenForAWriterWhoseReaderClaimsWhatWasNotWritten) {
  Ring ring(kRingBytesMin);
  const auto sent = bytes_from(0, kRingBytesMin);
  EXPECT_EQ(ring.write(std::span(sent).first(100)).value(), 100U);
  ring.control.read = 101;
  EXPECT_EQ(ring.write(sent).error().kind, ErrorKind::Unavailable);
  EXPECT_FALSE(ring.writer.ask()) << "nothing to wait for";
}

TEST(Ring, IsBrokenForAWriterWhoseReaderGoesBack) {
  Ring ring(kRingBytesMin);
  const auto sent = bytes_from(0, kRingBytesMin);
  EXPECT_EQ(ring.write(sent).value(), kRingBytesMin);
  ring.control.read = 100;
  EXPECT_EQ(ring.write(sent).value(), 100U);
  ring.control.read = 99;
  EXPECT_EQ(ring.write(sent).error().kind, ErrorKind::Unavailable);
}

TEST(Ring, StaysWithinItsMemoryWhateverIsScribbledIntoIt) {
  Random random(3);
  const auto sent = bytes_from(0, std::size_t{100} << 10U);
  std::vector<std::byte> received(sent.size());
  int broken_count = 0;
  int moved_count = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t ring_bytes = kRingBytesMin << random.below(6);
    Ring ring(ring_bytes);
    for (int step = 0; step < 20; ++step) {
      const std::array<std::atomic<std::uint64_t>*, 3> positions = {
          &ring.control.written, &ring.control.jumped_to, &ring.control.read};
      std::atomic<std::uint64_t>& position = *positions[random.below(3)];
      const std::uint64_t kind = random.below(4);
      if (kind == 0) position = random.next();
      if (kind == 1) position = position + random.below(2 * ring_bytes) - ring_bytes;
      if (kind == 2) position = std::numeric_limits<std::uint64_t>::max() - random.below(3);
      const auto taken = ring.write(std::span(sent).first(random.below(sent.size())));
      const auto got = ring.reader.read(std::span(received).first(random.below(sent.size())));
      (void)ring.writer.ask();
      (void)ring.reader.ask();
      broken_count += taken && got ? 0 : 1;
      moved_count += taken && got && *got > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(broken_count, 1000);
  EXPECT_GT(moved_count, 1000);
}

}  // namespace
}  // namespace muster::rpc
