#include "muster/launch/options.h"

#include "muster/base/log.h"
#include "muster/base/suggest.h"
#include "muster/launch/completion.h"
#include "muster/launch/help.h"
#include "muster/launch/numbers.h"
#include "muster/launch/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace muster::launch {
namespace {

// What keeps a text from being a value: "a whole number". Nothing if it is one.
using Wanted = std::optional<std::string>;

// Reads `text` as the kind of value that a field has, and keeps it.
struct ValueReader {
  std::string_view text;
  Options& options;

  Wanted operator()(std::monostate) const { return std::nullopt; }
  Wanted operator()(bool Options::*field) const {
    options.*field = true;
    return std::nullopt;
  }
  Wanted operator()(std::string Options::*field) const {
    options.*field = std::string(text);
    return std::nullopt;
  }
  Wanted operator()(std::optional<std::string> Options::*field) const {
    options.*field = std::string(text);
    return std::nullopt;
  }
  Wanted operator()(std::int64_t Options::*field) const { return integer(options.*field); }
  Wanted operator()(std::optional<std::int64_t> Options::*field) const {
    return integer(options.*field);
  }
  Wanted operator()(double Options::*field) const {
    const auto number = parse_decimal(text);
    if (!number) return "a number of seconds";
    options.*field = *number;
    return std::nullopt;
  }
  Wanted operator()(std::optional<Duration> Options::*field) const {
    Duration length{};
    if (!parse_duration(text, length)) return "a time such as 30, 500ms, 5s or 2m";
    options.*field = length;
    return std::nullopt;
  }
  Wanted operator()(std::optional<std::uint64_t> Options::*field) const {
    const auto size = parse_bytes(text);
    if (!size) return "a size such as 65536, 64M or 4G";
    options.*field = *size;
    return std::nullopt;
  }

  template <typename Target>
  Wanted integer(Target& target) const {
    const auto number = parse_integer(text);
    if (!number) return "a whole number";
    target = *number;
    return std::nullopt;
  }
};

Wanted store_value(const OptionRow& row, std::string_view text, Options& options) {
  return std::visit(ValueReader{text, options}, row.field);
}

bool is_flag(const OptionRow& row) { return std::holds_alternative<bool Options::*>(row.field); }

// A word that begins with a dash is no value, unless it is a negative number or has spaces.
bool may_be_value(std::string_view word) {
  if (!word.starts_with('-') || word == "-") return true;
  return word.find(' ') != std::string_view::npos || parse_decimal(word).has_value();
}

std::string with_dashes(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '_', '-');
  return result;
}

class Parser {
 public:
  Parser(std::span<const std::string> words, const Variables& variables, Style style)
      : words_(words), variables_(variables) {
    options_.style = style;
  }

  Parsed run() {
    // Before anything else, as torchrun does: a flag's variable cannot be overridden anyway.
    read_flag_variables();
    while (!stopped_ && next_ < words_.size() && read_option()) {
    }
    if (!stopped_) read_program();
    if (!stopped_) read_variables();
    if (stopped_) return std::move(*stopped_);
    return std::move(options_);
  }

 private:
  void refuse_usage(std::string_view message) {
    stopped_ = Refusal{
        fmt::format("{}{}: {}\n", usage_text(options_.style), name_of(options_.style), message), 2};
  }

  void read_flag_variables() {
    for (const OptionRow& row : option_table()) {
      if (!is_flag(row) || !row.has_variable) continue;
      const std::string name = variable_of(row);
      const auto text = find_variable(variables_, name);
      if (!text) continue;
      const auto number = parse_integer(*text);
      if (!number) {
        stopped_ = Refusal{fmt::format("{}: the variable {} must be 0 or 1, not {}\n",
                                       name_of(options_.style), name, log::quote(*text)),
                           1};
        return;
      }
      options_.*std::get<bool Options::*>(row.field) = *number != 0;
      if (*number != 0) note_given(row, true);
    }
  }

  // False at the first word that is no option.
  bool read_option() {
    const std::string& word = words_[next_];
    if (!word.starts_with('-') || word == "-" || word == "--") return false;
    ++next_;
    if (word.starts_with("--")) {
      read_long(std::string_view(word).substr(2));
    } else {
      read_short(std::string_view(word).substr(1));
    }
    return true;
  }

  void read_long(std::string_view word) {
    const std::size_t equals = word.find('=');
    const OptionRow* row = find_spelling(word.substr(0, equals));
    if (row == nullptr) return;
    std::optional<std::string_view> value;
    if (equals != std::string_view::npos) value = word.substr(equals + 1);
    take(*row, value, fmt::format("--{}", row->name));
  }

  // One or more letters; the value of the last one may follow at once or behind an equals sign.
  void read_short(std::string_view letters) {
    while (!letters.empty() && !stopped_) {
      const char letter = letters[0];
      const auto rows = option_table();
      const auto row = std::ranges::find_if(
          rows, [&](const OptionRow& each) { return letter != 0 && each.letter == letter; });
      const std::string spelling = fmt::format("-{}", letter);
      if (row == rows.end()) {
        return refuse_usage(fmt::format("there is no option {}", log::quote(spelling)));
      }
      letters.remove_prefix(1);
      std::optional<std::string_view> value;
      if (letters.starts_with('=')) {
        value = letters.substr(1);
      } else if (row->takes_value() && !letters.empty()) {
        value = letters;
      }
      if (value) letters = {};
      take(*row, value, spelling);
    }
  }

