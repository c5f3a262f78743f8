#include "muster/rpc/agent_core.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/rpc/group_store.h"
#include "muster/rpc/large_memory.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace muster::rpc {
namespace {

// How long after the loss of a connection what was sent by it may still arrive.
constexpr Duration kArrivesWithin = std::chrono::seconds(1);
// What somebody else can make happen again and again is said only so often.
constexpr Duration kWarningInterval = std::chrono::minutes(1);

}  // namespace

struct AgentCore::Departure {
  std::shared_ptr<Outgoing> outgoing;
  Message request;
  Duration timeout;
  TimePoint deadline;
  std::unique_ptr<CallSink> sink;
};

AgentCore::AgentCore(CoreOptions options, Loop& loop, const Clock& clock, RequestHandler& handler)
    : options_(std::move(options)),
      loop_(loop),
      clock_(clock),
      calls_([this, alive = std::weak_ptr<bool>(alive_)] {
        loop_.post([this, alive] {
          if (!alive.expired()) expiry_.set(loop_.now());
        });
      }),
      reception_(std::make_shared<Reception>(options_.self)),
      expiry_(loop, [this] { expiry_.set(calls_.expire(clock_.now())); }),
      tick_(loop, [this] { look_after_all(); }),
      make_room_(loop, [this] { make_room(); }) {
  reception_->loop = &loop_;
  reception_->handler = &handler;
  reception_->incarnation = options_.incarnation;
  reception_->link = options_.link;
  reception_->devices = options_.devices;
  reception_->faults = options_.faults;
  reception_->backlog.bytes = options_.link.queue_bytes_max;
  reception_->later = [this](Duration wait, std::function<void()> work) {
    later(wait, std::move(work));
  };
  reception_->strangers_changed = [this] { strangers_changed(); };
  around_.loop = &loop_;
  around_.calls = &calls_;
  around_.link = options_.link;
  around_.connect_timeout = options_.connect_timeout;
  around_.next_connection = [this] { return next_connection_++; };
  around_.open_stream = options_.open_stream;
  around_.may_wait = options_.may_wait;
  around_.look_up = [this](std::string name) { return look_up(std::move(name)); };
  around_.reached = [this](const Member& member) {
    if (member.info != self()) reception_->handler->on_worker_heard(member.info);
  };
  around_.suspect = [this](const Member& member) {
    if (group_) group_->suspect(member);
  };
}

AgentCore::~AgentCore() { MUSTER_ASSERT(workers_.empty() && incoming_.empty()); }

void AgentCore::begin() { set_tick(); }

// At the same moments in all processes of a machine, whose clock is the same: then one waking up
// does for what is said and what is heard.
void AgentCore::set_tick() {
  const Duration interval = options_.sign_of_life_interval;
  tick_.set(TimePoint((loop_.now().time_since_epoch() / interval + 1) * interval));
}

Task<Result<>> AgentCore::join(store::Store& store, GroupEntry entry) {
  Random random = Random::from_system();
  store_ = &store;
  auto agreeing = agree_on_job(random_id(random));
  std::string what = "the store does not answer";
  auto agreed = co_await with_deadline(loop_, entry.deadline, std::move(agreeing), std::move(what));
  if (!agreed) co_return agreed;
  address_ = entry.self.address;
  is_static_ = entry.world_size.has_value();
  if (is_static_) {
    around_.cut_off = [this](const Member& member) { look_if_cut_off(member.info.name()); };
    around_.died = [this](const Member& member, const std::string& text) {
      worker_died(member, text);
    };
    reception_->admit = [this](Hello hello) { return admit(std::move(hello)); };
  }
  Result<std::unique_ptr<Group>> group;
  if (entry.world_size) {
    const std::int64_t size = *entry.world_size;
    group = co_await join_static_group(loop_, store, entry.self, size, *this, entry.deadline);
  } else {
    group =
        co_await join_dynamic_group(loop_, store, entry.self, entry.options, *this, entry.deadline);
  }
  if (!group) co_return fail(group.error());
  group_ = std::move(*group);
  co_return Result<>();
}

