// PlainPool: the connections that a PlainStore has to its server, and who may use them when.
//
// A connection in PyTorch's protocols carries one request at a time, so one is taken for each.
// Waits leave some to those who do not wait: the write that ends them may come from this process.
//
// Owned by the PlainClient; lives on its loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/channel.h"
#include "muster/store/handshake.h"

#include <cstddef>
#include <list>
#include <utility>
#include <vector>

namespace muster::store {

class PlainPool {
 public:
  static constexpr std::size_t kConnectionsMax = 64;
  static constexpr std::size_t kWaitingConnectionsMax = 56;

  // A connection taken from the pool. Goes back when it is destroyed, unless its conversation was
  // broken off: then nobody could tell which reply belongs to what, and it is closed.
  class Lease {
   public:
    Lease(PlainPool& pool, Opened opened) : pool_(&pool), opened_(std::move(opened)) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          opened_(std::move(other.opened_)),
          in_use_(other.in_use_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    Channel& channel() { return *opened_.channel; }
    // Between these two the connection is not fit for anyone else.
    void begin() { in_use_ = true; }
    void finish() { in_use_ = false; }

   private:
    PlainPool* pool_;
    Opened opened_;
    bool in_use_ = false;
  };

  // Begins with one connection; later ones must speak its dialect. Requires: `context` outlives the
  // pool.
  PlainPool(ClientContext& context, Opened opened);
  PlainPool(const PlainPool&) = delete;
  PlainPool& operator=(const PlainPool&) = delete;

  wire::Dialect dialect() const { return dialect_; }

  // A connection, at `deadline` at the latest. `waits`: it will be occupied until somebody else
  // does something.
  Task<Result<Lease>> acquire(TimePoint deadline, bool waits);

 private:
  struct Place;
  struct Opening;

  bool has_room(bool waits) const;
  // Something became free: for the first in line who may have it and does not know yet.
  void tell_next();
  void give_back(Opened opened, bool usable);

  ClientContext& context_;
  const wire::Dialect dialect_;
  std::vector<Opened> idle_;
  std::list<Place*> line_;  // operations that wait for a connection to become free
  std::size_t connection_count_ = 0;
};

}  // namespace muster::store
