// Which of a worker's output streams goes where: what --redirects, --tee, --local-ranks-filter and
// the duplicate filters mean.
//
// Pure. The texts are those of torchrun, with whole integers and ranges where it takes one digit:
// "3", "0:1,1:2", "0-3:1,10:3".
#pragma once

#include "muster/base/error.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::logs {

enum class Stream { Out, Err };

// "stdout" or "stderr".
std::string_view name_of(Stream stream);

// A set of streams; the values are the digits that people type.
enum class Mask : std::uint8_t { None = 0, Out = 1, Err = 2, Both = 3 };

bool has(Mask mask, Stream stream);

// Consecutive local ranks, both ends included.
struct RankRange {
  int first = 0;
  int last = 0;

  friend bool operator==(const RankRange&, const RankRange&) = default;
};

// A set of streams for every local rank. Without entries: no stream of any rank.
class StreamMap {
 public:
  StreamMap() = default;
  // The same for all ranks.
  explicit StreamMap(Mask mask) : rest_(mask) {}

  // A later entry wins over an earlier one.
  void set(RankRange ranks, Mask mask) { entries_.push_back({ranks, mask}); }
  Mask of(int local_rank) const;

 private:
  struct Entry {
    RankRange ranks;
    Mask mask = Mask::None;
  };
  Mask rest_ = Mask::None;  // of ranks that no entry names
  std::vector<Entry> entries_;
};

// Ranks as typed: "0,3,8-11". An empty set stands for "no filter" and contains every rank.
class RankSet {
 public:
  void add(RankRange ranks) { ranges_.push_back(ranks); }
  bool is_empty() const { return ranges_.empty(); }
  bool contains(int local_rank) const;

 private:
  std::vector<RankRange> ranges_;
};

// One digit 0-3 for all ranks, or RANKS:MASK pairs joined by commas, where RANKS is a number or
// FIRST-LAST. Ranks that are not named get no stream.
Result<StreamMap> parse_streams(std::string_view text);

// Numbers and FIRST-LAST, joined by commas. Empty text gives the empty set.
Result<RankSet> parse_ranks(std::string_view text);

// Texts joined by commas; a doubled comma stands for a comma inside a text. Empty text gives one
// empty filter, and an empty filter matches every line: whoever wants no filter does not call this.
std::vector<std::string> parse_duplicate_filters(std::string_view text);

// Whether any filter is part of the line.
bool matches_any(const std::vector<std::string>& filters, std::string_view line);

enum class Target {
  Inherit,  // the agent's own stream, without prefix
  Null,     // thrown away
  File,     // a file of its own
  Tee,      // a file of its own and, line by line with a prefix, the agent's stream
};

struct Routing {
  StreamMap redirects;
  StreamMap tee;
  RankSet console_ranks;     // --local-ranks-filter
  bool null_device = false;  // the log folder is the null device: nothing is stored
};

// Tee wins over a redirect. A rank that the filter leaves out keeps its files and loses the
// console. With the null device as log folder a redirected stream is thrown away; a teed one still
// reaches the console, and only its file half is thrown away.
Target target_of(const Routing& routing, int local_rank, Stream stream);

}  // namespace muster::logs
