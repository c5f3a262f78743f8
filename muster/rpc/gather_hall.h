// GatherHall: where the leader of gathers holds those who have come, and decides when all have.
//
// Workers of one set count their gathers, so that one that gave up, or did not hear of the end of
// the last one, still meets the others at the right one. A process that was started again has not
// counted with the others. So all of them begin anew then: the leader begins a new era, and tells
// whoever comes with another one. Whoever has not been told yet comes without one; it has counted
// with the others only if this is the first era of this leader. What ended in an older era stays as
// it ended.
//
// Pure: no I/O, no clock, no threads. Whoever owns it says who came and who is in the set, and
// hands on the replies.
//
// Invariants:
//  1. A gather is complete only when every process that is in the set in that moment has come to
//     the same gather of the same era.
//  2. Nobody hears of an outcome of which it was not a part.
//  3. Whoever comes while the leader is here is answered, or waits at a gather that can still
//     become complete: one on which a worker has given up before it came fails for all.
//  4. A worker that tries again and again leaves few arrivals behind, not all of them.
#pragma once

#include "muster/rpc/call_error.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::rpc {

using GatherValues = std::map<std::string, std::string>;
// The processes of a set, by the names of their workers. The first one leads.
using GatherMembers = std::map<std::string, std::uint64_t>;

// A time in which the processes of a set stayed the same and counted together.
struct GatherEra {
  std::uint64_t leader = 0;  // its process; 0: the leader has not said yet
  std::uint64_t number = 0;  // that process never uses it again

  friend auto operator<=>(const GatherEra&, const GatherEra&) = default;
};

// Which of its gathers a worker has come to.
struct GatherPlace {
  // Whoever has lost count begins a new line, with a higher number. Counts go on from 0 in each
  // line until the leader says that they begin anew.
  std::uint64_t line = 0;
  GatherEra era;
  std::uint64_t count = 0;

  friend auto operator<=>(const GatherPlace&, const GatherPlace&) = default;
};

struct GatherArrival {
  std::string set;
  std::string name;
  std::uint64_t process = 0;
  GatherPlace place;
  // The first place of the same leader for whose outcome this worker still waits.
  std::uint64_t awaits_era = 0;
  std::uint64_t awaits_count = 0;
  // The leader may have had this arrival before.
  bool is_repeat = false;
  // Counts what this worker sends. Of two that come to the same place nobody waits for the one that
  // was sent first, also if it arrives last, by a connection that was lost.
  std::uint64_t attempt = 0;
  // Which process it takes for the leader; 0: any.
  std::uint64_t leader = 0;
  std::string value;
};
template <typename Archive>
void describe_fields(Archive& archive, GatherArrival& arrival) {
  archive(arrival.set, arrival.name, arrival.process, arrival.place.line, arrival.place.era.leader,
          arrival.place.era.number, arrival.place.count, arrival.awaits_era, arrival.awaits_count,
          arrival.is_repeat, arrival.attempt, arrival.leader, arrival.value);
}

enum class GatherVerdict : std::uint8_t {
  Complete,   // here are the values
  Again,      // come again, to `era`
  Elsewhere,  // look again who leads: this worker does not, or does not know who came
  Parting,    // the leader leaves its group; wait until another one leads
};

struct GatherAnswer {
  GatherVerdict verdict = GatherVerdict::Elsewhere;
  GatherEra era;
  std::shared_ptr<const GatherValues> values;  // shared by the answers to all who came
};
template <typename Archive>
void describe_fields(Archive& archive, GatherAnswer& answer) {
  archive(answer.verdict, answer.era.leader, answer.era.number);
  if constexpr (Archive::kReading) {
    auto values = std::make_shared<GatherValues>();
    archive(*values);
    answer.values = std::move(values);
  } else {
    static const GatherValues kNone;
    const GatherValues& values = answer.values ? *answer.values : kNone;
    archive(values);
  }
}

class GatherHall {
 public:
  // Sets that are known at once. Beyond that one is forgotten for which nobody waits.
  static constexpr std::size_t kSetsMax = 256;
  // Those who wait, in all sets together. More are refused.
  static constexpr std::size_t kWaitingMax = 65536;
  // Arrivals of one worker that it has given up on. They count as long as they are there: the
  // others may have come to the same gather in time.
  static constexpr std::size_t kGivenUpMax = 8;
  // Outcomes of one set of which not everybody is known to have heard.
  static constexpr std::size_t kOutcomesMax = 64;

  // Of one who waits for an answer; given by whoever asks, never twice.
  using Ticket = std::uint64_t;
  struct Reply {
    Ticket ticket = 0;
    CallResult<GatherAnswer> answer;
  };
  struct Arrived {
    std::vector<Reply> replies;
    // Nothing more can be said before `look`, once the leader is here.
    bool needs_look = false;
  };

  Arrived arrive(GatherArrival arrival, Ticket ticket);

  // This worker is called `self` and the set is `members` now.
  std::vector<Reply> look(const std::string& set, const std::string& self,
                          const GatherMembers& members);

  // Who has not come to the gather at which `ticket` waits.
  std::vector<std::string> missing(const std::string& set, Ticket ticket) const;
  // The end of that gather, for all, also for those who come too late for it.
  std::vector<Reply> fail(const std::string& set, Ticket ticket, const CallError& error);

  // All who wait in that set, if `first` is the first of them; else nobody.
  std::vector<std::string> waiting_with(const std::string& set, const std::string& first) const;
  // The end of all gathers of that set to which `name` has not come.
  std::vector<Reply> fail_without(const std::string& set, const std::string& name,
                                  const CallError& error);

