#include "muster/rpc/network_agent.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/net/tcp.h"
#include "muster/rpc/large_memory.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <utility>

namespace muster::rpc {
namespace {

// How long answers that are on their way may take when the agent stops.
constexpr Duration kDrainMax = std::chrono::seconds(2);
constexpr Duration kLeaveMax = std::chrono::seconds(5);
constexpr std::string_view kComponent = "rpc";

}  // namespace

NetworkAgent::NetworkAgent(AgentOptions options, RequestHandler& handler)
    : options_(std::move(options)),
      member_{options_.self, Random::from_system().next(), "", "", options_.devices},
      devices_(std::make_shared<DeviceDirectory>(options_.self.name(), options_.device_support)),
      timeout_(options_.timeout.count()),
      callbacks_("rpc-callback", options_.callback_thread_count),
      calls_([this] { loop_.post([this] { expiry_.set(loop_.now()); }); }),
      reception_(std::make_shared<Reception>(options_.self)),
      expiry_(loop_, [this] { expiry_.set(calls_.expire(SystemClock().now())); }),
      tick_(loop_, [this] { look_after_all(); }),
      retries_(std::make_unique<Retries>(*this, loop_)) {
  LinkOptions link;
  link.limits = options_.limits;
  link.queue_bytes_max = options_.queue_bytes_max;
  if (options_.spins) link.hot = &hot_;
  reception_->loop = &loop_;
  reception_->handler = &handler;
  reception_->incarnation = member_.incarnation;
  reception_->link = link;
  reception_->devices = devices_;
  around_.loop = &loop_;
  around_.calls = &calls_;
  around_.link = link;
  around_.connect_timeout = options_.connect_timeout;
  around_.next_connection = [this] { return next_connection_++; };
  around_.open_stream = [this](Member member) { return open_stream(std::move(member)); };
  around_.look_up = [this](std::string name) { return look_up(std::move(name)); };
  around_.suspect = [this](const Member& member) {
    if (group_) group_->suspect(member);
  };
}

NetworkAgent::~NetworkAgent() {
  shutdown();
  // Other threads may have left something on their way out. It uses members, so now.
  loop_.run_what_is_left();
}

Result<std::shared_ptr<NetworkAgent>> NetworkAgent::start(AgentOptions options,
                                                          OpenStore open_store,
                                                          RequestHandler& handler,
                                                          Duration patience) {
  auto agent = std::make_shared<NetworkAgent>(std::move(options), handler);
  agent->is_running_ = true;
  agent->thread_ = std::thread([raw = agent.get()] {
    ::prctl(PR_SET_NAME, "rpc-io", 0, 0, 0);
    raw->loop_.run();
  });
  agent->io_thread_ = agent->thread_.get_id();
  std::promise<Result<>> up;
  std::future<Result<>> outcome = up.get_future();
  const TimePoint deadline = SystemClock().now() + patience;
  agent->on_loop([&] { agent->tasks_.start(agent->come_up(std::move(open_store), deadline, up)); });
  if (auto came = outcome.get(); !came) {
    agent->shutdown();
    return fail(came.error());
  }
  return agent;
}

Task<void> NetworkAgent::come_up(OpenStore open_store, TimePoint deadline,
                                 std::promise<Result<>>& up) {
  Result<> outcome = co_await join(std::move(open_store), deadline);
  up.set_value(std::move(outcome));
}

Task<Result<>> NetworkAgent::join(OpenStore open_store, TimePoint deadline) {
  if (auto listening = listen(); !listening) co_return listening;
  if (options_.spins) {
    loop_.look_before_sleep([this] { return hot_.poll(); },
                            [this] { return hot_.prepare_to_sleep(); });
  }
  tick_.set(loop_.now() + options_.sign_of_life_interval);
  auto opened = co_await open_store(loop_);
  if (!opened) co_return fail(opened.error());
  store_ = std::move(*opened);
  // A secret that only those know who can read the store; the first to come makes it.
  Random random = Random::from_system();
  std::string secret = random_id(random);
  std::string nothing;
  auto agreed = co_await store_->compare_set("job", std::move(nothing), std::move(secret));
  if (!agreed) co_return fail(agreed.error());
  around_.job = reception_->job = agreed->value;
  Result<std::unique_ptr<Group>> group;
  if (options_.world_size) {
    const std::int64_t size = *options_.world_size;
    group = co_await join_static_group(loop_, *store_, member_, size, *this, deadline);
  } else {
    const GroupOptions with = options_.group;
    group = co_await join_dynamic_group(loop_, *store_, member_, with, *this, deadline);
  }
  if (!group) co_return fail(group.error());
  group_ = std::move(*group);
  co_return Result<>();
}

Result<> NetworkAgent::listen() {
  auto listener = net::listen_for_sockets(loop_, {options_.host, 0}, [this](Fd socket) {
    accept(std::make_unique<SocketStream>(std::move(socket)), "another machine");
  });
  if (!listener) return fail(listener.error());
  listener_ = std::move(*listener);
  member_.address = net::describe({options_.host, listener_->port()});
  if (!options_.uses_shared_memory) return {};
  Random random = Random::from_system();
  auto local = LocalListener::create(loop_, random, [this](std::unique_ptr<Stream> stream) {
    accept(std::move(stream), "this machine");
  });
  if (!local) {
    log::info(kComponent, "{} offers no shared memory: {}", self().describe(),
              local.error().message);
    return {};
  }
  local_listener_ = std::move(*local);
  member_.local_address = local_listener_->address();
  return {};
}

void NetworkAgent::accept(std::unique_ptr<Stream> stream, std::string where) {
  const std::uint64_t number = next_incoming_++;
  incoming_.emplace(number,
                    std::make_unique<Incoming>(reception_, std::move(stream), std::move(where),
                                               [this, number] { incoming_.erase(number); }));
}

Task<Result<std::unique_ptr<Stream>>> NetworkAgent::open_stream(Member member) {
  if (member.incarnation == member_.incarnation) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      co_return fail(ErrorKind::Unavailable, describe_errno(errno));
    }
    accept(std::make_unique<SocketStream>(Fd(ends[1])), "itself");
    std::unique_ptr<Stream> stream = std::make_unique<SocketStream>(Fd(ends[0]));
    co_return stream;
  }
  if (options_.uses_shared_memory && !member.local_address.empty()) {
    auto met = co_await meet(loop_, member.local_address);
    if (met) co_return met;
    log::debug(kComponent, "{} reaches {} by TCP: {}", self().describe(), member.info.describe(),
               met.error().message);
  }
  auto endpoint = net::parse_endpoint(member.address, 0);
  if (!endpoint) co_return fail(endpoint.error());
  auto socket = co_await net::connect_socket(loop_, *endpoint);
  if (!socket) co_return fail(socket.error());
  std::unique_ptr<Stream> stream = std::make_unique<SocketStream>(std::move(*socket));
  co_return stream;
}

