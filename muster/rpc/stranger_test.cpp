// What one may do who has connected and is not let in yet.
#include "muster/net/epoll_loop.h"
#include "muster/rpc/agent_core.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/incoming.h"
#include "tests/rpc/raw_peer.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::kPatience;
using testing::RawConnection;

// How long it may take to say who it is.
constexpr Duration kGreetingMax = 10s;
constexpr Duration kNoSilence = 1h;

Task<std::string> wait_for(Oneshot<std::string>& verdict) { co_return co_await verdict; }

class Strangers : public ::testing::Test, public RequestHandler {
 protected:
  Strangers() {
    reception_->loop = &loop_;
    reception_->handler = this;
    reception_->job = "job";
    reception_->incarnation = 5;
    reception_->link.watch = watch_by(loop_);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    stranger_ = std::make_unique<RawConnection>(Fd(ends[0]));
    opened_at_ = loop_.now();
    incoming_ = std::make_unique<Incoming>(reception_, std::make_unique<SocketStream>(Fd(ends[1])),
                                           "a test", 1, [this] {
                                             has_ended_ = true;
                                             loop_.stop();
                                           });
  }
  void on_request(Request) override { FAIL() << "a stranger is served"; }

  Hello hello() const {
    Hello hello;
    hello.job = "job";
    hello.from_name = "stranger";
    hello.from_id = 1;
    hello.from_incarnation = 6;
    hello.to_incarnation = 5;
    return hello;
  }
  // Lets the connection do all that it has to do.
  void settle() {
    loop_.post([this] { loop_.post([this] { loop_.stop(); }); });
    loop_.run();
  }
  // Until it has ended; false after a time that only a hang takes.
  bool ends() {
    Timer patience(loop_, [this] { loop_.stop(); });
    patience.set(loop_.now() + kPatience);
    if (!has_ended_) loop_.run();
    incoming_.reset();
    return has_ended_;
  }
  void expect_cut_off_without_an_answer() {
    EXPECT_TRUE(ends());
    EXPECT_FALSE(stranger_->read());
  }

  net::EpollLoop loop_;
  std::shared_ptr<Reception> reception_ =
      std::make_shared<Reception>(WorkerInfo::create_member("worker0", 0).value());
  TimePoint opened_at_;
  bool has_ended_ = false;
  std::unique_ptr<RawConnection> stranger_;
  std::unique_ptr<Incoming> incoming_;
};

TEST_F(Strangers, MaySayNothingForAWhileAndNoLonger) {
  incoming_->look_after(opened_at_ + kGreetingMax, kNoSilence);
  settle();
  EXPECT_FALSE(has_ended_);
  incoming_->look_after(opened_at_ + kGreetingMax + 1ms, kNoSilence);
  expect_cut_off_without_an_answer();
}

TEST_F(Strangers, GivePlaceToOthersIfTheySayNothingForLong) {
  incoming_->give_place(opened_at_ + kGreetingMaxWhenFull - 1ms);
  settle();
  EXPECT_FALSE(has_ended_);
  incoming_->give_place(opened_at_ + kGreetingMaxWhenFull);
  expect_cut_off_without_an_answer();
}

TEST_F(Strangers, KeepTheirPlaceOnceTheyHaveGreeted) {
  Oneshot<std::string> verdict(loop_);
  reception_->admit = [&](Hello) {
    loop_.stop();
    return wait_for(verdict);
  };
  stranger_->send(encode(hello()));
  loop_.run();
  incoming_->give_place(opened_at_ + kGreetingMaxWhenFull);
  settle();
  EXPECT_FALSE(has_ended_);
  incoming_.reset();  // before what it waits for
}

TEST_F(Strangers, AreCountedUntilTheyHaveGone) {
  EXPECT_EQ(reception_->stranger_count, 1);
  int change_count = 0;
  reception_->strangers_changed = [&] { ++change_count; };
  incoming_.reset();
  EXPECT_EQ(reception_->stranger_count, 0);
  EXPECT_EQ(change_count, 1);
}

