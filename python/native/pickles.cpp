#include "python/native/pickles.h"

#include "python/native/bind.h"

#include <utility>

namespace muster::python {
namespace {

thread_local rpc::Freight* freight_of_thread = nullptr;

// Memory that came with a message, for Python to use as its own.
struct Memory {
  rpc::Buffer buffer;
};

}  // namespace

rpc::Buffer lent_buffer(py::handle object) {
  auto* const view = new Py_buffer;
  if (PyObject_GetBuffer(object.ptr(), view, PyBUF_ANY_CONTIGUOUS) != 0) {
    delete view;
    throw py::error_already_set();
  }
  const std::shared_ptr<Py_buffer> owner(view, [](Py_buffer* mine) { release(mine); });
  return {{static_cast<const std::byte*>(view->buf), static_cast<std::size_t>(view->len)}, owner};
}

py::object memory_of(rpc::Buffer buffer) { return py::cast(Memory{std::move(buffer)}); }

rpc::Freight* current_freight() { return freight_of_thread; }

FreightScope::FreightScope(rpc::Freight* freight)
    : outer_(std::exchange(freight_of_thread, freight)) {}

FreightScope::~FreightScope() { freight_of_thread = outer_; }

void write_pickle(rpc::Writer& writer, Kind kind, const Pickle& pickle) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(pickle.data.ptr(), &bytes, &size) != 0) {
    throw py::error_already_set();
  }
  const rpc::Freight* const freight = writer.freight();
  writer.put(static_cast<std::uint8_t>(kind));
  writer.put(freight == nullptr ? 0U : static_cast<std::uint32_t>(freight->forks.size()));
  const std::span data(reinterpret_cast<const std::byte*>(bytes), static_cast<std::size_t>(size));
  if (data.size() < rpc::kOutOfBandBytesMin) {
    writer.put_bytes(data);
  } else {
    writer.write(lent_buffer(pickle.data));
  }
  const auto buffers = py::reinterpret_steal<py::object>(PySequence_Fast(
      pickle.buffers.ptr(), "a pickler's serialize gives bytes and a list of buffers"));
  if (!buffers) throw py::error_already_set();
  const auto count = PySequence_Fast_GET_SIZE(buffers.ptr());
  writer.put(static_cast<std::uint32_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    writer.write(lent_buffer(PySequence_Fast_GET_ITEM(buffers.ptr(), i)));
  }
}

ReceivedPickle read_pickle(rpc::Reader& reader) {
  ReceivedPickle pickle;
  const auto kind = reader.get<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(Kind::Error)) reader.fail("no such kind of pickle");
  pickle.kind = static_cast<Kind>(kind);
  pickle.reference_count = reader.get<std::uint32_t>();
  pickle.data = reader.get_bytes();
  const std::size_t count = reader.get_count();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    pickle.buffers.push_back(reader.get_buffer());
  }
  return pickle;
}

LentBytes::LentBytes(std::span<const std::byte> bytes) {
  // Nobody writes through a view that is for reading.
  auto* const first = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
  PyObject* const view =
      PyMemoryView_FromMemory(first, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ);
  if (view == nullptr) throw py::error_already_set();
  view_ = py::reinterpret_steal<py::object>(view);
}

LentBytes::~LentBytes() {
  // An exception may be on its way.
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* const released = PyObject_CallMethod(view_.ptr(), "release", nullptr);
  if (released == nullptr) PyErr_Clear();
  Py_XDECREF(released);
  PyErr_Restore(type, value, trace);
}

py::list ReceivedPickle::buffer_list() const {
  py::list list(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) list[i] = memory_of(buffers[i]);
  return list;
}

void bind_pickles(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol())
      .def_buffer([](const Memory& memory) {
        // It belongs to nobody else.
        auto* const bytes = const_cast<std::byte*>(memory.buffer.data());
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(bytes),
                               static_cast<py::ssize_t>(memory.buffer.size()), false);
      })
      .def("__len__", [](const Memory& memory) { return memory.buffer.size(); });
}

}  // namespace muster::python
