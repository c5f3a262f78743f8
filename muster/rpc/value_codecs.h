// How each type is written, read and spelt; included by value.h, which says what they are for.
#pragma once

#include "muster/rpc/value.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>

namespace muster::rpc {

// Numbers whose width and sign are the same everywhere. The width of `long` is not, but the
// signature of a call shows it.
template <typename T>
concept Scalar = (std::integral<T> && sizeof(T) <= 8 && !std::same_as<T, bool> &&
                  !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
                  !std::same_as<T, char8_t> && !std::same_as<T, char16_t> &&
                  !std::same_as<T, char32_t> && std::same_as<T, std::remove_cv_t<T>>) ||
                 std::same_as<T, float> || std::same_as<T, double>;

// Without a fixed underlying type, most of the values that could arrive are undefined behaviour.
template <typename T>
concept FixedEnum = std::is_enum_v<T> && !std::same_as<T, std::byte> &&
                    Scalar<std::underlying_type_t<T>> && requires {
  T{std::underlying_type_t<T>{}};
};

// What is copied in one piece when it stands in a row. Enumerations look like their numbers, in a
// row as well: the signature does not tell them apart.
template <typename T>
concept Bulk = Scalar<T> || FixedEnum<T> || std::same_as<T, std::complex<float>> ||
    std::same_as<T, std::complex<double>> || std::same_as<T, std::byte>;

template <typename T>
concept Described = std::is_class_v<T> && std::is_default_constructible_v<T> &&
    requires(Signature& archive, T& value) {
  describe_fields(archive, value);
};

namespace internal {

// Looks at the types of fields, as describe_fields names them. Nobody calls it: it is enough that
// it would compile.
struct OwnershipCheck {
  static constexpr bool kReading = false;
  template <typename... Fields>
  void operator()(Fields&...) {
    static_assert((owns_memory<std::remove_cv_t<Fields>>() && ...));
  }
  void require(bool, const char*) {}
};

template <typename T>
struct PartsOwnMemory : std::true_type {};
template <typename T, std::size_t size>
struct PartsOwnMemory<std::array<T, size>> : std::bool_constant<owns_memory<T>()> {};
template <template <typename...> typename Template, typename... Args>
struct PartsOwnMemory<Template<Args...>> : std::bool_constant<(owns_memory<Args>() && ...)> {};

}  // namespace internal

template <typename T>
constexpr bool owns_memory() {
  static_assert(!kIsView<T>,
                "a view (std::string_view, const char*, std::span) would outlive what it points "
                "into; use what owns its memory (std::string, std::vector, Buffer)");
  constexpr bool kIsIncomplete = std::is_class_v<T> && !requires { sizeof(T); };
  if constexpr (std::is_void_v<T> || kIsObject<T> || kIsIncomplete) {
    return true;
  } else if constexpr (Described<T>) {
    // Only for what the compiler has to look at for it.
    [[maybe_unused]] constexpr void (*kCheck)(internal::OwnershipCheck&, T&) =
        [](internal::OwnershipCheck& archive, T& value) { describe_fields(archive, value); };
    return true;
  } else {
    return internal::PartsOwnMemory<T>::value;
  }
}

namespace internal {

template <typename T>
constexpr std::string_view scalar_name() {
  if constexpr (std::same_as<T, float>) return "f32";
  if constexpr (std::same_as<T, double>) return "f64";
  constexpr std::string_view kSigned[] = {"i8", "i16", "i32", "i64"};
  constexpr std::string_view kUnsigned[] = {"u8", "u16", "u32", "u64"};
  constexpr std::size_t kIndex = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return std::signed_integral<T> ? kSigned[kIndex] : kUnsigned[kIndex];
}

// An element of a container that is itself moved from is moved from, too.
template <typename Container, typename Element>
decltype(auto) pass_on(Element& element) {
  if constexpr (std::is_lvalue_reference_v<Container> || std::is_const_v<Element>) {
    return std::as_const(element);
  } else {
    return std::move(element);
  }
}

// Writes the fields of a structure that is moved in.
struct MovingWriter {
  static constexpr bool kReading = false;
  Writer& writer;
  template <typename... Fields>
  void operator()(Fields&... fields) {
    (writer.write(std::move(fields)), ...);
  }
  void require(bool condition, const char* why) { writer.require(condition, why); }
};

template <typename T>
inline constexpr char kTypeTag = 0;

// What a message of a few bytes may make us reserve before its elements are read.
inline constexpr std::size_t kReserveBytesMax = 65536;
template <typename T>
std::size_t reserve_count(std::size_t announced) {
  return std::min(announced, std::max<std::size_t>(kReserveBytesMax / sizeof(T), 1));
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace internal

// ---- single values ------------------------------------------------------------------------------

template <Scalar T>
struct Codec<T> {
  static void write(Writer& writer, T value) { writer.put(value); }
  static void read(Reader& reader, T& value) { value = reader.get<T>(); }
  static void sign(Signature& signature) { signature.append_text(internal::scalar_name<T>()); }
};

template <>
struct Codec<bool> {
  static void write(Writer& writer, bool value) {
    writer.put(value ? std::uint8_t{1} : std::uint8_t{0});
  }
  static void read(Reader& reader, bool& value) { value = reader.get_flag(); }
  static void sign(Signature& signature) { signature.append_text("bool"); }
};

template <>
struct Codec<std::byte> {
  static void write(Writer& writer, std::byte value) { writer.put(value); }
  static void read(Reader& reader, std::byte& value) { value = reader.get<std::byte>(); }
  static void sign(Signature& signature) { signature.append_text("byte"); }
};

template <FixedEnum T>
struct Codec<T> {
  using Underlying = std::underlying_type_t<T>;
  static void write(Writer& writer, T value) { writer.put(static_cast<Underlying>(value)); }
  static void read(Reader& reader, T& value) { value = static_cast<T>(reader.get<Underlying>()); }
  static void sign(Signature& signature) { signature.append<Underlying>(); }
};

template <typename T>
requires Bulk<std::complex<T>>
struct Codec<std::complex<T>> {
  static void write(Writer& writer, const std::complex<T>& value) { writer.put(value); }
  static void read(Reader& reader, std::complex<T>& value) {
    value = reader.get<std::complex<T>>();
  }
  static void sign(Signature& signature) { signature.append_text(sizeof(T) == 4 ? "c64" : "c128"); }
};

template <>
struct Codec<std::monostate> {
  static void write(Writer&, std::monostate) {}
  static void read(Reader&, std::monostate&) {}
  static void sign(Signature& signature) { signature.append_text("none"); }
};

// ---- text and bytes -----------------------------------------------------------------------------

template <>
struct Codec<std::string_view> {
  static void write(Writer& writer, std::string_view value) {
    writer.put_bytes(internal::bytes_of(value));
  }
  static void read(Reader& reader, std::string_view& value) {
    const auto bytes = reader.get_bytes();
    value = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static void sign(Signature& signature) { signature.append_text("str"); }
};

template <>
struct Codec<std::string> {
  static void write(Writer& writer, const std::string& value) {
    writer.put_bytes(internal::bytes_of(value));
  }
  static void write(Writer& writer, std::string&& value) { writer.put_owned(std::move(value)); }
  static void read(Reader& reader, std::string& value) { value = reader.read<std::string_view>(); }
  static void sign(Signature& signature) { signature.append_text("str"); }
};

template <typename T>
requires std::same_as<T, const char*> || std::same_as<T, char*>
struct Codec<T> {
  static void write(Writer& writer, const char* value) {
    if (value == nullptr) return writer.fail("a null pointer was passed for a text");
    writer.put_bytes(internal::bytes_of(value));
  }
  static void sign(Signature& signature) { signature.append_text("str"); }
};

template <std::size_t size>
struct Codec<char[size]> {
  static void write(Writer& writer, const char* value) {
    writer.put_bytes(internal::bytes_of({value, strnlen(value, size)}));
  }
  static void sign(Signature& signature) { signature.append_text("str"); }
};

template <>
struct Codec<Buffer> {
  static void write(Writer& writer, Buffer value) { writer.put_buffer(std::move(value)); }
  static void read(Reader& reader, Buffer& value) { value = reader.get_buffer(); }
  static void sign(Signature& signature) { signature.append_text("bytes"); }
};

// A span is lent by whoever passes it, whatever the Writer does with other lvalues. Numbers that
// arrive may not be aligned, so only bytes are received as a span.
template <typename T>
requires Bulk<std::remove_const_t<T>>
struct Codec<std::span<T>> {
  static void write(Writer& writer, std::span<T> value) {
    writer.put_buffer(Buffer::borrow(std::as_bytes(value)));
  }
  static void read(Reader& reader, std::span<T>& value) requires std::same_as<T, const std::byte> {
    value = reader.get_bytes();
  }
  static void sign(Signature& signature) {
    signature.append<std::vector<std::remove_const_t<T>>>();
  }
};

template <Bulk T>
struct Codec<std::vector<T>> {
  static void write(Writer& writer, const std::vector<T>& value) {
    writer.put_bytes(std::as_bytes(std::span(value)));
  }
  static void write(Writer& writer, std::vector<T>&& value) { writer.put_owned(std::move(value)); }
  static void read(Reader& reader, std::vector<T>& value) {
    const auto bytes = reader.get_bytes();
    if (bytes.size() % sizeof(T) != 0) reader.fail("the last number of a list is cut off");
    const std::size_t count = reader.ok() ? bytes.size() / sizeof(T) : 0;
    const auto* const first = reinterpret_cast<const T*>(bytes.data());
    if (reinterpret_cast<std::uintptr_t>(first) % alignof(T) == 0) {
      // Unlike resize, this does not fill the memory with zeros first.
      value.assign(first, first + count);
      return;
    }
    value.resize(count);
    if (count != 0) std::memcpy(value.data(), bytes.data(), bytes.size());
  }
  static void sign(Signature& signature) {
    if constexpr (std::same_as<T, std::byte>) {
      signature.append_text("bytes");
    } else {
      signature.append_template<T>("vec");
    }
  }
};

// ---- containers ---------------------------------------------------------------------------------

template <Encodable T>
requires(!Bulk<T>) struct Codec<std::vector<T>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    writer.put_count(value.size());
    const std::size_t start = writer.size();
    if constexpr (std::same_as<T, bool>) {
      for (const bool element : value) writer.write(element);
    } else {
      for (auto& element : value) writer.write(internal::pass_on<V>(element));
    }
    writer.pad_to(start + value.size());
  }
  static void read(Reader& reader, std::vector<T>& value) requires Decodable<T> {
    value.clear();
    const std::size_t count = reader.get_count();
    const std::size_t start = reader.position();
    if (!reader.charge(count, sizeof(T))) return;
    value.reserve(internal::reserve_count<T>(count));
    for (std::size_t i = 0; i < count && reader.ok(); ++i) value.push_back(reader.read<T>());
    reader.skip_padding(start + count);
  }
  static void sign(Signature& signature) { signature.append_template<T>("vec"); }
};

template <Encodable T, std::size_t size>
struct Codec<std::array<T, size>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    if constexpr (Bulk<T>) {
      writer.put_raw(std::as_bytes(std::span(value)));
    } else {
      for (auto& element : value) writer.write(internal::pass_on<V>(element));
    }
  }
  static void read(Reader& reader, std::array<T, size>& value) requires Decodable<T> {
    if constexpr (Bulk<T>) {
      reader.get_raw(std::as_writable_bytes(std::span(value)));
    } else {
      for (T& element : value) reader.read(element);
    }
  }
  static void sign(Signature& signature) {
    signature.append_template<T>("arr");
    signature.append_text("*" + std::to_string(size));
  }
};

