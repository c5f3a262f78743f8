#include "python/native/typed_fit.h"

#include "python/native/references.h"
#include "python/native/typed_buffers.h"

#include <cstdint>
#include <string_view>
#include <utility>

namespace muster::python {
namespace {

struct Range {
  long long least;
  unsigned long long most;
};
Range range_of(TypeKind kind) {
  const std::size_t bits = 8 * size_of(kind);
  if (kind <= TypeKind::I64) {
    const unsigned long long most = (1ULL << (bits - 1)) - 1;
    return {-static_cast<long long>(most) - 1, most};
  }
  return {0, bits == 64 ? ~0ULL : (1ULL << bits) - 1};
}

bool is_in_range(py::handle value, TypeKind kind) {
  PyObject* const index = PyNumber_Index(value.ptr());
  if (index == nullptr) {
    PyErr_Clear();
    return false;
  }
  const auto number = py::reinterpret_steal<py::object>(index);
  const Range range = range_of(kind);
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow < 0) return false;
  if (overflow == 0) {
    return wide >= range.least && (wide < 0 || static_cast<unsigned long long>(wide) <= range.most);
  }
  if (kind != TypeKind::U64) return false;
  (void)PyLong_AsUnsignedLongLong(number.ptr());
  const bool fits = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  return fits;
}

// Whether an object is a value of a type: as it is, or (`lenient`) if it can be made into one.
class Fit {
 public:
  Fit(const Plan& plan, bool lenient) : plan_(plan), lenient_(lenient) {}

  bool fits(const Type& type, py::handle value) {
    // What contains itself is no value of any type.
    if (depth_ >= kValueDepthMax) return false;
    ++depth_;
    const bool is_one = fits_one(type, value);
    --depth_;
    return is_one;
  }

 private:
  bool fits_number(TypeKind kind, PyObject* value) const {
    if (kind == TypeKind::F32 || kind == TypeKind::F64) {
      if (PyFloat_Check(value) != 0) return true;
      return lenient_ && PyNumber_Check(value) != 0 && PyComplex_Check(value) == 0;
    }
    if (kind == TypeKind::C64 || kind == TypeKind::C128) {
      return PyComplex_Check(value) != 0 || (lenient_ && PyNumber_Check(value) != 0);
    }
    if (is_bool(value) && !lenient_) return false;
    return PyIndex_Check(value) != 0 && is_in_range(value, kind);
  }
  bool fits_row(const Type& type, py::handle value) {
    const Type& element = *type.parts[0];
    const bool is_list = PyList_Check(value.ptr()) != 0;
    if (!is_list && PyObject_CheckBuffer(value.ptr()) != 0) {
      return is_bulk(element.kind) && (PyBytes_Check(value.ptr()) == 0 || lenient_) &&
             numbers_in(value, element.kind).has_value();
    }
    if (!is_list && !(lenient_ && PyTuple_Check(value.ptr()) != 0)) return false;
    if (type.kind == TypeKind::Array && py::len(value) != type.count) return false;
    return all_fit(element, value);
  }
  bool all_fit(const Type& element, py::handle values) {
    for (const py::handle each : py::tuple(py::reinterpret_borrow<py::object>(values))) {
      if (!fits(element, each)) return false;
    }
    return true;
  }
  bool fits_map(const Type& type, py::handle value) {
    if (PyDict_Check(value.ptr()) == 0) return false;
    for (const py::handle item : py::tuple(value.attr("items")())) {
      const auto pair = py::reinterpret_borrow<py::tuple>(item);
      if (!fits(*type.parts[0], pair[0]) || !fits(*type.parts[1], pair[1])) return false;
    }
    return true;
  }
  bool parts_fit(const Type& type, const py::tuple& parts) {
    if (parts.size() != type.parts.size()) return false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!fits(*type.parts[i], parts[i])) return false;
    }
    return true;
  }
  bool fits_tuple(const Type& type, py::handle value) {
    const bool is_row =
        PyTuple_Check(value.ptr()) != 0 || (lenient_ && PyList_Check(value.ptr()) != 0);
    return is_row && parts_fit(type, py::tuple(py::reinterpret_borrow<py::object>(value)));
  }
  bool fits_structure(const Type& type, py::handle value) {
    const Form& form = plan_.forms[type.count];
    if (form.make && !lenient_) {
      const py::object make = form.make.get();
      if (PyType_Check(make.ptr()) != 0) return py::isinstance(value, make);
    }
    if (PyList_Check(value.ptr()) != 0 && !lenient_) return false;
    try {
      const auto fields = fields_of(plan_, type, value);
      return fields && parts_fit(type, fields->values);
    } catch (const py::error_already_set&) {
      return false;  // a field is missing
    }
  }
  bool fits_reference(const Type& type, py::handle value) const {
    if (value.is_none()) return lenient_;
    if (!py::isinstance(value, type_hooks().rref_class)) return false;
    const py::object reference = value.attr("_reference");
    return reference.cast<const Reference&>().handle->type() ==
           plan_.signature->text_of(*type.parts[0]);
  }
  bool fits_any(const Type& type, py::handle value) {
    for (const auto& part : type.parts) {
      if (fits(*part, value)) return true;
    }
    return false;
  }

  bool fits_one(const Type& type, py::handle value) {
    PyObject* const object = value.ptr();
    switch (type.kind) {
      case TypeKind::Bool:
        return is_bool(value);
      case TypeKind::None:
        return value.is_none();
      case TypeKind::Str:
        return PyUnicode_Check(object) != 0;
      case TypeKind::Bytes:
        return PyBytes_Check(object) != 0 || PyByteArray_Check(object) != 0 ||
               (lenient_ && PyObject_CheckBuffer(object) != 0);
      case TypeKind::Tensor:
        return py::hasattr(value, "__dlpack__") || (lenient_ && value.is_none());
      case TypeKind::Vector:
      case TypeKind::Array:
        return fits_row(type, value);
      case TypeKind::Set:
        return PyAnySet_Check(object) != 0 && all_fit(*type.parts[0], value);
      case TypeKind::Map:
        return fits_map(type, value);
      case TypeKind::Optional:
        return value.is_none() || fits(*type.parts[0], value);
      case TypeKind::Variant:
        return py::isinstance(value, type_hooks().alternative_class) || fits_any(type, value);
      case TypeKind::Tuple:
        return fits_tuple(type, value);
      case TypeKind::Structure:
        return fits_structure(type, value);
      case TypeKind::Enclosing:
        return fits_structure(*type.enclosing, value);
      case TypeKind::Reference:
        return fits_reference(type, value);
      case TypeKind::Void:
      case TypeKind::Object:
      case TypeKind::Python:
        return false;
      default:
        return fits_number(type.kind, object);
    }
  }

  const Plan& plan_;
  const bool lenient_;
  std::size_t depth_ = 0;
};

