#include "muster/observe/http_connection.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

namespace muster::observe::internal {
namespace {

constexpr std::size_t kReadBytes = std::size_t{8} * 1024;
// How much of a stream waits in our memory for the client.
constexpr std::size_t kStreamBytesMax = std::size_t{64} * 1024;
// What a client may send that nobody reads, before it is cut off.
constexpr std::size_t kIgnoredBytesMax = std::size_t{1024} * 1024;

}  // namespace

HttpConnection::HttpConnection(HttpServer& server, std::unique_ptr<net::Stream> stream)
    : server_(server), stream_(std::move(stream)), timer_(server.loop_, [this] { expired(); }) {
  stream_->set_events(this);
}

HttpConnection::~HttpConnection() { end_stream(); }

void HttpConnection::start() {
  timer_.set(server_.loop_.now() + server_.options_.head_timeout);
  update();
}

void HttpConnection::refuse(Response response) {
  HeadOptions head;
  head.keep_alive = false;
  begin(std::move(response), head, true);
}

void HttpConnection::close() {
  if (is_closed()) return;
  end_stream();
  timer_.cancel();
  pump_ready_.withdraw();
  stream_.reset();
  server_.bury(*this);
}

void HttpConnection::on_readable() {
  std::array<char, kReadBytes> buffer;
  const net::Transfer transfer = stream_->read(buffer);
  switch (transfer.kind) {
    case net::Transfer::Kind::WouldBlock:
      return;
    case net::Transfer::Kind::Failed:
    case net::Transfer::Kind::End:
      close();
      return;
    case net::Transfer::Kind::Moved:
      break;
  }
  if (phase_ != Phase::Reading) {
    ignored_bytes_ += transfer.bytes;
    if (ignored_bytes_ > kIgnoredBytesMax) close();
    return;
  }
  // The time for a head runs from its first byte; more bytes do not prolong it.
  if (parser_.is_empty()) timer_.set(server_.loop_.now() + server_.options_.head_timeout);
  parser_.append({buffer.data(), transfer.bytes});
  serve();
}

void HttpConnection::on_writable() {
  if (phase_ == Phase::Streaming) {
    pump();
  } else if (flush()) {
    finished();
  }
  if (!is_closed()) serve();
}

void HttpConnection::on_wake() {
  pump();
  if (!is_closed()) serve();
}

void HttpConnection::serve() {
  while (!is_closed() && phase_ == Phase::Reading) {
    auto parsed = parser_.next();
    if (!parsed) break;
    if (const auto* request = std::get_if<Request>(&*parsed)) {
      answer(*request);
    } else {
      const auto& error = std::get<RequestError>(*parsed);
      log::debug("http", "bad request peer={} status={} reason=\"{}\"", stream_->peer(),
                 error.status, error.reason);
      if (server_.observer_) server_.observer_("", error.status);
      refuse(text_response(error.status, error.reason + "\n"));
    }
  }
  if (!is_closed()) update();
}

void HttpConnection::answer(const Request& request) {
  Response response = server_.answer(request);
  log::debug("http", "answered peer={} method={} target={} status={}", stream_->peer(),
             request.method, log::quote(request.target), response.status);
  HeadOptions head;
  head.minor_version = request.minor_version;
  // The body of a request is not read, so nothing behind it can be understood.
  head.keep_alive = request.keep_alive && !request.has_body;
  if (response.source != nullptr) {
    head.framing = request.minor_version == 0 ? Framing::UntilEnd : Framing::Chunked;
    if (request.minor_version == 0) head.keep_alive = false;
  }
  begin(std::move(response), head, request.method != "HEAD");
}

void HttpConnection::begin(Response response, const HeadOptions& head, bool with_body) {
  MUSTER_ASSERT(phase_ == Phase::Reading && out_.empty());
  HeadOptions dated = head;
  dated.wall_nanoseconds = server_.options_.wall_clock();
  out_ = response_head(response, dated);
  sent_bytes_ = 0;
  keep_alive_ = head.keep_alive;
  if (response.source != nullptr && with_body) {
    phase_ = Phase::Streaming;
    is_chunked_ = head.framing == Framing::Chunked;
    source_ = std::move(response.source);
    ++server_.stream_count_;
    timer_.cancel();
    // Never inside of the source's own calls.
    source_->set_wake([this] {
      if (pump_ready_.queued()) return;
      server_.loop_.soon(
          pump_ready_, [](void* self) { static_cast<HttpConnection*>(self)->on_wake(); }, this);
    });
    pump();
    return;
  }
  if (with_body) out_ += response.body;
  phase_ = Phase::Sending;
  answer_deadline_ = server_.loop_.now() + server_.options_.answer_timeout;
  timer_.set(std::min(answer_deadline_, server_.loop_.now() + server_.options_.stall_timeout));
  if (flush()) finished();
}

void HttpConnection::pump() {
  while (!is_closed() && phase_ == Phase::Streaming) {
    auto more = BodySource::More::Now;
    while (more == BodySource::More::Now && out_.size() - sent_bytes_ < kStreamBytesMax) {
      std::string piece;
      more = source_->read(piece, kStreamBytesMax);
      if (is_chunked_) {
        append_chunk(out_, piece);
      } else {
        out_ += piece;
      }
    }
    if (more == BodySource::More::Never) {
      if (is_chunked_) out_ += kLastChunk;
      end_stream();
      phase_ = Phase::Sending;
      answer_deadline_ = server_.loop_.now() + server_.options_.answer_timeout;
    }
    if (!flush()) break;
    if (phase_ == Phase::Sending) finished();
    if (more == BodySource::More::Later) break;
  }
}

bool HttpConnection::flush() {
  while (sent_bytes_ < out_.size()) {
    const std::string_view rest = std::string_view(out_).substr(sent_bytes_);
    const net::Transfer transfer = stream_->write({&rest, 1});
    if (transfer.kind == net::Transfer::Kind::Moved) {
      sent_bytes_ += transfer.bytes;
      const TimePoint stalled = server_.loop_.now() + server_.options_.stall_timeout;
      timer_.set(phase_ == Phase::Streaming ? stalled : std::min(answer_deadline_, stalled));
      continue;
    }
    if (transfer.kind == net::Transfer::Kind::WouldBlock) {
      // Nothing may have moved since there was nothing to send: the stall begins now.
      if (!timer_.pending()) timer_.set(server_.loop_.now() + server_.options_.stall_timeout);
      update();
      return false;
    }
    close();
    return false;
  }
  out_.clear();
  sent_bytes_ = 0;
  timer_.cancel();
  return true;
}

void HttpConnection::finished() {
  // An agent's page may be large once; its connection need not stay so.
  out_.shrink_to_fit();
  if (keep_alive_) {
    phase_ = Phase::Reading;
    // A request that was sent along with the last one has its own time.
    const Duration time =
        parser_.is_empty() ? server_.options_.idle_timeout : server_.options_.head_timeout;
    timer_.set(server_.loop_.now() + time);
    update();
    return;
  }
  // Closing with bytes unread would make the system reset the connection, and the client might lose
  // the answer. So it is told that we are done, and has a moment to close first.
  phase_ = Phase::Lingering;
  stream_->shutdown_write();
  timer_.set(server_.loop_.now() + server_.options_.linger);
  update();
}

void HttpConnection::end_stream() {
  if (source_ == nullptr) return;
  pump_ready_.withdraw();
  source_.reset();
  --server_.stream_count_;
}

void HttpConnection::expired() {
  log::debug("http", "dropped a client that took too long peer={}", stream_->peer());
  close();
}

void HttpConnection::update() {
  stream_->want(phase_ != Phase::Sending, sent_bytes_ < out_.size());
}

}  // namespace muster::observe::internal
