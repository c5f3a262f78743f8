#include "muster/logs/streams.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace muster::logs {
namespace {

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  // from_chars takes a minus sign, which is no part of a rank.
  if (error != std::errc() || stop != end || text.starts_with('-')) return std::nullopt;
  return number;
}

std::optional<RankRange> parse_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::optional<int> first = parse_number(text.substr(0, dash));
  if (!first) return std::nullopt;
  if (dash == std::string_view::npos) return RankRange{*first, *first};
  const std::optional<int> last = parse_number(text.substr(dash + 1));
  if (!last || *last < *first) return std::nullopt;
  return RankRange{*first, *last};
}

std::optional<Mask> parse_mask(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return static_cast<Mask>(text[0] - '0');
}

// The piece before the next comma, which is taken away from `text`; nothing after the last piece.
std::optional<std::string_view> next_piece(std::optional<std::string_view>& text) {
  if (!text) return std::nullopt;
  const std::size_t comma = text->find(',');
  const std::string_view piece = text->substr(0, comma);
  if (comma == std::string_view::npos) {
    text.reset();
  } else {
    text->remove_prefix(comma + 1);
  }
  return piece;
}

}  // namespace

std::string_view name_of(Stream stream) { return stream == Stream::Out ? "stdout" : "stderr"; }

bool has(Mask mask, Stream stream) {
  const Mask wanted = stream == Stream::Out ? Mask::Out : Mask::Err;
  return (static_cast<unsigned>(mask) & static_cast<unsigned>(wanted)) != 0;
}

Mask StreamMap::of(int local_rank) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->ranks.first <= local_rank && local_rank <= entry->ranks.last) return entry->mask;
  }
  return rest_;
}

bool RankSet::contains(int local_rank) const {
  if (ranges_.empty()) return true;
  for (const RankRange& range : ranges_) {
    if (range.first <= local_rank && local_rank <= range.last) return true;
  }
  return false;
}

Result<StreamMap> parse_streams(std::string_view text) {
  if (const std::optional<Mask> mask = parse_mask(text)) return StreamMap(*mask);
  StreamMap streams;
  std::optional<std::string_view> rest = text;
  while (const std::optional<std::string_view> piece = next_piece(rest)) {
    const std::size_t colon = piece->find(':');
    std::optional<RankRange> ranks;
    std::optional<Mask> mask;
    if (colon != std::string_view::npos) {
      ranks = parse_range(piece->substr(0, colon));
      mask = parse_mask(piece->substr(colon + 1));
    }
    if (!ranks || !mask) {
      return fail(ErrorKind::Invalid,
                  fmt::format("{} does not select streams: write one of 0 (none), 1 (stdout), "
                              "2 (stderr), 3 (both) for all local ranks, or pairs RANK:STREAMS "
                              "such as 0:3,1-7:1",
                              log::quote(text)));
    }
    streams.set(*ranks, *mask);
  }
  return streams;
}

Result<RankSet> parse_ranks(std::string_view text) {
  RankSet ranks;
  if (text.empty()) return ranks;
  std::optional<std::string_view> rest = text;
  while (const std::optional<std::string_view> piece = next_piece(rest)) {
    const std::optional<RankRange> range = parse_range(*piece);
    if (!range) {
      return fail(ErrorKind::Invalid,
                  fmt::format("{} is no list of local ranks: write numbers and ranges joined by "
                              "commas, such as 0,3,8-11",
                              log::quote(text)));
    }
    ranks.add(*range);
  }
  return ranks;
}

std::vector<std::string> parse_duplicate_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t index = 0; index < text.size(); ++index) {
    if (text[index] != ',') {
      filters.back().push_back(text[index]);
    } else if (index + 1 < text.size() && text[index + 1] == ',') {
      filters.back().push_back(',');
      ++index;
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

bool matches_any(const std::vector<std::string>& filters, std::string_view line) {
  for (const std::string& filter : filters) {
    if (line.find(filter) != std::string_view::npos) return true;
  }
  return false;
}

Target target_of(const Routing& routing, int local_rank, Stream stream) {
  const bool shown = routing.console_ranks.contains(local_rank);
  const bool teed = has(routing.tee.of(local_rank), stream);
  const bool stored = teed || has(routing.redirects.of(local_rank), stream);
  if (teed && shown) return Target::Tee;
  if (stored) return routing.null_device ? Target::Null : Target::File;
  return shown ? Target::Inherit : Target::Null;
}

}  // namespace muster::logs
