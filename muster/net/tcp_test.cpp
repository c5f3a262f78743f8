#include "muster/net/tcp.h"

#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/net/epoll_loop.h"
#include "tests/net/drive.h"
#include "tests/net/transport_contract.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <atomic>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/socket.h>
#include <vector>

namespace muster::tests {
namespace {

class TcpDriver final : public TransportDriver {
 public:
  explicit TcpDriver(std::string host) : host_(std::move(host)) {}
  net::Transport& client() override { return transport_; }
  net::Transport& server() override { return transport_; }
  std::string listen_host() const override { return host_; }
  bool run_until(const std::function<bool()>& reached) override {
    return tests::run_until(loop_, reached);
  }

 private:
  std::string host_;
  net::EpollLoop loop_;
  net::TcpTransport transport_{loop_};
};

std::unique_ptr<TransportDriver> over_ipv4() { return std::make_unique<TcpDriver>("127.0.0.1"); }
std::unique_ptr<TransportDriver> over_ipv6() { return std::make_unique<TcpDriver>("::1"); }
std::unique_ptr<TransportDriver> over_a_name() { return std::make_unique<TcpDriver>("localhost"); }

bool has_ipv6() {
  const Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd.is_open() &&
         ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// A machine's "localhost" may be one of them or both.
std::vector<const char*> addresses_of_localhost() {
  std::vector<const char*> addresses;
  addrinfo* list = nullptr;
  EXPECT_EQ(::getaddrinfo("localhost", nullptr, nullptr, &list), 0);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    addresses.push_back(entry->ai_family == AF_INET6 ? "::1" : "127.0.0.1");
  }
  if (list != nullptr) ::freeaddrinfo(list);
  if (!has_ipv6()) std::erase(addresses, std::string_view("::1"));
  return addresses;
}

INSTANTIATE_TEST_SUITE_P(Ipv4, TransportContract, testing::Values(&over_ipv4));
INSTANTIATE_TEST_SUITE_P(Name, TransportContract, testing::Values(&over_a_name));
// On a machine without IPv6 there is nothing to test.
INSTANTIATE_TEST_SUITE_P(Ipv6, TransportContract,
                         testing::ValuesIn(has_ipv6()
                                               ? std::vector<TransportDriverFactory>{&over_ipv6}
                                               : std::vector<TransportDriverFactory>{}));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContract);

class TcpTransport : public testing::Test {
 protected:
  ConnectResult connect(const std::string& host, int port) {
    std::optional<ConnectResult> result;
    TaskScope scope;
    scope.start(connect_into(transport, {host, port}, result));
    if (!run_until(loop, [&] { return result.has_value(); })) {
      return fail(ErrorKind::Timeout, "no answer");
    }
    return std::move(*result);
  }
  std::unique_ptr<net::Listener> listen(const std::string& host) {
    auto listener = transport.listen({host, 0}, [this](std::unique_ptr<net::Stream> stream) {
      accepted.push_back(std::move(stream));
    });
    EXPECT_TRUE(listener) << listener.error().message;
    return listener ? std::move(*listener) : nullptr;
  }

  net::EpollLoop loop;
  net::TcpTransport transport{loop};
  std::vector<std::unique_ptr<net::Stream>> accepted;
};

TEST_F(TcpTransport, ListensOnEveryAddressOfBothFamiliesWhenNoHostIsGiven) {
  const auto listener = listen("");
  ASSERT_NE(listener, nullptr);
  std::vector<std::string> hosts = {"127.0.0.1", "localhost", ""};
  if (has_ipv6()) hosts.emplace_back("::1");
  for (const std::string& host : hosts) {
    accepted.clear();
    const ConnectResult client = connect(host, listener->port());
    ASSERT_TRUE(client) << host << ": " << client.error().message;
    ASSERT_TRUE(run_until(loop, [&] { return !accepted.empty(); })) << host;
  }
}

TEST_F(TcpTransport, NamesAPeerByItsAddressAndPort) {
  const auto listener = listen("");
  const ConnectResult client = connect("127.0.0.1", listener->port());
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ((*client)->peer(), "127.0.0.1:" + std::to_string(listener->port()));
  ASSERT_TRUE(run_until(loop, [&] { return !accepted.empty(); }));
  // An IPv4 peer of a dual-stack socket is shown as such, without the ::ffff: in front.
  EXPECT_EQ(accepted[0]->peer().rfind("127.0.0.1:", 0), 0U) << accepted[0]->peer();
}

TEST_F(TcpTransport, ListensOnOnePortForEveryAddressOfAName) {
  const auto listener = listen("localhost");
  ASSERT_NE(listener, nullptr);
  for (const char* address : addresses_of_localhost()) {
    EXPECT_TRUE(connect(address, listener->port())) << address;
  }
}

TEST_F(TcpTransport, TriesTheNextAddressOfANameWhenOneRefuses) {
  // "localhost" may be ::1 first, where nobody listens.
  const auto listener = listen("127.0.0.1");
  const ConnectResult client = connect("localhost", listener->port());
  EXPECT_TRUE(client) << client.error().message;
}

TEST_F(TcpTransport, SaysThatANameCannotBeResolved) {
  // Reserved by RFC 2606, so that no resolver knows it.
  const ConnectResult client = connect("no-such-host.invalid", 1);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(client.error().message.rfind("cannot resolve \"no-such-host.invalid\": ", 0), 0U)
      << client.error().message;
}

TEST_F(TcpTransport, ForgetsALookUpThatNobodyWaitsForAnyMore) {
  for (int round = 0; round < 3; ++round) {
    std::optional<ConnectResult> result;
    TaskScope scope;
    scope.start(connect_into(transport, {"localhost", 1}, result));
  }
  // The threads' answers find nobody; the loop joins them in the end.
}

TEST_F(TcpTransport, NamesTheEndpointThatRefuses) {
  const int port = listen("127.0.0.1")->port();
  const ConnectResult client = connect("127.0.0.1", port);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().message,
            "cannot connect to 127.0.0.1:" + std::to_string(port) + ": connection refused");
  EXPECT_EQ(client.error().kind, ErrorKind::Unavailable) << "it may listen later";
}

