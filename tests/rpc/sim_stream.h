// Streams of a simulated network, as links use them.
#pragma once

#include "muster/net/transport.h"
#include "muster/rpc/link.h"
#include "muster/rpc/stream.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <sys/epoll.h>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

class SimStream final : public Stream {
 public:
  explicit SimStream(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {}

  Result<std::size_t> write(std::span<const iovec> pieces) override {
    std::vector<std::string_view> texts;
    for (const iovec& piece : pieces) {
      texts.emplace_back(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    if (!stream_) return fail(ErrorKind::Unavailable, "it is closed");
    return outcome_of(stream_->write(texts));
  }
  Result<std::size_t> read(std::span<std::byte> into) override {
    if (!stream_) return fail(ErrorKind::Unavailable, "it is closed");
    return outcome_of(stream_->read({reinterpret_cast<char*>(into.data()), into.size()}));
  }
  int fd() const override { return -1; }
  std::uint32_t room_events() const override { return EPOLLOUT; }
  void close() override { stream_.reset(); }
  std::string_view kind() const override { return "simulated"; }

  // For LinkOptions::watch, where all streams are of this kind.
  static std::unique_ptr<StreamWatch> watch(Stream& stream, std::function<void()> ready) {
    return std::make_unique<Watch>(*static_cast<SimStream&>(stream).stream_, std::move(ready));
  }

 private:
  class Watch final : public StreamWatch, private net::StreamEvents {
   public:
    Watch(net::Stream& stream, std::function<void()> ready)
        : stream_(stream), ready_(std::move(ready)) {
      stream_.set_events(this);
    }
    ~Watch() override {
      stream_.want(false, false);
      stream_.set_events(nullptr);
    }
    void want(std::uint32_t events) override {
      stream_.want((events & EPOLLIN) != 0, (events & EPOLLOUT) != 0);
    }

   private:
    void on_readable() override { tell(); }
    void on_writable() override { tell(); }
    void tell() {
      // That may be the end of this object.
      const std::function<void()> ready = ready_;
      ready();
    }

    net::Stream& stream_;
    std::function<void()> ready_;
  };

  static Result<std::size_t> outcome_of(const net::Transfer& transfer) {
    switch (transfer.kind) {
      case net::Transfer::Kind::Moved:
        return transfer.bytes;
      case net::Transfer::Kind::WouldBlock:
        return std::size_t{0};
      case net::Transfer::Kind::End:
        return fail(ErrorKind::Closed, "it closed the connection");
      case net::Transfer::Kind::Failed:
        break;
    }
    return fail(ErrorKind::Unavailable, std::strerror(transfer.error_number));
  }

  std::unique_ptr<net::Stream> stream_;
};

}  // namespace muster::rpc::testing
