#include "tests/linearizability/checker.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace muster::linearizability {
namespace {

// --- Counters ----------------------------------------------------------------------------------

// What a counter's text looks like to a reader that stops at the first byte that is not a digit.
// Written anew here, not shared with the store: the checker must not repeat a mistake of what it
// checks.
struct CounterText {
  std::optional<std::int64_t> number;
  // Bytes appended to the text can still change the number.
  bool open = false;
};

CounterText read_counter(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'))) ++at;
  bool negative = false;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) negative = text[at++] == '-';
  const std::uint64_t limit = (std::uint64_t{1} << 63U) - (negative ? 0U : 1U);
  std::uint64_t magnitude = 0;
  const std::size_t digits_begin = at;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    if (magnitude > (limit - digit) / 10) return {};
    magnitude = magnitude * 10 + digit;
  }
  CounterText result;
  result.open = at == text.size();
  if (at > digits_begin) {
    result.number = static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
  }
  return result;
}

std::int64_t wrapping_sum(std::int64_t left, std::int64_t right) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(left) +
                                   static_cast<std::uint64_t>(right));
}

std::int64_t wrapping_difference(std::int64_t left, std::int64_t right) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(left) -
                                   static_cast<std::uint64_t>(right));
}

// --- Values as numbers -------------------------------------------------------------------------

using StateId = std::uint32_t;
constexpr StateId kAbsent = 0;

// What the operations of one key can ask about its value, and so which values they cannot tell
// apart.
struct Questions {
  explicit Questions(const std::vector<const Operation*>& history);

  std::vector<std::string> texts;     // that answers and comparisons name; sorted
  std::vector<std::int64_t> numbers;  // likewise, and what answered additions began with; sorted
  bool has_adds = false;
  bool has_refused_adds = false;
  // Something appended may turn one number into another, or a text into a number.
  bool has_appended_numbers = false;
  // How far additions without an answer can take a counter.
  std::int64_t lost_up = 0;
  std::int64_t lost_down = 0;

  // Something appended to `text` may make a value that is asked about.
  bool begins_a_text(const std::string& text) const {
    const auto next = std::lower_bound(texts.begin(), texts.end(), text);
    return next != texts.end() && next->starts_with(text);
  }
  bool has_within_a_text(const std::string& data) const {
    const auto contains = [&](const std::string& text) { return text.find(data) != text.npos; };
    return std::any_of(texts.begin(), texts.end(), contains);
  }
  bool is_near_a_number(std::int64_t number) const {
    std::int64_t lowest = 0;
    std::int64_t highest = 0;
    if (__builtin_add_overflow(number, lost_down, &lowest)) return true;
    if (__builtin_add_overflow(number, lost_up, &highest)) return true;
    const auto next = std::lower_bound(numbers.begin(), numbers.end(), lowest);
    return next != numbers.end() && *next <= highest;
  }
};

Questions::Questions(const std::vector<const Operation*>& history) {
  const auto grow = [](std::int64_t& sum, std::int64_t by) {
    const bool positive = by > 0;
    if (__builtin_add_overflow(sum, by, &sum)) {
      sum = positive ? std::numeric_limits<std::int64_t>::max()
                     : std::numeric_limits<std::int64_t>::min();
    }
  };
  for (const Operation* operation : history) {
    const Call& call = operation->call;
    const bool answered = operation->outcome == Outcome::Ok;
    if (call.kind == Kind::CompareSet) texts.push_back(call.expected);
    if (answered && (is_read(call.kind) || call.kind == Kind::CompareSet)) {
      texts.push_back(operation->answer.value);
    }
    if (call.kind == Kind::Append && !call.value.empty()) {
      const char first = call.value.front();
      const bool is_space = first == ' ' || (first >= '\t' && first <= '\r');
      const bool is_digit = first >= '0' && first <= '9';
      has_appended_numbers |= is_space || is_digit || first == '+' || first == '-';
    }
    if (call.kind != Kind::Add) continue;
    has_adds = true;
    const std::optional<std::int64_t> sum = read_counter(operation->answer.value).number;
    if (!answered) {
      grow(call.delta > 0 ? lost_up : lost_down, call.delta);
    } else if (operation->answer.status == Answer::Status::Invalid) {
      has_refused_adds = true;
    } else if (sum) {
      numbers.push_back(wrapping_difference(*sum, call.delta));
    }
  }
  for (const std::string& text : texts) {
    if (const auto number = read_counter(text).number) numbers.push_back(*number);
  }
  std::sort(texts.begin(), texts.end());
  std::sort(numbers.begin(), numbers.end());
}

