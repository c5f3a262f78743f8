// Board: what the agents of one round tell one another, in the round's store.
//
// On entering, every agent says what it brings and is told its place: one write and one read each,
// and two requests of the size of the round at node rank 0. Afterwards the round has one word, the
// first that anyone says: that it begins again, has failed, or is done. Everybody waits for that
// word with one request that the store answers when it is said.
//
// A round of one node needs no store: everything is known here.
//
// Owned by an Agent, one for each round; lives on its loop. Tasks must not outlive the board.
#pragma once

#include "muster/agent/ranks.h"
#include "muster/agent/restarts.h"
#include "muster/agent/supervisor.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/observe/wall_clock.h"
#include "muster/store/store.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

struct Introduction {
  Seat seat;
  std::string host;
  std::vector<FailedRound> failed_rounds;
  // The round it comes from, and how many nodes that had. Nothing for a newcomer.
  struct Origin {
    std::uint64_t round = 0;  // as its members numbered it
    std::int64_t node_count = 0;

    friend bool operator==(const Origin&, const Origin&) = default;
  };
  std::optional<Origin> origin = {};

  friend bool operator==(const Introduction&, const Introduction&) = default;
};

struct Placing {
  Ranks ranks;
  // The number of the round: that of the rendezvous, but never one that a member has been in
  // before, as after a store that was restarted and has forgotten all rounds.
  std::uint64_t round = 0;
  // What the members know together.
  std::vector<FailedRound> failed_rounds;
  // What the wall clock of node rank 0 showed when it wrote this; 0: it did not say.
  std::int64_t written_nanoseconds = 0;
  // How far the wall clock of this node is ahead of that one. Worked out by the reader.
  std::int64_t clock_lead_nanoseconds = 0;

  friend bool operator==(const Placing&, const Placing&) = default;
};

// How far our wall clock is ahead of another one (negative: behind), from three moments that came
// one after the other: we asked, by our clock; the other wrote the answer, by its own; we read it,
// by ours. 0 if the clocks may agree: they are trusted more than a message that may have taken its
// time.
std::int64_t clock_lead(std::int64_t asked, std::int64_t written, std::int64_t answered);

struct Word {
  News news = News::Restart;
  std::int64_t node_rank = 0;  // who said it
  std::string host;
  // Failure records as JSON text; what they hold is not the board's business.
  std::vector<std::string> failures;

  friend bool operator==(const Word&, const Word&) = default;
};

// Texts as they are stored. Reading is for what anybody may have written: Corrupt if it cannot be
// understood.
std::string encode(const Introduction& introduction);
std::string encode(const Placing& placing);
std::string encode(const Word& word);
Result<Introduction> decode_introduction(const std::string& text);
Result<Placing> decode_placing(const std::string& text);
Result<Word> decode_word(const std::string& text);

// What node rank 0 works out for everybody, in the order of node ranks. A round from which not all
// have come back lost a node, and its failures were a consequence of that: it does not count.
// `round` is the rendezvous' number.
std::vector<Placing> place_all(const std::vector<Introduction>& introductions, std::uint64_t round);

class Board {
 public:
  // Requires: `loop` outlives the board. `store` may be empty if `node_count` is 1.
  Board(Loop& loop, std::shared_ptr<store::Store> store, std::int64_t node_rank,
        std::int64_t node_count, std::uint64_t round,
        observe::WallClock wall_clock = observe::wall_nanoseconds);

  // `ready` is carried out by node rank 0 when all have come, and before anybody is told.
  Task<Result<Placing>> introduce(Introduction introduction, TimePoint deadline,
                                  std::function<Task<Result<>>()> ready);

  // Says the round's word, unless somebody was faster; returns the word that stands.
  Task<Result<Word>> say(Word word);
  // Waits for it.
  Task<Result<Word>> wait_word(TimePoint deadline);
  // Nothing if it has not been said yet.
  Task<Result<std::optional<Word>>> look();

  // This node's workers ended well. Whoever is last says that the round is done.
  Task<Result<>> confirm();

  // Failure records besides those of the word, for the report: JSON text, one a line.
  Task<Result<>> add_failures(std::vector<std::string> failures);
  Task<Result<std::vector<std::string>>> failures();

  // Waits until every member has come to the point `name`, so that all have written what they had
  // to say, or whoever hosts the store may leave. False at the deadline or if the store is gone.
  Task<bool> meet(std::string name, TimePoint deadline);
  // Counts this node in without waiting for the others.
  Task<bool> pass(std::string name, TimePoint deadline);

 private:
  bool alone() const { return node_count_ == 1; }
  void settle(Word word);

  Loop& loop_;
  std::shared_ptr<store::Store> store_;  // shared with the handler that gave it
  std::int64_t node_rank_;
  std::int64_t node_count_;
  std::uint64_t round_;  // of the rendezvous
  observe::WallClock wall_clock_;
  // For a round of one.
  std::optional<Word> own_word_;
  Oneshot<bool>* own_waiter_ = nullptr;
  std::vector<std::string> own_failures_;
};

}  // namespace muster::agent
