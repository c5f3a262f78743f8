// Error and Result: how everything inside Muster says that it failed.
//
// An Error's kind tells the caller what to do next; its message tells a person what happened,
// where, and why. We return errors, we do not throw them; `future.get()` and the Python border turn
// them into exceptions.
#pragma once

#include <tl/expected.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace muster {

enum class ErrorKind {
  Invalid,        // the request is wrong; sending it again changes nothing
  Unavailable,    // cannot be reached or is overloaded; retry with backoff
  Timeout,        // the deadline passed; the outcome is unknown
  Conflict,       // someone else was first; read again, then decide
  Closed,         // the connection or the round is over; start from the beginning
  Unimplemented,  // the other side is older; fall back
  Cancelled,      // the caller no longer wants the answer
  Corrupt,        // what is stored cannot be read; it was left as it is
  Finished,       // nothing is left to do here; the caller ends, and with success
};
inline constexpr int kErrorKindCount = static_cast<int>(ErrorKind::Finished) + 1;

// The kind's name as logs, JSON output and the wire extension spell it, e.g. "unavailable".
std::string_view name_of(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::Invalid;
  std::string message;

  friend bool operator==(const Error&, const Error&) = default;
};

// A T, or the Error that kept us from having it. Nodiscard: an error that nobody looks at is a bug.
template <typename T = void>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

// `return fail(ErrorKind::Closed, "...")` in a function that returns any Result.
inline tl::unexpected<Error> fail(ErrorKind kind, std::string message) {
  return tl::unexpected<Error>(Error{kind, std::move(message)});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// The text for an errno value, e.g. "connection refused". Thread-safe, lower case, no trailing dot.
std::string describe_errno(int number);

}  // namespace muster
