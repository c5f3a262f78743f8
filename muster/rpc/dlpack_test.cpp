#include "muster/rpc/dlpack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

// A tensor of another library, which counts how often it is deleted.
struct Foreign {
  explicit Foreign(std::vector<std::int64_t> with_shape) : shape(std::move(with_shape)) {
    managed.dl_tensor.data = numbers;
    managed.dl_tensor.device = DLDevice{kDLCPU, 0};
    managed.dl_tensor.ndim = static_cast<int>(shape.size());
    managed.dl_tensor.dtype = DLDataType{kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape.data();
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deleted_count;
    };
  }
  float numbers[6] = {0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  DLManagedTensor managed{};
  int deleted_count = 0;
};

TEST(FromDlpack, SharesTheMemoryAndDeletesItOnceWithItsLastUser) {
  Foreign foreign({2, 3});
  auto tensor = from_dlpack(&foreign.managed);
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(describe(*tensor), "f32[2,3] on cpu");
  EXPECT_EQ(static_cast<const void*>(tensor->data()), foreign.numbers);
  EXPECT_TRUE(tensor->contiguous());
  EXPECT_EQ((*tensor->values<float>())[5], 5);

  Tensor other = *tensor;
  Buffer storage = other.storage();
  tensor = Tensor();
  other = Tensor();
  EXPECT_EQ(foreign.deleted_count, 0);
  storage = Buffer();
  EXPECT_EQ(foreign.deleted_count, 1);
}

TEST(FromDlpack, KeepsStridesAndOffset) {
  Foreign foreign({2, 2});
  foreign.strides = {1, 3};
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  foreign.managed.dl_tensor.byte_offset = 4;
  const auto tensor = from_dlpack(&foreign.managed);
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_FALSE(tensor->contiguous());
  EXPECT_EQ(tensor->extent_bytes(), 20U);
  const Tensor copied = tensor->copy().value();
  const auto values = copied.values<float>();
  ASSERT_TRUE(values);
  EXPECT_EQ(std::vector<float>(values->begin(), values->end()), (std::vector<float>{1, 4, 2, 5}));
}

TEST(FromDlpack, DeletesWhatItRefuses) {
  Foreign negative({2, 3});
  negative.strides = {3, -1};
  negative.managed.dl_tensor.strides = negative.strides.data();
  EXPECT_FALSE(from_dlpack(&negative.managed));
  EXPECT_EQ(negative.deleted_count, 1);

  Foreign vectors({2});
  vectors.managed.dl_tensor.dtype.lanes = 4;
  EXPECT_FALSE(from_dlpack(&vectors.managed));
  EXPECT_EQ(vectors.deleted_count, 1);

  Foreign opaque({2});
  opaque.managed.dl_tensor.dtype = DLDataType{kDLOpaqueHandle, 64, 1};
  EXPECT_FALSE(from_dlpack(&opaque.managed));
  EXPECT_EQ(opaque.deleted_count, 1);

  Foreign nowhere({2});
  nowhere.managed.dl_tensor.data = nullptr;
  EXPECT_FALSE(from_dlpack(&nowhere.managed));
  EXPECT_EQ(nowhere.deleted_count, 1);

  Foreign beyond({2});
  beyond.managed.dl_tensor.byte_offset = UINT64_MAX - 8;
  EXPECT_FALSE(from_dlpack(&beyond.managed));
  EXPECT_EQ(beyond.deleted_count, 1);

  Foreign ranks({2});
  ranks.managed.dl_tensor.ndim = -1;
  EXPECT_FALSE(from_dlpack(&ranks.managed));
  ranks.managed.dl_tensor.ndim = static_cast<int>(kRankMax) + 1;
  EXPECT_FALSE(from_dlpack(&ranks.managed));
  EXPECT_EQ(ranks.deleted_count, 2);

  EXPECT_FALSE(from_dlpack(nullptr));
}

TEST(FromDlpack, TakesATensorThatHasNoDeleterOrNoElements) {
  Foreign foreign({0, 3});
  foreign.managed.deleter = nullptr;
  foreign.managed.dl_tensor.data = nullptr;
  const auto tensor = from_dlpack(&foreign.managed);
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(tensor->element_count(), 0U);
}

TEST(FromDlpack, DescribesMemoryOfOtherDevicesAndRefusesToReadIt) {
  Foreign foreign({2, 3});
  foreign.managed.dl_tensor.device = DLDevice{kDLCUDA, 1};
  foreign.managed.dl_tensor.data = reinterpret_cast<void*>(std::uintptr_t{0x1001});
  const auto tensor = from_dlpack(&foreign.managed);
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(describe(*tensor), "f32[2,3] on cuda:1");
  EXPECT_EQ(tensor->values<float>().error().message,
            "f32[2,3] on cuda:1 cannot be read by the CPU");
  Writer writer;
  writer.write(*tensor);
  ASSERT_FALSE(writer.finish());
  EXPECT_EQ(writer.finish().error().message,
            "f32[2,3] on cuda:1 cannot be sent: its memory cannot be read by the CPU");
  const auto again = to_dlpack(*tensor);
  EXPECT_EQ((*again)->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ((*again)->dl_tensor.data, reinterpret_cast<void*>(std::uintptr_t{0x1001}));
}

TEST(ToDlpack, KeepsTheMemoryUntilItsDeleterIsCalled) {
  std::weak_ptr<const void> memory;
  DlpackTensor handed_out;
  {
    auto tensor = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4}, {2, 2});
    ASSERT_TRUE(tensor);
    memory = tensor->storage().owner();
    auto converted = to_dlpack(*tensor);
    ASSERT_TRUE(converted);
    handed_out = std::move(*converted);
  }
  EXPECT_FALSE(memory.expired());
  const DLTensor& shown = handed_out->dl_tensor;
  EXPECT_EQ(shown.ndim, 2);
  EXPECT_EQ(shown.shape[1], 2);
  EXPECT_EQ(shown.strides[0], 2);
  EXPECT_EQ(shown.dtype.code, kDLInt);
  EXPECT_EQ(shown.dtype.bits, 64);
  EXPECT_EQ(shown.dtype.lanes, 1);
  EXPECT_EQ(static_cast<const std::int64_t*>(shown.data)[3], 4);

  DLManagedTensor* const raw = handed_out.release();
  raw->deleter(raw);
  EXPECT_TRUE(memory.expired());
}

TEST(ToDlpack, ComesBackThroughFromDlpackForEveryType) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto tensor = Tensor::allocate(dtype, {3});
    ASSERT_TRUE(tensor);
    auto converted = to_dlpack(*tensor);
    ASSERT_TRUE(converted);
    const auto again = from_dlpack(converted->release());
    ASSERT_TRUE(again) << name_of(dtype);
    EXPECT_EQ(again->dtype(), dtype);
    EXPECT_EQ(again->data(), tensor->data());
  }
}

TEST(ToDlpack, RefusesWhatIsNoTensor) { EXPECT_FALSE(to_dlpack(Tensor())); }

}  // namespace
}  // namespace muster::rpc
