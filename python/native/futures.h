// Futures as Python sees them: of calls, and made by programs.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/future.h"
#include "python/native/interpreter.h"
#include "python/native/pickles.h"
#include "python/native/typed_values.h"

#include <memory>
#include <mutex>

namespace muster::python {

// How something ended: a value, an exception, or a message that nobody has looked into yet. It is
// unpickled by the thread that asks for the value, which has the interpreter's lock anyway.
class Answer {
 public:
  static std::shared_ptr<Answer> of_value(py::object value);
  static std::shared_ptr<Answer> of_exception(py::object exception);
  // `agent`: that the message came to. `as`: what it is, if it is no pickle.
  static std::shared_ptr<Answer> of_message(rpc::Message message, std::shared_ptr<rpc::Agent> agent,
                                            PlannedType as = {});

  // The value, or raises. Requires the lock.
  py::object value();
  // For the garbage collector.
  int traverse(visitproc visit, void* arg) const;
  // Whether the message has references in it, which must be looked at whatever becomes of the rest.
  bool has_references() const { return has_references_; }

 private:
  void unpickle();
  void decode();

  rpc::Message message_;
  std::shared_ptr<rpc::Agent> agent_;
  PlannedType as_;
  bool has_message_ = false;
  bool has_references_ = false;
  Ref value_;
  Ref exception_;  // an exception, or an error record of another worker
};

using AnswerFuture = rpc::Future<std::shared_ptr<Answer>>;
using AnswerPromise = rpc::Promise<std::shared_ptr<Answer>>;

class Future {
 public:
  // One that the program completes.
  Future();
  explicit Future(AnswerFuture future) : future_(std::move(future)) {}

  bool done() const { return future_.done(); }
  py::object wait() const;
  // Nothing if it is not done then.
  bool wait_for(double seconds) const;
  // Of one that is done.
  py::object value() const;
  void set(std::shared_ptr<Answer> answer) const;
  // A future of what `callback` makes of `self`, which is this one as the program has it; of
  // another one with the same outcome, if that is gone by then.
  Future then(py::object callback, const py::object& self) const;
  void add_done_callback(py::object callback, const py::object& self) const;

  // For the garbage collector: an exception often refers to the frames of those who have the
  // future. What others have, too, is not looked at.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  std::shared_ptr<AnswerPromise> promise_;  // nothing: of a call
  AnswerFuture future_;
};

}  // namespace muster::python
