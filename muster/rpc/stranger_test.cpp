// What one may do who has connected and is not let in yet.
#include "muster/net/epoll_loop.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/incoming.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <utility>

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
