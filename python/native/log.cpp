#include "muster/base/log.h"

#include "python/native/bind.h"

#include <cstdlib>
#include <string>

namespace muster::python {
namespace {

// As the names of Python's logging and ours are spelt, in letters of either case.
bool level_of(std::string name, log::Level& out) {
  for (char& letter : name) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (name == "warning") name = "warn";
  return log::parse_level(name, out);
}

}  // namespace

void bind_log(pybind11::module_& module) {
  // A library is quiet, unless the variable of `muster run` says otherwise.
  log::Level level = log::Level::Warn;
  if (const char* const wanted = std::getenv("LOGLEVEL"); wanted != nullptr) {
    level_of(wanted, level);
  }
  log::set_level(level);
  module.def("set_log_level", [](const std::string& name) {
    log::Level wanted = log::Level::Warn;
    if (!level_of(name, wanted)) {
      throw pybind11::value_error("the levels are debug, info, warning, error and off");
    }
    log::set_level(wanted);
  });
}

}  // namespace muster::python
