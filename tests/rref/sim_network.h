// Workers with real ledgers and real retry schedules, and a network between them that loses,
// delays, repeats and reorders, on virtual time and from one seed.
//
// Two workers talk within a session, as processes that know each other's incarnation do: when one
// dies, or each takes the other for dead, the session is over, both learn of it at their own times,
// and nothing that was sent in it arrives in the next.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/random.h"
#include "muster/rpc/retry_schedule.h"
#include "muster/rref/ledger.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::rref::testing {

using namespace std::chrono_literals;
using rpc::CallError;
using rpc::CallErrorKind;
using rpc::MessageType;

// How bad the day is, in events of a thousand.
struct Weather {
  std::uint64_t lost = 0;
  std::uint64_t refused = 0;  // it is known that nothing was sent
  std::uint64_t twice = 0;
  std::uint64_t late = 0;  // by seconds instead of milliseconds
};

struct Answer {
  bool ok = true;
  std::string payload;
  std::vector<ForkData> forks;
  CallError error;
};
inline Answer failure(CallErrorKind kind, std::string text, bool sent) {
  Answer answer;
  answer.ok = false;
  answer.error = {kind, std::move(text), {}, sent};
  return answer;
}

struct Value {
  bool exists = false;
  bool is_held = false;  // by the tables
  int handle_count = 0;
};
struct Handle {
  GlobalId rref;
  GlobalId fork;  // of a user
  WorkerId owner = 0;
  bool is_owner = false;
};
using Respond = std::function<void(Answer)>;

// One process: a ledger and what its shell would keep.
struct Process {
  Process(WorkerId number, std::int64_t first) : id(number), ids(first), ledger({number}, ids) {}

  WorkerId id;
  bool is_alive = true;
  IdSource ids;
  Ledger ledger;
  std::map<WorkerId, std::uint64_t> sessions;  // 0: not known, or lost

  rpc::RetrySchedule schedule;
  std::map<rpc::RetryEntry, Effects::Send> sending;
  std::set<Ticket> abandoned;

  std::vector<Handle> handles;          // of the program
  std::map<GlobalId, int> user_counts;  // of handles with this fork
  std::map<GlobalId, Value> values;
  std::map<GlobalId, std::vector<Respond>> waiting;  // fetches
};
using ProcessPtr = std::shared_ptr<Process>;

class Network {
 public:
  explicit Network(std::uint64_t seed) : random(seed) {}

  void at(Duration delay, std::function<void()> what) {
    events_.push({now_ + delay, next_event_++, std::move(what)});
  }
  bool step() {
    if (events_.empty()) return false;
    Event event = events_.top();
    events_.pop();
    now_ = event.when;
    event.what();
    return true;
  }
  TimePoint now() const { return now_; }
  TimePoint next() const { return events_.empty() ? kNever : events_.top().when; }

  Duration some(std::uint64_t milliseconds_max) {
    return std::chrono::milliseconds(random.below(milliseconds_max + 1));
  }

  using Handler = std::function<void(Process&, const Respond&)>;
  // Calls `done` once, unless `from` dies first.
  void call(const ProcessPtr& from, WorkerId to, Handler handler, Respond done, Duration timeout) {
    auto call = std::make_shared<Call>(Call{from, std::move(done), false});
    ++open_calls;
    at(timeout, [this, call] { finish(*call, failure(CallErrorKind::Timeout, "time", true)); });
    const std::uint64_t session = from->sessions[to];
    const bool is_self = from->id == to;
    if (session == 0 || (!is_self && random.chance(weather.refused))) {
      const auto kind = session == 0 ? CallErrorKind::Rejected : CallErrorKind::Injected;
      at(0ms, [this, call, kind] { finish(*call, failure(kind, "not sent", false)); });
      return;
    }
    if (!is_self && random.chance(weather.lost)) {
      if (random.chance(500)) break_off(call);
      return;
    }
    const std::uint64_t copies = !is_self && random.chance(weather.twice) ? 2 : 1;
    for (std::uint64_t copy = 0; copy < copies; ++copy) {
      at(delay(), [this, call, handler, to, session] { deliver(call, handler, to, session); });
    }
  }

  ProcessPtr find(WorkerId id) const {
    const auto found = processes.find(id);
    return found == processes.end() ? nullptr : found->second;
  }

  Random random;
  Weather weather;
  std::map<WorkerId, ProcessPtr> processes;  // that live
  std::size_t open_calls = 0;

 private:
  struct Event {
    TimePoint when;
    std::uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::tie(when, number) > std::tie(other.when, other.number);
    }
  };
  struct Call {
    ProcessPtr from;
    Respond done;
    bool is_over = false;
  };

  Duration delay() { return random.chance(weather.late) ? some(8000) : some(50); }
  void break_off(const std::shared_ptr<Call>& call) {
    at(delay(), [this, call] { finish(*call, failure(CallErrorKind::Unreachable, "cut", true)); });
  }
  void finish(Call& call, const Answer& answer) {
    if (std::exchange(call.is_over, true)) return;
    --open_calls;
    if (call.from->is_alive) call.done(answer);
  }
  void deliver(const std::shared_ptr<Call>& call, const Handler& handler, WorkerId to,
               std::uint64_t session) {
    const ProcessPtr process = find(to);
    const WorkerId from = call->from->id;
    if (process == nullptr || process->sessions[from] != session) return break_off(call);
    handler(*process, [this, call, to, session](const Answer& answer) {
      const bool is_self = call->from->id == to;
      if (!is_self && random.chance(weather.lost)) return;
      at(delay(), [this, call, answer, to, session] {
        if (call->from->sessions[to] == session) finish(*call, answer);
      });
    });
  }

  TimePoint now_{};
  std::priority_queue<Event> events_;
  std::uint64_t next_event_ = 0;
};

}  // namespace muster::rref::testing