Task<Result<Member>> NetworkAgent::look_up(std::string name) {
  if (!group_) co_return fail(ErrorKind::Unavailable, "there is no group yet");
  auto found = co_await group_->look_up(std::move(name));
  co_return found;
}

// ---- who is there -------------------------------------------------------------------------------

void NetworkAgent::on_members(const std::vector<Member>& members) {
  devices_->update(device_rows(members));
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
        outgoing = std::make_shared<Outgoing>(around_, options_.self, member_.incarnation, member);
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

CallResult<WorkerInfo> NetworkAgent::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  if (found != workers_.end()) return found->second->member().info;
  return call_failed(
      {CallErrorKind::Rejected, unknown_destination_name_text(self(), name), "", false});
}

CallResult<WorkerInfo> NetworkAgent::find(std::int64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(id);
  if (found != names_.end()) return workers_.at(found->second)->member().info;
  return call_failed({CallErrorKind::Rejected, unknown_destination_id_text(self(), id), "", false});
}

std::vector<WorkerInfo> NetworkAgent::workers() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerInfo> infos;
  for (const auto& [id, name] : names_) infos.push_back(workers_.at(name)->member().info);
  return infos;
}

std::string NetworkAgent::kind_of_connection(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = workers_.find(name);
  return found == workers_.end() ? std::string() : std::string(found->second->kind());
}

// ---- calling ------------------------------------------------------------------------------------

void NetworkAgent::submit(std::string_view to, Message request,
                          std::optional<double> timeout_seconds, std::unique_ptr<CallSink> sink) {
  const auto refuse = [&](std::string text) {
    calls_.refuse(std::move(sink), {CallErrorKind::Rejected, std::move(text), "", false});
  };
  if (!is_request(request.type)) return refuse(requests_only_text());
  if (!is_running_) return refuse(not_running_text(self(), request.type));
  const auto timeout = call_timeout(timeout_seconds, this->timeout());
  if (!timeout) return refuse(timeout.error().message);
  std::shared_ptr<Outgoing> outgoing;
  {
    const std::lock_guard lock(mutex_);
    const auto found = workers_.find(to);
    if (found != workers_.end()) outgoing = found->second;
  }
  if (!outgoing) return refuse(unknown_destination_name_text(self(), to));
  const TimePoint deadline = *timeout ? SystemClock().now() + **timeout : kNever;
  outgoing->submit(std::move(request), timeout->value_or(Duration::zero()), deadline,
                   std::move(sink));
}

