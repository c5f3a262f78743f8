// What tests of streams share: a simple owner of a stream, and small helpers around it.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace muster::tests {

// The owner of one stream, as simple as can be: reads all there is, writes all it was given.
class Talker final : public net::StreamEvents {
 public:
  explicit Talker(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {
    stream_->set_events(this);
    update();
  }

  void send(std::string_view text) {
    outgoing_ += text;
    update();
  }
  void set_reading(bool reading) {
    reading_ = reading;
    update();
  }
  void shutdown_write() { stream_->shutdown_write(); }
  void close() { stream_.reset(); }
  net::Stream& stream() { return *stream_; }

  const std::string& received() const { return received_; }
  std::size_t unsent_bytes() const { return outgoing_.size() - outgoing_start_; }
  bool ended() const { return ended_; }
  // The errno of the read or write that failed; 0 if none did.
  int failure() const { return failure_; }
  bool was_called_inline() const { return called_inline_; }

 private:
  void on_readable() override {
    called_inline_ = called_inline_ || in_call_;
    char buffer[16 * 1024];
    in_call_ = true;
    const net::Transfer moved = stream_->read(buffer);
    in_call_ = false;
    if (moved.kind == net::Transfer::Kind::Moved) received_.append(buffer, moved.bytes);
    if (moved.kind == net::Transfer::Kind::End) ended_ = true;
    if (moved.kind == net::Transfer::Kind::Failed) failure_ = moved.error_number;
    update();
  }

  void on_writable() override {
    called_inline_ = called_inline_ || in_call_;
    const std::string_view pieces[] = {std::string_view(outgoing_).substr(outgoing_start_)};
    in_call_ = true;
    const net::Transfer moved = stream_->write(pieces);
    in_call_ = false;
    if (moved.kind == net::Transfer::Kind::Moved) outgoing_start_ += moved.bytes;
    if (moved.kind == net::Transfer::Kind::Failed) failure_ = moved.error_number;
    update();
  }

  void update() {
    in_call_ = true;
    stream_->want(reading_ && !ended_ && failure_ == 0, unsent_bytes() > 0 && failure_ == 0);
    in_call_ = false;
  }

  std::unique_ptr<net::Stream> stream_;
  std::string outgoing_;
  std::size_t outgoing_start_ = 0;  // what is before it has been written
  std::string received_;
  bool reading_ = true;
  bool ended_ = false;
  int failure_ = 0;
  bool in_call_ = false;
  bool called_inline_ = false;
};

// Calls functions; for tests that look at the events themselves.
class EventProbe final : public net::StreamEvents {
 public:
  std::function<void()> readable = [] {};
  std::function<void()> writable = [] {};

 private:
  void on_readable() override { readable(); }
  void on_writable() override { writable(); }
};

using ConnectResult = Result<std::unique_ptr<net::Stream>>;

inline Task<void> connect_into(net::Transport& transport, net::Endpoint endpoint,
                               std::optional<ConnectResult>& result) {
  Task<ConnectResult> task = transport.connect(std::move(endpoint));
  result.emplace(co_await task);
}

// Text in which every place can be told from its neighbours, so that a lost or doubled piece shows.
inline std::string numbered_text(std::size_t bytes) {
  std::string text;
  for (std::size_t line = 0; text.size() < bytes; ++line) text += std::to_string(line) + '\n';
  text.resize(bytes);
  return text;
}

}  // namespace muster::tests
