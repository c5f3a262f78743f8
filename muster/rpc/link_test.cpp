#include "muster/rpc/link.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

// One end of a pair, with what it was told.
class End final : public LinkEvents {
 public:
  End(net::EpollLoop& loop, Fd socket, LinkOptions options) {
    options.peer = "worker1";
    options.watch = watch_by(loop);
    link = Link::open(loop, std::make_unique<SocketStream>(std::move(socket)), std::move(options),
                      *this);
  }
  ~End() override {
    if (link) link->close();
  }
  void on_message(Link& from, Message message) override {
    messages.push_back(std::move(message));
    if (heard) heard(from);
  }
  void on_lost(Link&, std::string reason) override { lost = std::move(reason); }

  std::shared_ptr<Link> link;
  std::vector<Message> messages;
  std::optional<std::string> lost;
  std::function<void(Link&)> heard;
};

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    near_ = Fd(ends[0]);
    far_ = Fd(ends[1]);
  }
  void connect(LinkOptions options = {}) {
    left.emplace(loop, std::move(near_), options);
    right.emplace(loop, std::move(far_), options);
  }
  // Until it holds, or for so long that it never will.
  bool run_until(const std::function<bool()>& holds) {
    const TimePoint deadline = SystemClock().now() + 60s;
    return loop.block_on(wait(loop, deadline, holds));
  }
  static Task<bool> wait(Loop& on, TimePoint deadline, std::function<bool()> holds) {
    while (!holds() && SystemClock().now() < deadline) {
      const TimePoint soon = on.now() + 1ms;
      co_await sleep_until(on, soon);
    }
    co_return holds();
  }
  static Message request(std::int64_t id, std::string payload, std::size_t buffer_bytes = 0) {
    Message message{MessageType::ScriptCall, id, std::move(payload), {}};
    if (buffer_bytes > 0) {
      message.buffers.push_back(
          copy_of(std::vector<std::byte>(buffer_bytes, static_cast<std::byte>(id + 1))));
    }
    return message;
  }

  net::EpollLoop loop;
  Fd near_;
  Fd far_;
  std::optional<End> left;
  std::optional<End> right;
};

TEST_F(LinkTest, CarriesMessagesBothWaysInOrder) {
  connect();
  for (std::int64_t id = 0; id < 100; ++id) {
    ASSERT_TRUE(left->link->send(request(id, "to the right")));
    ASSERT_TRUE(right->link->send(request(id, "to the left", 10)));
  }
  ASSERT_TRUE(run_until([&] { return left->messages.size() + right->messages.size() == 200; }));
  for (std::size_t index = 0; index < 100; ++index) {
    EXPECT_EQ(right->messages[index].id, static_cast<std::int64_t>(index));
    EXPECT_EQ(right->messages[index].payload, "to the right");
    EXPECT_EQ(left->messages[index].buffers.at(0).size(), 10U);
  }
  EXPECT_EQ(left->link->sent_bytes(), right->link->received_bytes());
  EXPECT_EQ(left->link->queued_bytes(), 0U);
}

TEST_F(LinkTest, CarriesWhatIsFarLargerThanTheSocketTakes) {
  connect();
  constexpr std::size_t kBytes = std::size_t{32} << 20U;
  ASSERT_TRUE(left->link->send(request(1, std::string(1 << 20, 'p'), kBytes)));
  EXPECT_GT(left->link->queued_bytes(), 0U);
  ASSERT_TRUE(left->link->send(request(2, "behind it")));
  ASSERT_TRUE(run_until([&] { return right->messages.size() == 2; }));
  EXPECT_EQ(right->messages[0].payload.size(), std::size_t{1} << 20U);
  const auto bytes = right->messages[0].buffers.at(0).bytes();
  ASSERT_EQ(bytes.size(), kBytes);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{2}; }));
  EXPECT_EQ(right->messages[1].payload, "behind it");
}

TEST_F(LinkTest, TakesMessagesFromManyThreadsAtOnce) {
  connect();
  constexpr int kThreads = 8;
  constexpr int kEach = 500;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      for (int count = 0; count < kEach; ++count) {
        const bool large = count % 50 == 0;
        if (!left->link->send(request(index * kEach + count, "x", large ? 100'000 : 0))) ++refused;
      }
    });
  }
  EXPECT_TRUE(run_until([&] { return right->messages.size() == std::size_t{kThreads} * kEach; }));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  // Those of one thread are in their order.
  std::array<std::int64_t, kThreads> last{};
  last.fill(-1);
  for (const Message& message : right->messages) {
    const auto from = static_cast<std::size_t>(message.id / kEach);
    EXPECT_GT(message.id, last[from]);
    last[from] = message.id;
  }
}

TEST_F(LinkTest, RefusesMoreForAPeerThatDoesNotRead) {
  LinkOptions options;
  options.queue_bytes_max = 1 << 20;
  left.emplace(loop, std::move(near_), options);
  Result<> sent;
  int count = 0;
  while (sent && count < 1000) sent = left->link->send(request(count++, "", 100'000));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::Unavailable);
  EXPECT_NE(sent.error().message.find("worker1 does not read"), std::string::npos);
  EXPECT_LE(left->link->queued_bytes(), std::size_t{1} << 21U);
  // Once it reads, everything that was taken arrives.
  right.emplace(loop, std::move(far_), options);
  const auto taken = static_cast<std::size_t>(count - 1);
  ASSERT_TRUE(run_until([&] { return right->messages.size() == taken; }));
  EXPECT_TRUE(left->link->send(request(1, "again")));
}

TEST_F(LinkTest, RefusesAMessageThatFitsIntoNoFrame) {
  LinkOptions options;
  options.limits.control_bytes = 10;
  connect(options);
  const auto sent = left->link->send(request(1, "more than ten bytes"));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::Invalid);
  EXPECT_TRUE(left->link->send(request(2, "ten bytes.")));
  EXPECT_TRUE(run_until([&] { return right->messages.size() == 1; }));
}

TEST_F(LinkTest, SaysThatThePeerHasGone) {
  connect();
  right.reset();
  ASSERT_TRUE(run_until([&] { return left->lost.has_value(); }));
  EXPECT_EQ(*left->lost, "it closed the connection");
  const auto sent = left->link->send(request(1, "to nobody"));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message, "the connection to worker1 is lost: it closed the connection");
}

