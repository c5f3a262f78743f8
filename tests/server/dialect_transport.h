// DialectTransport: to the clients that connect through it, a Muster server is one of PyTorch's.
//
// It changes what a client asks before it knows the server, never what is answered: the question
// for the extension becomes one for a key that does not exist, and what such a server answers by
// ending the connection becomes bytes to which Muster's answer is the same. That is the probe for
// Legacy, and for Modern everything that does not begin with it. All else goes through untouched.
#pragma once

#include "muster/base/task.h"
#include "muster/net/transport.h"
#include "muster/wire/store_protocol.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster::tests {

class DialectStream final : public net::Stream {
 public:
  DialectStream(std::unique_ptr<net::Stream> inner, wire::Dialect dialect)
      : inner_(std::move(inner)), dialect_(dialect) {}

  net::Transfer write(std::span<const std::string_view> pieces) override {
    if (dialect_ == wire::Dialect::Extension) return inner_->write(pieces);
    std::string text;
    for (const std::string_view piece : pieces) text += piece;
    const bool probes = text == wire::kProbe;
    const bool refuses = dialect_ == wire::Dialect::Legacy ? probes : !probes;
    if (first_ && refuses) text.assign(text.size(), '\xff');
    first_ = false;
    // Its first byte, so that a write that is torn inside the key is no exception.
    const std::size_t key = text.find(wire::kExtensionKey);
    if (key != std::string::npos) text[key] = '?';
    const std::string_view changed = text;
    return inner_->write({&changed, 1});
  }

  net::Transfer read(std::span<char> into) override { return inner_->read(into); }
  void set_events(net::StreamEvents* events) override { inner_->set_events(events); }
  void want(bool readable, bool writable) override { inner_->want(readable, writable); }
  void shutdown_write() override { inner_->shutdown_write(); }
  const std::string& peer() const override { return inner_->peer(); }

 private:
  std::unique_ptr<net::Stream> inner_;
  const wire::Dialect dialect_;
  bool first_ = true;
};

// Owned by the test; lives on the loop of `inner`, which outlives it.
class DialectTransport final : public net::Transport {
 public:
  DialectTransport(net::Transport& inner, wire::Dialect dialect)
      : inner_(inner), dialect_(dialect) {}

  // Of the connections that are opened from now on.
  void set_dialect(wire::Dialect dialect) { dialect_ = dialect; }

  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint endpoint) override {
    auto stream = co_await inner_.connect(std::move(endpoint));
    if (!stream) co_return fail(stream.error());
    std::unique_ptr<net::Stream> changed =
        std::make_unique<DialectStream>(std::move(*stream), dialect_);
    co_return changed;
  }

  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint& endpoint,
      std::function<void(std::unique_ptr<net::Stream>)> accepted) override {
    return inner_.listen(endpoint, std::move(accepted));
  }

 private:
  net::Transport& inner_;
  wire::Dialect dialect_;
};

}  // namespace muster::tests
