#include "muster/observe/data_points.h"

#include "muster/observe/json.h"

#include <fmt/format.h>

#include <utility>

namespace muster::observe {
namespace {

Gauge& gauge_of(Registry& registry, std::string_view name) {
  return registry.gauge("muster_torchelastic",
                        "The last value of each metric of PyTorch's elastic agent, by its name.",
                        {{"name", std::string(name)}});
}

}  // namespace

std::string console_line(const DataPoint& point) {
  JsonWriter seconds;  // writes a float as Python does
  seconds.number(static_cast<double>(point.wall_nanoseconds / 1000) / 1e6);
  return fmt::format("[{}][{}]: {}={}", seconds.str(), point.group, point.name, point.value);
}

DataPoints::DataPoints(Registry& registry, WallClock wall_clock)
    : registry_(registry), wall_clock_(std::move(wall_clock)) {}

void DataPoints::put(std::string_view name, std::int64_t value) {
  correct(name, value);
  if (!handler_) return;
  handler_({wall_clock_(), std::string(kTorchElasticGroup), std::string(name), value});
}

void DataPoints::correct(std::string_view name, std::int64_t value) {
  gauge_of(registry_, name).set(static_cast<double>(value));
}

void DataPoints::timed(std::string_view function, Duration duration, bool success) {
  put(fmt::format("{}.{}", function, success ? "success" : "failure"), 1);
  put(fmt::format("{}.duration.ms", function),
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace muster::observe
