// GroupState: how the local worker group is, in the words that PyTorch's agent uses.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace muster::observe {

enum class GroupState { Unknown, Init, Healthy, Unhealthy, Stopped, Succeeded, Failed };

inline constexpr std::array<std::string_view, 7> kGroupStateNames = {
    "UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"};
static_assert(kGroupStateNames.size() == static_cast<std::size_t>(GroupState::Failed) + 1);

constexpr std::string_view name_of(GroupState state) {
  return kGroupStateNames[static_cast<std::size_t>(state)];
}

// As in metric names: "healthy".
inline std::string lower_name_of(GroupState state) {
  std::string name(name_of(state));
  for (char& letter : name) letter = static_cast<char>(letter - 'A' + 'a');
  return name;
}

}  // namespace muster::observe