Task<Result<>> AgentCore::agree_on_job(std::string mine) {
  auto agreed = co_await agree_on_secret(loop_, *store_, std::move(mine), incarnation());
  if (!agreed) co_return fail(agreed.error());
  around_.job = reception_->job = std::move(*agreed);
  co_return Result<>();
}

// A store that has lost everything has lost the secret as well. Before this worker is in the list
// again: whoever joins takes it for one that can be called.
Task<Result<>> AgentCore::before_return() {
  std::string mine = around_.job;
  return agree_on_job(std::move(mine));
}

void AgentCore::accept(std::unique_ptr<Stream> stream, std::string where) {
  // Only from this machine: on the network nobody is accepted long before.
  if (reception_->stranger_count >= options_.strangers_max + kStrangersOfThisMachineMax) {
    log::warn("rpc", "{} closes a connection from {}: {} others have not said yet who they are",
              self().describe(), where, reception_->stranger_count);
    return;
  }
  const ConnectionNumber number = next_incoming_++;
  incoming_.emplace(
      number, std::make_unique<Incoming>(reception_, std::move(stream), std::move(where), number,
                                         [this, number] { incoming_ended(number); }));
}

void AgentCore::strangers_changed() {
  const bool has_room = reception_->stranger_count < options_.strangers_max;
  if (has_room == has_room_) return;
  has_room_ = has_room;
  if (options_.set_accepting) options_.set_accepting(has_room);
  if (has_room) return make_room_.cancel();
  const TimePoint now = loop_.now();
  make_room_.set(now + kGreetingMaxWhenFull);
  if (warned_at_ != TimePoint() && now - warned_at_ < kWarningInterval) return;
  warned_at_ = now;
  log::warn("rpc", "{} accepts no connections for now: {} others have not said yet who they are",
            self().describe(), reception_->stranger_count);
}

void AgentCore::make_room() {
  const TimePoint now = loop_.now();
  make_room_.set(now + kGreetingMaxWhenFull);
  for (const auto& [number, one] : incoming_) one->give_place(now);
}

void AgentCore::incoming_ended(ConnectionNumber number) {
  const auto found = incoming_.find(number);
  std::optional<WorkerInfo> from;
  if (found->second->from() != nullptr) from = *found->second->from();
  incoming_.erase(found);
  if (!from) return;
  later(kArrivesWithin, [this, number] { reception_->handler->on_connection_lost(number); });
  look_if_cut_off(from->name());
}

std::shared_ptr<Outgoing> AgentCore::outgoing_to(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : found->second;
}

Task<Result<Member>> AgentCore::look_up(std::string name) {
  if (!group_) co_return fail(ErrorKind::Unavailable, "there is no group yet");
  const std::shared_ptr<Outgoing> known = outgoing_to(name);
  auto found = co_await group_->look_up(std::move(name));
  if (!found || !known) co_return found;
  const Member before = known->member();
  if (before.incarnation != found->incarnation) {
    if (!known->is_dead()) tell_replaced(*known);
    std::vector<Member> came;
    came.push_back(*found);
    tell_joined(std::move(came));
  }
  co_return found;
}

// ---- who is alive -------------------------------------------------------------------------------

void AgentCore::look_if_cut_off(const std::string& name) {
  if (!is_static_ || expects_departures_ || name == self().name()) return;
  for (const auto& [number, one] : incoming_) {
    if (one->from() != nullptr && one->from()->name() == name) return;
  }
  if (const auto outgoing = outgoing_to(name)) outgoing->look_for();
}

void AgentCore::worker_died(const Member& member, const std::string& text) {
  // At the end of a job, workers that are done go before others are; who has no call under way need
  // not know.
  const log::Level level = calls_.active_count() > 0 ? log::Level::Warn : log::Level::Debug;
  if (log::enabled(level)) log::write(level, "rpc", text);
  tell_lost(member.info, text);
}

