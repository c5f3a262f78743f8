// Backend: where the compare-and-set driver keeps a run's state. One blob with a fencing token, a
// way to be told of changes, and signs of life.
//
// Implementations: `StoreBackend` (any Store: a PyTorch-hosted one, a shared file, memory) and
// `etcd::Backend`. One suite, tests/rendezvous/backend_contract.h, runs against all of them.
//
// Every method is a task on the backend's loop; destroy it to cancel it. Errors: Unavailable when
// the store cannot be reached, Corrupt when what it holds cannot be read.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {

// Names one successful write. Opaque to callers; good only for the backend and run it came from.
using Token = std::string;

struct Stored {
  std::string blob;
  Token token;

  friend bool operator==(const Stored&, const Stored&) = default;
};

struct Written {
  Stored now;  // what is stored now: ours if `was_set`, else the winner's
  bool was_set = false;
};

// What is known about one node's life.
struct Sign {
  bool present = false;
  // Differs after every `beat`. Meaningless where the backend has leases.
  std::string mark;

  friend bool operator==(const Sign&, const Sign&) = default;
};

// What a node wants.
struct Wish {
  std::uint64_t number = 0;
  // Nothing: its node has taken the number and not said more yet. Empty: it wants nothing any more.
  std::optional<std::string> text;

  friend bool operator==(const Wish&, const Wish&) = default;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Nothing if the run has no state yet.
  virtual Task<Result<std::optional<Stored>>> get_state() = 0;

  // Writes if `token` names the stored state, or if there is neither token nor state. Otherwise
  // writes nothing and returns what is stored; nothing at all if a token was given and there is no
  // state. A malformed token is a stale one. Two writes of equal blobs have different tokens.
  // A write whose outcome is not known (the connection broke) is Unavailable.
  //
  // `signal`: those who wait in `wait_signal` must hear of this write.
  virtual Task<Result<std::optional<Written>>> set_state(std::string blob,
                                                         std::optional<Token> token,
                                                         bool signal) = 0;

  // Waits until a write with `signal` is newer than `token` (nothing: than no state at all). False
  // at the deadline. May return true too often, never too seldom, except when the writer died
  // between write and signal: callers look again at their own pace, too. With leases and
  // `wake_on_loss`, also returns when a node's sign of life vanishes.
  virtual Task<Result<bool>> wait_signal(std::optional<Token> token, bool wake_on_loss,
                                         TimePoint deadline) = 0;

  // Whether signs of life vanish by themselves when their node does (etcd). Without, an observer
  // judges by marks that do not change.
  virtual bool has_leases() const = 0;
  // Says that node `name` is alive; `window` is for how long that counts. Repeated by the caller.
  virtual Task<Result<>> beat(std::string name, Duration window) = 0;
  // Takes the sign back.
  virtual Task<Result<>> retire(std::string name) = 0;
  // The signs of these nodes, in their order.
  virtual Task<Result<std::vector<Sign>>> signs(std::vector<std::string> names) = 0;

  // Wishes: what nodes want of the state, made known so that whoever writes it next can grant all
  // of them at once. A wish is a hint: it may be lost, and its node sees to itself then.
  virtual bool has_wishes() const { return false; }
  // Whether wishes have numbers, in the order in which they were made, and the state says which of
  // them have been dealt with (wishes.h). Otherwise a wish stays until its node withdraws it or its
  // sign of life is gone, may be granted again and again, and its number is 0.
  virtual bool has_wish_numbers() const { return false; }
  // Takes the next number, from 1 on. Only with numbers.
  virtual Task<Result<std::uint64_t>> take_wish_number() { co_return 0; }
  // Requires: a sign of life was given; the number is one that was taken.
  virtual Task<Result<>> wish(std::string name, std::uint64_t number, std::string text) {
    (void)name, (void)number, (void)text;
    co_return Result<>();
  }
  virtual Task<Result<>> withdraw(std::string name, std::uint64_t number) {
    (void)name, (void)number;
    co_return Result<>();
  }
  // All that have not been dealt with.
  virtual Task<Result<std::vector<Wish>>> wishes(WishMarks marks) {
    (void)marks;
    co_return std::vector<Wish>();
  }
  // Removes the texts of wishes that have been dealt with, which nobody reads any more.
  virtual Task<void> clear_wishes(std::vector<std::uint64_t> numbers) {
    (void)numbers;
    co_return;
  }
};

}  // namespace muster::rendezvous
