// Registry: counters, gauges and histograms, and their text for Prometheus (format 0.0.4).
//
// Pure: it is told values. Owned by the agent; lives on its loop. The metrics it hands out live as
// long as it does.
//
// Names and labels are ours, so wrong ones are asserted; label values and help may hold any bytes.
// Families come out by name and series by label values: the same numbers give the same text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace muster::observe {

// Series of one family. What goes beyond is counted in muster_metrics_dropped_series_total and
// otherwise lost: a label with too many values must not eat the agent's memory.
inline constexpr std::size_t kSeriesMax = 2048;

inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  // Requires: by >= 0.
  void add(double by = 1);
  // For a total that is kept elsewhere; a smaller one changes nothing.
  void advance_to(double total) { value_ = total > value_ ? total : value_; }
  double value() const { return value_; }

 private:
  double value_ = 0;
};

class Gauge {
 public:
  void set(double value) { value_ = value; }
  void add(double by) { value_ += by; }
  double value() const { return value_; }

 private:
  double value_ = 0;
};

class Histogram {
 public:
  // Upper bounds of the buckets. Requires: strictly rising and finite.
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  const std::vector<double>& bounds() const { return bounds_; }
  // How many were observed in each bucket, the one without a bound last; not cumulative.
  const std::vector<std::uint64_t>& buckets() const { return buckets_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

// From a millisecond to ten minutes, for durations in seconds.
std::vector<double> duration_bounds();

class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The series of this name and these labels, made when it is first asked for. Requires: a valid
  // name that is not that of a family of another type; valid label names, none twice.
  Counter& counter(std::string_view name, std::string_view help, const Labels& labels);
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels);
  Histogram& histogram(std::string_view name, std::string_view help, const Labels& labels,
                       const std::vector<double>& bounds);
  Counter& counter(std::string_view name, std::string_view help) { return counter(name, help, {}); }
  Gauge& gauge(std::string_view name, std::string_view help) { return gauge(name, help, {}); }

  // Called before every `text`, for what is looked up only when somebody asks.
  void before_text(std::function<void()> refresh) { refreshers_.push_back(std::move(refresh)); }

  // Everything, as Prometheus reads it.
  std::string text();

 private:
  using Series =
      std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>>;
  struct Family {
    std::string help;
    std::size_t type = 0;                  // index in Series
    std::map<std::string, Series> series;  // by label text: `role="a",state="b"`
  };
  template <typename T, typename Make>
  T& find_or_make(std::string_view name, std::string_view help, const Labels& labels, Make make);

  std::map<std::string, Family, std::less<>> families_;
  std::vector<Series> dropped_;  // series beyond kSeriesMax, one of each kind and name
  std::map<std::string, std::size_t> dropped_index_;
  std::vector<std::function<void()>> refreshers_;
};

}  // namespace muster::observe
