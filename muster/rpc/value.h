// Writer, Reader and Codec: C++ values to bytes and back, for arguments and results of functions.
//
// A value is a control part (small, one string) and buffers that travel beside it. Sequences of
// bytes or numbers (std::string, std::vector<float>, Buffer, Tensor …) of kOutOfBandBytesMin or
// more are such buffers, and are not copied when they are moved in, shared (Buffer, Tensor) or lent
// (std::span); shorter ones are copied into the control part, which costs less than a buffer does.
//
// A type of yours is sent when this stands in its namespace; the same lines write and read it:
//
//   struct Point { double x = 0; double y = 0; };
//   template <typename Archive>
//   void describe_fields(Archive& archive, Point& point) { archive(point.x, point.y); }
//
// It must be default-constructible, and describe_fields must be declared before the type is first
// used with this header. `archive.require(condition, "why")` refuses a value, in both directions;
// `Archive::kReading` tells them apart where that is needed.
//
// Layout: numbers little-endian in their full width; bool, and whether an optional is there: one
// byte 0 or 1; the index of a variant: one byte; bytes: u32 length and the bytes, or 0xffffffff for
// the next buffer; other containers: u32 count and the elements, padded with zeros to one byte for
// each element; structures, pairs, tuples and arrays: their parts.
//
// Everything here is a value: no thread, no loop. A Reader trusts nothing that it reads.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/buffer.h"

#include <array>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace muster::rpc {

inline constexpr std::size_t kOutOfBandBytesMin = 8192;
// How deep structures that contain themselves may be nested; the stack of a thread is small.
inline constexpr std::size_t kDepthMax = 100;
// A few bytes can stand for values that take much more memory (an optional that is empty, a tensor
// that is none). All that is read from one message takes no more than the one and, for each byte of
// its control part, the other; what is in its buffers does not count.
inline constexpr std::size_t kReadBytesMin = std::size_t{64} << 20U;
inline constexpr std::size_t kReadBytesPerByte = 64;
// An element of a map or of a set takes so much beside itself, about.
inline constexpr std::size_t kNodeBytes = 48;

class Freight;
class Writer;
class Reader;
class Signature;
class DeviceSupport;
struct DeviceRoute;

// How a T is written and read: `write(Writer&, const T&)`, `read(Reader&, T&)`, `sign(Signature&)`.
// Not defined for what cannot be sent.
template <typename T>
struct Codec;

template <typename T>
concept Encodable = requires(Writer& writer, const std::remove_cvref_t<T>& value) {
  Codec<std::remove_cvref_t<T>>::write(writer, value);
};
template <typename T>
concept Decodable = std::is_default_constructible_v<std::remove_cvref_t<T>> &&
    requires(Reader& reader, std::remove_cvref_t<T>& value) {
  Codec<std::remove_cvref_t<T>>::read(reader, value);
};
template <typename T>
concept Codable = Encodable<T> && Decodable<T>;

// What happens to large bytes that are passed as lvalues (a std::vector<float> that the caller
// keeps). Lvalues: they are lent; only for a caller that keeps them unchanged until they are sent.
enum class Lend { Nothing, Lvalues };

class Writer {
 public:
  static constexpr bool kReading = false;

  explicit Writer(Lend lend = Lend::Nothing) : lend_(lend) { control_.resize(control_.capacity()); }
  // Writes behind `head`.
  explicit Writer(std::string head, Lend lend = Lend::Nothing)
      : control_(std::move(head)), used_(control_.size()), lend_(lend) {
    control_.resize(control_.capacity());
  }

  // What else the message carries (freight.h); nothing unless it was set.
  Freight* freight() const { return freight_; }
  void set_freight(Freight* freight) { freight_ = freight; }

