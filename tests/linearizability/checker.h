// The linearizability checker: could a store that does one operation at a time have given these
// answers?
//
// A history is linearizable if every operation can be given one instant between its invocation and
// its return so that performing all of them in that order gives exactly the answers seen. Keys are
// independent of each other, so each is checked alone. The search is that of Wing and Gong with
// Lowe's memory of configurations: an operation may come next if none that is still missing
// returned before it was invoked, and a configuration (which operations have been placed, and the
// value they lead to) is explored once. Five reductions keep it small; none changes the verdict:
//
//  1. An operation whose answer says that it changed nothing is placed as soon as its answer fits.
//  2. An operation without an answer need not be placed at all. So of two configurations that
//     differ only in those, the one that has placed fewer of them stands for both.
//  3. Operations without an answer that ask for the same thing are placed in the order of their
//     invocation.
//  4. Values that no operation of the history can tell apart count as one value.
//  5. An operation without an answer is not placed if all it does is to replace a value by one
//     about which nothing is ever asked.
//
// Pure: no I/O, no clock, no threads.
#pragma once

#include "tests/linearizability/history.h"

#include <cstddef>
#include <string>

namespace muster::linearizability {

// More answered operations than this under way on one key at one time are not checked but given up
// on.
inline constexpr std::size_t kConcurrentMax = 64;

struct CheckOptions {
  // How many configurations are explored for one key before the checker gives up; each costs about
  // 100 bytes.
  std::size_t configurations_max = 2'000'000;

  // A Get over the wire waits for the key and then reads it, in two requests; if the key is deleted
  // in between, the server answers with an empty value. When set, an empty answer to Get also fits
  // an absent key.
  bool get_of_deleted_is_empty = false;
};

struct Verdict {
  enum class Kind {
    Linearizable,
    NotLinearizable,
    GaveUp,  // a limit was reached before an answer was found: the history may be right or wrong
  };
  Kind kind = Kind::Linearizable;
  std::string key;           // the key found wrong or given up on
  std::string explanation;   // for people, several lines; empty if linearizable
  std::size_t explored = 0;  // configurations, over all keys

  bool ok() const { return kind == Kind::Linearizable; }
};

// Every key is absent at first. Of several wrong keys, the one that went wrong first is explained;
// a wrong key is reported before one given up on. Requires: an operation with an answer returned no
// earlier than it was invoked.
Verdict check(const History& history, const CheckOptions& options);

// The sequential store: performs `call` on the value of its key and answers. A Get of an absent
// key, which would wait, is answered with No.
Answer perform(const Call& call, Value& value);

// One line: `compare_set "a" to "b" -> yes "b"`.
std::string describe(const Operation& operation);

}  // namespace muster::linearizability
