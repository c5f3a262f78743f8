// Freight: what a message carries that is more than bytes, that is, references to values that live
// on some worker.
//
// The codec of such a thing asks the Writer or the Reader for the freight of its message. A value
// that is written or read outside of a call has none, and then cannot be.
#pragma once

#include "muster/rpc/call_error.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace muster::rpc {

class Object;
class Pool;
class References;
struct Request;

// A connection to an agent, by which requests come and responses go; no other one of that agent
// ever has the same.
using ConnectionNumber = std::uint32_t;
inline constexpr ConnectionNumber kNoConnection = 0;

class Freight {
 public:
  // `references`: those of the agent that sends or receives; nothing if it knows none.
  explicit Freight(References* references) : references_(references) {}
  virtual ~Freight() = default;

  References* references() const { return references_; }
  // The worker that gets a message that is written.
  virtual CallResult<std::int16_t> peer() {
    return call_failed({CallErrorKind::Rejected, "this message is only read", "", false});
  }
  // By which a response goes that is written. What becomes of a request is known in other ways.
  virtual ConnectionNumber connection() const { return kNoConnection; }
  // Of a message that is read. Runs what could not go on before (see References::when_confirmed) on
  // a thread that runs functions; false, and nothing is run, once those are stopped.
  virtual bool resume(std::function<void()> work) {
    work();
    return true;
  }
  // It stands in line for one of them until `run_here`.
  virtual void stand_in_line() {}
  // Those threads, which are there for as long as the message is served.
  virtual Pool* pool() { return nullptr; }
  // Runs it in this thread, as a part of the function that the message calls. Drops it if no
  // function is begun any more.
  virtual void run_here(const std::function<void()>& work) { work(); }

  // By number. Written: what was given away with this message. Read: what the message can be used
  // only after.
  std::vector<std::uint64_t> forks;

 private:
  References* references_;
};

// The references of one agent, as those see them who make and serve calls. Any thread.
class References {
 public:
  virtual ~References() = default;

  // What became of a message that was to carry these: it was never sent, or nobody knows whether it
  // arrived.
  virtual void not_sent(const std::vector<std::uint64_t>& forks) = 0;
  virtual void maybe_sent(const std::vector<std::uint64_t>& forks) = 0;
  // Calls `go_on` when all of them may be used, or with the error of one that never can be: in this
  // call, or later in a thread that must not be held up.
  virtual void when_confirmed(const std::vector<std::uint64_t>& forks,
                              std::function<void(const CallError*)> go_on) = 0;

  // A call came whose result stays here, as `rref`. An error if it must not be run; it is then
  // answered with that. Otherwise `end_creation` follows.
  virtual CallResult<> begin_creation(std::uint64_t rref, std::uint64_t fork,
                                      std::int16_t from) = 0;
  virtual void end_creation(std::uint64_t rref, CallResult<std::shared_ptr<Object>> outcome) = 0;

  // Serves a request about references; false if it is about something else.
  virtual bool serve(Request& request) = 0;

  virtual void worker_lost(std::int16_t worker, const std::string& reason) = 0;
  // As RequestHandler::on_worker_heard and on_connection_lost.
  virtual void worker_heard(std::int16_t worker) = 0;
  virtual void connection_lost(ConnectionNumber connection) = 0;
  // As RequestHandler::on_worker_joined.
  virtual void worker_joined(std::int16_t worker, std::uint64_t incarnation) = 0;
};

}  // namespace muster::rpc