Task<std::string> AgentCore::admit(Hello hello) {
  const std::shared_ptr<Outgoing> outgoing = outgoing_to(hello.from_name);
  // It may know the group before this worker does.
  if (!outgoing || !group_) co_return std::string();
  if (outgoing->member().incarnation != hello.from_incarnation) {
    // It was started again, or another was in its place.
    std::string name = hello.from_name;
    const Result<Member> fresh = co_await look_up(std::move(name));
    if (!fresh) co_return fresh.error().message;
    if (fresh->incarnation != hello.from_incarnation) {
      co_return fmt::format("another process has taken the place of {}", hello.from_name);
    }
  }
  // What it held is released. It cannot go on as if that were not so.
  if (outgoing->is_dead()) co_return fmt::format("{} was taken for dead", hello.from_name);
  outgoing->came();
  co_return std::string();
}

// ---- who is there -------------------------------------------------------------------------------

void AgentCore::on_members(const std::vector<Member>& members) {
  options_.devices->update(device_rows(members));
  bool has_come_back = false;
  for (const Member& member : members) {
    // The others ask for the incarnation that they know. By the name alone it would not do: another
    // process may have that after this one was taken out.
    if (member.info == self() && member.address == address_) {
      has_come_back = reception_->incarnation.exchange(member.incarnation) != member.incarnation;
    }
  }
  std::vector<std::shared_ptr<Outgoing>> gone;
  std::vector<std::pair<std::shared_ptr<Outgoing>, Member>> known;
  std::vector<Member> came;
  {
    const std::lock_guard lock(mutex_);
    auto before = std::exchange(workers_, {});
    names_.clear();
    for (const Member& member : members) {
      const std::string& name = member.info.name();
      const auto found = before.find(name);
      std::shared_ptr<Outgoing> outgoing;
      if (found != before.end()) {
        outgoing = std::move(found->second);
        before.erase(found);
        known.emplace_back(outgoing, member);
      } else {
        outgoing = std::make_shared<Outgoing>(around_, options_.self, incarnation(), member);
        came.push_back(member);
      }
      workers_.emplace(name, std::move(outgoing));
      names_[member.info.id()] = name;
    }
    for (auto& [name, outgoing] : before) gone.push_back(std::move(outgoing));
  }
  for (const auto& outgoing : gone) {
    const WorkerInfo info = outgoing->member().info;
    const std::string text = peer_lost_text(info, "it has left the group", outgoing->last_heard());
    tell_lost(info, text);
    outgoing->close({CallErrorKind::Unreachable, text, "", true});
  }
  for (const auto& [outgoing, member] : known) {
    const Member old = outgoing->member();
    if (has_come_back) {
      // The others have given up what this worker held, and it what they held.
      tell_lost(old.info,
                fmt::format("{} was taken out of the group meanwhile", self().describe()));
      came.push_back(member);
    } else if (old.incarnation != member.incarnation) {
      if (!outgoing->is_dead()) tell_replaced(*outgoing);
      came.push_back(member);
    }
    outgoing->update(member);
  }
  tell_joined(std::move(came));
}

void AgentCore::tell_lost(const WorkerInfo& worker, const std::string& text) {
  if (worker != self()) reception_->handler->on_worker_lost(worker, text);
}

void AgentCore::tell_replaced(const Outgoing& worker) {
  const WorkerInfo info = worker.member().info;
  tell_lost(info, peer_lost_text(info, "another process has taken its place", worker.last_heard()));
}

void AgentCore::tell_joined(std::vector<Member> members) {
  // This worker first: what it is decides how it sees the others.
  std::stable_partition(members.begin(), members.end(),
                        [this](const Member& member) { return member.info == self(); });
  for (const Member& member : members) {
    reception_->handler->on_worker_joined(member.info, is_static_ ? 0 : member.incarnation);
  }
}

