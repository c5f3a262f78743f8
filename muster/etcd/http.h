// Http: an HTTP client on an EpollLoop, as etcd's gateway needs one: POST, the whole answer or a
// stream of it, TLS, connections kept for the next request. libcurl does the protocol; its multi
// interface runs on our loop's descriptors and timers, so there are no threads but the one libcurl
// starts to resolve a name, and nothing blocks.
//
// HTTP/1.1 only: a request that is given up takes its connection with it, so a member that hangs
// cannot hold up later requests.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::etcd {

// Paths of PEM files. Empty: the system's authorities; no certificate of our own.
struct TlsFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

struct HttpRequest {
  std::string url;
  std::string body;
  std::vector<std::string> headers = {};
  Duration timeout = Duration::zero();  // for all of the answer; zero for none
};

// How an exchange ended.
struct HttpEnd {
  int status = 0;       // 0: no answer; `problem` says why
  std::string problem;  // empty when the answer is complete
  // The server may have read the whole request. Only meaningful with a problem.
  bool delivered = false;
  // The other side's certificate or ours is not right: trying again changes nothing.
  bool is_misconfigured = false;
};
struct HttpAnswer {
  HttpEnd end;
  std::string body;
};

class Http;

// One request and its answer, piece by piece. Owned by whoever reads it; destroying it ends it and
// its connection. Must not outlive its Http.
class HttpExchange {
 public:
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  // The next piece of the answer's body; nothing when there is no more, then `end` says why. One
  // caller at a time; destroying the task loses nothing.
  Task<std::optional<std::string>> next();
  // Requires: `next` has returned nothing.
  const HttpEnd& end() const { return end_; }
  // The status of the answer; 0 before it begins.
  int status() const;

  // Ends the exchange as if the connection had broken.
  void abort(std::string problem);

 private:
  friend class Http;
  struct Easy;  // libcurl's handle and what it borrows
  struct Waiting;
  HttpExchange(Http& http, HttpRequest request);
  // libcurl is done.
  void finished(int curl_code);
  void wake();
  std::size_t on_body(const char* data, std::size_t size);
  std::size_t on_read(char* into, std::size_t size);

  Http& http_;
  HttpRequest request_;
  std::size_t sent_bytes_ = 0;
  std::string received_;
  bool is_paused_ = false;
  bool is_done_ = false;
  HttpEnd end_;
  Oneshot<bool>* waiter_ = nullptr;
  std::unique_ptr<Easy> easy_;
};

// Owned by one Client, on its loop.
class Http {
 public:
  // Requires: `loop` outlives it, and load_curl has succeeded.
  Http(net::EpollLoop& loop, TlsFiles files);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  Task<HttpAnswer> post(HttpRequest request);
  std::unique_ptr<HttpExchange> open(HttpRequest request);

 private:
  friend class HttpExchange;
  struct Callbacks;  // what libcurl calls
  void act(int fd, int events);

  net::EpollLoop& loop_;
  const TlsFiles files_;
  void* multi_;  // libcurl's CURLM
  std::map<int, std::unique_ptr<net::FdWatch>> watches_;
  Timer timer_;
};

}  // namespace muster::etcd
