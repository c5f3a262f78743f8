// Thousands of connections at once. The clients are a process of their own, so that each side may
// use all the descriptors that one process may open.
#include "muster/base/fd.h"
#include "tests/server/log_capture.h"
#include "tests/server/raw_client.h"
#include "tests/server/requests.h"
#include "tests/server/server_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace muster::tests {
namespace {

constexpr int kCrowd = 10'000;

// A pipe for single numbers between the two processes.
class NumberPipe {
 public:
  NumberPipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read_ = Fd(ends[0]);
    write_ = Fd(ends[1]);
  }
  void put(int number) {
    EXPECT_EQ(::write(write_.get(), &number, sizeof number), ssize_t{sizeof number});
  }
  // -1 if the other process is gone.
  int take() {
    int number = -1;
    return ::read(read_.get(), &number, sizeof number) == ssize_t{sizeof number} ? number : -1;
  }
  void keep_reading_only() { write_.reset(); }
  void keep_writing_only() { read_.reset(); }

 private:
  Fd read_;
  Fd write_;
};

int descriptors_allowed() {
  net::raise_descriptor_limit();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

// The clients: connect, wait to be told, ask once each, say how many were answered.
int answered_count(NumberPipe& orders, NumberPipe& reports) {
  const int port = orders.take();
  const int count = orders.take();
  std::vector<RawClient> clients;
  clients.reserve(static_cast<std::size_t>(count));
  for (int index = 0; index < count; ++index) {
    // Every third says nothing at first, as the second connection of a PyTorch 1.13 client does.
    if (index % 3 == 0) {
      clients.emplace_back(port);
    } else {
      clients.emplace_back(port, Dialect::Modern);
    }
  }
  reports.put(count);
  if (orders.take() < 0) return 0;
  int answered = 0;
  for (int index = 0; index < count; ++index) {
    const Dialect dialect = index % 3 == 0 ? Dialect::Legacy : Dialect::Modern;
    const std::string bytes = request_bytes(dialect, Operation::Add, "/crowd", {}, 1);
    RawClient& client = clients[static_cast<std::size_t>(index)];
    if (client.ask(bytes, 8).size() == 8) ++answered;
  }
  return answered;
}

std::size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  unsigned long total = 0;
  unsigned long resident = 0;
  const int fields = file == nullptr ? 0 : std::fscanf(file, "%lu %lu", &total, &resident);
  if (file != nullptr) std::fclose(file);
  return fields == 2 ? resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

TEST(Crowd, OfIdleConnectionsIsServedWhenItWakes) {
  const int allowed = descriptors_allowed();
  const int count = std::min(kCrowd, allowed - 100);
  if (count < kCrowd) {
    std::printf("only %d descriptors are allowed: the crowd has %d connections instead of %d\n",
                allowed, count, kCrowd);
  }
  NumberPipe orders;
  NumberPipe reports;
  // Before any thread is started.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    orders.keep_reading_only();
    reports.keep_writing_only();
    reports.put(answered_count(orders, reports));
    ::_exit(0);
  }
  orders.keep_writing_only();
  reports.keep_reading_only();
  {
    LogCapture log;
    ServerThread server;
    Bystander bystander(server.port());
    ASSERT_TRUE(bystander.served());
    const std::size_t before = resident_bytes();
    orders.put(server.port());
    orders.put(count);
    ASSERT_EQ(reports.take(), count);  // all are connected
    ASSERT_TRUE(bystander.served());
    for (int round = 0; round < 100; ++round) ASSERT_TRUE(bystander.served());
    const std::size_t here = server.connection_count();
    EXPECT_EQ(here, static_cast<std::size_t>(count) + 1);
    const std::size_t each = (resident_bytes() - before) / static_cast<std::size_t>(count);
    std::printf("%zu connections, about %zu bytes each\n", here, each);
    testing::Test::RecordProperty("bytes_each", static_cast<int>(each));
    orders.put(1);
    EXPECT_EQ(reports.take(), count);  // all were answered
    EXPECT_EQ(bystander.get("/crowd"), std::to_string(count));
    ASSERT_TRUE(bystander.served());
    EXPECT_TRUE(log.warnings().empty()) << testing::PrintToString(log.warnings());
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Crowd, ThatWaitsForOneKeyIsReleasedByOneWrite) {
  constexpr int kWaiters = 2'000;
  const int count = std::min(kWaiters, (descriptors_allowed() - 100) / 2);
  ServerThread server;
  Bystander bystander(server.port());
  std::vector<RawClient> clients;
  clients.reserve(static_cast<std::size_t>(count));
  const std::string wait =
      request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/go"});
  for (int index = 0; index < count; ++index) {
    clients.emplace_back(server.port(), Dialect::Modern);
    clients.back().send(wait);
  }
  ASSERT_TRUE(bystander.served());
  RawClient starter(server.port(), Dialect::Modern);
  starter.send(request_bytes(Dialect::Modern, Operation::Set, "/go", "1"));
  for (RawClient& client : clients) ASSERT_EQ(client.receive(1), std::string(1, '\0'));
  ASSERT_TRUE(bystander.served());
}

TEST(Crowd, ThatComesAndGoesLeavesNothingBehind) {
  constexpr int kRounds = 20;
  constexpr int kClients = 200;
  LogCapture log{log::Level::Debug};
  ServerThread server;
  Bystander bystander(server.port());
  ASSERT_TRUE(bystander.served());
  for (int round = 0; round < kRounds; ++round) {
    std::vector<RawClient> clients;
    clients.reserve(kClients);
    for (int index = 0; index < kClients; ++index) {
      clients.emplace_back(server.port(), Dialect::Modern);
      clients.back().send(
          request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/never"}));
      if (index % 2 == 0) clients.back().reset();
    }
    ASSERT_TRUE(bystander.served());
  }
  // The last of them may still be on the way out.
  RawClient last(server.port(), Dialect::Modern);
  ASSERT_EQ(last.ask(request_bytes(Dialect::Modern, Operation::NumKeys), 8), number(1));
  for (int look = 0; look < 1000 && server.connection_count() > 2; ++look) {
    ASSERT_TRUE(bystander.served());
  }
  EXPECT_EQ(server.connection_count(), 2U);
  const auto waiting = server.look<std::string>([](store::Server& store) {
    for (const auto& [name, value] : store.hub().describe()) {
      if (name == "waiting") return value;
    }
    return std::string();
  });
  EXPECT_EQ(waiting, "0");
}

}  // namespace
}  // namespace muster::tests
