// Proxy: stands between a client and an etcd member and spoils what a test asks it to. On the
// test's loop.
#pragma once

#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/net/transport.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <list>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster::etcd::testing {

class Proxy {
 public:
  // Requires: `loop` outlives it.
  Proxy(net::EpollLoop& loop, net::Endpoint member)
      : loop_(loop), transport_(loop), member_(std::move(member)) {
    auto listener = transport_.listen(
        {"127.0.0.1", 0},
        [this](std::unique_ptr<net::Stream> stream) { scope_.start(serve(std::move(stream))); });
    listener_ = std::move(*listener);
  }
  net::Endpoint endpoint() const { return {"127.0.0.1", listener_->port()}; }

  enum class Fault {
    None,
    // The request is carried out, and the connection closed instead of the answer.
    LoseAnswer,
    // The request is swallowed, and the connection closed.
    LoseRequest,
    // The answer is held back until `release`.
    HoldAnswer,
    // The request is held back until `release`, and delivered then, though its sender is gone.
    HoldRequest,
  };
  // Spoils the next request whose first bytes contain `text`, once.
  void spoil_next(Fault fault, std::string text) {
    fault_ = fault;
    text_ = std::move(text);
    spoiled_count_ = 0;
  }
  void release() {
    is_released_ = true;
    wake_all();
  }
  // How many requests were spoiled so far.
  int spoiled_count() const { return spoiled_count_; }
  // Held requests that were delivered and answered after `release`.
  int delivered_late_count() const { return delivered_late_count_; }
  int request_count() const { return request_count_; }
  int connection_count() const { return connection_count_; }

  // Nothing passes any more, in either direction; connections stay open, and new ones are taken.
  void freeze() { is_frozen_ = true; }
  void thaw() {
    is_frozen_ = false;
    wake_all();
  }

 private:
  // Waits for one side of a connection.
  class Readiness final : public net::StreamEvents {
   public:
    void on_readable() override { fire(); }
    void on_writable() override { fire(); }
    Oneshot<bool>* waiter = nullptr;
    net::Stream* stream = nullptr;

   private:
    void fire() {
      if (stream != nullptr) stream->want(false, false);
      if (waiter != nullptr) waiter->set(true);
    }
  };

  void wake_all() {
    for (Oneshot<bool>* const waiter : gate_) waiter->set(true);
  }
  // Passes when nothing is frozen or held.
  struct GatePlace {
    std::list<Oneshot<bool>*>& gate;
    std::list<Oneshot<bool>*>::iterator at;
    ~GatePlace() { gate.erase(at); }
  };
  Task<void> pass_gate(bool held) {
    while (is_frozen_ || (held && !is_released_)) {
      Oneshot<bool> woken(loop_);
      const GatePlace place{gate_, gate_.insert(gate_.end(), &woken)};
      co_await woken;
    }
  }

  struct Link {
    std::unique_ptr<net::Stream> client;
    std::unique_ptr<net::Stream> member;
    Fault fault = Fault::None;
    std::string swallowed = {};
  };

  Task<void> serve(std::unique_ptr<net::Stream> client) {
    ++connection_count_;
    auto member = co_await transport_.connect(member_);
    if (!member) co_return;
    Link link{std::move(client), std::move(*member)};
    Oneshot<bool> done(loop_);
    TaskScope both;
    both.start(forward(link, true, done));
    both.start(forward(link, false, done));
    co_await done;
  }