// The values one key can take, numbered. Values that no operation of this history can tell apart
// share a number. A text that is not the beginning of any that is asked about will never be read or
// matched, whatever is appended to it: all that is left of it is that it exists and which number it
// stands for. And if additions cannot take that number to one that is asked about either, all that
// is left is that it is some number.
class States {
 public:
  States(Questions questions, bool merge) : questions_(std::move(questions)), merge_(merge) {
    states_.push_back({"", 0, Form::Text});
  }

  StateId of(const std::string& text) {
    CounterText counter = read_counter(text);
    counter.open &= questions_.has_appended_numbers;
    const bool is_open = questions_.has_adds && counter.open;
    if (!merge_ || is_open || questions_.begins_a_text(text)) {
      // The first byte of a key keeps the forms apart.
      return number("t" + text, {text, counter.number, Form::Text, counter.open});
    }
    if (!questions_.has_adds || !counter.number) return number("o", {"", {}, Form::OtherText});
    if (!questions_.has_appended_numbers && !questions_.is_near_a_number(*counter.number)) {
      return number("n", {"", counter.number, Form::OtherNumber});
    }
    return number("c" + std::to_string(*counter.number), {"", counter.number, Form::Counter});
  }

  StateId append(StateId state, const std::string& data) {
    // A merged value stays what it is: it can neither become one that is asked about nor another
    // number.
    if (states_[state].form != Form::Text) return state;
    return of(states_[state].text + data);
  }

  // As an addition sees it: an absent key counts as 0.
  std::optional<std::int64_t> counter(StateId state) const { return states_[state].counter; }

  // After an addition without an answer.
  StateId add(StateId state, std::int64_t delta) {
    const State& before = states_[state];
    if (!before.counter || before.form == Form::OtherNumber) return state;
    return of(std::to_string(wrapping_sum(*before.counter, delta)));
  }

  // Whatever can follow upon `worse` can also follow upon `better`, so nobody needs to go from
  // `better` to `worse`. True only if both exist and `worse` is one of the values about which
  // nothing is asked but that they exist and, for a text, that it is no number.
  bool is_no_gain(StateId better, StateId worse) const {
    if (better == kAbsent) return false;
    if (states_[worse].form == Form::OtherNumber) return true;
    if (states_[worse].form != Form::OtherText) return false;
    const State& from = states_[better];
    return !questions_.has_refused_adds || (!from.counter && !from.open);
  }

  // Two appends without an answer after which nobody can say which of the two it was.
  bool are_alike(const std::string& data, const std::string& other) const {
    if (data == other) return true;
    if (!merge_ || questions_.has_appended_numbers || data.empty() || other.empty()) return false;
    return !questions_.has_within_a_text(data) && !questions_.has_within_a_text(other);
  }

  // For people.
  std::string name(StateId state) const;

  // Quoted, escaped and shortened, for people.
  static std::string quoted(std::string_view text);

 private:
  enum class Form {
    Text,         // this very text
    Counter,      // a text nobody asks about, except which number it stands for
    OtherNumber,  // a text nobody asks about; a number, but none that anyone asks about
    OtherText,    // a text nobody asks about; no number, or there are no additions
  };
  struct State {
    std::string text;  // of Form::Text
    std::optional<std::int64_t> counter;
    Form form = Form::Text;
    bool open = false;  // appending may change the number
  };

  StateId number(std::string key, State state) {
    const auto next = static_cast<StateId>(states_.size());
    const auto [place, is_new] = numbers_.try_emplace(std::move(key), next);
    if (is_new) states_.push_back(std::move(state));
    return place->second;
  }

  Questions questions_;
  bool merge_;
  std::vector<State> states_;
  std::unordered_map<std::string, StateId> numbers_;
};