TEST_F(TcpTransport, TellsWhoConnectsByItselfThatNobodyListens) {
  const int port = listen("127.0.0.1")->port();
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    Task<Result<Fd>> connecting = net::connect_socket(loop, {host, port});
    const Result<Fd> socket = loop.block_on(std::move(connecting));
    ASSERT_FALSE(socket);
    EXPECT_EQ(socket.error().kind, ErrorKind::Closed) << host << ": " << socket.error().message;
  }
}

TEST_F(TcpTransport, RefusesToListenOnAnAddressOfAnotherMachine) {
  // From the block that RFC 5737 keeps for documentation.
  const auto listener = transport.listen({"192.0.2.1", 0}, [](std::unique_ptr<net::Stream>) {});
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().message,
            "cannot listen on 192.0.2.1:0: cannot assign requested address");
}

TEST_F(TcpTransport, AcceptsManyConnectionsThatComeAtOnce) {
  constexpr std::size_t kCount = 300;  // more than one burst of accepting
  const auto listener = listen("127.0.0.1");
  std::vector<std::optional<ConnectResult>> results(kCount);
  TaskScope scope;
  for (auto& result : results) {
    scope.start(connect_into(transport, {"127.0.0.1", listener->port()}, result));
  }
  ASSERT_TRUE(run_until(loop, [&] { return accepted.size() == kCount; })) << accepted.size();
  for (const auto& result : results) EXPECT_TRUE(result && *result);
}

// What the process may open, lowered for one test.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = std::min(count, before_.rlim_cur);
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(TcpTransport, LetsConnectionsWaitWhileThereAreNoDescriptorsAndSaysSoOnce) {
  std::atomic<int> warnings = 0;
  log::set_sink([&](log::Level level, std::string_view, std::string_view message) {
    if (level == log::Level::Warn && message.find("cannot accept") != std::string_view::npos) {
      ++warnings;
    }
  });
  {
    const auto listener = listen("127.0.0.1");
    listener->set_accepting(false);
    std::vector<std::unique_ptr<net::Stream>> clients;
    for (int index = 0; index < 5; ++index) {
      ConnectResult client = connect("127.0.0.1", listener->port());
      ASSERT_TRUE(client) << client.error().message;
      clients.push_back(std::move(*client));
    }
    {
      const Fd next(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const DescriptorLimit limit(static_cast<rlim_t>(next.get() + 2));
      listener->set_accepting(true);
      ASSERT_TRUE(run_until(loop, [&] { return warnings > 0; }));
      EXPECT_LT(accepted.size(), clients.size());
      // Several rests later there is still one line about it.
      const TimePoint later = loop.now() + std::chrono::milliseconds(350);
      ASSERT_TRUE(run_until(loop, [&] { return loop.now() >= later; }));
      EXPECT_EQ(warnings, 1);
    }
    EXPECT_TRUE(run_until(loop, [&] { return accepted.size() == clients.size(); }));
  }
  log::set_sink({});
}

TEST(DescriptorLimitOfServers, IsRaisedToWhatTheSystemAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  net::raise_descriptor_limit();
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace muster::tests
