// HttpConnection: one client of an HttpServer. A part of http.cpp; not for others.
//
// One request at a time: while an answer is being sent nothing is read (a stream only looks for the
// client's end), so a client that does not take its answers is held back by its own socket.
//
// Owned by its server, on its loop. Closed connections are freed by the server from the loop, never
// inside of their own calls.
#pragma once

#include "muster/base/loop.h"
#include "muster/net/transport.h"
#include "muster/observe/http.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace muster::observe::internal {

class HttpConnection final : public net::StreamEvents {
 public:
  HttpConnection(HttpServer& server, std::unique_ptr<net::Stream> stream);
  ~HttpConnection() override;

  void start();
  // Answers without a request having been read, and ends.
  void refuse(Response response);
  void close();

  bool is_closed() const { return stream_ == nullptr; }
  // Nothing is being asked or answered: it may be closed to make room.
  bool is_idle() const {
    return phase_ == Phase::Lingering || (phase_ == Phase::Reading && parser_.is_empty());
  }

  void on_readable() override;
  void on_writable() override;

 private:
  enum class Phase {
    Reading,    // a request, or waiting for one
    Sending,    // an answer
    Streaming,  // a body whose end is not known
    Lingering,  // all is sent; the client should close
  };

  // Answers what has been read, until the client's socket is full or nothing is left.
  void serve();
  void answer(const Request& request);
  void begin(Response response, const HeadOptions& head, bool with_body);
  // Takes from the source as long as the socket takes from us.
  void pump();
  void on_wake();
  // False if bytes are left.
  bool flush();
  void finished();
  void end_stream();
  void expired();
  void update();

  HttpServer& server_;
  std::unique_ptr<net::Stream> stream_;  // nothing when closed
  RequestParser parser_;
  Phase phase_ = Phase::Reading;
  std::string out_;
  std::size_t sent_bytes_ = 0;  // of out_
  bool keep_alive_ = true;
  bool is_chunked_ = false;
  std::unique_ptr<BodySource> source_;
  std::size_t ignored_bytes_ = 0;  // read while lingering or streaming
  TimePoint answer_deadline_ = kNever;
  Timer timer_;
  Ready pump_ready_;
};

}  // namespace muster::observe::internal
