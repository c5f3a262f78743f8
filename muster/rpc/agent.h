// Agent: sends requests to other workers and serves theirs.
//
// Several agents can live in one process; the one that programs mean when they name none is the
// current one.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/call_error.h"
#include "muster/rpc/calls.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/freight.h"
#include "muster/rpc/future.h"
#include "muster/rpc/message.h"
#include "muster/rpc/retry_schedule.h"
#include "muster/rpc/worker_info.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

// The duty to answer one request. Dropped unanswered, it answers that it was.
class Responder {
 public:
  class Back {
   public:
    virtual ~Back() = default;
    // The response goes out as it is; `id` is set by the implementation. At most once.
    virtual void respond(Message response) = 0;
    // Nobody waits for the answer any more.
    virtual bool is_cancelled() const = 0;
    // The devices of this worker, there for as long as this; nothing if it has none.
    virtual const DeviceDirectory* devices() const { return nullptr; }
    // By which the response goes.
    virtual ConnectionNumber connection() const { return kNoConnection; }
    // The request, of so many bytes, stands in line for a thread; and it does not any more. See
    // Backlog. Neither does anything if it is so already.
    virtual void waits(std::size_t bytes) { (void)bytes; }
    virtual void begins() {}
  };
  explicit Responder(std::unique_ptr<Back> back) : back_(std::move(back)) {}
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) noexcept = default;
  ~Responder();

  void respond(Message response);
  void fail(std::string_view type, std::string_view text);
  void waits(std::size_t bytes) {
    if (back_ != nullptr) back_->waits(bytes);
  }
  void begins() {
    if (back_ != nullptr) back_->begins();
  }
  // Answers nothing, since the connection is about to end: that tells whoever waits.
  void abandon() { back_.reset(); }
  bool is_cancelled() const { return back_ != nullptr && back_->is_cancelled(); }
  const DeviceDirectory* devices() const { return back_ == nullptr ? nullptr : back_->devices(); }
  ConnectionNumber connection() const {
    return back_ == nullptr ? kNoConnection : back_->connection();
  }

 private:
  std::unique_ptr<Back> back_;
};

struct Request {
  Message message;
  std::shared_ptr<const WorkerInfo> from;
  Responder responder;
};

// Serves requests. Called by threads that read from connections, which must not be held up, and by
// several at once.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  virtual void on_request(Request request) = 0;
  // Another worker has died or left; `reason` names it.
  virtual void on_worker_lost(const WorkerInfo& worker, const std::string& reason) {
    (void)worker, (void)reason;
  }
  // A worker has come that was not here, or not as this process; also this worker itself, as a
  // member of a group. `incarnation` tells processes with the same name apart; 0 in a group whose
  // workers do not change.
  virtual void on_worker_joined(const WorkerInfo& worker, std::uint64_t incarnation) {
    (void)worker, (void)incarnation;
  }
  // There is a new connection to or from that worker.
  virtual void on_worker_heard(const WorkerInfo& worker) { (void)worker; }
  // A connection by which requests came was lost, a while ago: what of the responses has not
  // arrived by now never will.
  virtual void on_connection_lost(ConnectionNumber connection) { (void)connection; }
};

class Agent {
 public:
  Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  virtual ~Agent() = default;

  virtual const WorkerInfo& self() const = 0;
  // By name or id; Rejected with "could not find destination" when there is none.
  virtual CallResult<WorkerInfo> find(std::string_view name) const = 0;
  virtual CallResult<WorkerInfo> find(std::int64_t id) const = 0;
  // All that are known now, by id.
  virtual std::vector<WorkerInfo> workers() const = 0;
  // Tells the process of that name from one that had the name before, or will; 0 if it is not
  // known.
  virtual std::uint64_t process_of(std::string_view name) const { return (void)name, 0; }

  // Sends a request and tells `sink` how it ended; within this call when nothing can be sent, with
  // Rejected when that is the fault of whoever calls. `timeout_seconds` as for call_timeout.
  // Waits only with a call (see is_call) for a worker for which too much waits already, until there
  // is room or its time is over; in a thread that must not wait, such a call is refused instead.
  virtual void submit(std::string_view to, Message request, std::optional<double> timeout_seconds,
                      std::unique_ptr<CallSink> sink) = 0;
  // The same with a future.
  Future<Message> send(std::string_view to, Message request,
                       std::optional<double> timeout_seconds = std::nullopt);
  // Sends again and again, as RetrySchedule decides. For requests that may be served twice.
  virtual Future<Message> send_with_retries(std::string_view to, Message request,
                                            RetryOptions options) = 0;

  // Where the tensors of a request to that worker go; `to` must be there while it is used.
  virtual DeviceRoute route_to(std::string_view to) const { return {.peer = to}; }
  // Who moves what comes back to an accelerator; nothing if nobody does.
  virtual std::shared_ptr<DeviceSupport> device_support() const { return nullptr; }
  // The accelerators of this worker, by index, as far as the device maps are known now.
  virtual std::vector<Device> devices() const { return {}; }

  // The timeout of calls that give none; zero: they never expire. For calls made afterwards.
  // Requires: what is set is not negative; default_timeout makes it so.
  virtual Duration timeout() const = 0;
  virtual void set_timeout(Duration timeout) = 0;

  // Runs the callbacks of futures.
  virtual Pool& callbacks() = 0;
  virtual Calls& calls() = 0;

  // What messages may carry; nothing: no references. Set before anybody calls with it, and there
  // until the agent is gone.
  References* references() const { return references_.get(); }
  void set_references(std::shared_ptr<References> references) {
    references_ = std::move(references);
  }

  // Ends it: connections close, calls that wait fail. Does nothing the second time.
  virtual void shutdown() = 0;

  // The figures of §"Metrics" in docs/rpc.md, by name.
  virtual std::map<std::string, std::string> metrics() const = 0;

 private:
  std::shared_ptr<References> references_;
};

// The agent that rpc::call and the like use. Setting one when there is one fails, with Conflict,
// and clearing it when there is none, with Invalid. To set none is to clear it.
Result<> set_current_agent(std::shared_ptr<Agent> agent);
Result<> clear_current_agent();
// Nothing if there is none.
std::shared_ptr<Agent> current_agent();

}  // namespace muster::rpc
