// Arguments and results as others send them, whatever the bytes and the types: they are refused, or
// they are the same when they are sent again; and nothing is read that is not there.
//
//   u8 which type, u8 how many buffers, u8 size of each, the buffers, the control part
#include "muster/base/assert.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/tensor.h"
#include "muster/rpc/value.h"

#include <algorithm>
#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::size_t kBuffersMax = 4;
// So that a buffer of 255 is one that goes beside the message when it is sent again.
constexpr std::size_t kBytesPerUnit = 40;
constexpr std::size_t kCopiedBytesMax = 1 << 20;

enum class Colour : std::int16_t { Red = 1, Blue = -2 };

struct Tree {
  std::string label;
  std::optional<Tensor> value;
  std::map<std::string, Tree> children;
};
template <typename Archive>
void describe_fields(Archive& archive, Tree& tree) {
  archive(tree.label, tree.value, tree.children);
}

struct Nothing {};
template <typename Archive>
void describe_fields(Archive&, Nothing&) {}

struct Order {
  std::string name;
  std::vector<std::complex<float>> path;
  std::optional<Colour> colour;
  std::variant<std::monostate, std::vector<Tree>, Buffer, std::vector<Nothing>> rest;
  std::int32_t count = 1;
};
template <typename Archive>
void describe_fields(Archive& archive, Order& order) {
  archive(order.name, order.path);
  archive(order.colour, order.rest, order.count);
  archive.require(order.count > 0, "an order of nothing");
}

// Each element of a container that has no order of its own stands in an order of its own, so
// that the bytes are not the same again.
template <typename T>
constexpr bool kHasOrder = true;
template <typename... Args>
constexpr bool kHasOrder<std::unordered_map<Args...>> = false;
template <typename... Args>
constexpr bool kHasOrder<std::unordered_set<Args...>> = false;

using Types =
    std::tuple<Tensor, std::vector<Tensor>, Tree, Order,
               std::tuple<bool, std::int8_t, std::uint16_t, float, double, std::byte, Colour>,
               std::string, std::vector<std::string>, std::vector<double>,
               std::vector<std::vector<std::uint16_t>>, std::vector<bool>, Buffer,
               std::array<std::optional<Buffer>, 3>, std::map<std::string, std::vector<float>>,
               std::set<std::pair<std::int64_t, std::string>>,
               std::unordered_map<std::string, std::int32_t>, std::unordered_set<std::uint64_t>,
               std::vector<std::optional<std::array<double, 1000>>>,
               std::variant<std::string, Tensor, std::vector<std::byte>, std::monostate>,
               std::vector<std::tuple<>>, std::map<std::uint8_t, std::map<std::uint8_t, Nothing>>,
               std::pair<std::vector<std::complex<double>>, std::optional<std::optional<bool>>>>;

// Its accelerators, of which there are two, have memory of the CPU.
class Devices final : public DeviceSupport {
 public:
  std::int32_t device_count() const override { return 2; }
  Result<Buffer> to_host(const Device&, std::span<const std::byte> memory) override {
    return copy_of(memory);
  }
  Result<Buffer> to_device(const Device& device, std::span<const std::byte> bytes) override {
    if (device.kind != DeviceKind::Cuda || device.index >= device_count()) {
      return fail(ErrorKind::Invalid, "there is no such device");
    }
    return copy_of(bytes);
  }
};

struct Encoded {
  std::string control;
  std::vector<Buffer> buffers;

  friend bool operator==(const Encoded& left, const Encoded& right) {
    return left.control == right.control &&
           std::ranges::equal(left.buffers, right.buffers, [](const Buffer& a, const Buffer& b) {
             return std::ranges::equal(a.bytes(), b.bytes());
           });
  }
};

// Nothing if it is on a device that is not mapped: what has no elements may be on any.
template <typename T>
std::optional<Encoded> encode(const T& value) {
  static Devices devices;
  static const auto kSame = std::make_shared<const DeviceMap>(
      DeviceMap{{Device{DeviceKind::Cuda, 0}, Device{DeviceKind::Cuda, 0}},
                {Device{DeviceKind::Cuda, 1}, Device{DeviceKind::Cuda, 1}}});
  const DeviceRoute route{.peer = "peer", .map = kSame, .support = &devices};
  Writer writer;
  writer.set_route(route);
  writer.write(value);
  const auto written = writer.finish();
  if (!written) {
    MUSTER_ASSERT(written.error().message.find("device mapping is not") != std::string::npos);
    return std::nullopt;
  }
  Encoded encoded{writer.take_control(), {}};
  encoded.buffers = writer.take_buffers();
  return encoded;
}

