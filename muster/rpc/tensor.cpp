#include "muster/rpc/tensor.h"

#include "muster/base/assert.h"
#include "muster/rpc/device_route.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>

namespace muster::rpc {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::uint8_t size;
  std::uint8_t alignment;
};
constexpr DTypeFacts kDTypes[] = {
    {"bool", 1, 1}, {"u8", 1, 1},  {"u16", 2, 2}, {"u32", 4, 4}, {"u64", 8, 8},
    {"i8", 1, 1},   {"i16", 2, 2}, {"i32", 4, 4}, {"i64", 8, 8}, {"f16", 2, 2},
    {"bf16", 2, 2}, {"f32", 4, 4}, {"f64", 8, 8}, {"c64", 8, 4}, {"c128", 16, 8},
};
static_assert(std::size(kDTypes) == kDTypeCount);

constexpr std::uint8_t kUndefined = 0xff;   // in the place of the type
constexpr std::uint8_t kHasDevice = 0x40;   // beside the type
constexpr std::uint8_t kHasStrides = 0x80;  // beside the rank
static_assert(kDTypeCount < kHasDevice);
static_assert(kRankMax < kHasStrides);

const DTypeFacts& facts_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }
bool is_known(DType dtype) { return static_cast<std::size_t>(dtype) < kDTypeCount; }

bool is_aligned(const std::byte* address, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(address) % facts_of(dtype).alignment == 0;
}

// False if the product is too large.
bool multiply(std::int64_t& value, std::int64_t factor) {
  return !__builtin_mul_overflow(value, factor, &value);
}

struct Extent {
  std::int64_t element_count = 0;
  std::int64_t bytes = 0;  // from the first element to the end of the last
};

// Nothing if a number overflows. Requires: no negative ones.
std::optional<Extent> measure(std::span<const std::int64_t> shape,
                              std::span<const std::int64_t> strides, std::int64_t element_bytes) {
  // Sizes that are too large are refused also beside one that is 0: the compact strides of such a
  // shape would overflow.
  std::int64_t used = element_bytes;
  for (const std::int64_t size : shape) {
    if (!multiply(used, std::max<std::int64_t>(size, 1))) return std::nullopt;
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return Extent{};
  std::int64_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = shape[i] - 1;
    if (!multiply(reach, strides[i]) || __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  Extent extent{.element_count = used / element_bytes, .bytes = 0};
  if (__builtin_add_overflow(last, 1, &extent.bytes) || !multiply(extent.bytes, element_bytes)) {
    return std::nullopt;
  }
  return extent;
}

// False if they overflow.
bool append_compact_strides(std::vector<std::int64_t>& dimensions) {
  const std::size_t rank = dimensions.size();
  dimensions.resize(2 * rank);
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    dimensions[rank + i] = stride;
    if (!multiply(stride, std::max<std::int64_t>(dimensions[i], 1))) return false;
  }
  return true;
}

// Whether they are the ones above, also where a dimension has one element or none.
bool are_compact(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (strides[i] != expected || !multiply(expected, std::max<std::int64_t>(shape[i], 1))) {
      return false;
    }
  }
  return true;
}

bool are_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// `count` pieces of `piece` bytes that are `stride` bytes apart. A fixed size compiles to a plain
// load and store.
template <std::size_t piece>
void copy_pieces(std::byte* to, const std::byte* from, std::size_t count, std::size_t stride) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(to + i * piece, from + i * stride, piece);
}
void copy_row(std::byte* to, const std::byte* from, std::size_t count, std::size_t stride,
              std::size_t piece) {
  switch (piece) {
    case 1:
      return copy_pieces<1>(to, from, count, stride);
    case 2:
      return copy_pieces<2>(to, from, count, stride);
    case 4:
      return copy_pieces<4>(to, from, count, stride);
    case 8:
      return copy_pieces<8>(to, from, count, stride);
    case 16:
      return copy_pieces<16>(to, from, count, stride);
    default:
      for (std::size_t i = 0; i < count; ++i) std::memcpy(to + i * piece, from + i * stride, piece);
  }
}

