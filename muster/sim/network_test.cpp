#include "muster/sim/network.h"

#include "muster/base/error.h"
#include "tests/net/talker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::sim {
namespace {

using namespace std::chrono_literals;
using tests::connect_into;
using tests::ConnectResult;
using tests::numbered_text;
using tests::Talker;

TimePoint at(Duration since_start) { return TimePoint(since_start); }

// Two hosts, one listener, and no surprises: every segment takes exactly a millisecond.
class SimNetwork : public testing::Test {
 protected:
  static constexpr int kPort = 4400;

  static Weather steady_weather() {
    Weather weather;
    weather.latency_min = 1ms;
    weather.latency_max = 1ms;
    weather.silence_max = 10s;
    return weather;
  }

  void listen() {
    auto made = b_.listen({"", kPort}, [this](std::unique_ptr<net::Stream> stream) {
      accepted_.push_back(std::make_unique<Talker>(std::move(stream)));
    });
    ASSERT_TRUE(made) << made.error().message;
    listener_ = std::move(*made);
  }

  ConnectResult connect() { return loop_.block_on(a_.connect({"b", kPort})); }

  // Connects a_ to b_; the two talkers are client_ and server_.
  void make_pair() {
    if (!listener_) listen();
    ConnectResult stream = connect();
    ASSERT_TRUE(stream) << stream.error().message;
    client_ = std::make_unique<Talker>(std::move(*stream));
    ASSERT_TRUE(loop_.run_until([&] { return !accepted_.empty(); }, loop_.now() + 1s));
    server_ = std::move(accepted_.back());
    accepted_.pop_back();
  }

  Loop loop_;
  Random random_{1};
  Network network_{loop_, random_, steady_weather()};
  Host& a_ = network_.host("a");
  Host& b_ = network_.host("b");
  std::unique_ptr<net::Listener> listener_;
  std::vector<std::unique_ptr<Talker>> accepted_;
  std::unique_ptr<Talker> client_;
  std::unique_ptr<Talker> server_;
};

TEST_F(SimNetwork, ConnectsInOneRoundTripAndNamesThePeer) {
  make_pair();
  EXPECT_EQ(loop_.now(), at(2ms));
  EXPECT_EQ(client_->stream().peer(), "b:4400");
  EXPECT_TRUE(server_->stream().peer().starts_with("a:")) << server_->stream().peer();
}

TEST_F(SimNetwork, ReachesTheHostItselfByLocalNames) {
  listen();
  for (const char* name : {"", "b", "localhost", "127.0.0.1", "::1"}) {
    EXPECT_TRUE(loop_.block_on(b_.connect({name, kPort}))) << name;
  }
  loop_.advance(1s);
}

TEST_F(SimNetwork, KnowsNoHostThatWasNotMade) {
  const ConnectResult stream = loop_.block_on(a_.connect({"elsewhere", kPort}));
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error(),
            (Error{ErrorKind::Unavailable, "cannot connect to elsewhere:4400: unknown host"}));
}

