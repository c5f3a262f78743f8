// Answers that the caller's own codec cannot read: whoever reads them must go on.
#include "muster/rpc/call_error.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

constexpr Duration kPatience = 60s;

enum class Trouble : std::uint8_t { None, Throws, NoMemory, NoException };

// Can be written, and says itself how reading it goes.
struct Moody {
  Trouble trouble = Trouble::None;
  bool is_read = false;  // not sent
};
// When one is read that throws.
std::atomic<int> throw_count = 0;
std::promise<void>* thrown = nullptr;

void throw_for(Trouble trouble) {
  if (trouble == Trouble::None) return;
  if (++throw_count == 1 && thrown != nullptr) thrown->set_value();
  if (trouble == Trouble::Throws) throw std::out_of_range("no such colour");
  if (trouble == Trouble::NoMemory) throw std::bad_alloc();
  throw 5;
}

}  // namespace

template <>
struct Codec<Moody> {
  static void write(Writer& writer, const Moody& value) {
    writer.write(static_cast<std::uint8_t>(value.trouble));
  }
  static void read(Reader& reader, Moody& value) {
    value.trouble = static_cast<Trouble>(reader.read<std::uint8_t>());
    value.is_read = true;
    if (reader.ok()) throw_for(value.trouble);
  }
  static void sign(Signature& signature) { signature.append_text("moody"); }
};

namespace {

using GetMoody = Moody(std::int64_t);
using Add = std::int64_t(std::int64_t, std::int64_t);

class UnreadableAnswer : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    throw_count = 0;
    thrown = nullptr;
    workers_ = start_static_group(
        store_, 2, [](AgentOptions& options) { options.uses_shared_memory = GetParam(); },
        [](Worker& worker) {
          ASSERT_TRUE(worker.functions.add(
              "moody", [](std::int64_t number) { return Moody{static_cast<Trouble>(number)}; }));
          ASSERT_TRUE(
              worker.functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; }));
        });
  }
  Future<Moody> ask(Trouble trouble) {
    return workers_[0]->async<GetMoody>("worker1", 0.0, "moody",
                                        static_cast<std::int64_t>(trouble));
  }
  void expect_calls_go_on() {
    EXPECT_EQ(workers_[0]->call<Add>("worker1", "add", 2, 3).value(), 5);
    EXPECT_TRUE(ask(Trouble::None).wait().value().is_read);
  }

  StoreHost store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

void expect_unreadable(const CallResult<Moody>& outcome, const std::string& why) {
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
  EXPECT_EQ(outcome.error().message, "its answer cannot be read: " + why);
  EXPECT_TRUE(outcome.error().sent);
}

TEST_P(UnreadableAnswer, FailsItsCallWhenTheThreadThatWaitsCannotReadIt) {
  expect_unreadable(ask(Trouble::Throws).wait(), "std::out_of_range: no such colour");
  expect_calls_go_on();
  expect_unreadable(ask(Trouble::NoMemory).wait(), "std::bad_alloc: std::bad_alloc");
  expect_calls_go_on();
  expect_unreadable(ask(Trouble::NoException).wait(),
                    "int: an exception that is no std::exception");
  expect_calls_go_on();
}

TEST_P(UnreadableAnswer, FailsItsCallWhenTheIoThreadCannotReadIt) {
  std::promise<CallResult<Moody>> told;
  auto outcome = told.get_future();
  ask(Trouble::Throws).on_done([&](const CallResult<Moody>& seen) { told.set_value(seen); });
  ASSERT_EQ(outcome.wait_for(kPatience), std::future_status::ready);
  expect_unreadable(outcome.get(), "std::out_of_range: no such colour");
  expect_calls_go_on();
}

// All of them come over one connection, and one thread may read for all.
TEST_P(UnreadableAnswer, FailsItsCallAndNoneOfThoseBesideIt) {
  std::vector<Future<Moody>> good;
  std::vector<Future<Moody>> bad;
  for (int index = 0; index < 50; ++index) {
    good.push_back(ask(Trouble::None));
    bad.push_back(ask(Trouble::Throws));
  }
  for (const auto& one : good) EXPECT_TRUE(one.wait());
  for (const auto& one : bad) EXPECT_FALSE(one.wait());
}

TEST_P(UnreadableAnswer, HarmsNobodyWhenItComesLate) {
  std::promise<void> reading;
  thrown = &reading;
  const Promise<Moody> late;
  std::atomic<int> asked_count = 0;
  // Inline, so that they begin in the order in which they came.
  const auto answer_late = [&] {
    ++asked_count;
    return late.future();
  };
  ASSERT_TRUE(workers_[1]->functions.add("late", answer_late, {.run = Run::Inline}));
  ASSERT_TRUE(workers_[1]->functions.add("flush", [] {}, {.run = Run::Inline}));
  // On a busy machine the time of a call may be over before it is sent.
  for (double seconds = 0.001; asked_count == 0 && seconds < 60; seconds *= 2) {
    const auto outcome = workers_[0]->async<Moody()>("worker1", seconds, "late").wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
    ASSERT_TRUE(workers_[0]->call<void()>("worker1", "flush"));
  }
  ASSERT_GT(asked_count, 0);
  late.set(Moody{Trouble::Throws});
  ASSERT_EQ(reading.get_future().wait_for(kPatience), std::future_status::ready);
  expect_calls_go_on();
}

INSTANTIATE_TEST_SUITE_P(Way, UnreadableAnswer, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "SharedMemory" : "Tcp");
});

}  // namespace
}  // namespace muster::rpc
