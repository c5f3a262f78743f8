#include "muster/rendezvous/hosted_driver.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/rendezvous/heartbeat.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/status_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::rendezvous {
namespace {

constexpr BackoffOptions kReconnectBackoff{std::chrono::milliseconds(20), std::chrono::seconds(2)};

class HostedDriver final : public Driver {
 public:
  HostedDriver(Loop& loop, Random& random, store::ServiceClient& services, Settings settings,
               Node node, HostedDriverOptions options)
      : loop_(loop),
        random_(random),
        services_(services),
        settings_(std::move(settings)),
        node_(std::move(node)),
        options_(std::move(options)),
        board_(loop) {}

  Task<Result<Place>> join(TimePoint deadline) override {
    MUSTER_ASSERT(join_ == nullptr);
    Join join{Oneshot<Result<Place>>(loop_), Timer(loop_, [this] { join_expired(); })};
    const Registration<Join> registration(join_, join);
    join.timer.set(deadline);
    say_or_start(Said{Said::Kind::Join, place_ ? place_->id : RoundId()});
    auto place = co_await join.outcome;
    join.timer.cancel();
    if (place) co_return place;
    // A join that was refused has left no traces at the server; one that was given up has.
    if (place.error().kind == ErrorKind::Timeout) {
      const bool reached = talk_ != nullptr;
      const TimePoint limit = after(loop_.now(), kRollbackWindow);
      join_ = nullptr;
      auto left = co_await leave(limit);
      if (!reached && !left) place = unreachable();
    }
    stop();
    co_return place;
  }

  Task<Result<>> leave(TimePoint deadline) override {
    is_in_ = false;
    if (talk_ == nullptr) {
      // Nobody hears it. Silence says the same, only later.
      stop();
      co_return fail(ErrorKind::Unavailable, "not connected");
    }
    Leave leaving{Oneshot<bool>(loop_)};
    const Registration<Leave> registration(leave_, leaving);
    Timer timer(loop_, [&leaving] { leaving.done.set(false); });
    timer.set(deadline);
    talk_->say(encode(Said{Said::Kind::Leave, {}}));
    const bool left = co_await leaving.done;
    if (!left) {
      stop();
      co_return fail(ErrorKind::Timeout,
                     fmt::format("could not leave run '{}' in time", settings_.run_id));
    }
    Status status = board_.status();
    status.member = false;
    board_.set(status);
    co_return Result<>();
  }

  Task<Result<>> close(TimePoint deadline) override {
    wants_closed_ = true;
    if (!board_.status().closed) say_or_start(Said{Said::Kind::Close, {}});
    while (!board_.status().closed) {
      const Status seen = board_.status();
      co_await board_.wait(seen, deadline);
      if (board_.status().closed) break;
      if (fatal_) co_return fail(*fatal_);
      if (loop_.now() >= deadline) {
        if (talk_ == nullptr) co_return unreachable();
        co_return fail(ErrorKind::Timeout,
                       fmt::format("run '{}' could not be closed in time", settings_.run_id));
      }
    }
    co_return Result<>();
  }

  Task<Result<Status>> look() override {
    if (!running_) known_ = false;
    if (!known_) {
      start();
      const TimePoint deadline = after(loop_.now(), settings_.timeouts.heartbeat);
      (void)co_await board_.wait_next(deadline);
      if (fatal_) co_return fail(*fatal_);
      if (!known_) co_return unreachable();
    }
    if (talk_ == nullptr && loop_.now() - lost_at_ > settings_.window()) co_return unreachable();
    co_return board_.status();
  }

  Status status() const override { return board_.status(); }

  Task<Result<Status>> wait_status(Status seen, TimePoint deadline) override {
    co_return co_await board_.wait(seen, deadline);
  }

  Task<Result<Snapshot>> snapshot() override {
    Show show{Oneshot<Result<Snapshot>>(loop_)};
    const Registration<Show> registration(show_, show);
    Timer timer(loop_,
                [&show] { show.outcome.set(fail(ErrorKind::Timeout, "no answer in time")); });
    timer.set(after(loop_.now(), settings_.timeouts.heartbeat));
    say_or_start(Said{Said::Kind::Show, {}});
    co_return co_await show.outcome;
  }

  void stop() override {
    conversation_.cancel_all();
    running_ = false;
    talk_ = nullptr;
  }

 private:
  struct Join {
    Oneshot<Result<Place>> outcome;
    Timer timer;
    bool parked = false;
  };
  struct Leave {
    Oneshot<bool> done;
  };
  struct Show {
    Oneshot<Result<Snapshot>> outcome;
  };

