// Failures with long texts: they reach the caller with their type, cut where that is said.
#include "muster/rpc/functions.h"
#include "muster/rpc/texts.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

using Throw = void(std::string);
using FailAs = void(std::string, std::string);

class LongFailure : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    workers_ = start_static_group(
        store_, 2, [](AgentOptions& options) { options.uses_shared_memory = GetParam(); },
        [](Worker& worker) {
          ASSERT_TRUE(worker.functions.add(
              "throw", [](const std::string& text) { throw std::out_of_range(text); }));
          ASSERT_TRUE(worker.functions.add("fail_as", [](std::string type, std::string text) {
            return Future<>::ready(
                call_failed({CallErrorKind::Remote, std::move(text), std::move(type), true}));
          }));
        });
  }
  CallError error_of(const CallResult<>& outcome) {
    EXPECT_FALSE(outcome);
    return outcome ? CallError() : outcome.error();
  }

  StoreHost store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_P(LongFailure, ArrivesWithItsTypeAndAllOfItsTextUpToTheLimit) {
  for (const std::size_t size : {std::size_t{0}, kOutOfBandBytesMin - 1, kOutOfBandBytesMin,
                                 kOutOfBandBytesMin + 1, kFailureTextBytesMax}) {
    const std::string text(size, 'x');
    const CallError error = error_of(workers_[0]->call<Throw>("worker1", "throw", text));
    EXPECT_EQ(error, (CallError{CallErrorKind::Remote, text, "std::out_of_range", true})) << size;
  }
}

TEST_P(LongFailure, IsCutPastTheLimit) {
  const std::string most(kFailureTextBytesMax, 'x');
  for (const std::string& text : {most + "y", std::string(1'000'000, 'x')}) {
    const CallError error = error_of(workers_[0]->call<Throw>("worker1", "throw", text));
    EXPECT_EQ(error.message, most + "…") << text.size();
    EXPECT_EQ(error.type, "std::out_of_range");
  }
}

TEST_P(LongFailure, HasATypeThatIsCutAsWell) {
  const std::string most(kFailureTypeBytesMax, 't');
  const std::string text(kFailureTextBytesMax, 'x');
  const CallError whole = error_of(workers_[0]->call<FailAs>("worker1", "fail_as", most, text));
  EXPECT_EQ(whole, (CallError{CallErrorKind::Remote, text, most, true}));
  const CallError cut =
      error_of(workers_[0]->call<FailAs>("worker1", "fail_as", most + "t", text + "x"));
  EXPECT_EQ(cut, (CallError{CallErrorKind::Remote, text + "…", most + "…", true}));
}

INSTANTIATE_TEST_SUITE_P(Way, LongFailure, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "SharedMemory" : "Tcp");
});

// Whoever fails a request by hand is cut as well, and nothing is cut twice.
TEST(EncodedFailure, IsCutOnce) {
  const std::string most(kFailureTextBytesMax, 'x');
  for (const std::string& text : {most + "…", most.substr(1) + "…", most + "yyyy"}) {
    const Message message{MessageType::Exception, 1, encode_failure("t", text), {}};
    const CallError error = decode_failure(message);
    EXPECT_EQ(error.message,
              (text == most + "yyyy" ? most : text.substr(0, text.size() - 3)) + "…");
    EXPECT_EQ(error.type, "t");
  }
}

TEST(EncodedFailure, IsAllInTheControlPart) {
  const std::string text(kFailureTextBytesMax, 'x');
  EXPECT_EQ(encode_failure("type", text).size(), 4 + 4 + 4 + text.size());
  EXPECT_EQ(encode_failure("a", "b"), std::string("\1\0\0\0a\1\0\0\0b", 10));
}

}  // namespace
}  // namespace muster::rpc
