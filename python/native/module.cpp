#include "python/native/bind.h"
#include "python/native/interpreter.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native part of the package; programs use muster.rpc, muster.store and so on.";
  using namespace muster::python;
  bind_log(module);
  bind_pickles(module);
  bind_futures(module);
  bind_worker(module);
  bind_references(module);
  bind_line_function(module);
  bind_calls(module);
  bind_procedures(module);
  bind_store(module);
  bind_rendezvous(module);
  // The last of what is done at exit: what is registered later is done before.
  pybind11::module_::import("atexit").attr("register")(pybind11::cpp_function(&end_interpreter));
}
