#include "muster/rendezvous/shared_driver.h"

#include "muster/base/log.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/sightings.h"
#include "muster/rendezvous/state_holder.h"
#include "muster/rendezvous/status_board.h"
#include "muster/rendezvous/turnstile.h"
#include "muster/rendezvous/wishes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

constexpr BackoffOptions kReconnectBackoff{std::chrono::milliseconds(50), std::chrono::seconds(2)};
// Of the pause after a lost write: contenders are guessed to double with every loss, up to this.
constexpr int kLossesCountedMax = 8;
// So many nodes write one after the other just as well.
constexpr std::int64_t kWritersMax = 2;
// How often a writer looks for the wishes of those who have taken a number.
constexpr int kLooksMax = 3;

class SharedDriver final : public Driver {
 public:
  SharedDriver(Loop& loop, Random& random, Backend& backend, Settings settings, Node node,
               SharedDriverOptions options)
      : loop_(loop),
        random_(random),
        backend_(backend),
        settings_(std::move(settings)),
        node_(std::move(node)),
        options_(std::move(options)),
        sightings_(node_, settings_.keep_alive_interval),
        holder_(loop, random, backend, settings_, sightings_, StateHolder::Options{options_.cache}),
        turnstile_(loop),
        board_(loop) {}

  Task<Result<Place>> join(TimePoint deadline) override {
    keeping_.cancel_all();
    // Where wishes have an order, nobody gets into the way of others.
    if (holder_.state().round == 0 && !backend_.has_wish_numbers()) {
      const auto bound = static_cast<std::uint64_t>(options_.jitter_max.count()) + 1;
      const TimePoint start = after(loop_.now(), Duration(random_.below(bound)));
      co_await sleep_until(loop_, start);
    }
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    holder_.expire_cache();
    next_care_ = loop_.now();
    auto place = co_await run_join(deadline);
    if (!place) {
      co_await take_back();
      co_return place;
    }
    place_ = *place;
    known_at_ = loop_.now();
    update_board();
    keeping_.start(keep());
    co_return place;
  }

  Task<Result<>> leave(TimePoint deadline) override {
    keeping_.cancel_all();
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    holder_.expire_cache();
    auto left = co_await run_leave(deadline);
    update_board();
    co_return left;
  }

  Task<Result<>> close(TimePoint deadline) override {
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    int loss_count = 0;
    for (;;) {
      auto synced = co_await sync_and_report();
      if (!synced) co_return fail(std::move(synced.error()));
      if (*synced == StateHolder::Outcome::Lost) {
        co_await pause_after_loss(loss_count++);
      }
      if (holder_.dirty()) continue;  // there was no state any more
      const Action action =
          decide_close({holder_.state(), settings_, node_, loop_.now(), deadline});
      if (action == Action::Finish) break;
      if (action == Action::ErrorTimeout) {
        co_return fail(ErrorKind::Timeout,
                       fmt::format("run '{}' could not be closed in time", settings_.run_id));
      }
      act(action);
    }
    update_board();
    co_return Result<>();
  }

  Task<Result<Status>> look() override {
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    const TimePoint limit = after(loop_.now(), settings_.timeouts.heartbeat);
    auto synced = co_await answer_by(limit, holder_.sync());
    if (synced) {
      known_at_ = loop_.now();
      update_board();
      co_return board_.status();
    }
    const bool known = known_at_ && loop_.now() - *known_at_ <= settings_.window();
    if (known && synced.error().kind == ErrorKind::Unavailable) co_return board_.status();
    co_return fail(std::move(synced.error()));
  }

  Status status() const override { return board_.status(); }

  Task<Result<Status>> wait_status(Status seen, TimePoint deadline) override {
    co_return co_await board_.wait(seen, deadline);
  }

  Task<Result<Snapshot>> snapshot() override {
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    holder_.expire_cache();
    auto synced = co_await holder_.sync();
    if (!synced) co_return fail(std::move(synced.error()));
    co_return snapshot_of(holder_.state(), loop_.now());
  }

