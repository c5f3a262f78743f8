// JsonWriter: JSON text, written from front to back.
//
// Spaced as Python's json module spaces it ("a": 1, "b": 2), so that what greps the records of
// PyTorch's launcher greps ours, and pure ASCII, whatever bytes a string holds: what is no UTF-8
// becomes U+FFFD. A record is therefore always one line that every reader takes.
//
// A value; belongs to whoever writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace muster::observe {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  // Requires: inside of an object, and a value follows.
  JsonWriter& key(std::string_view name);

  JsonWriter& null();
  JsonWriter& boolean(bool value);
  JsonWriter& integer(std::int64_t value);
  // Always with a point or an exponent, so that its type does not depend on its value; null when it
  // is not finite.
  JsonWriter& number(double value);
  JsonWriter& text(std::string_view value);
  // JSON that is already there. Requires: it is one value.
  JsonWriter& raw(std::string_view json);

  // `key` and its value at once; an empty optional is null.
  template <typename T>
  JsonWriter& field(std::string_view name, const T& value) {
    return key(name).any(value);
  }
  template <typename T>
  JsonWriter& any(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return boolean(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return number(static_cast<double>(value));
    } else if constexpr (std::is_integral_v<T>) {
      return integer(static_cast<std::int64_t>(value));
    } else {
      return text(value);
    }
  }
  template <typename T>
  JsonWriter& any(const std::optional<T>& value) {
    return value ? any(*value) : null();
  }

  const std::string& str() const { return out_; }
  std::string take() { return std::exchange(out_, {}); }

 private:
  void before_value();

  std::string out_;
  bool needs_comma_ = false;
};

// `text` as valid UTF-8: every byte that is none becomes U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace muster::observe
