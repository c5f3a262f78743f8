// History: what clients asked a key-value store, what it answered, and when.
//
// Times are readings of one logical clock (see Recorder): if an operation returned at a smaller
// time than another was invoked, it was over before the other began. Nothing is known about the
// order of the rest.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace muster::linearizability {

enum class Kind { Set, Get, TryGet, Add, CompareSet, Erase, Append };

constexpr bool is_read(Kind kind) { return kind == Kind::Get || kind == Kind::TryGet; }

// What a client asked for.
struct Call {
  Kind kind = Kind::TryGet;
  std::string key{};
  std::string value{};     // what Set stores, what Append adds to the end, what CompareSet desires
  std::string expected{};  // CompareSet only
  std::int64_t delta = 0;  // Add only

  friend bool operator==(const Call&, const Call&) = default;
};

// What the store answered.
//
//   Set, Append    Done
//   Get            Done and the value
//   TryGet         Yes and the value, or No
//   Add            Done and the sum in decimal, or Invalid: the value is no number, nothing changed
//   CompareSet     Yes or No (stored or not) and the value that the store sent along
//   Erase          Yes or No (there was such a key or not)
struct Answer {
  enum class Status { Done, Yes, No, Invalid };
  Status status = Status::Done;
  std::string value{};

  friend bool operator==(const Answer&, const Answer&) = default;
};

enum class Outcome {
  Ok,                // `answer` came at `returned`
  FailedNotApplied,  // refused: it had no effect and never will
  Unknown,           // no answer: took effect at any time since `invoked`, or still will, or never
};

inline constexpr std::uint64_t kNotReturned = std::numeric_limits<std::uint64_t>::max();

struct Operation {
  int client = 0;
  Call call;
  Answer answer;  // meaningful only if the outcome is Ok
  Outcome outcome = Outcome::Unknown;
  std::uint64_t invoked = 0;
  std::uint64_t returned = kNotReturned;  // likewise
};

using History = std::vector<Operation>;

// The value of one key; nothing if the key is absent.
using Value = std::optional<std::string>;

}  // namespace muster::linearizability
