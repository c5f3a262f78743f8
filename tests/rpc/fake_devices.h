// Accelerators for tests: their memory is the CPU's, but every byte in it is garbled, differently
// on each device, and only what is moved becomes right again.
#pragma once

#include "muster/rpc/buffer.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/tensor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

class FakeDevices final : public DeviceSupport {
 public:
  explicit FakeDevices(std::int32_t count) : count_(count) {}

  std::int32_t device_count() const override { return count_; }
  Result<Buffer> to_host(const Device& device, std::span<const std::byte> memory) override {
    return moved(device, memory);
  }
  Result<Buffer> to_device(const Device& device, std::span<const std::byte> bytes) override {
    return moved(device, bytes);
  }

  // How often, and how much.
  int move_count() const { return move_count_; }
  std::size_t moved_bytes() const { return moved_bytes_; }

  // 1, 2, 3 … `count` as numbers on `device`.
  static Tensor counting(const Device& device, int count) {
    FakeDevices all(device.index + 1);
    std::vector<float> values;
    for (int i = 1; i <= count; ++i) values.push_back(static_cast<float>(i));
    auto memory = all.to_device(device, std::as_bytes(std::span(values)));
    TensorLayout layout{.dtype = DType::F32, .shape = {count}, .device = device};
    return Tensor::create(std::move(layout), std::move(*memory)).value();
  }
  // The numbers of a tensor, wherever it is.
  static std::vector<float> numbers(const Tensor& tensor) {
    if (tensor.device().is_host()) return numbers_of(tensor.copy().value());
    FakeDevices all(tensor.device().index + 1);
    TensorLayout layout{.dtype = tensor.dtype()};
    layout.shape.assign(tensor.shape().begin(), tensor.shape().end());
    layout.strides.assign(tensor.strides().begin(), tensor.strides().end());
    layout.offset_bytes = tensor.offset_bytes();
    auto memory = all.to_host(tensor.device(), tensor.storage().bytes());
    return numbers_of(Tensor::create(std::move(layout), std::move(*memory)).value().copy().value());
  }

 private:
  static std::vector<float> numbers_of(const Tensor& tensor) {
    const auto values = tensor.values<float>();
    EXPECT_TRUE(values);
    return {values->begin(), values->end()};
  }

  Result<Buffer> moved(const Device& device, std::span<const std::byte> from) {
    if (device.kind != DeviceKind::Cuda || device.index < 0 || device.index >= count_) {
      return fail(ErrorKind::Invalid, fmt::format("there is no {} here", describe(device)));
    }
    ++move_count_;
    moved_bytes_ += from.size();
    const std::shared_ptr<std::byte> memory = allocate_bytes(from.size());
    const auto key = static_cast<std::byte>(0x5a + device.index);
    for (std::size_t i = 0; i < from.size(); ++i) memory.get()[i] = from[i] ^ key;
    return Buffer({memory.get(), from.size()}, memory);
  }

  const std::int32_t count_;
  std::atomic<int> move_count_ = 0;
  std::atomic<std::size_t> moved_bytes_ = 0;
};

}  // namespace muster::rpc::testing