TEST_F(LinkTest, SaysThatThePeerDiedWithinAMessage) {
  left.emplace(loop, std::move(near_), LinkOptions());
  const std::string head = encode_head(request(1, "payload"));
  ASSERT_EQ(::write(far_.get(), head.data(), head.size() - 1),
            static_cast<ssize_t>(head.size() - 1));
  far_.reset();
  ASSERT_TRUE(run_until([&] { return left->lost.has_value(); }));
  EXPECT_EQ(*left->lost, "it closed the connection within a message");
  EXPECT_TRUE(left->messages.empty());
}

TEST_F(LinkTest, GivesUpOnAPeerThatSendsGarbage) {
  left.emplace(loop, std::move(near_), LinkOptions());
  const std::string good = encode_head(request(1, "good"));
  const std::string bytes = good + std::string(100, '\xff');
  ASSERT_EQ(::write(far_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_TRUE(run_until([&] { return left->lost.has_value(); }));
  EXPECT_EQ(left->messages.size(), 1U) << "what came before is good";
  EXPECT_NE(left->lost->find("it breaks the protocol"), std::string::npos) << *left->lost;
}

TEST_F(LinkTest, TellsOfABrokenConnectionThatOnlyAWriteNotices) {
  connect();
  right.reset();
  for (int count = 0; count < 10 && left->link->send(request(count, "x")); ++count) {
  }
  ASSERT_TRUE(run_until([&] { return left->lost.has_value(); }));
}

TEST_F(LinkTest, TellsNothingOnceItIsClosed) {
  connect();
  right->heard = [&](Link& link) { loop.post([&link] { link.close(); }); };
  for (int count = 0; count < 10; ++count) ASSERT_TRUE(left->link->send(request(count, "x")));
  ASSERT_TRUE(run_until([&] { return left->lost.has_value(); }));
  EXPECT_FALSE(right->lost) << "whoever closes it knows";
  const auto sent = right->link->send(request(1, "x"));
  ASSERT_FALSE(sent);
  EXPECT_NE(sent.error().message.find("the connection was closed"), std::string::npos);
}

// The other side in a thread and on a loop of its own, which answers whatever comes.
class Echo {
 public:
  Echo(Fd socket, LinkOptions options) {
    std::atomic<bool> started = false;
    thread_ = std::thread([&, taken = std::move(socket)]() mutable {
      End end(loop_, std::move(taken), std::move(options));
      end.heard = [&end](Link& link) {
        Message answer = std::move(end.messages.back());
        end.messages.pop_back();
        answer.type = MessageType::ScriptRet;
        EXPECT_TRUE(link.send(std::move(answer)));
      };
      started = true;
      started.notify_one();
      loop_.run();
    });
    started.wait(false);
  }
  ~Echo() {
    loop_.stop();
    thread_.join();
  }

 private:
  net::EpollLoop loop_;
  std::thread thread_;
};

TEST_F(LinkTest, LetsTheThreadThatWaitsReadByItself) {
  Echo echo(std::move(far_), {});
  left.emplace(loop, std::move(near_), LinkOptions());
  std::thread caller([&] {
    const TimePoint deadline = SystemClock().now() + 60s;
    for (std::int64_t id = 0; id < 500; ++id) {
      const std::size_t before = left->messages.size();
      const std::size_t bytes = id % 100 == 0 ? std::size_t{4} << 20U : 0;
      ASSERT_TRUE(left->link->send(request(id, "ping", bytes)));
      ASSERT_TRUE(left->link->read_while(
          [&] { return left->messages.size() == before && SystemClock().now() < deadline; }));
      ASSERT_EQ(left->messages.size(), before + 1);
      ASSERT_EQ(left->messages.back().id, id);
    }
  });
  caller.join();  // the loop of this side has not run at all
  // What comes when nobody waits is read by the loop, as before.
  ASSERT_TRUE(left->link->send(request(1000, "ping")));
  EXPECT_TRUE(run_until([&] { return left->messages.size() == 501; }));
}

TEST_F(LinkTest, LetsOneThreadReadAtATime) {
  Echo echo(std::move(far_), {});
  left.emplace(loop, std::move(near_), LinkOptions());
  int looks = 0;
  EXPECT_TRUE(left->link->read_while([&] {
    EXPECT_FALSE(std::async(std::launch::async, [&] {
                   return left->link->read_while([] { return true; });
                 }).get());
    return ++looks < 2;
  }));
  left->link->close();
  EXPECT_FALSE(left->link->read_while([] { return true; }));
}

TEST_F(LinkTest, AnswersFromWithinItsEvent) {
  connect();
  right->heard = [](Link& link) {
    Message answer{MessageType::ScriptRet, 0, "pong", {}};
    EXPECT_TRUE(link.send(std::move(answer)));
  };
  int rounds = 0;
  left->heard = [&](Link& link) {
    if (++rounds < 1000) {
      EXPECT_TRUE(link.send(request(rounds, "ping")));
    }
  };
  ASSERT_TRUE(left->link->send(request(0, "ping")));
  ASSERT_TRUE(run_until([&] { return rounds == 1000; }));
}

}  // namespace
}  // namespace muster::rpc
