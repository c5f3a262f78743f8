#include "tests/rendezvous/scenario.h"

#include "muster/rendezvous/host_protocol.h"
#include "tests/rendezvous/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace muster::rendezvous::testing {
namespace {

std::vector<std::string> words_of(std::string_view line) {
  std::istringstream stream{std::string(line)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string name_in_text(const Node& node) {
  return node.nonce == 1 ? node.addr : fmt::format("{}#{}", node.addr, node.nonce);
}

Node node_of(const std::string& name) {
  const std::size_t hash = name.find('#');
  Node node;
  node.addr = name.substr(0, hash);
  node.pid = 1;
  node.nonce = hash == std::string::npos ? 1 : std::strtoull(&name[hash + 1], nullptr, 10);
  return node;
}

template <typename Nodes>
std::string list(std::string_view title, const Nodes& nodes, bool with_ranks) {
  std::string names;
  for (const auto& entry : nodes) {
    if (!names.empty()) names += ' ';
    if constexpr (requires { entry.second; }) {
      names += name_in_text(entry.first);
      if (with_ranks) names += fmt::format(":{}", entry.second);
    } else {
      names += name_in_text(entry);
    }
  }
  return names.empty() ? "" : fmt::format(" {}=({})", title, names);
}

std::string describe_time(TimePoint when) { return muster::describe(when - TimePoint()); }

}  // namespace

// A node as its driver behaves.
struct Scenario::Player {
  Node node;
  Settings settings;
  std::optional<Place> place;
  bool knows_closed = false;
  std::unique_ptr<FakeLine> line;
  Group::Seat* seat = nullptr;
};

Scenario::Scenario() {
  settings_.run_id = "run";
  settings_.keep_alive_interval = std::chrono::hours(1);
  settings_.keep_alive_max_attempt = 1;
  restart();
}
Scenario::~Scenario() = default;

std::string Scenario::run(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::string result;
  bool in_outcome = false;
  for (std::string line; std::getline(stream, line);) {
    if (line == "----") {
      result += line + '\n' + take_outcome();
      in_outcome = true;
    } else if (line.empty()) {
      result += '\n';
      in_outcome = false;
    } else if (!in_outcome) {
      result += line + '\n';
      obey(line);
    }
  }
  return result;
}

void Scenario::complain(std::string_view what) {
  if (problem_.empty()) problem_ = fmt::format("at {}: {}", describe_time(now_), what);
}

void Scenario::obey(std::string_view line) {
  if (line.starts_with('#')) return;
  std::vector<std::string> words = words_of(line);
  if (words.front() == "options") return set_options(words, settings_);
  Duration when{};
  if (words.size() < 3 || words[0] != "at" || !parse_duration(words[1], when))
    return complain(fmt::format("this is no command: {}", line));
  words.erase(words.begin(), words.begin() + 2);
  pass_until(TimePoint(when));
  act(words);
  settle();
}

void Scenario::set_options(const std::vector<std::string>& words, Settings& settings) {
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    Duration length{};
    const bool is_length = parse_duration(value, length);
    if (key == "min") {
      settings.min_nodes = std::atoll(value.c_str());
    } else if (key == "max") {
      settings.max_nodes = std::atoll(value.c_str());
    } else if (key == "last_call" && is_length) {
      settings.timeouts.last_call = length;
    } else if (key == "window" && is_length) {
      settings.keep_alive_interval = length;
    } else if (key == "grace" && is_length) {
      settings.grace = length;
    } else {
      complain(fmt::format("there is no option {}", word));
    }
  }
}

Scenario::Player& Scenario::player(const std::string& name) {
  auto& player = players_[name];
  if (!player) {
    player = std::make_unique<Player>();
    player->node = node_of(name);
    player->settings = settings_;
  }
  return *player;
}

void Scenario::act(const std::vector<std::string>& words) {
  const std::string& what = words[0];
  if (what == "tick") return;
  if (what == "restart") return restart();
  if (words.size() < 2) return complain(fmt::format("who is to {}?", what));
  Player& who = player(words[1]);
  if (what == "join") {
    set_options(words, who.settings);
    if (who.seat == nullptr) return connect(who, true);
    return hear(who, Said::Kind::Join);
  }
  if (what == "connect") return connect(who, false);
  if (who.seat == nullptr) return complain(fmt::format("{} is not connected", words[1]));
  if (what == "lose") return lose(who);
  if (what == "forget") {
    lose(who);
    players_.erase(words[1]);
    return;
  }
  if (what == "leave") {
    who.place.reset();
    return hear(who, Said::Kind::Leave);
  }
  if (what == "close") return hear(who, Said::Kind::Close);
  if (what == "alive") return hear(who, Said::Kind::Alive);
  if (what == "show") return hear(who, Said::Kind::Show);
  complain(fmt::format("nobody can {}", what));
}

void Scenario::connect(Player& player, bool joins) {
  Hello hello;
  hello.run_id = settings_.run_id;
  hello.joins = joins;
  hello.knows_closed = player.knows_closed;
  hello.node = player.node;
  hello.settings = player.settings;
  hello.place = player.place;
  // Through its bytes, as at a Host.
  const auto decoded = decode_hello(encode(hello));
  if (!decoded) return complain(decoded.error().message);
  if (player.line) old_lines_.push_back(std::move(player.line));
  player.line = std::make_unique<FakeLine>();
  const auto seated = group_->sit(*player.line, *decoded, now_);
  player.seat = seated ? seated->seat : nullptr;
  if (!seated) {
    std::string& told = told_[name_in_text(player.node)];
    told += fmt::format("; refused {}", name_of(seated.error().kind));
  }
}

void Scenario::hear(Player& player, Said::Kind kind) {
  Said said;
  said.kind = kind;
  if (kind == Said::Kind::Join && player.place) said.after = player.place->id;
  const auto heard = group_->hear(*player.seat, *decode_said(encode(said)), now_);
  if (heard) return;
  told_[name_in_text(player.node)] += fmt::format("; refused {}", name_of(heard.error().kind));
  lose(player);
}

void Scenario::lose(Player& player) {
  note_what_was_told();
  group_->lose(*player.seat, now_);
  player.seat = nullptr;
  old_lines_.push_back(std::move(player.line));
}

void Scenario::restart() {
  note_what_was_told();
  group_ = std::make_unique<Group>(settings_.run_id, ++births_ * 1000 + 1);
  last_round_ = 0;
  was_closed_ = false;
  for (const auto& [name, player] : players_) {
    player->seat = nullptr;
    if (player->line) old_lines_.push_back(std::move(player->line));
  }
}

void Scenario::pass_until(TimePoint when) {
  if (when < now_) complain("time does not run backwards");
  for (int turns = 0;; ++turns) {
    const TimePoint next = group_->next_deadline();
    if (next > when) break;
    if (next < now_ || turns > 10'000) return complain("time stands still");
    now_ = next;
    group_->tick(now_);
    settle();
  }
  now_ = when;
  group_->tick(now_);
  settle();
}

void Scenario::settle() {
  if (group_->needs_flush(now_)) group_->flush(now_);
  note_what_was_told();
  const State& state = group_->state();
  const std::string wrong = what_is_wrong_with(state, settings_.min_nodes, settings_.max_nodes);
  if (!wrong.empty()) complain(wrong);
  if (state.round < last_round_) complain("the round has decreased");
  if (was_closed_ && !state.closed) complain("the run is open again");
  last_round_ = state.round;
  was_closed_ = state.closed;
}

void Scenario::note_what_was_told() {
  for (const auto& [name, player] : players_) {
    if (!player->line) continue;
    for (const Told& told : player->line->take()) {
      told_[name] += "; " + describe(told);
      if (told.kind == Told::Kind::Joined) player->place = told.place;
      if (told.kind == Told::Kind::Failed) player->place.reset();
      if (told.kind == Told::Kind::Status) player->knows_closed = told.status.closed;
    }
    if (player->line->garbled()) complain("a message that nobody understands");
  }
}

std::string Scenario::describe_state() const {
  const State& state = group_->state();
  std::string text = state.complete ? "complete" : state.deadline ? "last_call" : "forming";
  text += fmt::format(" round={}", state.round);
  if (state.deadline) text += fmt::format(" until={}", describe_time(*state.deadline));
  if (state.complete) text += fmt::format(" size={}", state.world_size);
  if (state.closed) text += " closed";
  if (state.lost) text += " lost";
  text += list("members", state.participants, state.complete);
  text += list("waiting", state.wait_list, false);
  text += list("spares", state.redundancy_list, false);
  return text + '\n';
}

std::string Scenario::take_outcome() {
  std::string text = describe_state();
  for (const auto& [name, told] : std::exchange(told_, {}))
    text += fmt::format("{}: {}\n", name, told.substr(2));
  return text;
}

}  // namespace muster::rendezvous::testing