  Task<void> forward(Link& link, bool to_member, Oneshot<bool>& done) {
    net::Stream& from = to_member ? *link.client : *link.member;
    Readiness readiness;
    readiness.stream = &from;
    from.set_events(&readiness);
    std::array<char, 16384> buffer{};
    while (true) {
      const net::Transfer read = from.read(std::span<char>(buffer));
      if (read.kind == net::Transfer::Kind::WouldBlock) {
        Oneshot<bool> ready(loop_);
        readiness.waiter = &ready;
        from.want(true, false);
        co_await ready;
        readiness.waiter = nullptr;
        continue;
      }
      if (read.kind != net::Transfer::Kind::Moved) {
        break;
      }
      const std::string_view data(buffer.data(), read.bytes);
      if (to_member) {
        if (data.starts_with("POST")) note_request(link, data);
        if (link.fault == Fault::LoseRequest || link.fault == Fault::HoldRequest) {
          link.swallowed += data;
          if (!is_whole(link.swallowed)) continue;
          ++spoiled_count_;
          if (link.fault == Fault::LoseRequest) break;
          scope_.start(deliver_late(link.swallowed));
          continue;
        }
      } else {
        if (link.fault == Fault::LoseAnswer) break;
        const bool held = link.fault == Fault::HoldAnswer;
        co_await pass_gate(held);
        link.fault = Fault::None;
      }
      co_await pass_gate(false);
      net::Stream& to = to_member ? *link.member : *link.client;
      std::string_view rest = data;
      // A test's messages are small; a loopback socket takes them whole, or nearly.
      while (!rest.empty()) {
        const net::Transfer written = to.write(std::span<const std::string_view>(&rest, 1));
        if (written.kind == net::Transfer::Kind::Moved) {
          rest.remove_prefix(written.bytes);
        } else if (written.kind == net::Transfer::Kind::WouldBlock) {
          const TimePoint soon = loop_.now() + std::chrono::milliseconds(1);
          co_await sleep_until(loop_, soon);
        } else {
          break;
        }
      }
    }
    done.set(true);
  }

  // Sends a request that its sender has given up, on a connection of its own.
  Task<void> deliver_late(std::string request) {
    co_await pass_gate(true);
    auto member = co_await transport_.connect(member_);
    if (!member) co_return;
    std::string_view rest = request;
    (*member)->write(std::span<const std::string_view>(&rest, 1));
    // Until it is answered.
    Readiness readiness;
    Oneshot<bool> ready(loop_);
    readiness.waiter = &ready;
    readiness.stream = member->get();
    (*member)->set_events(&readiness);
    (*member)->want(true, false);
    co_await ready;
    ++delivered_late_count_;
  }

  void note_request(Link& link, std::string_view data) {
    ++request_count_;
    if (fault_ == Fault::None || data.find(text_) == std::string_view::npos) return;
    link.fault = std::exchange(fault_, Fault::None);
    is_released_ = false;
    if (link.fault == Fault::LoseAnswer || link.fault == Fault::HoldAnswer) ++spoiled_count_;
  }

  // Whether the body is as long as the head says.
  static bool is_whole(std::string_view request) {
    constexpr std::string_view kLength = "Content-Length: ";
    const std::size_t length = request.find(kLength);
    const std::size_t head_end = request.find("\r\n\r\n");
    if (length == std::string_view::npos || head_end == std::string_view::npos) return false;
    const int body_bytes = std::atoi(request.data() + length + kLength.size());
    return request.size() >= head_end + 4 + static_cast<std::size_t>(body_bytes);
  }

  net::EpollLoop& loop_;
  net::TcpTransport transport_;
  const net::Endpoint member_;
  std::unique_ptr<net::Listener> listener_;
  Fault fault_ = Fault::None;
  std::string text_;
  int spoiled_count_ = 0;
  int request_count_ = 0;
  int connection_count_ = 0;
  int delivered_late_count_ = 0;
  bool is_frozen_ = false;
  bool is_released_ = false;
  std::list<Oneshot<bool>*> gate_;
  TaskScope scope_;  // last
};

inline void PrintTo(Proxy::Fault fault, std::ostream* out) {
  constexpr std::array<std::string_view, 5> kNames = {"None", "AnswerLost", "RequestLost",
                                                      "AnswerHeld", "RequestLate"};
  *out << kNames[static_cast<std::size_t>(fault)];
}

}  // namespace muster::etcd::testing