std::string States::quoted(std::string_view text) {
  constexpr std::size_t kShownBytesMax = 48;
  std::string result = "\"";
  for (const char byte : text.substr(0, kShownBytesMax)) {
    if (byte == '"' || byte == '\\') {
      result += '\\';
      result += byte;
    } else if (byte >= ' ' && byte <= '~') {
      result += byte;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
  }
  result += '"';
  if (text.size() > kShownBytesMax) result += fmt::format("… ({} bytes)", text.size());
  return result;
}

std::string States::name(StateId id) const {
  if (id == kAbsent) return "absent";
  const State& state = states_[id];
  switch (state.form) {
    case Form::Text:
      return quoted(state.text);
    case Form::Counter:
      return fmt::format("a value that nobody read, counting as {}", *state.counter);
    case Form::OtherNumber:
      return "a number that nobody read";
    case Form::OtherText:
      return "a value that nobody read";
  }
  return "?";
}

// --- Operations, prepared ----------------------------------------------------------------------

// An operation with its values numbered, so that the search compares integers.
struct Step {
  const Operation* operation = nullptr;
  bool answered = false;
  // By its answer it changed nothing, whatever the value was.
  bool changes_nothing = false;
  // No sequential store gives such an answer.
  bool impossible = false;
  StateId named = kAbsent;     // what the answer says the value was
  StateId expected = kAbsent;  // CompareSet
  StateId result = kAbsent;    // what it stores
  std::int64_t sum = 0;        // Add
  unsigned slot = 0;           // bit in Configuration::placed
};

class Model {
 public:
  Model(States states, bool get_of_deleted_is_empty)
      : states_(std::move(states)), get_of_deleted_is_empty_(get_of_deleted_is_empty) {}

  Step prepare(const Operation& operation);

  // The value after `step`; nothing if its answer does not fit `state`.
  std::optional<StateId> after(const Step& step, StateId state);

  const States& states() const { return states_; }

 private:
  std::optional<StateId> after_add(const Step& step, StateId state);
  std::optional<StateId> after_compare_set(const Step& step, StateId state) const;

  States states_;
  bool get_of_deleted_is_empty_;
};

// Whether a store can answer a call of this kind so, leaving the value aside.
bool is_possible(const Call& call, const Answer& answer) {
  using Status = Answer::Status;
  const bool yes_or_no = answer.status == Status::Yes || answer.status == Status::No;
  switch (call.kind) {
    case Kind::Set:
    case Kind::Append:
    case Kind::Get:
      return answer.status == Status::Done;
    case Kind::TryGet:
    case Kind::Erase:
      return yes_or_no;
    case Kind::Add: {
      if (answer.status == Status::Invalid) return true;
      const auto sum = read_counter(answer.value).number;
      return answer.status == Status::Done && sum && std::to_string(*sum) == answer.value;
    }
    case Kind::CompareSet:
      return yes_or_no && (answer.status == Status::No || answer.value == call.value);
  }
  return false;
}

Step Model::prepare(const Operation& operation) {
  const Call& call = operation.call;
  const Answer& answer = operation.answer;
  Step step;
  step.operation = &operation;
  step.answered = operation.outcome == Outcome::Ok;
  if (call.kind == Kind::Set || call.kind == Kind::CompareSet) step.result = states_.of(call.value);
  if (call.kind == Kind::CompareSet) step.expected = states_.of(call.expected);
  if (!step.answered) return step;

  step.impossible = !is_possible(call, answer);
  if (step.impossible) return step;
  const bool names_value = is_read(call.kind) || call.kind == Kind::CompareSet;
  const bool is_absence = call.kind == Kind::TryGet && answer.status == Answer::Status::No;
  if (names_value && !is_absence) step.named = states_.of(answer.value);
  if (call.kind == Kind::Add && answer.status == Answer::Status::Done) {
    step.sum = read_counter(answer.value).number.value_or(0);
    step.result = states_.of(answer.value);
  }
  step.changes_nothing = is_read(call.kind) || answer.status == Answer::Status::No ||
                         answer.status == Answer::Status::Invalid;
  return step;
}

std::optional<StateId> Model::after(const Step& step, StateId state) {
  if (step.impossible) return std::nullopt;
  const Call& call = step.operation->call;
  const Answer& answer = step.operation->answer;
  switch (call.kind) {
    case Kind::Set:
      return step.result;
    case Kind::Append:
      return states_.append(state, call.value);
    case Kind::Get:
      if (state == kAbsent) {
        if (!get_of_deleted_is_empty_ || !answer.value.empty()) return std::nullopt;
        return state;
      }
      [[fallthrough]];
    case Kind::TryGet:
      if (state != step.named) return std::nullopt;
      return state;
    case Kind::Add:
      return after_add(step, state);
    case Kind::CompareSet:
      return after_compare_set(step, state);
    case Kind::Erase:
      if (step.answered && (state != kAbsent) != (answer.status == Answer::Status::Yes)) {
        return std::nullopt;
      }
      return kAbsent;
  }
  return std::nullopt;
}

std::optional<StateId> Model::after_add(const Step& step, StateId state) {
  const std::optional<std::int64_t> before = states_.counter(state);
  const std::int64_t delta = step.operation->call.delta;
  if (!step.answered) return states_.add(state, delta);
  const bool refused = step.operation->answer.status == Answer::Status::Invalid;
  if (refused != !before) return std::nullopt;
  if (refused) return state;
  if (wrapping_sum(*before, delta) != step.sum) return std::nullopt;
  return step.result;
}

std::optional<StateId> Model::after_compare_set(const Step& step, StateId state) const {
  const Call& call = step.operation->call;
  const Answer& answer = step.operation->answer;
  const bool matches = state == kAbsent ? call.expected.empty() : state == step.expected;
  if (!step.answered) return matches ? step.result : state;
  if (matches != (answer.status == Answer::Status::Yes)) return std::nullopt;
  if (matches) return step.result;
  // An absent key is answered with the caller's own `expected`.
  const bool fits = state == kAbsent ? answer.value == call.expected : state == step.named;
  return fits ? std::optional(state) : std::nullopt;
}

// --- The search --------------------------------------------------------------------------------

// Operations of one key that have no answer and ask for the same thing. They differ only in when
// they may begin.
struct Lost {
  Step step;
  std::vector<std::uint64_t> invoked;  // sorted
};

// How many of each Lost have been placed.
using LostCounts = std::vector<std::uint16_t>;

// Which operations have been placed, and the value they lead to.
struct Configuration {
  std::uint32_t base =
      0;  // the answered operations before this one, by return, are all placed; it is not
  StateId state = kAbsent;
  std::uint64_t placed = 0;  // slots of those placed that return after `base`
  LostCounts lost;
};

// The configurations explored, less those that another one stands for.
class Explored {
 public:
  explicit Explored(std::size_t lost_size) : lost_size_(lost_size) {}

  // False if this configuration, or one that stands for it, has been here.
  bool insert(const Configuration& configuration) {
    const Key key{configuration.base, configuration.state, configuration.placed};
    const auto [place, is_new] = counts_.try_emplace(key);
    LostCounts& known = place->second;  // counts of `lost_size_`, one after the other
    if (lost_size_ == 0) return is_new;
    const auto fewer = [&](const std::uint16_t* left, const std::uint16_t* right) {
      return std::equal(left, left + lost_size_, right, std::less_equal<>());
    };
    for (std::size_t at = 0; at < known.size(); at += lost_size_) {
      if (fewer(&known[at], configuration.lost.data())) return false;
    }
    std::size_t kept = 0;
    for (std::size_t at = 0; at < known.size(); at += lost_size_) {
      if (fewer(configuration.lost.data(), &known[at])) continue;
      std::copy_n(known.begin() + static_cast<std::ptrdiff_t>(at), lost_size_,
                  known.begin() + static_cast<std::ptrdiff_t>(kept));
      kept += lost_size_;
    }
    known.resize(kept);
    known.insert(known.end(), configuration.lost.begin(), configuration.lost.end());
    return true;
  }

 private:
  struct Key {
    std::uint32_t base;
    StateId state;
    std::uint64_t placed;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t mixed = (std::uint64_t{key.base} << 32U | key.state) * 0x9e3779b97f4a7c15U;
      mixed = (mixed ^ (mixed >> 29U) ^ key.placed) * 0xbf58476d1ce4e5b9U;
      return static_cast<std::size_t>(mixed ^ (mixed >> 32U));
    }
  };

  std::size_t lost_size_;
  std::unordered_map<Key, LostCounts, Hash> counts_;
};

