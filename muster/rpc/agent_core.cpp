#include "muster/rpc/agent_core.h"

#include "muster/base/assert.h"
#include "muster/base/random.h"
#include "muster/rpc/large_memory.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <utility>

namespace muster::rpc {

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
      tick_(loop, [this] { look_after_all(); }) {
  reception_->loop = &loop_;
  reception_->handler = &handler;
  reception_->incarnation = options_.incarnation;
  reception_->link = options_.link;
  reception_->devices = options_.devices;
  around_.loop = &loop_;
  around_.calls = &calls_;
  around_.link = options_.link;
  around_.connect_timeout = options_.connect_timeout;
  around_.next_connection = [this] { return next_connection_++; };
  around_.open_stream = options_.open_stream;
  around_.look_up = [this](std::string name) { return look_up(std::move(name)); };
  around_.suspect = [this](const Member& member) {
    if (group_) group_->suspect(member);
  };
}

AgentCore::~AgentCore() { MUSTER_ASSERT(workers_.empty() && incoming_.empty()); }

void AgentCore::begin() { tick_.set(loop_.now() + options_.sign_of_life_interval); }

Task<Result<>> AgentCore::join(store::Store& store, GroupEntry entry) {
  // A secret that only those know who can read the store; the first to come makes it.
  Random random = Random::from_system();
  std::string secret = random_id(random);
  std::string nothing;
  auto agreed = co_await store.compare_set("job", std::move(nothing), std::move(secret));
  if (!agreed) co_return fail(agreed.error());
  around_.job = reception_->job = agreed->value;
  address_ = entry.self.address;
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

void AgentCore::accept(std::unique_ptr<Stream> stream, std::string where) {
  const std::uint64_t number = next_incoming_++;
  incoming_.emplace(number,
                    std::make_unique<Incoming>(reception_, std::move(stream), std::move(where),
                                               [this, number] { incoming_.erase(number); }));
}

Task<Result<Member>> AgentCore::look_up(std::string name) {
  if (!group_) co_return fail(ErrorKind::Unavailable, "there is no group yet");
  auto found = co_await group_->look_up(std::move(name));
  co_return found;
}

// ---- who is there -------------------------------------------------------------------------------

void AgentCore::on_members(const std::vector<Member>& members) {
  options_.devices->update(device_rows(members));
  for (const Member& member : members) {
    // The others ask for the incarnation that they know. By the name alone it would not do: another
    // process may have that after this one was taken out.
    if (member.info == self() && member.address == address_) {
      reception_->incarnation = member.incarnation;
    }
  }
  std::vector<std::shared_ptr<Outgoing>> gone;
  std::vector<std::pair<std::shared_ptr<Outgoing>, Member>> known;
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
      }
      workers_.emplace(name, std::move(outgoing));
      names_[member.info.id()] = name;
    }
    for (auto& [name, outgoing] : before) gone.push_back(std::move(outgoing));
  }
  for (const auto& [outgoing, member] : known) outgoing->update(member);
  for (const auto& outgoing : gone) {
    const WorkerInfo info = outgoing->member().info;
    outgoing->close({CallErrorKind::Unreachable,
                     peer_lost_text(info, "it has left the group", std::nullopt), "", true});
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

std::string AgentCore::kind_of_connection(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  return found == workers_.end() ? std::string() : std::string(found->second->kind());
}

// ---- calling ------------------------------------------------------------------------------------

void AgentCore::submit(std::string_view to, Message request, std::optional<Duration> timeout,
                       std::unique_ptr<CallSink> sink) {
  std::shared_ptr<Outgoing> outgoing;
  {
    const std::lock_guard lock(mutex_);
    const auto found = workers_.find(to);
    if (found != workers_.end()) outgoing = found->second;
  }
  if (!outgoing) {
    return calls_.refuse(std::move(sink), {CallErrorKind::Rejected,
                                           unknown_destination_name_text(self(), to), "", false});
  }
  const TimePoint deadline = timeout ? clock_.now() + *timeout : kNever;
  outgoing->submit(std::move(request), timeout.value_or(Duration::zero()), deadline,
                   std::move(sink));
}

// ---- from time to time --------------------------------------------------------------------------

void AgentCore::look_after_all() {
  const TimePoint now = loop_.now();
  tick_.set(now + options_.sign_of_life_interval);
  LargeMemory::of_process().trim(clock_.now());
  std::vector<std::shared_ptr<Outgoing>> outgoing;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, one] : workers_) outgoing.push_back(one);
  }
  for (const auto& one : outgoing) one->look_after(now, options_.silence_max);
  for (const auto& [number, one] : incoming_) one->look_after(now, options_.silence_max);
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
  std::map<std::string, std::shared_ptr<Outgoing>, std::less<>> workers;
  {
    const std::lock_guard lock(mutex_);
    workers.swap(workers_);
    names_.clear();
  }
  for (const auto& [name, outgoing] : workers) outgoing->close(reason);
  group_.reset();  // now nobody asks it any more where a worker is
  calls_.close(reason);
  incoming_.clear();
  expiry_.cancel();
  tick_.cancel();
}

std::map<std::string, std::string> AgentCore::metrics() const {
  std::map<std::string, std::string> figures;
  figures["agent.client_active_calls"] = fmt::to_string(calls_.active_count());
  figures["agent.server_active_calls"] = fmt::to_string(reception_->active_count.load());
  const std::lock_guard lock(mutex_);
  for (const auto& [name, outgoing] : workers_) {
    if (outgoing->kind().empty() && outgoing->sent_bytes() == 0) continue;
    figures["peer." + name + ".sent_bytes"] = fmt::to_string(outgoing->sent_bytes());
    figures["peer." + name + ".received_bytes"] = fmt::to_string(outgoing->received_bytes());
  }
  return figures;
}

}  // namespace muster::rpc
