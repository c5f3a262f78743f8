// A real server and real clients over loopback, each client on a thread of its own. Whatever they
// see must be explained by a store that does one operation at a time.
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/store/tcp_store.h"
#include "tests/linearizability/checker.h"
#include "tests/linearizability/faulty_store.h"
#include "tests/linearizability/workload.h"
#include "tests/seeds.h"
#include "tests/server/dialect_transport.h"
#include "tests/server/log_capture.h"
#include "tests/server/server_thread.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster::linearizability {
namespace {

using tests::replay_command;
using tests::seeds_to_run;
using wire::Dialect;

struct Party {
  std::vector<Dialect> dialects;  // one for each client
  std::optional<Fault> broken;
};

// One client, from its connection to its last operation.
void live(int port, int index, const Party& party, std::uint64_t seed, Recorder& recorder) {
  net::EpollLoop loop;
  net::TcpTransport tcp(loop);
  const Dialect dialect = party.dialects[static_cast<std::size_t>(index)];
  tests::DialectTransport transport(tcp, dialect);
  Random random(seed);
  store::TcpStoreOptions options;
  options.endpoint = {"127.0.0.1", port};
  auto connected =
      loop.block_on(store::connect_tcp_store(loop, transport, random, std::move(options)));
  ASSERT_TRUE(connected) << connected.error().message;
  ASSERT_EQ((*connected)->dialect(), dialect);
  FaultyStore faulty(**connected, party.broken.value_or(Fault::StaleRead));
  ClientOptions work;
  work.client = index;
  work.operation_count = 60;
  work.get_timeout = std::chrono::milliseconds(5);
  // Keys of this seed, for the server is the same for all of them.
  work.workload.key_prefix = fmt::format("{}-", seed / 100);
  store::Store& used = party.broken ? static_cast<store::Store&>(faulty) : **connected;
  loop.block_on(run_client(used, loop, recorder, random, work));
}

Verdict verdict_of(int port, std::uint64_t seed, const Party& party) {
  Recorder recorder(static_cast<int>(party.dialects.size()));
  std::vector<std::thread> threads;
  for (int index = 0; index < static_cast<int>(party.dialects.size()); ++index) {
    threads.emplace_back([&, index] {
      live(port, index, party, seed * 100 + static_cast<std::uint64_t>(index), recorder);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const History history = recorder.history();
  EXPECT_GT(history.size(), party.dialects.size() * 30);
  return check(history, {});
}

class LinearizabilityOfTheServer : public testing::Test {
 protected:
  void expect_linearizable(const Party& party, std::uint64_t seed_count) {
    for (const std::uint64_t seed : seeds_to_run(seed_count)) {
      const Verdict verdict = verdict_of(server.port(), seed, party);
      ASSERT_TRUE(verdict.ok()) << verdict.explanation << "\n" << replay_command(seed);
    }
  }

  tests::LogCapture log;  // additions to a text end PyTorch connections, loudly
  tests::ServerThread server;
};

TEST_F(LinearizabilityOfTheServer, HoldsForItsOwnClients) {
  expect_linearizable({.dialects = std::vector<Dialect>(5, Dialect::Extension), .broken = {}}, 30);
}

TEST_F(LinearizabilityOfTheServer, HoldsForClientsOfEveryDialectTogether) {
  expect_linearizable(
      {.dialects = {Dialect::Extension, Dialect::Modern, Dialect::Legacy, Dialect::Extension},
       .broken = {}},
      30);
}

TEST_F(LinearizabilityOfTheServer, IsMissedByClientsThatReadStaleValues) {
  const Party party{.dialects = std::vector<Dialect>(4, Dialect::Extension),
                    .broken = Fault::StaleRead};
  EXPECT_EQ(verdict_of(server.port(), 1, party).kind, Verdict::Kind::NotLinearizable);
}

}  // namespace
}  // namespace muster::linearizability