CallResult<WorkerInfo> AgentCore::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  if (found != workers_.end()) return found->second->member().info;
  return call_failed(
      {CallErrorKind::Rejected, unknown_destination_name_text(self(), name), "", false});
}

CallResult<WorkerInfo> AgentCore::find(std::int64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(id);
  if (found != names_.end()) return workers_.at(found->second)->member().info;
  return call_failed({CallErrorKind::Rejected, unknown_destination_id_text(self(), id), "", false});
}

std::vector<WorkerInfo> AgentCore::workers() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerInfo> infos;
  for (const auto& [id, name] : names_) infos.push_back(workers_.at(name)->member().info);
  return infos;
}

std::uint64_t AgentCore::process_of(std::string_view name) const {
  const auto outgoing = outgoing_to(name);
  return outgoing ? outgoing->member().incarnation : 0;
}

std::string AgentCore::kind_of_connection(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  return found == workers_.end() ? std::string() : std::string(found->second->kind());
}

// ---- calling ------------------------------------------------------------------------------------

void AgentCore::submit(std::string_view to, Message request, std::optional<Duration> timeout,
                       std::unique_ptr<CallSink> sink) {
  std::shared_ptr<Outgoing> outgoing = outgoing_to(to);
  if (!outgoing) {
    return calls_.refuse(std::move(sink), {CallErrorKind::Rejected,
                                           unknown_destination_name_text(self(), to), "", false});
  }
  const TimePoint deadline = timeout ? clock_.now() + *timeout : kNever;
  const Duration length = timeout.value_or(Duration::zero());
  if (!options_.faults) {
    return outgoing->submit(std::move(request), length, deadline, std::move(sink));
  }
  Departure call{std::move(outgoing), std::move(request), length, deadline, std::move(sink)};
  if (go_wrong(call)) return;
  call.outgoing->submit(std::move(call.request), call.timeout, call.deadline, std::move(call.sink));
}

// ---- what goes wrong on purpose -----------------------------------------------------------------

// Tells the call that a program made how the one went that was sent in its place; or nobody.
class AgentCore::RelaySink final : public CallSink {
 public:
  explicit RelaySink(std::optional<CallId> call) : call_(call) {}
  void ended(CallResult<Message> outcome, Calls& calls) override {
    if (call_ && outcome) {
      outcome->id = *call_;
      calls.responded(kNobody, std::move(*outcome));
    } else if (call_) {
      calls.withdraw(*call_, std::move(outcome.error()));
    }
    calls.finished();
  }
  bool is_made() const override { return false; }
  // The connection of a call that was not handed to any.
  static constexpr PeerId kNobody = 0;

 private:
  std::optional<CallId> call_;
};

bool AgentCore::go_wrong(Departure& call) {
  const auto verdict = options_.faults->decide(call.request, call.outgoing->member().info.name());
  if (!verdict) return false;
  switch (verdict->action) {
    case FaultAction::Fail:
      calls_.refuse(std::move(call.sink),
                    {CallErrorKind::Injected, injected_text(call.request), "", false});
      return true;
    case FaultAction::Drop: {
      auto id = calls_.start({RelaySink::kNobody, call.deadline, call.timeout, {}}, call.sink);
      if (!id) calls_.refuse(std::move(call.sink), std::move(id.error()));
      return true;
    }
    case FaultAction::Delay:
    case FaultAction::Reorder:
      // The program may learn that its call is over before anything is sent.
      if (!take_over(call.request.buffers)) return false;
      send_later(std::move(call), verdict->length);
      return true;
    case FaultAction::Duplicate: {
      Message copy = call.request;
      if (!take_over(copy.buffers)) return false;
      call.outgoing->submit(std::move(copy), Duration::zero(), kNever,
                            std::make_unique<RelaySink>(std::nullopt));
      return false;
    }
    case FaultAction::Corrupt:
      call.request.payload[verdict->position] ^= 1;
      return false;
    case FaultAction::Disconnect:
      call.outgoing->cut("it was cut on purpose");
      return false;
  }
  return false;
}

