#include "python/native/typed_buffers.h"

#include "python/native/pickles.h"
#include "python/native/typed_values.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::python {
namespace {

// The letters that Python's struct module has for numbers of that kind, whatever their size.
std::string_view letters_of(TypeKind kind) {
  switch (kind) {
    case TypeKind::I8:
    case TypeKind::I16:
    case TypeKind::I32:
    case TypeKind::I64:
      return "bhilqn";
    case TypeKind::F32:
    case TypeKind::F64:
      return "fd";
    case TypeKind::C64:
    case TypeKind::C128:
      return "FD";
    default:
      return "BHILQN";
  }
}

bool fits(const Py_buffer& view, TypeKind kind) {
  std::string_view format = view.format == nullptr ? "B" : view.format;
  if (!format.empty() && std::string_view("@=<").find(format.front()) != std::string_view::npos) {
    format.remove_prefix(1);
  }
  // NumPy has two letters for complex numbers, others have one.
  char letter = format.size() == 1 ? format[0] : '\0';
  if (format == "Zf") letter = 'F';
  if (format == "Zd") letter = 'D';
  return letter != '\0' && letters_of(kind).find(letter) != std::string_view::npos &&
         static_cast<std::size_t>(view.itemsize) == size_of(kind);
}

}  // namespace

std::optional<rpc::Buffer> numbers_in(py::handle object, TypeKind kind) {
  auto* const view = new Py_buffer;
  if (PyObject_GetBuffer(object.ptr(), view, PyBUF_FULL_RO) != 0) {
    delete view;
    PyErr_Clear();
    return std::nullopt;
  }
  const std::shared_ptr<Py_buffer> owner(view, [](Py_buffer* mine) { release(mine); });
  if (view->ndim != 1 || !fits(*view, kind)) return std::nullopt;
  const auto size = static_cast<std::size_t>(view->len);
  if (PyBuffer_IsContiguous(view, 'C') != 0) {
    return rpc::Buffer({static_cast<const std::byte*>(view->buf), size}, owner);
  }
  const std::shared_ptr<std::byte> memory = rpc::allocate_bytes(size);
  if (PyBuffer_ToContiguous(memory.get(), view, view->len, 'C') != 0) {
    throw py::error_already_set();
  }
  return rpc::Buffer({memory.get(), size}, memory);
}

Result<rpc::Tensor> tensor_of(const py::object& described) {
  const auto parts = described.cast<py::tuple>();
  const auto name = parts[1].cast<std::string>();
  rpc::TensorLayout layout;
  bool is_known = false;
  for (std::size_t i = 0; i < rpc::kDTypeCount && !is_known; ++i) {
    layout.dtype = static_cast<rpc::DType>(i);
    is_known = rpc::name_of(layout.dtype) == name;
  }
  if (!is_known) {
    return fail(ErrorKind::Invalid, fmt::format("tensors of type {} are not sent", name));
  }
  layout.shape = parts[2].cast<std::vector<std::int64_t>>();
  layout.strides = parts[3].cast<std::vector<std::int64_t>>();
  layout.offset_bytes = parts[4].cast<std::size_t>();
  return rpc::Tensor::create(std::move(layout), lent_buffer(parts[0]));
}

py::object object_of(const rpc::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  if (!tensor.device().is_host()) {
    throw py::value_error(rpc::describe(tensor) + " cannot be used by Python");
  }
  const std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  const std::vector<std::int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  const rpc::Buffer elements({tensor.data(), tensor.extent_bytes()}, tensor.storage().owner());
  return type_hooks().make_tensor(memory_of(elements), std::string(rpc::name_of(tensor.dtype())),
                                  py::tuple(py::cast(shape)), py::tuple(py::cast(strides)));
}

}  // namespace muster::python