  // The row of a whole name or of the beginning of exactly one. Names of torchrun come first, so
  // that what was short enough there is short enough here.
  const OptionRow* find_spelling(std::string_view typed) {
    const std::string name = with_dashes(typed);
    if (const OptionRow* row = find_row(name)) return row;
    std::vector<const OptionRow*> theirs;
    std::vector<const OptionRow*> ours;
    for (const OptionRow& row : option_table()) {
      if (!name.empty() && row.name.starts_with(name)) (row.ours ? ours : theirs).push_back(&row);
    }
    const auto& found = theirs.empty() ? ours : theirs;
    if (found.size() == 1) return found.front();
    const std::string spelling = fmt::format("--{}", typed);
    std::string message;
    if (found.empty()) {
      std::vector<std::string> names;
      for (const OptionRow& row : option_table()) names.emplace_back(row.name);
      const std::string suggestion = nearest(name, names);
      message = fmt::format("there is no option {}", log::quote(spelling));
      if (!suggestion.empty()) message += fmt::format("; did you mean --{}?", suggestion);
    } else {
      std::vector<std::string> names;
      for (const OptionRow* row : found) names.push_back(fmt::format("--{}", row->name));
      message = fmt::format("{} could be {}; write more of it", spelling, fmt::join(names, " or "));
    }
    refuse_usage(message);
    return nullptr;
  }

  void take(const OptionRow& row, std::optional<std::string_view> value,
            const std::string& spelling) {
    if (!row.takes_value()) {
      if (value) {
        return refuse_usage(
            fmt::format("{} takes no value, but got {}", spelling, log::quote(*value)));
      }
    } else if (!value) {
      if (next_ >= words_.size() || !may_be_value(words_[next_])) {
        return refuse_usage(fmt::format("{0} needs a value: {0} {1}", spelling, row.value));
      }
      value = words_[next_++];
    }
    accept(row, value.value_or(std::string_view()), spelling);
  }

  void accept(const OptionRow& row, std::string_view value, const std::string& spelling) {
    if (row.only_words && std::ranges::find(row.words, value) == row.words.end()) {
      return refuse_usage(fmt::format("{} must be {}, not {}", spelling,
                                      fmt::join(row.words, " or "), log::quote(value)));
    }
    if (row.name == "help") {
      stopped_ = Print{help_text(options_.style)};
    } else if (row.name == "print-completion") {
      stopped_ = Print{completion_script(value, options_.style)};
    } else if (const Wanted wanted = store_value(row, value, options_)) {
      refuse_usage(fmt::format("{} must be {}, not {}", spelling, *wanted, log::quote(value)));
    } else {
      note_given(row, false);
    }
  }

  void read_program() {
    const bool separated = next_ < words_.size() && words_[next_] == "--";
    if (separated) ++next_;
    if (next_ >= words_.size() || words_[next_].empty()) {
      return refuse_usage(fmt::format("which program? Write {} [OPTIONS] PROGRAM [ARGUMENTS]",
                                      name_of(options_.style)));
    }
    options_.program = words_[next_++];
    if (!separated && next_ < words_.size() && words_[next_] == "--") ++next_;
    options_.arguments.assign(words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
  }

  // For what the command line does not say. Lists of words are not enforced here; what cannot be
  // used is refused later, when it would be used.
  void read_variables() {
    for (const OptionRow& row : option_table()) {
      if (!row.has_variable || !row.takes_value() || options_.was_given(row.name)) continue;
      const std::string name = variable_of(row);
      const auto text = find_variable(variables_, name);
      if (!text) continue;
      if (const Wanted wanted = store_value(row, *text, options_)) {
        return refuse_usage(
            fmt::format("the variable {} must be {}, not {}", name, *wanted, log::quote(*text)));
      }
      note_given(row, true);
    }
  }

  void note_given(const OptionRow& row, bool from_variable) {
    options_.given.emplace(row.name);
    if (from_variable) {
      options_.from_variable.emplace(row.name);
    } else if (const auto found = options_.from_variable.find(row.name);
               found != options_.from_variable.end()) {
      options_.from_variable.erase(found);
    }
  }

  std::span<const std::string> words_;
  const Variables& variables_;
  std::size_t next_ = 0;
  Options options_ = {};
  std::optional<Parsed> stopped_ = {};
};

}  // namespace

Variables read_variables(const char* const* entries) {
  Variables variables;
  if (entries == nullptr) return variables;
  for (; *entries != nullptr; ++entries) {
    const std::string_view entry = *entries;
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string_view::npos) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::optional<std::string> find_variable(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  if (found == variables.end()) return std::nullopt;
  return found->second;
}

Style style_of(std::string_view program_path) {
  const std::size_t slash = program_path.rfind('/');
  if (slash != std::string_view::npos) program_path.remove_prefix(slash + 1);
  return program_path == "torchrun" ? Style::Torchrun : Style::Muster;
}

std::string_view name_of(Style style) {
  return style == Style::Torchrun ? "torchrun" : "muster run";
}

Parsed parse(std::span<const std::string> words, const Variables& variables, Style style) {
  return Parser(words, variables, style).run();
}

}  // namespace muster::launch
