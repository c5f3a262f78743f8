// Which type an object of Python is meant as, where a signature leaves that open.
//
// Everything here requires the interpreter's lock.
#pragma once

#include "python/native/typed_values.h"

#include <cstddef>
#include <optional>

namespace muster::python {

// Python's own, or NumPy's.
bool is_bool(py::handle value);

struct Fields {
  py::tuple values;
  py::object names = py::none();  // a tuple, if the object has names for them
};
// The fields of an object that stands for a structure: of a tuple or a list by their places, of a
// dict or an object by their names. Nothing if it is something else. Raises if one is missing.
std::optional<Fields> fields_of(const Plan& plan, const Type& structure, py::handle value);

// The first alternative of a variant that a value is one of: as it is (3 is an i64, no f64) or else
// as what it can be made into (3 is an f64, too).
std::optional<std::size_t> alternative_of(const Plan& plan, const Type& variant, py::handle value);

}  // namespace muster::python