TEST_F(SimNetwork, ListensOnlyOnItsOwnAddresses) {
  const auto refused = a_.listen({"b", kPort}, [](std::unique_ptr<net::Stream>) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
  EXPECT_TRUE(a_.listen({"0.0.0.0", kPort}, [](std::unique_ptr<net::Stream>) {}));
}

TEST_F(SimNetwork, ForgetsAConnectionThatNeitherSideHolds) {
  make_pair();
  EXPECT_EQ(network_.connection_count(), 1U);
  client_->close();
  server_->close();
  loop_.run_until_idle();
  EXPECT_EQ(network_.connection_count(), 0U);
}

TEST_F(SimNetwork, HoldsBytesAndEndsBehindACutUntilItIsHealed) {
  make_pair();
  network_.cut(a_, b_);
  client_->send("held");
  loop_.advance(1s);
  client_->shutdown_write();
  loop_.advance(1s);
  EXPECT_EQ(server_->received(), "");
  network_.heal(a_, b_);
  loop_.advance(10ms);
  EXPECT_EQ(server_->received(), "held");
  EXPECT_TRUE(server_->ended());
  EXPECT_EQ(client_->failure(), 0);
}

TEST_F(SimNetwork, CutsOneDirectionOnly) {
  make_pair();
  network_.cut_one_way(a_, b_);
  client_->send("lost");
  server_->send("heard");
  loop_.advance(1s);
  EXPECT_EQ(client_->received(), "heard");
  EXPECT_EQ(server_->received(), "");
  network_.heal_all();
  loop_.advance(1s);
  EXPECT_EQ(server_->received(), "lost");
}

TEST_F(SimNetwork, TimesOutAnEndWhoseBytesAreNotAcknowledged) {
  make_pair();
  network_.cut(a_, b_);
  client_->send("hello?");
  loop_.run_until([&] { return client_->failure() != 0; }, loop_.now() + 1h);
  EXPECT_EQ(client_->failure(), ETIMEDOUT);
  EXPECT_EQ(loop_.now(), at(2ms) + 10s);

  // The other end waits and notices nothing, until it sends.
  network_.heal_all();
  loop_.advance(1h);
  EXPECT_EQ(server_->failure(), 0);
  EXPECT_FALSE(server_->ended());
  server_->send("are you there?");
  loop_.advance(1s);
  EXPECT_EQ(server_->failure(), ECONNRESET);
}

TEST_F(SimNetwork, TimesOutAnEndWhoseAcknowledgementsAreCutOff) {
  make_pair();
  network_.cut_one_way(b_, a_);
  client_->send("one way");
  loop_.advance(20s);
  EXPECT_EQ(server_->received(), "one way");
  EXPECT_EQ(client_->failure(), ETIMEDOUT);
}

TEST_F(SimNetwork, WaitsForEverIfToldTo) {
  Weather weather = steady_weather();
  weather.silence_max = -1s;
  network_.set_weather(weather);
  make_pair();
  network_.cut(a_, b_);
  client_->send("whenever you like");
  loop_.advance(24h);
  EXPECT_EQ(client_->failure(), 0);
  network_.heal_all();
  loop_.advance(1s);
  EXPECT_EQ(server_->received(), "whenever you like");
}

TEST_F(SimNetwork, DoesNotTimeOutAPeerThatOnlyReadsLate) {
  make_pair();
  server_->set_reading(false);
  client_->send(numbered_text(1'000'000));
  loop_.advance(1h);
  EXPECT_GT(client_->unsent_bytes(), 0U);
  EXPECT_EQ(client_->failure(), 0);
  server_->set_reading(true);
  loop_.advance(1h);
  EXPECT_TRUE(server_->received() == numbered_text(1'000'000));
}

TEST_F(SimNetwork, NoticesThatAPeerThatDidNotReadIsGone) {
  make_pair();
  server_->set_reading(false);
  client_->send(numbered_text(1'000'000));
  loop_.advance(1min);
  ASSERT_GT(client_->unsent_bytes(), 0U);
  // Nothing is on the way that could be acknowledged.
  network_.crash(b_, Crash::Silent);
  server_.reset();
  loop_.advance(12s);
  EXPECT_EQ(client_->failure(), ETIMEDOUT);
}

TEST_F(SimNetwork, NoticesThatAPeerThatDidNotReadHasForgottenTheConnection) {
  make_pair();
  server_->set_reading(false);
  client_->send(numbered_text(1'000'000));
  loop_.advance(1min);
  network_.crash(b_, Crash::Silent);
  server_.reset();
  network_.restart(b_);
  loop_.advance(2s);
  EXPECT_EQ(client_->failure(), ECONNRESET);
}

TEST_F(SimNetwork, ConnectsThroughACutWhenItIsHealedInTime) {
  listen();
  network_.cut_one_way(b_, a_);
  std::optional<ConnectResult> result;
  TaskScope scope;
  scope.start(connect_into(a_, {"b", kPort}, result));
  loop_.advance(5s);
  EXPECT_FALSE(result);
  network_.heal_all();
  loop_.advance(2s);
  ASSERT_TRUE(result);
  EXPECT_TRUE(*result);
}

TEST_F(SimNetwork, GivesUpConnectingAfterALongSilence) {
  listen();
  network_.cut(a_, b_);
  const ConnectResult result = connect();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(),
            (Error{ErrorKind::Unavailable, "cannot connect to b:4400: connection timed out"}));
  EXPECT_EQ(loop_.now(), at(10s));
}

