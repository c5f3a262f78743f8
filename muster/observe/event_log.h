// EventLog: takes the events of an agent, stamps them, and hands them to its sinks and to whoever
// follows live.
//
// The newest events are kept, so that a reader who comes later sees how things came to be as they
// are. Readers pull: a slow one costs a number, not memory, and is told how many events it missed.
//
// Owned by the agent; lives on its loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/observe/event.h"
#include "muster/observe/wall_clock.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::observe {

// How many events are kept, and how many bytes of them; the newest one is kept whatever its size.
inline constexpr std::size_t kRecentEventsMax = 1024;
inline constexpr std::size_t kRecentEventBytesMax = std::size_t{512} * 1024;

// Where event lines go. Owned by the EventLog, on its loop. A sink never blocks for long and never
// fails the job: what it cannot write it counts, and says so once in the log.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  virtual ~EventSink() = default;

  // One record, without a newline.
  virtual void write(std::string_view line) = 0;
  // Waits until what was written is out of our hands, at most until `deadline`.
  virtual Task<void> drain(TimePoint deadline);
  // True for a sink that drops everything: it is not even asked.
  virtual bool discards() const { return false; }
  // How many records it has lost.
  virtual std::uint64_t lost_count() const { return 0; }
};

class EventReader;

class EventLog {
 public:
  explicit EventLog(WallClock wall_clock = wall_nanoseconds);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void add_sink(std::unique_ptr<EventSink> sink);
  // Rendezvous records have sinks of their own, as PyTorch's have; without one, only live readers
  // see them.
  void add_rendezvous_sink(std::unique_ptr<EventSink> sink);

  void record(Event event);
  void record(RendezvousRecord record);

  // Until every sink has written what it was given, at most until `deadline`.
  Task<void> drain(TimePoint deadline);

  // How many records there have been; the first one has number 1.
  std::uint64_t count() const { return count_; }
  std::uint64_t lost_count() const;
  // Called for every record, for metrics: the event's name ("rendezvous" for those records).
  void set_observer(std::function<void(std::string_view name)> observer) {
    observer_ = std::move(observer);
  }

 private:
  friend class EventReader;
  using Sinks = std::vector<std::unique_ptr<EventSink>>;
  void hand_out(Sinks& sinks, std::string line);
  std::int64_t now_ms() const;

  WallClock wall_clock_;
  Sinks sinks_;
  Sinks rendezvous_sinks_;
  std::function<void(std::string_view)> observer_;
  std::uint64_t count_ = 0;
  std::deque<std::string> recent_;  // the last one has number count_
  std::size_t recent_bytes_ = 0;
  std::vector<EventReader*> readers_;
};

// Follows a log. Owned by whoever reads; may outlive the log, which then has ended.
class EventReader {
 public:
  // Begins behind record number `after`: 0 for all that is kept. Requires: `log` lives.
  EventReader(EventLog& log, std::uint64_t after);
  ~EventReader();
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

  struct Record {
    std::uint64_t number = 0;
    std::string_view line;         // valid until the log records again
    std::uint64_t lost_count = 0;  // records between the last one and this one that are gone
  };
  // The next record; nothing when there is none yet.
  std::optional<Record> next();
  bool has_ended() const { return log_ == nullptr; }
  // Called, not inside `next`, when there may be more or the log has ended; must not destroy
  // readers or record events.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }

 private:
  friend class EventLog;
  EventLog* log_;
  std::uint64_t read_;  // number of the last record that was read
  std::function<void()> wake_;
};

}  // namespace muster::observe
