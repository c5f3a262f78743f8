// ExtensionCall: one request to a Muster server and its reply, over as many connections as it
// takes.
//
// Lives in the frame of the operation, is awaited there once, and is withdrawn by being destroyed:
//
//   ExtensionCall call(client, request, deadline);
//   co_await call;
//   co_return call.number();
//
// It is an awaiter of its own, not a coroutine, and the request is encoded straight from the
// caller's strings: this is the path that decides how many requests a second a client can make.
#pragma once

#include "muster/base/coroutine.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/store/extension_client.h"
#include "muster/store/extension_link.h"
#include "muster/wire/store_extension.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::store {

class ExtensionCall final : public ReplySink, private ConnectionWaiter {
 public:
  // The request names keys as users do; the server knows them with a "/" in front. For a request
  // that waits on the server the deadline is the caller's, else it is the reply timeout. With a
  // deadline that has passed, a lost connection is not waited for either.
  // Requires: `client` and `request`, with what it points to, outlive the call.
  ExtensionCall(ExtensionClient& client, wire::Request& request, TimePoint deadline);
  // Likewise, but what the request names is no key of a user's.
  struct Verbatim {};
  ExtensionCall(ExtensionClient& client, wire::Request& request, Verbatim);
  ~ExtensionCall() override;

  // Sends the request, waits for the reply, and repeats it over a new connection where that is
  // safe.
  bool await_ready();
  void await_suspend(std::coroutine_handle<> coroutine) { coroutine_ = coroutine; }
  void await_resume() { delivered_ = true; }

  // What came of it; each once, and as the operation has it.
  Result<> outcome();
  Result<std::int64_t> number();
  Result<bool> flag();
  // Of a get or a pop.
  Result<std::optional<std::string>> optional_value();
  // Of a get or a pop that waits. One whose deadline had passed asked without waiting, so there may
  // be nothing: Timeout.
  Result<std::string> value();
  // Of anything else.
  Result<std::string> body();
  // What to say when the answer is that it would have had to wait.
  tl::unexpected<Error> timed_out() const;

 private:
  enum class Stage { New, InLine, Sent, Over };

  void attempt();
  void expire();
  void finish();
  void finish(Error error);
  bool is_pop() const { return request_.operation == wire::Operation::QueuePop; }
  // The request as the functions of client_rules.h want it: with the names on the wire.
  template <typename Describe>
  std::string describe(Describe describe_request) const;

  void on_reply(const wire::Reply& reply) override;
  void on_lost(const std::string& reason, bool sent) override;
  void on_connected() override { attempt(); }
  void on_given_up(const Error& error) override { finish(error); }

  ExtensionClient& client_;
  wire::Request& request_;
  const std::string_view key_prefix_;
  const bool waits_;
  Stage stage_ = Stage::New;
  bool delivered_ = false;
  bool taken_back_ = false;        // a pop whose time is over; its last reply has been asked for
  bool is_present_ = false;        // a get or a pop brought something
  ExtensionLink* link_ = nullptr;  // while Sent: a link that breaks tells its calls first
  std::uint32_t id_ = 0;
  TimePoint deadline_;
  TimePoint connect_deadline_;
  std::string body_;  // of a get or a pop only the value
  std::optional<Error> error_;
  std::coroutine_handle<> coroutine_;
  Ready ready_;
  Timer timer_;
};

}  // namespace muster::store