TEST_F(SimNetwork, ResetsBothEndsOfAStream) {
  make_pair();
  network_.reset(client_->stream());
  EXPECT_EQ(client_->failure(), 0);  // never from inside the call
  loop_.advance(1s);
  EXPECT_EQ(client_->failure(), ECONNRESET);
  EXPECT_EQ(server_->failure(), ECONNRESET);
}

TEST_F(SimNetwork, ResetsEveryConnectionOfAHost) {
  make_pair();
  const std::unique_ptr<Talker> first_client = std::move(client_);
  const std::unique_ptr<Talker> first_server = std::move(server_);
  make_pair();
  network_.reset_all(b_);
  loop_.advance(1s);
  for (const Talker* talker :
       {first_client.get(), first_server.get(), client_.get(), server_.get()}) {
    EXPECT_EQ(talker->failure(), ECONNRESET);
  }
  EXPECT_TRUE(connect());
}

TEST_F(SimNetwork, TellsThePeersOfAHostThatCrashesLoudly) {
  make_pair();
  network_.crash(b_, Crash::Loud);
  loop_.advance(1s);
  EXPECT_EQ(client_->failure(), ECONNRESET);
  const ConnectResult refused = connect();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "cannot connect to b:4400: connection refused");
  const auto down = b_.listen({"", kPort}, [](std::unique_ptr<net::Stream>) {});
  EXPECT_FALSE(down);

  server_.reset();
  listener_.reset();
  network_.restart(b_);
  make_pair();
  client_->send("welcome back");
  loop_.advance(1s);
  EXPECT_EQ(server_->received(), "welcome back");
}

TEST_F(SimNetwork, LeavesThePeersOfAHostThatCrashesSilentlyInTheDark) {
  make_pair();
  network_.crash(b_, Crash::Silent);
  loop_.advance(1h);
  EXPECT_EQ(client_->failure(), 0);
  client_->send("anybody?");
  loop_.advance(9s);
  EXPECT_EQ(client_->failure(), 0);
  loop_.advance(2s);
  EXPECT_EQ(client_->failure(), ETIMEDOUT);
  const ConnectResult silent = connect();
  ASSERT_FALSE(silent);
  EXPECT_EQ(silent.error().message, "cannot connect to b:4400: connection timed out");
}

TEST_F(SimNetwork, AnswersOldConnectionsWithAResetAfterARestart) {
  make_pair();
  network_.crash(b_, Crash::Silent);
  client_->send("before");
  loop_.advance(1s);
  server_.reset();
  listener_.reset();
  EXPECT_EQ(client_->failure(), 0);
  network_.restart(b_);
  loop_.advance(1s);
  EXPECT_EQ(client_->failure(), ECONNRESET);
}

TEST_F(SimNetwork, FailsWhatACrashedHostWasConnectingTo) {
  listen();
  std::optional<ConnectResult> result;
  TaskScope scope;
  scope.start(connect_into(a_, {"b", kPort}, result));
  network_.crash(a_, Crash::Loud);
  loop_.advance(1s);
  EXPECT_FALSE(result);  // nothing runs on a crashed host
  network_.restart(a_);
  loop_.run_until_idle();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error().message, "cannot connect to b:4400: network is down");
}

TEST_F(SimNetwork, WithholdsTheEventsOfAPausedHostWhileItsKernelGoesOn) {
  make_pair();
  network_.pause(b_);
  client_->send("sleep well");
  std::optional<ConnectResult> second;
  TaskScope scope;
  scope.start(connect_into(a_, {"b", kPort}, second));
  loop_.advance(1h);
  EXPECT_EQ(client_->failure(), 0);
  EXPECT_EQ(server_->received(), "");
  EXPECT_TRUE(second && *second);
  EXPECT_TRUE(accepted_.empty());

  network_.resume(b_);
  loop_.advance(1ms);
  EXPECT_EQ(server_->received(), "sleep well");
  EXPECT_EQ(accepted_.size(), 1U);
}