void AgentCore::send_later(Departure call, Duration wait) {
  // Its time runs meanwhile, and it is sent even if that is over.
  auto id = calls_.start({RelaySink::kNobody, call.deadline, call.timeout, {}}, call.sink);
  if (!id) return calls_.refuse(std::move(call.sink), std::move(id.error()));
  auto shared = std::make_shared<Departure>(std::move(call));
  later(wait, [shared, call_id = *id] {
    shared->outgoing->submit(std::move(shared->request), Duration::zero(), kNever,
                             std::make_unique<RelaySink>(call_id));
  });
}

void AgentCore::later(Duration wait, std::function<void()> work) {
  loop_.post([this, alive = std::weak_ptr<bool>(alive_), wait, work = std::move(work)] {
    if (!alive.expired()) late_.start(run_later(loop_.now() + wait, work));
  });
}

Task<void> AgentCore::run_later(TimePoint when, std::function<void()> work) {
  co_await sleep_until(loop_, when);
  work();
}

// ---- from time to time --------------------------------------------------------------------------

void AgentCore::look_after_all() {
  const TimePoint now = loop_.now();
  set_tick();
  LargeMemory::of_process().trim(clock_.now());
  std::vector<std::shared_ptr<Outgoing>> outgoing;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, one] : workers_) outgoing.push_back(one);
  }
  // What was heard since the last look may be as old as that one.
  const Duration silence_max = options_.silence_max - options_.sign_of_life_interval / 2;
  for (const auto& one : outgoing) one->look_after(now, silence_max);
  for (const auto& [number, one] : incoming_) one->look_after(now, silence_max);
}

std::size_t AgentCore::peer_count() const {
  std::size_t count = 0;
  for (const auto& [number, one] : incoming_) {
    const WorkerInfo* const from = one->from();
    if (from != nullptr && from->id() != reception_->self.id()) ++count;
  }
  return count;
}

bool AgentCore::has_output() const {
  for (const auto& [number, one] : incoming_) {
    if (one->queued_bytes() > 0) return true;
  }
  return false;
}

// ---- the end ------------------------------------------------------------------------------------

void AgentCore::stop_answering() { reception_->is_open = false; }

void AgentCore::close(const CallError& reason) {
  stop_answering();
  late_.cancel_all();
  std::map<std::string, std::shared_ptr<Outgoing>, std::less<>> workers;
  {
    const std::lock_guard lock(mutex_);
    workers.swap(workers_);
    names_.clear();
  }
  for (const auto& [name, outgoing] : workers) outgoing->close(reason);
  reception_->strangers_changed = {};
  incoming_.clear();
  make_room_.cancel();
  group_.reset();  // now nobody asks it any more where a worker is
  calls_.close(reason);
  expiry_.cancel();
  tick_.cancel();
}

std::map<std::string, std::string> AgentCore::metrics() const {
  std::map<std::string, std::string> figures;
  figures["agent.client_active_calls"] = fmt::to_string(calls_.active_count());
  figures["agent.server_active_calls"] = fmt::to_string(reception_->active_count.load());
  const std::lock_guard lock(mutex_);
  for (const auto& [name, outgoing] : workers_) {
    if (outgoing->call_count() == 0 && outgoing->sent_bytes() == 0) continue;
    const std::string peer = "peer." + name;
    figures[peer + ".calls"] = fmt::to_string(outgoing->call_count());
    figures[peer + ".errors"] = fmt::to_string(outgoing->failed_count());
    figures[peer + ".sent_bytes"] = fmt::to_string(outgoing->sent_bytes());
    figures[peer + ".received_bytes"] = fmt::to_string(outgoing->received_bytes());
  }
  return figures;
}

}  // namespace muster::rpc
