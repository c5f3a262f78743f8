// The contract of all backends: for StoreBackend over each kind of store, and for the fake that
// other tests use in their place.
#include "tests/rendezvous/backend_contract.h"

#include "muster/rendezvous/store_backend.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/memory_store.h"
#include "muster/store/server.h"
#include "muster/store/tcp_store.h"
#include "tests/rendezvous/fake_backend.h"
#include "tests/server/dialect_transport.h"
#include "tests/server/log_capture.h"
#include "tests/store/store_folder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using wire::Dialect;

constexpr const char* kKey = "muster.rendezvous.run";

class StoreBackendFixture : public BackendFixture {
 public:
  Backend& client(std::size_t index) override {
    auto& backend = backends_[index];
    if (!backend) backend = make_store_backend(loop_, store(index), random_, "run");
    return *backend;
  }
  Loop& loop() override { return loop_; }
  void overwrite_state(std::string junk) override {
    EXPECT_TRUE(loop_.block_on(store(0).set(kKey, std::move(junk))));
  }
  std::string raw_state() override {
    const auto value = loop_.block_on(store(0).try_get(kKey));
    return value && *value ? **value : "(none)";
  }
  bool run_until(const std::function<bool()>& done) override {
    return loop_.run_until(done, loop_.now() + 1h);
  }

 protected:
  virtual store::Store& store(std::size_t index) = 0;
  // To be called before the stores go.
  void drop_backends() { backends_.clear(); }

  sim::Loop loop_;
  Random random_{1};

 private:
  std::map<std::size_t, std::unique_ptr<Backend>> backends_;
};

class MemoryFixture final : public StoreBackendFixture {
 public:
  ~MemoryFixture() override { drop_backends(); }

 private:
  store::Store& store(std::size_t) override { return *store_; }
  std::unique_ptr<store::Store> store_ = store::make_memory_store(loop_);
};

// A store object each, on one file.
class FileFixture final : public StoreBackendFixture {
 public:
  ~FileFixture() override { drop_backends(); }

 private:
  store::Store& store(std::size_t index) override {
    auto& store = stores_[index];
    if (!store) {
      store = store::testing::open_store(loop_, random_, {.path = folder_.path()});
    }
    return *store;
  }
  store::testing::StoreFolder folder_;
  std::map<std::size_t, std::unique_ptr<store::Store>> stores_;
};

// A connection each to a server on a simulated network.
class TcpFixture final : public StoreBackendFixture {
 public:
  explicit TcpFixture(Dialect dialect) : dialect_(dialect) {
    EXPECT_TRUE(server_.listen(server_host_, {"server", 4400}, ""));
  }
  ~TcpFixture() override {
    drop_backends();
    stores_.clear();
  }

 private:
  store::Store& store(std::size_t index) override {
    auto& store = stores_[index];
    if (!store) {
      store::TcpStoreOptions options;
      options.endpoint = {"server", 4400};
      auto connected = loop_.block_on(
          store::connect_tcp_store(client_host_.loop(), transport_, random_, options));
      EXPECT_TRUE(connected) << connected.error().message;
      store = std::move(*connected);
    }
    return *store;
  }

  tests::LogCapture log_;
  const Dialect dialect_;
  sim::Network network_{loop_, random_};
  sim::Host& server_host_ = network_.host("server");
  sim::Host& client_host_ = network_.host("client");
  tests::DialectTransport transport_{client_host_, dialect_};
  store::Server server_{server_host_.loop(), store::ServerOptions()};
  std::map<std::size_t, std::unique_ptr<store::TcpStore>> stores_;
};

class FakeFixture final : public BackendFixture {
 public:
  explicit FakeFixture(bool has_leases) : run_(loop_, has_leases) {
    run_.has_wishes = run_.has_wish_numbers = !has_leases;
  }

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

template <typename Fixture, typename... Args>
BackendKind kind(std::string name, Args... args) {
  return {std::move(name), [args...] { return std::make_unique<Fixture>(args...); }};
}

INSTANTIATE_TEST_SUITE_P(Store, BackendContract,
                         ::testing::Values(kind<MemoryFixture>("Memory"), kind<FileFixture>("File"),
                                           kind<TcpFixture>("Muster", Dialect::Extension),
                                           kind<TcpFixture>("PyTorchModern", Dialect::Modern),
                                           kind<TcpFixture>("PyTorchLegacy", Dialect::Legacy)),
                         backend_kind_name);

INSTANTIATE_TEST_SUITE_P(Fake, BackendContract,
                         ::testing::Values(kind<FakeFixture>("WithMarks", false),
                                           kind<FakeFixture>("WithLeases", true)),
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
