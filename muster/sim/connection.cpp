#include "muster/sim/connection.h"

#include "muster/base/assert.h"
#include "muster/sim/network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace muster::sim::internal {
namespace {

// How much later an event comes again when its handler did nothing about it.
constexpr Duration kIdleEventPause = std::chrono::microseconds(1);
// How often an end that may not send asks whether the other one is still there.
constexpr Duration kProbeInterval = std::chrono::seconds(1);

}  // namespace

using net::Transfer;

End::End(Network& network, Host& host, std::uint64_t connection_id)
    : network_(network),
      host_(host),
      connection_id_(connection_id),
      arrival_(network.loop(), [this] { deliver_due(); }),
      silence_(network.loop(), [this] { fail(ETIMEDOUT); }),
      probe_(network.loop(), [this] { probe_window(); }),
      dispatch_(host.loop(), [this] { dispatch(); }) {}

// ---- what the stream asks for

Transfer End::read(std::span<char> into) {
  if (error_number_ != 0) return {.kind = Transfer::Kind::Failed, .error_number = error_number_};
  const std::size_t available = received_.size() - received_start_;
  if (available == 0) {
    return {.kind = fin_received_ ? Transfer::Kind::End : Transfer::Kind::WouldBlock};
  }
  if (into.empty()) return {.kind = Transfer::Kind::Moved};
  const std::size_t bytes = network_.maybe_torn(std::min(available, into.size()));
  std::memcpy(into.data(), received_.data() + received_start_, bytes);
  received_start_ += bytes;
  consumed_total_ += bytes;
  if (received_start_ == received_.size()) {
    received_.clear();
    received_start_ = 0;
  }
  progress_ = true;
  network_.trace("read", connection_id_, bytes);
  send_ack();
  return {.kind = Transfer::Kind::Moved, .bytes = bytes};
}

Transfer End::write(std::span<const std::string_view> pieces) {
  if (error_number_ != 0) return {.kind = Transfer::Kind::Failed, .error_number = error_number_};
  if (fin_sent_) return {.kind = Transfer::Kind::Failed, .error_number = EPIPE};
  std::size_t total = 0;
  for (const std::string_view piece : pieces) total += piece.size();
  if (total == 0) return {.kind = Transfer::Kind::Moved};
  const std::size_t room = window_room();
  if (room == 0) return {.kind = Transfer::Kind::WouldBlock};

  const std::size_t bytes = network_.maybe_torn(std::min(room, total));
  std::string data;
  data.reserve(bytes);
  for (const std::string_view piece : pieces) data += piece.substr(0, bytes - data.size());
  network_.trace("write", connection_id_, bytes);
  const std::size_t chunk_max = std::max<std::size_t>(network_.weather().chunk_bytes_max, 1);
  for (std::size_t start = 0; start < bytes;) {
    const std::size_t chunk = network_.maybe_torn(std::min(chunk_max, bytes - start));
    send(Segment::Kind::Data, data.substr(start, chunk));
    start += chunk;
  }
  progress_ = true;
  sent_ += bytes;
  if (!silence_.pending()) watch_silence();
  return {.kind = Transfer::Kind::Moved, .bytes = bytes};
}

void End::set_events(net::StreamEvents* events) {
  events_ = events;
  notify();
}

void End::want(bool readable, bool writable) {
  want_readable_ = readable;
  want_writable_ = writable;
  watch_window();
  notify();
}

void End::shutdown_write() {
  if (dead_ || fin_sent_) return;
  fin_sent_ = true;
  sent_ += 1;
  send(Segment::Kind::Fin, {});
  if (!silence_.pending()) watch_silence();
}

void End::close() {
  attached_ = false;
  events_ = nullptr;
  dispatch_.cancel();
  network_.trace("close", connection_id_, received_.size() - received_start_);
  if (!dead_) {
    if (received_start_ < received_.size()) {
      // The other side must learn that what it sent was not taken.
      send(Segment::Kind::Reset, {});
      dead_ = true;
      silence_.cancel();
    } else {
      shutdown_write();
    }
  }
  network_.sweep_soon();
}

// ---- events

bool End::readable() const {
  return error_number_ != 0 || fin_received_ || received_start_ < received_.size();
}

bool End::writable() const { return error_number_ != 0 || fin_sent_ || window_room() > 0; }

bool End::wanted() const {
  if (!attached_ || events_ == nullptr) return false;
  return (want_readable_ && readable()) || (want_writable_ && writable());
}

void End::notify() {
  // During a dispatch, what comes next is decided at its end.
  if (dispatching_ || dispatch_.pending() || !wanted()) return;
  dispatch_.set(host_.loop().now());
}

void End::dispatch() {
  dispatching_ = true;
  progress_ = false;
  // Each call may destroy the stream or change who is told; this object stays until the network's
  // next sweep.
  if (attached_ && events_ != nullptr && want_readable_ && readable()) events_->on_readable();
  if (attached_ && events_ != nullptr && want_writable_ && writable()) events_->on_writable();
  dispatching_ = false;
  if (!wanted()) return;
  const TimePoint now = host_.loop().now();
  dispatch_.set(progress_ ? now : now + kIdleEventPause);
}

