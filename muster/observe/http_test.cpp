#include "muster/observe/http.h"

#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "tests/net/talker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;
using tests::numbered_text;
using tests::Talker;

constexpr int kPort = 8080;
constexpr std::string_view kHead =
    "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\n";

// A body that the test feeds.
struct Feed {
  std::string text = {};
  bool is_over = false;
  bool is_open = false;
  std::function<void()> wake = {};
};
class FeedBody final : public BodySource {
 public:
  explicit FeedBody(Feed& feed) : feed_(feed) { feed_.is_open = true; }
  ~FeedBody() override { feed_.is_open = false; }
  More read(std::string& into, std::size_t bytes_max) override {
    into += feed_.text.substr(0, bytes_max);
    feed_.text.erase(0, bytes_max);
    if (!feed_.text.empty()) return More::Now;
    return feed_.is_over ? More::Never : More::Later;
  }
  void set_wake(std::function<void()> wake) override { feed_.wake = std::move(wake); }

 private:
  Feed& feed_;
};

class HttpServers : public testing::Test {
 protected:
  void serve(HttpOptions options) {
    options.wall_clock = [] { return std::int64_t{784111777} * 1'000'000'000; };
    server_ = std::make_unique<HttpServer>(agent_.loop(), agent_, std::move(options));
    server_->add_route("/hello", [](const Request&) { return text_response(200, "hello\n"); });
    server_->add_route("/large", [](const Request&) {
      return text_response(200, numbered_text(std::size_t{2} * 1024 * 1024));
    });
    server_->add_route("/below/*",
                       [](const Request& request) { return text_response(200, request.path); });
    server_->add_route("/feed", [this](const Request&) {
      Response response;
      response.source = std::make_unique<FeedBody>(feed_);
      return response;
    });
    server_->set_observer([this](std::string_view path, int status) {
      observed_ += std::string(path) + " " + std::to_string(status) + ";";
    });
    const auto listening = server_->listen({"", kPort});
    ASSERT_TRUE(listening) << listening.error().message;
  }
  void SetUp() override { serve({}); }

  std::unique_ptr<Talker> connect() {
    auto stream = loop_.block_on(client_.connect({"agent", kPort}));
    EXPECT_TRUE(stream);
    return std::make_unique<Talker>(std::move(*stream));
  }
  std::unique_ptr<Talker> ask(std::string_view text) {
    auto talker = connect();
    talker->send(text);
    settle();
    return talker;
  }
  void settle() { loop_.advance(100ms); }

  static std::string get(std::string_view path) {
    return "GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  }
  static std::string hello() { return std::string(kHead) + "Content-Length: 6\r\n\r\nhello\n"; }
  static std::string status_of(const Talker& talker) { return talker.received().substr(9, 3); }

  sim::Loop loop_;
  Random random_{7};
  sim::Network network_{loop_, random_};
  sim::Host& agent_ = network_.host("agent");
  sim::Host& client_ = network_.host("client");
  Feed feed_;
  std::string observed_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServers, AnswerARequest) {
  const auto talker = ask(get("/hello"));
  EXPECT_EQ(talker->received(), hello());
  EXPECT_FALSE(talker->ended());
  EXPECT_EQ(observed_, "/hello 200;");
}

TEST_F(HttpServers, KeepAConnectionForTheNextRequest) {
  const auto talker = ask(get("/hello"));
  talker->send(get("/hello"));
  settle();
  EXPECT_EQ(talker->received(), hello() + hello());
  EXPECT_EQ(server_->connection_count(), 1U);
}

TEST_F(HttpServers, AnswerManyRequestsThatCameAtOnceInOrder) {
  std::string requests;
  std::string answers;
  for (int count = 0; count < 2000; ++count) {
    requests += get("/hello");
    answers += hello();
  }
  const auto talker = ask(requests);
  EXPECT_EQ(talker->received(), answers);
}

TEST_F(HttpServers, AnswerHeadWithoutTheBody) {
  const auto talker = ask("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n" + get("/hello"));
  EXPECT_EQ(talker->received(), std::string(kHead) + "Content-Length: 6\r\n\r\n" + hello());
}

TEST_F(HttpServers, CloseWhenTheClientSaysSo) {
  const auto talker = ask("GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(talker->received(),
            std::string(kHead) + "Content-Length: 6\r\nConnection: close\r\n\r\nhello\n");
  EXPECT_TRUE(talker->ended());
  talker->close();
  settle();
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, SpeakWithOldClients) {
  const auto talker = ask("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(talker->ended());
  const auto kept = ask("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_FALSE(kept->ended());
  EXPECT_NE(kept->received().find("Connection: keep-alive\r\n"), std::string::npos);
}

TEST_F(HttpServers, FinishTheAnswerForAClientThatHasFinishedSending) {
  const auto talker = connect();
  talker->send(get("/large"));
  loop_.run_until([&] { return talker->unsent_bytes() == 0; });
  talker->shutdown_write();
  loop_.advance(1s);
  EXPECT_TRUE(talker->received().ends_with(numbered_text(std::size_t{2} * 1024 * 1024)));
  EXPECT_TRUE(talker->ended());
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, RefuseWhatTheyDoNotHave) {
  EXPECT_EQ(status_of(*ask(get("/none"))), "404");
  const auto post = ask("POST /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(status_of(*post), "405");
  EXPECT_NE(post->received().find("Allow: GET, HEAD\r\n"), std::string::npos);
  EXPECT_EQ(status_of(*ask("GET / HTTP/3.0\r\nHost: a\r\n\r\n")), "505");
  EXPECT_EQ(observed_, " 404;/hello 405; 505;");
}

TEST_F(HttpServers, FindWhatIsBelowAPath) {
  EXPECT_TRUE(ask(get("/below/a/b"))->received().ends_with("\r\n\r\n/below/a/b"));
  EXPECT_TRUE(ask(get("/below/"))->received().ends_with("\r\n\r\n/below/"));
  EXPECT_EQ(status_of(*ask(get("/below"))), "404");
}

TEST_F(HttpServers, ListTheirPages) {
  EXPECT_TRUE(ask(get("/"))->received().ends_with("  /below/*\n  /feed\n  /hello\n  /large\n"));
}

TEST_F(HttpServers, EndTheConnectionAfterABadRequestButLetItsAnswerArrive) {
  // More than is read at once: a plain close would reset the connection under the answer.
  const auto talker = ask("\x16\x03\x01" + std::string(100'000, 'x'));
  EXPECT_EQ(status_of(*talker), "400");
  EXPECT_TRUE(talker->ended());
  EXPECT_EQ(talker->failure(), 0);
}

TEST_F(HttpServers, AnswerARequestWithABodyAndReadNothingBehindIt) {
  const auto talker =
      ask("POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n" + get("/hello"));
  EXPECT_EQ(status_of(*talker), "405");
  EXPECT_TRUE(talker->ended());
  EXPECT_EQ(talker->received().find("HTTP/1.1 200"), std::string::npos);
}

TEST_F(HttpServers, DropAClientThatIsTooSlowToAsk) {
  const auto talker = ask("GET /hel");
  for (int second = 0; second < 9; ++second) {
    talker->send("l");  // does not prolong its time
    loop_.advance(1s);
  }
  EXPECT_EQ(server_->connection_count(), 1U);
  loop_.advance(1s);
  EXPECT_EQ(server_->connection_count(), 0U);
  EXPECT_TRUE(talker->received().empty());
}

TEST_F(HttpServers, DropAClientThatSaysNothing) {
  const auto silent = connect();
  const auto idle = ask(get("/hello"));
  loop_.advance(11s);
  EXPECT_EQ(server_->connection_count(), 1U);
  loop_.advance(66s);
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, DropAClientThatDoesNotTakeItsAnswer) {
  const auto talker = connect();
  talker->set_reading(false);
  talker->send(get("/large"));
  loop_.advance(19s);
  EXPECT_EQ(server_->connection_count(), 1U);
  loop_.advance(2s);
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, DropAClientThatTakesItsAnswerTooSlowly) {
  const auto talker = connect();
  talker->send(get("/large"));
  // Moves now and then, never stalls for long, and still is not done in a minute.
  for (int step = 0; step < 7; ++step) {
    talker->set_reading(false);
    loop_.advance(9s);
    talker->set_reading(true);
    if (talker->failure() != 0) break;
    loop_.run_until([&, size = talker->received().size()] {
      return talker->received().size() > size || talker->failure() != 0;
    });
  }
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, MakeRoomByDroppingWhoIsIdle) {
  HttpOptions options;
  options.connections_max = 3;
  server_.reset();
  serve(options);
  const auto busy = ask("GET /hel");
  const auto idle = ask(get("/hello"));
  const auto third = ask("GET /hel");
  EXPECT_EQ(server_->connection_count(), 3U);
  const auto fourth = ask(get("/hello"));
  EXPECT_EQ(fourth->received(), hello());
  EXPECT_EQ(server_->connection_count(), 3U);
  EXPECT_TRUE(idle->ended());
  EXPECT_FALSE(busy->ended());
}

TEST_F(HttpServers, RefuseAConnectionWhenAllOthersAreBusy) {
  HttpOptions options;
  options.connections_max = 2;
  server_.reset();
  serve(options);
  const auto one = ask("GET /hel");
  const auto two = ask("GET /hel");
  std::vector<std::unique_ptr<Talker>> more;
  for (int count = 0; count < 5; ++count) {
    more.push_back(ask(get("/hello")));
    EXPECT_EQ(status_of(*more.back()), "503");
    EXPECT_LE(server_->connection_count(), 3U);
  }
  one->send("lo HTTP/1.1\r\nHost: a\r\n\r\n");
  settle();
  EXPECT_EQ(one->received(), hello());
}

TEST_F(HttpServers, StreamABodyWhoseEndIsNotKnown) {
  feed_.text = "one\n";
  const auto talker = ask(get("/feed"));
  const std::string head = std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(talker->received(), head + "4\r\none\n\r\n");
  EXPECT_EQ(server_->stream_count(), 1U);

  loop_.advance(1h);  // a quiet stream is no slow client
  feed_.text = "two\n";
  feed_.wake();
  settle();
  EXPECT_TRUE(talker->received().ends_with("4\r\ntwo\n\r\n"));

  feed_.is_over = true;
  feed_.wake();
  settle();
  EXPECT_TRUE(talker->received().ends_with("two\n\r\n0\r\n\r\n"));
  EXPECT_FALSE(feed_.is_open);
  EXPECT_EQ(server_->stream_count(), 0U);
  // The connection is as good as before.
  talker->send(get("/hello"));
  settle();
  EXPECT_TRUE(talker->received().ends_with(hello()));
}

TEST_F(HttpServers, StreamToOldClientsUntilTheEndOfTheConnection) {
  feed_.text = "one\n";
  feed_.is_over = true;
  const auto talker = ask("GET /feed HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(talker->received(), std::string(kHead) + "Connection: close\r\n\r\none\n");
  EXPECT_TRUE(talker->ended());
}

TEST_F(HttpServers, StreamNothingForHead) {
  const auto talker = ask("HEAD /feed HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(talker->received(), std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_FALSE(feed_.is_open);
  EXPECT_EQ(server_->stream_count(), 0U);
}

TEST_F(HttpServers, AnswerShortStreamsThatCameAtOnceInOrder) {
  feed_.is_over = true;
  std::string requests;
  for (int count = 0; count < 500; ++count) requests += get("/feed");
  const auto talker = ask(requests + get("/hello"));
  EXPECT_TRUE(talker->received().ends_with(hello()));
  EXPECT_EQ(server_->stream_count(), 0U);
}

TEST_F(HttpServers, EndAStreamWhoseClientHasGone) {
  auto talker = ask(get("/feed"));
  EXPECT_TRUE(feed_.is_open);
  talker->close();
  settle();
  EXPECT_FALSE(feed_.is_open);
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, HoldAStreamBackForASlowClientAndThenDropIt) {
  feed_.text = std::string(std::size_t{10} * 1024 * 1024, 'x');
  const auto talker = connect();
  talker->set_reading(false);
  talker->send(get("/feed"));
  loop_.advance(1s);
  // Socket, network and our buffer hold some; the source keeps the rest.
  EXPECT_GT(feed_.text.size(), std::size_t{9} * 1024 * 1024);
  loop_.advance(21s);
  EXPECT_FALSE(feed_.is_open);
  EXPECT_EQ(server_->connection_count(), 0U);
}

TEST_F(HttpServers, BoundTheStreams) {
  HttpOptions options;
  options.streams_max = 1;
  server_.reset();
  serve(options);
  const auto one = ask(get("/feed"));
  EXPECT_EQ(status_of(*one), "200");
  Feed first = std::exchange(feed_, {});
  const auto two = ask(get("/feed"));
  EXPECT_EQ(status_of(*two), "503");
  EXPECT_EQ(status_of(*ask(get("/hello"))), "200");
  server_->close();
}

TEST_F(HttpServers, CanBeClosedAndOpenedAgain) {
  const auto talker = ask(get("/feed"));
  server_->close();
  settle();
  EXPECT_FALSE(feed_.is_open);
  EXPECT_EQ(server_->connection_count(), 0U);
  EXPECT_EQ(server_->stream_count(), 0U);
  ASSERT_TRUE(server_->listen({"", kPort}));
  EXPECT_EQ(server_->port(), kPort);
  EXPECT_EQ(ask(get("/hello"))->received(), hello());
}

TEST_F(HttpServers, SayWhyTheyCannotListen) {
  HttpServer other(agent_.loop(), agent_);
  const auto listening = other.listen({"", kPort});
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().kind, ErrorKind::Unavailable);
}

// Torn reads and writes, tiny windows, resets: every answer is right as far as it comes, and
// nothing is left when the clients have gone.
TEST_F(HttpServers, SurviveBadWeather) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const sim::Weather weather = sim::draw_weather(random);
    network_.set_weather(weather);
    feed_ = {};
    feed_.is_over = true;
    std::vector<std::unique_ptr<Talker>> talkers;
    for (int count = 0; count < 5; ++count) {
      auto stream = loop_.block_on(client_.connect({"agent", kPort}));
      if (!stream) continue;
      talkers.push_back(std::make_unique<Talker>(std::move(*stream)));
      talkers.back()->send(get("/hello") + get("/feed") + get("/hello"));
    }
    loop_.advance(5s);
    const std::string whole =
        hello() + std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hello();
    for (const auto& talker : talkers) {
      EXPECT_TRUE(whole.starts_with(talker->received()))
          << "seed " << seed << ": " << sim::describe(weather);
    }
    talkers.clear();
    network_.set_weather({});
    loop_.advance(200s);
    EXPECT_EQ(server_->connection_count(), 0U) << "seed " << seed;
    EXPECT_EQ(server_->stream_count(), 0U) << "seed " << seed;
  }
}

}  // namespace
}  // namespace muster::observe
