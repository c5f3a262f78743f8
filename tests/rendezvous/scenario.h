// Scenario: a story about a hosted run, as text that anyone can review.
//
//   # What it shows.
//   options min=2 max=4 last_call=30s
//   at 0s join a
//   at 5s join b
//   ----
//   last_call round=0 until=35s members=(a b)
//
// A block of commands, `----`, what came of it, an empty line; any number of those. First the
// state, then what each node was told, in the order of their names.
//
//   join N [min=… max=…]  leaves its round, if any, and joins the next; connects first if need be
//   connect N             opens a conversation without joining: looks, or comes back
//   leave N, close N, alive N, show N
//   lose N                its connection breaks
//   forget N              its process is gone: when it comes back, it has no past
//   restart               the server is, and knows nothing; all connections break
//   tick                  nothing but time passes
//
// `a#2` is a second node that calls itself a. Options: min, max, last_call, window (how long a node
// may be silent, an hour unless it is what the scenario is about), grace. Time passes as it does at
// a Host, and the state's invariants are checked all along.
#pragma once

#include "muster/base/clock.h"
#include "muster/rendezvous/group.h"
#include "muster/rendezvous/settings.h"
#include "tests/rendezvous/fake_line.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous::testing {

class Scenario {
 public:
  Scenario();
  ~Scenario();

  // Runs it: the text with what really came of each block in the place of what was expected.
  std::string run(std::string_view text);
  // What cannot be, if that has happened.
  const std::string& problem() const { return problem_; }

 private:
  struct Player;

  void obey(std::string_view line);
  void set_options(const std::vector<std::string>& words, Settings& settings);
  void act(const std::vector<std::string>& words);
  void connect(Player& player, bool joins);
  void hear(Player& player, Said::Kind kind);
  void lose(Player& player);
  void restart();
  void pass_until(TimePoint when);
  // After everything that happens.
  void settle();
  void note_what_was_told();
  Player& player(const std::string& name);
  std::string describe_state() const;
  std::string take_outcome();
  void complain(std::string_view what);

  Settings settings_;
  std::uint64_t births_ = 0;
  TimePoint now_;
  std::map<std::string, std::unique_ptr<Player>> players_;
  std::map<std::string, std::string> told_;  // in this block
  std::vector<std::unique_ptr<FakeLine>> old_lines_;
  std::uint64_t last_round_ = 0;
  bool was_closed_ = false;
  std::string problem_;
  std::unique_ptr<Group> group_;
};

}  // namespace muster::rendezvous::testing
