#include "bench/crowd.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <utility>

namespace muster::bench {
namespace {

constexpr std::size_t kScratchBytes = 256 * 1024;
constexpr int kEventsMax = 1024;

}  // namespace

Crowd::Crowd(int port, std::unique_ptr<Protocol> protocol)
    : port_(port),
      protocol_(std::move(protocol)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      scratch_(kScratchBytes) {}

Result<std::unique_ptr<Crowd>> Crowd::open(int port, int waiter_count,
                                           std::unique_ptr<Protocol> protocol) {
  std::unique_ptr<Crowd> crowd(new Crowd(port, std::move(protocol)));
  auto announcer = crowd->connect(Protocol::Role::Announcer);
  if (!announcer) return fail(std::move(announcer.error()));
  crowd->announcer_ = std::make_unique<Connection>(std::move(*announcer));
  auto witness = crowd->connect(Protocol::Role::Client);
  if (!witness) return fail(std::move(witness.error()));
  crowd->witness_ = std::make_unique<Connection>(std::move(*witness));
  for (int i = 0; i < waiter_count; ++i) {
    auto waiter = crowd->connect(Protocol::Role::Waiter);
    if (!waiter) return fail(std::move(waiter.error()));
    Connection& connection = crowd->waiters_.emplace_back(std::move(*waiter));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &connection;
    if (::epoll_ctl(crowd->epoll_.get(), EPOLL_CTL_ADD, connection.fd(), &event) != 0) {
      return fail(ErrorKind::Unavailable, fmt::format("epoll_ctl: {}", describe_errno(errno)));
    }
  }
  return crowd;
}

Result<Connection> Crowd::connect(Protocol::Role role) {
  return Connection::open(port_, *protocol_, role);
}

Result<> Crowd::wait() {
  for (Connection& waiter : waiters_) {
    const Protocol::Wait wait = protocol_->append_wait(round_, waiter.out());
    if (!wait.is_sent) break;
    if (wait.is_confirmed) {
      auto reply = waiter.await_reply(
          [&](std::string_view received) { return protocol_->parse_wait(received); });
      if (!reply) return fail(std::move(reply.error()));
    }
    if (auto flushed = waiter.flush(); !flushed) return flushed;
  }
  waiting_ = true;
  return ask_witness();
}

Result<> Crowd::ask_witness() {
  constexpr Operation kQuestion = Operation::Add;
  protocol_->append_request({kQuestion, "bench/witness", {}, {}}, witness_->out());
  auto answer = witness_->await_reply(
      [&](std::string_view received) { return protocol_->parse_reply(kQuestion, received); });
  if (!answer) return fail(std::move(answer.error()));
  return {};
}

Result<> Crowd::wake(std::size_t value_bytes, Latencies& latencies) {
  if (!waiting_) {
    if (auto waited = wait(); !waited) return waited;
  }
  protocol_->append_release(round_, value_bytes, announcer_->out());
  const TimePoint begun = steady_now();
  if (auto flushed = announcer_->flush(); !flushed) return flushed;
  std::size_t missing = waiters_.size();
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
  std::array<epoll_event, kEventsMax> events;
  while (missing > 0) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), kEventsMax, static_cast<int>(patience));
    if (count == 0)
      return fail(ErrorKind::Timeout, fmt::format("{} waiters were not released", missing));
    for (int i = 0; i < count; ++i) {
      auto& waiter = *static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      const auto consume = [&](std::string_view received) -> Result<std::size_t> {
        auto reply = protocol_->parse_release(received);
        if (!reply) return fail(std::move(reply.error()));
        if (!*reply) return std::size_t{0};
        latencies.add(steady_now() - begun, 1);
        --missing;
        return (*reply)->bytes;
      };
      if (auto received = waiter.receive(scratch_, consume); !received) return received;
    }
  }
  waiting_ = false;
  ++round_;
  // Some servers answer the announcer too.
  const auto discard = [](std::string_view received) -> Result<std::size_t> {
    return received.size();
  };
  return announcer_->receive(scratch_, discard);
}

}  // namespace muster::bench
