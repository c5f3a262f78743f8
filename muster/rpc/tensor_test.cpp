#include "muster/rpc/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

static_assert(Codable<Tensor> && Codable<std::vector<Tensor>>);

std::vector<float> counted(std::size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  return numbers;
}

Buffer storage_of(const std::vector<float>& numbers) {
  return copy_of(std::as_bytes(std::span(numbers)));
}

std::vector<float> values_of(const Tensor& tensor) {
  const auto copied = tensor.copy();
  EXPECT_TRUE(copied) << copied.error().message;
  const auto values = copied->values<float>();
  return {values->begin(), values->end()};
}

std::vector<std::int64_t> list(std::span<const std::int64_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

std::string error_of(TensorLayout layout, std::size_t storage_bytes) {
  const auto tensor =
      Tensor::create(std::move(layout), copy_of(std::vector<std::byte>(storage_bytes)));
  return tensor ? "" : tensor.error().message;
}

Tensor sent(const Tensor& tensor) {
  Writer writer;
  writer.write(tensor);
  EXPECT_TRUE(writer.finish());
  auto received = decode<Tensor>(writer.control(), writer.buffers());
  EXPECT_TRUE(received) << received.error().message;
  return received ? *received : Tensor();
}

TEST(Tensor, OwnsTheNumbersThatWereMovedIn) {
  std::vector<float> numbers = counted(6);
  const float* const memory = numbers.data();
  auto tensor = Tensor::from(std::move(numbers), {2, 3});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(describe(*tensor), "f32[2,3] on cpu");
  EXPECT_EQ(list(tensor->strides()), (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(tensor->byte_count(), 24U);
  EXPECT_TRUE(tensor->contiguous());
  EXPECT_EQ(tensor->values<float>()->data(), memory);
  (*tensor->mutable_values<float>())[5] = 7;
  EXPECT_EQ((*tensor->values<float>())[5], 7);
}

TEST(Tensor, BorrowsNumbersAndDoesNotChangeThem) {
  const std::vector<float> numbers = counted(4);
  auto tensor = Tensor::borrow<float>(numbers, {4});
  ASSERT_TRUE(tensor);
  EXPECT_TRUE(tensor->storage().is_borrowed());
  EXPECT_EQ(tensor->values<float>()->data(), numbers.data());
  EXPECT_EQ(tensor->mutable_values<float>().error().message,
            "f32[4] on cpu is not ours to change; copy() is");
  Tensor copied = tensor->copy().value();
  EXPECT_TRUE(copied.mutable_values<float>());
}

TEST(Tensor, RefusesAShapeThatHasOtherElementsThanWereGiven) {
  EXPECT_EQ(Tensor::from(counted(6), {2, 2}).error().message,
            "f32[2,2] on cpu has 4 elements, and 6 were given");
  EXPECT_FALSE(Tensor::from(counted(6), {7}));
}

TEST(Tensor, AllocatesAlignedMemory) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto tensor = Tensor::allocate(static_cast<DType>(i), {5});
    ASSERT_TRUE(tensor);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->data()) % kBufferAlignment, 0U);
    EXPECT_EQ(tensor->byte_count(), 5 * size_of(static_cast<DType>(i)));
  }
  EXPECT_FALSE(Tensor::allocate(DType::F32, {kHuge, 2}));
  EXPECT_FALSE(Tensor::allocate(DType::F32, {kHuge}));
  EXPECT_FALSE(Tensor::allocate(DType::F32, {-1}));
  EXPECT_FALSE(Tensor::allocate(static_cast<DType>(kDTypeCount), {1}));
}

TEST(Tensor, OfRankZeroIsOneElement) {
  const auto tensor = Tensor::from(std::vector<double>{2.5}, {});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->element_count(), 1U);
  EXPECT_EQ(sent(*tensor).values<double>()->front(), 2.5);
}

TEST(Tensor, WithoutElementsIsStillATensor) {
  const auto tensor = Tensor::allocate(DType::I32, {3, 0, 2});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->element_count(), 0U);
  EXPECT_TRUE(tensor->contiguous());
  EXPECT_TRUE(tensor->copy()->defined());
  const Tensor received = sent(*tensor);
  EXPECT_EQ(describe(received), "i32[3,0,2] on cpu");
  EXPECT_FALSE(sent(Tensor()).defined());
  EXPECT_EQ(describe(Tensor()), "no tensor");
}

