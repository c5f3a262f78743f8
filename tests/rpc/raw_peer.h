// RawPeer: a worker of a static group that is nothing but a socket and the test's own thread. It
// knows how to greet; everything else it does, right or wrong, the test does itself.
#pragma once

#include "muster/base/fd.h"
#include "muster/net/transport.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/group.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/member.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

inline constexpr Duration kPatience = std::chrono::seconds(60);
inline constexpr int kPatienceMilliseconds = 60'000;

// One connection, with all its waiting bounded.
class RawConnection {
 public:
  explicit RawConnection(Fd socket) : socket_(std::move(socket)) {}

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // whoever closed it had a reason, which the test asks for
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void send(const Message& message) {
    write(encode_head(message));
    for (const Buffer& buffer : message.buffers) {
      write({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
    }
  }
  // Whether the other side has closed it, though not all was read, within so many milliseconds.
  bool is_reset_within(int milliseconds) {
    pollfd watched{socket_.get(), 0, 0};
    return ::poll(&watched, 1, milliseconds) > 0;
  }
  // Whether there is something to read within so many milliseconds, be it that the other side has
  // closed it.
  bool is_readable_within(int milliseconds) {
    pollfd watched{socket_.get(), POLLIN, 0};
    return ::poll(&watched, 1, milliseconds) > 0;
  }
  // The next message that is no sign of life; nothing if the connection ends before, or if none
  // comes in a time in which one certainly does.
  std::optional<Message> read() {
    const TimePoint deadline = SystemClock().now() + kPatience;
    while (SystemClock().now() < deadline) {
      while (!messages_.empty()) {
        Message message = std::move(messages_.front());
        messages_.pop_front();
        if (message.type != kSignOfLife && message.type != kCancel) return message;
      }
      if (!read_more()) break;
    }
    return std::nullopt;
  }
  // True once the other side has ended the connection.
  bool is_ended() {
    const TimePoint deadline = SystemClock().now() + kPatience;
    while (!ended_ && SystemClock().now() < deadline && read_more()) {
    }
    return ended_;
  }
  void close() { socket_ = Fd(); }

 private:
  bool read_more() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kPatienceMilliseconds) != 1) return false;
    std::array<std::byte, 65536> bytes{};
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    std::vector<Message> complete;
    const auto fed = reader_.feed(std::span(bytes).first(static_cast<std::size_t>(got)), complete);
    EXPECT_TRUE(fed) << "a worker breaks the protocol";
    for (Message& message : complete) messages_.push_back(std::move(message));
    return fed.has_value();
  }

  Fd socket_;
  FrameReader reader_;
  std::deque<Message> messages_;
  bool ended_ = false;
};

class RawPeer {
 public:
  // Writes its record, as if it had come to the group.
  RawPeer(const StoreHost& host, std::string name, std::int64_t rank) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), any, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), any, &size), 0);
    const OpenStore open = host.opener();
    auto opened = loop_.block_on(open(loop_));
    EXPECT_TRUE(opened);
    store_ = std::move(*opened);
    const Member self{WorkerInfo::create_member(std::move(name), rank).value(), kIncarnation,
                      net::describe({"127.0.0.1", ntohs(address.sin_port)}), ""};
    EXPECT_TRUE(loop_.block_on(store_->set(record_key(rank), encode_member(self))));
  }

  // The next connection to it; a worker that calls it opens one.
  RawConnection accept() {
    pollfd waiting{listener_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&waiting, 1, kPatienceMilliseconds), 1) << "nobody connects";
    return RawConnection(Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  // Likewise, after the greeting.
  RawConnection welcome() {
    RawConnection connection = accept();
    const auto hello = connection.read();
    EXPECT_TRUE(hello && decode_hello(*hello)) << "it does not greet";
    connection.send({kWelcome, 0, "", {}});
    return connection;
  }
  // A connection to the worker with this rank, after the greeting.
  RawConnection connect(std::int64_t rank) {
    auto job = loop_.block_on(store_->get("job", kNever));
    auto record = loop_.block_on(store_->get(record_key(rank), kNever));
    EXPECT_TRUE(job && record);
    const Member member = decode_member("", *record).value();
    const auto endpoint = net::parse_endpoint(member.address, 0);
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(endpoint->port));
    EXPECT_EQ(::inet_pton(AF_INET, endpoint->host.c_str(), &address.sin_addr), 1);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    RawConnection connection(std::move(socket));
    Hello hello;
    hello.job = *job;
    hello.from_name = "raw";
    hello.from_incarnation = kIncarnation;
    hello.to_incarnation = member.incarnation;
    connection.send(encode(hello));
    const auto answer = connection.read();
    EXPECT_TRUE(answer && answer->type == kWelcome) << "it is sent away";
    return connection;
  }

 private:
  static constexpr std::uint64_t kIncarnation = 77;
  // In the first group of its store.
  static std::string record_key(std::int64_t rank) { return "rank/0/" + std::to_string(rank); }

  net::EpollLoop loop_;
  std::shared_ptr<store::Store> store_;
  Fd listener_;
};

}  // namespace muster::rpc::testing
