#include "muster/rpc/tensor.h"
#include "muster/rref/keeper.h"
#include "python/native/pickles.h"
#include "python/native/references.h"
#include "python/native/typed_buffers.h"
#include "python/native/typed_values.h"

#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace muster::python {
namespace {

// What objects of Python take, about: what refers to one, and one that has others in it.
constexpr std::size_t kPointerBytes = sizeof(PyObject*);
constexpr std::size_t kContainerBytes = 56;
// An entry of a dict or of a set.
constexpr std::size_t kEntryBytes = 100;

py::object steal(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

class Decoder {
 public:
  Decoder(rpc::Reader& reader, std::shared_ptr<const Plan> plan)
      : reader_(reader), plan_(std::move(plan)) {}

  // `is_key`: it must be hashable, so it is made of tuples and frozensets.
  py::object read(const Type& type, bool is_key = false) {
    if (++depth_ > kValueDepthMax) reader_.fail("values are nested too deeply");
    py::object made = reader_.ok() ? read_one(type, is_key) : py::none();
    --depth_;
    return made;
  }

 private:
  py::object number(TypeKind kind) {
    switch (kind) {
      case TypeKind::I8:
        return integer<std::int8_t>();
      case TypeKind::I16:
        return integer<std::int16_t>();
      case TypeKind::I32:
        return integer<std::int32_t>();
      case TypeKind::I64:
        return integer<std::int64_t>();
      case TypeKind::U8:
      case TypeKind::Byte:
        return integer<std::uint8_t>();
      case TypeKind::U16:
        return integer<std::uint16_t>();
      case TypeKind::U32:
        return integer<std::uint32_t>();
      case TypeKind::U64:
        return integer<std::uint64_t>();
      case TypeKind::F32:
        return steal(PyFloat_FromDouble(static_cast<double>(reader_.get<float>())));
      case TypeKind::F64:
        return steal(PyFloat_FromDouble(reader_.get<double>()));
      case TypeKind::C64: {
        const auto value = reader_.get<std::complex<float>>();
        return steal(PyComplex_FromDoubles(value.real(), value.imag()));
      }
      default: {
        const auto value = reader_.get<std::complex<double>>();
        return steal(PyComplex_FromDoubles(value.real(), value.imag()));
      }
    }
  }
  template <typename T>
  py::object integer() {
    const T value = reader_.get<T>();
    if constexpr (std::is_signed_v<T>) {
      return steal(PyLong_FromLongLong(value));
    } else {
      return steal(PyLong_FromUnsignedLongLong(value));
    }
  }

  py::object read_text() {
    const auto bytes = reader_.get_bytes();
    return steal(PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(bytes.data()),
                                      static_cast<Py_ssize_t>(bytes.size()), "surrogateescape"));
  }
  static py::object bytes_of(std::span<const std::byte> bytes) {
    return steal(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                           static_cast<Py_ssize_t>(bytes.size())));
  }

