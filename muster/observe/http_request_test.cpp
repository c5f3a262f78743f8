#include "muster/observe/http_request.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace muster::observe {
namespace {

using Parsed = std::optional<std::variant<Request, RequestError>>;

Parsed parse(std::string_view text) {
  RequestParser parser;
  parser.append(text);
  return parser.next();
}

Request good(std::string_view text) {
  Parsed parsed = parse(text);
  if (!parsed || !std::holds_alternative<Request>(*parsed)) {
    ADD_FAILURE() << "no request: " << text;
    return {};
  }
  return std::get<Request>(*parsed);
}

// The status with which it is refused; 0 if it is not.
int refused(std::string_view text) {
  const Parsed parsed = parse(text);
  const auto* error = parsed ? std::get_if<RequestError>(&*parsed) : nullptr;
  return error != nullptr ? error->status : 0;
}

std::string get(std::string_view target) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: a\r\n\r\n";
}

TEST(RequestParser, ReadsARequest) {
  const Request request = good(
      "GET /events?follow=0&name=a+b%21&flag HTTP/1.1\r\nHost: node-1:80\r\nACCEPT: \t text/plain "
      "\r\nEmpty:\r\n\r\n");
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.target, "/events?follow=0&name=a+b%21&flag");
  EXPECT_EQ(request.path, "/events");
  EXPECT_EQ(request.parameter("follow"), "0");
  EXPECT_EQ(request.parameter("name"), "a b!");
  EXPECT_EQ(request.parameter("flag"), "");
  EXPECT_EQ(request.parameter("none"), std::nullopt);
  EXPECT_EQ(request.header("accept"), "text/plain");
  EXPECT_EQ(request.header("empty"), "");
  EXPECT_EQ(request.header("none"), std::nullopt);
  EXPECT_TRUE(request.keep_alive);
  EXPECT_FALSE(request.has_body);
}

TEST(RequestParser, TakesBytesInPiecesOfAnySize) {
  const std::string text = get("/a") + get("/b") + "\r\n\n" + get("/c");
  for (std::size_t size = 1; size <= text.size(); ++size) {
    RequestParser parser;
    std::string paths;
    for (std::size_t begin = 0; begin < text.size(); begin += size) {
      parser.append(std::string_view(text).substr(begin, size));
      while (auto parsed = parser.next()) paths += std::get<Request>(*parsed).path;
    }
    EXPECT_EQ(paths, "/a/b/c") << size;
    EXPECT_TRUE(parser.is_empty());
  }
}

TEST(RequestParser, TakesLinesThatEndWithANewlineOnly) {
  EXPECT_EQ(good("GET /a HTTP/1.1\nHost: a\n\n").path, "/a");
  EXPECT_EQ(good("GET /a HTTP/1.1\nHost: a\r\n\n").header("host"), "a");
}

TEST(RequestParser, DecodesThePathButNotPlusInIt) {
  EXPECT_EQ(good(get("/a%2Fb+c%c3%a4")).path, "/a/b+c\xc3\xa4");
  EXPECT_EQ(refused(get("/%")), 400);
  EXPECT_EQ(refused(get("/%4")), 400);
  EXPECT_EQ(refused(get("/%zz")), 400);
  EXPECT_EQ(refused(get("/a%00b")), 400);
  EXPECT_EQ(refused(get("/a?b=%0")), 400);
}

TEST(RequestParser, TakesTheFormThatIsForProxies) {
  EXPECT_EQ(good(get("http://node-1:80/a?b=1")).path, "/a");
  EXPECT_EQ(good(get("HTTP://node-1")).path, "/");
  EXPECT_EQ(good(get("http://node-1?b=1")).parameter("b"), "1");
  EXPECT_EQ(refused(get("ftp://node-1/")), 400);
  EXPECT_EQ(refused(get("a")), 400);
  EXPECT_EQ(good("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").path, "*");
}

TEST(RequestParser, KnowsWhetherTheConnectionStays) {
  const auto stays = [](std::string_view version, std::string_view header) {
    return good("GET / HTTP/" + std::string(version) + "\r\nHost: a\r\n" + std::string(header) +
                "\r\n")
        .keep_alive;
  };
  EXPECT_TRUE(stays("1.1", ""));
  EXPECT_FALSE(stays("1.1", "Connection: close\r\n"));
  EXPECT_FALSE(stays("1.1", "Connection: TE, Close\r\n"));
  EXPECT_FALSE(stays("1.0", ""));
  EXPECT_TRUE(stays("1.0", "Connection: Keep-Alive\r\n"));
  EXPECT_FALSE(stays("1.0", "Connection: keep-alive, close\r\n"));
}

