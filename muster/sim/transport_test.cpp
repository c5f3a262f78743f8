// The simulated network keeps every promise of net::Transport, on good days and on bad ones.
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "tests/net/transport_contract.h"

#include <memory>
#include <string>

namespace muster::tests {
namespace {

class SimDriver final : public TransportDriver {
 public:
  explicit SimDriver(const sim::Weather& weather) : network_(loop_, random_, weather) {
    network_.host("client");
    network_.host("server");
  }
  net::Transport& client() override { return network_.host("client"); }
  net::Transport& server() override { return network_.host("server"); }
  std::string listen_host() const override { return "server"; }
  bool run_until(const std::function<bool()>& reached) override {
    return loop_.run_until(reached, loop_.now() + std::chrono::hours(1));
  }

 private:
  sim::Loop loop_;
  Random random_{20260314};
  sim::Network network_;
};

std::unique_ptr<TransportDriver> on_a_fine_day() {
  return std::make_unique<SimDriver>(sim::Weather{});
}

std::unique_ptr<TransportDriver> on_a_bad_day() {
  sim::Weather weather;
  weather.latency_min = std::chrono::microseconds(1);
  weather.latency_max = std::chrono::milliseconds(40);
  weather.window_bytes = 4'096;
  weather.chunk_bytes_max = 1'460;
  weather.torn_per_thousand = 900;
  return std::make_unique<SimDriver>(weather);
}

INSTANTIATE_TEST_SUITE_P(FineDay, TransportContract, testing::Values(&on_a_fine_day));
INSTANTIATE_TEST_SUITE_P(BadDay, TransportContract, testing::Values(&on_a_bad_day));

}  // namespace
}  // namespace muster::tests
