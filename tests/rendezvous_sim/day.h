// Day: what happens to a group of nodes, drawn from one seed.
//
// Some nodes, each with an agent as `muster run` has one: it joins, runs its workers for a while,
// and joins again when it is told to, or when its workers fail. On a bad day messages are slow and
// torn, connections break, hosts are cut off, stopped, crash and come back as somebody else, clocks
// run fast and slow, and the store server loses its memory. In the end all is healed. Then, within
// a bounded time, everybody who lives must be in one round, or be a spare of a full one, and agree
// with all others; or, if the run was closed, have heard of it.
#pragma once

#include "muster/base/random.h"
#include "tests/rendezvous_sim/world.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

struct Plan {
  WorldOptions world;
  std::size_t node_count = 0;
  int fault_count = 0;
  bool restarts_server = false;
  bool closes = false;
  bool has_skew = false;  // the hosts' clocks show different times and do not run alike
};

Plan draw_plan(std::uint64_t seed, bool hosted);
std::string describe(const Plan& plan);

class Day {
 public:
  explicit Day(Plan plan);
  ~Day();

  // What went wrong, in a few lines; empty if nothing did.
  std::string run();

  // Two numbers that stand for all that has happened, and when; to compare two runs. (Not the
  // network's trace: in which order a server that dies lets go of its connections, is not the same
  // every time, and means nothing.)
  std::pair<std::uint64_t, Duration> story() {
    return {world_.ledger().story(), world_.now().time_since_epoch()};
  }
  std::size_t join_count() { return world_.ledger().join_count(); }
  std::size_t round_count() { return world_.ledger().round_count(); }
  // How long it took until all had met, after the last fault.
  Duration settled_after() const { return settled_after_; }
  // Gets a line for everything that nodes and store come to, for people.
  void set_narrator(std::function<void(std::string_view line)> narrator);
  // Every clock shows so much more than it would.
  void set_clocks_ahead(Duration ahead) { clocks_ahead_ = ahead; }

 private:
  // One node as its machine runs it: a process at a time.
  struct Agent {
    std::string host_name;
    Process* process = nullptr;  // nothing while it is down
    enum class Phase { Opening, Joining, Running, Leaving, Over } phase = Phase::Opening;
    std::optional<Place> place;       // while running
    std::optional<ErrorKind> ending;  // why it is over
    std::string trouble;              // an error that no agent should meet
  };

  Task<void> live(Agent& agent);
  Task<void> run_workers(Agent& agent);
  Task<void> leave(Agent& agent);
  Task<void> close(Agent& agent);

  void start(Agent& agent);
  void inject();
  void heal();
  std::string run_faults();
  std::string wait_for_peace();
  std::string trouble();
  std::string report();
  std::string describe(const Agent& agent);
  void narrate();
  bool all_met();
  bool all_over();

  Plan plan_;
  Random random_;
  World world_;
  std::vector<std::unique_ptr<Agent>> agents_;
  bool quiet_ = false;  // workers do not fail any more
  bool closing_ = false;
  Duration clocks_ahead_ = Duration::zero();
  Duration settled_after_ = Duration::zero();
  std::function<void(std::string_view)> narrator_;
  std::map<std::string, std::string> narrated_;  // the last line about each
};

}  // namespace muster::rendezvous::testing
