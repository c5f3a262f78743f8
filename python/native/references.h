// References as Python sees them, and what their parts share.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/call.h"
#include "muster/rpc/object.h"
#include "muster/rref/keeper.h"
#include "python/native/futures.h"
#include "python/native/interpreter.h"
#include "python/native/typed_values.h"

#include <memory>
#include <optional>
#include <utility>

namespace muster::python {

// The types of values that Python holds, as workers compare them: those that Python functions made,
// and those that functions made that Python calls native (operators of PyTorch and the like).
inline constexpr const char* kPythonType = "python";
inline constexpr const char* kScriptType = "python script";

struct Reference {
  explicit Reference(std::shared_ptr<rref::Handle> what) : handle(std::move(what)) {}
  std::shared_ptr<rref::Handle> handle;
  PlannedType type{};  // of a value of a procedure, where it is known
};

// A value that Python holds for others.
class HeldObject : public rpc::Object {
 public:
  bool is_slow_to_write() const override { return true; }
  // Requires the lock.
  virtual py::object object() const = 0;
};

// Require the interpreter's lock.
std::shared_ptr<rpc::Agent> agent_or_raise();
// Likewise, with the text that calls have.
std::shared_ptr<rpc::Agent> agent_for_call();
std::shared_ptr<rpc::Object> kept_object(py::object value);
// The value, or raises what was raised instead.
py::object value_of(const rpc::Object& object);
// Whom a program means by a name, an id or a WorkerInfo.
rpc::Destination destination_of(const py::handle& to, std::optional<double> timeout);

// `as`: what the answer is, if it is no pickle.
std::unique_ptr<rpc::CallSink> answer_sink(AnswerPromise promise, std::shared_ptr<rpc::Agent> agent,
                                           rpc::MessageType expected, PlannedType as = {});

}  // namespace muster::python
