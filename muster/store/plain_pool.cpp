#include "muster/store/plain_pool.h"

#include "muster/net/transport.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {

// One who waits for a connection. Lives in its frame.
struct PlainPool::Place {
  Place(PlainPool& place_pool, bool place_waits)
      : pool(place_pool), waits(place_waits), turn(pool.context_.loop) {
    pool.line_.push_back(this);
  }
  ~Place() {
    pool.line_.remove(this);
    if (told && !taken) pool.tell_next();  // destroyed before its turn came
  }
  PlainPool& pool;
  const bool waits;
  bool told = false;
  bool taken = false;
  Oneshot<bool> turn;  // false when the deadline passed
};

// A connection that is being opened; counts until it is kept, or failed.
struct PlainPool::Opening {
  explicit Opening(PlainPool& opening_pool) : pool(opening_pool) { ++pool.connection_count_; }
  ~Opening() {
    if (kept) return;
    --pool.connection_count_;
    pool.tell_next();
  }
  PlainPool& pool;
  bool kept = false;
};

PlainPool::Lease::~Lease() {
  if (pool_ != nullptr) pool_->give_back(std::move(opened_), !in_use_);
}

PlainPool::PlainPool(ClientContext& context, Opened opened)
    : context_(context), dialect_(opened.dialect) {
  idle_.push_back(std::move(opened));
  connection_count_ = 1;
}

bool PlainPool::has_room(bool waits) const {
  return connection_count_ - idle_.size() < (waits ? kWaitingConnectionsMax : kConnectionsMax);
}

void PlainPool::tell_next() {
  for (Place* place : line_) {
    if (place->told || !has_room(place->waits)) continue;
    place->told = true;
    place->turn.set(true);
    return;
  }
}

Task<Result<PlainPool::Lease>> PlainPool::acquire(TimePoint deadline, bool waits) {
  while (!has_room(waits)) {
    Place place(*this, waits);
    Timer timer(context_.loop, [&place] { place.turn.set(false); });
    timer.set(deadline);
    const bool in_time = co_await place.turn;
    place.taken = place.told;
    if (!in_time) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("all {} connections to the store at {} are in use",
                                 waits ? kWaitingConnectionsMax : kConnectionsMax,
                                 net::describe(context_.options.endpoint)));
    }
  }
  while (!idle_.empty()) {
    Opened opened = std::move(idle_.back());
    idle_.pop_back();
    if (!opened.channel->broken()) co_return Lease(*this, std::move(opened));
    --connection_count_;
  }
  Opening opening(*this);
  const TimePoint latest = after(context_.loop.now(), context_.options.connect_timeout);
  auto opened = co_await open_connection(context_, std::min(deadline, latest));
  if (!opened) co_return fail(opened.error());
  if (opened->dialect != dialect_) {
    co_return fail(ErrorKind::Closed,
                   fmt::format("the store at {} has been replaced by one of another kind",
                               net::describe(context_.options.endpoint)));
  }
  opening.kept = true;
  co_return Lease(*this, std::move(*opened));
}

void PlainPool::give_back(Opened opened, bool usable) {
  if (usable && !opened.channel->broken()) {
    idle_.push_back(std::move(opened));
  } else {
    opened.channel.reset();
    --connection_count_;
  }
  tell_next();
}

}  // namespace muster::store
