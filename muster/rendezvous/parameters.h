// Parameters: what a rendezvous is asked for, before any backend has looked at it.
//
// Options come from a command line (all strings) or from a program (any type); the `get_as_`
// functions say which spellings of a type count.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace muster::rendezvous {

// A value of a type that no option has: a list, a map, bytes. Only the type's name is kept, for
// messages.
struct OtherValue {
  std::string type;

  friend bool operator==(const OtherValue&, const OtherValue&) = default;
};

using Null = std::monostate;
using ValueVariant = std::variant<Null, bool, std::int64_t, double, std::string, OtherValue>;

// The value of one option. Literals of C++ turn into the kind one expects: `1`, `1.5`, `"text"`.
class Value : public ValueVariant {
 public:
  Value() = default;
  Value(Null) {}
  Value(bool value) : ValueVariant(value) {}
  Value(int value) : ValueVariant(std::int64_t{value}) {}
  Value(std::int64_t value) : ValueVariant(value) {}
  Value(double value) : ValueVariant(value) {}
  Value(const char* value) : ValueVariant(std::string(value)) {}
  Value(std::string value) : ValueVariant(std::move(value)) {}
  Value(OtherValue value) : ValueVariant(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<Null>(*this); }
};

// For messages: `null`, `true`, `3`, `1.5`, `"text"`, `a list`.
std::string describe(const Value& value);

using Config = std::map<std::string, Value, std::less<>>;

struct Parameters {
  // Returns `parameters` if they can be used, else Invalid: for an empty backend, `min_nodes` < 1
  // and `max_nodes` < `min_nodes`, in this order. Endpoint and run id are the backend's to judge.
  static Result<Parameters> create(Parameters parameters);

  std::string backend = {};
  std::string endpoint = {};
  std::string run_id = {};
  std::int64_t min_nodes = 1;
  std::int64_t max_nodes = 1;
  std::string local_addr = {};  // empty: this machine's name
  Config config = {};

  // The stored value, even if that is null; else `otherwise`. The functions below judge the default
  // as they judge a stored value. Their errors are Invalid and name the option and the value.
  Value get(std::string_view option, Value otherwise = {}) const;

  // Nothing for null. True: true, 1, and the strings 1, true, t, yes, y; false likewise. Letters of
  // either case, no spaces.
  Result<std::optional<bool>> get_as_bool(std::string_view option, Value otherwise = {}) const;

  // Nothing for null. Booleans are 1 or 0; fractions are cut off; strings are decimal numbers with
  // spaces around and single underscores between digits.
  Result<std::optional<std::int64_t>> get_as_int(std::string_view option,
                                                 Value otherwise = {}) const;

  // Nothing for null. Strings only.
  Result<std::optional<std::string>> get_as_string(std::string_view option,
                                                   Value otherwise = {}) const;

  // Nothing for null. Numbers are seconds; strings are read by parse_duration. Never negative.
  Result<std::optional<Duration>> get_as_duration(std::string_view option,
                                                  Value otherwise = {}) const;
};

}  // namespace muster::rendezvous
