#include "muster/rendezvous/dynamic_handler.h"

#include "muster/base/log.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/store_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::rendezvous {
namespace {

// How long rank 0 of a round that has lost a member may still take to publish the store's address.
constexpr Duration kPublishGrace = std::chrono::seconds(1);
// So long the members of a complete round have to learn the store's address, however late it is.
constexpr Duration kPublishTime = std::chrono::seconds(30);

class DynamicHandler final : public Handler {
 public:
  DynamicHandler(Environment& environment, DynamicHandlerParts parts)
      : loop_(environment.loop), events_(environment.events), parts_(std::move(parts)) {}
  ~DynamicHandler() override { parts_.driver.reset(); }

  std::string_view backend() const override { return parts_.backend; }
  const std::string& run_id() const override { return parts_.settings.run_id; }
  bool use_agent_store() const override { return parts_.shares_store(); }
  bool hosts_store() const override { return parts_.hosts_store; }
  std::string store_on_node() const override { return parts_.store_on_node; }

  Task<Result<Info>> next_rendezvous() override {
    if (joining_) {
      co_return fail(ErrorKind::Invalid, "next_rendezvous is running already on this handler");
    }
    const InUse in_use(joining_);
    record("next_rendezvous", NodeState::Running, "{} attempts to join the next round of run '{}'",
           describe(parts_.node), run_id());
    auto info = co_await join(after(loop_.now(), parts_.settings.timeouts.join));
    if (!info) {
      record_failure("next_rendezvous", info.error());
      co_return info;
    }
    rank_ = info->rank;
    record("next_rendezvous", NodeState::Running, "{} joined round {} of run '{}' as rank {} of {}",
           describe(parts_.node), info->round, run_id(), info->rank, info->world_size);
    co_return info;
  }

  Task<Result<bool>> is_closed() override {
    auto status = co_await parts_.driver->look();
    if (status) co_return status->closed;
    record_failure("is_closed", status.error());
    co_return fail(std::move(status.error()));
  }

  Task<Result<std::int64_t>> num_nodes_waiting() override {
    auto status = co_await parts_.driver->look();
    if (status) co_return status->waiting;
    record_failure("num_nodes_waiting", status.error());
    co_return fail(std::move(status.error()));
  }

  Task<Result<>> set_closed() override {
    auto closed = co_await parts_.driver->close(after(loop_.now(), parts_.settings.timeouts.close));
    if (closed) {
      record("set_closed", NodeState::Succeeded, "{} closed run '{}'", describe(parts_.node),
             run_id());
    } else {
      record_failure("set_closed", closed.error());
    }
    co_return closed;
  }

  Task<Result<bool>> shutdown() override {
    parts_.driver->stop();
    auto closed = co_await parts_.driver->close(after(loop_.now(), parts_.settings.timeouts.close));
    parts_.driver->stop();
    if (closed) co_return true;
    record_failure("shutdown", closed.error());
    // A mistake of ours is not for a warning.
    if (closed.error().kind == ErrorKind::Invalid) co_return fail(std::move(closed.error()));
    log::warn("rendezvous", "run {} could not be closed: {}", log::quote(run_id()),
              closed.error().message);
    co_return false;
  }

  Task<Result<>> leave() override {
    auto left = co_await parts_.driver->leave(after(loop_.now(), kRollbackWindow));
    parts_.driver->stop();
    if (!left) record_failure("leave", left.error());
    co_return left;
  }

  Status status() const override { return parts_.driver->status(); }

  Task<Result<Status>> wait_status(Status seen, TimePoint deadline) override {
    return parts_.driver->wait_status(seen, deadline);
  }

 private:
  // True while it exists.
  class InUse {
   public:
    explicit InUse(bool& flag) : flag_(flag) { flag_ = true; }
    ~InUse() { flag_ = false; }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    bool& flag_;
  };