namespace internal {

template <typename Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  template <typename V>
  static void write(Writer& writer, V&& value) {
    writer.put_count(value.size());
    const std::size_t start = writer.size();
    for (auto& [key, mapped] : value) writer.write(key, pass_on<V>(mapped));
    writer.pad_to(start + value.size());
  }
  static void read(Reader& reader, Map& value) requires Decodable<Key> && Decodable<Value> {
    value.clear();
    const std::size_t count = reader.get_count();
    const std::size_t start = reader.position();
    if (!reader.charge(count, sizeof(typename Map::value_type) + kNodeBytes)) return;
    for (std::size_t i = 0; i < count && reader.ok(); ++i) {
      Key key = reader.read<Key>();
      Value mapped = reader.read<Value>();
      value.emplace_hint(value.end(), std::move(key), std::move(mapped));
    }
    reader.require(!reader.ok() || value.size() == count, "a map has the same key twice");
    reader.skip_padding(start + count);
  }
  static void sign(Signature& signature) { signature.append_template<Key, Value>("map"); }
};

template <typename Set>
struct SetCodec {
  using Key = typename Set::key_type;
  static void write(Writer& writer, const Set& value) {
    writer.put_count(value.size());
    const std::size_t start = writer.size();
    for (const Key& key : value) writer.write(key);
    writer.pad_to(start + value.size());
  }
  static void read(Reader& reader, Set& value) requires Decodable<Key> {
    value.clear();
    const std::size_t count = reader.get_count();
    const std::size_t start = reader.position();
    if (!reader.charge(count, sizeof(Key) + kNodeBytes)) return;
    for (std::size_t i = 0; i < count && reader.ok(); ++i) {
      value.emplace_hint(value.end(), reader.read<Key>());
    }
    reader.require(!reader.ok() || value.size() == count, "a set has the same element twice");
    reader.skip_padding(start + count);
  }
  static void sign(Signature& signature) { signature.append_template<Key>("set"); }
};

}  // namespace internal