  void stop() override { keeping_.cancel_all(); }

 private:
  // -- joining ---------------------------------------------------------------------------------

  Task<Result<Place>> run_join(TimePoint deadline) {
    int failure_count = 0;
    int loss_count = 0;
    for (;;) {
      const bool was_spare = is_spare();
      // An answer that comes a little late can still tell what it was too late for.
      const TimePoint limit = was_spare ? kNever : after(deadline, kRollbackWindow);
      auto outcome = co_await answer_by(limit, care_and_sync());
      if (!outcome) {
        if (outcome.error().kind != ErrorKind::Unavailable) {
          co_return fail(std::move(outcome.error()));
        }
        deadline = patience(failure_count, deadline);
        auto again = co_await pause_after_failure(outcome.error(), failure_count++, deadline);
        if (!again) co_return fail(std::move(again.error()));
        continue;
      }
      failure_count = 0;
      if (*outcome == StateHolder::Outcome::Lost) {
        co_await pause_after_loss(loss_count++);
      } else if (*outcome == StateHolder::Outcome::Won) {
        loss_count = 0;
      }
      if (auto limits = check_limits(holder_.state(), settings_); !limits) {
        co_return fail(std::move(limits.error()));
      }
      // A spare that is needed again, whoever saw to that, has the whole time again.
      if (was_spare && !is_spare()) deadline = after(loop_.now(), settings_.timeouts.join);
      leaves_many_ = is_in_old_round() && holder_.state().world_size > kWritersMax;
      const Action action = decide_and_act(deadline);
      const bool wants = holder_.dirty();
      const bool has_written = *outcome == StateHolder::Outcome::Won;
      // One that only takes its traces back wishes for nothing.
      const bool is_late = loop_.now() > deadline;
      if (crowds_ && !is_late && (wants || (has_written && is_counted_on(action)))) {
        auto task = wants ? wish_and_grant() : grant_comers(write_time_);
        auto granted = co_await answer_by(limit, std::move(task));
        if (!granted) {
          holder_.discard_edits();
          auto again = co_await pause_after_failure(granted.error(), failure_count++, deadline);
          if (!again) co_return fail(std::move(again.error()));
          continue;
        }
      }
      if (wants || holder_.dirty()) continue;
      switch (action) {
        case Action::Finish:
          co_return current_place();
        case Action::ErrorClosed:
          co_return fail(ErrorKind::Closed, fmt::format("run '{}' is closed", settings_.run_id));
        case Action::ErrorGracefulExit:
          co_return fail(ErrorKind::Finished,
                         fmt::format("run '{}' is closed; this node was a spare and is not needed",
                                     settings_.run_id));
        case Action::ErrorTimeout:
          co_return fail(ErrorKind::Timeout, describe_timeout());
        default:
          break;
      }
      auto waited = co_await wait_for_news(deadline);
      if (!waited) {
        deadline = patience(failure_count, deadline);
        auto again = co_await pause_after_failure(waited.error(), failure_count++, deadline);
        if (!again) co_return fail(std::move(again.error()));
      }
    }
  }

  // -- wishes ----------------------------------------------------------------------------------

