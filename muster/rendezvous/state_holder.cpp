#include "muster/rendezvous/state_holder.h"

#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/state_codec.h"

#include <utility>

namespace muster::rendezvous {

StateHolder::StateHolder(Loop& loop, Random& random, Backend& backend, const Settings& settings,
                         Sightings& sightings, Options options)
    : loop_(loop),
      random_(random),
      backend_(backend),
      settings_(settings),
      sightings_(sightings),
      options_(options) {}

State& StateHolder::edit() {
  if (!dirty_ && dropped_.empty()) synced_ = state_;
  dirty_ = true;
  if (state_.birth == 0) state_.birth = random_.next() | 1;
  return state_;
}

void StateHolder::discard_edits() {
  if (!dirty_) return;
  dirty_ = false;
  accept(std::move(synced_));
}

void StateHolder::accept(State state) {
  state_ = std::move(state);
  dropped_.clear();
  sightings_.fill(settings_, loop_.now(), state_);
}

void StateHolder::drop_silent() {
  sightings_.fill(settings_, loop_.now(), state_);
  State judged = state_;
  std::vector<Node> silent = rendezvous::drop_silent(settings_, loop_.now(), judged);
  if (silent.empty()) return;
  if (!dirty_ && dropped_.empty()) synced_ = std::move(state_);
  state_ = std::move(judged);
  dropped_.insert(dropped_.end(), silent.begin(), silent.end());
}

Task<Result<StateHolder::Outcome>> StateHolder::sync() {
  Outcome outcome = Outcome::Read;
  std::optional<Token> token;
  std::optional<State> fetched;  // nothing: our copy stays
  if (dirty_) {
    // What waiters must hear of depends on what they have seen, which is what we had read.
    const bool signal = is_worth_a_signal(synced_, state_);
    auto written = co_await backend_.set_state(encode(state_), token_, signal);
    if (!written) co_return fail(std::move(written.error()));
    if (!*written) {
      // The state is gone: the next write creates it anew, from our copy. That may be an old one,
      // and the rounds it leads to must not be taken for those that came of it before. Nor is
      // anything known of the wishes in what is a new store.
      state_.birth = random_.next() | 1;
      state_.wishes = {};
      token_.reset();
      last_sync_ = loop_.now();
      co_return Outcome::Lost;
    }
    token = std::move((*written)->now.token);
    outcome = (*written)->was_set ? Outcome::Won : Outcome::Lost;
    if (outcome == Outcome::Lost) {
      auto state = decode((*written)->now.blob);
      if (!state) co_return fail(std::move(state.error()));
      fetched = std::move(*state);
    }
  } else {
    if (options_.cache > Duration::zero() && last_sync_ &&
        *last_sync_ >= loop_.now() - options_.cache) {
      co_return Outcome::Read;
    }
    auto stored = co_await backend_.get_state();
    if (!stored) co_return fail(std::move(stored.error()));
    fetched.emplace();
    if (*stored) {
      auto state = decode((*stored)->blob);
      if (!state) co_return fail(std::move(state.error()));
      fetched = std::move(*state);
      token = std::move((*stored)->token);
    }
  }
  token_ = std::move(token);
  dirty_ = false;
  last_sync_ = loop_.now();
  if (fetched) {
    accept(std::move(*fetched));
  } else if (outcome == Outcome::Won) {
    dropped_.clear();
  }
  sightings_.forget_absent(state_);
  drop_silent();
  co_return outcome;
}

}  // namespace muster::rendezvous
