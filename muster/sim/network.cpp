#include "muster/sim/network.h"

#include "muster/base/assert.h"
#include "muster/sim/connection.h"
#include "muster/sim/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace muster::sim {
namespace {

constexpr Duration kLatencyMin =
    std::chrono::microseconds(1);  // or two hosts could talk without time passing
constexpr int kFirstFreePort = 32768;
constexpr int kPortMax = 65535;

}  // namespace

// ---- Host

Host::Host(Network& network, std::string name, std::size_t index)
    : network_(network),
      name_(std::move(name)),
      index_(index),
      loop_(network.loop()),
      next_port_(kFirstFreePort) {}

Host::~Host() = default;

bool Host::is_own_address(std::string_view host) const {
  return host.empty() || host == name_ || host == "localhost" || host == "127.0.0.1" ||
         host == "::1";
}

int Host::free_port() {
  for (int tries = kFirstFreePort; tries <= kPortMax; ++tries) {
    const int port = next_port_;
    next_port_ = port == kPortMax ? kFirstFreePort : port + 1;
    if (!ports_.contains(port)) return port;
  }
  return 0;
}

Task<Result<std::unique_ptr<net::Stream>>> Host::connect(net::Endpoint endpoint) {
  internal::ConnectOutcome outcome(loop_);
  internal::Connector connector(network_, *this, std::move(endpoint), outcome);
  co_return co_await outcome;
}

Result<std::unique_ptr<net::Listener>> Host::listen(
    const net::Endpoint& endpoint, std::function<void(std::unique_ptr<net::Stream>)> accepted) {
  const auto refuse = [&](int error_number) {
    return fail(ErrorKind::Unavailable, fmt::format("cannot listen on {}:{}: {}", endpoint.host,
                                                    endpoint.port, describe_errno(error_number)));
  };
  if (!is_up()) return refuse(ENETDOWN);
  if (!is_own_address(endpoint.host) && endpoint.host != "0.0.0.0" && endpoint.host != "::") {
    return refuse(EADDRNOTAVAIL);
  }
  const int number = endpoint.port == 0 ? free_port() : endpoint.port;
  if (number == 0 || ports_.contains(number)) return refuse(EADDRINUSE);
  auto port = std::make_unique<internal::Port>(network_, *this, number, std::move(accepted));
  ports_.emplace(number, port.get());
  auto listener = std::make_unique<internal::SimListener>(*port);
  network_.listening_.push_back(std::move(port));
  return listener;
}

// ---- Network

Network::Network(Loop& loop, Random& random, Weather weather)
    : loop_(loop),
      random_(random.next()),
      weather_(weather),
      sweep_timer_(loop, [this] { sweep(); }) {}

Network::~Network() {
  sweep();
  // Streams, listeners and connect tasks refer to their network, so they must be gone before it.
  MUSTER_ASSERT(connections_.empty());
  MUSTER_ASSERT(listening_.empty());
  MUSTER_ASSERT(connectors_.empty());
}

Host& Network::host(std::string_view name) {
  if (Host* const found = find_host(name)) return *found;
  auto made = std::make_unique<Host>(*this, std::string(name), hosts_.size());
  Host& host = *made;
  hosts_.emplace(std::string(name), std::move(made));
  return host;
}

Host* Network::find_host(std::string_view name) {
  const auto found = hosts_.find(name);
  return found == hosts_.end() ? nullptr : found->second.get();
}

void Network::cut_one_way(const Host& from, const Host& to) {
  trace("cut", from.index_, to.index_);
  cuts_.emplace(from.index_, to.index_);
}

void Network::cut(const Host& a, const Host& b) {
  cut_one_way(a, b);
  cut_one_way(b, a);
}

void Network::heal(const Host& a, const Host& b) {
  trace("heal", a.index_, b.index_);
  cuts_.erase({a.index_, b.index_});
  cuts_.erase({b.index_, a.index_});
  retry_stalled();
}

void Network::heal_all() {
  trace("heal all", 0, cuts_.size());
  cuts_.clear();
  retry_stalled();
}