  // Before a write of many: makes known what we want, so that others may see to it. Then, if nobody
  // has, does the same for them.
  Task<Result<StateHolder::Outcome>> wish_and_grant() {
    const bool numbered = backend_.has_wish_numbers();
    // One that was dealt with and did not get us in is used up.
    if (wish_ && numbered && !is_open(holder_.state().wishes, *wish_)) wish_.reset();
    if (wish_ && loop_.now() < wish_until_) co_return co_await await_grant();
    if (wish_) {
      const auto granted = co_await grant_all();
      if (!granted) co_return fail(granted.error());
      co_return StateHolder::Outcome::Read;
    }
    const TimePoint began = loop_.now();
    std::uint64_t number = 0;
    if (numbered) {
      auto taken = co_await backend_.take_wish_number();
      if (!taken) co_return fail(std::move(taken.error()));
      number = *taken;
      wish_ = number;
      wish_until_ = began;
      if (number == holder_.state().wishes.taken + 1) {
        const Duration took = loop_.now() - began;
        co_return co_await write_first(took);
      }
    }
    auto wished = co_await backend_.wish(sign_name(node_), number, encode(my_wish()));
    if (!wished) co_return fail(std::move(wished.error()));
    wish_ = number;
    wish_until_ = loop_.now() + patience_for(number, loop_.now() - began);
    co_return co_await await_grant();
  }

  // Nobody is before us. But if nothing can come of it without many others, they may be on their
  // way, and a moment costs nothing.
  Task<Result<StateHolder::Outcome>> write_first(Duration moment) {
    State& state = holder_.edit();
    state.wishes.taken = *wish_;
    const bool needs_many = settings_.min_nodes > kWritersMax && !state.complete;
    if (!needs_many && !leaves_many_) co_return StateHolder::Outcome::Read;
    const TimePoint until = loop_.now() + moment;
    co_await sleep_until(loop_, until);
    co_return co_await grant_comers(moment);
  }

  Task<Result<StateHolder::Outcome>> await_grant() {
    holder_.discard_edits();
    if (backend_.has_wish_numbers()) {
      const TimePoint until = std::min(wish_until_, next_care_);
      auto waited = co_await backend_.wait_signal(holder_.token(), false, until);
      if (!waited) co_return fail(std::move(waited.error()));
    } else {
      co_await sleep_until(loop_, wish_until_);
    }
    holder_.expire_cache();
    co_return StateHolder::Outcome::Read;
  }

  // How long others may take to grant our wish, which took so long to make.
  Duration patience_for(std::uint64_t number, Duration took) {
    // Those who came with us are making their wishes, too.
    const auto bound = static_cast<std::uint64_t>(took.count()) * 2 + 1;
    const Duration jitter = Duration(random_.below(bound));
    if (number == 0) return jitter;
    // A write, with the reading of all wishes before it, takes several times as long; and if nobody
    // does it, those who came first are the first to see to it.
    const std::uint64_t taken = holder_.state().wishes.taken;
    const std::uint64_t ahead = number > taken ? number - taken : 1;
    return took * static_cast<std::int64_t>(16 + 2 * std::min(ahead, kWishesReadMax)) + jitter;
  }

  // Does in our copy what all who have wished for something want. Returns the last number of those
  // who have taken one and not said yet what they want; 0 if there are none.
  Task<Result<std::uint64_t>> grant_all() {
    auto wishes = co_await backend_.wishes(holder_.state().wishes);
    if (!wishes) co_return fail(std::move(wishes.error()));
    std::uint64_t last_missing = 0;
    for (Wish& wish : *wishes) {
      // Ours we see to ourselves.
      if (wish.number != 0 && wish_ == wish.number) wish.text = "";
      if (!wish.text) last_missing = wish.number;
    }
    WishMarks marks = holder_.state().wishes;
    const std::vector<Wish> taken = take_wishes(std::move(*wishes), marks);
    if (taken.empty()) co_return last_missing;
    State& state = holder_.edit();
    state.wishes = std::move(marks);
    for (const Wish& wish : taken) {
      if (wish.number != 0) granted_.push_back(wish.number);
      const auto hello = decode_hello(*wish.text);
      if (hello && hello->joins && hello->node != node_) grant(*hello, loop_.now(), state);
    }
    co_return last_missing;
  }

  // After a write of ours, those who came meanwhile count on us, since they saw that somebody was
  // before them. When all is done, they have time.
  bool is_counted_on(Action next) const {
    return backend_.has_wish_numbers() && (next == Action::Sync || next == Action::KeepAlive);
  }

