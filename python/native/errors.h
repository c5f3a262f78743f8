// Errors of the C++ libraries as exceptions of Python.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/call_error.h"

#include <string>

namespace muster::python {

// RuntimeError with the rendered text. Requires the interpreter's lock.
[[noreturn]] void raise(const rpc::CallError& error);
// That of muster.errors for its kind: a RuntimeError, and what else fits.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise_runtime_error(const std::string& text);

}  // namespace muster::python
