// Pickles in messages: how objects of Python travel.
//
//   u8 kind, u32 how many references, the pickle, and its buffers, which travel beside it
//
// Pickling itself is Python's; hooks.h says who does it. A pickle with references is written for
// one message and read from one: see Freight.
#pragma once

#include "muster/rpc/buffer.h"
#include "muster/rpc/freight.h"
#include "muster/rpc/value.h"
#include "python/native/interpreter.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muster::python {

// What a pickle is of.
enum class Kind : std::uint8_t {
  Value = 0,
  Error = 1,  // what a function raised
};

// The message that this thread pickles or unpickles for; nothing outside of one.
rpc::Freight* current_freight();
class FreightScope {
 public:
  explicit FreightScope(rpc::Freight* freight);
  ~FreightScope();
  FreightScope(const FreightScope&) = delete;
  FreightScope& operator=(const FreightScope&) = delete;

 private:
  rpc::Freight* outer_;
};

// Memory of Python that is lent to a message, and memory of a message as an object with a buffer;
// neither is copied. The first throws when it is not contiguous.
rpc::Buffer lent_buffer(py::handle object);
py::object memory_of(rpc::Buffer buffer);

// What Python's pickler made of an object.
struct Pickle {
  py::object data;     // bytes
  py::object buffers;  // list of pickle.PickleBuffer
};

// All of these require the interpreter's lock. Throws when a buffer is not contiguous.
void write_pickle(rpc::Writer& writer, Kind kind, const Pickle& pickle);

// Bytes that Python may read while this is there; whoever still has the view then gets a
// ValueError.
class LentBytes {
 public:
  explicit LentBytes(std::span<const std::byte> bytes);
  ~LentBytes();
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;

  const py::object& view() const { return view_; }

 private:
  py::object view_;
};

// A pickle as it came; good for as long as its message.
struct ReceivedPickle {
  Kind kind = Kind::Value;
  std::uint32_t reference_count = 0;
  std::span<const std::byte> data{};
  std::vector<rpc::Buffer> buffers{};

  // For Python's unpickler: buffers that share their memory. The data is lent to it: LentBytes.
  py::list buffer_list() const;
};
// Does not need the lock; fails the reader.
ReceivedPickle read_pickle(rpc::Reader& reader);

}  // namespace muster::python
