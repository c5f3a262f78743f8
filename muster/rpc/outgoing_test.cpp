#include "muster/rpc/outgoing.h"

#include "muster/rpc/crowd.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

// Hands out one end of a pair; the test has the other. From the second on nobody answers.
struct Streams {
  std::promise<Fd> first;
  std::atomic<int> opened = 0;

  Task<Result<std::unique_ptr<Stream>>> open() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    std::unique_ptr<Stream> stream = std::make_unique<SocketStream>(Fd(ends[0]));
    if (++opened == 1) {
      first.set_value(Fd(ends[1]));
    } else {
      silent.emplace_back(ends[1]);
    }
    co_return stream;
  }

 private:
  std::vector<Fd> silent;
};

// A thread that is asked whether it is done says so, but takes its time.
class HeldReader final : public internal::Waiter {
 public:
  HeldReader(std::latch& asked, std::latch& go_on) : asked_(asked), go_on_(go_on) {}
  bool is_done() const override {
    if (!std::exchange(told, true)) {
      asked_.count_down();
      go_on_.wait();
    }
    return true;
  }
  TimePoint deadline() const override { return kNever; }
  const Alarm* set_alarm() override { return nullptr; }

  mutable bool told = false;

 private:
  std::latch& asked_;
  std::latch& go_on_;
};

// Done when it has been asked so often; tells how often it was.
class AskedWaiter final : public internal::Waiter {
 public:
  explicit AskedWaiter(int asked_max = 1, TimePoint deadline = kNever)
      : asked_max_(asked_max), deadline_(deadline) {}
  bool is_done() const override { return ++asked >= asked_max_; }
  TimePoint deadline() const override { return deadline_; }
  const Alarm* set_alarm() override { return nullptr; }

  mutable int asked = 0;

 private:
  const int asked_max_;
  const TimePoint deadline_;
};

class StillClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint() + 1h; }
};

