// A watch as Python holds it: it keeps its store, and can be closed while another thread waits.
#pragma once

#include "muster/store/store.h"
#include "python/native/store.h"

#include <functional>
#include <memory>
#include <string>

namespace muster::python {

class WatchHandle {
 public:
  static std::shared_ptr<WatchHandle> begin(const StoreHandle& store, std::string key,
                                            store::Store::WatchScope scope);
  WatchHandle(const WatchHandle&) = delete;
  WatchHandle& operator=(const WatchHandle&) = delete;
  ~WatchHandle();

  // One call at a time.
  store::Change next(TimePoint deadline);
  // Whoever is in `next` gets Closed.
  void close();

 private:
  // Of the loop.
  struct Held {
    std::shared_ptr<HeldStore> store;
    std::unique_ptr<store::Watch> watch = {};  // nothing once it is closed
    std::function<void()> interrupt = {};      // while someone waits
    bool is_closing = false;
  };
  class Waiting;

  WatchHandle(LoopThread& thread, std::shared_ptr<Held> held)
      : thread_(thread), held_(std::move(held)) {}
  static Task<Result<store::Change>> next_of(Loop& loop, std::shared_ptr<Held> held,
                                             TimePoint deadline);

  LoopThread& thread_;
  std::shared_ptr<Held> held_;
};

}  // namespace muster::python
