// "Did you mean …?": the known name that is nearest to what was typed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// How many letters must be changed, added or removed to get from one word to the other.
std::size_t edit_distance(std::string_view from, std::string_view to);

// The name nearest to what was typed, the first one of several; empty if none is near.
std::string nearest(std::string_view typed, const std::vector<std::string>& names);

}  // namespace muster
