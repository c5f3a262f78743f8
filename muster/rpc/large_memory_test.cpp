#include "muster/rpc/large_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20U;

class LargeMemoryTest : public ::testing::Test {
 protected:
  LargeMemory memory;
};

TEST_F(LargeMemoryTest, ServesTheNextBufferWithWhatTheLastGaveBack) {
  auto first = memory.allocate(64 * kMiB);
  const std::byte* const begin = first.get();
  first.get()[63 * kMiB] = std::byte{7};
  first.reset();
  EXPECT_EQ(memory.kept_bytes(), 64 * kMiB);
  const auto second = memory.allocate(63 * kMiB);
  EXPECT_EQ(second.get(), begin);
  EXPECT_EQ(memory.kept_bytes(), 0U);
  EXPECT_NE(memory.allocate(64 * kMiB).get(), begin) << "it is in use";
}

TEST_F(LargeMemoryTest, DoesNotWasteALargeBlockOnASmallBuffer) {
  memory.allocate(64 * kMiB).reset();
  const auto small = memory.allocate(2 * kMiB);
  EXPECT_EQ(memory.kept_bytes(), 64 * kMiB);
}

TEST_F(LargeMemoryTest, KeepsNoMoreThanItMay) {
  std::vector<std::shared_ptr<std::byte>> buffers;
  for (int count = 0; count < 20; ++count) buffers.push_back(memory.allocate(64 * kMiB));
  buffers.clear();
  EXPECT_EQ(memory.kept_bytes(), LargeMemory::kKeptBytesMax);
}

TEST_F(LargeMemoryTest, ReturnsWhatNobodyWants) {
  memory.allocate(8 * kMiB).reset();
  const TimePoint now = SystemClock().now();
  memory.trim(now);
  EXPECT_EQ(memory.kept_bytes(), 8 * kMiB);
  memory.trim(now + LargeMemory::kKeptTime + 1s);
  EXPECT_EQ(memory.kept_bytes(), 0U);
}

TEST_F(LargeMemoryTest, SaysWhenThereIsNotSoMuch) {
  EXPECT_EQ(memory.allocate(SIZE_MAX - 5), nullptr);
  EXPECT_EQ(memory.allocate(SIZE_MAX / 2), nullptr);
}

TEST_F(LargeMemoryTest, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([this, number] {
      for (int count = 0; count < 200; ++count) {
        const auto mine = memory.allocate(static_cast<std::size_t>(number + 1) * kMiB);
        *mine = static_cast<std::byte>(number);
        std::this_thread::yield();
        ASSERT_EQ(*mine, static_cast<std::byte>(number));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace muster::rpc