  // Grants all wishes, also of those who are still making them.
  Task<Result<StateHolder::Outcome>> grant_comers(Duration moment) {
    // Those who were missing before have died, or see to themselves by now.
    const std::uint64_t seen = holder_.state().wishes.taken;
    for (int look = 1;; ++look) {
      const auto last_missing = co_await grant_all();
      if (!last_missing) co_return fail(last_missing.error());
      if (*last_missing <= seen || look == kLooksMax) co_return StateHolder::Outcome::Read;
      const TimePoint until = loop_.now() + moment;
      co_await sleep_until(loop_, until);
    }
  }

  // So that nobody does for us what we no longer want.
  Task<void> withdraw_wish() {
    if (!wish_) co_return;
    const bool is_over = backend_.has_wish_numbers() && !is_open(holder_.state().wishes, *wish_);
    const std::uint64_t number = *wish_;
    wish_.reset();
    if (!is_over) (void)co_await backend_.withdraw(sign_name(node_), number);
  }

  Hello my_wish() const {
    Hello wish;
    wish.run_id = settings_.run_id;
    wish.joins = true;
    wish.node = node_;
    wish.settings = settings_;
    wish.place = place_;
    return wish;
  }

  // Carries out decisions on our copy until the next one needs what others say. Returns that one.
  Action decide_and_act(TimePoint& deadline) {
    for (;;) {
      const Situation now{holder_.state(), settings_, node_, loop_.now(), deadline};
      const Action action = is_in_old_round() ? decide_exit(now) : decide_join(now);
      if (action == Action::KeepAlive) next_care_ = loop_.now();  // done in the next turn
      if (!changes_state(action)) return action;
      act(action);
      if (action == Action::RemoveFromRedundancyList) {
        deadline = after(loop_.now(), settings_.timeouts.join);
      }
      // After taking its traces back, the node must not come in again.
      if (loop_.now() > deadline) return action;
    }
  }

  bool is_spare() const { return holder_.state().redundancy_list.contains(node_); }

  // Whether this node is still in the round that the last join returned. One it has left, it cannot
  // come back to.
  bool is_in_old_round() const {
    const State& state = holder_.state();
    return place_ && place_->id == current_round() && state.complete &&
           state.participants.contains(node_);
  }

  void act(Action action) {
    apply(action, node_, settings_, loop_.now(), holder_.edit());
    if (!options_.report) return;
    const bool succeeded = action == Action::MarkComplete || action == Action::MarkClosed;
    options_.report(succeeded ? NodeState::Succeeded : NodeState::Running,
                    fmt::format("{} did {} in round {}, pending sync", describe(node_),
                                name_of(action), holder_.state().round));
  }

  RoundId current_round() const { return {holder_.state().birth, holder_.state().round}; }

  Place current_place() const {
    const State& state = holder_.state();
    return {current_round(), state.participants.at(node_), state.world_size};
  }

  std::string describe_timeout() const {
    const State& state = holder_.state();
    return fmt::format(
        "round {} of run '{}' did not complete in time: {} of at least {} nodes came", state.round,
        settings_.run_id, state.participants.size(), settings_.min_nodes);
  }

  Task<Result<bool>> wait_for_news(TimePoint deadline) {
    const State& state = holder_.state();
    TimePoint wake = next_care_;
    if (!state.redundancy_list.contains(node_)) {
      wake = std::min(wake, after(deadline, Duration(1)));
    }
    if (state.deadline) wake = std::min(wake, after(*state.deadline, Duration(1)));
    const bool wake_on_loss = sightings_.watches_all(state);
    auto waited = co_await backend_.wait_signal(holder_.token(), wake_on_loss, wake);
    // Signalled or not, it is time to look: a signal may have been lost with who gave it. Not so
    // for what only our own clock decides.
    const bool clock_decides = waited && !*waited && loop_.now() < next_care_;
    if (!clock_decides) holder_.expire_cache();
    co_return waited;
  }

