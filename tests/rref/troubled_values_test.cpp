// References to values that could not be made, or cannot be written: everybody hears why, and
// nothing is left behind.
#include "muster/rpc/texts.h"
#include "muster/rref/rref.h"
#include "tests/rref/cluster.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace muster::rref {
namespace {

using rpc::Procedure;
using rpc::RRef;
using testing::Worker;
using testing::Workers;

const Procedure<std::int64_t(std::string)> kThrow("throw");

class TroubledValues : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    workers_ = testing::start_group(
        store_, 2, [](Worker& worker) { add_functions(worker); },
        [](rpc::AgentOptions& options) { options.uses_shared_memory = GetParam(); });
  }

  static void add_functions(Worker& worker) {
    ASSERT_TRUE(worker.functions.add(kThrow.name(), [](const std::string& text) -> std::int64_t {
      throw std::out_of_range(text);
    }));
  }

  rpc::Agent& agent(std::size_t rank) { return *workers_[rank]->agent; }

  rpc::testing::StoreHost store_;
  Workers workers_;
};

TEST_P(TroubledValues, SayWhyTheyAreNotThereHoweverLongThatIs) {
  for (const std::size_t size : {rpc::kOutOfBandBytesMin - 1, rpc::kOutOfBandBytesMin,
                                 rpc::kFailureTextBytesMax, rpc::kFailureTextBytesMax + 1}) {
    const std::string text(size, 'x');
    const std::string cut = rpc::cut_text(text, rpc::kFailureTextBytesMax);
    for (const char* const owner : {"worker1", "worker0"}) {
      const auto reference = rpc::remote(agent(0), owner, kThrow, text);
      ASSERT_TRUE(reference);
      const auto fetched = reference->to_here();
      ASSERT_FALSE(fetched);
      EXPECT_EQ(fetched.error().message, cut) << owner << size;
      EXPECT_EQ(fetched.error().type, "std::out_of_range") << owner << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Way, TroubledValues, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "SharedMemory" : "Tcp");
});

}  // namespace
}  // namespace muster::rref
