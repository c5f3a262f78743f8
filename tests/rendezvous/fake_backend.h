// FakeBackend: a Backend in memory, for tests of what runs over one. It behaves as a real one does
// (tests/rendezvous/backend_contract.h runs against it), counts what it is asked for, and can be
// slow, fail, or let somebody else be faster.
//
// A FakeRun is what is stored; each node has a FakeBackend of its own on it, which may be on a loop
// with another clock. Owned by the test; the run outlives its backends.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/wishes.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

class FakeRun {
 public:
  // With leases, signs of life vanish when their window has passed.
  explicit FakeRun(Loop& loop, bool has_leases = false) : loop_(loop), has_leases_(has_leases) {}

  Loop& loop() { return loop_; }
  bool has_leases() const { return has_leases_; }

  std::optional<Stored> stored() const {
    if (!blob_) return std::nullopt;
    return Stored{*blob_, fmt::format("{}/{}", version_, signal_count_)};
  }
  // As a node that is faster than all others.
  void write(std::string blob, bool signal) {
    blob_ = std::move(blob);
    ++version_;
    if (!signal) return;
    ++signal_count_;
    for (Waiter* waiter : waiters_) {
      if (waiter->seen < signal_count_) waiter->woken.set(true);
    }
  }
  // As if the store had forgotten everything.
  void forget() {
    blob_.reset();
    signal_count_ = 0;
    signs_.clear();
    wishes.clear();
    wish_count = 0;
    numbered_wishes.clear();
  }
  // What is stored becomes unreadable.
  void overwrite(std::string junk) { junk_ = std::move(junk); }
  const std::optional<std::string>& junk() const { return junk_; }
  std::uint64_t version() const { return version_; }

