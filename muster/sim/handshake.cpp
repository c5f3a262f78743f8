#include "muster/sim/handshake.h"

#include "muster/base/error.h"
#include "muster/sim/connection.h"
#include "muster/sim/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace muster::sim::internal {
namespace {

// As long as a kernel waits before it repeats its first request for a connection.
constexpr Duration kRetryPause = std::chrono::seconds(1);

}  // namespace

Port::Port(Network& network, Host& host, int number, AcceptFunction accepted)
    : network_(network),
      host_(host),
      number_(number),
      accepted_(std::move(accepted)),
      dispatch_(host.loop(), [this] { dispatch(); }) {}

bool Port::full() const { return backlog_.size() >= kBacklogMax; }

void Port::push(std::unique_ptr<net::Stream> stream) {
  backlog_.push_back(std::move(stream));
  notify();
}

void Port::set_accepting(bool accepting) {
  accepting_ = accepting;
  notify();
}

void Port::notify() {
  if (open_ && accepting_ && !backlog_.empty() && !dispatch_.pending())
    dispatch_.set(host_.loop().now());
}

void Port::dispatch() {
  // One a turn: each call may pause or destroy the listener.
  if (!open_ || !accepting_ || backlog_.empty()) return;
  std::unique_ptr<net::Stream> stream = std::move(backlog_.front());
  backlog_.pop_front();
  network_.trace("accept", static_cast<std::uint64_t>(number_), backlog_.size());
  accepted_(std::move(stream));
  notify();
}

void Port::close() {
  if (!open_) return;
  open_ = false;
  dispatch_.cancel();
  host_.ports_.erase(number_);
  for (const std::unique_ptr<net::Stream>& stream : backlog_)
    static_cast<SimStream&>(*stream).end().abort();
  backlog_.clear();
}

void Port::release() {
  close();
  released_ = true;
  network_.sweep_soon();
}

Connector::Connector(Network& network, Host& from, net::Endpoint endpoint, ConnectOutcome& outcome)
    : network_(network),
      from_(from),
      endpoint_(std::move(endpoint)),
      outcome_(outcome),
      give_up_(after(network.loop().now(), network.weather().silence_max)),
      timer_(network.loop(), [this] { step(); }) {
  network_.connectors_.push_back(this);
  if (!from_.is_up()) {
    fail(ENETDOWN);
    return;
  }
  to_ = from_.is_own_address(endpoint_.host) ? &from_ : network_.find_host(endpoint_.host);
  if (to_ == nullptr) {
    outcome_.set(muster::fail(
        ErrorKind::Unavailable,
        fmt::format("cannot connect to {}:{}: unknown host", endpoint_.host, endpoint_.port)));
    return;
  }
  network_.trace("connect", from_.index_, to_->index_);
  timer_.set(network_.loop().now() + network_.draw_latency());
}

Connector::~Connector() { std::erase(network_.connectors_, this); }

void Connector::fail(int error_number) {
  timer_.cancel();
  outcome_.set(muster::fail(ErrorKind::Unavailable,
                            fmt::format("cannot connect to {}:{}: {}", endpoint_.host,
                                        endpoint_.port, describe_errno(error_number))));
}

void Connector::step() {
  if (stage_ == Stage::Asking) {
    ask();
  } else if (network_.blocked(*to_, from_)) {
    wait_and_retry();
  } else if (stage_ == Stage::Refused) {
    fail(ECONNREFUSED);
  } else {
    network_.trace("connected", from_.index_, to_->index_);
    outcome_.set(std::move(stream_));
  }
}

void Connector::ask() {
  if (network_.blocked(from_, *to_) || network_.blocked(*to_, from_)) {
    wait_and_retry();
    return;
  }
  const auto found = to_->ports_.find(endpoint_.port);
  if (found == to_->ports_.end()) {
    stage_ = Stage::Refused;
  } else if (found->second->full()) {
    wait_and_retry();
    return;
  } else {
    Network::StreamPair pair = network_.make_connection(from_, *to_, endpoint_.port);
    stream_ = std::move(pair.client);
    found->second->push(std::move(pair.server));
    stage_ = Stage::Answered;
  }
  timer_.set(network_.loop().now() + network_.draw_latency());
}

void Connector::wait_and_retry() {
  const TimePoint now = network_.loop().now();
  if (now >= give_up_) {
    fail(ETIMEDOUT);
    return;
  }
  timer_.set(std::min(now + kRetryPause, give_up_));
}

}  // namespace muster::sim::internal