// The history of one key.
using KeyHistory = std::vector<const Operation*>;

class Search {
 public:
  struct Options {
    std::size_t configurations_max = 0;
    bool get_of_deleted_is_empty = false;
    bool merge_values = true;
  };

  Search(const KeyHistory& history, Options options);

  Verdict::Kind run();

  std::size_t explored() const { return explored_; }
  bool too_concurrent() const { return too_concurrent_; }
  // The operation, earliest by return, that was not placed in any order that was tried.
  const Operation* stuck() const {
    return best_base_ < answered_.size() ? answered_[best_base_].operation : nullptr;
  }
  // The values it could have met once all that returned before it are placed.
  std::vector<std::string> stuck_states() const;

 private:
  void add_lost(const Step& step);
  void assign_slots();
  void list_open();

  bool is_placed(const Configuration& configuration, std::uint32_t index) const {
    return (configuration.placed >> answered_[index].slot & 1U) != 0;
  }
  void place(Configuration& configuration, std::uint32_t index) const;
  void settle(Configuration& configuration);
  void expand(const Configuration& configuration);
  void push(Configuration next, const Configuration& from);
  void note(const Configuration& configuration);

  Options options_;
  Model model_;
  std::vector<Step> answered_;  // by return
  std::vector<Lost> lost_;
  std::vector<std::vector<std::uint32_t>> open_;  // by base: what may be placed, by return
  bool too_concurrent_ = false;

  std::vector<Configuration> stack_;
  std::vector<Configuration> likely_;  // scratch of `expand`
  std::size_t explored_ = 0;
  std::uint32_t best_base_ = 0;
  std::vector<StateId> best_states_;
};

