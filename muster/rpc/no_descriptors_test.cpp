// A process that may not open anything more: RPC does not start, and says so.
#include "tests/net/no_new_descriptors.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using muster::testing::NoNewDescriptors;
using testing::options_for;
using testing::StoreHost;
using testing::Worker;

constexpr Duration kPatience = 60s;

TEST(AgentWithoutDescriptors, DoesNotStart) {
  StoreHost store;
  // Its loop needs two, and to listen is what it does next.
  for (const std::size_t left_count : {0U, 1U, 2U}) {
    Worker worker;
    const NoNewDescriptors none(left_count);
    const auto started = worker.start(options_for("worker0", 0, 1), store, kPatience);
    ASSERT_FALSE(started) << left_count;
    EXPECT_EQ(started.error().kind, ErrorKind::Unavailable) << left_count;
    EXPECT_NE(started.error().message.find("too many open files"), std::string::npos)
        << started.error().message;
    if (left_count < 2) {
      EXPECT_EQ(started.error().message, "cannot start the I/O loop of RPC: too many open files");
    }
  }
  Worker worker;
  EXPECT_TRUE(worker.start(options_for("worker0", 0, 1), store, kPatience));
}

}  // namespace
}  // namespace muster::rpc
