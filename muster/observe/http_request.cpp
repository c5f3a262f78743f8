#include "muster/observe/http_request.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace muster::observe {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

bool is_token_character(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// False for an escape that is none, and for a NUL, which no path of ours has and some libraries cut
// at.
bool percent_decode(std::string_view text, bool plus_is_space, std::string& out) {
  for (std::size_t index = 0; index < text.size(); ++index) {
    if (text[index] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[index] != '%') {
      out += text[index];
    } else {
      if (index + 2 >= text.size()) return false;
      const int high = hex_digit(text[index + 1]);
      const int low = hex_digit(text[index + 2]);
      if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
      out += static_cast<char>(high * 16 + low);
      index += 2;
    }
  }
  return true;
}

bool decode_query(std::string_view text, Pairs& out) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    std::string name;
    std::string value;
    if (!percent_decode(pair.substr(0, equals), true, name)) return false;
    if (equals != std::string_view::npos && !percent_decode(pair.substr(equals + 1), true, value)) {
      return false;
    }
    out.emplace_back(std::move(name), std::move(value));
  }
  return true;
}

// Whether `list`, which is separated by commas, holds `word`.
bool list_has(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    if (lower(trim(item)) == word) return true;
  }
  return false;
}

std::optional<RequestError> parse_target(Request& request) {
  std::string_view target = request.target;
  // "http://host/path", as it is sent to proxies; every server must take it.
  const std::string scheme = lower(target.substr(0, 7));
  if (scheme == "http://") {
    const std::size_t slash = target.find_first_of("/?", 7);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const std::size_t question = target.find('?');
  const std::string_view path = target.substr(0, question);
  // "*" is what OPTIONS may ask about; it is answered as every other wrong method is.
  if (!path.starts_with('/') && !(path.empty() && scheme == "http://") && target != "*") {
    return RequestError{400, "the target must begin with a slash"};
  }
  if (path.empty()) request.path = "/";
  const bool decoded = percent_decode(path, false, request.path) &&
                       (question == std::string_view::npos ||
                        decode_query(target.substr(question + 1), request.query));
  if (!decoded) return RequestError{400, "the target has a bad percent escape"};
  return std::nullopt;
}

std::optional<RequestError> parse_request_line(std::string_view line, Request& request) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return RequestError{400, "the request line must be METHOD TARGET VERSION"};
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method)) return RequestError{400, "the method is not a word"};
  const bool visible =
      std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (target.empty() || !visible) return RequestError{400, "the target has impossible characters"};
  const auto digit = [&](std::size_t index) {
    return version[index] >= '0' && version[index] <= '9';
  };
  if (version.size() != 8 || !version.starts_with("HTTP/") || version[6] != '.' || !digit(5) ||
      !digit(7)) {
    return RequestError{400, "the version must be HTTP/1.1 or HTTP/1.0"};
  }
  if (version[5] != '1') return RequestError{505, "only HTTP/1.1 and HTTP/1.0 are spoken here"};
  request.method = method;
  request.target = target;
  request.minor_version = version[7] == '0' ? 0 : 1;
  return parse_target(request);
}

std::optional<RequestError> parse_header(std::string_view line, Request& request) {
  const std::size_t colon = line.find(':');
  // This also refuses folded lines and blanks before the colon, which proxies read differently.
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    return RequestError{400, "a header must be NAME: VALUE"};
  }
  const std::string_view value = trim(line.substr(colon + 1));
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
  if (!printable) return RequestError{400, "a header has control characters"};
  if (request.headers.size() == kHeadersMax) return RequestError{431, "too many headers"};
  request.headers.emplace_back(lower(line.substr(0, colon)), value);
  return std::nullopt;
}

