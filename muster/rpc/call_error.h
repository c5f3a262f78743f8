// CallError: why a call failed, for the program that made it.
//
// The code is carried beside the text and only rendered into it, so that no text of an application
// can be mistaken for one of ours.
#pragma once

#include <tl/expected.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace muster::rpc {

enum class CallErrorKind {
  Timeout,      // the time of the call is over; whether it ran is not known
  Injected,     // failed on purpose, by a test
  Unreachable,  // the peer is gone or cannot be reached; whether it ran is not known unless
                // `sent` is false
  Remote,       // the function was run and failed, or could not be run there
  Rejected,     // nothing was sent: unknown destination, argument that does not fit, not running
};
std::string_view name_of(CallErrorKind kind);

struct CallError {
  CallErrorKind kind = CallErrorKind::Rejected;
  std::string message;
  // Remote: the type of what the function threw, as the callee names it; empty if it is not known.
  std::string type;
  // Whether the request may have left this process.
  bool sent = false;

  friend bool operator==(const CallError&, const CallError&) = default;
};

// The number that torch.distributed.rpc has for it: 1 timeout, 2 injected, 0 anything else.
int code_of(const CallError& error);
// The text with the head `RPCErr:<code>:` in front where there is a code; else the text.
std::string render(const CallError& error);
// The code that a rendered text shows; 0 when there is none.
int code_in(std::string_view text);

template <typename T = void>
class [[nodiscard]] CallResult : public tl::expected<T, CallError> {
 public:
  using tl::expected<T, CallError>::expected;
};
inline tl::unexpected<CallError> call_failed(CallError error) {
  return tl::unexpected<CallError>(std::move(error));
}

}  // namespace muster::rpc