TEST_F(SimNetwork, LetsConnectionsWaitUpToTheBacklogAndNotBeyond) {
  listen();
  listener_->set_accepting(false);
  std::vector<std::optional<ConnectResult>> results(kBacklogMax + 1);
  TaskScope scope;
  for (auto& result : results) scope.start(connect_into(a_, {"b", kPort}, result));
  loop_.advance(5s);
  std::size_t connected_count = 0;
  for (const auto& result : results) connected_count += result ? 1U : 0U;
  EXPECT_EQ(connected_count, kBacklogMax);

  listener_->set_accepting(true);
  loop_.advance(2s);
  for (const auto& result : results) ASSERT_TRUE(result && *result);
  EXPECT_EQ(accepted_.size(), kBacklogMax + 1);
}

TEST_F(SimNetwork, ResetsConnectionsThatWaitAtAListenerThatGoesAway) {
  listen();
  listener_->set_accepting(false);
  ConnectResult stream = connect();
  ASSERT_TRUE(stream);
  Talker client(std::move(*stream));
  listener_.reset();
  loop_.advance(1s);
  EXPECT_EQ(client.failure(), ECONNRESET);
}

TEST_F(SimNetwork, LeavesNothingBehindWheneverAConnectIsGivenUp) {
  listen();
  for (Duration patience = 0us; patience <= 2500us; patience += 250us) {
    std::optional<ConnectResult> result;
    {
      TaskScope scope;
      scope.start(connect_into(a_, {"b", kPort}, result));
      loop_.advance(patience);
    }
    result.reset();
    loop_.advance(1s);
    for (const auto& server : accepted_) EXPECT_TRUE(server->ended());
    accepted_.clear();
    loop_.advance(1s);
    EXPECT_EQ(network_.connection_count(), 0U);
  }
}

