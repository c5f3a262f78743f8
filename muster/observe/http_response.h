// Response: what a route answers, and how it is written.
#pragma once

#include "muster/observe/http_request.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::observe {

// A body whose end is not known. Owned by the connection that sends it, on its loop; destroyed when
// the client has gone.
class BodySource {
 public:
  BodySource() = default;
  BodySource(const BodySource&) = delete;
  BodySource& operator=(const BodySource&) = delete;
  virtual ~BodySource() = default;

  enum class More { Later, Now, Never };
  // Appends what there is, about `bytes_max` of it. Later: `wake` will be called. Now: ask again.
  // Never: the body is complete.
  virtual More read(std::string& into, std::size_t bytes_max) = 0;
  // Whom to call, from the loop, when there is more.
  virtual void set_wake(std::function<void()> wake) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // further ones
  std::unique_ptr<BodySource> source = {};                        // instead of `body`
};

Response text_response(int status, std::string body);
// The content type is application/json.
Response json_response(int status, std::string body);

// "Not Found".
std::string_view reason_phrase(int status);

enum class Framing {
  Length,    // Content-Length
  Chunked,   // a stream for HTTP/1.1
  UntilEnd,  // a stream for HTTP/1.0: the end of the connection is the end of the body
};

struct HeadOptions {
  int minor_version = 1;
  Framing framing = Framing::Length;
  bool keep_alive = true;
  std::int64_t wall_nanoseconds = 0;
};

// Status line and headers, up to and including the empty line.
std::string response_head(const Response& response, const HeadOptions& options);

// One chunk of a chunked body; nothing for an empty piece, which would end the body.
void append_chunk(std::string& out, std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace muster::observe
