#include "bench/socket_driver.h"

#include "bench/connection.h"
#include "bench/crowd.h"
#include "muster/base/fd.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <deque>
#include <string>
#include <sys/epoll.h>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

constexpr std::size_t kScratchBytes = 256 * 1024;
constexpr int kEventsMax = 512;

// Keeps `depth` requests in flight on every connection until the time is over.
class ClosedLoop {
 public:
  ClosedLoop(const Workload& workload, const Protocol& protocol)
      : workload_(workload),
        protocol_(protocol),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        scratch_(kScratchBytes),
        values_{std::string(workload.value_bytes, 'a'), std::string(workload.value_bytes, 'b')} {}

  Result<Measurement> run() {
    for (int i = 0; i < workload_.client_count; ++i) {
      if (auto opened = open(i); !opened) return fail(std::move(opened.error()));
    }
    begins_ = after(steady_now(), warm_up_of(workload_));
    ends_ = after(begins_, workload_.length);
    for (Client& client : clients_) {
      if (auto sent = issue(client, workload_.depth, steady_now()); !sent)
        return fail(std::move(sent.error()));
    }
    while (in_flight_ > 0) {
      if (auto turned = turn(); !turned) return fail(std::move(turned.error()));
    }
    measurement_.elapsed = workload_.length;
    return std::move(measurement_);
  }

 private:
  struct Batch {
    TimePoint sent;
    int count;
  };
  struct Client {
    Connection connection;
    std::string key;
    std::deque<Batch> in_flight;  // oldest first
    std::uint64_t sequence = 0;
    std::size_t counted_bytes = 0;  // of a reply of fixed size
    bool wants_write = false;
  };

  Result<> open(int number) {
    auto connection = Connection::open(workload_.port, protocol_, Protocol::Role::Client);
    if (!connection) return fail(std::move(connection.error()));
    Client& client =
        clients_.emplace_back(Client{std::move(*connection), key_of(number), {}, 0, 0, false});
    // What get reads, add counts from, and compare_set expects first.
    if (protocol_.reply_bytes() == 0) {
      const bool counts = workload_.operation == Operation::Add;
      protocol_.append_request(
          {Operation::Set, client.key, counts ? std::string_view("0") : values_[0], {}},
          client.connection.out());
      auto stored = client.connection.await_reply([&](std::string_view received) {
        return protocol_.parse_reply(Operation::Set, received);
      });
      if (!stored) return fail(std::move(stored.error()));
    }
    return watch(client, EPOLL_CTL_ADD);
  }

  Result<> watch(Client& client, int how) {
    epoll_event event{};
    event.events = client.wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = &client;
    if (::epoll_ctl(epoll_.get(), how, client.connection.fd(), &event) == 0) return {};
    return fail(ErrorKind::Unavailable, fmt::format("epoll_ctl: {}", describe_errno(errno)));
  }

  Result<> issue(Client& client, int count, TimePoint now) {
    for (int i = 0; i < count; ++i) {
      const bool is_even = client.sequence++ % 2 == 0;
      protocol_.append_request(
          {workload_.operation, client.key, values_[is_even ? 1 : 0], values_[is_even ? 0 : 1]},
          client.connection.out());
    }
    client.in_flight.push_back({now, count});
    in_flight_ += count;
    return flush(client);
  }

  Result<> flush(Client& client) {
    if (auto flushed = client.connection.flush(); !flushed) return flushed;
    if (client.wants_write != client.connection.is_flushed()) return {};
    client.wants_write = !client.wants_write;
    return watch(client, EPOLL_CTL_MOD);
  }

