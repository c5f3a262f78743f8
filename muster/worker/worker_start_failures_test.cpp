// Why a worker may not start; docs/rpc.md says so as well.
#include "muster/worker/worker.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::StoreHost;

InitOptions options_of(const std::string& store) {
  InitOptions options;
  options.rank = 0;
  options.world_size = 2;
  options.store = store;
  options.address = "127.0.0.1";
  return options;
}
std::string place_of(const StoreHost& store) { return "127.0.0.1:" + std::to_string(store.port()); }
void expect_failed(const InitOptions& options, ErrorKind kind, const std::string& text) {
  const auto started = init(options);
  ASSERT_FALSE(started);
  EXPECT_EQ(name_of(started.error().kind), name_of(kind)) << started.error().message;
  EXPECT_NE(started.error().message.find(text), std::string::npos) << started.error().message;
  EXPECT_FALSE(is_running());
}

TEST(WorkerThatDoesNotStart, FindsNoStoreWhereItWasSaidToBe) {
  // Taken, and nobody listens.
  const Fd holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(holder.get(), any, size), 0);
  ASSERT_EQ(::getsockname(holder.get(), any, &size), 0);
  const std::string place = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  InitOptions options = options_of(place);
  options.start_timeout = 100ms;
  expect_failed(options, ErrorKind::Unavailable, place);
}

TEST(WorkerThatDoesNotStart, IsGivenAStoreOrAnAddressWhoseNameStandsForNothing) {
  InitOptions options = options_of("nobody.invalid:1");
  options.address.clear();
  expect_failed(options, ErrorKind::Unavailable, "cannot resolve nobody.invalid");
  const StoreHost store;
  options = options_of(place_of(store));
  options.address = "nobody.invalid";
  expect_failed(options, ErrorKind::Unavailable, "cannot resolve nobody.invalid");
}

TEST(WorkerThatDoesNotStart, FindsInTheStoreWhatNoWorkerWrites) {
  const StoreHost host;
  net::EpollLoop loop;
  const OpenStore open = host.opener("mine");
  auto store = loop.block_on(open(loop));
  ASSERT_TRUE(store);
  ASSERT_TRUE(loop.block_on((*store)->set("rank/0/1", "garbage")));
  InitOptions options = options_of(place_of(host));
  options.group = "mine";
  expect_failed(options, ErrorKind::Corrupt, "");
}

TEST(WorkerThatDoesNotStart, NamesTheRanksThatAreMissing) {
  const StoreHost store;
  InitOptions options = options_of(place_of(store));
  options.start_timeout = 100ms;
  expect_failed(options, ErrorKind::Timeout, "rank 1 of 2 has not come");
}

// Two groups in one store do not see each other.
TEST(GroupsOfOneStore, AreToldApartByTheOptionGroup) {
  const StoreHost host;
  InitOptions options = options_of(place_of(host));
  options.world_size = 1;
  for (const char* const group : {"one", "two"}) {
    options.group = group;
    options.dynamic = options.group == "two";  // which one group could not be, too
    EXPECT_TRUE(init(options));
    EXPECT_TRUE(shutdown({.graceful = false}));
  }
}

}  // namespace
}  // namespace muster::rpc
