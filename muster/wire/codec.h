// Reader and Writer: integers and strings to bytes and back. Little-endian everywhere.
//
// A Reader never reads past its input: the first read that would sets `failed()`, and everything
// read from then on is zero or empty. So a decoder reads all its fields and asks once at the end.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace muster::wire {

static_assert(std::endian::native == std::endian::little,
              "the store protocol has no other byte order");

template <typename T>
concept WireInteger = std::same_as<T, std::uint8_t> || std::same_as<T, std::uint32_t> ||
    std::same_as<T, std::uint64_t> || std::same_as<T, std::int64_t>;

// The integer at the beginning of `bytes`. Requires: there are that many.
template <WireInteger T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <WireInteger T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// PyTorch's string and blob: a u64 length, then the bytes.
inline void put_blob(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out.append(text);
}

// The extension's string: a u32 length, then the bytes.
inline void put_string(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view input) : rest_(input) {}

  template <WireInteger T>
  T integer() {
    if (rest_.size() < sizeof(T)) {
      fail();
      return 0;
    }
    const T value = load<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  // A string of the extension, at most `max` bytes long.
  std::string_view string(std::size_t max) {
    const auto size = integer<std::uint32_t>();
    if (size > max || size > rest_.size()) {
      fail();
      return {};
    }
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }

  std::string_view rest() const { return rest_; }
  bool failed() const { return failed_; }
  // Everything was read, and nothing was missing.
  bool finished() const { return !failed_ && rest_.empty(); }

 private:
  void fail() {
    failed_ = true;
    rest_ = {};
  }

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace muster::wire