  Result<> turn() {
    std::array<epoll_event, kEventsMax> events;
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), kEventsMax, static_cast<int>(patience));
    if (count == 0) return fail(ErrorKind::Timeout, "the server does not answer");
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      auto& client = *static_cast<Client*>(event.data.ptr);
      if ((event.events & EPOLLOUT) != 0) {
        if (auto flushed = flush(client); !flushed) return flushed;
      }
      if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
        if (auto done = answer(client); !done) return done;
      }
    }
    return {};
  }

  // Takes the replies that have come, and sends as many requests.
  Result<> answer(Client& client) {
    int reply_count = 0;
    const auto consume = [&](std::string_view received) -> Result<std::size_t> {
      if (const std::size_t size = protocol_.reply_bytes(); size > 0) {
        client.counted_bytes += received.size();
        reply_count = static_cast<int>(client.counted_bytes / size);
        client.counted_bytes %= size;
        return received.size();
      }
      return take_replies(received, reply_count);
    };
    if (auto received = client.connection.receive(scratch_, consume); !received) return received;
    if (reply_count == 0) return {};
    const TimePoint now = steady_now();
    record(client, reply_count, now);
    in_flight_ -= reply_count;
    measurement_.all_count += static_cast<std::uint64_t>(reply_count);
    return now < ends_ ? issue(client, reply_count, now) : Result<>();
  }

  Result<std::size_t> take_replies(std::string_view received, int& reply_count) {
    std::size_t used = 0;
    while (used < received.size()) {
      auto reply = protocol_.parse_reply(workload_.operation, received.substr(used));
      if (!reply) return fail(std::move(reply.error()));
      if (!*reply) break;
      used += (*reply)->bytes;
      ++reply_count;
      value_.assign((*reply)->payload);
      const bool carries_value =
          workload_.operation == Operation::Get || workload_.operation == Operation::CompareSet;
      if (carries_value && value_.size() != workload_.value_bytes) {
        return fail(ErrorKind::Invalid, fmt::format("a value of {} bytes came back as {} bytes",
                                                    workload_.value_bytes, value_.size()));
      }
    }
    return used;
  }

  void record(Client& client, int reply_count, TimePoint now) {
    while (reply_count > 0) {
      Batch& batch = client.in_flight.front();
      const int count = std::min(batch.count, reply_count);
      if (now >= begins_ && now < ends_) {
        measurement_.latencies.add(now - batch.sent, static_cast<std::uint32_t>(count));
      }
      reply_count -= count;
      batch.count -= count;
      if (batch.count == 0) client.in_flight.pop_front();
    }
  }

  const Workload& workload_;
  const Protocol& protocol_;
  Fd epoll_;
  std::vector<char> scratch_;
  std::array<std::string, 2> values_;
  std::string value_;
  std::deque<Client> clients_;  // a deque, since epoll keeps their addresses
  std::int64_t in_flight_ = 0;
  TimePoint begins_;
  TimePoint ends_;
  Measurement measurement_;
};

Result<Measurement> measure_wake(const Workload& workload, std::unique_ptr<Protocol> protocol) {
  auto crowd = Crowd::open(workload.port, workload.client_count, std::move(protocol));
  if (!crowd) return fail(std::move(crowd.error()));
  const TimePoint begins = after(steady_now(), warm_up_of(workload));
  const TimePoint ends = after(begins, workload.length);
  Measurement measurement;
  TimePoint first = begins;
  for (TimePoint now = steady_now(); now < ends; now = steady_now()) {
    Latencies ignored;
    Latencies& latencies = now < begins ? ignored : measurement.latencies;
    if (auto woken = (*crowd)->wake(workload.value_bytes, latencies); !woken)
      return fail(std::move(woken.error()));
    measurement.all_count += (*crowd)->size();
    if (now < begins) first = steady_now();
  }
  measurement.elapsed = steady_now() - first;
  return measurement;
}

}  // namespace

Result<Measurement> SocketDriver::measure(const Workload& workload) {
  auto protocol = make_protocol_(workload);
  if (workload.operation == Operation::Wake) return measure_wake(workload, std::move(protocol));
  return ClosedLoop(workload, *protocol).run();
}

}  // namespace muster::bench
