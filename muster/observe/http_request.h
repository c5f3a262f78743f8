// RequestParser: bytes of an HTTP/1.0 or HTTP/1.1 connection to requests.
//
// Pure. Takes bytes in pieces of any size and gives the heads of requests; a request's body is not
// read: our routes have no use for one, so the server answers and closes (`has_body`). Strict where
// the standard lets a receiver choose between guessing and refusing.
//
// Owned by one connection.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace muster::observe {

// The request line and the headers with their empty line; then 431.
inline constexpr std::size_t kHeadBytesMax = std::size_t{16} * 1024;
// The request line; then 414.
inline constexpr std::size_t kRequestLineBytesMax = std::size_t{8} * 1024;
// Then 431.
inline constexpr std::size_t kHeadersMax = 100;

struct Request {
  std::string method;
  std::string target;                                        // as it was sent
  std::string path;                                          // decoded, begins with '/'
  std::vector<std::pair<std::string, std::string>> query;    // decoded, in order
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  int minor_version = 1;                                     // of HTTP/1
  bool keep_alive = true;
  bool has_body = false;

  // The first one of this name, which is in lower case.
  std::optional<std::string_view> header(std::string_view name) const;
  std::optional<std::string_view> parameter(std::string_view name) const;
};

// A request that cannot be served; the connection ends with it.
struct RequestError {
  int status = 400;
  std::string reason;  // a sentence without its dot, for the answer's body
};

class RequestParser {
 public:
  void append(std::string_view bytes);

  // The next request; nothing while more bytes are needed. After an error there is nothing more.
  std::optional<std::variant<Request, RequestError>> next();

  // No byte of a further request has come.
  bool is_empty() const { return buffer_.empty(); }
  std::size_t buffered_bytes() const { return buffer_.size(); }

 private:
  std::string buffer_;
  std::size_t searched_ = 0;  // no end of the head begins before here
  bool failed_ = false;
};

}  // namespace muster::observe
