// The parts of muster._native. Each adds its classes and functions to the module.
//
// They translate, and nothing else: what is decided is decided in the C++ libraries or in the
// Python sources. Every wait lets go of the interpreter's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace muster::python {

void bind_calls(pybind11::module_& module);
void bind_futures(pybind11::module_& module);
void bind_line_function(pybind11::module_& module);
void bind_log(pybind11::module_& module);
void bind_pickles(pybind11::module_& module);
void bind_procedures(pybind11::module_& module);
void bind_references(pybind11::module_& module);
void bind_rendezvous(pybind11::module_& module);
void bind_store(pybind11::module_& module);
void bind_worker(pybind11::module_& module);

}  // namespace muster::python
