// CountingTransport: another transport, with a count of what goes over its connections.
#pragma once

#include "muster/net/transport.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace muster::bench {

struct TrafficCount {
  std::uint64_t bytes = 0;  // both ways
  std::uint64_t writes = 0;
  std::uint64_t reads = 0;
};

// Owned by a load generator. Requires: `inner` outlives it, and it outlives its streams.
class CountingTransport final : public net::Transport {
 public:
  explicit CountingTransport(net::Transport& inner) : inner_(inner) {}
  const TrafficCount& count() const { return count_; }

  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint endpoint) override {
    auto stream = co_await inner_.connect(std::move(endpoint));
    if (!stream) co_return stream;
    std::unique_ptr<net::Stream> counting =
        std::make_unique<CountingStream>(count_, std::move(*stream));
    co_return counting;
  }

  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint& endpoint,
      std::function<void(std::unique_ptr<net::Stream>)> accepted) override {
    return inner_.listen(endpoint, std::move(accepted));
  }

 private:
  class CountingStream final : public net::Stream {
   public:
    CountingStream(TrafficCount& count, std::unique_ptr<net::Stream> inner)
        : count_(count), inner_(std::move(inner)) {}

    net::Transfer read(std::span<char> into) override {
      const net::Transfer transfer = inner_->read(into);
      if (transfer.kind == net::Transfer::Kind::Moved) {
        count_.bytes += transfer.bytes;
        ++count_.reads;
      }
      return transfer;
    }
    net::Transfer write(std::span<const std::string_view> pieces) override {
      const net::Transfer transfer = inner_->write(pieces);
      if (transfer.kind == net::Transfer::Kind::Moved) {
        count_.bytes += transfer.bytes;
        ++count_.writes;
      }
      return transfer;
    }
    void set_events(net::StreamEvents* events) override { inner_->set_events(events); }
    void want(bool readable, bool writable) override { inner_->want(readable, writable); }
    void shutdown_write() override { inner_->shutdown_write(); }
    const std::string& peer() const override { return inner_->peer(); }

   private:
    TrafficCount& count_;
    std::unique_ptr<net::Stream> inner_;
  };

  net::Transport& inner_;
  TrafficCount count_;
};

}  // namespace muster::bench
