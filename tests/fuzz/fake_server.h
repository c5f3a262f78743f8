// FakeServer: the other side of a client's connections, played from a text that the fuzzer wrote.
//
// The text says what comes on each connection, in blocks. A block can be read once the client has
// written something since the last one, so a conversation can be played as it was; what the client
// writes is thrown away. Bytes move in pieces of any size.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster::tests {

// What comes on one connection.
struct Script {
  std::deque<std::string> blocks;
  bool ends = true;  // in the middle of everything; otherwise it goes silent
};

// A byte in front of each block: 0 to 252 is its size, 253 a block of 253 bytes or whatever is
// left, 254 silence for the rest of this connection, 255 its end. The rest is for the next
// connection.
inline std::deque<Script> parse_scripts(std::string_view text) {
  std::deque<Script> scripts(1);
  while (!text.empty()) {
    const auto tag = static_cast<unsigned char>(text[0]);
    text.remove_prefix(1);
    if (tag >= 254) {
      scripts.back().ends = tag == 255;
      scripts.emplace_back();
      continue;
    }
    const std::string_view block = text.substr(0, tag);
    scripts.back().blocks.emplace_back(block);
    text.remove_prefix(block.size());
  }
  return scripts;
}

class FakeStream final : public net::Stream {
 public:
  // Requires: `loop` and `random` outlive the stream.
  FakeStream(Loop& loop, Random& random, Script script)
      : loop_(loop), random_(random), script_(std::move(script)) {}

  net::Transfer read(std::span<char> into) override {
    if (!has_something()) return {net::Transfer::Kind::WouldBlock, 0, 0};
    if (script_.blocks.empty()) {
      if (random_.chance(500)) return {net::Transfer::Kind::End, 0, 0};
      return {net::Transfer::Kind::Failed, 0, ECONNRESET};
    }
    std::string& block = script_.blocks.front();
    const std::size_t size = std::min({into.size(), block.size(), piece()});
    std::copy_n(block.begin(), size, into.begin());
    block.erase(0, size);
    if (block.empty()) next_block();
    return {size > 0 ? net::Transfer::Kind::Moved : net::Transfer::Kind::WouldBlock, size, 0};
  }

  net::Transfer write(std::span<const std::string_view> pieces) override {
    if (random_.chance(100)) return {net::Transfer::Kind::WouldBlock, 0, 0};
    std::size_t offered = 0;
    for (const std::string_view one : pieces) offered += one.size();
    written_ = true;
    update();
    return {net::Transfer::Kind::Moved, std::min(offered, piece()), 0};
  }

  void set_events(net::StreamEvents* events) override { events_ = events; }
  void want(bool readable, bool writable) override {
    wants_reading_ = readable;
    wants_writing_ = writable;
    update();
  }
  void shutdown_write() override {}
  const std::string& peer() const override { return peer_; }

 private:
  std::size_t piece() { return random_.chance(500) ? 1 + random_.below(16) : 1 << 16U; }

  void next_block() {
    script_.blocks.pop_front();
    written_ = false;
  }

  bool has_something() const { return script_.blocks.empty() ? script_.ends : written_; }

  void update() {
    const bool wanted = (wants_reading_ && has_something()) || wants_writing_;
    if (!wanted || ready_.queued()) return;
    loop_.soon(
        ready_, [](void* stream) { static_cast<FakeStream*>(stream)->call(); }, this);
  }

  void call() {
    const std::weak_ptr<bool> alive = alive_;
    if (wants_writing_) events_->on_writable();
    // Whoever was called may have destroyed the stream.
    if (alive.expired()) return;
    if (wants_reading_ && has_something()) events_->on_readable();
    if (!alive.expired()) update();
  }

  Loop& loop_;
  Random& random_;
  Script script_;
  net::StreamEvents* events_ = nullptr;
  bool wants_reading_ = false;
  bool wants_writing_ = false;
  bool written_ = false;  // since the last block
  std::string peer_ = "the fuzzer";
  Ready ready_;
  // Shared with `call`, weakly, for as long as that runs.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Connects as often as there are scripts.
class FakeServer final : public net::Transport {
 public:
  // Requires: `loop` and `random` outlive the server and its streams.
  FakeServer(Loop& loop, Random& random, std::deque<Script> scripts)
      : loop_(loop), random_(random), scripts_(std::move(scripts)) {}

  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint) override {
    if (scripts_.empty()) co_return fail(ErrorKind::Unavailable, "connection refused");
    Script script = std::move(scripts_.front());
    scripts_.pop_front();
    std::unique_ptr<net::Stream> stream =
        std::make_unique<FakeStream>(loop_, random_, std::move(script));
    co_return stream;
  }

  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint&, std::function<void(std::unique_ptr<net::Stream>)>) override {
    return fail(ErrorKind::Unimplemented, "nobody listens here");
  }

 private:
  Loop& loop_;
  Random& random_;
  std::deque<Script> scripts_;
};

}  // namespace muster::tests