// Copies all elements, in order. Requires: there is at least one.
void copy_elements(std::byte* to, const Tensor& tensor) {
  const auto shape = tensor.shape();
  const auto strides = tensor.strides();
  // The innermost dimensions that are in one piece are copied as one.
  std::size_t outer = tensor.rank();
  std::size_t piece = size_of(tensor.dtype());
  const std::size_t element = piece;
  while (outer > 0 && (shape[outer - 1] == 1 ||
                       static_cast<std::size_t>(strides[outer - 1]) * element == piece)) {
    piece *= static_cast<std::size_t>(shape[--outer]);
  }
  if (outer == 0) {
    std::memcpy(to, tensor.data(), piece);
    return;
  }
  const auto row_count = static_cast<std::size_t>(shape[outer - 1]);
  const std::size_t row_stride = static_cast<std::size_t>(strides[outer - 1]) * element;
  std::array<std::int64_t, kRankMax> index{};
  // Whatever the stride of a dimension with one element is, it is added and taken away again; a
  // pointer could not be so far away meanwhile.
  std::size_t from = 0;
  while (true) {
    copy_row(to, tensor.data() + from, row_count, row_stride, piece);
    to += row_count * piece;
    std::size_t dimension = outer - 1;
    while (dimension > 0) {
      --dimension;
      const std::size_t stride = static_cast<std::size_t>(strides[dimension]) * element;
      from += stride;
      if (++index[dimension] < shape[dimension]) break;
      from -= stride * static_cast<std::size_t>(shape[dimension]);
      index[dimension] = 0;
      if (dimension == 0) return;
    }
    if (outer == 1) return;
  }
}

Result<> check_numbers(const TensorLayout& layout) {
  if (!is_known(layout.dtype)) return fail(ErrorKind::Invalid, "a tensor has an unknown type");
  if (layout.shape.size() > kRankMax) {
    return fail(ErrorKind::Invalid, fmt::format("a tensor has {} dimensions, more than {}",
                                                layout.shape.size(), kRankMax));
  }
  if (!layout.strides.empty() && layout.strides.size() != layout.shape.size()) {
    return fail(ErrorKind::Invalid, fmt::format("a tensor has {} dimensions and {} strides",
                                                layout.shape.size(), layout.strides.size()));
  }
  const auto negative = [](std::int64_t number) { return number < 0; };
  if (std::any_of(layout.shape.begin(), layout.shape.end(), negative)) {
    return fail(ErrorKind::Invalid, "a tensor has a negative size");
  }
  if (std::any_of(layout.strides.begin(), layout.strides.end(), negative)) {
    return fail(ErrorKind::Invalid, "a tensor has a negative stride");
  }
  return {};
}

struct Plan {
  std::vector<std::int64_t> dimensions;  // the shape, then the strides
  Extent extent;
};

// A layout that some storage can hold.
Result<Plan> plan(const TensorLayout& layout) {
  if (auto checked = check_numbers(layout); !checked) return fail(std::move(checked.error()));
  const std::size_t rank = layout.shape.size();
  Plan planned;
  planned.dimensions.reserve(2 * rank);
  planned.dimensions = layout.shape;
  bool fits = true;
  if (layout.strides.empty()) {
    fits = append_compact_strides(planned.dimensions);
  } else {
    planned.dimensions.insert(planned.dimensions.end(), layout.strides.begin(),
                              layout.strides.end());
  }
  const std::span<const std::int64_t> all(planned.dimensions);
  const auto element_bytes = static_cast<std::int64_t>(size_of(layout.dtype));
  const auto extent = measure(all.first(rank), all.last(rank), element_bytes);
  if (!fits || !extent) return fail(ErrorKind::Invalid, "the shape of a tensor is too large");
  planned.extent = *extent;
  return planned;
}

}  // namespace

std::size_t size_of(DType dtype) { return facts_of(dtype).size; }
std::string_view name_of(DType dtype) { return facts_of(dtype).name; }

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  const auto shape = tensor.shape();
  return fmt::format("{}[{}] on {}", name_of(tensor.dtype()),
                     fmt::join(shape.begin(), shape.end(), ","), describe(tensor.device()));
}

Result<std::size_t> Tensor::extent_of(const TensorLayout& layout) {
  auto planned = plan(layout);
  if (!planned) return fail(std::move(planned.error()));
  return static_cast<std::size_t>(planned->extent.bytes);
}

Result<Tensor> Tensor::create(TensorLayout layout, Buffer storage) {
  auto planned = plan(layout);
  if (!planned) return fail(std::move(planned.error()));
  Tensor tensor;
  tensor.extent_bytes_ = static_cast<std::size_t>(planned->extent.bytes);
  if (layout.offset_bytes > storage.size() ||
      tensor.extent_bytes_ > storage.size() - layout.offset_bytes) {
    return fail(ErrorKind::Invalid,
                fmt::format("a tensor needs {} bytes from byte {} on, and its storage has {}",
                            tensor.extent_bytes_, layout.offset_bytes, storage.size()));
  }
  tensor.defined_ = true;
  tensor.dtype_ = layout.dtype;
  tensor.device_ = layout.device;
  tensor.dimensions_ = std::move(planned->dimensions);
  tensor.offset_bytes_ = layout.offset_bytes;
  tensor.element_count_ = static_cast<std::size_t>(planned->extent.element_count);
  tensor.contiguous_ =
      tensor.element_count_ == 0 || are_contiguous(tensor.shape(), tensor.strides());
  tensor.storage_ = std::move(storage);
  if (layout.device.is_host() && !is_aligned(tensor.data(), layout.dtype)) {
    return fail(ErrorKind::Invalid, "the elements of a tensor are not aligned");
  }
  return tensor;
}