Search::Search(const KeyHistory& history, Options options)
    : options_(options),
      model_(States(Questions(history), options.merge_values), options.get_of_deleted_is_empty) {
  for (const Operation* operation : history) {
    if (operation->outcome == Outcome::FailedNotApplied) continue;
    const Step step = model_.prepare(*operation);
    if (step.answered) {
      MUSTER_ASSERT(operation->invoked <= operation->returned);
      answered_.push_back(step);
    } else if (!is_read(operation->call.kind)) {
      add_lost(step);
    }
  }
  for (Lost& lost : lost_) std::sort(lost.invoked.begin(), lost.invoked.end());
  // Those invoked last are tried first: they are the likeliest to show.
  std::stable_sort(lost_.begin(), lost_.end(), [](const Lost& left, const Lost& right) {
    return left.invoked.back() < right.invoked.back();
  });
  std::stable_sort(answered_.begin(), answered_.end(), [](const Step& left, const Step& right) {
    return left.operation->returned < right.operation->returned;
  });
  assign_slots();
  if (!too_concurrent_) list_open();
}

void Search::add_lost(const Step& step) {
  const Call& call = step.operation->call;
  const auto same = [&](const Lost& lost) {
    const Call& other = lost.step.operation->call;
    if (call.kind != other.kind) return false;
    if (call.kind == Kind::Set) return lost.step.result == step.result;
    if (call.kind == Kind::Append) return model_.states().are_alike(call.value, other.value);
    return call == other;
  };
  auto place = std::find_if(lost_.begin(), lost_.end(), same);
  if (place == lost_.end()) place = lost_.insert(lost_.end(), Lost{step, {}});
  place->invoked.push_back(step.operation->invoked);
  // Counts are 16 bits wide.
  if (place->invoked.size() > std::numeric_limits<std::uint16_t>::max()) too_concurrent_ = true;
}

// Operations that overlap get different slots, so that a slot and a base name one operation.
void Search::assign_slots() {
  std::vector<Step*> by_invocation;
  for (Step& step : answered_) by_invocation.push_back(&step);
  std::stable_sort(by_invocation.begin(), by_invocation.end(),
                   [](const Step* left, const Step* right) {
                     return left->operation->invoked < right->operation->invoked;
                   });
  std::vector<std::uint64_t> busy_until;
  for (Step* step : by_invocation) {
    const Operation& operation = *step->operation;
    const auto is_free = [&](std::uint64_t until) { return until < operation.invoked; };
    auto slot = std::find_if(busy_until.begin(), busy_until.end(), is_free);
    if (slot == busy_until.end()) slot = busy_until.insert(slot, 0);
    *slot = operation.returned;
    step->slot = static_cast<unsigned>(slot - busy_until.begin());
    if (step->slot >= kConcurrentMax) {
      too_concurrent_ = true;
      return;
    }
  }
}

void Search::list_open() {
  open_.resize(answered_.size());
  for (std::uint32_t index = 0; index < answered_.size(); ++index) {
    // It may be placed at every base that returned no earlier than it was invoked.
    const std::uint64_t invoked = answered_[index].operation->invoked;
    for (std::uint32_t base = index + 1; base-- > 0;) {
      if (answered_[base].operation->returned < invoked) break;
      open_[base].push_back(index);
    }
  }
}

Verdict::Kind Search::run() {
  if (too_concurrent_) return Verdict::Kind::GaveUp;
  Explored known(lost_.size());
  Configuration first;
  first.lost.resize(lost_.size());
  settle(first);
  stack_.push_back(std::move(first));
  while (!stack_.empty()) {
    const Configuration configuration = std::move(stack_.back());
    stack_.pop_back();
    if (!known.insert(configuration)) continue;
    if (explored_ == options_.configurations_max) return Verdict::Kind::GaveUp;
    ++explored_;
    note(configuration);
    if (configuration.base == answered_.size()) return Verdict::Kind::Linearizable;
    expand(configuration);
  }
  return Verdict::Kind::NotLinearizable;
}

void Search::place(Configuration& configuration, std::uint32_t index) const {
  configuration.placed |= std::uint64_t{1} << answered_[index].slot;
  while (configuration.base < answered_.size() && is_placed(configuration, configuration.base)) {
    configuration.placed &= ~(std::uint64_t{1} << answered_[configuration.base].slot);
    ++configuration.base;
  }
}

// Places what changes nothing and fits. Doing so at once is never worse than later.
void Search::settle(Configuration& configuration) {
  for (bool moved = true; moved && configuration.base < answered_.size();) {
    moved = false;
    const std::uint32_t base = configuration.base;
    for (const std::uint32_t index : open_[base]) {
      const Step& step = answered_[index];
      if (!step.changes_nothing || is_placed(configuration, index)) continue;
      if (!model_.after(step, configuration.state)) continue;
      place(configuration, index);
      moved = configuration.base != base;
      if (moved) break;  // other operations may be placed now
    }
  }
}

