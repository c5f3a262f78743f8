// Link: one connection to another worker, over which messages go both ways.
//
// `send` may be called from any thread and never waits: what the stream takes at once is written by
// the calling thread itself, which saves a switch to another one; the rest waits in a queue and is
// written from the loop. While one thread writes, others only put their messages behind. It takes
// whatever it is given, and says when it is full: who can be held back, and how, its owner knows.
//
// Messages come in on the loop's thread, or on a thread that waits for one of them and meanwhile
// reads by itself (`read_while`), awake or asleep: an answer then reaches it without any other
// thread. Several that wait, awake, take turns (`take_turns`): each of them reads, and writes, for
// all. Large buffers are written from where they lie and read to where they stay.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/net/epoll_loop.h"
#include "muster/rpc/alarm.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/message.h"
#include "muster/rpc/stream.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {

class Crowd;
class HotLinks;
class Link;
class Throttle;

// Tells when a stream can make progress, as net::FdWatch does. Made and destroyed on the loop's
// thread.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  // EPOLLIN, EPOLLOUT or both; see FdWatch::want, also for who may call it.
  virtual void want(std::uint32_t events) = 0;
};
// The stream outlives the watch.
using WatchStream =
    std::function<std::unique_ptr<StreamWatch>(Stream& stream, std::function<void()> ready)>;
// For streams that have a file descriptor. Requires: `loop` outlives the watches.
WatchStream watch_by(net::EpollLoop& loop);

