// Rows of numbers and tensors that objects of Python have, for C++ to use where they are.
//
// Everything here requires the interpreter's lock.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/buffer.h"
#include "muster/rpc/tensor.h"
#include "python/native/interpreter.h"
#include "python/native/signature.h"

#include <optional>

namespace muster::python {

// The numbers of an object that has a buffer, in one piece; copied only if they are not. Nothing if
// they are of another type, or not in a row.
std::optional<rpc::Buffer> numbers_in(py::handle object, TypeKind kind);

// What TypeHooks::describe_tensor says, and what TypeHooks::make_tensor makes of a tensor.
Result<rpc::Tensor> tensor_of(const py::object& described);
py::object object_of(const rpc::Tensor& tensor);

}  // namespace muster::python
