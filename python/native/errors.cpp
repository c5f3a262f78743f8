#include "python/native/errors.h"

#include <pybind11/pybind11.h>

#include <string>

namespace muster::python {

namespace {

// Texts come from other processes and need not be UTF-8.
pybind11::object text_of(const std::string& text) {
  return pybind11::reinterpret_steal<pybind11::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace

void raise_runtime_error(const std::string& text) {
  PyErr_SetObject(PyExc_RuntimeError, text_of(text).ptr());
  throw pybind11::error_already_set();
}

void raise(const rpc::CallError& error) { raise_runtime_error(render(error)); }

void raise(const Error& error) {
  const pybind11::object exception =
      pybind11::module_::import("muster.errors")
          .attr("exception_of")(std::string(name_of(error.kind)), text_of(error.message));
  PyErr_SetObject(pybind11::type::handle_of(exception).ptr(), exception.ptr());
  throw pybind11::error_already_set();
}

}  // namespace muster::python
