// The interpreter, as threads see it that are not its own.
//
// Threads of RPC serve requests and complete futures; they must not wait for the interpreter's lock
// where others wait for them. So they take it only to run Python, and what they drop without it is
// released later, by whoever has it next.
#pragma once

#include "muster/base/clock.h"

#include <pybind11/pybind11.h>

#include <functional>
#include <utility>

namespace muster::python {

namespace py = pybind11;

// Holds the interpreter's lock; for any thread, also one that holds it already. A thread that the
// interpreter does not know stays known to it until it ends: making it known costs more than the
// lock does.
class Gil {
 public:
  Gil();
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Lets go of the lock.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* thread_;
};

// The interpreter is about to end; called by the thread that ends it, with the lock. No other
// thread comes back to it from here: the interpreter would end the thread itself, in the middle of
// C++.
void end_interpreter();

// How long threads of ours wait for the lock, in microseconds on average; measured only while asked
// to.
void set_measures_waits(bool on);
bool measures_waits();
double average_wait();

// Waits without the lock, in a way that the user can interrupt: calls `look` with a deadline, which
// waits until then and says whether what it waits for has come, until it has or `until` has passed.
// Throws what the handler of a signal raised. Requires the lock.
bool wait_interruptibly(const std::function<bool(TimePoint)>& look, TimePoint until = kNever);

// Releases them when somebody has the lock: at once, if this thread does.
void release(PyObject* object) noexcept;
void release(Py_buffer* view) noexcept;  // made with `new`

// An object that may be moved and dropped without the lock.
class Ref {
 public:
  Ref() = default;
  explicit Ref(py::object object) : object_(object.release().ptr()) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) release(object_);
  }

  explicit operator bool() const { return object_ != nullptr; }
  PyObject* raw() const { return object_; }
  // Require the lock.
  py::object get() const { return py::reinterpret_borrow<py::object>(object_); }
  py::object take() { return py::reinterpret_steal<py::object>(std::exchange(object_, nullptr)); }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace muster::python
