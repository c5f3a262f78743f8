#include "muster/wire/store_extension.h"

#include "muster/base/assert.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

namespace muster::wire {
namespace {

// The parts of an extension body, in the letters of store_protocol.cpp and b for the blocking flag,
// s for a service, m for a message, which goes on to the end.
std::string_view shape_of(Operation operation) {
  switch (operation) {
    case Operation::Set:
    case Operation::Append:
    case Operation::QueuePush:
      return "kv";
    case Operation::CompareSet:
      return "kvv";
    case Operation::Get:
    case Operation::QueuePop:
      return "bk";
    case Operation::Add:
    case Operation::Barrier:
      return "kn";
    case Operation::Check:
    case Operation::Wait:
      return "K";
    case Operation::MultiGet:
      return "bK";
    case Operation::MultiSet:
      return "P";
    case Operation::WatchKey:
    case Operation::WatchPrefix:
    case Operation::DeleteKey:
    case Operation::QueueLength:
    case Operation::ListKeys:
    case Operation::DropNamespace:
      return "k";
    case Operation::CancelWait:
      return "u";
    case Operation::Open:
      return "sm";
    case Operation::Say:
      return "m";
    case Operation::NumKeys:
    case Operation::Ping:
    case Operation::Info:
    case Operation::Upgrade:
      return "";
  }
  return "";
}

void put_size(std::size_t start, std::string& out) {
  const auto size = static_cast<std::uint32_t>(out.size() - start - sizeof(std::uint32_t));
  std::memcpy(out.data() + start, &size, sizeof size);
}

void put_key(std::string& out, std::string_view prefix, std::string_view key) {
  put(out, static_cast<std::uint32_t>(prefix.size() + key.size()));
  out.append(prefix);
  out.append(key);
}

bool decode_list(Reader& reader, const Limits& limits, bool pairs, Request& request) {
  const auto count = reader.integer<std::uint32_t>();
  if (count > limits.key_count) return false;
  for (std::uint32_t index = 0; index < count && !reader.failed(); ++index) {
    request.keys.push_back(reader.string(limits.key_bytes));
    if (pairs) request.values.push_back(reader.string(limits.value_bytes));
  }
  return true;
}

}  // namespace

std::optional<Error> error_of(const Reply& reply) {
  if (reply.status < kStatusErrorBase) return std::nullopt;
  const int kind = reply.status - kStatusErrorBase;
  Error error;
  error.kind = kind < kErrorKindCount ? static_cast<ErrorKind>(kind) : ErrorKind::Invalid;
  // Our servers always say why; whatever this one is, people must not be left with an empty line.
  error.message = reply.body.empty() ? "the server gave no reason" : reply.body;
  return error;
}

void encode_request(const Request& request, std::string& out) { encode_request(request, "", out); }

void encode_request(const Request& request, std::string_view key_prefix, std::string& out) {
  const auto opcode = opcode_of(request.operation, Dialect::Extension);
  MUSTER_ASSERT(opcode.has_value());
  const std::size_t start = out.size();
  put<std::uint32_t>(out, 0);
  put(out, request.id);
  put(out, *opcode);
  bool first_value = true;
  for (const char part : shape_of(request.operation)) {
    switch (part) {
      case 'b':
        put<std::uint8_t>(out, request.blocking ? 1 : 0);
        break;
      case 'k':
        put_key(out, key_prefix, request.key);
        break;
      case 'v':
        put_string(out, first_value ? request.value : request.desired);
        first_value = false;
        break;
      case 'n':
        put(out, request.number);
        break;
      case 'u':
        put(out, static_cast<std::uint32_t>(request.number));
        break;
      case 's':
        put(out, static_cast<std::uint8_t>(request.number));
        break;
      case 'm':
        out.append(request.value);
        break;
      default:
        put(out, static_cast<std::uint32_t>(request.keys.size()));
        for (std::size_t index = 0; index < request.keys.size(); ++index) {
          put_key(out, key_prefix, request.keys[index]);
          if (part == 'P') put_string(out, request.values[index]);
        }
    }
  }
  put_size(start, out);
}

bool decode_request(std::string_view frame, const Limits& limits, Request& request,
                    std::string& reason) {
  Reader reader(frame.substr(sizeof(std::uint32_t)));
  request.id = reader.integer<std::uint32_t>();
  const auto opcode = reader.integer<std::uint8_t>();
  request.blocking = false;
  request.key = {};
  request.value = {};
  request.desired = {};
  request.number = opcode;
  request.keys.clear();
  request.values.clear();
  request.operation = Operation::Upgrade;
  const auto operation = operation_of(opcode, Dialect::Extension);
  if (!operation) return true;
  request.operation = *operation;
  bool first_value = true;
  bool within_limits = true;
  for (const char part : shape_of(request.operation)) {
    switch (part) {
      case 'b':
        request.blocking = reader.integer<std::uint8_t>() != 0;
        break;
      case 'k':
        request.key = reader.string(limits.key_bytes);
        break;
      case 'v':
        (first_value ? request.value : request.desired) = reader.string(limits.value_bytes);
        first_value = false;
        break;
      case 'n':
        request.number = reader.integer<std::int64_t>();
        break;
      case 'u':
        request.number = reader.integer<std::uint32_t>();
        break;
      case 's':
        request.number = reader.integer<std::uint8_t>();
        break;
      case 'm':
        request.value = reader.rest();
        within_limits = request.value.size() <= limits.message_bytes;
        if (!reader.failed()) reader = Reader({});
        break;
      default:
        within_limits = decode_list(reader, limits, part == 'P', request);
    }
  }
  if (within_limits && reader.finished()) return true;
  reason = fmt::format("a malformed {} frame of {} bytes, or one over the limits",
                       name_of(request.operation), frame.size());
  return false;
}

bool may_become_request(std::string_view input, const Limits& limits) {
  if (input.size() < kFrameHeaderBytes) return true;
  const auto operation = operation_of(static_cast<std::uint8_t>(input[8]), Dialect::Extension);
  std::size_t fixed_bytes = kFrameHeaderBytes - sizeof(std::uint32_t);
  if (operation == Operation::Open) {
    fixed_bytes += sizeof(std::uint8_t);
  } else if (operation != Operation::Say) {
    return true;
  }
  return load<std::uint32_t>(input.data()) <= fixed_bytes + limits.message_bytes;
}

std::size_t begin_reply(std::uint32_t id, std::uint8_t status, std::string& out) {
  const std::size_t start = out.size();
  put<std::uint32_t>(out, 0);
  put(out, id);
  put(out, status);
  return start;
}

void end_reply(std::size_t start, std::string& out) { put_size(start, out); }

void encode_error(std::uint32_t id, ErrorKind kind, std::string_view message, std::string& out) {
  const std::size_t start = begin_reply(id, status_of(kind), out);
  out.append(message);
  end_reply(start, out);
}

std::optional<std::size_t> decode_reply(std::string_view input, std::size_t size_max,
                                        Reply& reply) {
  if (input.size() < sizeof(std::uint32_t)) return 0;
  const auto size = load<std::uint32_t>(input.data());
  if (size < kFrameHeaderBytes - sizeof(std::uint32_t) || size > size_max) return std::nullopt;
  const std::size_t total = sizeof(std::uint32_t) + size;
  if (input.size() < total) return 0;
  reply.id = load<std::uint32_t>(input.data() + 4);
  reply.status = load<std::uint8_t>(input.data() + 8);
  reply.body = input.substr(kFrameHeaderBytes, total - kFrameHeaderBytes);
  return total;
}

}  // namespace muster::wire
