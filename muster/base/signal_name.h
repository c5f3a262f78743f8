// Signals and their names: "SIGTERM".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// "SIGTERM"; "signal 70" when it has no name.
std::string signal_name(int number);

// Exactly as the constants are spelled, other names of the same signal included; of the real-time
// signals only SIGRTMIN and SIGRTMAX have one. Nothing if there is no such signal.
std::optional<int> signal_named(std::string_view name);

// As a person may write it: "SIGTERM", "TERM", "term" or "15". Nothing if there is no such signal.
std::optional<int> parse_signal(std::string_view text);

// Of all signals that have one, for suggestions.
std::vector<std::string> signal_names();

}  // namespace muster
