// Keeper: the remote references of one agent.
//
// The Ledger decides; here is the lock around it, and here its decisions are carried out: control
// messages go out, values are kept and released, and whoever waits for a reference goes on. Nothing
// of a program (a callback, a destructor of a value) runs under the lock.
//
// A Handle is what a program holds. Any thread.
#pragma once

#include "muster/base/clock.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/call.h"
#include "muster/rpc/freight.h"
#include "muster/rpc/future.h"
#include "muster/rpc/object.h"
#include "muster/rref/ids.h"
#include "muster/rref/ledger.h"
#include "muster/rref/owned.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace muster::rref {

class Keeper;

// One reference as a program holds it; the last copy gone, it is released. A reference to what is
// owned here has `owned` and no fork.
class Handle {
 public:
  Handle(std::shared_ptr<Keeper> keeper, std::shared_ptr<Owned> owned);
  Handle(std::shared_ptr<Keeper> keeper, const ForkData& data);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Keeper& keeper() const { return *keeper_; }
  const std::shared_ptr<Owned>& owned() const { return owned_; }
  bool is_owner() const { return owned_ != nullptr; }
  GlobalId rref() const { return data_.rref; }
  GlobalId fork() const { return data_.fork; }
  WorkerId owner() const { return data_.owner; }
  const std::string& type() const { return data_.type; }
  // As programs print it.
  std::string text() const;

  // How the call that makes the value went; nothing for a reference that was received, or of a
  // value that was there before.
  std::optional<rpc::Future<>> creation() const;

 private:
  friend class Keeper;
  std::shared_ptr<Keeper> keeper_;
  std::shared_ptr<Owned> owned_;
  ForkData data_;
  std::optional<rpc::Future<>> creation_;  // guarded by the keeper's mutex once others have this
};

// What `remote` asks for.
struct RemoteCall {
  const rpc::Destination& to;
  const std::string& type;  // of the result
  // Makes the request behind this head. What it throws is thrown by `remote`, and nothing is left
  // of the reference.
  std::function<Result<rpc::Message>(std::string head, rpc::internal::Route& route)> encode;
};

class Keeper final : public rpc::References, public std::enable_shared_from_this<Keeper> {
 public:
  // Requires: `ids` outlives it.
  Keeper(WorkerId self, IdSource& ids);
  ~Keeper() override;

  // The keeper of an agent; nothing if it keeps no references.
  static std::shared_ptr<Keeper> of(const rpc::Agent& agent);

  // Sends with this agent from now on. The agent has set_references to this one.
  void attach(std::shared_ptr<rpc::Agent> agent);

  // Nothing once it was stopped.
  std::shared_ptr<rpc::Agent> agent() const;

  // ---- references
  rpc::CallResult<std::shared_ptr<Handle>> remote(const RemoteCall& call);
  std::shared_ptr<Handle> make_local(std::shared_ptr<rpc::Object> value);
  // The value of another worker, as it is now. `type`: of the request, by the language that made
  // the value.
  void fetch(rpc::Agent& with, const Handle& handle, std::optional<double> timeout_seconds,
             std::unique_ptr<rpc::CallSink> sink,
             rpc::MessageType type = rpc::MessageType::ScriptRrefFetchCall);
  // Why it cannot be used for that, e.g. "call to_here() on it"; nothing if it can.
  std::optional<rpc::CallError> use_error(const Handle& handle, std::string_view what) const;
  bool is_confirmed(const Handle& handle) const;
  // The worker that has the value. An error once it has left, or RPC has ended.
  rpc::CallResult<rpc::WorkerInfo> owner_of(const Handle& handle) const;
  WorkerId self() const { return self_; }

  // ---- in messages
  // A reference is written into a message, for its peer.
  Result<std::string> give(const Handle& handle, rpc::Freight& freight);
  // And read from one.
  Result<std::shared_ptr<Handle>> take(std::string_view bytes, const std::string& type,
                                       rpc::Freight& freight);

  void not_sent(const std::vector<std::uint64_t>& forks) override;
  void maybe_sent(const std::vector<std::uint64_t>& forks) override;
  void when_confirmed(const std::vector<std::uint64_t>& forks,
                      std::function<void(const rpc::CallError*)> go_on) override;
  rpc::CallResult<> begin_creation(std::uint64_t rref, std::uint64_t fork,
                                   std::int16_t from) override;
  void end_creation(std::uint64_t rref,
                    rpc::CallResult<std::shared_ptr<rpc::Object>> outcome) override;
  bool serve(rpc::Request& request) override;
  void worker_lost(std::int16_t worker, const std::string& reason) override;
  void worker_joined(std::int16_t worker, std::uint64_t incarnation) override;
  void worker_heard(std::int16_t worker) override;
  void connection_lost(rpc::ConnectionNumber connection) override;

  // ---- the end
  // All workers have nothing left to do: ends the references of this one, and waits until all
  // others have ended theirs to what is owned here; each of the two steps for as long as
  // `patience`. What is left is logged. May be called twice.
  void clean_up(Duration patience);
  // This worker leaves, and others stay: ends the references of this one and waits until their
  // owners know, each for as long as `patience`. What others refer to here is theirs to give up.
  void end_users(Duration patience);
  // Nothing is sent any more. A line for each reference that another worker still has.
  std::string stop();

  std::map<std::string, std::string> debug_info() const;
  Ledger::Counters counters() const;
  // Until the counters are so; false at the deadline.
  bool wait_until(TimePoint deadline, const std::function<bool(const Ledger::Counters&)>& holds);

 private:
  using GoOn = std::function<void(const rpc::CallError*)>;
  class CreationSink;

  void settle_and_end_users(Duration patience);
  // Carries out what the ledger has decided.
  void carry_out(Effects effects);
  void send(const Effects::Send& send);
  // Tells the ledger of an event, and carries out what follows.
  template <typename Event>
  void change(Event event);
  std::shared_ptr<Owned> owned_entry(GlobalId rref, const std::string& type);
  void creation_ended(const std::shared_ptr<Owned>& self_owned, GlobalId rref, GlobalId fork,
                      const std::optional<rpc::CallError>& error);
  void creation_succeeded(const std::weak_ptr<Handle>& weak);
  void dropped(GlobalId fork);
  // Answers a request that cannot be served.
  void refuse(rpc::Request& request, std::string_view why) const;
  void serve_control(rpc::Request& request);
  void serve_fetch(rpc::Request& request);
  void answer_fetch(GlobalId rref, rpc::Request request);
  void respond_with(const rpc::Object& object, rpc::Request& request);

  friend class Handle;

  const WorkerId self_;
  IdSource& ids_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Ledger ledger_;
  std::shared_ptr<rpc::Agent> agent_;
  std::vector<Effects::Send> unsent_;  // until there is an agent
  std::unordered_map<GlobalId, std::shared_ptr<Owned>> owned_;
  std::unordered_map<GlobalId, std::vector<GoOn>> settling_;  // by fork
  std::unordered_map<GlobalId, std::vector<GoOn>> creating_;  // fetches, by reference
};

template <typename Event>
void Keeper::change(Event event) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    event(effects);
    changed_.notify_all();
  }
  carry_out(std::move(effects));
}

}  // namespace muster::rref
