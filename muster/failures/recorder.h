// For programs in C++ that run as workers: says why the program failed, in the error file that the
// launcher named (TORCHELASTIC_ERROR_FILE), so that the job's report shows it.
//
//   int main() {
//     return muster::failures::record([] { return train(); });
//   }
//
// Works under `muster run` and under torchrun; without the variable nothing is ever written. It
// needs nothing else of Muster: link libmuster, or compile recorder.cpp in (with recorder_c.h
// and utf8.h). Programs in C use recorder_c.h.
//
// The error file is replaced in one step, so a reader never sees half of it. A child that the
// program forks does not write: the file belongs to the worker.
#pragma once

#include <string_view>
#include <utility>

namespace muster::failures {

struct RecorderOptions {
  // Also record SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGSYS, with a stack trace. A signal
  // for which the program has a handler of its own is left alone. The process then dies by the
  // signal, as it would have.
  bool fatal_signals = true;
};

// Records uncaught exceptions (through the terminate handler, with the stack of the place that
// threw) and fatal signals from now on. The program's own terminate handler runs afterwards. Call
// it once, before other threads start; later calls change nothing.
void install_recorder(const RecorderOptions& options = {});

// Writes the error file now; false if there is none to write or it cannot be written. For programs
// that handle their errors themselves and then exit with a status other than 0.
bool record_error(std::string_view message, std::string_view traceback = {});

// Records the exception that is being handled. Only in a catch block.
bool record_current_exception();

// Installs the recorder and runs `work`. An exception that leaves `work` is recorded and goes on to
// the caller. For a stack trace of the place that threw, call install_recorder() and let the
// exception leave main: nothing has been unwound then.
template <typename Work>
decltype(auto) record(Work&& work) {
  install_recorder();
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    record_current_exception();
    throw;
  }
}

}  // namespace muster::failures
