#include "muster/observe/http_response.h"

#include "muster/observe/wall_clock.h"

#include <fmt/format.h>

#include <iterator>

namespace muster::observe {

Response text_response(int status, std::string body) {
  Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

Response json_response(int status, std::string body) {
  Response response = text_response(status, std::move(body));
  response.content_type = "application/json";
  return response;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 414:
      return "URI Too Long";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Other";
  }
}

std::string response_head(const Response& response, const HeadOptions& options) {
  std::string out;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  fmt::format_to(to, "Date: {}\r\n", http_date(options.wall_nanoseconds));
  fmt::format_to(to, "Content-Type: {}\r\n", response.content_type);
  // What an agent says is true now, and is not a page to be guessed at.
  out += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  for (const auto& [name, value] : response.headers) fmt::format_to(to, "{}: {}\r\n", name, value);
  switch (options.framing) {
    case Framing::Length:
      fmt::format_to(to, "Content-Length: {}\r\n", response.body.size());
      break;
    case Framing::Chunked:
      out += "Transfer-Encoding: chunked\r\n";
      break;
    case Framing::UntilEnd:
      break;
  }
  if (!options.keep_alive) {
    out += "Connection: close\r\n";
  } else if (options.minor_version == 0) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", piece.size());
  out += piece;
  out += "\r\n";
}

}  // namespace muster::observe