  // Twice as many with every loss; but no more than there can be: those who are not in yet while a
  // round forms, and those who are still to leave when it is complete.
  std::int64_t guess_contenders(int loss_count) const {
    const State& state = holder_.state();
    const auto size = static_cast<std::int64_t>(state.participants.size());
    const std::int64_t most = state.complete ? size : settings_.max_nodes - size;
    const std::int64_t guess = std::int64_t{1} << std::min(loss_count, kLossesCountedMax);
    return std::clamp<std::int64_t>(guess, 1, std::max<std::int64_t>(most, 1));
  }

  Task<void> pause_after_loss(int loss_count) {
    // Full jitter over twice what all contenders together would need. Not so long that signs of
    // life would be missed: those who are given up for dead only make the crowd larger.
    const Duration needed = write_time_ * 2 * guess_contenders(loss_count);
    const Duration longest = std::min(needed, settings_.keep_alive_interval / 2);
    const auto bound = static_cast<std::uint64_t>(longest.count());
    if (bound == 0) co_return;
    const TimePoint until = loop_.now() + Duration(random_.below(bound));
    co_await sleep_until(loop_, until);
    holder_.expire_cache();
    // What was lost to is old by now.
    auto outcome = co_await holder_.sync();
    (void)outcome;
  }

  // Until when a failure is tried again. A spare has no deadline; when it loses the store, it has
  // the time of a whole join from then on.
  TimePoint patience(int failure_count, TimePoint deadline) const {
    const bool is_spare = holder_.state().redundancy_list.contains(node_);
    if (failure_count > 0 || !is_spare) return deadline;
    return std::max(deadline, after(loop_.now(), settings_.timeouts.join));
  }

  Task<Result<>> pause_after_failure(Error error, int failure_count, TimePoint deadline) {
    if (loop_.now() > deadline) co_return fail(std::move(error));
    const Duration pause = backoff(kReconnectBackoff, failure_count, random_);
    log::warn("rendezvous", "{}, trying again in {}", error.message, muster::describe(pause));
    const TimePoint until = std::min(loop_.now() + pause, after(deadline, Duration(1)));
    co_await sleep_until(loop_, until);
    holder_.expire_cache();
    co_return Result<>();
  }

  // A store that does not answer is as good as one that cannot be reached.
  Task<Result<StateHolder::Outcome>> answer_by(TimePoint limit,
                                               Task<Result<StateHolder::Outcome>> task) {
    auto outcome = co_await with_deadline(loop_, limit, std::move(task), "no answer in time");
    if (!outcome && outcome.error().kind == ErrorKind::Timeout) {
      co_return fail(ErrorKind::Unavailable, "the store does not answer");
    }
    co_return outcome;
  }

  // -- leaving ---------------------------------------------------------------------------------

  // Takes this node out of all lists.
  Task<Result<>> run_leave(TimePoint deadline) {
    int loss_count = 0;
    std::optional<std::uint64_t> wish;
    if (backend_.has_wish_numbers()) wish = wish_;
    co_await withdraw_wish();
    for (;;) {
      auto outcome = co_await sync_and_report();
      if (!outcome) co_return fail(std::move(outcome.error()));
      if (*outcome == StateHolder::Outcome::Lost) {
        co_await pause_after_loss(loss_count++);
      }
      if (holder_.dirty()) continue;  // there was no state any more
      const State& state = holder_.state();
      if (state.participants.contains(node_)) {
        act(Action::RemoveFromParticipants);
      } else if (state.wait_list.contains(node_)) {
        act(Action::RemoveFromWaitList);
      } else if (state.redundancy_list.contains(node_)) {
        act(Action::RemoveFromRedundancyList);
      } else if (wish && is_open(state.wishes, *wish)) {
        // Somebody may have read it before it was withdrawn; after a write it cannot be granted.
        wish.reset();
        auto granted = co_await grant_all();
        if (!granted) co_return fail(std::move(granted.error()));
      } else {
        break;
      }
      if (loop_.now() > deadline) {
        co_return fail(ErrorKind::Timeout,
                       fmt::format("could not leave run '{}' in time", settings_.run_id));
      }
    }
    const auto retired = co_await backend_.retire(sign_name(node_));
    (void)retired;  // a sign that stays is one of nobody
    co_return Result<>();
  }

