// The table of options: the one place that says how an option is spelled, which variable stands for
// it, what it takes and what it does. Parsing, help and completion are all made from it.
#pragma once

#include "muster/launch/options.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muster::launch {

// Where a value is kept, which also says how its text is read. A flag is a bool; a double is a
// length of time in seconds; an unsigned number is a size such as 64M.
using Field =
    std::variant<std::monostate,  // acts at once: --help, --print-completion
                 bool Options::*, std::int64_t Options::*, std::optional<std::int64_t> Options::*,
                 double Options::*, std::optional<Duration> Options::*,
                 std::optional<std::uint64_t> Options::*, std::string Options::*,
                 std::optional<std::string> Options::*>;

enum class Group { Workers, Rendezvous, Program, Limits, Logs, Observation, Placement, Other };
inline constexpr int kGroupCount = static_cast<int>(Group::Other) + 1;
std::string_view title_of(Group group);

enum class Completes { Nothing, Words, Files, Folders };

struct OptionRow {
  std::string_view name = {};  // with dashes: "nproc-per-node"
  char letter = 0;             // the short spelling
  Group group = Group::Other;
  std::string_view value = {};  // what help calls the value; empty: takes none
  Field field = {};
  std::string_view meaning = {};
  std::string_view otherwise = {};               // the default, for help
  std::span<const std::string_view> words = {};  // values worth naming
  bool only_words = false;                       // others are refused on the command line
  Completes completes = Completes::Words;
  bool has_variable = true;
  bool ours = false;  // torchrun does not have it

  bool takes_value() const { return !value.empty(); }
};

std::span<const OptionRow> option_table();
// By its whole name with dashes; nothing if there is none.
const OptionRow* find_row(std::string_view name);
// "PET_NPROC_PER_NODE".
std::string variable_of(const OptionRow& row);

}  // namespace muster::launch