  // Says where a running call is to be found, as long as it runs.
  template <typename Call>
  class Registration {
   public:
    Registration(Call*& place, Call& call) : place_(place) { place_ = &call; }
    ~Registration() { place_ = nullptr; }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    Call*& place_;
  };

  tl::unexpected<Error> unreachable() const {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot reach the server of run '{}': {}", settings_.run_id,
                            last_failure_.empty() ? "no answer" : last_failure_));
  }

  void join_expired() {
    join_->outcome.set(fail(
        ErrorKind::Timeout,
        fmt::format("no round of run '{}' with this node in it was complete in time; it needs at "
                    "least {} nodes",
                    settings_.run_id, settings_.min_nodes)));
  }

  // -- the conversation ------------------------------------------------------------------------

  void say_or_start(const Said& said) {
    if (talk_ != nullptr) {
      talk_->say(encode(said));
    } else {
      start();  // the hello says it
    }
  }

  void start() {
    if (running_) return;
    running_ = true;
    fatal_.reset();
    lost_at_ = loop_.now();
    conversation_.cancel_all();
    conversation_.start(converse());
  }

  Task<void> converse() {
    int failure_count = 0;
    for (;;) {
      const Hello said = hello();
      auto talk = co_await services_.open(store::ServiceId::Rendezvous, encode(said));
      Error error;
      if (talk) {
        talk_ = talk->get();
        talk_->set_patience(settings_.timeouts.heartbeat);
        catch_up(said);
        heard_ = false;
        error = co_await listen();
        if (heard_) failure_count = 0;
        talk_ = nullptr;
        lost_at_ = loop_.now();
        mark_away(true);
        // Without a server even a spare waits no longer than a join may take. One that comes back
        // is told if it is parked still.
        if (join_ != nullptr && join_->parked) {
          join_->timer.set(after(loop_.now(), settings_.timeouts.join));
        }
      } else {
        error = std::move(talk.error());
      }
      last_failure_ = error.message;
      if (error.kind != ErrorKind::Unavailable && error.kind != ErrorKind::Timeout &&
          error.kind != ErrorKind::Closed) {
        give_up(std::move(error));
        co_return;
      }
      const Duration pause = backoff(kReconnectBackoff, failure_count++, random_);
      log::info("rendezvous", "lost the server of run {}: {}, trying again in {}",
                log::quote(settings_.run_id), last_failure_, muster::describe(pause));
      const TimePoint until = loop_.now() + pause;
      co_await sleep_until(loop_, until);
    }
  }

  // Says what has changed since the hello was written: to open a line may take long.
  void catch_up(const Hello& said) {
    if (join_ != nullptr && !said.joins) {
      talk_->say(encode(Said{Said::Kind::Join, place_ ? place_->id : RoundId()}));
    } else if (join_ == nullptr && said.joins) {
      is_in_ = false;
      talk_->say(encode(Said{Said::Kind::Leave, {}}));
    }
    if (wants_closed_ && !said.closes && !said.knows_closed) {
      talk_->say(encode(Said{Said::Kind::Close, {}}));
    }
    if (show_ != nullptr) talk_->say(encode(Said{Said::Kind::Show, {}}));
  }

  Hello hello() const {
    Hello hello;
    hello.run_id = settings_.run_id;
    hello.joins = join_ != nullptr;
    hello.closes = wants_closed_ && !board_.status().closed;
    hello.knows_closed = board_.status().closed;
    hello.node = node_;
    hello.settings = settings_;
    if (is_in_ || join_ != nullptr) hello.place = place_;
    return hello;
  }

  // Until the line is lost, for the reason returned.
  Task<Error> listen() {
    // Nodes that joined together must not all speak at once.
    const Duration wait =
        Duration(random_.below(static_cast<std::uint64_t>(settings_.keep_alive_interval.count())));
    next_beat_ = loop_.now() + until_tick(wait, settings_.keep_alive_interval, loop_.wall_time());
    std::optional<TimePoint> answer_due;
    TimePoint heard_at = loop_.now();
    for (;;) {
      const TimePoint wake = answer_due ? std::min(*answer_due, next_beat_) : next_beat_;
      auto message = co_await talk_->next(wake);
      if (message) {
        heard_ = true;
        heard_at = loop_.now();
        mark_away(false);
        answer_due.reset();
        auto told = decode_told(*message);
        if (!told) co_return told.error();
        take(*told);
        continue;
      }
      if (message.error().kind != ErrorKind::Timeout) co_return message.error();
      if (answer_due && loop_.now() >= *answer_due) {
        co_return Error{ErrorKind::Unavailable,
                        fmt::format("the server has not answered for {}",
                                    muster::describe(settings_.timeouts.heartbeat))};
      }
      if (loop_.now() >= next_beat_) {
        const Duration interval = settings_.keep_alive_interval;
        next_beat_ = after(loop_.now(), until_tick(interval, interval, loop_.wall_time()));
        // The server may be silent for as long as we may; only then it is asked for an answer:
        // answers are most of what a large and quiet group costs.
        const bool asks = answer_due || loop_.now() - heard_at >= settings_.window();
        talk_->say(encode(Said{asks ? Said::Kind::Alive : Said::Kind::Beat, {}}));
        if (asks && !answer_due) answer_due = after(loop_.now(), settings_.timeouts.heartbeat);
      }
    }
  }

  void mark_away(bool away) {
    Status status = board_.status();
    if (status.away == away) return;
    status.away = away;
    board_.set(status);
  }

  void take(const Told& told) {
    switch (told.kind) {
      case Told::Kind::Joined:
        joined(told.place);
        break;
      case Told::Kind::Failed: {
        Status status = board_.status();
        status.closed = status.closed || told.error.kind == ErrorKind::Closed ||
                        told.error.kind == ErrorKind::Finished;
        status.member = false;
        is_in_ = false;
        board_.set(status);
        const bool finished = told.error.kind == ErrorKind::Finished;
        report(finished ? NodeState::Succeeded : NodeState::Failed, told.error.message);
        if (join_ != nullptr) join_->outcome.set(fail(told.error));
        break;
      }
      case Told::Kind::Status:
        known_ = true;
        if (told.status.closed && !board_.status().closed) {
          report(NodeState::Succeeded, "the run is closed");
        }
        board_.set(told.status);
        if (join_ != nullptr && !join_->outcome.is_set()) park(told.spare);
        break;
      case Told::Kind::Left:
        if (leave_ != nullptr) leave_->done.set(true);
        break;
      case Told::Kind::Alive:
        break;
      case Told::Kind::Snapshot:
        if (show_ != nullptr) show_->outcome.set(told.snapshot);
        break;
    }
  }

  void joined(const Place& place) {
    if (join_ == nullptr) return;                  // given up meanwhile; we have said so
    if (place_ && place_->id == place.id) return;  // the answer to a join that was given up
    place_ = place;
    is_in_ = true;
    known_ = true;
    Status status;
    status.round = place.id.round;
    status.member = true;
    board_.set(status);
    join_->outcome.set(place);
  }

  // A spare waits without a deadline; one that is needed again has the whole time again.
  void park(bool spare) {
    if (!spare && !join_->parked) return;
    if (spare != join_->parked) {
      report(NodeState::Running, spare ? "parked as a spare" : "a spare no more");
    }
    join_->parked = spare;
    join_->timer.set(spare ? kNever : after(loop_.now(), settings_.timeouts.join));
  }

  void give_up(Error error) {
    running_ = false;
    fatal_ = error;
    report(NodeState::Failed, error.message);
    board_.set(board_.status());
    if (join_ != nullptr) join_->outcome.set(fail(error));
    if (show_ != nullptr) show_->outcome.set(fail(error));
  }

  void report(NodeState state, std::string_view message) {
    if (options_.report) options_.report(state, std::string(message));
  }

  Loop& loop_;
  Random& random_;
  store::ServiceClient& services_;
  const Settings settings_;
  const Node node_;
  const HostedDriverOptions options_;
  StatusBoard board_;
  std::optional<Place> place_;  // the last round this node was a member of
  bool is_in_ = false;          // it still is, as far as it knows
  bool wants_closed_ = false;

  Join* join_ = nullptr;
  Leave* leave_ = nullptr;
  Show* show_ = nullptr;

  bool running_ = false;
  bool known_ = false;           // whether the board shows what a server has said
  store::Talk* talk_ = nullptr;  // in the frame of `converse`
  bool heard_ = false;
  TimePoint next_beat_;
  TimePoint lost_at_;
  std::string last_failure_;
  std::optional<Error> fatal_;  // why there is no conversation any more
  TaskScope conversation_;      // last: its task uses the rest
};

}  // namespace

std::unique_ptr<Driver> make_hosted_driver(Loop& loop, Random& random,
                                           store::ServiceClient& services, Settings settings,
                                           Node node, HostedDriverOptions options) {
  return std::make_unique<HostedDriver>(loop, random, services, std::move(settings),
                                        std::move(node), std::move(options));
}

}  // namespace muster::rendezvous
