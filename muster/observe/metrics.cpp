#include "muster/observe/metrics.h"

#include "muster/base/assert.h"
#include "muster/observe/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace muster::observe {
namespace {

constexpr std::string_view kDroppedSeries = "muster_metrics_dropped_series_total";
constexpr std::string_view kDroppedSeriesHelp =
    "How often a series was asked for that its family had no room for.";
constexpr std::array<std::string_view, 3> kTypeNames = {"counter", "gauge", "histogram"};

bool is_name(std::string_view name, bool with_colon) {
  const auto letter = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c == ':' && with_colon);
  };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || digit(c); });
}

std::string escape(std::string_view text, bool with_quotes) {
  std::string out;
  for (const char character : valid_utf8(text)) {
    if (character == '\\') {
      out += "\\\\";
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '"' && with_quotes) {
      out += "\\\"";
    } else {
      out += character;
    }
  }
  return out;
}

// `a="1",b="2"`, by name, so that the order in which they are given does not matter.
std::string label_text(const Labels& labels) {
  Labels sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  for (std::size_t index = 0; index < sorted.size(); ++index) {
    const auto& [name, value] = sorted[index];
    MUSTER_ASSERT(is_name(name, false) && !name.starts_with("__") && name != "le");
    MUSTER_ASSERT(index == 0 || sorted[index - 1].first != name);
    if (index > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}=\"{}\"", name, escape(value, true));
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void append_line(std::string& out, std::string_view name, std::string_view labels,
                 std::string_view value) {
  if (labels.empty()) {
    fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
  } else {
    fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, value);
  }
}

void append_histogram(std::string& out, std::string_view name, std::string_view labels,
                      const Histogram& histogram) {
  const std::string comma = labels.empty() ? "" : ",";
  const std::string bucket = fmt::format("{}_bucket", name);
  std::uint64_t so_far = 0;
  for (std::size_t index = 0; index < histogram.buckets().size(); ++index) {
    so_far += histogram.buckets()[index];
    const double bound = index < histogram.bounds().size()
                             ? histogram.bounds()[index]
                             : std::numeric_limits<double>::infinity();
    append_line(out, bucket, fmt::format("{}{}le=\"{}\"", labels, comma, number(bound)),
                fmt::to_string(so_far));
  }
  append_line(out, fmt::format("{}_sum", name), labels, number(histogram.sum()));
  append_line(out, fmt::format("{}_count", name), labels, fmt::to_string(histogram.count()));
}

}  // namespace

void Counter::add(double by) {
  MUSTER_ASSERT(by >= 0);
  value_ += by;
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {
  for (std::size_t index = 0; index < bounds_.size(); ++index) {
    MUSTER_ASSERT(std::isfinite(bounds_[index]));
    MUSTER_ASSERT(index == 0 || bounds_[index - 1] < bounds_[index]);
  }
}

void Histogram::observe(double value) {
  // NaN is in no bucket but the last, and would spoil the sum for ever.
  if (std::isnan(value)) return;
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++buckets_[static_cast<std::size_t>(place - bounds_.begin())];
  ++count_;
  sum_ += value;
}

std::vector<double> duration_bounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600};
}

Registry::Registry() = default;
Registry::~Registry() = default;

template <typename T, typename Make>
T& Registry::find_or_make(std::string_view name, std::string_view help, const Labels& labels,
                          Make make) {
  using Held = std::unique_ptr<T>;
  MUSTER_ASSERT(is_name(name, true));
  const Series empty = Held();
  auto family = families_.find(name);
  if (family == families_.end()) {
    family = families_.emplace(name, Family{std::string(help), empty.index(), {}}).first;
  }
  MUSTER_ASSERT(family->second.type == empty.index());
  auto& series = family->second.series;
  const std::string key = label_text(labels);
  auto place = series.find(key);
  if (place == series.end() && series.size() >= kSeriesMax) {
    // Values still need a place to go to: one for all that are dropped of this family.
    counter(kDroppedSeries, kDroppedSeriesHelp, {}).add();
    const auto [index, is_new] = dropped_index_.emplace(std::string(name), dropped_.size());
    if (is_new) dropped_.emplace_back(make());
    return *std::get<Held>(dropped_[index->second]);
  }
  if (place == series.end()) place = series.emplace(key, Series(make())).first;
  return *std::get<Held>(place->second);
}

Counter& Registry::counter(std::string_view name, std::string_view help, const Labels& labels) {
  return find_or_make<Counter>(name, help, labels, [] { return std::make_unique<Counter>(); });
}

Gauge& Registry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  return find_or_make<Gauge>(name, help, labels, [] { return std::make_unique<Gauge>(); });
}

Histogram& Registry::histogram(std::string_view name, std::string_view help, const Labels& labels,
                               const std::vector<double>& bounds) {
  return find_or_make<Histogram>(name, help, labels,
                                 [&] { return std::make_unique<Histogram>(bounds); });
}

std::string Registry::text() {
  for (const auto& refresh : refreshers_) refresh();
  std::string out;
  for (const auto& [name, family] : families_) {
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name,
                   escape(family.help, false), name, kTypeNames[family.type]);
    for (const auto& [labels, series] : family.series) {
      if (const auto* counter = std::get_if<std::unique_ptr<Counter>>(&series)) {
        append_line(out, name, labels, number((*counter)->value()));
      } else if (const auto* gauge = std::get_if<std::unique_ptr<Gauge>>(&series)) {
        append_line(out, name, labels, number((*gauge)->value()));
      } else {
        append_histogram(out, name, labels, *std::get<std::unique_ptr<Histogram>>(series));
      }
    }
  }
  return out;
}

}  // namespace muster::observe
