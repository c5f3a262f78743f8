// Peer: one client of a Hub, without a network. Does for its session what the server's connections
// do: keeps what is unfinished, goes on after a backlog was read, and ends the session when it
// must.
//
// Owned by the test or fuzz target; the Hub outlives it.
#pragma once

#include "muster/base/assert.h"
#include "muster/store/hub.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {

class Peer final : public store::SessionOwner {
 public:
  // Requires: the hub takes the session.
  explicit Peer(store::Hub& hub, std::string_view namespace_name = "") {
    auto opened = hub.open(*this, namespace_name);
    MUSTER_ASSERT(opened.has_value());
    session_ = std::move(*opened);
  }

  // Sends, and reads nothing.
  void send(std::string_view bytes) {
    end_if_told();
    if (session_ == nullptr) return;
    input_ += bytes;
    serve();
  }

  // Everything there is to read, including what is served only because of the reading.
  std::string read() {
    while (session_ != nullptr && !session_->output().empty()) {
      unread_ += session_->output();
      session_->sent(session_->output().size());
      end_if_told();
      serve();
    }
    end_if_told();
    return std::exchange(unread_, {});
  }

  // Reads `bytes` of what is there, and nothing is served because of it.
  std::string read_some(std::size_t bytes) {
    std::string piece(session_->output().substr(0, bytes));
    session_->sent(piece.size());
    return piece;
  }

  // The client goes away.
  void close() { session_.reset(); }

  // The connection is over, or will be as soon as it is looked at.
  bool closed() const { return session_ == nullptr || !close_reason_.empty(); }
  // Why the server ended it; empty if it did not.
  const std::string& close_reason() const { return close_reason_; }
  // How often the session said that there is something to send.
  int told_of_output() const { return told_of_output_; }
  // Sent and not yet used up by the session.
  std::size_t held_back_bytes() const { return input_.size(); }
  // Requires: it is not over.
  store::Session& session() { return *session_; }

 private:
  void output_added() override { ++told_of_output_; }
  void must_close(std::string reason) override {
    if (close_reason_.empty()) close_reason_ = std::move(reason);
  }

  void serve() {
    if (session_ == nullptr) return;
    // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
    const std::vector<char> exact(input_.begin(), input_.end());
    std::size_t consumed = 0;
    const auto received = session_->receive({exact.data(), exact.size()}, consumed);
    MUSTER_ASSERT(consumed <= input_.size());
    input_.erase(0, consumed);
    if (!received) must_close(received.error().message);
    end_if_told();
  }

  // Not inside must_close: that comes while another session is at work.
  void end_if_told() {
    if (session_ == nullptr || close_reason_.empty()) return;
    unread_ += session_->output();
    session_.reset();
  }

  std::unique_ptr<store::Session> session_;
  std::string input_;
  std::string unread_;  // what the session left behind when it ended
  std::string close_reason_;
  int told_of_output_ = 0;
};

}  // namespace muster::tests
