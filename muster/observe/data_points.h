// DataPoints: the metrics of PyTorch's elastic agent, under their own names.
//
// A data point is a time, a group ("torchelastic"), a name such as
// "workers.trainer.remaining_restarts" and a whole number. PyTorch gives them to a handler that an
// embedding program may set; here they also appear in Prometheus' text, the exact name as a label,
// the last value as the value:
//
//   muster_torchelastic{name="workers.trainer.remaining_restarts"} 3
//
// Owned by the agent; lives on its loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/observe/metrics.h"
#include "muster/observe/wall_clock.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster::observe {

inline constexpr std::string_view kTorchElasticGroup = "torchelastic";

struct DataPoint {
  std::int64_t wall_nanoseconds = 0;
  std::string group;
  std::string name;
  std::int64_t value = 0;
};

// "[1700000000.25][torchelastic]: name=value", as PyTorch's console handler prints it.
std::string console_line(const DataPoint& point);

class DataPoints {
 public:
  // Requires: `registry` outlives it.
  explicit DataPoints(Registry& registry, WallClock wall_clock = wall_nanoseconds);

  void put(std::string_view name, std::int64_t value);
  // A value that has become stale: it changes in Prometheus' text, no handler hears of it.
  void correct(std::string_view name, std::int64_t value);
  // What PyTorch's timing decorator emits: <function>.success or .failure = 1, and .duration.ms.
  void timed(std::string_view function, Duration duration, bool success);

  // Empty, which is the default, for none.
  void set_handler(std::function<void(const DataPoint&)> handler) { handler_ = std::move(handler); }

 private:
  Registry& registry_;
  WallClock wall_clock_;
  std::function<void(const DataPoint&)> handler_;
};

}  // namespace muster::observe