// What the headers mean for the connection.
std::optional<RequestError> apply_headers(Request& request) {
  int hosts = 0;
  std::optional<std::string> length;
  bool is_chunked = false;
  bool close = false;
  bool keep = false;
  for (const auto& [name, value] : request.headers) {
    if (name == "host") ++hosts;
    if (name == "transfer-encoding") is_chunked = true;
    if (name == "connection") {
      close = close || list_has(value, "close");
      keep = keep || list_has(value, "keep-alive");
    }
    if (name == "content-length") {
      const bool is_number = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
        return c >= '0' && c <= '9';
      });
      if (!is_number || (length && *length != value)) {
        return RequestError{400, "the content length is not a number"};
      }
      length = value;
    }
  }
  if (hosts > 1 || (hosts == 0 && request.minor_version == 1)) {
    return RequestError{400, "there must be one Host header"};
  }
  if (is_chunked && length) {
    return RequestError{400, "a request has a content length or a transfer encoding, not both"};
  }
  request.has_body = is_chunked || (length && length->find_first_not_of('0') != std::string::npos);
  request.keep_alive = !close && (request.minor_version == 1 || keep);
  return std::nullopt;
}

// `head` ends with its empty line.
std::variant<Request, RequestError> parse_head(std::string_view head) {
  Request request;
  bool is_first = true;
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) break;
    auto error = is_first ? parse_request_line(line, request) : parse_header(line, request);
    if (error) return std::move(*error);
    is_first = false;
  }
  auto error = apply_headers(request);
  if (error) return std::move(*error);
  return request;
}

}  // namespace

std::optional<std::string_view> Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::optional<std::string_view> Request::parameter(std::string_view name) const {
  for (const auto& [key, value] : query) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void RequestParser::append(std::string_view bytes) {
  if (!failed_) buffer_ += bytes;
}

std::optional<std::variant<Request, RequestError>> RequestParser::next() {
  if (failed_) return std::nullopt;
  const auto refuse = [&](int status, std::string reason) {
    failed_ = true;
    buffer_.clear();
    return RequestError{status, std::move(reason)};
  };
  // Empty lines before a request line are left over from careless clients.
  if (searched_ == 0) {
    std::size_t blank = 0;
    while (blank < buffer_.size()) {
      if (buffer_[blank] == '\n') {
        ++blank;
      } else if (buffer_[blank] == '\r' && blank + 1 < buffer_.size() &&
                 buffer_[blank + 1] == '\n') {
        blank += 2;
      } else {
        break;
      }
    }
    buffer_.erase(0, blank);
    if (buffer_.empty() || buffer_ == "\r") return std::nullopt;
    // What is no HTTP (TLS, say) is refused at its first byte; it may never send a line.
    if (!is_token_character(buffer_.front())) return refuse(400, "this is not HTTP");
  }
  for (std::size_t at = buffer_.find('\n', searched_); at != std::string::npos;
       at = buffer_.find('\n', at + 1)) {
    const std::size_t next = at + 1;
    const std::size_t blank = buffer_.compare(next, 1, "\n") == 0     ? 1
                              : buffer_.compare(next, 2, "\r\n") == 0 ? 2
                                                                      : 0;
    if (blank == 0) continue;
    const std::size_t size = next + blank;
    if (size > kHeadBytesMax) break;
    if (buffer_.find('\n') > kRequestLineBytesMax) break;
    auto parsed = parse_head(std::string_view(buffer_).substr(0, size));
    if (auto* error = std::get_if<RequestError>(&parsed)) {
      return refuse(error->status, std::move(error->reason));
    }
    buffer_.erase(0, size);
    searched_ = 0;
    return parsed;
  }
  if (std::min(buffer_.find('\n'), buffer_.size()) > kRequestLineBytesMax) {
    return refuse(414, "the request line is too long");
  }
  if (buffer_.size() > kHeadBytesMax) return refuse(431, "the headers are too long");
  // The newline before the empty line may be the last or last but one byte that has come.
  searched_ = std::max<std::size_t>(1, buffer_.size() < 2 ? 1 : buffer_.size() - 2);
  return std::nullopt;
}

}  // namespace muster::observe
