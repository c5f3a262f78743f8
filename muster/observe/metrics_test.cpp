#include "muster/observe/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace muster::observe {
namespace {

TEST(Registry, WritesPrometheusText) {
  Registry registry;
  registry.gauge("b_gauge", "A gauge.").set(-1.5);
  registry.counter("a_total", "All of it.", {{"role", "x"}, {"cause", "y"}}).add(3);
  registry.counter("a_total", "All of it.", {{"role", "x"}, {"cause", "a"}}).add();

  EXPECT_EQ(registry.text(),
            "# HELP a_total All of it.\n"
            "# TYPE a_total counter\n"
            "a_total{cause=\"a\",role=\"x\"} 1\n"
            "a_total{cause=\"y\",role=\"x\"} 3\n"
            "# HELP b_gauge A gauge.\n"
            "# TYPE b_gauge gauge\n"
            "b_gauge -1.5\n");
}

TEST(Registry, WritesHistogramsWithRisingBuckets) {
  Registry registry;
  Histogram& histogram = registry.histogram("t_seconds", "Time.", {{"phase", "p"}}, {0.5, 1});
  histogram.observe(0.5);  // a bound belongs to its bucket
  histogram.observe(0.75);
  histogram.observe(9);
  histogram.observe(std::numeric_limits<double>::quiet_NaN());

  EXPECT_EQ(registry.text(),
            "# HELP t_seconds Time.\n"
            "# TYPE t_seconds histogram\n"
            "t_seconds_bucket{phase=\"p\",le=\"0.5\"} 1\n"
            "t_seconds_bucket{phase=\"p\",le=\"1\"} 2\n"
            "t_seconds_bucket{phase=\"p\",le=\"+Inf\"} 3\n"
            "t_seconds_sum{phase=\"p\"} 10.25\n"
            "t_seconds_count{phase=\"p\"} 3\n");
}

TEST(Registry, EscapesHelpAndLabelValues) {
  Registry registry;
  registry.gauge("g", "back\\slash \"quote\"\nline", {{"l", "back\\slash \"quote\"\nline\xff"}});
  EXPECT_EQ(registry.text(),
            "# HELP g back\\\\slash \"quote\"\\nline\n"
            "# TYPE g gauge\n"
            "g{l=\"back\\\\slash \\\"quote\\\"\\nline\xef\xbf\xbd\"} 0\n");
}

TEST(Registry, SpellsWhatIsNotFinite) {
  Registry registry;
  registry.gauge("a", "").set(std::numeric_limits<double>::infinity());
  registry.gauge("b", "").set(-std::numeric_limits<double>::infinity());
  registry.gauge("c", "").set(std::numeric_limits<double>::quiet_NaN());
  const std::string text = registry.text();
  EXPECT_NE(text.find("\na +Inf\n"), std::string::npos);
  EXPECT_NE(text.find("\nb -Inf\n"), std::string::npos);
  EXPECT_NE(text.find("\nc NaN\n"), std::string::npos);
}

TEST(Registry, WritesLargeWholeNumbersWhole) {
  Registry registry;
  registry.gauge("a", "").set(137438953472);
  EXPECT_NE(registry.text().find("\na 137438953472\n"), std::string::npos);
}

TEST(Registry, GivesTheSameSeriesForTheSameLabelsInAnyOrder) {
  Registry registry;
  Counter& one = registry.counter("a", "", {{"x", "1"}, {"y", "2"}});
  Counter& two = registry.counter("a", "", {{"y", "2"}, {"x", "1"}});
  EXPECT_EQ(&one, &two);
}

TEST(Registry, AsksForWhatIsLookedUpBeforeItWrites) {
  Registry registry;
  Counter& counter = registry.counter("a", "");
  registry.before_text([&] { counter.advance_to(7); });
  EXPECT_NE(registry.text().find("a 7\n"), std::string::npos);
}

TEST(Registry, BoundsTheSeriesOfAFamily) {
  Registry registry;
  for (std::size_t index = 0; index < kSeriesMax; ++index) {
    registry.counter("a_total", "", {{"l", std::to_string(index)}}).add();
  }
  EXPECT_EQ(registry.text().find("dropped"), std::string::npos);
  registry.counter("a_total", "", {{"l", "one more"}}).add();
  registry.counter("a_total", "", {{"l", "two more"}}).add();
  const std::string text = registry.text();
  EXPECT_EQ(text.find("more"), std::string::npos);
  EXPECT_NE(text.find("\nmuster_metrics_dropped_series_total 2\n"), std::string::npos);
  // Those that are there still count.
  registry.counter("a_total", "", {{"l", "0"}}).add();
  EXPECT_NE(registry.text().find("a_total{l=\"0\"} 2\n"), std::string::npos);
}

TEST(Counter, NeverFalls) {
  Counter counter;
  counter.advance_to(5);
  counter.advance_to(3);
  EXPECT_EQ(counter.value(), 5);
}

TEST(MetricsDeathTest, RefuseNamesThatPrometheusDoesNotRead) {
  Registry registry;
  EXPECT_DEATH(registry.counter("a-b", ""), "");
  EXPECT_DEATH(registry.counter("a", "", {{"le", "1"}}), "");
  EXPECT_DEATH(registry.counter("a", "", {{"x", "1"}, {"x", "2"}}), "");
  registry.gauge("a", "");
  EXPECT_DEATH(registry.counter("a", ""), "");
}

}  // namespace
}  // namespace muster::observe