TEST(RequestParser, KnowsWhetherABodyFollows) {
  const auto has_body = [](std::string_view header) {
    return good("POST / HTTP/1.1\r\nHost: a\r\n" + std::string(header) + "\r\n\r\n").has_body;
  };
  EXPECT_FALSE(has_body("Content-Length: 0"));
  EXPECT_FALSE(has_body("Content-Length: 000\r\nContent-Length: 000"));
  EXPECT_TRUE(has_body("Content-Length: 99999999999999999999999"));
  EXPECT_TRUE(has_body("Transfer-Encoding: chunked"));
}

TEST(RequestParser, RefusesWhatTwoReadersCouldUnderstandDifferently) {
  const auto with = [](std::string_view header) {
    return refused("GET / HTTP/1.1\r\nHost: a\r\n" + std::string(header) + "\r\n\r\n");
  };
  EXPECT_EQ(with("Content-Length: 1\r\nContent-Length: 2"), 400);
  EXPECT_EQ(with("Content-Length: -1"), 400);
  EXPECT_EQ(with("Content-Length: 1, 1"), 400);
  EXPECT_EQ(with("Content-Length:"), 400);
  EXPECT_EQ(with("Content-Length: 1\r\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(with("Host: b"), 400);
  EXPECT_EQ(with("A: b\r\n folded"), 400);
  EXPECT_EQ(with("A : b"), 400);
  EXPECT_EQ(with(": b"), 400);
  EXPECT_EQ(with("no colon"), 400);
  EXPECT_EQ(with("A: b\rc"), 400);
  EXPECT_EQ(with(std::string_view("A: \0", 4)), 400);
  EXPECT_EQ(with("A: \x7f"), 400);
  EXPECT_EQ(with("A: \xc3\xa4"), 0);
}

TEST(RequestParser, RefusesARequestLineThatIsNone) {
  EXPECT_EQ(refused("GET /\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET  HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / x HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refused("G@T / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / http/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.10\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), 400);  // no Host
  EXPECT_EQ(refused("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(good("GET / HTTP/1.2\r\nHost: a\r\n\r\n").minor_version, 1);
}

TEST(RequestParser, RefusesWhatIsNotHttpAtItsFirstByte) {
  EXPECT_EQ(refused("\x16"), 400);
  EXPECT_EQ(refused("\r\nx"), 0);
  EXPECT_EQ(refused("\rx"), 400);
  EXPECT_EQ(refused("\r"), 0);
}

TEST(RequestParser, SaysNothingMoreAfterAnError) {
  RequestParser parser;
  parser.append("\x16");
  EXPECT_TRUE(parser.next());
  parser.append(get("/"));
  EXPECT_FALSE(parser.next());
  EXPECT_TRUE(parser.is_empty());
}

TEST(RequestParser, BoundsTheRequestLine) {
  const auto of_size = [](std::size_t bytes) {
    const std::string_view rest = "GET / HTTP/1.1\r";
    return get("/" + std::string(bytes - rest.size(), 'a'));
  };
  EXPECT_EQ(refused(of_size(kRequestLineBytesMax)), 0);
  EXPECT_EQ(refused(of_size(kRequestLineBytesMax + 1)), 414);
  EXPECT_EQ(refused(std::string(kRequestLineBytesMax, 'G')), 0);
  EXPECT_EQ(refused(std::string(kRequestLineBytesMax + 1, 'G')), 414);
}

TEST(RequestParser, BoundsTheHead) {
  const auto of_size = [](std::size_t bytes) {
    const std::string_view begin = "GET / HTTP/1.1\r\nHost: ";
    return std::string(begin) + std::string(bytes - begin.size() - 4, 'a') + "\r\n\r\n";
  };
  EXPECT_EQ(refused(of_size(kHeadBytesMax)), 0);
  EXPECT_EQ(refused(of_size(kHeadBytesMax + 1)), 431);
  EXPECT_EQ(refused(of_size(kHeadBytesMax + 2).substr(0, kHeadBytesMax)), 0);
  EXPECT_EQ(refused(of_size(kHeadBytesMax + 2).substr(0, kHeadBytesMax + 1)), 431);
}

TEST(RequestParser, BoundsTheNumberOfHeaders) {
  const auto with = [](std::size_t count) {
    std::string text = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (std::size_t index = 1; index < count; ++index) text += "A: b\r\n";
    return text + "\r\n";
  };
  EXPECT_EQ(refused(with(kHeadersMax)), 0);
  EXPECT_EQ(refused(with(kHeadersMax + 1)), 431);
}

}  // namespace
}  // namespace muster::observe