  // Those who may not have heard yet how their gathers ended, and at which places.
  struct Unsettled {
    std::string set;
    std::string name;
    GatherEra era;
    std::uint64_t count = 0;
  };
  std::vector<Unsettled> unsettled() const;

  // All who wait get that answer.
  std::vector<Reply> dismiss(const CallResult<GatherAnswer>& answer);
  // Likewise, and everything is forgotten.
  std::vector<Reply> clear(const CallResult<GatherAnswer>& answer);
  // How the gather ended to which this one comes, if it did.
  std::optional<CallResult<GatherAnswer>> outcome_of(const GatherArrival& arrival) const;

  std::size_t set_count() const { return sets_.size(); }
  std::size_t waiting_count() const { return waiting_count_; }
  std::size_t outcome_count(const std::string& set) const;

 private:
  // Within the eras of one leader.
  struct Point {
    std::uint64_t era = 0;
    std::uint64_t count = 0;

    friend auto operator<=>(const Point&, const Point&) = default;
  };
  using StrangerKey = std::tuple<std::string, std::uint64_t, GatherPlace>;  // name and process
  struct Waiting {
    GatherArrival arrival;
    Ticket ticket = 0;
  };
  // A gather of the current era that is not over.
  struct Meeting {
    std::map<std::string, Waiting> present;
  };
  struct LineHere {
    std::uint64_t process = 0;
    std::uint64_t number = 0;
    bool was_told = false;  // of the era; else it had just begun
  };
  struct Over {
    Point point;
    CallResult<GatherAnswer> answer;
    std::map<std::string, LineHere> lines;  // of those who came
    GatherMembers unsettled;                // who may not have heard of it
  };
  struct Set {
    GatherEra era;          // number 0: the leader has not been here yet, or does not lead any more
    bool is_first = false;  // no other one was before this era, here
    std::string leader;
    GatherMembers members;
    std::map<std::string, LineHere> lines;  // with which they came to this era
    std::map<std::string, Point> awaits;
    std::map<std::uint64_t, Meeting> meetings;  // by count
    std::map<StrangerKey, Waiting> strangers;   // of whom the leader has yet to say something
    std::deque<Over> over;
    Point forgotten;  // up to here, outcomes that somebody may still ask for may be missing
    std::uint64_t used = 0;
  };

  // Nothing if there is no room.
  Set* enter(const std::string& name);
  void note_settled(Set& set, const GatherArrival& arrival);
  static StrangerKey key_of(const GatherArrival& arrival);
  void drop_strangers(Set& set, const GatherArrival& arrival, Arrived& out);
  static const Over* find_over(const Set& set, const GatherArrival& arrival);
  // False: only `look` can say.
  bool judge(Set& set, Waiting& waiting, Arrived& out);
  // Whether its line is, or can be, one of this era; if not it was answered.
  bool check_line(Set& set, Waiting& waiting, Arrived& out);
  void take_place(Set& set, Waiting waiting, Arrived& out);
  // The later attempt stays there.
  void take_over(Set& set, Waiting& place, Waiting waiting, Arrived& out);
  void reply(const Waiting& waiting, CallResult<GatherAnswer> answer, Arrived& out);
  // Ends the gathers on which that worker has given up.
  void end_given_up(Set& set, const std::string& name, Arrived& out);
  void end(Set& set, std::uint64_t count, const CallResult<GatherAnswer>& answer, Arrived& out);
  void begin_era(Set& set, std::uint64_t leader_process, std::vector<Waiting>& again);
  static void forget_settled(Set& set);
  static std::vector<Waiting> take_strangers(Set& set);
  std::vector<Waiting> take_all(Set& set);

  std::map<std::string, Set> sets_;
  std::size_t waiting_count_ = 0;
  std::uint64_t last_era_ = 0;
  std::uint64_t last_use_ = 0;
};

// Where this worker stands in each of its sets. Pure, like the hall.
class GatherLines {
 public:
  // Beyond that, a line is forgotten at which nobody waits; its set begins anew.
  static constexpr std::size_t kLinesMax = 256;

  // The next place; nothing if there are too many sets at which somebody waits.
  CallResult<GatherPlace> take(const std::string& set);
  // On the way to that leader. Who has counted with another one, and was told nothing, begins anew.
  GatherPlace go_to(const std::string& set, const GatherPlace& mine, std::uint64_t leader);
  // It was complete in that era.
  void came_to(const std::string& set, const GatherPlace& mine, const GatherEra& era);
  // The leader has said where to go from `mine`. Stays there if others have heard more since.
  GatherPlace take_again(const std::string& set, const GatherPlace& mine, const GatherEra& told);
  // Nobody said so. `mine`, also if it was left, unless others have moved on from there.
  GatherPlace keep_or_take(const std::string& set, const GatherPlace& mine);
  // Nobody waits there any more.
  void leave(const std::string& set, const GatherPlace& mine);
  void fill_awaits(GatherArrival& arrival) const;
  // Whether anybody waits there.
  bool waits_at(const std::string& set, const GatherEra& era, std::uint64_t count) const;

  void clear() { lines_.clear(); }
  std::size_t line_count() const { return lines_.size(); }

 private:
  struct Line {
    std::uint64_t number = 0;
    GatherEra era;
    bool was_told = false;    // where to begin to count
    std::uint64_t asked = 0;  // the leader with which it counts, before that one has said anything
    std::uint64_t next = 0;
    std::set<GatherPlace> taken;  // by those who wait
    std::uint64_t used = 0;
  };
  static bool is_at(const Line& line, const GatherPlace& place);
  GatherPlace take_next(Line& line);

  std::map<std::string, Line> lines_;
  std::uint64_t last_number_ = 0;
  std::uint64_t last_use_ = 0;
};

}  // namespace muster::rpc