  // What a failed join may have left behind. Best effort: if it fails, silence does the rest.
  Task<void> take_back() {
    holder_.expire_cache();
    const TimePoint deadline = after(loop_.now(), kRollbackWindow);
    auto done = co_await with_deadline(loop_, deadline, run_leave(deadline), "took too long");
    if (!done) log::debug("rendezvous", "cannot take a join back: {}", done.error().message);
    // The round it came from stays in `place_`: it may still be in there, and must not come back.
    Status status = board_.status();
    status.member = false;
    board_.set(status);
  }

  // -- staying ---------------------------------------------------------------------------------

  // Gives signs of life and reads the news, until it is cancelled.
  Task<void> keep() {
    int failure_count = 0;
    co_await withdraw_wish();
    bool is_fresh = true;  // what the join has read
    for (;;) {
      Result<> kept;
      if (!std::exchange(is_fresh, false)) kept = co_await keep_once();
      Duration pause = Duration::zero();
      if (!kept) {
        pause = backoff(kReconnectBackoff, failure_count++, random_);
        if (failure_count == 1) {
          log::warn("rendezvous", "keep-alive of run '{}' failed: {}, trying again",
                    settings_.run_id, kept.error().message);
          if (options_.report) options_.report(NodeState::Failed, kept.error().message);
        }
      } else {
        failure_count = 0;
      }
      if (pause > Duration::zero()) {
        const TimePoint until = loop_.now() + pause;
        co_await sleep_until(loop_, until);
        continue;
      }
      const bool wake_on_loss = sightings_.watches_all(holder_.state());
      auto waited = co_await backend_.wait_signal(holder_.token(), wake_on_loss, next_care_);
      if (!waited) {
        const TimePoint until = loop_.now() + backoff(kReconnectBackoff, failure_count++, random_);
        co_await sleep_until(loop_, until);
      }
    }
  }

  Task<Result<>> keep_once() {
    const auto pass = co_await turnstile_.pass();
    holder_.discard_edits();
    holder_.expire_cache();
    // Each step has its own time: what is known is worth knowing even if the next one fails.
    TimePoint limit = after(loop_.now(), settings_.timeouts.heartbeat);
    auto synced = co_await answer_by(limit, beat_and_sync());
    if (!synced) co_return fail(std::move(synced.error()));
    known_at_ = loop_.now();
    update_board();
    limit = after(loop_.now(), settings_.timeouts.heartbeat);
    auto looked = co_await answer_by(limit, look_after_others(*synced));
    if (!looked) co_return fail(std::move(looked.error()));
    update_board();
    co_return Result<>();
  }

  // If it is time: gives a sign of life, and looks for those of others. Then syncs.
  Task<Result<StateHolder::Outcome>> care_and_sync() {
    auto outcome = co_await beat_and_sync();
    if (!outcome || *outcome == StateHolder::Outcome::Lost) co_return outcome;
    co_return co_await look_after_others(*outcome);
  }

  Task<Result<StateHolder::Outcome>> beat_and_sync() {
    if (loop_.now() >= next_care_) {
      auto beat = co_await backend_.beat(sign_name(node_), settings_.window());
      if (!beat) co_return fail(std::move(beat.error()));
      sightings_.beat(loop_.now());
      next_care_ = after(loop_.now(), settings_.keep_alive_interval);
    }
    co_return co_await sync_and_report();
  }