  // Large values that are moved in are not copied.
  template <typename... T>
  void write(T&&... values) {
    (write_one(std::forward<T>(values)), ...);
  }
  template <typename... Fields>
  void operator()(Fields&... fields) {
    (write_one(std::as_const(fields)), ...);
  }
  void require(bool condition, const char* why) {
    if (!condition) fail(why);
  }
  // Where tensors of accelerators go; without it they cannot be sent. Requires: `route` is there
  // while anything is written.
  void set_route(const DeviceRoute& route) { route_ = &route; }
  const DeviceRoute* route() const { return route_; }

  // The first failure counts; what was written is then of no use.
  void fail(std::string why);
  bool ok() const { return error_.empty(); }
  Result<> finish() const;

  std::string_view control() const { return {control_.data(), used_}; }
  std::size_t size() const { return used_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // The Writer is then as empty as if all had been moved out of it; it is not used again.
  std::string take_control() {
    control_.resize(used_);
    return std::move(control_);
  }
  std::vector<Buffer> take_buffers() { return std::move(buffers_); }

  // The pieces that codecs are made of.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { std::memcpy(extend(sizeof value), &value, sizeof value); }
  void put_raw(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(extend(bytes.size()), bytes.data(), bytes.size());
  }
  void put_count(std::size_t count) {
    if (count >= kNextBuffer) return fail("a container has more than 2^32 - 2 elements");
    put(static_cast<std::uint32_t>(count));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    if (bytes.size() >= kOutOfBandBytesMin) return put_far(bytes);
    put(static_cast<std::uint32_t>(bytes.size()));
    put_raw(bytes);
  }
  void put_buffer(Buffer buffer);
  // Takes over a container of bytes or numbers.
  template <typename Container>
  void put_owned(Container&& container) {
    const auto bytes = std::as_bytes(std::span(container));
    if (bytes.size() < kOutOfBandBytesMin) return put_bytes(bytes);
    auto owner = std::make_shared<std::remove_cvref_t<Container>>(std::move(container));
    put_buffer(Buffer(std::as_bytes(std::span(*owner)), owner));
  }
  // Elements may take no bytes at all; a count must not promise more than there are bytes.
  void pad_to(std::size_t size) {
    while (used_ < size) put(std::uint8_t{0});
  }
  bool enter() {
    if (++depth_ > kDepthMax) fail("structures are nested deeper than 100");
    return ok();
  }
  void leave() { --depth_; }

  static constexpr std::uint32_t kNextBuffer = 0xffffffff;

 private:
  template <typename T>
  void write_one(T&& value) {
    static_assert(Encodable<T>,
                  "this type cannot be sent: it is no number of fixed width, text, container or "
                  "tensor that muster/rpc/value.h knows, and has no describe_fields(archive, value)"
                  " in its namespace (char, wchar_t, long double and pointers are never sent)");
    if constexpr (Encodable<T>) {
      Codec<std::remove_cvref_t<T>>::write(*this, std::forward<T>(value));
    }
  }
  char* extend(std::size_t size) {
    if (control_.size() - used_ < size) grow(size);
    char* const place = control_.data() + used_;
    used_ += size;
    return place;
  }
  void grow(std::size_t size);
  void put_far(std::span<const std::byte> bytes);

  std::string control_;  // its first `used_` bytes
  std::size_t used_ = 0;
  std::vector<Buffer> buffers_;
  std::string error_;
  std::size_t depth_ = 0;
  Freight* freight_ = nullptr;
  Lend lend_ = Lend::Nothing;
  const DeviceRoute* route_ = nullptr;
};

// Reads what a Writer wrote. It never throws for what it reads, never reads past the end, and
// makes no more of it than kReadBytesMin and kReadBytesPerByte allow. The first failure counts;
// everything read after it is zero or empty. Views that are read (std::string_view, std::span<const
// std::byte>) are good for as long as the memory that the Reader was given.
class Reader {
 public:
  static constexpr bool kReading = true;

  explicit Reader(std::string_view control, std::span<const Buffer> buffers = {})
      : begin_(control.data()),
        next_(control.data()),
        end_(control.data() + control.size()),
        buffers_(buffers) {}