template <Encodable K, Encodable V, typename... Rest>
struct Codec<std::map<K, V, Rest...>> : internal::MapCodec<std::map<K, V, Rest...>> {};
template <Encodable K, Encodable V, typename... Rest>
struct Codec<std::unordered_map<K, V, Rest...>>
    : internal::MapCodec<std::unordered_map<K, V, Rest...>> {};
template <Encodable K, typename... Rest>
struct Codec<std::set<K, Rest...>> : internal::SetCodec<std::set<K, Rest...>> {};
template <Encodable K, typename... Rest>
struct Codec<std::unordered_set<K, Rest...>> : internal::SetCodec<std::unordered_set<K, Rest...>> {
};

// ---- combinations -------------------------------------------------------------------------------

template <Encodable T>
struct Codec<std::optional<T>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    writer.write(value.has_value());
    if (value) writer.write(*std::forward<V>(value));
  }
  static void read(Reader& reader, std::optional<T>& value) requires Decodable<T> {
    value.reset();
    if (reader.get_flag()) reader.read(value.emplace());
  }
  static void sign(Signature& signature) { signature.append_template<T>("opt"); }
};

template <Encodable A, Encodable B>
struct Codec<std::pair<A, B>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    writer.write(std::forward<V>(value).first, std::forward<V>(value).second);
  }
  static void read(Reader& reader, std::pair<A, B>& value) requires Decodable<A> && Decodable<B> {
    reader.read(value.first, value.second);
  }
  static void sign(Signature& signature) { signature.append_template<A, B>("tup"); }
};

