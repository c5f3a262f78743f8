// Signals by name: "SIGTERM".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launch {

// Nothing if there is no such signal. Exactly as the constants are spelled; real-time signals have
// only the names SIGRTMIN and SIGRTMAX.
std::optional<int> signal_number(std::string_view name);
// "SIGTERM", or the number where it has no name.
std::string signal_name(int number);
// Of all signals, for suggestions.
std::vector<std::string> signal_names();

// Whether a process can have it delivered to a handler of its own and go on.
bool can_be_handled(int number);

}  // namespace muster::launch
