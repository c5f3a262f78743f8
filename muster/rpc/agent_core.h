// AgentCore: what an agent does on its loop, whatever loop and network that is. It knows the other
// workers, sends them calls, ends those whose time is over, hands on what they ask, and looks after
// the connections.
//
// NetworkAgent gives it a thread, sockets and shared memory; tests give it a simulated host. Owned
// by the agent. On the loop's thread, but for what is said to be for any.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/calls.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/faults.h"
#include "muster/rpc/group.h"
#include "muster/rpc/incoming.h"
#include "muster/rpc/outgoing.h"
#include "muster/store/store.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::rpc {

struct CoreOptions {
  explicit CoreOptions(WorkerInfo who) : self(std::move(who)) {}

  WorkerInfo self;
  std::uint64_t incarnation = 0;
  // A connection on which nothing was sent for so long carries a sign of life; one on which nothing
  // was heard for `silence_max` is given up.
  Duration sign_of_life_interval = std::chrono::seconds(5);
  Duration silence_max = std::chrono::seconds(10);
  Duration connect_timeout = std::chrono::seconds(10);
  LinkOptions link;
  // Bytes to that worker, by the best way there is. Closed if its host says that nobody listens
  // there.
  std::function<Task<Result<std::unique_ptr<Stream>>>(Member)> open_stream;
  std::shared_ptr<DeviceDirectory> devices;
  std::shared_ptr<Faults> faults;  // nothing goes wrong on purpose if there are none
  // Whether the calling thread may wait; nothing: none may.
  std::function<bool()> may_wait{};
  std::int64_t strangers_max = kStrangersMax;
  // Lets whoever listens on the network accept, or makes what comes wait; nothing: it always does.
  std::function<void(bool)> set_accepting{};
};

// How it joins its group.
struct GroupEntry {
  explicit GroupEntry(Member me) : self(std::move(me)) {}

  Member self;
  std::optional<std::int64_t> world_size;  // nothing: workers come and go
  GroupOptions options;
  TimePoint deadline = kNever;
};

class AgentCore final : private GroupEvents {
 public:
  // `clock` is that of deadlines, which any thread may set. Requires: `loop`, `clock` and `handler`
  // outlive it.
  AgentCore(CoreOptions options, Loop& loop, const Clock& clock, RequestHandler& handler);
  // Requires: `close` was called, unless there was nothing to close.
  ~AgentCore() override;

  // Any thread.
  const WorkerInfo& self() const { return options_.self; }
  // Of this worker, as the others know it: a new one after it was taken out of a dynamic group and
  // has come back.
  std::uint64_t incarnation() const { return reception_->incarnation; }
  CallResult<WorkerInfo> find(std::string_view name) const;
  CallResult<WorkerInfo> find(std::int64_t id) const;
  std::vector<WorkerInfo> workers() const;
  std::uint64_t process_of(std::string_view name) const;
  // As Agent::submit; `timeout` as call_timeout made it, nothing: never.
  void submit(std::string_view to, Message request, std::optional<Duration> timeout,
              std::unique_ptr<CallSink> sink);
  Calls& calls() { return calls_; }
  const DeviceDirectory& devices() const { return *options_.devices; }
  std::string kind_of_connection(std::string_view name) const;
  std::map<std::string, std::string> metrics() const;

  // From now on connections are looked after.
  void begin();
  // Joins the group that is in `store`. Requires: `store` is there until `close`.
  Task<Result<>> join(store::Store& store, GroupEntry entry);
  // A connection that another worker opened; `where` it comes from, for people.
  void accept(std::unique_ptr<Stream> stream, std::string where);
  // Nothing before `join`.
  Group* group() { return group_.get(); }
  // How many connections other workers have to this one.
  std::size_t peer_count() const;
  // Whether answers are on their way.
  bool has_output() const;

  // The group is over: who goes from now on is done, and nobody looks for it.
  void expect_departures() { expects_departures_ = true; }
  // Nothing is answered any more.
  void stop_answering();
  // Ends all: connections close, calls fail with `reason`.
  void close(const CallError& reason);

 private:
  void on_members(const std::vector<Member>& members) override;
  Task<Result<>> before_return() override;
  // So that `mine` is the secret of the job, or that of whoever was first.
  Task<Result<>> agree_on_job(std::string mine);
  Task<Result<Member>> look_up(std::string name);
  // Of a static group, where nobody else tells: the last connection of a worker is gone; a worker
  // is dead; and whether one that connects is let in, see Reception.
  void look_if_cut_off(const std::string& name);
  void worker_died(const Member& member, const std::string& text);
  Task<std::string> admit(Hello hello);
  void incoming_ended(ConnectionNumber number);
  // Nobody else is accepted while there are too many strangers; those who are silent must go soon.
  void strangers_changed();
  void make_room();
  std::shared_ptr<Outgoing> outgoing_to(std::string_view name) const;
  // To the handler.
  void tell_lost(const WorkerInfo& worker, const std::string& text);
  void tell_replaced(const Outgoing& worker);
  void tell_joined(std::vector<Member> members);
  void look_after_all();
  void set_tick();

  // A call on its way to one worker.
  struct Departure;
  class RelaySink;
  // On purpose. Whether the call is dealt with.
  bool go_wrong(Departure& call);
  void send_later(Departure call, Duration wait);
  void later(Duration wait, std::function<void()> work);
  Task<void> run_later(TimePoint when, std::function<void()> work);

  const CoreOptions options_;
  Loop& loop_;
  const Clock& clock_;
  // What was posted looks here whether there is still anybody to do it for.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Calls calls_;
  Surroundings around_;
  std::shared_ptr<Reception> reception_;
  std::atomic<PeerId> next_connection_ = 1;

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::shared_ptr<Outgoing>, std::less<>> workers_;
  std::map<std::int64_t, std::string> names_;

  // On the loop.
  std::unordered_map<ConnectionNumber, std::unique_ptr<Incoming>> incoming_;
  ConnectionNumber next_incoming_ = kNoConnection + 1;
  store::Store* store_ = nullptr;  // since `join`
  std::unique_ptr<Group> group_;
  std::string address_;  // by which this worker knows itself among the members
  Timer expiry_;
  Timer tick_;
  Timer make_room_;
  TimePoint warned_at_;  // that there are too many strangers
  bool has_room_ = true;
  bool is_static_ = false;
  bool expects_departures_ = false;
  TaskScope late_;  // what is sent later, on purpose
};

}  // namespace muster::rpc