py::tuple by_name(py::handle value, const py::tuple& names) {
  const bool is_dict = PyDict_Check(value.ptr()) != 0;
  py::tuple values(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    values[i] = is_dict ? py::object(value[names[i]]) : py::object(value.attr(names[i]));
  }
  return values;
}

}  // namespace

bool is_bool(py::handle value) {
  if (PyBool_Check(value.ptr()) != 0) return true;
  const std::string_view name = Py_TYPE(value.ptr())->tp_name;
  return name == "numpy.bool_" || name == "numpy.bool";
}

std::optional<Fields> fields_of(const Plan& plan, const Type& structure, py::handle value) {
  if (PyTuple_Check(value.ptr()) != 0 || PyList_Check(value.ptr()) != 0) {
    return Fields{py::tuple(py::reinterpret_borrow<py::object>(value))};
  }
  if (const Form& form = plan.forms[structure.count]; form.names) {
    const auto names = py::reinterpret_borrow<py::tuple>(form.names.get());
    if (PyDict_Check(value.ptr()) == 0 && form.make) {
      const py::object make = form.make.get();
      if (PyType_Check(make.ptr()) != 0 && !py::isinstance(value, make)) return std::nullopt;
    }
    return Fields{by_name(value, names), names};
  }
  // An instance of a dataclass, in the order of its fields.
  if (PyType_Check(value.ptr()) == 0 && py::hasattr(value, "__dataclass_fields__")) {
    const py::tuple names(py::list(value.attr("__dataclass_fields__")));
    return Fields{by_name(value, names), names};
  }
  return std::nullopt;
}

std::optional<std::size_t> alternative_of(const Plan& plan, const Type& variant, py::handle value) {
  for (const bool lenient : {false, true}) {
    for (std::size_t i = 0; i < variant.parts.size(); ++i) {
      if (Fit(plan, lenient).fits(*variant.parts[i], value)) return i;
    }
  }
  return std::nullopt;
}

}  // namespace muster::python
