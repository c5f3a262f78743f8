#include "muster/rpc/tensor.h"
#include "muster/rref/keeper.h"
#include "python/native/pickles.h"
#include "python/native/references.h"
#include "python/native/typed_buffers.h"
#include "python/native/typed_fit.h"
#include "python/native/typed_values.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace muster::python {
namespace {

std::string kind_of(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

[[noreturn]] void raise_as(PyObject* exception, const std::string& text) {
  PyErr_SetString(exception, text.c_str());
  throw py::error_already_set();
}

// What PySequence_Tuple says about something that is no row of anything.
std::optional<py::tuple> elements_of(py::handle value) {
  if (PyUnicode_Check(value.ptr()) != 0 || PyDict_Check(value.ptr()) != 0) return std::nullopt;
  PyObject* const made = PySequence_Tuple(value.ptr());
  if (made != nullptr) return py::reinterpret_steal<py::tuple>(made);
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return std::nullopt;
}

class Encoder {
 public:
  Encoder(rpc::Writer& writer, std::shared_ptr<const Plan> plan, std::string_view what)
      : writer_(writer), plan_(std::move(plan)), what_(what) {}

  void write(const Type& type, py::handle value) {
    if (++depth_ > kValueDepthMax) refuse(PyExc_ValueError, "it is nested too deeply");
    write_one(type, value);
    --depth_;
  }

 private:
  // Where in the value we are: an index, or the name of a field.
  struct Step {
    std::size_t index = 0;
    std::string name{};
  };

  [[noreturn]] void refuse(PyObject* exception, std::string_view why) const {
    std::string text(what_);
    for (const Step& step : path_) {
      text += step.name.empty() ? fmt::format("[{}]", step.index) : "." + step.name;
    }
    raise_as(exception, fmt::format("{}: {}", text, why));
  }
  [[noreturn]] void expected(const Type& type, py::handle value) const {
    refuse(PyExc_TypeError,
           fmt::format("{} is expected, not {}", plan_->signature->text_of(type), kind_of(value)));
  }
  // After a conversion that Python refused; other exceptions are its own.
  [[noreturn]] void convert_failed(const Type& type, py::handle value) const {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    expected(type, value);
  }
  [[noreturn]] void out_of_range(const Type& type, py::handle value) const {
    refuse(PyExc_OverflowError, fmt::format("{} is no {}", py::repr(value).cast<std::string>(),
                                            plan_->signature->text_of(type)));
  }

  void write_part(const Type& type, py::handle value, std::size_t index) {
    path_.push_back({index});
    write(type, value);
    path_.pop_back();
  }

  // ---- numbers

  template <typename T>
  T integer(const Type& type, py::handle value) const {
    PyObject* const index = PyNumber_Index(value.ptr());
    if (index == nullptr) convert_failed(type, value);
    const auto number = py::reinterpret_steal<py::object>(index);
    if constexpr (std::is_signed_v<T>) {
      int overflow = 0;
      const long long wide = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
      if (overflow != 0 || wide < std::numeric_limits<T>::min() ||
          wide > std::numeric_limits<T>::max()) {
        out_of_range(type, value);
      }
      return static_cast<T>(wide);
    } else {
      const unsigned long long wide = PyLong_AsUnsignedLongLong(number.ptr());
      if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        out_of_range(type, value);
      }
      if (wide > std::numeric_limits<T>::max()) out_of_range(type, value);
      return static_cast<T>(wide);
    }
  }

  double real(const Type& type, py::handle value) const {
    if (PyFloat_CheckExact(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
    const double number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() == nullptr) return number;
    if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
      PyErr_Clear();
      out_of_range(type, value);
    }
    convert_failed(type, value);
  }
  float narrowed(const Type& type, py::handle value, double number) const {
    const auto narrow = static_cast<float>(number);
    if (std::isinf(narrow) && std::isfinite(number)) out_of_range(type, value);
    return narrow;
  }
  Py_complex complex(const Type& type, py::handle value) const {
    const Py_complex number = PyComplex_AsCComplex(value.ptr());
    if (PyErr_Occurred() != nullptr) convert_failed(type, value);
    return number;
  }

  template <typename T>
  static void store(std::byte* to, const T& value) {
    std::memcpy(to, &value, sizeof value);
  }
  // One of a bulk type.
  void number(const Type& type, py::handle value, std::byte* to) const {
    switch (type.kind) {
      case TypeKind::I8:
        return store(to, integer<std::int8_t>(type, value));
      case TypeKind::I16:
        return store(to, integer<std::int16_t>(type, value));
      case TypeKind::I32:
        return store(to, integer<std::int32_t>(type, value));
      case TypeKind::I64:
        return store(to, integer<std::int64_t>(type, value));
      case TypeKind::U8:
      case TypeKind::Byte:
        return store(to, integer<std::uint8_t>(type, value));
      case TypeKind::U16:
        return store(to, integer<std::uint16_t>(type, value));
      case TypeKind::U32:
        return store(to, integer<std::uint32_t>(type, value));
      case TypeKind::U64:
        return store(to, integer<std::uint64_t>(type, value));
      case TypeKind::F32:
        return store(to, narrowed(type, value, real(type, value)));
      case TypeKind::F64:
        return store(to, real(type, value));
      case TypeKind::C64: {
        const Py_complex wide = complex(type, value);
        const std::array parts{narrowed(type, value, wide.real), narrowed(type, value, wide.imag)};
        return store(to, parts);
      }
      default:
        return store(to, complex(type, value));
    }
  }

  // The bytes of a row of numbers; lent where the object has them so.
  rpc::Buffer numbers(const Type& row, py::handle value) {
    const Type& element = *row.parts[0];
    if (const auto buffer = buffer_of(value)) {
      if (auto lent = numbers_in(*buffer, element.kind)) return *std::move(lent);
    }
    const auto elements = elements_of(value);
    if (!elements) expected(row, value);
    const std::size_t size = size_of(element.kind);
    const std::size_t bytes = elements->size() * size;
    const std::shared_ptr<std::byte> memory = rpc::allocate_bytes(bytes);
    for (std::size_t i = 0; i < elements->size(); ++i) {
      path_.push_back({i});
      number(element, (*elements)[i], memory.get() + i * size);
      path_.pop_back();
    }
    return {{memory.get(), bytes}, memory};
  }
  // What has a buffer with the numbers of `value`; nothing for lists and the like.
  std::optional<py::object> buffer_of(py::handle value) const {
    if (PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0) return std::nullopt;
    if (PyObject_CheckBuffer(value.ptr()) != 0) {
      return py::reinterpret_borrow<py::object>(value);
    }
    if (!py::hasattr(value, "__dlpack__")) return std::nullopt;
    py::object array = type_hooks().array_of(value);
    if (array.is_none()) return std::nullopt;
    return array;
  }

  // ---- single values

  void write_text(const Type& type, py::handle value) {
    if (PyBytes_Check(value.ptr()) != 0) return write_bytes(type, value);
    if (PyUnicode_Check(value.ptr()) == 0) expected(type, value);
    Py_ssize_t size = 0;
    if (const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size)) {
      return writer_.put_bytes(std::as_bytes(std::span(text, static_cast<std::size_t>(size))));
    }
    // Bytes of C++ that were no UTF-8 go back as they came.
    PyErr_Clear();
    PyObject* const encoded = PyUnicode_AsEncodedString(value.ptr(), "utf-8", "surrogateescape");
    if (encoded == nullptr) throw py::error_already_set();
    write_bytes(type, py::reinterpret_steal<py::object>(encoded));
  }
  void write_bytes(const Type& type, py::handle value) {
    if (PyObject_CheckBuffer(value.ptr()) == 0) expected(type, value);
    writer_.put_buffer(lent_buffer(value));
  }
  void write_bool(const Type& type, py::handle value) {
    if (!is_bool(value)) expected(type, value);
    writer_.write(PyObject_IsTrue(value.ptr()) == 1);
  }
  void write_tensor(const Type& type, py::handle value) {
    rpc::Tensor tensor;
    if (!value.is_none()) {
      const py::object described = type_hooks().describe_tensor(value);
      if (described.is_none()) expected(type, value);
      auto made = tensor_of(described);
      if (!made) refuse(PyExc_ValueError, made.error().message);
      tensor = std::move(*made);
    }
    writer_.write(tensor);
    // Why it cannot be sent from where it is.
    if (const auto written = writer_.finish(); !written) {
      refuse(PyExc_ValueError, written.error().message);
    }
  }
  void write_reference(const Type& type, py::handle value) {
    std::string bytes;
    if (!value.is_none()) {
      if (!py::isinstance(value, type_hooks().rref_class)) expected(type, value);
      const py::object reference = value.attr("_reference");
      const rref::Handle& handle = *reference.cast<const Reference&>().handle;
      const std::string_view wanted = plan_->signature->text_of(*type.parts[0]);
      if (handle.type() != wanted) {
        refuse(PyExc_TypeError, fmt::format("the reference is to a value of type {}, not {}",
                                            handle.type(), wanted));
      }
      rpc::Freight* const freight = writer_.freight();
      if (freight == nullptr || freight->references() == nullptr) {
        refuse(PyExc_RuntimeError, "a reference can only be sent in a call");
      }
      auto given = handle.keeper().give(handle, *freight);
      if (!given) refuse(PyExc_RuntimeError, given.error().message);
      bytes = std::move(*given);
    }
    writer_.write(bytes);
  }

