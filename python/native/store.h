// Stores as Python holds them: on the loop of the process, with everything that they need.
#pragma once

#include "muster/backends/hosted_store.h"
#include "muster/store/store.h"
#include "python/native/loop_thread.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace muster::python {

// Lives on the loop: made there and destroyed there, in this order from the end.
struct HeldStore {
  std::shared_ptr<void> foundation = {};  // what the store is a view of, or belongs to
  std::shared_ptr<backends::HostedStore> server = {};
  std::shared_ptr<store::Store> store = {};
  int port = 0;
};

// What a Python store is made of. Every method of a store waits; see LoopThread.
class StoreHandle {
 public:
  StoreHandle(LoopThread& thread, std::shared_ptr<HeldStore> held)
      : thread_(thread), held_(std::move(held)) {}
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;
  ~StoreHandle();

  LoopThread& thread() const { return thread_; }
  const std::shared_ptr<HeldStore>& held() const { return held_; }
  int port() const { return held_->port; }

  // `call` gets the store, on the loop, and makes the task to wait for.
  template <typename Call>
  auto ask(Call call) const {
    store::Store& store = *held_->store;
    return value_or_raise(thread_.run([&] { return call(store); }));
  }

 private:
  LoopThread& thread_;
  std::shared_ptr<HeldStore> held_;
};

struct TcpRequest {
  std::string host = {};
  int port = 0;
  bool hosts = false;
  bool shares_server = false;  // with others of this process that host the same port
  std::optional<std::int64_t> worker_count = {};  // counts itself, and waits if it hosts the store
  Duration timeout = {};
};
std::shared_ptr<StoreHandle> open_tcp_store(const TcpRequest& request);
std::shared_ptr<StoreHandle> open_file_store(std::string path);
std::shared_ptr<StoreHandle> open_memory_store();
std::shared_ptr<StoreHandle> open_prefix_store(std::string prefix, const StoreHandle& inner);

}  // namespace muster::python