  // `outcome` of the last sync becomes that of the next, if there is one.
  Task<Result<StateHolder::Outcome>> look_after_others(StateHolder::Outcome last) {
    Result<StateHolder::Outcome> outcome = last;
    // With leases, an observer may have been woken because one is gone.
    const bool may_be_woken = backend_.has_leases() && sightings_.watches_all(holder_.state());
    if (loop_.now() >= next_look_ || may_be_woken) {
      const std::vector<Node> nodes = sightings_.whom_to_watch(holder_.state());
      std::vector<std::string> names;
      for (const Node& node : nodes) names.push_back(sign_name(node));
      if (!names.empty()) {
        auto signs = co_await backend_.signs(std::move(names));
        if (!signs) co_return fail(std::move(signs.error()));
        sightings_.note(nodes, *signs, backend_.has_leases(), loop_.now());
        holder_.drop_silent();
      }
      // Together with the next sign of life.
      next_look_ = next_care_;
    }
    // The dead are taken out by whoever sees it, so that everybody knows.
    if (!holder_.dropped().empty() && !holder_.dirty()) {
      holder_.edit();
      outcome = co_await sync_and_report();
    }
    co_return outcome;
  }

  Task<Result<StateHolder::Outcome>> sync_and_report() {
    const bool writes = holder_.dirty();
    if (writes) advance_late(settings_, loop_.now(), holder_.edit());
    const TimePoint began = loop_.now();
    auto outcome = co_await holder_.sync();
    if (writes) write_time_ = loop_.now() - began;
    if (writes && outcome) clear_wishes(*outcome == StateHolder::Outcome::Won);
    if (writes && outcome && options_.report) {
      const bool won = *outcome == StateHolder::Outcome::Won;
      options_.report(NodeState::Running,
                      fmt::format("{} {} round {}", describe(node_),
                                  won ? "wrote" : "had a stale copy of", holder_.state().round));
    }
    co_return outcome;
  }

  // Those that we have granted are of no use to anybody, unless the write was lost.
  void clear_wishes(bool won) {
    if (!won) granted_.clear();
    const WishMarks& marks = holder_.state().wishes;
    std::erase_if(granted_, [&](std::uint64_t number) { return is_open(marks, number); });
    if (!granted_.empty()) cleaning_.start(backend_.clear_wishes(std::exchange(granted_, {})));
  }

  void update_board() {
    const State& state = holder_.state();
    Status status;
    status.round = state.round;
    status.waiting = count_waiting(state);
    status.closed = state.closed;
    status.lost = state.lost;
    status.member = place_ && place_->id == current_round() && state.complete &&
                    state.participants.contains(node_);
    board_.set(status);
  }

  Loop& loop_;
  Random& random_;
  Backend& backend_;
  const Settings settings_;
  const Node node_;
  const SharedDriverOptions options_;
  Sightings sightings_;
  StateHolder holder_;
  Turnstile turnstile_;
  StatusBoard board_;
  std::optional<Place> place_;  // what the last join returned
  std::optional<TimePoint> known_at_;
  Duration write_time_ = Duration::zero();  // how long the last one took
  // Whether more nodes may come than can write one after the other just as well.
  const bool crowds_ = backend_.has_wishes() && settings_.max_nodes > kWritersMax;
  std::optional<std::uint64_t> wish_;   // the number of the one we have made
  TimePoint wish_until_;                // and how long others may take to grant it
  std::vector<std::uint64_t> granted_;  // in our copy
  bool leaves_many_ = false;            // what we want is to leave a round of many
  TimePoint next_care_;
  TimePoint next_look_;
  TaskScope cleaning_;
  TaskScope keeping_;  // last: its task uses the rest
};

}  // namespace

std::unique_ptr<Driver> make_shared_driver(Loop& loop, Random& random, Backend& backend,
                                           Settings settings, Node node,
                                           SharedDriverOptions options) {
  return std::make_unique<SharedDriver>(loop, random, backend, std::move(settings), std::move(node),
                                        std::move(options));
}

}  // namespace muster::rendezvous
