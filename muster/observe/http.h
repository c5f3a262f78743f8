// HttpServer: a small HTTP/1.1 server for an agent's own pages: health, status, metrics, events.
//
// GET and HEAD only. It must never hurt the agent that carries it: heads, connections and streams
// are bounded, a client that is too slow to ask or to take the answer is dropped, nothing waits,
// and a full server drops idle connections before it refuses a new one. Streams have a limit of
// their own, so that those who watch cannot keep a health probe out.
//
// Owned by the agent; lives on its loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/net/transport.h"
#include "muster/observe/http_request.h"
#include "muster/observe/http_response.h"
#include "muster/observe/wall_clock.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::observe {

struct HttpOptions {
  std::size_t connections_max = 64;
  std::size_t streams_max = 16;
  // From a request's first byte (or the connection's beginning) to the end of its head.
  Duration head_timeout = std::chrono::seconds(10);
  // Between two requests.
  Duration idle_timeout = std::chrono::seconds(75);
  // Without a byte being taken by the client while there are some for it.
  Duration stall_timeout = std::chrono::seconds(20);
  // For the whole of an answer that is no stream.
  Duration answer_timeout = std::chrono::seconds(60);
  // After the last answer, for the client to close first.
  Duration linger = std::chrono::seconds(2);
  WallClock wall_clock = wall_nanoseconds;
};

// Answers one request. Called on the loop; returns at once and neither closes nor destroys the
// server.
using Route = std::function<Response(const Request&)>;

namespace internal {
class HttpConnection;
}  // namespace internal

class HttpServer {
 public:
  // Requires: both outlive it.
  HttpServer(Loop& loop, net::Transport& transport, HttpOptions options = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // `path` is answered by `route`; a path that ends in "/*" stands for everything below it that has
  // no route of its own. "/" has a built-in one, a list of the others.
  void add_route(std::string path, Route route);

  // Unavailable when the address cannot be had. Port 0: the system chooses.
  Result<> listen(const net::Endpoint& endpoint);
  // Of the listener. Requires: listening.
  int port() const;
  // Drops everything; `listen` may be called again.
  void close();

  // Called for every answer, for metrics: the route's path ("" for none) and the status.
  void set_observer(std::function<void(std::string_view path, int status)> observer) {
    observer_ = std::move(observer);
  }

  std::size_t connection_count() const { return connections_.size(); }
  std::size_t stream_count() const { return stream_count_; }

 private:
  friend class internal::HttpConnection;
  struct Match {
    std::string_view path;
    const Route* route = nullptr;
  };

  void accept(std::unique_ptr<net::Stream> stream);
  bool make_room();
  Match find(std::string_view path) const;
  Response answer(const Request& request);
  Response index() const;
  // Frees a connection that has closed, from the loop.
  void bury(internal::HttpConnection& connection);
  void sweep();

  Loop& loop_;
  net::Transport& transport_;
  const HttpOptions options_;
  std::map<std::string, Route, std::less<>> routes_;
  std::function<void(std::string_view, int)> observer_;
  std::size_t stream_count_ = 0;
  std::vector<std::unique_ptr<internal::HttpConnection>> connections_;  // in order of arrival
  std::vector<std::unique_ptr<internal::HttpConnection>> buried_;
  Ready sweep_ready_;
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace muster::observe
