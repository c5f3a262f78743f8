#include "muster/base/assert.h"
#include "muster/base/task.h"
#include "muster/store/tcp_store.h"
#include "tests/fuzz/client_run.h"
#include "tests/fuzz/fake_server.h"
#include "tests/store/test_loop.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {
namespace {

using namespace std::chrono_literals;
using store::Change;
using store::KeyValue;
using store::Store;
using store::TcpStore;

constexpr Duration kPatience = 100ms;
// No value can be longer than what was played.
constexpr std::size_t kInputBytesMax = std::size_t{1} << 20U;

// Uses the store as a program would: one task does one thing after another, others wait meanwhile.
//
// Owned by run_store; the scope is the last member, so its tasks go first.
class Program {
 public:
  Program(Loop& loop, net::Transport& transport, Random& random, bool talks_first)
      : loop_(loop), transport_(transport), random_(random), talks_first_(talks_first) {
    running_ = 1;
    scope_.start(connect());
  }

  bool done() const { return running_ == 0; }

 private:
  TimePoint soon() const { return loop_.now() + kPatience; }

  template <typename T>
  void note(const Result<T>& result) {
    if (!result) MUSTER_ASSERT(!result.error().message.empty());
  }
  void note(const Result<std::string>& result) {
    if (result) MUSTER_ASSERT(result->size() <= kInputBytesMax);
  }

  Task<void> connect() {
    store::TcpStoreOptions options;
    options.endpoint.host = "fuzzer";
    options.endpoint.port = 1;
    options.connect_timeout = kPatience;
    options.reply_timeout = kPatience;
    options.backoff.first = 10ms;
    options.backoff.max = 20ms;
    options.count_as_worker = random_.chance(200);
    auto connected =
        co_await store::connect_tcp_store(loop_, transport_, random_, std::move(options));
    note(connected);
    if (connected) {
      store_ = std::move(*connected);
      running_ += 4;
      if (talks_first_) {
        ++running_;
        scope_.start(talk());
      }
      scope_.start(do_everything());
      scope_.start(wait_for_things());
      scope_.start(watch(Store::WatchScope::Key));
      scope_.start(watch(Store::WatchScope::Prefix));
    }
    --running_;
  }

  Task<void> do_everything() {
    note(co_await store_->set("k", "v"));
    note(co_await store_->get("k", soon()));
    note(co_await store_->try_get("k"));
    note(co_await store_->add("n", 5));
    note(co_await store_->compare_set("c", "", "first"));
    std::vector<std::string> keys;
    keys.push_back("k");
    keys.push_back("n");
    note(co_await store_->check(keys));
    note(co_await store_->wait(keys, soon()));
    note(co_await store_->num_keys());
    note(co_await store_->append("k", "w"));
    std::vector<KeyValue> pairs;
    pairs.push_back({"a", "1"});
    pairs.push_back({"b", "2"});
    note(co_await store_->multi_set(pairs));
    auto values = co_await store_->multi_get(keys, soon());
    if (values) MUSTER_ASSERT(values->size() == keys.size());
    note(co_await store_->queue_push("q", "item"));
    note(co_await store_->queue_length("q"));
    note(co_await store_->try_queue_pop("q"));
    note(co_await store_->queue_pop("q", soon()));
    note(co_await store_->list_keys(""));
    note(co_await store_->delete_key("k"));
    note(co_await store_->barrier("bar", 1, soon()));
    note(co_await store_->ping());
    note(co_await store_->info());
    note(co_await store_->drop_namespace("other"));
    note(co_await store_->count_as_worker());
    if (!talks_first_) co_await converse();
    --running_;
  }

  Task<void> wait_for_things() {
    note(co_await store_->get("absent", soon()));
    note(co_await store_->queue_pop("other", soon()));
    note(co_await store_->barrier("never", 3, soon()));
    --running_;
  }

  Task<void> watch(Store::WatchScope scope) {
    auto began = co_await store_->watch("k", scope);
    note(began);
    for (int changes = 0; began && changes < 8; ++changes) {
      auto change = co_await (*began)->next(soon());
      note(change);
      if (!change) break;
      MUSTER_ASSERT(change->kind <= Change::Kind::Deleted);
    }
    --running_;
  }

  Task<void> talk() {
    co_await converse();
    --running_;
  }

  Task<void> converse() {
    store::ServiceClient* const services = store_->services();
    MUSTER_ASSERT((services != nullptr) == (store_->dialect() == wire::Dialect::Extension));
    for (int talks = 0; services != nullptr && talks < 3; ++talks) {
      auto opened = co_await services->open(store::ServiceId::Rendezvous, "hello");
      note(opened);
      if (!opened) break;
      for (int messages = 0; messages < 8; ++messages) {
        auto message = co_await (*opened)->next(soon());
        if (!message && message.error().kind != ErrorKind::Timeout) {
          // It is over, and stays so.
          auto again = co_await (*opened)->next(soon());
          MUSTER_ASSERT(!again && again.error() == message.error());
          MUSTER_ASSERT(!message.error().message.empty());
          break;
        }
        (*opened)->say("go on");
      }
    }
  }

  Loop& loop_;
  net::Transport& transport_;
  Random& random_;
  const bool talks_first_;  // to a service; else when everything else is done
  int running_ = 0;         // tasks
  std::unique_ptr<TcpStore> store_;
  TaskScope scope_;
};

}  // namespace

void run_store(std::string_view text, StoreRunOptions options) {
  store::testing::TestLoop loop;
  Random random(options.seed);
  FakeServer server(loop, random, parse_scripts(text));
  Program program(loop, server, random, options.seed % 2 == 0);
  if (options.turns_max < 0) {
    MUSTER_ASSERT(loop.run_until([&] { return program.done(); }));
    return;
  }
  for (int turn = 0; turn < options.turns_max && !program.done(); ++turn) loop.advance(1ms);
}

}  // namespace muster::tests
