// Protocol: how the load generator's plain sockets talk to one kind of server.
//
// Requests are encoded and replies are taken apart anew each time, as a client library has to; only
// the raw echo is spared that. Owned by a SocketDriver or a Crowd.
#pragma once

#include "bench/load.h"
#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace muster::bench {

// One reply at the beginning of what was received.
struct Reply {
  std::size_t bytes = 0;     // of the whole reply
  std::string_view payload;  // the value in it, if it carries one
};

class Protocol {
 public:
  enum class Role {
    Client,
    Waiter,  // is released by the announcer
    Announcer,
  };

  virtual ~Protocol() = default;

  // What a new connection sends. The reply to it is as `parse_hello` says.
  virtual void append_hello(Role role, std::string& out) const = 0;
  // Nothing while the reply is not complete.
  virtual Result<std::optional<Reply>> parse_hello(std::string_view received) const = 0;

  // Adds one request, which gets one reply. `expected` is for compare_set.
  struct Request {
    Operation operation = Operation::Get;
    std::string_view key;
    std::string_view value;
    std::string_view expected;
  };
  virtual void append_request(const Request& request, std::string& out) const = 0;
  virtual Result<std::optional<Reply>> parse_reply(Operation operation,
                                                   std::string_view received) const = 0;
  // Not 0: replies need not be looked at, they all have this size.
  virtual std::size_t reply_bytes() const { return 0; }

  // Waking. In each round every waiter sends `append_wait`; once the server has seen them all, the
  // announcer sends `append_release`, and each waiter gets one `parse_release`.
  struct Wait {
    bool is_sent = false;       // some protocols wait once and for all
    bool is_confirmed = false;  // a reply comes at once, as from `parse_wait`
  };
  virtual Wait append_wait(std::uint64_t round, std::string& out) const = 0;
  virtual Result<std::optional<Reply>> parse_wait(std::string_view received) const = 0;
  virtual void append_release(std::uint64_t round, std::size_t value_bytes,
                              std::string& out) const = 0;
  virtual Result<std::optional<Reply>> parse_release(std::string_view received) const = 0;
};

// Answers of fixed size, and nothing in them. Sizes are those of the workload.
std::unique_ptr<Protocol> make_echo_protocol(std::size_t request_bytes, std::size_t reply_bytes);
// RESP2. Waking is SUBSCRIBE and PUBLISH, Redis's way to tell many clients at once.
std::unique_ptr<Protocol> make_redis_protocol();
// Dialect M of PyTorch's TCPStore, as plain bytes. A set is followed by a check of the key, since
// it has no reply.
std::unique_ptr<Protocol> make_tcpstore_protocol();

}  // namespace muster::bench
