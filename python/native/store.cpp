#include "python/native/store.h"

#include "python/native/bind.h"
#include "python/native/watch.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

namespace py = pybind11;

namespace muster::python {
namespace {

using store::Store;

py::object bytes_or_none(const std::optional<std::string>& value) {
  if (!value) return py::none();
  return py::bytes(*value);
}

// Keys are any bytes; those that are no UTF-8 come back as Python's file names do.
py::object text(const std::string& key) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), "surrogateescape"));
}

py::list texts(const std::vector<std::string>& keys) {
  py::list list;
  for (const std::string& key : keys) list.append(text(key));
  return list;
}

void bind_keys(py::class_<StoreHandle, std::shared_ptr<StoreHandle>>& handle) {
  handle.def("set", [](StoreHandle& self, std::string key, std::string value) {
    self.ask([&](Store& store) { return store.set(std::move(key), std::move(value)); });
  });
  handle.def("get", [](StoreHandle& self, std::string key, double timeout) {
    const TimePoint deadline = deadline_of(timeout);
    return py::bytes(self.ask([&](Store& store) { return store.get(std::move(key), deadline); }));
  });
  handle.def("try_get", [](StoreHandle& self, std::string key) {
    return bytes_or_none(self.ask([&](Store& store) { return store.try_get(std::move(key)); }));
  });
  handle.def("add", [](StoreHandle& self, std::string key, std::int64_t delta) {
    return self.ask([&](Store& store) { return store.add(std::move(key), delta); });
  });
  handle.def("compare_set",
             [](StoreHandle& self, std::string key, std::string expected, std::string desired) {
               const auto outcome = self.ask([&](Store& store) {
                 return store.compare_set(std::move(key), std::move(expected), std::move(desired));
               });
               return py::bytes(outcome.value);
             });
  handle.def("check", [](StoreHandle& self, std::vector<std::string> keys) {
    return self.ask([&](Store& store) { return store.check(std::move(keys)); });
  });
  handle.def("wait", [](StoreHandle& self, std::vector<std::string> keys, double timeout) {
    const TimePoint deadline = deadline_of(timeout);
    self.ask([&](Store& store) { return store.wait(std::move(keys), deadline); });
  });
  handle.def("delete_key", [](StoreHandle& self, std::string key) {
    return self.ask([&](Store& store) { return store.delete_key(std::move(key)); });
  });
  handle.def("num_keys", [](StoreHandle& self) {
    return self.ask([&](Store& store) { return store.num_keys(); });
  });
  handle.def("list_keys", [](StoreHandle& self, std::string prefix) {
    return texts(self.ask([&](Store& store) { return store.list_keys(std::move(prefix)); }));
  });
  handle.def("append", [](StoreHandle& self, std::string key, std::string data) {
    self.ask([&](Store& store) { return store.append(std::move(key), std::move(data)); });
  });
}

void bind_many(py::class_<StoreHandle, std::shared_ptr<StoreHandle>>& handle) {
  handle.def("multi_get", [](StoreHandle& self, std::vector<std::string> keys, double timeout) {
    const TimePoint deadline = deadline_of(timeout);
    const auto values =
        self.ask([&](Store& store) { return store.multi_get(std::move(keys), deadline); });
    py::list list;
    for (const std::string& value : values) list.append(py::bytes(value));
    return list;
  });
  handle.def("multi_set",
             [](StoreHandle& self, std::vector<std::string> keys, std::vector<std::string> values) {
               if (keys.size() != values.size()) {
                 throw py::value_error("there must be as many values as keys");
               }
               std::vector<store::KeyValue> pairs;
               for (std::size_t index = 0; index < keys.size(); ++index) {
                 pairs.push_back({std::move(keys[index]), std::move(values[index])});
               }
               self.ask([&](Store& store) { return store.multi_set(std::move(pairs)); });
             });
  handle.def("queue_push", [](StoreHandle& self, std::string queue, std::string item) {
    self.ask([&](Store& store) { return store.queue_push(std::move(queue), std::move(item)); });
  });
  handle.def("queue_pop", [](StoreHandle& self, std::string queue, double timeout) {
    const TimePoint deadline = deadline_of(timeout);
    return py::bytes(
        self.ask([&](Store& store) { return store.queue_pop(std::move(queue), deadline); }));
  });
  handle.def("try_queue_pop", [](StoreHandle& self, std::string queue) {
    return bytes_or_none(
        self.ask([&](Store& store) { return store.try_queue_pop(std::move(queue)); }));
  });
  handle.def("queue_len", [](StoreHandle& self, std::string queue) {
    return self.ask([&](Store& store) { return store.queue_length(std::move(queue)); });
  });
  handle.def("barrier", [](StoreHandle& self, std::string key, std::int64_t member_count,
                           double timeout) {
    const TimePoint deadline = deadline_of(timeout);
    self.ask([&](Store& store) { return store.barrier(std::move(key), member_count, deadline); });
  });
  handle.def("watch", [](StoreHandle& self, std::string key, bool is_prefix) {
    return WatchHandle::begin(self, std::move(key),
                              is_prefix ? Store::WatchScope::Prefix : Store::WatchScope::Key);
  });
}

}  // namespace

void bind_store(py::module_& module) {
  py::class_<StoreHandle, std::shared_ptr<StoreHandle>> handle(module, "StoreHandle");
  handle.def_property_readonly("port", &StoreHandle::port);
  bind_keys(handle);
  bind_many(handle);

  py::class_<WatchHandle, std::shared_ptr<WatchHandle>>(module, "WatchHandle")
      .def("next",
           [](WatchHandle& self, double timeout) {
             const store::Change change = self.next(deadline_of(timeout));
             return py::make_tuple(std::string(name_of(change.kind)), text(change.key),
                                   py::bytes(change.value));
           })
      .def("close", &WatchHandle::close);

  module.def("open_tcp_store", [](std::string host, int port, bool hosts, bool shares_server,
                                  std::optional<std::int64_t> worker_count, double timeout) {
    TcpRequest request;
    request.host = std::move(host);
    request.port = port;
    request.hosts = hosts;
    request.shares_server = shares_server;
    request.worker_count = worker_count;
    request.timeout = duration_of(timeout);
    return open_tcp_store(request);
  });
  module.def("open_file_store", &open_file_store);
  module.def("open_memory_store", &open_memory_store);
  module.def("open_prefix_store", &open_prefix_store);
}

}  // namespace muster::python
