// Host: the rendezvous service of a store server. One Group a run, in each namespace.
//
// A thin shell: decodes what nodes say, gives it to their group, and lets the groups' time pass.
// Owned by the program beside the server that it is a service of, and outlives it; lives on the
// server's loop.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/rendezvous/group.h"
#include "muster/store/service.h"

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::rendezvous {

// Runs are remembered as long as the server lives: a closed one must stay closed, and the keys of
// its rounds are still in the store. So their number has a limit.
inline constexpr std::size_t kRunsMax = 100'000;

class Host final : public store::Service {
 public:
  // Requires: `loop` and `random` outlive the host.
  Host(Loop& loop, Random& random);
  ~Host() override;

  void opened(store::Conversation& conversation, std::string_view namespace_name,
              std::string_view message) override;
  void heard(store::Conversation& conversation, std::string_view message) override;
  void ended(store::Conversation& conversation, End how) override;

  // For tests; nothing if there is no such run.
  const Group* find(const std::string& namespace_name, const std::string& run_id) const;

 private:
  struct Run {
    Group group;
    std::string name;
    TimePoint wakes = kNever;  // its place in `wakes_`
    bool to_flush = false;
    // What was logged last.
    std::uint64_t logged_round = 0;
    bool logged_complete = false;
    bool logged_closed = false;

    Run(std::string run_id, std::uint64_t birth) : group(run_id, birth), name(std::move(run_id)) {}
  };
  struct Line {
    Run* run = nullptr;
    Group::Seat* seat = nullptr;  // nothing for an observer
  };

  Run* find_or_add(std::string_view namespace_name, const std::string& run_id);
  void seat(store::Conversation& conversation, Run& run, const Hello& hello);
  void add_line(store::Conversation& conversation, Line line);
  void heard_by_observer(store::Conversation& conversation, Run& run, const Said& said);
  // After anything that happened to a run: what it needs next.
  void tend(Run& run);
  void flush();
  void wake();
  void log_progress(Run& run);

  Loop& loop_;
  Random& random_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Run>> runs_;
  // Each is the note of its conversation, which is how it is found when something is heard.
  std::unordered_map<store::Conversation*, Line> lines_;
  std::set<std::pair<TimePoint, Run*>> wakes_;
  std::vector<Run*> to_flush_;
  Timer timer_;
  Ready flush_;
};

}  // namespace muster::rendezvous
