// Progress decides which workers have not started in time, and which have stopped making progress.
//
// Pure: no I/O, no clock. A worker is told apart by its local rank. Two deadlines, both optional:
//
//  - start: a worker must say `ready` that long after its start;
//  - hang: a worker that has said `alive` must say it again in that time. Programs that never say
//    it are not watched, unless `hang_from_start`.
//
// Owned by one agent for one round of workers, on its loop.
#pragma once

#include "muster/base/clock.h"

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::watchdog {

struct ProgressOptions {
  Duration start_timeout = Duration(-1);  // negative: none
  Duration hang_timeout = Duration(-1);   // negative: none
  bool hang_from_start = false;           // the start counts as the first `alive`
};

struct Late {
  enum class Kind { NotReady, Hung };
  int worker = 0;
  Kind kind = Kind::NotReady;
  Duration silence{};  // since the start, or since the last sign of life
  Duration limit{};    // what it should have been at most

  friend bool operator==(const Late&, const Late&) = default;
};

// "was not ready 30s after its start", "made no progress for 1m".
std::string describe(const Late& late);

class Progress {
 public:
  // All workers start at `now`. Requires: worker_count >= 0.
  Progress(ProgressOptions options, int worker_count, TimePoint now);

  // One worker was started again: everything begins anew for it. Also for one that had ended.
  void restarted(int worker, TimePoint now);

  // What workers say. A worker that has ended, or is not there at all, is ignored. `ready` is a
  // sign of life too, but does not begin the watch for more of them. True if it was the first time.
  bool ready(int worker, TimePoint now);
  bool alive(int worker, TimePoint now);

  // The worker has ended or is being stopped: nothing is expected of it any more.
  void ended(int worker);

  // Who is late, by deadline. Each deadline that is missed is told once; a hang is told again only
  // if the worker has said something in between.
  std::vector<Late> check(TimePoint now);

  // When `check` can next find someone.
  std::optional<TimePoint> next_deadline() const;

  // False while one that has not ended has not said `ready`, whether or not there is a deadline.
  bool all_ready() const;
  bool is_ready(int worker) const;
  // The last sign of life; nothing if there was none since the start.
  std::optional<TimePoint> last_alive(int worker) const;

  // For the health check: how long the most silent of the workers that are watched has been
  // silent; zero if none is watched. Without a hang deadline, those that have said `alive` count.
  Duration silence(TimePoint now) const;

 private:
  struct Worker {
    TimePoint started;
    std::optional<TimePoint> last_alive;
    TimePoint ready_by = kNever;
    TimePoint alive_by = kNever;
    bool has_said_alive = false;
    bool is_watched = false;  // has said `alive`, or is expected to
    bool is_ready = false;
    bool has_ended = false;
  };
  // Ordered by time, then rank, then kind, so that the same events always give the same answer.
  struct Deadline {
    TimePoint when;
    int worker;
    Late::Kind kind;
    friend auto operator<=>(const Deadline&, const Deadline&) = default;
  };

  Worker* find(int worker);
  const Worker* find(int worker) const;
  void begin(int worker, TimePoint now);
  void sign_of_life(int worker, TimePoint now);
  void move_deadline(int worker, Late::Kind kind, TimePoint when);

  ProgressOptions options_;
  std::vector<Worker> workers_;
  std::set<Deadline> deadlines_;
};

}  // namespace muster::watchdog