TEST(Tensor, StaysInsideItsStorage) {
  EXPECT_EQ(error_of({.shape = {2, 3}}, 24), "");
  EXPECT_EQ(error_of({.shape = {2, 3}}, 23),
            "a tensor needs 24 bytes from byte 0 on, and its storage has 23");
  EXPECT_EQ(error_of({.shape = {2, 3}, .strides = {4, 1}}, 28), "");
  EXPECT_NE(error_of({.shape = {2, 3}, .strides = {4, 1}}, 27), "");
  EXPECT_EQ(error_of({.shape = {5}, .offset_bytes = 4}, 24), "");
  EXPECT_NE(error_of({.shape = {6}, .offset_bytes = 4}, 24), "");
  EXPECT_NE(error_of({.shape = {0}, .offset_bytes = 28}, 24), "");
  EXPECT_NE(
      error_of({.shape = {1}, .offset_bytes = std::numeric_limits<std::size_t>::max() - 3}, 24),
      "");
  EXPECT_EQ(error_of({.shape = {1000}, .strides = {0}}, 4), "");
}

TEST(Tensor, RefusesNumbersThatOverflowOrAreNegative) {
  const std::string kTooLarge = "the shape of a tensor is too large";
  EXPECT_EQ(error_of({.shape = {kHuge, kHuge}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {kHuge, 4, 0}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {kHuge, kHuge}, .strides = {0, 0}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {kHuge, kHuge, 0}, .strides = {0, 0, 0}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {2, 2}, .strides = {kHuge, kHuge}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {3}, .strides = {kHuge / 2 + 1}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {2}, .strides = {kHuge}}, 24), kTooLarge);
  EXPECT_EQ(error_of({.shape = {-1}}, 24), "a tensor has a negative size");
  EXPECT_EQ(error_of({.shape = {2}, .strides = {-1}}, 24), "a tensor has a negative stride");
  EXPECT_EQ(error_of({.shape = {2}, .strides = {1, 1}}, 24),
            "a tensor has 1 dimensions and 2 strides");
}

TEST(Tensor, HasAsManyDimensionsAsTheLimitAndNoMore) {
  EXPECT_EQ(error_of({.shape = std::vector<std::int64_t>(kRankMax, 1)}, 4), "");
  EXPECT_EQ(error_of({.shape = std::vector<std::int64_t>(kRankMax + 1, 1)}, 4),
            "a tensor has 65 dimensions, more than 64");
  const auto most = Tensor::from(counted(1), std::vector<std::int64_t>(kRankMax, 1));
  EXPECT_EQ(sent(*most).rank(), kRankMax);
}

TEST(Tensor, RefusesElementsThatAreNotAligned) {
  EXPECT_EQ(error_of({.shape = {2}, .offset_bytes = 2}, 24),
            "the elements of a tensor are not aligned");
  EXPECT_EQ(error_of({.dtype = DType::F16, .shape = {2}, .offset_bytes = 2}, 24), "");
  EXPECT_EQ(error_of({.dtype = DType::C128, .shape = {1}, .offset_bytes = 8}, 24), "");
}

TEST(Tensor, GivesItsElementsOnlyAsTheirOwnType) {
  const auto tensor = Tensor::allocate(DType::BF16, {2});
  EXPECT_EQ(tensor->values<float>().error().message,
            "bf16[2] on cpu was asked for elements of another type");
  EXPECT_TRUE(tensor->values<std::uint16_t>());
  EXPECT_FALSE(tensor->values<std::int16_t>());
  EXPECT_TRUE(Tensor::allocate(DType::Bool, {2})->values<std::uint8_t>());
  EXPECT_FALSE(Tensor::allocate(DType::I64, {2})->values<std::uint64_t>());
  EXPECT_TRUE(Tensor::allocate(DType::C64, {2})->values<std::complex<float>>());
  EXPECT_EQ(tensor->viewed_as(DType::U16)->dtype(), DType::U16);
  EXPECT_FALSE(tensor->viewed_as(DType::F32));
  EXPECT_FALSE(Tensor().values<float>());
}

TEST(Tensor, CopiesViewsInTheOrderOfTheirElements) {
  const Buffer storage = storage_of(counted(24));
  // 2 x 3 x 4, with its dimensions in another order.
  const auto turned = Tensor::create({.shape = {4, 2, 3}, .strides = {1, 12, 4}}, storage);
  std::vector<float> expected;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      for (int k = 0; k < 3; ++k) expected.push_back(static_cast<float>(i + 12 * j + 4 * k));
    }
  }
  EXPECT_EQ(values_of(*turned), expected);
  EXPECT_EQ(turned->values<float>().error().message,
            "f32[4,2,3] on cpu is not contiguous; copy() is");

  const auto columns =
      Tensor::create({.shape = {3, 1, 2}, .strides = {8, 99, 1}, .offset_bytes = 8}, storage);
  EXPECT_EQ(values_of(*columns), (std::vector<float>{2, 3, 10, 11, 18, 19}));
  const auto repeated = Tensor::create({.shape = {2, 2}, .strides = {0, 1}}, storage);
  EXPECT_EQ(values_of(*repeated), (std::vector<float>{0, 1, 0, 1}));
  const auto every_third = Tensor::create({.shape = {3}, .strides = {3}}, storage);
  EXPECT_EQ(values_of(*every_third), (std::vector<float>{0, 3, 6}));
}