// ---- the wire

std::size_t End::window_room() const {
  const std::uint64_t used = sent_ - acknowledged_consumed_;
  const std::size_t window = network_.weather().window_bytes;
  return used >= window ? 0 : window - static_cast<std::size_t>(used);
}

void End::send(Segment::Kind kind, std::string data) {
  const TimePoint arrives =
      std::max(network_.loop().now() + network_.draw_latency(), last_arrival_);
  last_arrival_ = arrives;
  wire_.push_back({.kind = kind, .arrives = arrives, .data = std::move(data)});
  if (wire_.size() == 1 && !stalled_) arrival_.set(arrives);
}

void End::send_ack() {
  // One is enough: it tells the totals of the moment at which it arrives.
  if (ack_on_the_way_ || dead_) return;
  ack_on_the_way_ = true;
  send(Segment::Kind::Ack, {});
}

void End::deliver_due() {
  const TimePoint now = network_.loop().now();
  while (!wire_.empty() && wire_.front().arrives <= now) {
    if (network_.blocked(host_, other_->host_)) {
      stalled_ = true;
      return;
    }
    Segment segment = std::move(wire_.front());
    wire_.pop_front();
    if (segment.kind == Segment::Kind::Ack) ack_on_the_way_ = false;
    if (segment.kind == Segment::Kind::Probe) probe_on_the_way_ = false;
    other_->arrive(std::move(segment));
  }
  if (!wire_.empty()) arrival_.set(wire_.front().arrives);
}

void End::retry() {
  if (!stalled_ || network_.blocked(host_, other_->host_)) return;
  stalled_ = false;
  if (wire_.empty()) return;
  const TimePoint arrives = network_.loop().now() + network_.draw_latency();
  for (Segment& segment : wire_) segment.arrives = std::max(segment.arrives, arrives);
  last_arrival_ = std::max(last_arrival_, arrives);
  arrival_.set(arrives);
}

void End::arrive(Segment segment) {
  if (dead_) {
    if (segment.kind != Segment::Kind::Reset && segment.kind != Segment::Kind::Ack &&
        wire_.empty()) {
      send(Segment::Kind::Reset, {});
    }
    return;
  }
  switch (segment.kind) {
    case Segment::Kind::Data:
      arrive_data(std::move(segment.data));
      return;
    case Segment::Kind::Fin:
      network_.trace("fin", connection_id_, received_total_);
      fin_received_ = true;
      received_total_ += 1;
      send_ack();
      notify();
      return;
    case Segment::Kind::Ack:
      arrive_ack();
      return;
    case Segment::Kind::Probe:
      send_ack();
      return;
    case Segment::Kind::Reset:
      fail(ECONNRESET);
      return;
  }
}

void End::arrive_data(std::string data) {
  const std::uint64_t resets = network_.weather().resets_per_million;
  const bool struck = resets > 0 && network_.random_.below(1'000'000) < resets;
  if (struck || !attached_) {
    abort();
    return;
  }
  network_.trace("data", connection_id_, data.size());
  received_total_ += data.size();
  if (received_.empty()) {
    received_ = std::move(data);
  } else {
    received_.erase(0, std::exchange(received_start_, 0));
    received_ += data;
  }
  send_ack();
  notify();
}

void End::arrive_ack() {
  if (other_->received_total_ > acknowledged_ || std::exchange(probed_, false)) {
    acknowledged_ = other_->received_total_;
    watch_silence();
  }
  acknowledged_consumed_ = other_->consumed_total_;
  notify();
}

void End::watch_silence() {
  if (acknowledged_ == sent_ || dead_) {
    silence_.cancel();
  } else {
    silence_.set(after(network_.loop().now(), network_.weather().silence_max));
  }
}

// An end that may not send has nothing that could be acknowledged. TCP asks the other side now and
// then, and so learns that it is gone.
void End::watch_window() {
  const bool blocked = !dead_ && want_writable_ && !fin_sent_ && window_room() == 0;
  if (blocked && !probe_.pending()) probe_.set(network_.loop().now() + kProbeInterval);
}

void End::probe_window() {
  if (dead_ || !want_writable_ || window_room() > 0) return;
  if (!probe_on_the_way_) {
    probe_on_the_way_ = true;
    probed_ = true;
    send(Segment::Kind::Probe, {});
    if (!silence_.pending()) {
      silence_.set(after(network_.loop().now(), network_.weather().silence_max));
    }
  }
  watch_window();
}

// ---- the end of it

void End::fail(int error_number) {
  if (dead_) return;
  network_.trace("fail", connection_id_, static_cast<std::uint64_t>(error_number));
  vanish();
  error_number_ = error_number;
  notify();
}

void End::abort() {
  if (dead_) return;
  fail(ECONNRESET);
  send(Segment::Kind::Reset, {});
}

void End::vanish() {
  dead_ = true;
  error_number_ = ECONNRESET;
  received_.clear();
  received_start_ = 0;
  wire_.clear();
  stalled_ = false;
  ack_on_the_way_ = false;
  probe_on_the_way_ = false;
  arrival_.cancel();
  silence_.cancel();
  probe_.cancel();
}

}  // namespace muster::sim::internal
