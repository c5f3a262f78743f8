#include "muster/observe/routes.h"

#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "tests/net/drive.h"
#include "tests/net/talker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;
using tests::Talker;

// Over real sockets.
class Routes : public testing::Test {
 protected:
  void SetUp() override {
    Pages pages;
    pages.health = [this] { return health_; };
    pages.status = [] { return std::string("{\"workers\": []}\n"); };
    add_routes(server_, std::move(pages), registry_, events_);
    const auto listening = server_.listen({"127.0.0.1", 0});
    ASSERT_TRUE(listening) << listening.error().message;
  }

  std::unique_ptr<Talker> ask(std::string_view target, std::string_view headers) {
    auto stream = loop_.block_on(transport_.connect({"127.0.0.1", server_.port()}));
    EXPECT_TRUE(stream);
    auto talker = std::make_unique<Talker>(std::move(*stream));
    talker->send("GET " + std::string(target) + " HTTP/1.1\r\nHost: a\r\n" + std::string(headers) +
                 "\r\n");
    return talker;
  }
  bool receives(const Talker& talker, std::string_view text) {
    return tests::run_until(loop_,
                            [&] { return talker.received().find(text) != std::string::npos; });
  }
  // The whole answer of a connection that is closed after it.
  std::string fetch(std::string_view target, const std::string& headers = "") {
    const auto talker = ask(target, headers + "Connection: close\r\n");
    EXPECT_TRUE(tests::run_until(loop_, [&] { return talker->ended(); }));
    return talker->received();
  }
  void record(std::string name) {
    Event event;
    event.name = std::move(name);
    event.timestamp_ms = 5;
    events_.record(std::move(event));
  }
  static std::string line(std::string_view name) {
    return "{\"name\": \"" + std::string(name) +
           "\", \"source\": \"AGENT\", \"timestamp\": 5, \"metadata\": {}}";
  }

  net::EpollLoop loop_;
  net::TcpTransport transport_{loop_};
  HealthFacts health_;
  Registry registry_;
  EventLog events_;
  HttpServer server_{loop_, transport_};
};

TEST_F(Routes, TellTheHealth) {
  EXPECT_TRUE(fetch("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
  health_.progress_age = 61s;
  const std::string answer = fetch("/healthz");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_NE(answer.find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_NE(answer.find("\r\n\r\n{\"healthy\": false"), std::string::npos);
}

TEST_F(Routes, TellTheStatus) {
  EXPECT_TRUE(fetch("/status").ends_with("\r\n\r\n{\"workers\": []}\n"));
}

TEST_F(Routes, TellTheMetricsAndCountTheAnswers) {
  fetch("/status");
  fetch("/none");
  const std::string answer = fetch("/metrics");
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\nmuster_http_requests_total{path=\"/status\",status=\"200\"} 1\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\nmuster_http_requests_total{path=\"\",status=\"404\"} 1\n"),
            std::string::npos);
}

TEST_F(Routes, TellTheEventsThatWereAndThoseThatCome) {
  record("first");
  const auto talker = ask("/events", "");
  ASSERT_TRUE(receives(*talker, line("first") + "\n"));
  EXPECT_NE(talker->received().find("Content-Type: application/x-ndjson\r\n"), std::string::npos);
  record("second");
  EXPECT_TRUE(receives(*talker, line("second") + "\n"));
  record("third");
  record("fourth");
  EXPECT_TRUE(receives(*talker, line("third") + "\n" + line("fourth") + "\n"));
}

TEST_F(Routes, TellTheKeptEventsOnlyIfAskedTo) {
  record("first");
  record("second");
  const std::string all = fetch("/events?follow=0");
  EXPECT_NE(all.find(line("first") + "\n" + line("second") + "\n"), std::string::npos);
  const std::string one = fetch("/events?follow=0&after=1");
  EXPECT_EQ(one.find("first"), std::string::npos);
  EXPECT_NE(one.find(line("second")), std::string::npos);
  EXPECT_TRUE(fetch("/events?follow=maybe").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(fetch("/events?after=-1").starts_with("HTTP/1.1 400 "));
}

TEST_F(Routes, TellEventsToABrowser) {
  record("first");
  record("second");
  const std::string answer =
      fetch("/events?follow=0", "Accept: text/event-stream\r\nLast-Event-ID: 1\r\n");
  EXPECT_NE(answer.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_NE(answer.find("id: 2\ndata: " + line("second") + "\n\n"), std::string::npos);
  EXPECT_EQ(answer.find("first"), std::string::npos);
}

TEST_F(Routes, TellAReaderThatWasTooSlowWhatItMissed) {
  record("first");
  for (std::size_t count = 0; count < kRecentEventsMax + 1; ++count) record("more");
  EXPECT_NE(
      fetch("/events?follow=0&after=1").find("{\"name\": \"muster.events.lost\", \"count\": 1}\n"),
      std::string::npos);
}

TEST_F(Routes, KeepHealthAnsweredWhileManyFollow) {
  std::vector<std::unique_ptr<Talker>> followers;
  record("first");
  for (std::size_t count = 0; count < HttpOptions{}.streams_max; ++count) {
    followers.push_back(ask("/events", ""));
    ASSERT_TRUE(receives(*followers.back(), "first"));
  }
  EXPECT_TRUE(fetch("/events").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(fetch("/healthz").starts_with("HTTP/1.1 200 "));
  record("second");
  for (const auto& follower : followers) EXPECT_TRUE(receives(*follower, line("second")));
}

}  // namespace
}  // namespace muster::observe
