#include "muster/rpc/link.h"

#include "muster/rpc/crowd.h"
#include "muster/rpc/ring_stream.h"
#include "muster/rpc/throttle.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <netinet/in.h>
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
  End(net::EpollLoop& loop, Fd socket, LinkOptions options)
      : End(loop, std::make_unique<SocketStream>(std::move(socket)), std::move(options)) {}
  End(net::EpollLoop& loop, std::unique_ptr<Stream> stream, LinkOptions options) {
    options.peer = "worker1";
    if (!options.watch) options.watch = watch_by(loop);
    link = Link::open(loop, std::move(stream), std::move(options), *this);
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

TEST_F(LinkTest, MessagesThatComeTogetherAreOfACrowd) {
  LinkOptions options;
  options.crowd = std::make_shared<Crowd>();
  connect(options);
  const auto is_noticed = [&] {
    // Once, at any time in the test.
    return options.crowd->is_there(SystemClock().now() - 1h);
  };
  const auto send = [&](std::int64_t count) {
    right->messages.clear();
    for (std::int64_t id = 0; id < count; ++id) ASSERT_TRUE(left->link->send(request(id, "")));
    ASSERT_TRUE(run_until([&] { return std::ssize(right->messages) == count; }));
  };
  send(1);
  send(1);
  EXPECT_FALSE(is_noticed());
  send(2);
  EXPECT_TRUE(is_noticed());
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

TEST_F(LinkTest, IsFullForAPeerThatDoesNotReadUntilHalfOfItsQueueIsWritten) {
  LinkOptions options;
  options.queue_bytes_max = 1 << 20;
  options.throttle = std::make_shared<Throttle>();
  left.emplace(loop, std::move(near_), options);
  std::int64_t count = 0;
  while (!left->link->is_full() && count < 1000) {
    EXPECT_LE(left->link->queued_bytes(), options.queue_bytes_max);
    ASSERT_TRUE(left->link->send(request(count++, "", 100'000)));
  }
  ASSERT_TRUE(left->link->is_full());
  EXPECT_GT(left->link->queued_bytes(), options.queue_bytes_max);
  EXPECT_TRUE(left->link->send(request(count++, ""))) << "it is up to its owner to stop";
  auto waiter = std::async(std::launch::async, [&] {
    return options.throttle->wait(SystemClock().now() + 60s,
                                  [&] { return !left->link->is_full(); });
  });
  right.emplace(loop, std::move(far_), LinkOptions());
  const auto taken = static_cast<std::size_t>(count);
  ASSERT_TRUE(run_until([&] { return right->messages.size() == taken; }));
  EXPECT_TRUE(waiter.get());
  EXPECT_FALSE(left->link->is_full());
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

// Looks at the link all the time while it holds.
std::function<std::optional<Link::Pause>()> looking_while(std::function<bool()> holds) {
  return
      [holds = std::move(holds)] { return holds() ? std::optional(Link::Pause()) : std::nullopt; };
}

// The other side in a thread and on a loop of its own, which answers whatever comes.
class Echo {
 public:
  Echo(Fd socket, LinkOptions options)
      : Echo(std::make_unique<SocketStream>(std::move(socket)), std::move(options)) {}
  Echo(std::unique_ptr<Stream> stream, LinkOptions options) {
    std::atomic<bool> started = false;
    thread_ = std::thread([&, taken = std::move(stream)]() mutable {
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
      ASSERT_TRUE(left->link->read_while(looking_while(
          [&] { return left->messages.size() == before && SystemClock().now() < deadline; })));
      ASSERT_EQ(left->messages.size(), before + 1);
      ASSERT_EQ(left->messages.back().id, id);
    }
  });
  caller.join();  // the loop of this side has not run at all
  // What comes when nobody waits is read by the loop, as before.
  ASSERT_TRUE(left->link->send(request(1000, "ping")));
  EXPECT_TRUE(run_until([&] { return left->messages.size() == 501; }));
}

// A thread that sleeps on the link until something holds, or for so long that it never will. The
// answer is whether it holds. Once there is one, it is the thread that reads: nobody else gets in
// before it, nor closes a link that it has not come to yet.
class Sleeper {
 public:
  Sleeper(Link& link, std::function<bool()> holds) {
    outcome_ = std::async(std::launch::async, [this, &link, holds = std::move(holds)] {
      const Alarm::Taken alarm = Alarm::take();
      const auto begin = [&] {
        if (alarm_.exchange(alarm.get()) == nullptr) alarm_.notify_one();
      };
      const TimePoint deadline = SystemClock().now() + 60s;
      EXPECT_TRUE(link.read_while([&]() -> std::optional<Link::Pause> {
        begin();
        if (holds() || SystemClock().now() >= deadline) return std::nullopt;
        ++sleep_count;
        return Link::Pause{alarm.get(), deadline};
      }));
      begin();  // also if it was refused: that is a failure, not a reason to hang
      return holds();
    });
    alarm_.wait(nullptr);
  }
  const Alarm& alarm() const { return *alarm_; }
  bool get() { return outcome_.get(); }

  std::atomic<int> sleep_count = 0;

 private:
  std::atomic<const Alarm*> alarm_ = nullptr;
  std::future<bool> outcome_;
};

// What is asked of a watch, and what it tells.
struct Watched {
  std::atomic<std::uint32_t> wanted = 0;
  std::atomic<int> told_count = 0;
};

class ToldWatch final : public StreamWatch {
 public:
  ToldWatch(std::unique_ptr<StreamWatch> watch, Watched& watched)
      : watch_(std::move(watch)), watched_(watched) {}
  // By a loop.
  static WatchStream by(net::EpollLoop& loop, Watched& watched) {
    return [&watched, watch = watch_by(loop)](Stream& stream, std::function<void()> ready) {
      const auto told = [&watched, ready = std::move(ready)] {
        ++watched.told_count;
        ready();
      };
      return std::make_unique<ToldWatch>(watch(stream, told), watched);
    };
  }
  void want(std::uint32_t events) override {
    watched_.wanted = events;
    watch_->want(events);
  }

 private:
  const std::unique_ptr<StreamWatch> watch_;
  Watched& watched_;
};

TEST_F(LinkTest, WakesTheLoopForRoomOnlyIfNobodyElseLooks) {
  Watched watched;
  LinkOptions options;
  options.watch = ToldWatch::by(loop, watched);
  left.emplace(loop, std::move(near_), options);
  const auto wants_room = [&] { return (watched.wanted & EPOLLOUT) != 0; };
  int looks = 0;
  // The other side does not read.
  ASSERT_TRUE(left->link->read_while(looking_while([&] {
    if (looks == 0) {
      EXPECT_TRUE(left->link->send(request(1, "large", std::size_t{8} << 20U)));
      EXPECT_GT(left->link->queued_bytes(), 0U);
    }
    EXPECT_FALSE(wants_room());
    return ++looks < 10;
  })));
  EXPECT_TRUE(wants_room());
  Sleeper sleeper(*left->link, [&] { return left->link->is_lost(); });
  EXPECT_TRUE(run_until([&] { return sleeper.sleep_count > 0 && wants_room(); }));
  right.emplace(loop, std::move(far_), LinkOptions());
  EXPECT_TRUE(run_until([&] { return right->messages.size() == 1; }));
  right.reset();
  EXPECT_TRUE(sleeper.get());
}

TEST(SocketStreamTest, BoundsWhatTheKernelHoldsOfAConnectionWithinTheHost) {
  const auto room_of = [](const Fd& socket) {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
    return bytes;
  };
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), any, sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), any, &size), 0);
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(socket.get(), any, size), 0);
  const Fd copy(::dup(socket.get()));
  const SocketStream stream(std::move(socket));
  EXPECT_LE(room_of(copy), 1 << 20);
  EXPECT_GE(room_of(copy), 1 << 18) << "or large messages take many turns";
}

TEST_F(LinkTest, LetsOneThreadReadAtATime) {
  Echo echo(std::move(far_), {});
  left.emplace(loop, std::move(near_), LinkOptions());
  int looks = 0;
  const auto always = looking_while([] { return true; });
  EXPECT_TRUE(left->link->read_while(looking_while([&] {
    const auto other = [&] { return left->link->read_while(always); };
    EXPECT_FALSE(std::async(std::launch::async, other).get());
    return ++looks < 2;
  })));
  left->link->close();
  EXPECT_FALSE(left->link->read_while(always));
}

class SleepOnLinkTest : public LinkTest, public ::testing::WithParamInterface<const char*> {
 protected:
  SleepOnLinkTest() {
    if (std::string_view(GetParam()) == "Socket") {
      near_stream = std::make_unique<SocketStream>(std::move(near_));
      far_stream = std::make_unique<SocketStream>(std::move(far_));
      return;
    }
    const auto memory = make_ring_memory(kRingBytesMin);
    near_stream = *RingStream::create(std::move(near_), *memory, {true, kRingBytesMin});
    far_stream = *RingStream::create(std::move(far_), *memory, {false, kRingBytesMin});
  }
  std::unique_ptr<Stream> near_stream;
  std::unique_ptr<Stream> far_stream;
};

TEST_P(SleepOnLinkTest, LetsTheThreadThatSleepsReadByItself) {
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  for (std::int64_t id = 0; id < 200; ++id) {
    // More than fits: somebody must write the rest while the thread sleeps.
    const std::size_t bytes = id % 50 == 0 ? std::size_t{4} << 20U : 0;
    std::atomic<bool> done = false;
    left->heard = [&](Link&) { done = true; };
    ASSERT_TRUE(left->link->send(request(id, "ping", bytes)));
    Sleeper sleeper(*left->link, [&] { return done.load(); });
    ASSERT_TRUE(bytes == 0 || run_until([&] { return done.load(); }));
    ASSERT_TRUE(sleeper.get());
    ASSERT_EQ(left->messages.back().id, id);
  }
  // What comes when nobody waits is read by the loop, as before.
  left->heard = {};
  ASSERT_TRUE(left->link->send(request(1000, "ping")));
  EXPECT_TRUE(run_until([&] { return left->messages.size() == 201; }));
}

TEST_P(SleepOnLinkTest, WakesWhoSleepsByItsAlarm) {
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  std::atomic<bool> enough = false;
  Sleeper sleeper(*left->link, [&] { return enough.load(); });
  enough = true;
  sleeper.alarm().ring();
  EXPECT_TRUE(sleeper.get());
}

TEST_P(SleepOnLinkTest, WakesWhoSleepsWhenTheOtherSideEnds) {
  std::optional<Echo> echo;
  echo.emplace(std::move(far_stream), LinkOptions());
  left.emplace(loop, std::move(near_stream), LinkOptions());
  Sleeper sleeper(*left->link, [&] { return left->link->is_lost(); });
  echo.reset();
  EXPECT_TRUE(sleeper.get());
  EXPECT_TRUE(run_until([&] { return left->lost.has_value(); }));
}

TEST_P(SleepOnLinkTest, WakesWhoSleepsWhenItIsClosed) {
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  Sleeper sleeper(*left->link, [&] { return left->link->is_lost(); });
  left->link->close();
  EXPECT_TRUE(sleeper.get());
}

TEST_P(SleepOnLinkTest, LeavesTheLoopAsleepMeanwhile) {
  constexpr int kRounds = 100;
  Echo echo(std::move(far_stream), {});
  Watched watched;
  LinkOptions options;
  options.watch = ToldWatch::by(loop, watched);
  left.emplace(loop, std::move(near_stream), options);
  const auto wants_bytes = [&] { return (watched.wanted & EPOLLIN) != 0; };
  EXPECT_TRUE(wants_bytes());
  std::atomic<int> rounds = 0;
  left->heard = [&](Link& link) {
    EXPECT_FALSE(wants_bytes());
    if (++rounds == kRounds) return;
    EXPECT_TRUE(link.send(request(rounds, "ping")));
  };
  Sleeper sleeper(*left->link, [&] { return rounds == kRounds; });
  ASSERT_TRUE(left->link->send(request(0, "ping")));
  // The loop runs, and would read if it was told that there is something.
  ASSERT_TRUE(run_until([&] { return rounds == kRounds; }));
  ASSERT_TRUE(sleeper.get());
  EXPECT_EQ(watched.told_count, 0);
  EXPECT_EQ(left->messages.size(), std::size_t{kRounds});
  EXPECT_TRUE(wants_bytes());
}

TEST_P(SleepOnLinkTest, LosesNoAnswerOfThreadsThatSleepInTurns) {
  constexpr int kThreads = 4;
  constexpr std::int64_t kRounds = 1500;
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  std::array<std::atomic<std::int64_t>, kThreads> answered{};
  std::array<std::atomic<const Alarm*>, kThreads> alarms{};
  left->heard = [&](Link&) {
    const std::int64_t id = left->messages.back().id;
    left->messages.clear();
    const auto thread = static_cast<std::size_t>(id % kThreads);
    answered.at(thread) = id / kThreads;
    answered.at(thread).notify_one();
    alarms.at(thread).load()->ring();
  };
  const TimePoint deadline = SystemClock().now() + 60s;
  std::atomic<int> running_count = kThreads;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const Alarm::Taken alarm = Alarm::take();
      alarms.at(thread) = alarm.get();
      const auto is_late = [&] { return SystemClock().now() >= deadline; };
      for (std::int64_t round = 1; round <= kRounds && !is_late(); ++round) {
        const auto id = round * kThreads + static_cast<std::int64_t>(thread);
        ASSERT_TRUE(left->link->send(request(id, "ping")));
        const bool reads = left->link->read_while([&]() -> std::optional<Link::Pause> {
          if (answered.at(thread) == round || is_late()) return std::nullopt;
          return Link::Pause{alarm.get(), deadline};
        });
        // Another thread reads, or the loop, and tells.
        if (!reads) answered.at(thread).wait(round - 1);
      }
      --running_count;
    });
  }
  EXPECT_TRUE(run_until([&] { return running_count == 0; }));
  for (std::thread& thread : threads) thread.join();
  for (const auto& last : answered) EXPECT_EQ(last, kRounds);
}

