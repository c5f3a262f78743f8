// Server: the store on the network. Serves PyTorch clients of every supported version and Muster
// clients on one port.
//
// A thin shell around Hub: it accepts connections, moves bytes, and keeps the promises that are
// about connections:
//  - no connection can hold up another: reads and writes never block, requests take effect when
//  they are complete;
//  - a connection that reads too slowly is not served until it has caught up, and memory as a whole
//  is bounded;
//  - silent connections stay open for ever (PyTorch 1.13 keeps one per store object), and a
//  connection that must be closed
//    is closed in a way that does not reset it, which would end a 1.13 process.
//
// Owned by the program; lives on one loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/net/transport.h"
#include "muster/store/hub.h"

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::store {

struct ServerOptions {
  HubOptions hub;
  // More connections wait in the system's queue until others close.
  std::size_t connections_max = 100'000;
  // How long a connection that we closed may take to notice before it is cut off.
  Duration linger = std::chrono::seconds(5);
};

class Server {
 public:
  // Requires: `loop` outlives the server.
  Server(Loop& loop, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Requires: nothing listens yet, there is no service with that id, and `service` outlives the
  // server. It lives on the server's loop, and may speak whenever it likes; what it says in one
  // turn of the loop goes out in that turn.
  void add_service(ServiceId id, Service& service);

  // Serves `namespace_name` on the endpoint; may be called several times. Returns the port.
  // Requires: `transport` outlives the server and runs on the same loop.
  Result<int> listen(net::Transport& transport, const net::Endpoint& endpoint,
                     std::string namespace_name);

  // Forgets a namespace, closes its connections and stops listening for it. False if there is none.
  bool drop_namespace(std::string_view name);

  Hub& hub() { return hub_; }
  std::size_t connection_count() const { return connections_.size(); }

 private:
  class Connection;
  struct Port {
    std::string namespace_name;
    std::unique_ptr<net::Listener> listener;
  };

  void accepted(std::unique_ptr<net::Stream> stream, const std::string& namespace_name);
  void closed(Connection& connection);
  void update_accepting();
  // Sees to it that somebody settles in this turn.
  void settle_soon();
  // Sends what the connections have to send, and closes those that must go.
  void settle();

  Loop& loop_;
  ServerOptions options_;
  Hub hub_;
  std::string scratch_;  // where all connections read into
  std::vector<Port> ports_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> unsettled_;
  bool will_settle_ = false;  // whoever runs now does so when it is done
  Ready settle_;
  std::size_t buffered_bytes_ = 0;
  bool accepting_ = true;
};

}  // namespace muster::store