void Network::reset(net::Stream& stream) {
  auto* const ours = dynamic_cast<internal::SimStream*>(&stream);
  MUSTER_ASSERT(ours != nullptr);
  ours->end().abort();
}

void Network::reset_all(Host& host) {
  for (const auto& [id, connection] : connections_) {
    for (internal::End& end : connection->ends) {
      if (&end.host() == &host) end.abort();
    }
  }
}

void Network::crash(Host& host, Crash how) {
  trace("crash", host.index_, static_cast<std::uint64_t>(how));
  for (const auto& [id, connection] : connections_) {
    for (internal::End& end : connection->ends) {
      if (&end.host() != &host) continue;
      how == Crash::Loud ? end.abort() : end.vanish();
    }
  }
  while (!host.ports_.empty()) host.ports_.begin()->second->close();
  for (internal::Connector* connector : connectors_) {
    if (&connector->from() == &host) connector->fail(ENETDOWN);
  }
  host.state_ = how == Crash::Loud ? Host::State::Down : Host::State::Unplugged;
  host.loop_.stop();
}

void Network::restart(Host& host) {
  trace("restart", host.index_, 0);
  host.state_ = Host::State::Up;
  host.loop_.resume();
  retry_stalled();
}

void Network::resume(Host& host) {
  if (host.is_up()) host.loop_.resume();
}

bool Network::blocked(const Host& from, const Host& to) const {
  return to.state_ == Host::State::Unplugged || cuts_.contains({from.index_, to.index_});
}

Duration Network::draw_latency() {
  const Duration least = std::max(weather_.latency_min, kLatencyMin);
  const Duration spread = weather_.latency_max - least;
  if (spread <= Duration::zero()) return least;
  return least + Duration(static_cast<Duration::rep>(
                     random_.below(static_cast<std::uint64_t>(spread.count()) + 1)));
}

std::size_t Network::maybe_torn(std::size_t bytes) {
  if (weather_.torn_per_thousand == 0 || !random_.chance(weather_.torn_per_thousand)) return bytes;
  return static_cast<std::size_t>(random_.below(bytes)) + 1;
}

Network::StreamPair Network::make_connection(Host& client, Host& server, int server_port) {
  const std::uint64_t id = next_connection_++;
  auto connection = std::make_unique<internal::Connection>(*this, client, server, id);
  const std::string client_name = fmt::format("{}:{}", client.name(), client.free_port());
  const std::string server_name = fmt::format("{}:{}", server.name(), server_port);
  StreamPair pair{
      .client = std::make_unique<internal::SimStream>(connection->ends[0], server_name),
      .server = std::make_unique<internal::SimStream>(connection->ends[1], client_name)};
  connections_.emplace(id, std::move(connection));
  return pair;
}

void Network::retry_stalled() {
  for (const auto& [id, connection] : connections_) {
    for (internal::End& end : connection->ends) end.retry();
  }
}

void Network::trace(std::string_view what, std::uint64_t subject, std::uint64_t value) {
  const auto mix = [this](std::uint64_t byte) {
    trace_hash_ = (trace_hash_ ^ byte) * 0x100000001b3U;
  };
  for (const char character : what) mix(static_cast<unsigned char>(character));
  const auto time = static_cast<std::uint64_t>(loop_.now().time_since_epoch().count());
  for (const std::uint64_t number : {time, subject, value}) {
    for (unsigned shift = 0; shift < 64; shift += 8) mix((number >> shift) & 0xffU);
  }
  if (tracer_) tracer_(fmt::format("{} {} {} {}", time, what, subject, value));
}

void Network::sweep_soon() {
  if (!sweep_timer_.pending()) sweep_timer_.set(loop_.now());
}

void Network::sweep() {
  std::erase_if(connections_, [](const auto& entry) {
    const auto& ends = entry.second->ends;
    return !ends[0].attached() && !ends[1].attached();
  });
  std::erase_if(listening_, [](const auto& port) { return port->released(); });
}

}  // namespace muster::sim
