// What the native module asks of the Python sources: see python/muster/rpc/internal.py, which says
// what each of them does.
#pragma once

#include "python/native/interpreter.h"

namespace muster::python {

struct Hooks {
  py::object dumps;         // (object) -> (bytes, list of buffers)
  py::object dumps_result;  // likewise, for what a function has made; (…, whether it is an error)
  py::object loads;         // (bytes, list of buffers) -> object
  py::object load_call;     // (bytes, list of buffers) -> call
  py::object run;           // (call) -> result
  py::object run_async;     // (call, completion)
  py::object raise_error;   // (error): raises what a function raised somewhere else
  py::object error_class;   // of such errors
  py::object await_future;  // (native future) -> iterator
};

// Requires the interpreter's lock. Set by muster.rpc when that is imported, which this does.
Hooks& hooks();

}  // namespace muster::python
