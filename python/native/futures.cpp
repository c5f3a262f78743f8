#include "python/native/futures.h"

#include "muster/base/clock.h"
#include "python/native/bind.h"
#include "python/native/errors.h"
#include "python/native/hooks.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

namespace muster::python {
namespace {

// Waits without the lock. False once `deadline` has passed.
bool wait_until(const AnswerFuture& future, TimePoint deadline) {
  return wait_interruptibly([&](TimePoint look) { return future.wait_until(look) != nullptr; },
                            deadline);
}

py::object value_of(const rpc::CallResult<std::shared_ptr<Answer>>& outcome) {
  if (!outcome) raise(outcome.error());
  return (*outcome)->value();
}

// With its traceback, which is kept apart from it until somebody asks.
py::object exception_in(py::error_already_set& thrown) {
  py::object value = thrown.value();
  if (value && thrown.trace()) (void)PyException_SetTraceback(value.ptr(), thrown.trace().ptr());
  return value;
}

py::object exception_in(const std::exception& thrown) {
  return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(thrown.what());
}

// A callback of a program, and the future that it was added to: weakly, since that keeps the
// callback until it is done.
struct Callback {
  Callback(py::object function, const py::object& self)
      : callback(std::move(function)), future(py::weakref(self)) {}

  // Requires the lock.
  py::object operator()(const rpc::CallResult<std::shared_ptr<Answer>>& outcome) const {
    py::object self = future.get()();
    if (self.is_none()) {
      AnswerFuture done = AnswerFuture::ready(outcome);
      (void)done.wait();  // whoever added the callback hears of it
      self = py::cast(Future(std::move(done)));
    }
    return callback.get()(self);
  }

  Ref callback;
  Ref future;
};

// Requires the lock.
std::shared_ptr<Answer> call_back(const Callback& callback,
                                  const rpc::CallResult<std::shared_ptr<Answer>>& outcome) {
  try {
    return Answer::of_value(callback(outcome));
  } catch (py::error_already_set& thrown) {
    // As with PyTorch's futures, the class is lost; here the exception itself is the cause.
    const std::string text = std::string("a callback of the future raised ") + thrown.what();
    py::object error = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(text);
    error.attr("__cause__") = exception_in(thrown);
    return Answer::of_exception(std::move(error));
  }
}

}  // namespace

std::shared_ptr<Answer> Answer::of_value(py::object value) {
  auto answer = std::make_shared<Answer>();
  answer->value_ = Ref(std::move(value));
  return answer;
}

std::shared_ptr<Answer> Answer::of_exception(py::object exception) {
  auto answer = std::make_shared<Answer>();
  answer->exception_ = Ref(std::move(exception));
  return answer;
}

std::shared_ptr<Answer> Answer::of_message(rpc::Message message, std::shared_ptr<rpc::Agent> agent,
                                           PlannedType as) {
  auto answer = std::make_shared<Answer>();
  if (as.type != nullptr) {
    answer->has_references_ = python::has_references(*as.type);
  } else {
    rpc::Reader reader(message.payload, message.buffers);
    answer->has_references_ = read_pickle(reader).reference_count > 0;
  }
  answer->as_ = std::move(as);
  answer->message_ = std::move(message);
  answer->agent_ = std::move(agent);
  answer->has_message_ = true;
  return answer;
}

void Answer::unpickle() {
  // It is looked into by one thread.
  has_message_ = false;
  const rpc::Message message = std::exchange(message_, {});
  rpc::Reader reader(message.payload, message.buffers);
  const ReceivedPickle pickle = read_pickle(reader);
  rpc::Freight freight(agent_ ? agent_->references() : nullptr);
  const FreightScope scope(&freight);
  try {
    if (const auto finished = reader.finish(); !finished) {
      raise_runtime_error("the answer cannot be read: " + finished.error().message);
    }
    const LentBytes data(pickle.data);
    py::object object = hooks().loads(data.view(), pickle.buffer_list());
    (pickle.kind == Kind::Error ? exception_ : value_) = Ref(std::move(object));
  } catch (py::error_already_set& thrown) {
    if (!thrown.matches(PyExc_Exception) && !has_references_) {
      // The user has interrupted whoever asked; who asks again gets the value.
      message_ = message;
      has_message_ = true;
      throw;
    }
    exception_ = Ref(exception_in(thrown));
  } catch (const std::exception& thrown) {
    exception_ = Ref(exception_in(thrown));
  }
  agent_.reset();
}

// As unpickle, for the result of a procedure.
void Answer::decode() {
  has_message_ = false;
  const rpc::Message message = std::exchange(message_, {});
  const auto agent = std::exchange(agent_, nullptr);
  rpc::Freight freight(agent ? agent->references() : nullptr);
  const auto support = agent ? agent->device_support() : nullptr;
  rpc::Reader reader(message.payload, message.buffers);
  reader.set_freight(&freight);
  reader.set_device_support(support.get());
  try {
    py::object value = read_value(reader, as_);
    if (const auto finished = reader.finish(); !finished) {
      raise_runtime_error("its answer cannot be read: " + finished.error().message);
    }
    value_ = Ref(std::move(value));
  } catch (py::error_already_set& thrown) {
    exception_ = Ref(exception_in(thrown));
  } catch (const std::exception& thrown) {
    exception_ = Ref(exception_in(thrown));
  }
}

py::object Answer::value() {
  while (!value_ && !exception_) {
    if (has_message_) {
      as_.type != nullptr ? decode() : unpickle();
      continue;
    }
    // Unpickling may let go of the lock: another thread is in the middle of it.
    const Unlocked released;
    std::this_thread::yield();
  }
  if (value_) return value_.get();
  return hooks().raise_error(exception_.get());
}

int Answer::traverse(visitproc visit, void* arg) const {
  Py_VISIT(value_.raw());
  Py_VISIT(exception_.raw());
  return 0;
}

Future::Future() : promise_(std::make_shared<AnswerPromise>()), future_(promise_->future()) {}

py::object Future::wait() const {
  if (!future_.done()) wait_until(future_, kNever);
  return value_of(future_.wait());
}

bool Future::wait_for(double seconds) const {
  const SystemClock clock;
  return wait_until(future_, clock.now() + std::chrono::duration_cast<Duration>(
                                               std::chrono::duration<double>(seconds)));
}

py::object Future::value() const {
  if (!future_.done()) raise_runtime_error("the future is not done yet");
  return value_of(future_.wait());
}

void Future::set(std::shared_ptr<Answer> answer) const {
  if (!promise_ && !future_.done()) {
    raise_runtime_error("the future of a call is completed by its answer alone");
  }
  if (!promise_ || !promise_->set(std::move(answer))) {
    raise_runtime_error("Future can only be marked completed once");
  }
}

namespace {

using Settlement = std::pair<std::shared_ptr<AnswerPromise>, std::shared_ptr<Answer>>;

// Ends a future whose end may end others, and so on. A chain that is longer than the stack is deep
// is followed link by link.
void settle(const std::shared_ptr<AnswerPromise>& promise, std::shared_ptr<Answer> answer) {
  constexpr int kDepthMax = 100;
  thread_local int depth = 0;
  thread_local std::deque<Settlement> later;
  if (depth >= kDepthMax) {
    later.emplace_back(promise, std::move(answer));
    return;
  }
  ++depth;
  promise->set(std::move(answer));
  --depth;
  while (depth == 0 && !later.empty()) {
    const Settlement next = std::move(later.front());
    later.pop_front();
    ++depth;
    next.first->set(next.second);
    --depth;
  }
}

}  // namespace

Future Future::then(py::object callback, const py::object& self) const {
  Future next;
  auto shared = std::make_shared<Callback>(std::move(callback), self);
  future_.on_done([shared = std::move(shared), promise = next.promise_](const auto& outcome) {
    const Gil gil;
    settle(promise, call_back(*shared, outcome));
  });
  return next;
}

void Future::add_done_callback(py::object callback, const py::object& self) const {
  auto shared = std::make_shared<Callback>(std::move(callback), self);
  future_.on_done([shared = std::move(shared)](const auto& outcome) {
    const Gil gil;
    try {
      (void)(*shared)(outcome);
    } catch (py::error_already_set& thrown) {
      thrown.discard_as_unraisable("a callback of a future");
    }
  });
}

int Future::traverse(visitproc visit, void* arg) const {
  const bool is_promise_ours = promise_ && promise_.use_count() == 1;
  if (!future_.done() || future_.owner_count() > (is_promise_ours ? 2 : 1)) return 0;
  const auto& outcome = future_.peek();
  if (!outcome || outcome->use_count() > 1) return 0;
  return (*outcome)->traverse(visit, arg);
}

void Future::clear() {
  promise_.reset();
  future_ = AnswerFuture::ready(Answer::of_value(py::none()));
}

namespace {

// Whether its C++ half is there; for a class of a program it may not be yet.
bool is_made(PyObject* self) {
  return reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().holder_constructed();
}

void let_collect(PyHeapTypeObject* heap_type) {
  PyTypeObject* const type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!is_made(self)) return 0;
    return py::cast<const Future&>(py::handle(self)).traverse(visit, arg);
  };
  type->tp_clear = [](PyObject* self) {
    if (is_made(self)) py::cast<Future&>(py::handle(self)).clear();
    return 0;
  };
}

}  // namespace