template <typename T>
Result<T> decode_all(std::string_view control, std::span<const Buffer> buffers) {
  static Devices devices;
  return decode<T>(control, buffers, {.device_support = &devices});
}

// Looks at every byte.
void touch(std::span<const std::byte> bytes) {
  [[maybe_unused]] volatile unsigned sum = 0;
  for (const std::byte byte : bytes) sum = sum + static_cast<unsigned>(byte);
}

void check(const Tensor& tensor) {
  if (!tensor.defined()) return;
  MUSTER_ASSERT(tensor.offset_bytes() + tensor.extent_bytes() <= tensor.storage().size());
  touch(tensor.storage().bytes());
  if (!tensor.device().is_host()) return;
  const bool is_expanded = tensor.byte_count() > tensor.extent_bytes();
  const bool is_too_large = is_expanded && tensor.byte_count() > kExpandedBytesMax;
  if (tensor.byte_count() > kCopiedBytesMax && !is_too_large) return;
  const auto copied = tensor.copy();
  MUSTER_ASSERT(copied.has_value() != is_too_large);
  if (!copied) return;
  MUSTER_ASSERT(copied->contiguous() && copied->byte_count() == tensor.byte_count());
  MUSTER_ASSERT(std::ranges::equal(copied->shape(), tensor.shape()));
}
void check(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) check(tensor);
}
template <typename T>
void check(const T&) {}

// As it came: in memory of exactly its size, so that AddressSanitizer notices every byte read past
// it.
struct Input {
  std::vector<char> exact;
  std::vector<Buffer> buffers;

  std::string_view control() const { return {exact.data(), exact.size()}; }
};

template <typename T>
void run_as(const Input& input) {
  const auto first = decode_all<T>(input.control(), input.buffers);
  if (!first) return;
  check(*first);
  const std::optional<Encoded> again = encode(*first);
  if (!again) return;
  const auto second = decode_all<T>(again->control, again->buffers);
  MUSTER_ASSERT(second.has_value());
  if constexpr (kHasOrder<T>) {
    MUSTER_ASSERT(encode(*second) == again);
  } else {
    MUSTER_ASSERT(*first == *second);
  }
}

// What a function may look at while its message is there.
void run_views(const Input& input) {
  Reader reader(input.control(), input.buffers);
  std::string_view text;
  std::span<const std::byte> bytes;
  std::vector<std::string_view> texts;
  reader.read(text, bytes, texts);
  if (!reader.finish()) return;
  touch(std::as_bytes(std::span(text)));
  touch(bytes);
  for (const std::string_view one : texts) touch(std::as_bytes(std::span(one)));
}

template <std::size_t... indices>
void run_type(std::size_t which, const Input& input, std::index_sequence<indices...>) {
  ((which == indices ? run_as<std::tuple_element_t<indices, Types>>(input) : void()), ...);
  if (which == sizeof...(indices)) run_views(input);
}

void run(std::string_view input) {
  constexpr std::size_t kTypeCount = std::tuple_size_v<Types>;
  if (input.size() < 2) return;
  const std::size_t which = static_cast<unsigned char>(input[0]) % (kTypeCount + 1);
  const std::size_t buffer_count = static_cast<unsigned char>(input[1]) % (kBuffersMax + 1);
  input.remove_prefix(2);
  Input received;
  for (std::size_t index = 0; index < buffer_count && !input.empty(); ++index) {
    const std::size_t size = static_cast<unsigned char>(input[0]) * kBytesPerUnit;
    input.remove_prefix(1);
    // What is missing of it is zero.
    std::vector<std::byte> bytes(size);
    const std::size_t given = std::min(size / kBytesPerUnit, input.size());
    if (given != 0) std::memcpy(bytes.data(), input.data(), given);
    input.remove_prefix(given);
    received.buffers.push_back(copy_of(bytes));
  }
  received.exact.assign(input.begin(), input.end());
  run_type(which, received, std::make_index_sequence<kTypeCount>());
}

}  // namespace
}  // namespace muster::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::rpc::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
