// Connection: one non-blocking socket of the load generator, with what was not yet sent and not yet
// understood.
//
// The load generator uses sockets directly instead of muster/net: it must measure the servers
// alike, and the raw echo must show what sockets alone cost. Owned by a SocketDriver or a Crowd, on
// its thread.
#pragma once

#include "bench/protocol.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster::bench {

// Every wait for a server ends after this.
inline constexpr Duration kPatience = std::chrono::seconds(10);

class Connection {
 public:
  // Connects to 127.0.0.1, sends the protocol's hello and reads the reply.
  static Result<Connection> open(int port, const Protocol& protocol, Protocol::Role role);

  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = default;
  // Resets instead of closing politely, so that thousands of connections leave no port waiting.
  ~Connection();

  int fd() const { return fd_.get(); }

  // Bytes to send; `flush` sends them. Afterwards `is_flushed` tells whether the socket took them
  // all.
  std::string& out() { return out_; }
  Result<> flush();
  bool is_flushed() const { return out_.empty(); }

  // Reads once into `scratch` and hands what is there to `consume`, which returns how many bytes it
  // has used. Bytes that were not used are offered again, with more behind them.
  template <typename Consume>
  Result<> receive(std::span<char> scratch, const Consume& consume);

  // Sends what is left and waits for one reply.
  using Parser = std::function<Result<std::optional<Reply>>(std::string_view)>;
  Result<std::string> await_reply(const Parser& parse);

 private:
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  Result<> wait_for(short events) const;
  // The part of `scratch` that was filled; empty if nothing has come.
  Result<std::string_view> read_into(std::span<char> scratch);

  Fd fd_;
  std::string out_;
  std::string partial_;  // received, not understood yet
};

template <typename Consume>
Result<> Connection::receive(std::span<char> scratch, const Consume& consume) {
  const auto fresh = read_into(scratch);
  if (!fresh) return fail(fresh.error());
  if (fresh->empty()) return {};
  if (partial_.empty()) {
    const Result<std::size_t> used = consume(*fresh);
    if (!used) return fail(used.error());
    if (*used < fresh->size()) partial_.assign(fresh->substr(*used));
    return {};
  }
  partial_.append(*fresh);
  const Result<std::size_t> used = consume(std::string_view(partial_));
  if (!used) return fail(used.error());
  partial_.erase(0, *used);
  return {};
}

}  // namespace muster::bench