struct LinkOptions {
  std::string peer;       // who it is, for people
  std::uint64_t tag = 0;  // for its owner
  FrameLimits limits;
  // With more than this waiting to be written it is full: its owner should hold back what it has to
  // send until there is room again, that is, until half of it has been written.
  std::size_t queue_bytes_max = std::size_t{256} << 20U;
  // Whether it also stops reading while it is full: so that a peer that asks for more than it takes
  // has to wait.
  bool reads_while_full = true;
  // Told when there is room again; or nothing.
  std::shared_ptr<Throttle> throttle{};
  // Where a link goes on whose stream the loop can look at for less than it costs to be woken;
  // nothing: it always sleeps. Outlives the link.
  HotLinks* hot = nullptr;
  // Told when several messages come at once; or nothing.
  std::shared_ptr<Crowd> crowd{};
  // How the loop of the link looks at its stream.
  WatchStream watch{};
};

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // Told by the thread that reads, one message after the other; must not wait, nor close the link.
  virtual void on_message(Link& link, Message message) = 0;
  // The last call, on the loop's thread: the connection is of no use any more, for this reason. May
  // close the link.
  virtual void on_lost(Link& link, std::string reason) = 0;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  // On the loop's thread. Requires: `loop` and `events` are there until `close`; `options.watch`
  // watches from that loop.
  static std::shared_ptr<Link> open(Loop& loop, std::unique_ptr<Stream> stream, LinkOptions options,
                                    LinkEvents& events);
  // Use `open`.
  Link(Loop& loop, std::unique_ptr<Stream> stream, LinkOptions options, LinkEvents& events);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends it, after all that was sent before. Any thread. Invalid if it does not fit into a frame;
  // Unavailable if the connection is lost. What it refers to is kept until it has been written;
  // borrowed memory must stay until then, until `take_over`, or until `close`.
  // `Soon` instead of at once: with others that come meanwhile, from the loop, or as soon as
  // somebody waits in `read_while`. For many small messages, each of which would cost a system
  // call. `Later`: when somebody calls `write`. While threads take turns, the next of them writes
  // what is small.
  enum class When { AtOnce, Soon, Later };
  Result<> send(Message message, When when = When::AtOnce);
  void write() { write_some(); }
  // Whoever lent memory to the message with that id wants it back: what of it has not been written
  // is copied, if there is any. Any thread; it may have to wait for one that writes just now.
  void take_over(std::int64_t id);

  // What a thread does between two looks at the stream: nothing; or it sleeps until there may be
  // something, until its alarm rings, or until a time.
  struct Pause {
    const Alarm* alarm = nullptr;
    TimePoint until = kNever;
  };
  // Reads, and writes what waits, in the calling thread until `next` says that it is enough (no
  // pause). Returns at once, false, if another thread does so already, or if the connection is
  // lost.
  bool read_while(const std::function<std::optional<Pause>()>& next);
  // For a thread that waits together with others: while `next` wants to go on, which lets the
  // others run, it is this thread's turn to write what waits and to read, unless another one does
  // so just now. The loop does neither meanwhile.
  void take_turns(const std::function<bool()>& next);
  bool has_turns() const { return turn_takers_ > 0; }
  // For HotLinks, on the loop's thread: one look whether there is something to read or room to
  // write; true if there was. And before the loop sleeps: false if there is something.
  bool poll();
  bool prepare_to_sleep();

  // Too much waits to be written. Any thread.
  bool is_full() const { return is_full_; }
  // Whether the calling thread reads from some link now, and is in `on_message`.
  static bool is_reading_here();
  // Nothing is read while it is held. Any thread; each `hold` with its `release`.
  void hold() { set_held(kHeldByOwner, true); }
  void release() { set_held(kHeldByOwner, false); }
  bool is_held() const { return held_ != 0; }

  // The other side does what it must not: the connection is lost. Any thread.
  void give_up(std::string reason) { lose(std::move(reason)); }
  // On the loop's thread, when it is not in `on_message`. Nobody is told anything after it, and
  // what was to be written is not looked at any more.
  void close();

  // What the other side may send from now on. For `on_message`.
  void set_limits(FrameLimits limits) { reader_.set_limits(limits); }

  bool is_lost() const { return is_lost_ || is_closed_; }
  const std::string& peer() const { return options_.peer; }
  std::uint64_t tag() const { return options_.tag; }
  std::string_view kind() const { return stream_->kind(); }
  // Not written yet.
  std::size_t queued_bytes() const;
  std::uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t received_bytes() const { return received_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Output;

  void ready();
  // What one look at the stream came to.
  enum class Progress {
    Nothing,
    Some,  // and probably all that was there
    Full,  // there is probably more
    Lost,
  };
  // Requires: the lock for reading.
  Progress read_some();
  // Until it is held, or of no use any more; the rest waits. Requires: the lock for reading.
  void deliver(std::vector<Message> messages);
  // A few times while there is more. The last progress, but Some if there was any before.
  Progress read_turn();
  void look_again();
  // Requires: the lock for reading.
  void sleep(const Alarm& alarm, TimePoint until);
  // Nobody but the loop reads any more. Releases the lock for reading.
  void leave_to_loop(std::unique_lock<std::mutex> reading);
  // Unless it is closed: the loop may be gone then, whatever thread still has the link.
  void post(std::function<void()> work);
  void write_some();
  // Writes what waits; requires the lock, and releases it. What is left is written when there is
  // room.
  void flush(std::unique_lock<std::mutex> lock);
  void lose(std::string reason);
  // Whether the loop is to look when there is something to read, or room.
  void want_bytes(bool wanted);
  void set_sleeper(const Alarm* sleeper);
  // How many there are now.
  int set_turn_takers(int change);
  void want_room(bool wanted);
  void update_watch();
  // After the queue has become longer, and shorter. Requires: the lock of the output, which the
  // second one releases meanwhile.
  void look_if_full();
  void look_if_room(std::unique_lock<std::mutex>& lock);
  static constexpr unsigned int kHeldByOwner = 1;
  static constexpr unsigned int kHeldSinceFull = 2;
  void set_held(unsigned int why, bool held);

  Loop& loop_;
  LinkEvents& events_;
  const LinkOptions options_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Output> output_;

  std::mutex reading_;  // held by the thread that reads
  FrameReader reader_;
  std::vector<Message> undelivered_;  // read before it was held; guarded by the lock for reading
  std::atomic<std::uint64_t> received_bytes_ = 0;
  std::atomic<std::uint64_t> sent_bytes_ = 0;
  std::atomic<bool> has_output_ = false;
  std::atomic<bool> is_full_ = false;     // changed with the lock of the output
  std::atomic<unsigned int> held_ = 0;    // why nothing is read
  std::atomic<bool> has_missed_ = false;  // the loop could not look because another thread read
  std::atomic<bool> is_lost_ = false;
  std::atomic<bool> is_closed_ = false;

  std::mutex watching_;  // guards what follows
  std::unique_ptr<StreamWatch> watch_;
  bool wants_bytes_ = true;
  bool wants_room_ = false;
  const Alarm* sleeper_ = nullptr;    // a thread that is woken in the place of the loop
  std::atomic<int> turn_takers_ = 0;  // may be read without the lock
};

}  // namespace muster::rpc
