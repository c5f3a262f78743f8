// The two ends of a simulated connection, and the wire between them. Inside sim only.
#pragma once

#include "muster/base/loop.h"
#include "muster/net/transport.h"

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>

namespace muster::sim {
class Host;
class Network;
}  // namespace muster::sim

namespace muster::sim::internal {

struct Segment {
  enum class Kind { Data, Fin, Ack, Reset, Probe };
  Kind kind = Kind::Data;
  TimePoint arrives;
  std::string data;
};

// One side: what the host's kernel knows about the connection, and the wire that leads from here to
// the other side. Owned by its Connection, which outlives every stream and every callback of it.
class End {
 public:
  End(Network& network, Host& host, std::uint64_t connection_id);
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void set_other(End& other) { other_ = &other; }
  Host& host() { return host_; }
  std::uint64_t connection_id() const { return connection_id_; }

  // For the stream. `attach` is its constructor, `close` its destructor.
  void attach() { attached_ = true; }
  bool attached() const { return attached_; }
  void close();
  net::Transfer read(std::span<char> into);
  net::Transfer write(std::span<const std::string_view> pieces);
  void set_events(net::StreamEvents* events);
  void want(bool readable, bool writable);
  void shutdown_write();

  // For the network. `abort` fails this end and sends the other a reset; `vanish` is the silent
  // form.
  void abort();
  void vanish();
  // Sends what a cut has held, if nothing is in the way any more.
  void retry();
  // Looks again whether there is something to tell the stream's owner.
  void notify();

 private:
  bool readable() const;
  bool writable() const;
  bool wanted() const;
  std::size_t window_room() const;
  void send(Segment::Kind kind, std::string data);
  void send_ack();
  void deliver_due();
  void arrive(Segment segment);
  void arrive_data(std::string data);
  void arrive_ack();
  void fail(int error_number);
  void watch_silence();
  void watch_window();
  void probe_window();
  void dispatch();

  Network& network_;
  Host& host_;
  std::uint64_t connection_id_;
  End* other_ = nullptr;

  bool attached_ = false;  // a stream exists
  bool dead_ = false;  // nothing is known about the connection any more; bytes for it are answered
                       // with a reset
  int error_number_ = 0;
  bool fin_sent_ = false;
  bool fin_received_ = false;

  std::string received_;
  std::size_t received_start_ = 0;  // bytes before it are read
  // Totals, in which the end of the stream counts as one byte.
  std::uint64_t sent_ = 0;
  std::uint64_t received_total_ = 0;
  std::uint64_t consumed_total_ = 0;
  // What the other side has told us about its totals.
  std::uint64_t acknowledged_ = 0;
  std::uint64_t acknowledged_consumed_ = 0;

  std::deque<Segment> wire_;
  TimePoint last_arrival_;
  bool stalled_ = false;
  bool ack_on_the_way_ = false;
  bool probe_on_the_way_ = false;
  bool probed_ = false;  // and not heard of since

  net::StreamEvents* events_ = nullptr;
  bool want_readable_ = false;
  bool want_writable_ = false;
  bool dispatching_ = false;
  bool progress_ = false;

  Timer arrival_;
  Timer silence_;
  Timer probe_;
  Timer dispatch_;  // on the host's loop
};

struct Connection {
  Connection(Network& network, Host& client, Host& server, std::uint64_t id)
      : ends{End(network, client, id), End(network, server, id)} {
    ends[0].set_other(ends[1]);
    ends[1].set_other(ends[0]);
  }

  std::array<End, 2> ends;  // client, server
};

class SimStream final : public net::Stream {
 public:
  SimStream(End& end, std::string peer) : end_(end), peer_(std::move(peer)) { end_.attach(); }
  ~SimStream() override { end_.close(); }

  net::Transfer read(std::span<char> into) override { return end_.read(into); }
  net::Transfer write(std::span<const std::string_view> pieces) override {
    return end_.write(pieces);
  }
  void set_events(net::StreamEvents* events) override { end_.set_events(events); }
  void want(bool readable, bool writable) override { end_.want(readable, writable); }
  void shutdown_write() override { end_.shutdown_write(); }
  const std::string& peer() const override { return peer_; }
  End& end() { return end_; }

 private:
  End& end_;
  std::string peer_;
};

}  // namespace muster::sim::internal