template <Encodable... T>
struct Codec<std::tuple<T...>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    const auto each = [&writer](auto&&... parts) {
      writer.write(std::forward<decltype(parts)>(parts)...);
    };
    std::apply(each, std::forward<V>(value));
  }
  static void read(Reader& reader, std::tuple<T...>& value) requires(Decodable<T>&&...) {
    std::apply([&reader](T&... parts) { reader.read(parts...); }, value);
  }
  static void sign(Signature& signature) { signature.append_template<T...>("tup"); }
};

template <Encodable... T>
requires(sizeof...(T) <= 256) struct Codec<std::variant<T...>> {
  template <typename V>
  static void write(Writer& writer, V&& value) {
    if (value.valueless_by_exception()) return writer.fail("a variant has no value");
    writer.put(static_cast<std::uint8_t>(value.index()));
    const auto each = [&writer](auto&& part) { writer.write(std::forward<decltype(part)>(part)); };
    std::visit(each, std::forward<V>(value));
  }
  static void read(Reader& reader, std::variant<T...>& value) requires(Decodable<T>&&...) {
    const std::size_t index = reader.get<std::uint8_t>();
    reader.require(index < sizeof...(T), "a variant has an alternative that is not known here");
    if (reader.ok()) read_alternative(reader, value, index, std::index_sequence_for<T...>());
  }
  static void sign(Signature& signature) { signature.append_template<T...>("var"); }

 private:
  template <std::size_t... indices>
  static void read_alternative(Reader& reader, std::variant<T...>& value, std::size_t index,
                               std::index_sequence<indices...>) {
    ((index == indices ? reader.read(value.template emplace<indices>()) : void()), ...);
  }
};

template <Described T>
struct Codec<T> {
  static void write(Writer& writer, const T& value) {
    // describe_fields also reads, and so takes what it may change; a Writer changes nothing.
    if (writer.enter()) describe_fields(writer, const_cast<T&>(value));
    writer.leave();
  }
  static void write(Writer& writer, T&& value) {
    internal::MovingWriter archive{writer};
    if (writer.enter()) describe_fields(archive, value);
    writer.leave();
  }
  static void read(Reader& reader, T& value) {
    if (reader.enter()) describe_fields(reader, value);
    reader.leave();
  }
  static void sign(Signature& signature) {
    if (!signature.enter(&internal::kTypeTag<T>)) return;
    T value{};
    describe_fields(signature, value);
    signature.leave();
  }
};

}  // namespace muster::rpc