// Pushes what can follow, the likeliest last: the stack is popped from its end.
void Search::expand(const Configuration& configuration) {
  const std::uint64_t latest = answered_[configuration.base].operation->returned;
  for (std::size_t index = 0; index < lost_.size(); ++index) {
    const Lost& lost = lost_[index];
    const std::size_t placed = configuration.lost[index];
    if (placed == lost.invoked.size() || lost.invoked[placed] > latest) continue;
    const std::optional<StateId> state = model_.after(lost.step, configuration.state);
    if (!state || *state == configuration.state) continue;
    if (model_.states().is_no_gain(configuration.state, *state)) continue;
    Configuration next = configuration;
    next.state = *state;
    ++next.lost[index];
    push(std::move(next), configuration);
  }
  const std::vector<std::uint32_t>& open = open_[configuration.base];
  for (auto index = open.rbegin(); index != open.rend(); ++index) {
    const Step& step = answered_[*index];
    if (step.changes_nothing || is_placed(configuration, *index)) continue;
    const std::optional<StateId> state = model_.after(step, configuration.state);
    if (!state) continue;
    Configuration next = configuration;
    next.state = *state;
    place(next, *index);
    push(std::move(next), configuration);
  }
  std::move(likely_.begin(), likely_.end(), std::back_inserter(stack_));
  likely_.clear();
}

void Search::push(Configuration next, const Configuration& from) {
  settle(next);
  // An operation that must be placed before any other can return comes first if this makes it fit.
  const bool unblocks = next.base > from.base || model_.after(answered_[next.base], next.state);
  (unblocks ? likely_ : stack_).push_back(std::move(next));
}

void Search::note(const Configuration& configuration) {
  if (configuration.base > best_base_) {
    best_base_ = configuration.base;
    best_states_.clear();
  }
  if (configuration.base != best_base_) return;
  const auto place =
      std::lower_bound(best_states_.begin(), best_states_.end(), configuration.state);
  if (place == best_states_.end() || *place != configuration.state) {
    best_states_.insert(place, configuration.state);
  }
}

std::vector<std::string> Search::stuck_states() const {
  std::vector<std::string> result;
  for (const StateId state : best_states_) result.push_back(model_.states().name(state));
  std::sort(result.begin(), result.end());
  return result;
}

// --- The explanation ---------------------------------------------------------------------------

constexpr std::size_t kRowsMax = 24;
constexpr std::size_t kRowsBeforeMax = 4;
constexpr std::size_t kLostRowsMax = 6;
constexpr std::size_t kStatesShownMax = 8;

std::uint64_t end_of(const Operation& operation) {
  return operation.outcome == Outcome::Ok ? operation.returned : kNotReturned;
}

// The last of `candidates` by `time`, at most `count`, are added to `rows`.
template <typename Time>
void add_latest(KeyHistory candidates, std::size_t count, Time time, KeyHistory& rows) {
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [&](const Operation* left, const Operation* right) { return time(*left) > time(*right); });
  candidates.resize(std::min(candidates.size(), count));
  rows.insert(rows.end(), candidates.begin(), candidates.end());
}

// Whether `operation` may have put the value there that `stuck` speaks of.
bool is_source_of(const Operation& operation, const Operation& stuck) {
  if (operation.call.kind == Kind::Add) {
    return operation.outcome == Outcome::Ok && operation.answer.value == stuck.answer.value;
  }
  if (operation.call.kind == Kind::CompareSet && operation.outcome == Outcome::Ok &&
      operation.answer.status != Answer::Status::Yes) {
    return false;
  }
  const bool stores = operation.call.kind == Kind::Set || operation.call.kind == Kind::CompareSet;
  return stores && operation.call.value == stuck.answer.value;
}

