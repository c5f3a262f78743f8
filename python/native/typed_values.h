// Objects of Python as values of C++ types, and back: docs/python-cpp.md has the table.
//
// Everything here requires the interpreter's lock.
#pragma once

#include "muster/rpc/value.h"
#include "python/native/interpreter.h"
#include "python/native/signature.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::python {

// How deep values may be nested; the stack of a thread is small.
inline constexpr std::size_t kValueDepthMax = 1000;

// What Python has for one structure of a signature. Without either it is a tuple.
struct Form {
  Ref names;  // of the fields, a tuple of str
  Ref make;   // called with the fields; nothing: a dict
};

// A signature, and what Python has for its structures.
struct Plan {
  explicit Plan(std::shared_ptr<const Signature> what)
      : signature(std::move(what)), forms(signature->structure_count()) {}

  std::shared_ptr<const Signature> signature;
  std::vector<Form> forms;  // by the number of the structure
};

// One of its types.
struct PlannedType {
  std::shared_ptr<const Plan> plan;
  const Type* type = nullptr;
};

// What is asked of the Python sources: see python/muster/rpc/procedures.py.
struct TypeHooks {
  py::object rref_class;
  py::object rref_of;            // (native reference) -> RRef
  py::object alternative_class;  // of a value with the index of its type
  py::object numbers;            // (memory, name of the type) -> a row of numbers
  py::object array_of;           // (object) -> what has a buffer with the same numbers, or None
  py::object describe_tensor;    // (object) -> (buffer, dtype, shape, strides, offset), or None
  py::object make_tensor;        // (memory, dtype, shape, strides) -> tensor
};
TypeHooks& type_hooks();

// Raises TypeError, OverflowError or ValueError, with `what` and the place inside it, for an object
// that is no value of the type. Large numbers are lent, not copied.
void write_value(rpc::Writer& writer, const PlannedType& as, py::handle value,
                 std::string_view what);
// What is wrong with the bytes fails the reader; the object is of no use then. Raises only what the
// class of a structure raises.
py::object read_value(rpc::Reader& reader, const PlannedType& as);

}  // namespace muster::python