TEST(Tensor, CopiesElementsOfEverySize) {
  for (const DType dtype : {DType::U8, DType::I16, DType::F32, DType::F64, DType::C128}) {
    const std::size_t size = size_of(dtype);
    std::vector<std::byte> bytes(6 * size);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    const auto turned =
        Tensor::create({.dtype = dtype, .shape = {3, 2}, .strides = {1, 3}}, copy_of(bytes));
    ASSERT_TRUE(turned);
    const Tensor copied = turned->copy().value();
    EXPECT_TRUE(copied.contiguous());
    EXPECT_EQ(copied.data()[size], static_cast<std::byte>(3 * size));
    EXPECT_EQ(copied.data()[6 * size - 1], static_cast<std::byte>(6 * size - 1));
  }
}

TEST(SentTensor, KeepsShapeTypeStridesAndContent) {
  const auto plain = Tensor::from(counted(6), {2, 3});
  EXPECT_EQ(describe(sent(*plain)), "f32[2,3] on cpu");
  EXPECT_EQ(values_of(sent(*plain)), counted(6));

  const auto turned = Tensor::create({.shape = {3, 2}, .strides = {1, 3}}, plain->storage());
  const Tensor received = sent(*turned);
  EXPECT_EQ(list(received.strides()), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(values_of(received), values_of(*turned));
  EXPECT_EQ(values_of(sent(received)), values_of(*turned));
}

TEST(SentTensor, OfAnySizeIsNotCopiedBySenderOrReceiver) {
  const auto tensor = Tensor::from(counted(10'000), {100, 100});
  const Tensor received = sent(*tensor);
  EXPECT_EQ(received.data(), tensor->data());
  EXPECT_EQ(received.storage().owner(), tensor->storage().owner());
  Tensor writable = received;
  EXPECT_FALSE(writable.mutable_values<float>());
}

TEST(SentTensor, IsInTheControlPartWhereItIsSmall) {
  Writer writer;
  writer.write(*Tensor::from(counted(4), {4}));
  EXPECT_TRUE(writer.buffers().empty());
  EXPECT_EQ(writer.size(), 2 + 8 + 4 + 16U);
}

TEST(SentTensor, LeavesOutWhatIsBeforeAndBehindItWithoutACopy) {
  const auto all = Tensor::from(counted(10'000), {10'000});
  const auto rows = Tensor::create({.shape = {50, 50}, .offset_bytes = 4'000}, all->storage());
  Writer writer;
  writer.write(*rows);
  ASSERT_EQ(writer.buffers().size(), 1U);
  EXPECT_EQ(writer.buffers()[0].data(), rows->data());
  EXPECT_EQ(writer.buffers()[0].size(), 10'000U);
  EXPECT_EQ(values_of(sent(*rows)), values_of(*rows));
}

// The first n of every 100 elements of a storage of `row_count` rows.
Tensor columns_of(std::int64_t row_count, std::int64_t column_count) {
  const auto storage = storage_of(counted(static_cast<std::size_t>(row_count) * 100));
  return *Tensor::create({.shape = {row_count, column_count}, .strides = {100, 1}}, storage);
}

TEST(SentTensor, ArrivesCompactWhenItUsesHalfOfALargeStorageOrLess) {
  const Tensor half = columns_of(100, 50);
  EXPECT_TRUE(sent(half).contiguous());
  EXPECT_EQ(values_of(sent(half)), values_of(half));
  EXPECT_EQ(sent(half).storage().size(), half.byte_count());

  const Tensor more = columns_of(100, 51);
  EXPECT_FALSE(sent(more).contiguous());
  EXPECT_EQ(list(sent(more).strides()), (std::vector<std::int64_t>{100, 1}));
  EXPECT_EQ(values_of(sent(more)), values_of(more));
}

TEST(SentTensor, KeepsItsStridesInAStorageBelowTheLimit) {
  const auto strides_in = [](std::size_t storage_bytes) {
    const Buffer storage = copy_of(std::vector<std::byte>(storage_bytes));
    return list(sent(*Tensor::create({.shape = {8}, .strides = {2}}, storage)).strides());
  };
  EXPECT_EQ(strides_in(kCompactBytesMin - 1), std::vector<std::int64_t>{2});
  EXPECT_EQ(strides_in(kCompactBytesMin), std::vector<std::int64_t>{1});
}

TEST(SentTensor, IsCopiedWhereTheReceivedMemoryIsNotAligned) {
  const auto tensor = Tensor::from(counted(4'000), {4'000});
  Writer writer;
  writer.write(*tensor);
  std::vector<std::byte> odd(16'001);
  std::memcpy(odd.data() + 1, tensor->data(), 16'000);
  const Buffer buffers[] = {Buffer::borrow(std::span<const std::byte>(odd).subspan(1))};
  const auto received = decode<Tensor>(writer.control(), buffers);
  ASSERT_TRUE(received);
  EXPECT_EQ(values_of(*received), counted(4'000));
}

TEST(SentTensor, IsRefusedWhenItsShapeDoesNotFitItsBytes) {
  Writer writer;
  writer.write(*Tensor::from(counted(4), {2, 2}));
  const std::string good = writer.take_control();
  ASSERT_TRUE(decode<Tensor>(good));
  std::string larger = good;
  larger[2] = 3;
  std::string smaller = good;
  smaller[2] = 1;
  std::string negative = good;
  negative[9] = '\x80';
  std::string unknown_type = good;
  unknown_type[0] = static_cast<char>(kDTypeCount);
  std::string ranks = good;
  ranks[1] = static_cast<char>(kRankMax + 1);
  for (const std::string& bad : {larger, smaller, negative, unknown_type, ranks}) {
    EXPECT_FALSE(decode<Tensor>(bad));
  }
  EXPECT_EQ(decode<Tensor>(larger).error().message,
            "at byte 38 of 38: the shape of a tensor does not fit its bytes");
}

TEST(SentTensor, SurvivesEveryByteThatIsChanged) {
  Writer writer;
  writer.write(*Tensor::create({.shape = {2, 2}, .strides = {1, 2}}, storage_of(counted(4))));
  std::string control = writer.take_control();
  for (char& place : control) {
    const char before = place;
    for (int value = 0; value < 256; ++value) {
      place = static_cast<char>(value);
      if (const auto tensor = decode<Tensor>(control); tensor && tensor->byte_count() < 10'000) {
        EXPECT_LE(tensor->extent_bytes(), tensor->storage().size());
        if (!tensor->defined()) continue;
        EXPECT_EQ(tensor->copy()->element_count(), tensor->element_count());
      }
    }
    place = before;
  }
}

// Such a stride means nothing, and must not be used to compute an address.
TEST(Tensor, IsCopiedWhateverTheStrideOfADimensionOfOneIs) {
  const std::vector<std::int64_t> strides{kHuge, 1, kHuge / 2, 3};
  const auto tensor =
      Tensor::create({.shape = {1, 3, 1, 2}, .strides = strides}, storage_of(counted(6)));
  ASSERT_TRUE(tensor);
  EXPECT_EQ(values_of(*tensor), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const Tensor received = sent(*tensor);
  EXPECT_EQ(list(received.strides()), strides);
  EXPECT_EQ(values_of(received), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(Tensor, IsNotCopiedIfStridesOfZeroMakeTooMuchOfIt) {
  constexpr std::int64_t kRow = 1 << 18;
  constexpr auto kMost = static_cast<std::int64_t>(kExpandedBytesMax / sizeof(float)) / kRow;
  const Buffer row = storage_of(counted(kRow));
  const auto expanded = [&](std::int64_t count) {
    return Tensor::create({.shape = {count, kRow}, .strides = {0, 1}}, row).value();
  };
  const auto refused = expanded(kMost + 1).copy();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(refused.error().message,
            "a copy of f32[1025,262144] on cpu would have 1074790400 bytes, made of 1048576, and "
            "may have 1073741824");
  EXPECT_FALSE(expanded(std::int64_t{1} << 40).copy());
  EXPECT_EQ(expanded(kMost).copy()->byte_count(), kExpandedBytesMax);
}

TEST(Tensor, IsNotCopiedIfItIsNoneOrElsewhere) {
  EXPECT_EQ(Tensor().copy().error().message, "there is no tensor");
  const auto elsewhere =
      Tensor::create({.shape = {1}, .device = {DeviceKind::Cuda, 1}}, storage_of(counted(1)));
  EXPECT_EQ(elsewhere->copy().error().message, "f32[1] on cuda:1 cannot be read by the CPU");
}

// Sanitizers end a program that asks for so much.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Tensor, IsNotAllocatedIfThereIsNoMemory) {
  const auto none = Tensor::allocate(DType::U8, {std::int64_t{1} << 60});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::Unavailable);
}
#endif

TEST(Device, IsNamedAsProgramsNameIt) {
  EXPECT_EQ(describe(Device{}), "cpu");
  EXPECT_EQ(describe(Device{DeviceKind::Cuda, 1}), "cuda:1");
  EXPECT_EQ(describe(Device{static_cast<DeviceKind>(99), 0}), "device_99:0");
  EXPECT_TRUE((Device{DeviceKind::CudaHost, 0}).is_host());
  EXPECT_FALSE((Device{DeviceKind::Rocm, 0}).is_host());
}

}  // namespace
}  // namespace muster::rpc
