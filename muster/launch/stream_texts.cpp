#include "muster/launch/stream_texts.h"

#include "muster/rendezvous/text.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace muster::launch {
namespace {

using rendezvous::trim;

// Digits only: no sign, no space.
std::optional<int> read_rank(std::string_view text) {
  int rank = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, rank);
  if (error != std::errc() || stopped != end || text.starts_with('-')) return std::nullopt;
  return rank;
}

bool is_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = read_rank(text.substr(0, dash));
  if (dash == std::string_view::npos) return first.has_value();
  const auto last = read_rank(text.substr(dash + 1));
  return first && last && *first <= *last;
}

bool is_mask(std::string_view text) { return text.size() == 1 && text[0] >= '0' && text[0] <= '3'; }

template <typename Judge>
bool all_items(std::string_view text, Judge judge) {
  while (true) {
    const std::size_t comma = text.find(',');
    if (!judge(text.substr(0, comma))) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

bool is_stream_text(std::string_view text) {
  if (is_mask(text)) return true;
  return all_items(text, [](std::string_view item) {
    const std::size_t colon = item.find(':');
    return colon != std::string_view::npos && is_range(item.substr(0, colon)) &&
           is_mask(item.substr(colon + 1));
  });
}

bool is_rank_text(std::string_view text) {
  if (trim(text).empty()) return true;
  return all_items(text, [](std::string_view item) { return is_range(trim(item)); });
}

}  // namespace muster::launch
