// Tensor: an array of numbers with a shape, over memory that it owns, shares or borrows.
//
// Like Buffer, a Tensor is a cheap value: copies share the memory. The memory of other devices than
// the CPU is described and never touched. Shape and strides are checked once, when a Tensor is
// made, so that every element is known to be inside the storage.
//
// When a Tensor is sent, the other side gets the same shape, type and strides; only a view that
// uses half or less of a storage of kCompactBytesMin or more arrives compact. Nothing is copied
// for that where the elements in use are in one piece already. What arrives is on the CPU and
// shares the memory it was received in; unless a device map sends it to an accelerator, or it comes
// from one: see device_route.h.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/buffer.h"
#include "muster/rpc/device.h"
#include "muster/rpc/value.h"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::rpc {

inline constexpr std::size_t kRankMax = 64;
inline constexpr std::size_t kCompactBytesMin = 8192;
// Where strides are 0, a few bytes can stand for any number of elements. A copy of such a tensor,
// which has all of them, has no more bytes than this.
inline constexpr std::size_t kExpandedBytesMax = std::size_t{1} << 30U;

// The numbers are those of the wire.
enum class DType : std::uint8_t {
  Bool = 0,
  U8 = 1,
  U16 = 2,
  U32 = 3,
  U64 = 4,
  I8 = 5,
  I16 = 6,
  I32 = 7,
  I64 = 8,
  F16 = 9,
  BF16 = 10,
  F32 = 11,
  F64 = 12,
  C64 = 13,
  C128 = 14,
};
inline constexpr std::size_t kDTypeCount = 15;

std::size_t size_of(DType dtype);
// "f32"
std::string_view name_of(DType dtype);

// The type that a C++ type is.
template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::F32;
  if constexpr (std::is_same_v<T, double>) return DType::F64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return DType::C64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return DType::C128;
  constexpr DType kSigned[] = {DType::I8, DType::I16, DType::I32, DType::I64};
  constexpr DType kUnsigned[] = {DType::U8, DType::U16, DType::U32, DType::U64};
  constexpr std::size_t kIndex = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return std::is_signed_v<T> ? kSigned[kIndex] : kUnsigned[kIndex];
}

// Whether elements of that type may be looked at as T: the type itself; and as unsigned numbers
// those that C++ has no type for (f16, bf16) or cannot trust (a bool that is neither 0 nor 1).
template <typename T>
constexpr bool holds(DType dtype) {
  if (dtype == DType::Bool) return std::is_same_v<T, std::uint8_t>;
  if (dtype == DType::F16 || dtype == DType::BF16) return std::is_same_v<T, std::uint16_t>;
  return dtype == dtype_of<T>();
}

template <typename T>
concept TensorElement = Bulk<T> && !std::is_same_v<T, std::byte>;

struct TensorLayout {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};  // in elements; none: compact, the last dimension innermost
  std::size_t offset_bytes = 0;         // of the first element in the storage
  Device device{};
};

class Tensor {
 public:
  // No tensor at all; not the same as one without elements.
  Tensor() = default;

  // Shares `storage`. Refuses a layout that reaches beyond it, whose numbers overflow, that has
  // negative sizes or strides, or whose first element is not aligned.
  static Result<Tensor> create(TensorLayout layout, Buffer storage);
  // Memory of its own, not initialised, compact, and writable. Unavailable if there is not so much.
  static Result<Tensor> allocate(DType dtype, std::vector<std::int64_t> shape);
  // Takes the numbers over without a copy; writable.
  template <TensorElement T>
  static Result<Tensor> from(std::vector<T> values, std::vector<std::int64_t> shape) {
    auto owner = std::make_shared<std::vector<T>>(std::move(values));
    const auto bytes = std::as_bytes(std::span(*owner));
    return compact(dtype_of<T>(), std::move(shape), Buffer(bytes, std::move(owner)), true);
  }
  // The caller keeps the numbers, and keeps them unchanged while anyone uses the tensor.
  template <TensorElement T>
  static Result<Tensor> borrow(std::span<const T> values, std::vector<std::int64_t> shape) {
    const Buffer storage = Buffer::borrow(std::as_bytes(values));
    return compact(dtype_of<T>(), std::move(shape), storage, false);
  }

  // From the first element to the end of the last one, in bytes, whatever the offset is. Fails as
  // `create` does for a layout that no storage can hold.
  static Result<std::size_t> extent_of(const TensorLayout& layout);

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::size_t rank() const { return dimensions_.size() / 2; }
  std::span<const std::int64_t> shape() const { return {dimensions_.data(), rank()}; }
  std::span<const std::int64_t> strides() const { return {dimensions_.data() + rank(), rank()}; }
  std::size_t offset_bytes() const { return offset_bytes_; }
  const Buffer& storage() const { return storage_; }
  std::size_t element_count() const { return element_count_; }
  // Of its elements alone; more than the storage has where strides are 0.
  std::size_t byte_count() const { return element_count_ * size_of(dtype_); }
  // From the first element to the end of the last one.
  std::size_t extent_bytes() const { return extent_bytes_; }
  // The elements are in one piece, and in order.
  bool contiguous() const { return contiguous_; }

  // The first element; an address of the device, which only it understands.
  const std::byte* data() const { return storage_.data() + offset_bytes_; }
  // Invalid if the type is another, the elements are not contiguous, or not on the CPU.
  template <TensorElement T>
  Result<std::span<const T>> values() const {
    if (auto readable = check_access(holds<T>(dtype_)); !readable) return fail(readable.error());
    return std::span(reinterpret_cast<const T*>(data()), element_count_);
  }
  // Also Invalid if the memory is not ours to write: borrowed, or received, and so perhaps shared
  // with whoever sent it.
  template <TensorElement T>
  Result<std::span<T>> mutable_values() {
    if (auto writable = check_writable(holds<T>(dtype_)); !writable) return fail(writable.error());
    return std::span(reinterpret_cast<T*>(const_cast<std::byte*>(data())), element_count_);
  }

  // The same elements in compact memory of their own, writable. Invalid if it is not on the CPU, or
  // too large; see kExpandedBytesMax.
  Result<Tensor> copy() const;
  // The same memory with another type of the same size, e.g. bf16 as u16. Invalid for other sizes.
  Result<Tensor> viewed_as(DType dtype) const;

 private:
  static Result<Tensor> compact(DType dtype, std::vector<std::int64_t> shape, Buffer storage,
                                bool writable);
  Result<> check_access(bool type_fits) const;
  Result<> check_writable(bool type_fits) const;

  bool defined_ = false;
  bool contiguous_ = false;
  bool writable_ = false;
  DType dtype_ = DType::F32;
  Device device_;
  std::vector<std::int64_t> dimensions_;  // the shape, then the strides
  std::size_t offset_bytes_ = 0;
  std::size_t element_count_ = 0;
  std::size_t extent_bytes_ = 0;
  Buffer storage_;
};

// "f32[2,3] on cpu"
std::string describe(const Tensor& tensor);

template <>
struct Codec<Tensor> {
  static void write(Writer& writer, const Tensor& value);
  static void read(Reader& reader, Tensor& value);
  static void sign(Signature& signature) { signature.append_text("tensor"); }
};

}  // namespace muster::rpc