TEST_F(SimNetwork, KeepsAHandlerThatDoesNothingFromStoppingTime) {
  make_pair();
  tests::EventProbe probe;
  int call_count = 0;
  probe.writable = [&] { ++call_count; };
  client_->stream().set_events(&probe);
  client_->stream().want(false, true);
  loop_.advance(1ms);
  EXPECT_GE(call_count, 900);
  EXPECT_LE(call_count, 1'100);
}

TEST_F(SimNetwork, TellsItsTracerWhatHappens) {
  std::vector<std::string> lines;
  network_.set_tracer([&](std::string_view line) { lines.emplace_back(line); });
  make_pair();
  network_.set_tracer(nullptr);
  EXPECT_EQ(lines, (std::vector<std::string>{"0 connect 0 1", "1000000 accept 4400 0",
                                             "2000000 connected 0 1"}));
}

TEST(Weather, IsDrawnFromItsSeed) {
  Random first(5);
  Random second(5);
  bool differs = false;
  const Weather fine_day;
  for (int day = 0; day < 50; ++day) {
    const Weather weather = draw_weather(first);
    EXPECT_EQ(weather, draw_weather(second));
    EXPECT_LE(weather.latency_min, weather.latency_max);
    EXPECT_GT(weather.window_bytes, 0U);
    EXPECT_GT(weather.chunk_bytes_max, 0U);
    differs = differs || weather != fine_day;
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(describe(fine_day),
            "latency=0.05ms..0.25ms window_bytes=262144 chunk_bytes_max=65536 torn=0/1000 "
            "resets=0/1000000 silence_max=60s");
}

// A random day among three hosts: connections, bytes, closes, cuts, pauses and resets, all from one
// seed.
class RandomDay {
 public:
  explicit RandomDay(std::uint64_t seed)
      : random_(seed), network_(loop_, random_, draw_weather(random_)) {
    for (const char* name : {"a", "b", "c"}) {
      Host& host = network_.host(name);
      hosts_.push_back(&host);
      auto listener = host.listen({"", 1}, [this](std::unique_ptr<net::Stream> stream) {
        accepted_.push_back(std::move(stream));
      });
      listeners_.push_back(std::move(*listener));
    }
  }

  void run(int step_count) {
    for (int step = 0; step < step_count; ++step) {
      act();
      loop_.advance(Duration(static_cast<Duration::rep>(random_.below(50'000'000))));
      check_all();
    }
    network_.heal_all();
    for (Host* host : hosts_) network_.resume(*host);
    loop_.advance(1h);
    check_all();
    for (const auto& talk : talks_) check_finished(*talk);
  }

  std::uint64_t trace_hash() const { return network_.trace_hash(); }
  TimePoint now() const { return loop_.now(); }
  std::size_t delivered_bytes() const {
    std::size_t total = 0;
    for (const auto& talk : talks_) {
      if (talk->server) total += talk->server->received().size();
    }
    return total;
  }

 private:
  // Both sides of one connection, and what the client has been told to send.
  struct Talk {
    std::string sent;
    std::unique_ptr<Talker> client;
    std::unique_ptr<Talker> server;
    bool shut_down = false;
  };

  void act() {
    Host& one = *hosts_[random_.below(hosts_.size())];
    Host& other = *hosts_[random_.below(hosts_.size())];
    switch (random_.below(12)) {
      case 0:
        network_.cut_one_way(one, other);
        break;
      case 1:
        network_.cut(one, other);
        break;
      case 2:
      case 3:
        network_.heal_all();
        break;
      case 4:
        network_.pause(one);
        break;
      case 5:
      case 6:
        for (Host* host : hosts_) network_.resume(*host);
        break;
      case 7:
        if (random_.chance(100)) network_.reset_all(one);
        break;
      case 8:
        open(one, other);
        break;
      default:
        if (!talks_.empty()) send(*talks_[random_.below(talks_.size())]);
        break;
    }
  }

  void open(Host& one, Host& other) {
    if (network_.weather().silence_max < Duration::zero()) return;
    for (Host* host : hosts_) network_.resume(*host);
    network_.heal_all();
    accepted_.clear();
    auto stream = loop_.block_on(one.connect({other.name(), 1}));
    ASSERT_TRUE(stream) << stream.error().message;
    ASSERT_TRUE(loop_.run_until([&] { return !accepted_.empty(); }));
    auto talk = std::make_unique<Talk>();
    talk->client = std::make_unique<Talker>(std::move(*stream));
    talk->server = std::make_unique<Talker>(std::move(accepted_.back()));
    accepted_.pop_back();
    talks_.push_back(std::move(talk));
  }

  void send(Talk& talk) {
    if (talk.shut_down) return;
    if (random_.chance(100) && talk.client->unsent_bytes() == 0) {
      talk.client->shutdown_write();
      talk.shut_down = true;
      return;
    }
    const std::string text = numbered_text(1 + random_.below(3'000));
    talk.sent += text;
    talk.client->send(text);
  }

  void check_all() {
    for (const auto& talk : talks_) {
      ASSERT_TRUE(talk->sent.starts_with(talk->server->received()));
      ASSERT_FALSE(talk->client->was_called_inline() || talk->server->was_called_inline());
    }
  }

  static void check_finished(const Talk& talk) {
    if (talk.client->failure() != 0 || talk.server->failure() != 0) return;
    EXPECT_TRUE(talk.server->received() == talk.sent);
    EXPECT_EQ(talk.server->ended(), talk.shut_down);
  }

  Loop loop_;
  Random random_;
  Network network_;
  std::vector<Host*> hosts_;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  std::vector<std::unique_ptr<net::Stream>> accepted_;
  std::vector<std::unique_ptr<Talk>> talks_;
};

TEST(SimNetworkRandomDays, NeverLoseReorderOrInventBytes) {
  std::size_t delivered_bytes = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomDay day(seed);
    day.run(150);
    delivered_bytes += day.delivered_bytes();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(delivered_bytes, 1'000'000U);
}

TEST(SimNetworkRandomDays, ReplayFromTheirSeed) {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    RandomDay first(seed);
    RandomDay second(seed);
    first.run(100);
    second.run(100);
    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << seed;
    EXPECT_EQ(first.now(), second.now()) << seed;
    hashes.push_back(first.trace_hash());
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST(SimNetworkRandomDays, DoNotDependOnWhatTheProgramDraws) {
  std::vector<std::uint64_t> hashes;
  for (const int draw_count : {0, 17}) {
    Loop loop;
    Random random(3);
    Network network(loop, random);
    for (int draw = 0; draw < draw_count; ++draw) random.next();
    const auto listener = network.host("b").listen({"", 1}, [](std::unique_ptr<net::Stream>) {});
    EXPECT_TRUE(loop.block_on(network.host("a").connect({"b", 1})));
    loop.advance(1s);
    hashes.push_back(network.trace_hash());
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace muster::sim