  // As for a Writer.
  Freight* freight() const { return freight_; }
  void set_freight(Freight* freight) { freight_ = freight; }

  template <typename... T>
  void read(T&... values) {
    (read_one(values), ...);
  }
  template <typename T>
  T read() {
    T value{};
    read_one(value);
    return value;
  }
  template <typename... Fields>
  void operator()(Fields&... fields) {
    (read_one(fields), ...);
  }
  // `why` is kept as it is: a literal.
  void require(bool condition, const char* why) {
    if (!condition) fail(why);
  }
  void fail(const char* why);
  void fail(std::string why);
  bool ok() const { return problem_ == nullptr; }
  // Who moves tensors that are for an accelerator; nothing: they are refused.
  void set_device_support(DeviceSupport* support) { device_support_ = support; }
  DeviceSupport* device_support() const { return device_support_; }
  // Whether all went well and nothing is left over. The text says what was wrong, and where.
  Result<> finish() const;

  std::size_t position() const { return static_cast<std::size_t>(next_ - begin_); }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - next_); }

  // The pieces that codecs are made of.
  template <typename T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value{};
    if (remaining() < sizeof value) {
      fail(kTooShort);
      return value;
    }
    std::memcpy(&value, next_, sizeof value);
    next_ += sizeof value;
    return value;
  }
  void get_raw(std::span<std::byte> out);
  bool get_flag() {
    const auto byte = get<std::uint8_t>();
    if (byte > 1) fail("a flag is neither 0 nor 1");
    return byte == 1;
  }
  // Never more than there are bytes left.
  std::size_t get_count() {
    const auto count = get<std::uint32_t>();
    if (count <= remaining()) return count;
    fail("a container announces more elements than there can be");
    return 0;
  }
  // So many elements are made, of so many bytes each: before that. False if it has failed, or if
  // it has now, since that is too much for one message.
  bool charge(std::size_t count, std::size_t bytes_each) {
    charged_bytes_ += count * bytes_each;
    return charged_bytes_ <= kReadBytesMin ? ok() : may_charge();
  }
  std::span<const std::byte> get_bytes();
  // Shares a buffer that came beside the control part; copies what came inside it.
  Buffer get_buffer();
  void skip_padding(std::size_t position);
  bool enter() {
    if (++depth_ > kDepthMax) fail("structures are nested deeper than 100");
    return ok();
  }
  void leave() { --depth_; }

 private:
  static constexpr const char* kTooShort = "it ends too early";

  template <typename T>
  void read_one(T& value) {
    static_assert(Decodable<T>,
                  "this type cannot be received: it is no number of fixed width, text, container "
                  "or tensor that muster/rpc/value.h knows, has no describe_fields(archive, value) "
                  "in its namespace, is not default-constructible, or only borrows its memory");
    if constexpr (Decodable<T>) Codec<T>::read(*this, value);
  }
  bool may_charge();
  // The next buffer, or nothing where bytes follow.
  const Buffer* get_far(std::uint32_t length);

  const char* begin_;
  const char* next_;
  const char* end_;
  std::span<const Buffer> buffers_;
  std::size_t buffers_read_ = 0;
  std::size_t depth_ = 0;
  std::size_t charged_bytes_ = 0;
  const char* problem_ = nullptr;
  std::string problem_text_;  // what `problem_` points to, where it is no literal
  std::size_t problem_position_ = 0;
  Freight* freight_ = nullptr;
  DeviceSupport* device_support_ = nullptr;
};

// Whether a T stays on the worker that made it and is only referred to: see object.h.
template <typename T>
inline constexpr bool kIsObject = false;

// The text of a type, e.g. "vec<f64>". Structures are spelt by their fields, since names differ
// between programs; "^1" is the structure around it, "^2" the one around that.
class Signature {
 public:
  static constexpr bool kReading = false;