void bind_futures(py::module_& module) {
  const py::object generic = py::module_::import("types").attr("GenericAlias");
  const py::object class_method = py::module_::import("builtins").attr("classmethod");
  py::class_<Future> bound(module, "Future", py::custom_type_setup(&let_collect),
                           "What becomes of something that is under way. Any thread.");
  bound.attr("__class_getitem__") = class_method(generic);
  bound.def(py::init<>())
      .def("done", &Future::done, "Whether it has ended, well or not.")
      .def("wait", &Future::wait, "Waits; the value, or raises what was raised.")
      .def("value", &Future::value, "The value of one that is done, or raises what was raised.")
      .def("_wait_for", &Future::wait_for, py::arg("seconds"))
      .def(
          "then",
          [](const py::object& self, py::function callback) {
            return py::cast<const Future&>(self).then(std::move(callback), self);
          },
          py::arg("callback"), "A future of what `callback` makes of this one, once it is done.")
      .def(
          "add_done_callback",
          [](const py::object& self, py::function callback) {
            py::cast<const Future&>(self).add_done_callback(std::move(callback), self);
          },
          py::arg("callback"), "Calls `callback` with this one, once it is done.")
      .def(
          "set_result",
          [](const Future& future, py::object value) {
            future.set(Answer::of_value(std::move(value)));
          },
          py::arg("result"), "Ends a future that the program has made, with a value.")
      .def(
          "set_exception",
          [](const Future& future, py::object exception) {
            if (PyExceptionInstance_Check(exception.ptr()) == 0) {
              throw py::type_error("set_exception takes an exception");
            }
            future.set(Answer::of_exception(std::move(exception)));
          },
          py::arg("exception"), "Ends a future that the program has made, with an exception.")
      .def("__await__", [](const py::object& self) { return py::iter(hooks().await_future(self)); })
      .def("__reduce_ex__", [](const Future&, int) -> py::object {
        raise_runtime_error(
            "Can not pickle torch.futures.Future, nor the future of a call: it belongs to the "
            "process that waits for it");
      });
}

}  // namespace muster::python