  Task<Result<Info>> join(TimePoint deadline) {
    for (;;) {
      auto place = co_await parts_.driver->join(deadline);
      if (!place) co_return fail(std::move(place.error()));
      Info info;
      info.rank = place->rank;
      info.world_size = place->world_size;
      info.round = place->id.round;
      // The name that PyTorch gives it, for programs that look for it.
      info.store = parts_.round_store(fmt::format("torch.rendezvous.{}.{}", run_id(), info.round));
      // Only a spare is past its deadline, and it was given a new one when it was called.
      if (loop_.now() > deadline) deadline = after(loop_.now(), parts_.settings.timeouts.join);
      const TimePoint limit = after(loop_.now(), kPublishTime);
      auto bootstrap = co_await agree_on_bootstrap(info.rank, *info.store, limit);
      // A store that was restarted may have forgotten what rank 0 has said. It says it again in the
      // next round.
      const bool was_unheard = !bootstrap && info.rank != 0 &&
                               bootstrap.error().kind == ErrorKind::Timeout &&
                               loop_.now() < deadline;
      if (was_unheard) bootstrap = std::optional<StoreInfo>();
      if (!bootstrap) {
        // The others must not count on a member whose workers never start.
        const TimePoint leave_by = after(loop_.now(), kRollbackWindow);
        (void)co_await parts_.driver->leave(leave_by);
        parts_.driver->stop();
        co_return fail(std::move(bootstrap.error()));
      }
      if (*bootstrap) {
        info.bootstrap = std::move(**bootstrap);
        co_return info;
      }
      log::info("rendezvous",
                "round {} of run {} fell apart before its store was known, joining "
                "the next",
                info.round, log::quote(run_id()));
    }
  }

  using Agreement = Result<std::optional<StoreInfo>>;

  // Belongs to the round: rank 0 says it in every one, and everybody reads it in every one. Nothing
  // if rank 0 seems to be gone before it has said it.
  Task<Agreement> agree_on_bootstrap(std::int64_t rank, store::Store& store, TimePoint deadline) {
    StoreInfoOffer offer;
    offer.local_addr = parts_.local_addr;
    offer.free_port = parts_.free_port;
    if (rank == 0 && parts_.shares_store()) {
      auto port = parts_.bootstrap_port();
      if (!port) co_return fail(std::move(port.error()));
      offer.server_port = *port;
    }
    Oneshot<Agreement> agreement(loop_);
    TaskScope scope;
    scope.start(build(rank, store, std::move(offer), deadline, agreement));
    if (rank != 0) scope.start(give_up_when_lost(agreement));
    co_return co_await agreement;
  }

  static Task<void> build(std::int64_t rank, store::Store& store, StoreInfoOffer offer,
                          TimePoint deadline, Oneshot<Agreement>& agreement) {
    auto info = co_await build_store_info(rank, store, std::move(offer), deadline);
    if (info) {
      agreement.set(std::optional<StoreInfo>(std::move(*info)));
    } else {
      agreement.set(fail(std::move(info.error())));
    }
  }

  Task<void> give_up_when_lost(Oneshot<Agreement>& agreement) {
    Status status = parts_.driver->status();
    while (!status.lost && status.member) {
      auto changed = co_await parts_.driver->wait_status(status, kNever);
      if (!changed) co_return;
      status = *changed;
    }
    const TimePoint until = after(loop_.now(), kPublishGrace);
    co_await sleep_until(loop_, until);
    agreement.set(std::optional<StoreInfo>());
  }

  template <typename... Args>
  void record(std::string_view name, NodeState state, fmt::format_string<Args...> format,
              Args&&... args) {
    emit(events_, [&] {
      Event event = make_event(name, state);
      event.message = fmt::format(format, std::forward<Args>(args)...);
      return event;
    });
  }

  void record_failure(std::string_view name, const Error& error) {
    // A spare that is not needed any more has not failed.
    if (error.kind == ErrorKind::Finished) {
      record(name, NodeState::Succeeded, "{}", error.message);
      return;
    }
    emit(events_, [&] {
      Event event = make_event(name, NodeState::Failed);
      event.message = fmt::format("{} failed in run '{}'", name, run_id());
      event.error_trace = error.message;
      return event;
    });
  }

  Event make_event(std::string_view name, NodeState state) const {
    Event event;
    event.name = name;
    event.run_id = run_id();
    event.hostname = parts_.node.addr;
    event.pid = parts_.node.pid;
    event.node_state = state;
    event.master_endpoint = parts_.master_endpoint;
    event.rank = rank_;
    event.local_id = parts_.node.local_id;
    return event;
  }

  Loop& loop_;
  EventSink* events_;
  DynamicHandlerParts parts_;
  bool joining_ = false;
  std::optional<std::int64_t> rank_;
};

}  // namespace

std::unique_ptr<Handler> make_dynamic_handler(Environment& environment, DynamicHandlerParts parts) {
  return std::make_unique<DynamicHandler>(environment, std::move(parts));
}

}  // namespace muster::rendezvous
