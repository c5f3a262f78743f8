#include "muster/rref/control.h"

#include "muster/base/assert.h"
#include "muster/rpc/value.h"

#include <fmt/format.h>

namespace muster::rref {
namespace {

using rpc::MessageType;

// An id on the wire: the worker in 16 bits, then the number in 64.
void write(rpc::Writer& writer, GlobalId id) { writer.write(id.created_on(), id.local()); }

GlobalId read_id(rpc::Reader& reader) {
  const auto created_on = reader.read<std::int16_t>();
  const auto local = reader.read<std::int64_t>();
  const bool is_good = local >= 0 && local <= kLocalIdMax;
  reader.require(is_good, "an id is out of range");
  return is_good ? GlobalId(created_on, local) : GlobalId();
}

bool carries_rref(MessageType type) {
  return type == MessageType::RrefForkRequest || type == MessageType::RrefUserDelete;
}

template <typename T>
Result<T> finished(const rpc::Reader& reader, T value, std::string_view what) {
  if (const Result<> read = reader.finish(); !read) {
    return fail(ErrorKind::Corrupt, fmt::format("{}: {}", what, read.error().message));
  }
  return value;
}

}  // namespace

std::string encode(const ForkData& data) {
  MUSTER_ASSERT(data.type.size() <= kTypeTextBytesMax);
  rpc::Writer writer;
  writer.write(data.owner);
  write(writer, data.rref);
  write(writer, data.fork);
  writer.write(data.parent, data.owner_series, data.type);
  return writer.take_control();
}

Result<ForkData> decode_fork_data(std::string_view bytes) {
  rpc::Reader reader(bytes);
  ForkData data;
  reader.read(data.owner);
  data.rref = read_id(reader);
  data.fork = read_id(reader);
  reader.read(data.parent, data.owner_series, data.type);
  reader.require(data.type.size() <= kTypeTextBytesMax, "the name of a type is too long");
  return finished(reader, std::move(data), "the data of a fork");
}

bool is_control(MessageType type) {
  return carries_rref(type) || type == MessageType::RrefChildAccept ||
         type == MessageType::RrefForkCancel;
}

std::string encode(const Control& control) {
  MUSTER_ASSERT(is_control(control.type));
  rpc::Writer writer;
  if (carries_rref(control.type)) write(writer, control.rref);
  write(writer, control.fork);
  return writer.take_control();
}

Result<Control> decode_control(MessageType type, std::string_view payload) {
  if (!is_control(type)) {
    return fail(ErrorKind::Corrupt,
                fmt::format("{} is no message about references", rpc::name_of(type)));
  }
  rpc::Reader reader(payload);
  Control control{type, {}, {}};
  if (carries_rref(type)) control.rref = read_id(reader);
  control.fork = read_id(reader);
  return finished(reader, control, rpc::name_of(type));
}

std::string encode(Ack ack) {
  if (ack == Ack::Done) return {};
  return std::string(1, static_cast<char>(ack));
}

Result<Ack> decode_ack(std::string_view payload) {
  if (payload.empty()) return Ack::Done;
  const auto byte = static_cast<std::uint8_t>(payload.front());
  if (payload.size() != 1 || byte == 0 || byte > static_cast<std::uint8_t>(Ack::Cancelled)) {
    return fail(ErrorKind::Corrupt, "RREF_ACK: it is no answer that this worker knows");
  }
  return static_cast<Ack>(byte);
}

std::string encode(const FetchCall& call) {
  rpc::Writer writer;
  write(writer, call.rref);
  write(writer, call.fork);
  return writer.take_control();
}

Result<FetchCall> decode_fetch_call(std::string_view payload) {
  rpc::Reader reader(payload);
  FetchCall call;
  call.rref = read_id(reader);
  call.fork = read_id(reader);
  return finished(reader, call, "a fetch");
}

}  // namespace muster::rref
