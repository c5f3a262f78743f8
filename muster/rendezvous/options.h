// The options of a rendezvous: how `--rdzv-conf` is read, and which options there are.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rendezvous/parameters.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous {

// Reads `key=value[,key=value…]`. White space around keys and values does not count; there is no
// quoting, so a value may contain anything but a comma; the last value of a repeated key wins.
Result<Config> parse_options(std::string_view text);

enum class OptionType {
  Seconds,   // a whole number above 0
  Count,     // a whole number above 0
  Rank,      // a whole number, 0 or above
  Duration,  // 0 or above: seconds, or with a unit
  Boolean,
  Word,  // one of a few, in letters of either case, with white space around
  Text,
  Path,
};

struct Option {
  std::string_view name = {};
  OptionType type = OptionType::Text;
  std::span<const std::string_view> backends = {};  // those that use it
  std::string_view otherwise = {};  // the default, as it would be typed; empty: none
  std::string_view meaning = {};
  std::span<const std::string_view> words = {};  // for Word
  std::string_view same_as = {};                 // the option's other, preferred name
  bool may_be_null = true;                       // null stands for "not given"
  // What to say, instead of refusing it, when another backend is given this option: launchers do
  // so.
  std::string_view unused_note = {};
};

// All options of the built-in backends.
std::span<const Option> option_catalogue();
// Nothing if there is no such option.
const Option* find_option(std::string_view name);

// Judges the options that a built-in backend is given. Invalid, naming option and value: for an
// option that does not exist (with a suggestion) or that this backend does not use, a value that
// cannot be used, and for options that contradict one another. Returns warnings: options that have
// no effect but are no mistake either. The options of other backends are theirs to judge.
Result<std::vector<std::string>> check_options(std::string_view backend, const Config& config);

// The value of one option of the catalogue, or its default. Null counts as not given, where it may.
// Requires: the option exists, has that type, and has a default.
Result<Duration> duration_option(const Parameters& parameters, std::string_view option);
Result<std::int64_t> int_option(const Parameters& parameters, std::string_view option);
// In small letters.
Result<std::string> word_option(const Parameters& parameters, std::string_view option);
// Likewise for texts and paths, by either of the option's names; nothing if it is not given and has
// no default.
Result<std::optional<std::string>> text_option(const Parameters& parameters,
                                               std::string_view option);

}  // namespace muster::rendezvous