Result<Tensor> Tensor::compact(DType dtype, std::vector<std::int64_t> shape, Buffer storage,
                               bool writable) {
  const std::size_t size = storage.size();
  auto tensor = create({.dtype = dtype, .shape = std::move(shape)}, std::move(storage));
  if (!tensor) return tensor;
  if (tensor->extent_bytes_ != size) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} has {} elements, and {} were given", describe(*tensor),
                            tensor->element_count_, size / size_of(dtype)));
  }
  tensor->writable_ = writable;
  return tensor;
}

Result<Tensor> Tensor::allocate(DType dtype, std::vector<std::int64_t> shape) {
  const auto size = extent_of({.dtype = dtype, .shape = shape});
  if (!size) return fail(size.error());
  std::shared_ptr<std::byte> memory = try_allocate(*size);
  if (memory == nullptr) {
    return fail(ErrorKind::Unavailable,
                fmt::format("there is no memory for a tensor of {} bytes", *size));
  }
  const std::span<const std::byte> bytes(memory.get(), *size);
  return compact(dtype, std::move(shape), Buffer(bytes, std::move(memory)), true);
}

Result<> Tensor::check_access(bool type_fits) const {
  if (!defined_) return fail(ErrorKind::Invalid, "there is no tensor");
  if (!type_fits) {
    return fail(ErrorKind::Invalid, describe(*this) + " was asked for elements of another type");
  }
  if (!device_.is_host()) {
    return fail(ErrorKind::Invalid, describe(*this) + " cannot be read by the CPU");
  }
  if (!contiguous_) {
    return fail(ErrorKind::Invalid, describe(*this) + " is not contiguous; copy() is");
  }
  return {};
}

Result<> Tensor::check_writable(bool type_fits) const {
  if (auto readable = check_access(type_fits); !readable) return readable;
  if (!writable_) {
    return fail(ErrorKind::Invalid, describe(*this) + " is not ours to change; copy() is");
  }
  return {};
}

Result<Tensor> Tensor::copy() const {
  if (!defined_) return fail(ErrorKind::Invalid, "there is no tensor");
  if (!device_.is_host()) {
    return fail(ErrorKind::Invalid, describe(*this) + " cannot be read by the CPU");
  }
  if (byte_count() > extent_bytes_ && byte_count() > kExpandedBytesMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("a copy of {} would have {} bytes, made of {}, and may have {}",
                            describe(*this), byte_count(), extent_bytes_, kExpandedBytesMax));
  }
  auto copied = allocate(dtype_, {shape().begin(), shape().end()});
  if (copied && element_count_ != 0) {
    copy_elements(const_cast<std::byte*>(copied->data()), *this);
  }
  return copied;
}

Result<Tensor> Tensor::viewed_as(DType dtype) const {
  if (!defined_) return fail(ErrorKind::Invalid, "there is no tensor");
  if (!is_known(dtype) || size_of(dtype) != size_of(dtype_)) {
    return fail(ErrorKind::Invalid, describe(*this) + " has elements of another size");
  }
  if (device_.is_host() && !is_aligned(data(), dtype)) {
    return fail(ErrorKind::Invalid, "the elements of a tensor are not aligned");
  }
  Tensor viewed = *this;
  viewed.dtype_ = dtype;
  return viewed;
}

// ---- on the wire --------------------------------------------------------------------------------
//
// The type, and whether it is for an accelerator; its device, if it is; the rank and whether there
// are strides, one byte; the shape; the strides, if they are not the compact ones; the bytes from
// the first to the last element.

