// The queues of a store in etcd. An item is a key of its own; whoever deletes it has it.
//
// Owned by one store, on the client's loop.
#pragma once

#include "muster/etcd/client.h"
#include "muster/etcd/journal.h"
#include "muster/rendezvous/turnstile.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace muster::etcd {

class StoreQueues {
 public:
  // Requires: both references outlive it.
  StoreQueues(Client& client, Journal& journal, std::string root);

  // The beginning of the keys of the items of a queue. The length keeps "a" and "a/b" apart.
  std::string items_prefix(std::string_view queue) const;

  Task<Result<>> push(std::string queue, std::string item);
  // Those who wait in one store object are served in the order in which they came. An item whose
  // taker is cancelled while it takes it goes back, to the end of the queue.
  Task<Result<std::string>> pop(std::string queue, TimePoint deadline);
  Task<Result<std::optional<std::string>>> try_pop(std::string queue);
  Task<Result<std::int64_t>> length(std::string queue);

 private:
  struct Item {
    std::string key;
    std::int64_t mod_revision = 0;
  };
  // What we know about a queue while somebody takes from it.
  struct Queue {
    explicit Queue(Loop& loop) : line(loop) {}
    rendezvous::Turnstile line;
    std::deque<Item> oldest;  // the first items when we last looked; some may be gone
    int user_count = 0;
  };
  // Keeps a Queue while its coroutine lives.
  class Use;
  // An item that is being taken, by a task that goes on if the taker is cancelled.
  struct Claim;
  class Claimant;

  Task<Result<rendezvous::Turnstile::Pass>> stand_in_line(Queue& queue);
  // The first item, if there is one; `revision` is when there was none.
  struct Taken {
    std::optional<std::string> value;
    std::int64_t revision = 0;
  };
  Task<Result<Taken>> take(std::string prefix, Queue& queue);
  Task<Result<std::optional<std::string>>> claim(Item item);
  Task<void> run_claim(std::shared_ptr<Claim> claim);
  Task<void> give_back(std::string key, std::string value);
  // Waits until something is pushed after `revision`.
  Task<Result<>> await_push(std::string prefix, std::int64_t revision);

  Client& client_;
  Journal& journal_;
  const std::string root_;
  std::map<std::string, Queue, std::less<>> queues_;
  TaskScope scope_;  // last
};

}  // namespace muster::etcd
