#include "muster/base/suggest.h"

#include <algorithm>

namespace muster {
namespace {

// No name is longer. What is longer was not meant to be one, and comparing costs its square.
constexpr std::size_t kTypedBytesMax = 200;

}  // namespace

std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t column = 0; column <= to.size(); ++column) row[column] = column;
  for (std::size_t line = 1; line <= from.size(); ++line) {
    std::size_t diagonal = row[0];
    row[0] = line;
    for (std::size_t column = 1; column <= to.size(); ++column) {
      const std::size_t changed = diagonal + (from[line - 1] == to[column - 1] ? 0 : 1);
      diagonal = row[column];
      row[column] = std::min({row[column] + 1, row[column - 1] + 1, changed});
    }
  }
  return row[to.size()];
}

std::string nearest(std::string_view typed, const std::vector<std::string>& names) {
  std::string best;
  if (typed.size() > kTypedBytesMax) return best;
  std::size_t best_distance = typed.size() / 3 + 2;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(typed, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace muster
