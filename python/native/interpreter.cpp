#include "python/native/interpreter.h"

#include "python/native/line.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::python {
namespace {

bool is_gone() { return Py_IsInitialized() == 0; }

std::atomic<bool> is_ending = false;
std::thread::id ending_thread;  // before `is_ending`

// How many threads have looked whether it is ending and do not have the lock yet.
std::atomic<int> passing_count = 0;

void park_if_ending() {
  if (!is_ending.load()) return;
  if (std::this_thread::get_id() == ending_thread) return;
  while (true) ::pause();
}

// Around taking the lock.
class Passing {
 public:
  Passing() {
    ++passing_count;
    if (!is_ending.load() || std::this_thread::get_id() == ending_thread) return;
    passed();
    park_if_ending();
  }
  ~Passing() { passed(); }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;

 private:
  static void passed() {
    --passing_count;
    if (is_ending) passing_count.notify_all();
  }
};

// Whether this thread has the lock. PyGILState_Check() says so of all, once there was a second
// interpreter.
bool has_lock() {
#if PY_VERSION_HEX < 0x030d0000
  const PyThreadState* const current = _PyThreadState_UncheckedGet();
#else
  const PyThreadState* const current = PyThreadState_GetUnchecked();
#endif
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

struct Waits {
  std::atomic<bool> is_on = false;
  std::atomic<std::int64_t> total_ns = 0;
  std::atomic<std::int64_t> count = 0;
};
Waits waits;

// What was dropped without the lock.
struct Dropped {
  std::mutex mutex;  // guards what follows
  std::vector<PyObject*> objects;
  std::vector<Py_buffer*> views;
  std::vector<PyThreadState*> threads;  // of those that have ended
  std::atomic<bool> any = false;
  bool is_asked_for = false;  // the interpreter will come by
};

Dropped& dropped() {
  static auto* const kDropped = new Dropped;  // never destroyed: threads may outlive everything
  return *kDropped;
}

void release_view(Py_buffer* view) {
  PyBuffer_Release(view);
  delete view;
}

// Lets the interpreter forget threads that have ended. Requires the lock.
void delete_threads(std::vector<PyThreadState*> threads) {
  const auto forget = [threads = std::move(threads)] {
    for (PyThreadState* const thread : threads) {
      PyThreadState_Clear(thread);
      PyThreadState_Delete(thread);
    }
  };
#if PY_VERSION_HEX < 0x030c0000
  forget();
#else
  // From 3.12 on, the interpreter then takes the thread that does it for the one that has ended. So
  // that is one which ends right away.
  std::thread([forget] {
    PyThreadState* own = nullptr;
    {
      // An interpreter that ends takes the states of all other threads away.
      const Passing passing;
      own = PyThreadState_New(PyInterpreterState_Main());
      PyEval_AcquireThread(own);
    }
    forget();
    PyThreadState_Clear(own);
    PyThreadState_DeleteCurrent();
  }).detach();
#endif
}

// Requires the lock.
void release_dropped() {
  Dropped& all = dropped();
  if (!all.any.load(std::memory_order_relaxed)) return;
  std::vector<PyObject*> objects;
  std::vector<Py_buffer*> views;
  std::vector<PyThreadState*> threads;
  {
    const std::lock_guard lock(all.mutex);
    objects.swap(all.objects);
    views.swap(all.views);
    threads.swap(all.threads);
    all.any.store(false, std::memory_order_relaxed);
    all.is_asked_for = false;
  }
  for (PyObject* const object : objects) Py_DECREF(object);
  for (Py_buffer* const view : views) release_view(view);
  if (!threads.empty()) delete_threads(std::move(threads));
}

template <typename T>
void drop(std::vector<T*> Dropped::*list, T* thing) noexcept {
  Dropped& all = dropped();
  // Held to the end: what the interpreter knows of this very thread may be what is dropped.
  const std::lock_guard lock(all.mutex);
  (all.*list).push_back(thing);
  all.any = true;
  if (std::exchange(all.is_asked_for, true)) return;
  // Nobody may come by for a while; the interpreter itself does. If it has too much to do, whoever
  // drops something next asks again.
  const int asked = Py_AddPendingCall(
      [](void*) {
        release_dropped();
        return 0;
      },
      nullptr);
  if (asked != 0) all.is_asked_for = false;
}

// Keeps a thread of ours known to the interpreter. A thread that ends must not wait for the lock,
// since others wait for its end; so what the interpreter knows of it is dropped like all else.
struct Anchor {
  Anchor() {
    // One that the interpreter knows already needs none.
    if (PyGILState_GetThisThreadState() != nullptr) return;
    const Passing passing;
    (void)PyGILState_Ensure();
    thread = PyEval_SaveThread();
  }
  ~Anchor() {
    if (thread != nullptr && !is_gone()) drop(&Dropped::threads, thread);
  }
  PyThreadState* thread = nullptr;
};

}  // namespace

Gil::Gil() {
  static thread_local const Anchor anchor;
  (void)anchor;
  const Passing passing;
  if (!waits.is_on.load(std::memory_order_relaxed)) {
    state_ = PyGILState_Ensure();
  } else {
    const auto began = std::chrono::steady_clock::now();
    state_ = PyGILState_Ensure();
    waits.total_ns += (std::chrono::steady_clock::now() - began).count();
    ++waits.count;
  }
  release_dropped();
}

Unlocked::~Unlocked() {
  const Passing passing;
  PyEval_RestoreThread(thread_);
}

void end_interpreter() {
  if (is_ending) return;
  ending_thread = std::this_thread::get_id();
  is_ending = true;
  // Those who have looked already are let through.
  const Unlocked unlocked;
  for (int count = passing_count; count > 0; count = passing_count) passing_count.wait(count);
}

bool wait_interruptibly(const std::function<bool(TimePoint)>& look, TimePoint until) {
  // How often to look whether the user has had enough.
  constexpr Duration kSignalInterval = std::chrono::milliseconds(100);
  const SystemClock clock;
  while (true) {
    {
      const Unlocked released;
      Line::step_aside();  // once is enough, and more does nothing
      if (look(std::min(until, clock.now() + kSignalInterval))) return true;
      if (clock.now() >= until) return false;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void set_measures_waits(bool on) { waits.is_on = on; }

bool measures_waits() { return waits.is_on; }

double average_wait() {
  const std::int64_t count = waits.count;
  return count == 0 ? 0 : static_cast<double>(waits.total_ns) / static_cast<double>(count) / 1000;
}

void release(PyObject* object) noexcept {
  if (is_gone()) return;
  if (has_lock()) return Py_DECREF(object);
  drop(&Dropped::objects, object);
}

void release(Py_buffer* view) noexcept {
  if (is_gone()) return;
  if (has_lock()) return release_view(view);
  drop(&Dropped::views, view);
}

}  // namespace muster::python
