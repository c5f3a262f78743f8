// A Host and several nodes that say anything at any time, lose their connections, come back with
// true and false memories of where they were, while time passes and the server is restarted. After
// every step the state of each run is one that can be, and whoever was told of the same round was
// told the same.
//
// The input is a list of steps: a byte that says what is done, one that says by which line, and
// what else that needs.
#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/rendezvous/host.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/fake_line.h"
#include "tests/rendezvous/invariants.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

constexpr std::size_t kLineCount = 6;
constexpr std::size_t kStepsMax = 300;

class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  unsigned next() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  std::string take(std::size_t size) {
    std::string bytes(rest_.substr(0, size));
    rest_.remove_prefix(bytes.size());
    return bytes;
  }

 private:
  std::string_view rest_;
};

class Play {
 public:
  explicit Play(std::string_view input) : input_(input) { restart(); }

  void run() {
    for (std::size_t step = 0; step < kStepsMax && !input_.empty(); ++step) {
      const unsigned what = input_.next();
      Line& line = lines_[input_.next() % kLineCount];
      switch (what % 8) {
        case 0:
        case 1:
          open(line);
          break;
        case 2:
        case 3:
          say(line);
          break;
        case 4:
          lose(line);
          break;
        case 5:
          pass();
          break;
        case 6:
          garble(line);
          break;
        case 7:
          if (input_.next() % 4 == 0) restart();
          break;
      }
      look_around();
    }
    // Everything that was begun comes to an end.
    for (Line& line : lines_) lose(line);
    loop_.advance(std::chrono::minutes(5));
    look_around();
    for (const char* run_id : kRuns) {
      const Group* group = host_->find("", run_id);
      MUSTER_ASSERT(group == nullptr || group->seat_count() == 0);
    }
    MUSTER_ASSERT(!loop_.next_event());
  }

 private:
  static constexpr const char* kRuns[] = {"run", "other"};
  struct Line {
    std::unique_ptr<testing::FakeLine> line;
    std::size_t node = 0;
    bool is_other = false;  // which run it is about
    bool open = false;
  };
  struct Past {
    std::optional<Place> place;
    bool closed = false;
  };

  void restart() {
    for (Line& line : lines_) lose(line);
    host_ = std::make_unique<Host>(loop_, random_);
    rounds_.clear();
    seen_.clear();
  }

  void open(Line& line) {
    if (line.open) lose(line);
    const unsigned flags = input_.next();
    const unsigned who = input_.next();
    line.node = who % 5;
    Past& past = pasts_[line.node];
    Hello hello;
    line.is_other = (flags & 1) != 0;
    hello.run_id = kRuns[line.is_other ? 1 : 0];
    hello.joins = (flags & 2) != 0;
    hello.observes = (flags & 0xE0) == 0xE0;
    hello.closes = (flags & 0x1C) == 0x1C;
    hello.node = {std::string(1, static_cast<char>('a' + line.node / 2)), 1, 0, line.node};
    hello.settings.min_nodes = 2;
    hello.settings.max_nodes = who > 250 ? 4 : 3;
    hello.settings.timeouts.last_call = std::chrono::seconds(10);
    hello.settings.run_id = hello.run_id;
    hello.place = past.place;
    hello.knows_closed = past.closed;
    if ((flags & 0x60) == 0x60) {  // a false memory
      const unsigned lie = input_.next();
      hello.place = Place{{lie % 3 + 1, lie / 3 % 3}, lie / 9 % 2, 2 + lie / 18 % 2};
      hello.knows_closed = lie > 200;
    }
    line.line = std::make_unique<testing::FakeLine>();
    line.open = true;
    host_->opened(*line.line, "", encode(hello));
  }

  void say(Line& line) {
    const unsigned kind = input_.next();
    if (!line.open) return;
    Said said;
    said.kind = static_cast<Said::Kind>(1 + kind % 6);
    // Most runs should not be closed at once.
    if (said.kind == Said::Kind::Close && kind < 200) said.kind = Said::Kind::Join;
    const Past& past = pasts_[line.node];
    if (said.kind == Said::Kind::Join && past.place) said.after = past.place->id;
    host_->heard(*line.line, encode(said));
  }

