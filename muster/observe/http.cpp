#include "muster/observe/http.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/observe/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster::observe {

using internal::HttpConnection;

HttpServer::HttpServer(Loop& loop, net::Transport& transport, HttpOptions options)
    : loop_(loop), transport_(transport), options_(std::move(options)) {
  MUSTER_ASSERT(options_.connections_max > 0);
}

HttpServer::~HttpServer() { close(); }

void HttpServer::add_route(std::string path, Route route) {
  MUSTER_ASSERT(path.starts_with('/') && route);
  routes_[std::move(path)] = std::move(route);
}

Result<> HttpServer::listen(const net::Endpoint& endpoint) {
  auto listener = transport_.listen(
      endpoint, [this](std::unique_ptr<net::Stream> stream) { accept(std::move(stream)); });
  if (!listener) return fail(listener.error());
  listener_ = std::move(*listener);
  return {};
}

int HttpServer::port() const {
  MUSTER_ASSERT(listener_ != nullptr);
  return listener_->port();
}

void HttpServer::close() {
  listener_.reset();
  sweep_ready_.withdraw();
  connections_.clear();
  buried_.clear();
}

void HttpServer::accept(std::unique_ptr<net::Stream> stream) {
  const bool has_room = make_room();
  connections_.push_back(std::make_unique<HttpConnection>(*this, std::move(stream)));
  HttpConnection& connection = *connections_.back();
  if (has_room) {
    connection.start();
    return;
  }
  // One more than may be: it is closed when the next one comes, if it has not gone by then.
  if (observer_) observer_("", 503);
  connection.refuse(text_response(503, "too many connections, try again\n"));
  if (!connection.is_closed() && !connection.is_idle()) connection.close();
}

bool HttpServer::make_room() {
  while (connections_.size() >= options_.connections_max) {
    const auto idle = std::find_if(connections_.begin(), connections_.end(),
                                   [](const auto& each) { return each->is_idle(); });
    if (idle == connections_.end()) return false;
    (*idle)->close();
  }
  return true;
}

void HttpServer::bury(HttpConnection& connection) {
  const auto place = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& each) { return each.get() == &connection; });
  MUSTER_ASSERT(place != connections_.end());
  buried_.push_back(std::move(*place));
  connections_.erase(place);
  if (sweep_ready_.queued()) return;
  loop_.soon(
      sweep_ready_, [](void* self) { static_cast<HttpServer*>(self)->sweep(); }, this);
}

void HttpServer::sweep() { buried_.clear(); }

HttpServer::Match HttpServer::find(std::string_view path) const {
  const auto exact = routes_.find(path);
  if (exact != routes_.end()) return {exact->first, &exact->second};
  // "/a/b/c" is looked for as "/a/b/*", then "/a/*", then "/*".
  for (std::size_t slash = path.rfind('/'); slash != std::string_view::npos;
       slash = slash == 0 ? std::string_view::npos : path.rfind('/', slash - 1)) {
    const auto below = routes_.find(fmt::format("{}/*", path.substr(0, slash)));
    if (below != routes_.end()) return {below->first, &below->second};
  }
  return {};
}

Response HttpServer::index() const {
  std::string body = "This is a muster agent. It has:\n";
  for (const auto& [path, route] : routes_) {
    fmt::format_to(std::back_inserter(body), "  {}\n", path);
  }
  return text_response(200, std::move(body));
}

Response HttpServer::answer(const Request& request) {
  const Match match = find(request.path);
  const bool is_index = match.route == nullptr && request.path == "/";
  Response response;
  if (match.route == nullptr && !is_index) {
    response = text_response(404, "there is no such page; / lists those there are\n");
  } else if (request.method != "GET" && request.method != "HEAD") {
    response = text_response(405, "only GET and HEAD are answered here\n");
    response.headers.emplace_back("Allow", "GET, HEAD");
  } else {
    response = is_index ? index() : (*match.route)(request);
    if (response.source != nullptr && request.method == "GET" &&
        stream_count_ >= options_.streams_max) {
      response = text_response(503, "too many clients follow already, try again later\n");
    }
  }
  if (observer_) observer_(is_index ? "/" : match.path, response.status);
  return response;
}

}  // namespace muster::observe
