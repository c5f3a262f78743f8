#include "muster/etcd/http.h"

#include "muster/base/assert.h"
#include "muster/etcd/curl_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <sys/epoll.h>
#include <utility>

namespace muster::etcd {
namespace {

// What is received and not yet taken; more waits in the connection.
constexpr std::size_t kReceivedBytesMax = std::size_t{4} << 20U;
// An answer of etcd is limited by its own limits; this keeps a stranger from filling the memory.
constexpr std::size_t kAnswerBytesMax = std::size_t{512} << 20U;
constexpr long kIdleConnectionsMax = 8;
// A silent peer is noticed by the system after about ten seconds.
constexpr long kKeepAliveIdleSeconds = 5;
constexpr long kKeepAliveIntervalSeconds = 2;

template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  const CURLcode outcome = curl().easy_setopt(handle, option, value);
  MUSTER_ASSERT(outcome == CURLE_OK);
}

bool is_about_certificates(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CRL_BADFILE:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct HttpExchange::Easy {
  CURL* handle = curl().easy_init();
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> problem{};
  bool is_added = false;

  Easy() { MUSTER_ASSERT(handle != nullptr); }
  Easy(const Easy&) = delete;
  Easy& operator=(const Easy&) = delete;
  ~Easy() {
    curl().easy_cleanup(handle);
    curl().slist_free_all(headers);
  }
};

struct Http::Callbacks {
  static int socket(CURL*, curl_socket_t fd, int what, void* user, void*) {
    Http& http = *static_cast<Http*>(user);
    if (what == CURL_POLL_REMOVE) {
      http.watches_.erase(fd);
      return 0;
    }
    std::unique_ptr<net::FdWatch>& watch = http.watches_[fd];
    if (watch == nullptr) {
      watch = std::make_unique<net::FdWatch>(http.loop_, fd, [&http, fd](std::uint32_t events) {
        int actions = 0;
        if ((events & (EPOLLIN | EPOLLHUP)) != 0) actions |= CURL_CSELECT_IN;
        if ((events & EPOLLOUT) != 0) actions |= CURL_CSELECT_OUT;
        if ((events & EPOLLERR) != 0) actions |= CURL_CSELECT_ERR;
        http.act(fd, actions);
      });
    }
    std::uint32_t wanted = 0;
    if (what == CURL_POLL_IN || what == CURL_POLL_INOUT) wanted |= EPOLLIN;
    if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT) wanted |= EPOLLOUT;
    watch->want(wanted);
    return 0;
  }

  static int timer(CURLM*, long timeout_ms, void* user) {
    Http& http = *static_cast<Http*>(user);
    if (timeout_ms < 0) {
      http.timer_.cancel();
    } else {
      http.timer_.set(http.loop_.now() + std::chrono::milliseconds(timeout_ms));
    }
    return 0;
  }

  static std::size_t write(char* data, std::size_t size, std::size_t count, void* user) {
    return static_cast<HttpExchange*>(user)->on_body(data, size * count);
  }

  static std::size_t read(char* into, std::size_t size, std::size_t count, void* user) {
    return static_cast<HttpExchange*>(user)->on_read(into, size * count);
  }

  // libcurl would send a request again by itself when a kept connection turns out to be closed.
  // Whether a request may be repeated is not for it to decide.
  static int seek(void*, curl_off_t, int) { return CURL_SEEKFUNC_FAIL; }
};

// Withdraws when the coroutine that waits is destroyed.
struct HttpExchange::Waiting {
  HttpExchange& exchange;
  ~Waiting() { exchange.waiter_ = nullptr; }
};

HttpExchange::HttpExchange(Http& http, HttpRequest request)
    : http_(http), request_(std::move(request)), easy_(std::make_unique<Easy>()) {
  CURL* const handle = easy_->handle;
  for (const std::string& header : request_.headers)
    easy_->headers = curl().slist_append(easy_->headers, header.c_str());
  easy_->headers = curl().slist_append(easy_->headers, "Content-Type: application/json");
  // Without this a large body is held back for a second, for a permission that etcd does not send.
  easy_->headers = curl().slist_append(easy_->headers, "Expect:");
  set(handle, CURLOPT_PRIVATE, this);
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_QUICK_EXIT, 1L);  // do not wait for a name that is being resolved
  set(handle, CURLOPT_PROXY, "");
  set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(handle, CURLOPT_URL, request_.url.c_str());
  set(handle, CURLOPT_HTTPHEADER, easy_->headers);
  set(handle, CURLOPT_POST, 1L);
  set(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
  set(handle, CURLOPT_READFUNCTION, &Http::Callbacks::read);
  set(handle, CURLOPT_READDATA, this);
  set(handle, CURLOPT_SEEKFUNCTION, &Http::Callbacks::seek);
  set(handle, CURLOPT_WRITEFUNCTION, &Http::Callbacks::write);
  set(handle, CURLOPT_WRITEDATA, this);
  set(handle, CURLOPT_ERRORBUFFER, easy_->problem.data());
  set(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  set(handle, CURLOPT_TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(handle, CURLOPT_TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  if (request_.timeout > Duration::zero()) {
    const auto timeout_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(request_.timeout).count();
    set(handle, CURLOPT_TIMEOUT_MS, std::max(1L, static_cast<long>(timeout_ms)));
  }
  if (!http_.files_.ca.empty()) set(handle, CURLOPT_CAINFO, http_.files_.ca.c_str());
  if (!http_.files_.certificate.empty())
    set(handle, CURLOPT_SSLCERT, http_.files_.certificate.c_str());
  if (!http_.files_.key.empty()) set(handle, CURLOPT_SSLKEY, http_.files_.key.c_str());
  const CURLMcode outcome = curl().multi_add_handle(http_.multi_, handle);
  MUSTER_ASSERT(outcome == CURLM_OK);
  easy_->is_added = true;
}

HttpExchange::~HttpExchange() {
  if (easy_->is_added) curl().multi_remove_handle(http_.multi_, easy_->handle);
}

Task<std::optional<std::string>> HttpExchange::next() {
  while (received_.empty() && !is_done_) {
    Oneshot<bool> woken(http_.loop_);
    const Waiting waiting{*this};
    MUSTER_ASSERT(waiter_ == nullptr);
    waiter_ = &woken;
    co_await woken;
  }
  if (received_.empty()) co_return std::nullopt;
  std::optional<std::string> piece = std::exchange(received_, {});
  if (is_paused_) {
    is_paused_ = false;
    curl().easy_pause(easy_->handle, CURLPAUSE_CONT);
  }
  co_return piece;
}

int HttpExchange::status() const {
  if (is_done_) return end_.status;
  long status = 0;
  curl().easy_getinfo(easy_->handle, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

void HttpExchange::abort(std::string problem) {
  if (is_done_) return;
  curl().multi_remove_handle(http_.multi_, easy_->handle);
  easy_->is_added = false;
  is_done_ = true;
  end_.problem = std::move(problem);
  end_.delivered = sent_bytes_ == request_.body.size();
  wake();
}

void HttpExchange::finished(int curl_code) {
  const auto code = static_cast<CURLcode>(curl_code);
  if (code == CURLE_OK) {
    end_.status = status();
  } else {
    end_.problem = easy_->problem[0] != '\0' ? easy_->problem.data() : curl().easy_strerror(code);
    end_.delivered = sent_bytes_ == request_.body.size();
    end_.is_misconfigured = is_about_certificates(code);
  }
  curl().multi_remove_handle(http_.multi_, easy_->handle);
  easy_->is_added = false;
  is_done_ = true;
  wake();
}

void HttpExchange::wake() {
  if (waiter_ != nullptr) waiter_->set(true);
}

std::size_t HttpExchange::on_body(const char* data, std::size_t size) {
  if (received_.size() >= kReceivedBytesMax) {
    is_paused_ = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  received_.append(data, size);
  wake();
  return size;
}

std::size_t HttpExchange::on_read(char* into, std::size_t size) {
  const std::size_t count = std::min(size, request_.body.size() - sent_bytes_);
  if (count > 0) std::memcpy(into, request_.body.data() + sent_bytes_, count);
  sent_bytes_ += count;
  return count;
}

Http::Http(net::EpollLoop& loop, TlsFiles files)
    : loop_(loop), files_(std::move(files)), timer_(loop, [this] { act(CURL_SOCKET_TIMEOUT, 0); }) {
  multi_ = curl().multi_init();
  MUSTER_ASSERT(multi_ != nullptr);
  curl().multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &Callbacks::socket);
  curl().multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl().multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &Callbacks::timer);
  curl().multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
  curl().multi_setopt(multi_, CURLMOPT_MAXCONNECTS, kIdleConnectionsMax);
}

Http::~Http() {
  const CURLMcode outcome = curl().multi_cleanup(multi_);
  MUSTER_ASSERT(outcome == CURLM_OK);
}

Task<HttpAnswer> Http::post(HttpRequest request) {
  const std::unique_ptr<HttpExchange> exchange = open(std::move(request));
  HttpAnswer answer;
  while (std::optional<std::string> piece = co_await exchange->next()) {
    answer.body += *piece;
    if (answer.body.size() > kAnswerBytesMax) exchange->abort("the answer is too long");
  }
  answer.end = exchange->end();
  co_return answer;
}

std::unique_ptr<HttpExchange> Http::open(HttpRequest request) {
  return std::unique_ptr<HttpExchange>(new HttpExchange(*this, std::move(request)));
}

void Http::act(int fd, int events) {
  int running_count = 0;
  curl().multi_socket_action(multi_, fd, events, &running_count);
  int left_count = 0;
  while (const CURLMsg* const message = curl().multi_info_read(multi_, &left_count)) {
    if (message->msg != CURLMSG_DONE) continue;
    // Read before `finished`, which invalidates the message.
    const CURLcode code = message->data.result;
    char* exchange = nullptr;
    curl().easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &exchange);
    reinterpret_cast<HttpExchange*>(exchange)->finished(code);
  }
}

}  // namespace muster::etcd