  // What a token says about signals; nothing if it is not a token.
  static std::optional<std::uint64_t> signals_of(const Token& token) {
    const std::size_t slash = token.find('/');
    if (slash == 0 || slash == std::string::npos || slash + 1 == token.size()) return std::nullopt;
    std::uint64_t count = 0;
    for (const char digit : token.substr(slash + 1)) {
      if (digit < '0' || digit > '9') return std::nullopt;
      count = count * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    return count;
  }

  void beat(const std::string& name, Duration window) {
    LifeSign& sign = signs_[name];
    ++sign.beat_count;
    if (!has_leases_) return;
    if (!sign.lease) sign.lease = std::make_unique<Timer>(loop_, [this, name] { expire(name); });
    sign.lease->set(after(loop_.now(), window));
  }
  void retire(const std::string& name) {
    signs_.erase(name);
    wishes.erase(name);
  }
  std::uint64_t beats_of(const std::string& name) const {
    const auto found = signs_.find(name);
    return found == signs_.end() ? 0 : found->second.beat_count;
  }
  std::size_t sign_count() const { return signs_.size(); }

  bool has_wishes = false;
  std::map<std::string, std::string> wishes;
  // With numbers, wishes are these instead.
  bool has_wish_numbers = false;
  std::uint64_t wish_count = 0;
  std::map<std::uint64_t, std::string> numbered_wishes;

 private:
  friend class FakeBackend;
  struct LifeSign {
    std::uint64_t beat_count = 0;
    std::unique_ptr<Timer> lease;
  };
  struct Waiter {
    std::uint64_t seen = 0;
    bool wakes_on_loss = false;
    Oneshot<bool> woken;
  };

  void expire(std::string name) {
    signs_.erase(name);
    wishes.erase(name);
    for (Waiter* waiter : waiters_) {
      if (waiter->wakes_on_loss) waiter->woken.set(true);
    }
  }

  Loop& loop_;
  const bool has_leases_;
  std::optional<std::string> blob_;
  std::optional<std::string> junk_;
  std::uint64_t version_ = 0;
  std::uint64_t signal_count_ = 0;
  std::map<std::string, LifeSign> signs_;
  std::list<Waiter*> waiters_;
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(FakeRun& run) : FakeBackend(run, run.loop()) {}
  FakeBackend(FakeRun& run, Loop& loop) : run_(run), loop_(loop) {}

  // What was asked for so far.
  struct Calls {
    int gets = 0;
    int sets = 0;
    int waits = 0;
    int beats = 0;
    int retires = 0;
    int looks = 0;  // signs()
    int wishes = 0;
    int wish_numbers = 0;
    std::uint64_t signs_read = 0;
  };
  Calls calls;

  // From now on.
  Duration delay = Duration::zero();  // of every call but wait_signal
  std::optional<Error> failure;       // of every call
  std::optional<Error> beat_failure;  // of beat() only
  std::optional<Error> wish_failure;  // of take_wish_number() only
  int answers_to_lose = 0;            // so many writes take effect and are Unavailable
  std::function<void()> before_set;   // e.g. somebody else, who is faster
  std::function<void()> after_set;    // when it has taken effect
  bool keeps_wishes = false;          // even those that have been dealt with

  Task<Result<std::optional<Stored>>> get_state() override {
    ++calls.gets;
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    co_return run_.stored();
  }

  Task<Result<std::optional<Written>>> set_state(std::string blob, std::optional<Token> token,
                                                 bool signal) override {
    ++calls.sets;
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    if (before_set) before_set();
    const std::optional<Stored> stored = run_.stored();
    const bool fits = token ? stored && stored->token == *token : !stored;
    if (!fits && !stored) co_return std::optional<Written>();
    if (!fits) co_return std::optional<Written>(Written{*stored, false});
    run_.write(std::move(blob), signal);
    if (after_set) after_set();
    if (answers_to_lose > 0) {
      --answers_to_lose;
      co_return fail(ErrorKind::Unavailable, "the answer was lost");
    }
    co_return std::optional<Written>(Written{*run_.stored(), true});
  }

  Task<Result<bool>> wait_signal(std::optional<Token> token, bool wake_on_loss,
                                 TimePoint deadline) override {
    ++calls.waits;
    if (failure) co_return fail(*failure);
    std::uint64_t seen = 0;
    if (token) {
      const auto signals = FakeRun::signals_of(*token);
      if (!signals) co_return true;
      seen = *signals;
    }
    if (run_.signal_count_ > seen) co_return true;
    FakeRun::Waiter waiter{seen, wake_on_loss && run_.has_leases(), Oneshot<bool>(loop_)};
    const Place place{run_.waiters_, run_.waiters_.insert(run_.waiters_.end(), &waiter)};
    Timer timer(loop_, [&waiter] { waiter.woken.set(false); });
    timer.set(deadline);
    const bool woken = co_await waiter.woken;
    co_return woken;
  }

  bool has_leases() const override { return run_.has_leases(); }

  Task<Result<>> beat(std::string name, Duration window) override {
    ++calls.beats;
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    if (beat_failure) co_return fail(*beat_failure);
    run_.beat(name, window);
    co_return Result<>();
  }

  Task<Result<>> retire(std::string name) override {
    ++calls.retires;
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    run_.retire(name);
    co_return Result<>();
  }

  Task<Result<std::vector<Sign>>> signs(std::vector<std::string> names) override {
    ++calls.looks;
    calls.signs_read += names.size();
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    std::vector<Sign> signs;
    for (const std::string& name : names) {
      const std::uint64_t count = run_.beats_of(name);
      signs.push_back({count > 0, count > 0 ? fmt::format("beat {}", count) : std::string()});
    }
    co_return signs;
  }

  bool has_wishes() const override { return run_.has_wishes; }
  bool has_wish_numbers() const override { return run_.has_wish_numbers; }
  Task<Result<std::uint64_t>> take_wish_number() override {
    ++calls.wish_numbers;
    if (wish_failure) co_return fail(*wish_failure);
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    co_return ++run_.wish_count;
  }
  Task<Result<>> wish(std::string name, std::uint64_t number, std::string text) override {
    ++calls.wishes;
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    if (number == 0) {
      run_.wishes[name] = std::move(text);
    } else {
      run_.numbered_wishes[number] = std::move(text);
    }
    co_return Result<>();
  }
  Task<Result<>> withdraw(std::string name, std::uint64_t number) override {
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    run_.wishes.erase(name);
    if (number != 0) run_.numbered_wishes[number] = "";
    co_return Result<>();
  }
  Task<Result<std::vector<Wish>>> wishes(WishMarks marks) override {
    auto begun = co_await begin();
    if (!begun) co_return fail(std::move(begun.error()));
    std::vector<Wish> wishes;
    for (const auto& [name, text] : run_.wishes) wishes.push_back({0, text});
    for (const std::uint64_t number : open_wishes(marks, run_.wish_count)) {
      const auto found = run_.numbered_wishes.find(number);
      const bool is_there = found != run_.numbered_wishes.end();
      wishes.push_back({number, is_there ? std::optional(found->second) : std::nullopt});
    }
    co_return wishes;
  }
  Task<void> clear_wishes(std::vector<std::uint64_t> numbers) override {
    auto begun = co_await begin();
    if (!begun || keeps_wishes) co_return;
    for (const std::uint64_t number : numbers) run_.numbered_wishes.erase(number);
  }

 private:
  // Leaves the list when the wait is over or is given up.
  struct Place {
    std::list<FakeRun::Waiter*>& list;
    std::list<FakeRun::Waiter*>::iterator at;
    ~Place() { list.erase(at); }
  };

  Task<Result<>> begin() {
    if (delay > Duration::zero()) {
      const TimePoint until = loop_.now() + delay;
      co_await sleep_until(loop_, until);
    }
    if (failure) co_return fail(*failure);
    if (run_.junk()) co_return fail(ErrorKind::Corrupt, "what is stored is junk");
    co_return Result<>();
  }

  FakeRun& run_;
  Loop& loop_;
};

}  // namespace muster::rendezvous::testing
