// The fake is held to what is asked of real backends, with and without leases.
#include "tests/rendezvous/fake_backend.h"

#include "muster/sim/loop.h"
#include "tests/rendezvous/backend_contract.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

class FakeFixture final : public BackendFixture {
 public:
  explicit FakeFixture(bool has_leases) : run_(loop_, has_leases) {}

  Backend& client(std::size_t index) override {
    auto& backend = backends_[index];
    if (!backend) backend = std::make_unique<FakeBackend>(run_);
    return *backend;
  }
  Loop& loop() override { return loop_; }
  void overwrite_state(std::string junk) override { run_.overwrite(std::move(junk)); }
  std::string raw_state() override { return run_.junk().value_or("(none)"); }
  bool run_until(const std::function<bool()>& done) override {
    return loop_.run_until(done, loop_.now() + 1h);
  }

 private:
  sim::Loop loop_;
  FakeRun run_;
  std::map<std::size_t, std::unique_ptr<FakeBackend>> backends_;
};

BackendKind kind(std::string name, bool has_leases) {
  return {std::move(name), [has_leases] { return std::make_unique<FakeFixture>(has_leases); }};
}

INSTANTIATE_TEST_SUITE_P(Fake, BackendContract,
                         ::testing::Values(kind("WithMarks", false), kind("WithLeases", true)),
                         backend_kind_name);

TEST(FakeBackend, WakesThoseWhoAskedForItWhenALeaseIsOver) {
  sim::Loop loop;
  FakeRun run(loop, true);
  FakeBackend backend(run);
  ASSERT_TRUE(loop.block_on(backend.beat("a", 15s)));
  const auto woken = loop.block_on(backend.wait_signal(std::nullopt, true, TimePoint(1min)));
  ASSERT_TRUE(woken);
  EXPECT_TRUE(*woken);
  EXPECT_EQ(loop.now(), TimePoint(15s));
  EXPECT_EQ(run.sign_count(), 0U);
}

}  // namespace
}  // namespace muster::rendezvous::testing