  // A row of numbers, over the memory that they came in.
  py::object numbers(const Type& row, rpc::Buffer buffer, bool is_key) {
    const TypeKind kind = row.parts[0]->kind;
    const std::size_t size = size_of(kind);
    if (buffer.size() % size != 0) reader_.fail("the last number of a list is cut off");
    if (!reader_.ok()) return py::none();
    if (kind == TypeKind::Byte) return bytes_of(buffer.bytes());
    if (is_key) {
      rpc::Reader each({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
      py::tuple all(buffer.size() / size);
      Decoder inner(each, plan_);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = inner.number(kind);
      return all;
    }
    if (reinterpret_cast<std::uintptr_t>(buffer.data()) % size != 0) {
      buffer = rpc::copy_of(buffer.bytes());
    }
    return type_hooks().numbers(memory_of(std::move(buffer)),
                                std::string(plan_->signature->text_of(*row.parts[0])));
  }
  py::object read_row(const Type& type, bool is_key) {
    const Type& element = *type.parts[0];
    if (type.kind == TypeKind::Vector && is_bulk(element.kind)) {
      return numbers(type, reader_.get_buffer(), is_key);
    }
    const bool is_set = type.kind == TypeKind::Set;
    const std::size_t count = reader_.get_count();
    const std::size_t start = reader_.position();
    py::list made;
    reader_.charge(count, is_set ? kEntryBytes : kPointerBytes);
    reader_.charge(1, kContainerBytes);
    for (std::size_t i = 0; i < count && reader_.ok(); ++i) {
      made.append(read(element, is_key || is_set));
    }
    reader_.skip_padding(start + count);
    if (!reader_.ok()) return py::none();
    if (!is_set) return is_key ? py::object(py::tuple(made)) : py::object(made);
    py::object set = steal(is_key ? PyFrozenSet_New(made.ptr()) : PySet_New(made.ptr()));
    if (py::len(set) != count) reader_.fail("a set has the same element twice");
    return set;
  }
  py::object read_array(const Type& type, bool is_key) {
    const Type& element = *type.parts[0];
    if (is_bulk(element.kind)) {
      const std::size_t size = type.count * size_of(element.kind);
      if (size > reader_.remaining()) reader_.fail("it ends too early");
      if (!reader_.ok()) return py::none();
      const std::shared_ptr<std::byte> memory = rpc::allocate_bytes(size);
      reader_.get_raw({memory.get(), size});
      return numbers(type, rpc::Buffer({memory.get(), size}, memory), is_key);
    }
    py::list made;
    reader_.charge(1, kContainerBytes + type.count * kPointerBytes);
    for (std::size_t i = 0; i < type.count && reader_.ok(); ++i) {
      made.append(read(element, is_key));
    }
    return is_key ? py::object(py::tuple(made)) : py::object(made);
  }
  py::object read_map(const Type& type, bool is_key) {
    const std::size_t count = reader_.get_count();
    const std::size_t start = reader_.position();
    py::dict made;
    reader_.charge(count, kEntryBytes);
    reader_.charge(1, kContainerBytes);
    for (std::size_t i = 0; i < count && reader_.ok(); ++i) {
      const py::object key = read(*type.parts[0], true);
      const py::object value = read(*type.parts[1], is_key);
      if (reader_.ok()) made[key] = value;
    }
    if (reader_.ok() && made.size() != count) reader_.fail("a map has the same key twice");
    reader_.skip_padding(start + count);
    if (!is_key) return made;
    return py::tuple(made.attr("items")());
  }

  py::tuple read_parts(const Type& type, bool is_key) {
    if (!reader_.charge(1, kContainerBytes + type.parts.size() * kPointerBytes)) return py::tuple();
    py::tuple parts(type.parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = read(*type.parts[i], is_key);
    return parts;
  }
  py::object read_structure(const Type& type, bool is_key) {
    py::object made = py::none();
    if (reader_.enter()) {
      const py::tuple fields = read_parts(type, is_key);
      if (reader_.ok()) made = formed(plan_->forms[type.count], fields);
    }
    reader_.leave();
    return made;
  }
  static py::object formed(const Form& form, const py::tuple& fields) {
    if (form.make) return form.make.get()(*fields);
    if (!form.names) return fields;
    const auto names = py::reinterpret_borrow<py::tuple>(form.names.get());
    py::dict made;
    for (std::size_t i = 0; i < names.size(); ++i) made[names[i]] = fields[i];
    return made;
  }
  py::object read_variant(const Type& type, bool is_key) {
    const std::size_t index = reader_.get<std::uint8_t>();
    reader_.require(index < type.parts.size(),
                    "a variant has an alternative that is not known here");
    return reader_.ok() ? read(*type.parts[index], is_key) : py::none();
  }

  py::object read_reference(const Type& type) {
    const auto bytes = reader_.read<std::string>();
    rpc::Freight* const freight = reader_.freight();
    if (freight == nullptr || freight->references() == nullptr) {
      reader_.fail("a reference can only be received in a call, while RPC runs");
    }
    if (!reader_.ok() || bytes.empty()) return py::none();
    const Type& referred = *type.parts[0];
    // There is only one kind.
    auto& keeper = static_cast<rref::Keeper&>(*freight->references());
    auto taken = keeper.take(bytes, std::string(plan_->signature->text_of(referred)), *freight);
    if (!taken) {
      reader_.fail(std::move(taken.error().message));
      return py::none();
    }
    Reference reference(std::move(*taken));
    reference.type = {plan_, &referred};
    return type_hooks().rref_of(std::move(reference));
  }

  py::object read_one(const Type& type, bool is_key) {
    switch (type.kind) {
      case TypeKind::Bool:
        return py::bool_(reader_.get_flag());
      case TypeKind::None:
      case TypeKind::Void:
        return py::none();
      case TypeKind::Str:
        return read_text();
      case TypeKind::Bytes:
        return bytes_of(reader_.get_bytes());
      case TypeKind::Tensor: {
        const auto tensor = reader_.read<rpc::Tensor>();
        return reader_.ok() ? object_of(tensor) : py::none();
      }
      case TypeKind::Vector:
      case TypeKind::Set:
        return read_row(type, is_key);
      case TypeKind::Array:
        return read_array(type, is_key);
      case TypeKind::Map:
        return read_map(type, is_key);
      case TypeKind::Optional:
        return reader_.get_flag() ? read(*type.parts[0], is_key) : py::none();
      case TypeKind::Variant:
        return read_variant(type, is_key);
      case TypeKind::Tuple:
        return read_parts(type, is_key);
      case TypeKind::Structure:
        return read_structure(type, is_key);
      case TypeKind::Enclosing:
        return read_structure(*type.enclosing, is_key);
      case TypeKind::Reference:
        return read_reference(type);
      case TypeKind::Object:
      case TypeKind::Python:
        reader_.fail("values of that type are never sent");
        return py::none();
      default:
        return number(type.kind);
    }
  }

  rpc::Reader& reader_;
  const std::shared_ptr<const Plan> plan_;
  std::size_t depth_ = 0;
};

}  // namespace

py::object read_value(rpc::Reader& reader, const PlannedType& as) {
  return Decoder(reader, as.plan).read(*as.type);
}

}  // namespace muster::python