namespace {

// Requires: defined, and on the CPU.
void write_from_host(Writer& writer, const Tensor& value, const Device& target) {
  const std::size_t stored = value.storage().size();
  const bool wasteful = stored >= kCompactBytesMin && stored / 2 >= value.byte_count();
  if (wasteful && !value.contiguous()) {
    const auto copied = value.copy();
    if (!copied) return writer.fail(copied.error().message);
    return write_from_host(writer, *copied, target);
  }

  const auto strides = value.strides();
  const bool plain =
      are_compact(value.shape(), strides) || (wasteful && value.element_count() != 0);
  const auto type = static_cast<std::uint8_t>(value.dtype());
  writer.put(target.is_host() ? type : static_cast<std::uint8_t>(type | kHasDevice));
  if (!target.is_host()) writer.put(target);
  const auto rank = static_cast<std::uint8_t>(value.rank());
  writer.put(plain ? rank : static_cast<std::uint8_t>(rank | kHasStrides));
  writer.put_raw(std::as_bytes(value.shape()));
  if (!plain) writer.put_raw(std::as_bytes(strides));
  const auto bytes = value.storage().bytes().subspan(value.offset_bytes(), value.extent_bytes());
  writer.put_buffer(Buffer(bytes, value.storage().owner()));
}

// The same tensor on the CPU. Requires: it is on an accelerator.
Result<Tensor> brought_home(const Tensor& value, DeviceSupport* support) {
  const auto memory = value.storage().bytes().subspan(value.offset_bytes(), value.extent_bytes());
  auto moved = move_to_host(support, value.device(), Buffer(memory, value.storage().owner()));
  if (!moved) return fail(std::move(moved.error()));
  TensorLayout layout{.dtype = value.dtype()};
  layout.shape.assign(value.shape().begin(), value.shape().end());
  layout.strides.assign(value.strides().begin(), value.strides().end());
  return Tensor::create(std::move(layout), std::move(*moved));
}

// Where accelerators take part.
void write_routed(Writer& writer, const Tensor& value, const DeviceRoute& route) {
  const auto target = route.target_of(value.device(), describe(value));
  if (!target) return writer.fail(target.error().message);
  if (value.device().is_host()) return write_from_host(writer, value, *target);
  const auto home = brought_home(value, route.support);
  if (!home) return writer.fail(home.error().message);
  write_from_host(writer, *home, *target);
}

// Requires: `host` is the tensor of that layout, as it was received.
Result<Tensor> sent_out(const Tensor& host, TensorLayout layout, DeviceSupport* support) {
  auto moved = move_to_device(support, layout.device, host.storage());
  if (!moved) return fail(std::move(moved.error()));
  return Tensor::create(std::move(layout), std::move(*moved));
}

}  // namespace

void Codec<Tensor>::write(Writer& writer, const Tensor& value) {
  if (!value.defined()) return writer.put(kUndefined);
  const DeviceRoute* const route = writer.route();
  if (route != nullptr && (route->map || !value.device().is_host())) {
    return write_routed(writer, value, *route);
  }
  if (!value.device().is_host()) {
    return writer.fail(describe(value) + " cannot be sent: its memory cannot be read by the CPU");
  }
  write_from_host(writer, value, Device{});
}

void Codec<Tensor>::read(Reader& reader, Tensor& value) {
  value = Tensor();
  const auto type_byte = reader.get<std::uint8_t>();
  if (type_byte == kUndefined || !reader.ok()) return;
  const bool has_device = (type_byte & kHasDevice) != 0;
  const auto type = static_cast<std::uint8_t>(type_byte & ~kHasDevice);
  Device device;
  if (has_device) device = reader.get<Device>();
  if (reader.ok() && has_device && (device.is_host() || device.index < 0)) {
    return reader.fail("a tensor is for a device that is no accelerator");
  }
  const auto rank_byte = reader.get<std::uint8_t>();
  const std::size_t rank = rank_byte & ~kHasStrides;
  if (type >= kDTypeCount || rank > kRankMax) {
    return reader.fail("a tensor has a type or a rank that is not known here");
  }
  TensorLayout layout{.dtype = static_cast<DType>(type)};
  layout.shape.resize(rank);
  reader.get_raw(std::as_writable_bytes(std::span(layout.shape)));
  if ((rank_byte & kHasStrides) != 0) {
    layout.strides.resize(rank);
    reader.get_raw(std::as_writable_bytes(std::span(layout.strides)));
  }
  Buffer storage = reader.get_buffer();
  if (!reader.ok()) return;
  if (!is_aligned(storage.data(), layout.dtype)) storage = copy_of(storage.bytes());
  const std::size_t size = storage.size();
  TensorLayout there;
  if (has_device) there = layout;
  auto tensor = Tensor::create(std::move(layout), std::move(storage));
  if (!tensor || tensor->extent_bytes() != size) {
    return reader.fail("the shape of a tensor does not fit its bytes");
  }
  if (has_device) {
    there.device = device;
    tensor = sent_out(*tensor, std::move(there), reader.device_support());
    if (!tensor) return reader.fail(std::move(tensor.error().message));
  }
  value = std::move(*tensor);
}

}  // namespace muster::rpc