Future<Message> NetworkAgent::send_with_retries(std::string_view to, Message request,
                                                RetryOptions options) {
  return retries_->send(std::string(to), std::move(request), options);
}

// ---- from time to time --------------------------------------------------------------------------

void NetworkAgent::look_after_all() {
  const TimePoint now = loop_.now();
  tick_.set(now + options_.sign_of_life_interval);
  LargeMemory::of_process().trim(SystemClock().now());
  std::vector<std::shared_ptr<Outgoing>> outgoing;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, one] : workers_) outgoing.push_back(one);
  }
  for (const auto& one : outgoing) one->look_after(now, options_.silence_max);
  for (const auto& [number, one] : incoming_) one->look_after(now, options_.silence_max);
}

bool NetworkAgent::has_output() const {
  for (const auto& [number, one] : incoming_) {
    if (one->queued_bytes() > 0) return true;
  }
  return false;
}

void NetworkAgent::on_loop(const std::function<void()>& work) {
  std::promise<void> done;
  loop_.post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

// ---- the end ------------------------------------------------------------------------------------

void NetworkAgent::shutdown() {
  // It would wait for itself, for ever.
  MUSTER_ASSERT(std::this_thread::get_id() != io_thread_.load());
  MUSTER_ASSERT(!callbacks_.is_current());
  std::call_once(stopped_, [this] {
    is_running_ = false;
    if (!thread_.joinable()) return;
    std::promise<void> down;
    on_loop([&] {
      tasks_.cancel_all();
      tasks_.start(go_down(down));
    });
    down.get_future().wait();
    loop_.stop();
    thread_.join();
    callbacks_.stop();
  });
}

void NetworkAgent::wait_for_peers_to_leave() {
  if (!is_running_) return;
  std::promise<void> alone;
  on_loop([&] { tasks_.start(wait_until_alone(alone)); });
  alone.get_future().wait();
}

void NetworkAgent::end_group() {
  std::promise<void> ended;
  on_loop([&] { tasks_.start(end_group_on_loop(ended)); });
  ended.get_future().wait();
}

Task<void> NetworkAgent::end_group_on_loop(std::promise<void>& ended) {
  const TimePoint patience = loop_.now() + kLeaveMax;
  if (const auto outcome = co_await group_->end(patience); !outcome) {
    log::warn(kComponent, "{} could not say that its group has ended: {}", self().describe(),
              outcome.error().message);
  }
  ended.set_value();
}

Task<void> NetworkAgent::wait_until_alone(std::promise<void>& alone) {
  const TimePoint deadline = loop_.now() + kDrainMax;
  // One connection may be from this worker to itself.
  while (incoming_.size() > 1 && loop_.now() < deadline) {
    const TimePoint soon = loop_.now() + std::chrono::milliseconds(1);
    co_await sleep_until(loop_, soon);
  }
  alone.set_value();
}

Task<void> NetworkAgent::go_down(std::promise<void>& down) {
  listener_.reset();
  local_listener_.reset();
  if (group_) {
    const TimePoint patience = loop_.now() + kLeaveMax;
    if (auto left = co_await group_->leave(patience); !left) {
      log::warn(kComponent, "{} could not leave its group: {}", self().describe(),
                left.error().message);
    }
  }
  const TimePoint drained_by = loop_.now() + kDrainMax;
  while (has_output() && loop_.now() < drained_by) {
    const TimePoint soon = loop_.now() + std::chrono::milliseconds(1);
    co_await sleep_until(loop_, soon);
  }
  reception_->is_open = false;
  retries_->stop();
  const CallError stopped{CallErrorKind::Rejected, agent_stopped_text(self()), "", true};
  std::map<std::string, std::shared_ptr<Outgoing>, std::less<>> workers;
  {
    const std::lock_guard lock(mutex_);
    workers.swap(workers_);
    names_.clear();
  }
  for (const auto& [name, outgoing] : workers) outgoing->close(stopped);
  group_.reset();  // now nobody asks it any more where a worker is
  calls_.close(stopped);
  incoming_.clear();
  store_.reset();
  expiry_.cancel();
  tick_.cancel();
  down.set_value();
}

std::map<std::string, std::string> NetworkAgent::metrics() const {
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