class OutgoingTest : public ::testing::Test {
 protected:
  OutgoingTest() {
    around.loop = &loop;
    around.calls = &calls;
    around.link.watch = watch_by(loop);
    around.link.crowd = crowd;
    around.next_connection = [this] { return number++; };
    around.open_stream = [this](Member) { return streams.open(); };
    around.suspect = [](const Member&) {};
    outgoing = std::make_shared<Outgoing>(around, info, 1, member);
    thread = std::thread([this] { loop.run(); });
  }
  ~OutgoingTest() override {
    loop.stop();
    thread.join();
  }
  Future<Message> submit() {
    Promise<Message> promise;
    auto future = promise.future();
    const auto as_it_is = [](CallResult<Message> outcome) { return outcome; };
    outgoing->submit({MessageType::ScriptCall, kNoMessageId, "", {}}, Duration::zero(), kNever,
                     std::make_unique<PromiseSink<Message, decltype(as_it_is)>>(std::move(promise),
                                                                                pool, as_it_is));
    return future;
  }
  void on_loop(const std::function<void()>& work) {
    std::promise<void> done;
    loop.post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  void close() {
    on_loop([&] { outgoing->close({CallErrorKind::Rejected, "the end", "", true}); });
  }

  net::EpollLoop loop;
  Calls calls{[] {}};
  Pool pool{"test", 1};
  Streams streams;
  const std::shared_ptr<Crowd> crowd = std::make_shared<Crowd>(std::make_shared<StillClock>());
  std::atomic<PeerId> number = 1;
  Surroundings around;
  const WorkerInfo info = WorkerInfo::create_member("worker1", 1).value();
  const Member member{info, 2, "127.0.0.1:1", ""};
  std::shared_ptr<Outgoing> outgoing;
  std::thread thread;
};

// While a connection goes down, a thread that reads from it may hold that up. Calls made meanwhile
// must not lead to two attempts to connect, which would share what belongs to one.
TEST_F(OutgoingTest, ConnectsOnceThoughCallsAreMadeWhileItsConnectionGoes) {
  auto first = submit();
  testing::RawConnection peer(streams.first.get_future().get());
  ASSERT_TRUE(peer.read());
  peer.send({kWelcome, 0, "", {}});
  ASSERT_TRUE(peer.read());
  // A thread that reads, and does not stop yet.
  outgoing->sleeps();
  outgoing->slept(10us);
  std::latch reads(1);
  std::latch goes_on(1);
  HeldReader waiter(reads, goes_on);
  std::thread reader([&] {
    outgoing->help(waiter);
    if (!waiter.told) reads.count_down();
  });
  reads.wait();
  Member restarted = member;
  restarted.incarnation = 3;
  on_loop([&] { outgoing->update(restarted); });
  std::vector<Future<Message>> meanwhile;
  for (int tries = 0; tries < 10'000; ++tries) {
    meanwhile.push_back(submit());
    if (!meanwhile.back().done()) break;  // it waits for the next connection
    std::this_thread::yield();
  }
  goes_on.count_down();
  reader.join();
  EXPECT_FALSE(first.wait());
  auto last = submit();
  on_loop([] {});
  on_loop([] {});
  EXPECT_EQ(streams.opened, 2) << "the first, and one more";
  close();
  EXPECT_FALSE(last.wait());
  for (const auto& one : meanwhile) EXPECT_FALSE(one.wait());
}

TEST_F(OutgoingTest, ThreadsTakeTurnsWhereManyCall) {
  const auto call = submit();
  testing::RawConnection peer(streams.first.get_future().get());
  ASSERT_TRUE(peer.read());
  peer.send({kWelcome, 0, "", {}});
  ASSERT_TRUE(peer.read());
  on_loop([] {});  // it reads no more
  constexpr int kAnswered = 5;
  // Whoever reads alone, and may not look, sleeps when it is not done.
  const auto asked_of = [&](AskedWaiter waiter) {
    outgoing->help(waiter);
    return waiter.asked;
  };
  const auto takes_turns = [&] {
    const int asked = asked_of(AskedWaiter(kAnswered));
    EXPECT_TRUE(asked == 1 || asked == kAnswered) << asked;
    return asked == kAnswered;
  };
  const auto another = [](const std::function<void()>& work) { std::thread(work).join(); };
  const auto sleeps_shortly = [&] {
    outgoing->sleeps();
    outgoing->slept(10us);
  };
  EXPECT_FALSE(takes_turns());
  another([&] { outgoing->sleeps(); });
  EXPECT_FALSE(takes_turns()) << "what one thread waits for may take for ever";
  sleeps_shortly();
  EXPECT_FALSE(takes_turns()) << "that was this thread itself";
  // This one may be late for what it is to see, but not always.
  const auto often = [&](const std::function<bool()>& holds) {
    for (int tries = 0; tries < 1000; ++tries) {
      another(sleeps_shortly);
      if (holds()) return true;
    }
    return false;
  };
  EXPECT_TRUE(often(takes_turns));
  EXPECT_TRUE(often([&] { return asked_of(AskedWaiter(1'000'000'000)) > kAnswered; }))
      << "and sleeps in the end";
  another(sleeps_shortly);
  EXPECT_LE(asked_of(AskedWaiter(kAnswered, SystemClock().now())), 1) << "it has no time";
  another([&] { outgoing->slept(std::nullopt); });
  EXPECT_FALSE(takes_turns()) << "nobody else is left";
  close();
  EXPECT_FALSE(call.wait());
}

TEST_F(OutgoingTest, ThreadsOfACrowdSleepWhereOthersNeedTheProcessor) {
  const auto call = submit();
  testing::RawConnection peer(streams.first.get_future().get());
  ASSERT_TRUE(peer.read());
  peer.send({kWelcome, 0, "", {}});
  ASSERT_TRUE(peer.read());
  on_loop([] {});
  // Two slices in a row.
  const TimePoint now = SystemClock().now();
  crowd->came_back(now, 5ms);
  crowd->came_back(now + 5ms, 5ms);
  outgoing->sleeps();
  bool sleeps = false;
  for (int tries = 0; tries < 1000 && !sleeps; ++tries) {
    std::thread([&] {
      outgoing->sleeps();
      outgoing->slept(10us);
    }).join();
    AskedWaiter waiter(1);
    outgoing->help(waiter);
    sleeps = waiter.asked == 0;
  }
  EXPECT_TRUE(sleeps);
  close();
  EXPECT_FALSE(call.wait());
}

}  // namespace
}  // namespace muster::rpc