// What a person needs to see: everything at the same time as `stuck`, the last few operations
// before it, where its value may have come from, and the latest operations without an answer.
KeyHistory rows_around(const KeyHistory& history, const Operation& stuck) {
  KeyHistory rows{&stuck};
  KeyHistory during;
  KeyHistory before;
  KeyHistory lost;
  KeyHistory sources;
  for (const Operation* operation : history) {
    const bool is_relevant = operation->outcome != Outcome::FailedNotApplied &&
                             operation->invoked <= stuck.returned && operation != &stuck;
    if (!is_relevant) continue;
    if (operation->outcome == Outcome::Unknown) {
      if (!is_read(operation->call.kind)) lost.push_back(operation);
    } else if (operation->returned >= stuck.invoked) {
      during.push_back(operation);
    } else {
      before.push_back(operation);
      if (is_source_of(*operation, stuck)) sources.push_back(operation);
    }
  }
  const auto invoked = [](const Operation& operation) { return operation.invoked; };
  const auto returned = [](const Operation& operation) { return operation.returned; };
  add_latest(std::move(lost), kLostRowsMax, invoked, rows);
  add_latest(std::move(before), kRowsBeforeMax, returned, rows);
  add_latest(std::move(sources), 1, returned, rows);
  const std::size_t room = kRowsMax - std::min(rows.size(), kRowsMax);
  add_latest(std::move(during), room, returned, rows);

  std::sort(rows.begin(), rows.end(), [](const Operation* left, const Operation* right) {
    return std::tuple(left->invoked, end_of(*left), left) <
           std::tuple(right->invoked, end_of(*right), right);
  });
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// One line for each operation: its client, a bar from invocation to return, the logical times, what
// it was.
std::string timeline(const KeyHistory& rows, const Operation& stuck) {
  std::map<std::uint64_t, std::size_t> columns;
  for (const Operation* operation : rows) {
    columns[operation->invoked] = 0;
    columns[end_of(*operation)] = 0;
  }
  std::size_t width = 0;
  for (auto& [time, column] : columns) {
    column = width;
    width += 2;
  }
  std::string result;
  for (const Operation* operation : rows) {
    const bool is_open = operation->outcome != Outcome::Ok;
    const std::size_t begin = columns[operation->invoked];
    const std::size_t end = columns[end_of(*operation)];
    std::string bar(width - 1, ' ');
    std::fill(bar.begin() + static_cast<std::ptrdiff_t>(begin),
              bar.begin() + static_cast<std::ptrdiff_t>(end), is_open ? '.' : '-');
    bar[begin] = '|';
    bar[end] = is_open ? '?' : '|';
    const std::string times = is_open
                                  ? fmt::format("{}…", operation->invoked)
                                  : fmt::format("{}…{}", operation->invoked, operation->returned);
    result += fmt::format("    client {:<3} {} {} at {}{}\n", operation->client, bar,
                          describe(*operation), times, operation == &stuck ? "   <== here" : "");
  }
  return result;
}

std::string explain_stuck(const KeyHistory& history, const Search& search) {
  const Operation& stuck = *search.stuck();
  std::vector<std::string> states = search.stuck_states();
  const std::size_t state_count = states.size();
  states.resize(std::min(state_count, kStatesShownMax));
  std::string result = fmt::format(
      "not linearizable: key {} ({} operations)\n"
      "  No order explains client {}: {}.\n"
      "  With all that returned before it in place, the value can only be: {}",
      States::quoted(stuck.call.key), history.size(), stuck.client, describe(stuck),
      fmt::join(states, ", "));
  if (state_count > kStatesShownMax) {
    result += fmt::format(", or one of {} more", state_count - kStatesShownMax);
  }
  result += ".\n  What happened around it:\n";
  return result + timeline(rows_around(history, stuck), stuck);
}

std::string explain_giving_up(const KeyHistory& history, const Search& search) {
  const std::string key = States::quoted(history.front()->call.key);
  if (search.too_concurrent()) {
    return fmt::format(
        "gave up: key {} has more than {} answered operations at one time (or more than 65535 "
        "equal ones without an "
        "answer); nothing is known about this history\n",
        key, kConcurrentMax);
  }
  const Operation& furthest = *search.stuck();
  const std::string head = fmt::format(
      "gave up: key {} ({} operations) after {} configurations; nothing is known about this "
      "history\n"
      "  The search came as far as client {}: {}.\n"
      "  What happened around it:\n",
      key, history.size(), search.explored(), furthest.client, describe(furthest));
  return head + timeline(rows_around(history, furthest), furthest);
}

struct KeyVerdict {
  Verdict::Kind kind = Verdict::Kind::Linearizable;
  std::uint64_t stuck_at = 0;
  std::string explanation;
  std::size_t explored = 0;
};

KeyVerdict check_key(const KeyHistory& history, const CheckOptions& options) {
  Search search(history, {.configurations_max = options.configurations_max,
                          .get_of_deleted_is_empty = options.get_of_deleted_is_empty,
                          .merge_values = true});
  KeyVerdict result;
  result.kind = search.run();
  result.explored = search.explored();
  if (result.kind == Verdict::Kind::GaveUp) result.explanation = explain_giving_up(history, search);
  if (result.kind != Verdict::Kind::NotLinearizable) return result;

  // People want to read values, not merged ones. Without merging the search may be too large; then
  // they get less.
  constexpr std::size_t kSecondSearchMax = 100'000;
  Search exact(history,
               {.configurations_max = std::min(options.configurations_max, kSecondSearchMax),
                .get_of_deleted_is_empty = options.get_of_deleted_is_empty,
                .merge_values = false});
  const bool is_exact = exact.run() == Verdict::Kind::NotLinearizable;
  MUSTER_ASSERT(!is_exact || exact.stuck() == search.stuck());
  result.stuck_at = search.stuck()->returned;
  result.explanation = explain_stuck(history, is_exact ? exact : search);
  return result;
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::Set:
      return "set";
    case Kind::Get:
      return "get";
    case Kind::TryGet:
      return "try_get";
    case Kind::Add:
      return "add";
    case Kind::CompareSet:
      return "compare_set";
    case Kind::Erase:
      return "erase";
    case Kind::Append:
      return "append";
  }
  return "?";
}

