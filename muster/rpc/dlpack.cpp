#include "muster/rpc/dlpack.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

// Newer than the header that distributions have.
constexpr std::uint8_t kDlpackBool = 6;

struct DlpackType {
  std::uint8_t code;
  std::uint8_t bits;
};
// In the order of DType.
constexpr DlpackType kTypes[] = {
    {kDlpackBool, 8}, {kDLUInt, 8},   {kDLUInt, 16},  {kDLUInt, 32},    {kDLUInt, 64},
    {kDLInt, 8},      {kDLInt, 16},   {kDLInt, 32},   {kDLInt, 64},     {kDLFloat, 16},
    {kDLBfloat, 16},  {kDLFloat, 32}, {kDLFloat, 64}, {kDLComplex, 64}, {kDLComplex, 128},
};
static_assert(std::size(kTypes) == kDTypeCount);

std::optional<DType> dtype_of_dlpack(const DLDataType& type) {
  if (type.lanes != 1) return std::nullopt;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (kTypes[i].code == type.code && kTypes[i].bits == type.bits) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// What the handed-out DLManagedTensor points into. It goes with its deleter.
struct Export {
  DLManagedTensor managed{};
  Tensor tensor;                    // keeps the memory
  std::vector<std::int64_t> shape;  // DLPack's pointers are not const
  std::vector<std::int64_t> strides;
};

void delete_export(DLManagedTensor* managed) { delete static_cast<Export*>(managed->manager_ctx); }

}  // namespace

Result<Tensor> from_dlpack(DLManagedTensor* managed) {
  if (managed == nullptr) return fail(ErrorKind::Invalid, "there is no DLPack tensor");
  // Shared by every Tensor and Buffer that refers to the memory; the last one calls the deleter.
  // Should the control block not be allocated, shared_ptr calls it at once.
  const std::shared_ptr<const void> owner(static_cast<const void*>(managed),
                                          [managed](const void*) { DlpackDeleter()(managed); });
  const DLTensor& source = managed->dl_tensor;
  const std::optional<DType> dtype = dtype_of_dlpack(source.dtype);
  if (!dtype) {
    return fail(ErrorKind::Invalid,
                fmt::format("a DLPack tensor has the type code {} with {} bits and {} lanes, which "
                            "is not known here",
                            source.dtype.code, source.dtype.bits, source.dtype.lanes));
  }
  if (source.ndim < 0 || static_cast<std::size_t>(source.ndim) > kRankMax ||
      (source.ndim > 0 && source.shape == nullptr)) {
    return fail(ErrorKind::Invalid, fmt::format("a DLPack tensor has {} dimensions", source.ndim));
  }
  const auto rank = static_cast<std::size_t>(source.ndim);
  TensorLayout layout{.dtype = *dtype};
  layout.shape.assign(source.shape, source.shape + rank);
  if (source.strides != nullptr) layout.strides.assign(source.strides, source.strides + rank);
  layout.device.kind = static_cast<DeviceKind>(source.device.device_type);
  layout.device.index = source.device.device_id;

  const auto extent = Tensor::extent_of(layout);
  if (!extent) return fail(extent.error());
  const auto address = reinterpret_cast<std::uintptr_t>(source.data);
  std::uintptr_t first = 0;
  std::uintptr_t end = 0;
  if ((source.data == nullptr && *extent != 0) ||
      __builtin_add_overflow(address, source.byte_offset, &first) ||
      __builtin_add_overflow(first, *extent, &end)) {
    return fail(ErrorKind::Invalid, "a DLPack tensor has an address where no memory can be");
  }
  const std::span<const std::byte> memory(reinterpret_cast<const std::byte*>(first), *extent);
  return Tensor::create(std::move(layout), Buffer(memory, owner));
}

Result<DlpackTensor> to_dlpack(const Tensor& tensor) {
  if (!tensor.defined()) return fail(ErrorKind::Invalid, "there is no tensor");
  auto exported = std::make_unique<Export>();
  exported->tensor = tensor;
  exported->shape.assign(tensor.shape().begin(), tensor.shape().end());
  exported->strides.assign(tensor.strides().begin(), tensor.strides().end());
  DLTensor& target = exported->managed.dl_tensor;
  target.data = const_cast<std::byte*>(tensor.data());
  target.device.device_type = static_cast<DLDeviceType>(tensor.device().kind);
  target.device.device_id = tensor.device().index;
  target.ndim = static_cast<int>(tensor.rank());
  const DlpackType& type = kTypes[static_cast<std::size_t>(tensor.dtype())];
  target.dtype = DLDataType{.code = type.code, .bits = type.bits, .lanes = 1};
  target.shape = exported->shape.data();
  target.strides = exported->strides.data();
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = delete_export;
  return DlpackTensor(&exported.release()->managed);
}

}  // namespace muster::rpc
