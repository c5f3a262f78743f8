// TcpStore: a store on a server, over the network. The server may be Muster's, or one hosted by a
// PyTorch process of any supported version; which it is, the client finds out without harm to the
// server or its other clients.
//
// A Muster server is spoken to with the extension: many requests under way on one connection,
// changes pushed. A PyTorch server gets what its version knows; what it lacks is emulated (append,
// multi-operations, watch) or refused with Unimplemented (queues on servers before 2.8).
//
// Lost connections are opened again with back-off. Reads and waits are repeated by themselves. A
// write that had been sent when the connection broke is not, since it may have taken effect: it
// fails with Closed and a text that says so.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/net/transport.h"
#include "muster/store/service.h"
#include "muster/store/store.h"
#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store {

struct TcpStoreOptions {
  net::Endpoint endpoint;
  // Of a Muster server; empty for the one its port belongs to.
  std::string namespace_name;
  // How long to try to reach the server, at first and after each loss, before operations fail with
  // Unavailable.
  Duration connect_timeout = std::chrono::seconds(300);
  // How long an operation that does not wait for anybody may take.
  Duration reply_timeout = std::chrono::seconds(60);
  BackoffOptions backoff;
  // Counts this client in as a worker, once, as PyTorch's clients do: a PyTorch process that hosts
  // a store may wait for that.
  bool count_as_worker = false;
};

class TcpStore : public Store {
 public:
  // What the server speaks: Extension is Muster's own.
  virtual wire::Dialect dialect() const = 0;
  // Adds one to the worker count that PyTorch's store hosts wait for
  // (TcpStoreOptions::count_as_worker).
  virtual Task<Result<>> count_as_worker() = 0;
  // That count. A process that hosts a store waits by it until all workers have come.
  virtual Task<Result<std::int64_t>> worker_count() = 0;
  // Asks the server for a sign of life.
  virtual Task<Result<>> ping() = 0;
  // Names and values that describe the server, for people. Unimplemented by PyTorch's servers.
  virtual Task<Result<std::vector<std::pair<std::string, std::string>>>> info() = 0;
  // Whether there was such a namespace. Closes its connections. Unimplemented by PyTorch's servers.
  virtual Task<Result<bool>> drop_namespace(std::string name) = 0;
  // The services of the server, as long as the store lives; nullptr for PyTorch's servers, which
  // have none.
  virtual ServiceClient* services() = 0;
};

// A talk with more unread messages, or more unread bytes if there are several, is ended with
// Unavailable.
inline constexpr std::size_t kTalkMessagesMax = 4096;
inline constexpr std::size_t kTalkBytesMax = std::size_t{64} << 20U;

// Requires: `loop`, `transport` (on that loop) and `random` outlive the store.
Task<Result<std::unique_ptr<TcpStore>>> connect_tcp_store(Loop& loop, net::Transport& transport,
                                                          Random& random, TcpStoreOptions options);

}  // namespace muster::store