std::string describe_answer(const Operation& operation) {
  if (operation.outcome == Outcome::Unknown) return "no answer";
  if (operation.outcome == Outcome::FailedNotApplied) return "refused";
  const Answer& answer = operation.answer;
  const bool has_value = is_read(operation.call.kind) || operation.call.kind == Kind::CompareSet;
  std::string value = States::quoted(answer.value);
  switch (answer.status) {
    case Answer::Status::Done:
      if (operation.call.kind == Kind::Add) return answer.value;
      return has_value ? value : "done";
    case Answer::Status::Yes:
      if (operation.call.kind == Kind::TryGet) return value;
      return has_value ? "yes " + value : "yes";
    case Answer::Status::No:
      if (operation.call.kind == Kind::TryGet) return "absent";
      return has_value ? "no " + value : "no";
    case Answer::Status::Invalid:
      return "invalid";
  }
  return "?";
}

}  // namespace

std::string describe(const Operation& operation) {
  const Call& call = operation.call;
  std::string arguments;
  switch (call.kind) {
    case Kind::Set:
    case Kind::Append:
      arguments = " " + States::quoted(call.value);
      break;
    case Kind::Add:
      arguments = fmt::format(" {}", call.delta);
      break;
    case Kind::CompareSet:
      arguments =
          fmt::format(" {} to {}", States::quoted(call.expected), States::quoted(call.value));
      break;
    case Kind::Get:
    case Kind::TryGet:
    case Kind::Erase:
      break;
  }
  return fmt::format("{}{} -> {}", name_of(call.kind), arguments, describe_answer(operation));
}

Answer perform(const Call& call, Value& value) {
  using Status = Answer::Status;
  switch (call.kind) {
    case Kind::Set:
      value = call.value;
      return {};
    case Kind::Append:
      value = value.value_or("") + call.value;
      return {};
    case Kind::Get:
      if (!value) return {Status::No, ""};
      return {Status::Done, *value};
    case Kind::TryGet:
      if (!value) return {Status::No, ""};
      return {Status::Yes, *value};
    case Kind::Add: {
      const std::optional<std::int64_t> before = value ? read_counter(*value).number : 0;
      if (!before) return {Status::Invalid, ""};
      value = std::to_string(wrapping_sum(*before, call.delta));
      return {Status::Done, *value};
    }
    case Kind::CompareSet: {
      const bool matches = value ? *value == call.expected : call.expected.empty();
      if (!matches) return {Status::No, value.value_or(call.expected)};
      value = call.value;
      return {Status::Yes, call.value};
    }
    case Kind::Erase: {
      const bool was_present = value.has_value();
      value.reset();
      return {was_present ? Status::Yes : Status::No, ""};
    }
  }
  return {};
}

Verdict check(const History& history, const CheckOptions& options) {
  std::map<std::string_view, KeyHistory> by_key;
  for (const Operation& operation : history) by_key[operation.call.key].push_back(&operation);

  Verdict verdict;
  std::uint64_t stuck_at = 0;
  std::size_t bad_count = 0;
  for (const auto& [key, operations] : by_key) {
    KeyVerdict result = check_key(operations, options);
    verdict.explored += result.explored;
    if (result.kind == Verdict::Kind::Linearizable) continue;
    ++bad_count;
    const bool is_wrong = result.kind == Verdict::Kind::NotLinearizable;
    const bool is_first =
        verdict.ok() ||
        (is_wrong && (verdict.kind == Verdict::Kind::GaveUp || result.stuck_at < stuck_at));
    if (!is_first) continue;
    stuck_at = result.stuck_at;
    verdict.kind = result.kind;
    verdict.key = key;
    verdict.explanation = std::move(result.explanation);
  }
  if (bad_count > 1) {
    verdict.explanation +=
        fmt::format("  {} more keys are wrong or were given up on.\n", bad_count - 1);
  }
  return verdict;
}

}  // namespace muster::linearizability