TEST(StrangersMax, IsAQuarterOfTheDescriptorsThatAProcessMayHave) {
  EXPECT_EQ(strangers_max_of(0), 1);
  EXPECT_EQ(strangers_max_of(7), 1);
  EXPECT_EQ(strangers_max_of(256), 64);
  EXPECT_EQ(strangers_max_of(1024), 256);
  EXPECT_EQ(strangers_max_of(4 * 16384 - 1), 16383);
  EXPECT_EQ(strangers_max_of(4 * 16384), kStrangersMax);
  EXPECT_EQ(strangers_max_of(RLIM_INFINITY), kStrangersMax);
}

TEST_F(Strangers, AreNotHeardASecondTimeBeforeTheyAreLetIn) {
  Oneshot<std::string> verdict(loop_);  // which never comes
  reception_->admit = [&](Hello) { return wait_for(verdict); };
  stranger_->send(encode(hello()));
  stranger_->send({MessageType::ScriptCall, 0, "", {}});
  expect_cut_off_without_an_answer();
}

TEST_F(Strangers, MayGreetWithAsManyBytesAsAGreetingMayHave) {
  Hello longest = hello();
  longest.job.append(kHelloBytesMax - encode(longest).payload.size(), 'x');
  ASSERT_EQ(encode(longest).payload.size(), kHelloBytesMax);
  stranger_->send(encode(longest));
  EXPECT_TRUE(ends());
  const auto answer = stranger_->read();
  ASSERT_TRUE(answer) << "it was not even read";
  EXPECT_EQ(answer->type, kRefused);
  EXPECT_EQ(answer->payload, "it belongs to another job");
}

TEST_F(Strangers, AreCutOffIfTheirGreetingHasOneByteMore) {
  Hello too_long = hello();
  too_long.job.append(kHelloBytesMax + 1 - encode(too_long).payload.size(), 'x');
  stranger_->send(encode(too_long));
  expect_cut_off_without_an_answer();
}

// Empty ones have no bytes that could be counted.
TEST_F(Strangers, AreCutOffIfTheirGreetingHasABuffer) {
  Message greeting = encode(hello());
  greeting.buffers.emplace_back();
  stranger_->send(greeting);
  expect_cut_off_without_an_answer();
}

class NoHandler final : public RequestHandler {
  void on_request(Request) override { FAIL() << "a stranger is served"; }
};

// Who listens on the network is told to wait at the limit; who comes otherwise has room beyond it.
TEST(StrangersOfThisMachine, AreSentAwayOncePastTheirOwnLimit) {
  const tests::LogCapture log;
  net::EpollLoop loop;
  const SystemClock clock;
  NoHandler handler;
  CoreOptions options(WorkerInfo::create_member("worker0", 0).value());
  options.link.watch = watch_by(loop);
  options.strangers_max = 3;
  std::vector<bool> told;
  options.set_accepting = [&](bool accepting) { told.push_back(accepting); };
  AgentCore core(std::move(options), loop, clock, handler);
  std::vector<RawConnection> strangers;
  const auto knock = [&] {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    core.accept(std::make_unique<SocketStream>(Fd(ends[1])), "this machine");
    strangers.emplace_back(Fd(ends[0]));
  };
  for (int count = 0; count < 2; ++count) knock();
  EXPECT_EQ(told, std::vector<bool>());
  for (int count = 2; count < 3 + kStrangersOfThisMachineMax; ++count) knock();
  EXPECT_EQ(told, std::vector<bool>{false});
  for (RawConnection& stranger : strangers) EXPECT_FALSE(stranger.is_readable_within(0));
  knock();
  EXPECT_TRUE(strangers.back().is_readable_within(0));
  EXPECT_EQ(log.warnings().size(), 2U) << "of one that was sent away, and that nobody is accepted";
  core.close({CallErrorKind::Rejected, "the end", "", true});
}

TEST(Hello, HasNoBuffers) {
  Hello hello;
  hello.from_name = "me";
  Message message = encode(hello);
  EXPECT_TRUE(decode_hello(message));
  message.buffers.emplace_back();
  EXPECT_FALSE(decode_hello(message));
}

}  // namespace
}  // namespace muster::rpc