TEST_P(SleepOnLinkTest, ThreadsThatTakeTurnsReadAndWriteForAll) {
  constexpr int kThreads = 4;
  constexpr std::int64_t kRounds = 1500;
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  std::array<std::atomic<std::int64_t>, kThreads> answered{};
  left->heard = [&](Link&) {
    const std::int64_t id = left->messages.back().id;
    left->messages.clear();
    answered.at(static_cast<std::size_t>(id % kThreads)) = id / kThreads;
  };
  const TimePoint deadline = SystemClock().now() + 60s;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto is_late = [&] { return SystemClock().now() >= deadline; };
      for (std::int64_t round = 1; round <= kRounds && !is_late(); ++round) {
        const auto id = round * kThreads + static_cast<std::int64_t>(thread);
        const std::size_t bytes = round % 500 == 0 ? std::size_t{1} << 20U : 0;
        ASSERT_TRUE(left->link->send(request(id, "ping", bytes)));
        left->link->take_turns([&] {
          std::this_thread::yield();
          return answered.at(thread) != round && !is_late();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();  // the loop of this side has not run at all
  for (const auto& last : answered) EXPECT_EQ(last, kRounds);
  EXPECT_FALSE(left->link->has_turns());
  // What comes when nobody waits is read by the loop, as before.
  ASSERT_TRUE(left->link->send(request(0, "ping")));
  EXPECT_TRUE(run_until([&] { return answered[0] == 0; }));
}

// Threads come and go, so that the loop reads in between, and whoever leaves must not leave an
// answer to nobody.
TEST_P(SleepOnLinkTest, LosesNoAnswerOfThreadsThatTakeTurnsNowAndThen) {
  constexpr int kThreads = 3;
  constexpr std::int64_t kRounds = 1500;
  Echo echo(std::move(far_stream), {});
  left.emplace(loop, std::move(near_stream), LinkOptions());
  std::array<std::atomic<std::int64_t>, kThreads> answered{};
  left->heard = [&](Link&) {
    const std::int64_t id = left->messages.back().id;
    left->messages.clear();
    const auto thread = static_cast<std::size_t>(id % kThreads);
    answered.at(thread) = id / kThreads;
    answered.at(thread).notify_one();
  };
  std::atomic<int> running_count = kThreads;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::int64_t round = 1; round <= kRounds; ++round) {
        ASSERT_TRUE(left->link->send(
            request(round * kThreads + static_cast<std::int64_t>(thread), "ping")));
        std::int64_t turns = round % 3;
        left->link->take_turns([&] { return answered.at(thread) != round && turns-- > 0; });
        answered.at(thread).wait(round - 1);
      }
      --running_count;
    });
  }
  EXPECT_TRUE(run_until([&] { return running_count == 0; }));
  if (running_count > 0) {
    for (auto& one : answered) {
      one = kRounds;  // they do not wait for ever
      one.notify_one();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(SleepOnLinkTest, WritesTogetherWhatIsSentWhileThreadsTakeTurns) {
  left.emplace(loop, std::move(near_stream), LinkOptions());
  right.emplace(loop, std::move(far_stream), LinkOptions());
  int turns = 0;
  left->link->take_turns([&] {
    const auto send = [&](std::size_t bytes = 0) {
      EXPECT_TRUE(left->link->send(request(turns, "", bytes)));
    };
    switch (++turns) {
      case 1:
        send();
        send();
        EXPECT_GT(left->link->queued_bytes(), 0U);
        return true;
      case 2:
        EXPECT_EQ(left->link->queued_bytes(), 0U) << "the turn after it";
        send();
        EXPECT_GT(left->link->queued_bytes(), 0U);
        send(100);
        EXPECT_EQ(left->link->queued_bytes(), 0U) << "buffers go at once, after what was before";
        return true;
      case 3:
        for (int count = 0; count < 40; ++count) send();
        EXPECT_LT(left->link->queued_bytes(), left->link->sent_bytes()) << "there is a limit";
        return true;
      default:
        send();
        return false;
    }
  });
  EXPECT_EQ(left->link->queued_bytes(), 0U) << "the last one sees to it";
  ASSERT_TRUE(run_until([&] { return right->messages.size() == 45; }));
  EXPECT_TRUE(std::ranges::is_sorted(right->messages, {}, &Message::id));
}

TEST_P(SleepOnLinkTest, LeavesTheLoopAsleepWhileThreadsTakeTurns) {
  Watched watched;
  LinkOptions options;
  options.watch = ToldWatch::by(loop, watched);
  left.emplace(loop, std::move(near_stream), options);
  right.emplace(loop, std::move(far_stream), LinkOptions());
  const bool is_socket = std::string_view(GetParam()) == "Socket";
  const auto wants_bytes = [&] { return (watched.wanted & EPOLLIN) != 0; };
  ASSERT_TRUE(run_until([] { return true; }));
  int turns = 0;
  left->link->take_turns([&] {
    if (turns == 1) {
      EXPECT_TRUE(right->link->send(request(1, "")));
    }
    // The other kind tells only who has asked for it.
    EXPECT_TRUE(!is_socket || !wants_bytes());
    return ++turns < 10;
  });
  EXPECT_EQ(left->messages.size(), 1U);
  EXPECT_TRUE(wants_bytes());
  ASSERT_TRUE(run_until([] { return true; }));
  EXPECT_EQ(watched.told_count, 0);
  ASSERT_TRUE(right->link->send(request(2, "")));
  EXPECT_TRUE(run_until([&] { return left->messages.size() == 2; }));
}

TEST_P(SleepOnLinkTest, WhoTakesTurnsStopsWhenTheOtherSideEnds) {
  left.emplace(loop, std::move(near_stream), LinkOptions());
  right.emplace(loop, std::move(far_stream), LinkOptions());
  std::atomic<int> turns = 0;
  std::thread taker([&, deadline = SystemClock().now() + 60s] {
    left->link->take_turns([&] {
      ++turns;
      return SystemClock().now() < deadline;
    });
    EXPECT_TRUE(left->link->is_lost());
  });
  EXPECT_TRUE(run_until([&] { return turns > 10; }));
  right.reset();
  EXPECT_TRUE(run_until([&] { return left->lost.has_value(); }));
  taker.join();
}

TEST_P(SleepOnLinkTest, ReadsNothingWhileItIsHeld) {
  left.emplace(loop, std::move(near_stream), LinkOptions());
  right.emplace(loop, std::move(far_stream), LinkOptions());
  // Those that came together with the one after which it is held wait, too.
  right->heard = [](Link& link) {
    if (!link.is_held()) link.hold();
  };
  for (std::int64_t id = 0; id < 10; ++id) ASSERT_TRUE(left->link->send(request(id, "x")));
  ASSERT_TRUE(run_until([&] { return !right->messages.empty(); }));
  // The other way it goes on.
  ASSERT_TRUE(right->link->send(request(1, "back")));
  ASSERT_TRUE(run_until([&] { return left->messages.size() == 1; }));
  EXPECT_EQ(right->messages.size(), 1U);
  right->heard = {};
  right->link->release();
  ASSERT_TRUE(run_until([&] { return right->messages.size() == 10; }));
  for (std::int64_t id = 0; id < 10; ++id) {
    EXPECT_EQ(right->messages[static_cast<std::size_t>(id)].id, id);
  }
}

TEST_P(SleepOnLinkTest, StopsReadingWhileItsPeerDoesNotRead) {
  LinkOptions options;
  options.queue_bytes_max = 1 << 20;
  options.reads_while_full = false;
  left.emplace(loop, std::move(near_stream), LinkOptions());
  right.emplace(loop, std::move(far_stream), options);
  left->link->hold();
  right->heard = [](Link& link) { EXPECT_TRUE(link.send(request(0, "", 1 << 20))); };
  constexpr std::int64_t kCount = 100;
  for (std::int64_t id = 0; id < kCount; ++id) ASSERT_TRUE(left->link->send(request(id, "x")));
  ASSERT_TRUE(run_until([&] { return right->link->is_full(); }));
  EXPECT_TRUE(right->link->is_held());
  EXPECT_LT(right->messages.size(), std::size_t{kCount} / 2);
  left->link->release();
  ASSERT_TRUE(run_until([&] { return left->messages.size() == kCount; }));
  EXPECT_FALSE(right->link->is_held());
}

TEST_P(SleepOnLinkTest, NoticesAfterwardsAtTheLatestThatItsPeerWentWhileItWasHeld) {
  left.emplace(loop, std::move(near_stream), LinkOptions());
  right.emplace(loop, std::move(far_stream), LinkOptions());
  right->link->hold();
  left.reset();
  ASSERT_TRUE(run_until([&] { return true; }));
  right->link->release();
  ASSERT_TRUE(run_until([&] { return right->lost.has_value(); }));
  EXPECT_EQ(*right->lost, "it closed the connection");
}

INSTANTIATE_TEST_SUITE_P(Streams, SleepOnLinkTest, ::testing::Values("Socket", "Ring"),
                         [](const auto& test) { return std::string(test.param); });

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