  void lose(Line& line) {
    if (!line.open) return;
    take(line);
    if (!line.open) return;
    line.open = false;
    host_->ended(*line.line, store::Service::End::Lost);
  }

  void garble(Line& line) {
    const std::string bytes = input_.take(input_.next() % 64);
    if (line.open) {
      host_->heard(*line.line, bytes);
    } else {
      line.line = std::make_unique<testing::FakeLine>();
      line.node = 0;
      const auto hello = decode_hello(bytes);
      line.is_other = hello && hello->run_id == kRuns[1];
      line.open = true;
      host_->opened(*line.line, "", bytes);
    }
  }

  void pass() {
    constexpr Duration kSteps[] = {Duration(1),
                                   std::chrono::milliseconds(100),
                                   std::chrono::milliseconds(500),
                                   std::chrono::seconds(4),
                                   std::chrono::seconds(10),
                                   std::chrono::seconds(15)};
    loop_.advance(kSteps[input_.next() % std::size(kSteps)]);
  }

  // What the line was told, and whether it is still there.
  void take(Line& line) {
    MUSTER_ASSERT(!line.line->garbled());
    for (const Told& told : line.line->take()) {
      Past& past = pasts_[line.node];
      if (told.kind == Told::Kind::Joined) joined(line, told.place);
      if (told.kind == Told::Kind::Joined) past.place = told.place;
      if (told.kind == Told::Kind::Failed) past.place.reset();
      if (told.kind == Told::Kind::Status) past.closed = told.status.closed;
    }
    if (line.line->ended()) line.open = false;
  }

  void joined(const Line& line, const Place& place) {
    MUSTER_ASSERT(place.rank >= 0 && place.rank < place.world_size);
    // False memories can give both runs the same birth.
    Round& round = rounds_[{line.is_other, place.id.birth, place.id.round}];
    if (round.world_size == 0) round.world_size = place.world_size;
    MUSTER_ASSERT(round.world_size == place.world_size);
    MUSTER_ASSERT(round.nodes.emplace(place.rank, line.node).first->second == line.node);
  }

  void look_around() {
    for (Line& line : lines_) {
      if (line.open) take(line);
    }
    for (const char* run_id : kRuns) {
      const Group* group = host_->find("", run_id);
      if (group == nullptr) continue;
      const State& state = group->state();
      const std::string wrong =
          testing::what_is_wrong_with(state, state.min_nodes, state.max_nodes);
      if (!wrong.empty()) log::error("fuzz", "{}", wrong);
      MUSTER_ASSERT(wrong.empty());
      Seen& seen = seen_[run_id];
      // Another birth is another run.
      if (seen.birth == state.birth) {
        MUSTER_ASSERT(state.round >= seen.round);
      }
      MUSTER_ASSERT(state.closed || !seen.closed);
      seen = {state.birth, state.round, state.closed};
      (void)group->snapshot(loop_.now());
    }
  }

  struct Round {
    std::int64_t world_size = 0;
    std::map<std::int64_t, std::size_t> nodes;  // by rank
  };
  struct Seen {
    std::uint64_t birth = 0;
    std::uint64_t round = 0;
    bool closed = false;
  };

  Input input_;
  sim::Loop loop_;
  Random random_{1};
  Line lines_[kLineCount];
  Past pasts_[5];
  std::map<std::tuple<bool, std::uint64_t, std::uint64_t>, Round> rounds_;
  std::map<std::string, Seen> seen_;
  std::unique_ptr<Host> host_;
};

}  // namespace
}  // namespace muster::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::log::set_level(muster::log::Level::Error);
  muster::rendezvous::Play play({reinterpret_cast<const char*>(data), size});
  play.run();
  return 0;
}