  template <typename T>
  void append() {
    static_assert(Encodable<T> || Decodable<T> || std::is_void_v<T> || kIsObject<T>,
                  "this type cannot be sent");
    if constexpr (std::is_void_v<T>) {
      append_text("void");
    } else if constexpr (kIsObject<T>) {
      append_text("object ");
      append_text(typeid(T).name());
    } else if constexpr (Encodable<T> || Decodable<T>) {
      Codec<std::remove_cvref_t<T>>::sign(*this);
    }
  }
  // With commas between them, also to what is before.
  template <typename... T>
  void append_list() {
    ((append_comma(), append<T>()), ...);
  }
  template <typename... T>
  void append_template(std::string_view name) {
    append_text(name);
    append_text("<");
    append_list<T...>();
    append_text(">");
  }
  template <typename... Fields>
  void operator()(Fields&...) {
    append_list<Fields...>();
  }
  void require(bool, const char*) {}
  void append_text(std::string_view text) { text_.append(text); }
  void append_comma();
  // False, and a "^n" is appended, inside the structure of that tag.
  bool enter(const void* tag);
  void leave();
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::vector<const void*> open_;
};

// The same number in every program and on every machine.
std::uint64_t hash_of_signature(std::string_view signature);
// The same for everybody who has that signature, and never longer than the limit: of a long one the
// beginning, and its hash.
inline constexpr std::size_t kShortSignatureBytesMax = 1024;
std::string shorten_signature(std::string signature);

namespace internal {

template <typename F>
struct SignatureOf;
template <typename R, typename... Args>
struct SignatureOf<R(Args...)> {
  static const std::string& text() {
    static const std::string kText = [] {
      Signature signature;
      signature.append_text("(");
      signature.append_list<std::remove_cvref_t<Args>...>();
      signature.append_text(")->");
      signature.append<std::remove_cvref_t<R>>();
      return signature.take();
    }();
    return kText;
  }
  static std::uint64_t hash() {
    static const std::uint64_t kHash = hash_of_signature(text());
    return kHash;
  }
};

}  // namespace internal

// signature_of<float(std::int64_t, const std::string&)>() is "(i64,str)->f32". Made once.
template <typename F>
const std::string& signature_of() {
  return internal::SignatureOf<F>::text();
}
// What travels with a call, so that both sides notice when they disagree.
template <typename F>
std::uint64_t signature_hash() {
  return internal::SignatureOf<F>::hash();
}

// Whether a T refers to memory of others: of the message, if it was read. Structures are not looked
// into: see owns_memory.
template <typename T>
inline constexpr bool kIsView = false;
template <>
inline constexpr bool kIsView<std::string_view> = true;
template <>
inline constexpr bool kIsView<const char*> = true;
template <>
inline constexpr bool kIsView<char*> = true;
template <typename T, std::size_t extent>
inline constexpr bool kIsView<std::span<T, extent>> = true;
template <typename T, std::size_t size>
inline constexpr bool kIsView<std::array<T, size>> = kIsView<T>;
template <template <typename...> typename Template, typename... Args>
inline constexpr bool kIsView<Template<Args...>> = (kIsView<Args> || ...);

// True; does not compile if there is a view anywhere in a T, also in the structures that it is made
// of. For values that are kept for longer than the message, or the function, that they came from.
template <typename T>
constexpr bool owns_memory();

// What a message is read with beside its bytes.
struct MessageContext {
  Freight* freight = nullptr;
  DeviceSupport* device_support = nullptr;
};

// One value that is all of a message.
template <typename T>
Result<T> decode(std::string_view control, std::span<const Buffer> buffers = {},
                 const MessageContext& context = {}) {
  static_assert(owns_memory<T>());
  Reader reader(control, buffers);
  reader.set_freight(context.freight);
  reader.set_device_support(context.device_support);
  if constexpr (std::is_void_v<T>) {
    return reader.finish();
  } else {
    T value = reader.template read<T>();
    if (auto finished = reader.finish(); !finished) return fail(std::move(finished.error()));
    return value;
  }
}

}  // namespace muster::rpc

#include "muster/rpc/value_codecs.h"  // IWYU pragma: export
