// Link: one connection to another worker, over which messages go both ways.
//
// `send` may be called from any thread and never waits: what the socket takes at once is written by
// the calling thread itself, which saves a switch to another one; the rest waits in a bounded queue
// and is written from the loop. Messages come in on the loop's thread. Large buffers are written
// from where they lie and read to where they stay.
//
// Owned by an agent, lives on its loop: made, told and destroyed there, when nobody is in `send`.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/net/epoll_loop.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/message.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace muster::rpc {

struct LinkOptions {
  std::string peer;  // who it is, for people
  FrameLimits limits;
  // A message is refused while so much waits already: its peer does not read. One message may be
  // larger.
  std::size_t queue_bytes_max = std::size_t{256} << 20U;
};

class Link;

// Told on the loop's thread. May destroy the link.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_message(Link& link, Message message) = 0;
  // The last call: the connection is of no use any more, for this reason.
  virtual void on_lost(Link& link, std::string reason) = 0;
};

class Link {
 public:
  // `socket` is connected, of type stream. Requires: `loop` and `events` outlive it.
  Link(net::EpollLoop& loop, Fd socket, LinkOptions options, LinkEvents& events);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends it, after all that was sent before. Invalid if it does not fit into a frame; Unavailable
  // if too much waits already, or if the connection is lost. What it refers to is kept until it has
  // been written; borrowed memory must stay until then.
  Result<> send(Message message);

  const std::string& peer() const;
  // Not written yet.
  std::size_t queued_bytes() const;
  std::uint64_t sent_bytes() const;
  std::uint64_t received_bytes() const { return received_bytes_; }

 private:
  struct Output;  // what threads share

  void ready(std::uint32_t events);
  // False once the link is gone.
  bool read_some();
  void write_some();
  void lose(std::string reason);

  net::EpollLoop& loop_;
  LinkEvents& events_;
  std::shared_ptr<Output> output_;
  net::FdWatch watch_;
  FrameReader reader_;
  std::uint64_t received_bytes_ = 0;
  bool lost_ = false;
  bool* destroyed_ = nullptr;  // set when a call of ours destroys us
};

}  // namespace muster::rpc