  // ---- containers

  void write_elements(const Type& element, const py::tuple& elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) write_part(element, elements[i], i);
  }
  void write_row(const Type& type, py::handle value) {
    const Type& element = *type.parts[0];
    if (type.kind == TypeKind::Vector && is_bulk(element.kind)) {
      return writer_.put_buffer(numbers(type, value));
    }
    const auto elements = elements_of(value);
    if (!elements) expected(type, value);
    writer_.put_count(elements->size());
    const std::size_t start = writer_.size();
    write_elements(element, *elements);
    writer_.pad_to(start + elements->size());
  }
  void write_array(const Type& type, py::handle value) {
    const Type& element = *type.parts[0];
    const auto check = [&](std::size_t count) {
      if (count != type.count) {
        refuse(PyExc_ValueError,
               fmt::format("{} has not {} elements", plan_->signature->text_of(type), count));
      }
    };
    if (is_bulk(element.kind)) {
      const rpc::Buffer bytes = numbers(type, value);
      check(bytes.size() / size_of(element.kind));
      return writer_.put_raw(bytes.bytes());
    }
    const auto elements = elements_of(value);
    if (!elements) expected(type, value);
    check(elements->size());
    write_elements(element, *elements);
  }
  void write_map(const Type& type, py::handle value) {
    std::optional<py::tuple> items;
    if (PyDict_Check(value.ptr()) != 0 || py::hasattr(value, "items")) {
      items = elements_of(value.attr("items")());
    } else {
      items = elements_of(value);
    }
    if (!items) expected(type, value);
    writer_.put_count(items->size());
    const std::size_t start = writer_.size();
    for (std::size_t i = 0; i < items->size(); ++i) {
      const auto pair = elements_of((*items)[i]);
      if (!pair || pair->size() != 2) expected(type, value);
      path_.push_back({i, fmt::format("key {}", i)});
      write(*type.parts[0], (*pair)[0]);
      path_.back().name = fmt::format("value {}", i);
      write(*type.parts[1], (*pair)[1]);
      path_.pop_back();
    }
    writer_.pad_to(start + items->size());
  }

  // ---- combinations

  void write_parts(const Type& type, const py::tuple& parts) {
    if (parts.size() != type.parts.size()) {
      refuse(PyExc_ValueError,
             fmt::format("{} has not {} parts", plan_->signature->text_of(type), parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) write_part(*type.parts[i], parts[i], i);
  }
  void write_tuple(const Type& type, py::handle value) {
    const auto parts = elements_of(value);
    if (!parts) expected(type, value);
    write_parts(type, *parts);
  }
  void write_structure(const Type& type, py::handle value) {
    if (!writer_.enter()) refuse(PyExc_ValueError, writer_.finish().error().message);
    const auto fields = fields_of(*plan_, type, value);
    if (!fields) expected(type, value);
    if (fields->names.is_none()) {
      write_parts(type, fields->values);
    } else {
      write_named(type, *fields);
    }
    writer_.leave();
  }
  void write_named(const Type& type, const Fields& fields) {
    if (fields.values.size() != type.parts.size()) return write_parts(type, fields.values);
    for (std::size_t i = 0; i < fields.values.size(); ++i) {
      path_.push_back({i, py::str(fields.names[py::int_(i)]).cast<std::string>()});
      write(*type.parts[i], fields.values[i]);
      path_.pop_back();
    }
  }
  void write_variant(const Type& type, py::handle value) {
    std::size_t index = 0;
    py::object chosen = py::reinterpret_borrow<py::object>(value);
    if (py::isinstance(value, type_hooks().alternative_class)) {
      index = value.attr("index").cast<std::size_t>();
      chosen = value.attr("value");
      if (index >= type.parts.size()) {
        refuse(PyExc_ValueError,
               fmt::format("{} has no alternative {}", plan_->signature->text_of(type), index));
      }
    } else {
      const auto found = alternative_of(*plan_, type, value);
      if (!found) expected(type, value);
      index = *found;
    }
    writer_.put(static_cast<std::uint8_t>(index));
    write(*type.parts[index], chosen);
  }

  void write_one(const Type& type, py::handle value) {
    switch (type.kind) {
      case TypeKind::Bool:
        return write_bool(type, value);
      case TypeKind::None:
      case TypeKind::Void:
        if (!value.is_none()) expected(type, value);
        return;
      case TypeKind::Str:
        return write_text(type, value);
      case TypeKind::Bytes:
        return write_bytes(type, value);
      case TypeKind::Tensor:
        return write_tensor(type, value);
      case TypeKind::Vector:
      case TypeKind::Set:
        return write_row(type, value);
      case TypeKind::Array:
        return write_array(type, value);
      case TypeKind::Map:
        return write_map(type, value);
      case TypeKind::Optional:
        writer_.write(!value.is_none());
        if (!value.is_none()) write(*type.parts[0], value);
        return;
      case TypeKind::Variant:
        return write_variant(type, value);
      case TypeKind::Tuple:
        return write_tuple(type, value);
      case TypeKind::Structure:
        return write_structure(type, value);
      case TypeKind::Enclosing:
        return write_structure(*type.enclosing, value);
      case TypeKind::Reference:
        return write_reference(type, value);
      case TypeKind::Object:
      case TypeKind::Python:
        refuse(PyExc_TypeError,
               fmt::format("values of type {} are never sent", plan_->signature->text_of(type)));
      default: {
        std::array<std::byte, 16> bytes;
        number(type, value, bytes.data());
        return writer_.put_raw(std::span(bytes).first(size_of(type.kind)));
      }
    }
  }

  rpc::Writer& writer_;
  const std::shared_ptr<const Plan> plan_;
  const std::string_view what_;
  std::vector<Step> path_;
  std::size_t depth_ = 0;
};

}  // namespace

TypeHooks& type_hooks() {
  static auto* const kHooks = new TypeHooks;  // never destroyed: the interpreter goes first
  return *kHooks;
}

void write_value(rpc::Writer& writer, const PlannedType& as, py::handle value,
                 std::string_view what) {
  Encoder(writer, as.plan, what).write(*as.type, value);
}

}  // namespace muster::python
