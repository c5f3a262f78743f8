// The little that is needed to read /proc and /sys, whose files are small and say no size.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster::launch {

inline constexpr std::size_t kSmallFileBytesMax = std::size_t{1} << 20;

// The first kSmallFileBytesMax of it; nothing if it cannot be read.
std::optional<std::string> read_small_file(const std::string& path);

// The names in a folder, sorted, without those that begin with a dot; none if it cannot be read.
std::vector<std::string> list_folder(const std::string& path);

}  // namespace muster::launch
