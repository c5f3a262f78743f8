#include "muster/wire/store_protocol.h"

#include "muster/base/assert.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"

#include <fmt/format.h>

#include <array>

namespace muster::wire {
namespace {

constexpr std::uint8_t kNone = 0xff;

// The body of a request, one letter a part: k key, v value, n i64, u u32, K list of keys, P list of
// key-value pairs.
struct Row {
  Operation operation;
  std::string_view name;
  std::uint8_t legacy;
  std::uint8_t modern;
  std::uint8_t extension;
  std::string_view shape;  // of the first two dialects
};

constexpr std::array<Row, kOperationCount> kRows = {{
    {Operation::Set, "SET", 0x00, 0x01, 0x01, "kv"},
    {Operation::CompareSet, "COMPARE_SET", 0x01, 0x02, 0x02, "kvv"},
    {Operation::Get, "GET", 0x02, 0x03, 0x03, "k"},
    {Operation::Add, "ADD", 0x03, 0x04, 0x04, "kn"},
    {Operation::Check, "CHECK", 0x04, 0x05, 0x05, "K"},
    {Operation::Wait, "WAIT", 0x05, 0x06, 0x06, "K"},
    {Operation::NumKeys, "GETNUMKEYS", 0x06, 0x07, 0x07, ""},
    {Operation::WatchKey, "WATCH_KEY", 0x07, kNone, 0x13, "k"},
    {Operation::DeleteKey, "DELETE_KEY", 0x08, 0x08, 0x08, "k"},
    {Operation::Append, "APPEND", kNone, 0x09, 0x09, "kv"},
    {Operation::MultiGet, "MULTI_GET", kNone, 0x0a, 0x0a, "K"},
    {Operation::MultiSet, "MULTI_SET", kNone, 0x0b, 0x0b, "P"},
    {Operation::CancelWait, "CANCEL_WAIT", kNone, 0x0c, 0x0c, ""},
    {Operation::Ping, "PING", kNone, 0x0d, 0x0d, "u"},
    {Operation::QueuePush, "QUEUE_PUSH", kNone, 0x0e, 0x0e, "kv"},
    {Operation::QueuePop, "QUEUE_POP", kNone, 0x0f, 0x0f, "k"},
    {Operation::QueueLength, "QUEUE_LEN", kNone, 0x10, 0x10, "k"},
    {Operation::ListKeys, "LIST_KEYS", kNone, 0x11, 0x11, ""},
    {Operation::Barrier, "BARRIER", kNone, 0x12, 0x12, "kn"},
    {Operation::Upgrade, "UPGRADE", kNone, 0x80, kNone, "uk"},
    {Operation::WatchPrefix, "WATCH_PREFIX", kNone, kNone, 0x14, ""},
    {Operation::DropNamespace, "DROP_NAMESPACE", kNone, kNone, 0x15, ""},
    {Operation::Info, "INFO", kNone, kNone, 0x16, ""},
    {Operation::Open, "OPEN", kNone, kNone, 0x17, ""},
    {Operation::Say, "SAY", kNone, kNone, 0x18, ""},
}};

constexpr bool rows_are_in_order() {
  for (std::size_t index = 0; index < kRows.size(); ++index) {
    if (static_cast<std::size_t>(kRows[index].operation) != index) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

const Row& row(Operation operation) { return kRows[static_cast<std::size_t>(operation)]; }

constexpr std::uint8_t column(const Row& entry, Dialect dialect) {
  switch (dialect) {
    case Dialect::Legacy:
      return entry.legacy;
    case Dialect::Modern:
      return entry.modern;
    case Dialect::Extension:
      return entry.extension;
    case Dialect::Undecided:
      break;
  }
  return kNone;
}

// Opcode to row, one table a dialect: every request passes here.
constexpr std::array<std::uint8_t, 256> index_by_opcode(Dialect dialect) {
  std::array<std::uint8_t, 256> index{};
  index.fill(kNone);
  for (const Row& entry : kRows) {
    const std::uint8_t opcode = column(entry, dialect);
    if (opcode != kNone) index[opcode] = static_cast<std::uint8_t>(entry.operation);
  }
  return index;
}
constexpr std::array<std::array<std::uint8_t, 256>, 3> kByOpcode = {
    index_by_opcode(Dialect::Legacy), index_by_opcode(Dialect::Modern),
    index_by_opcode(Dialect::Extension)};

// More than this many fields are not kept for the next request of the connection.
constexpr std::size_t kFieldsKept = 64;

}  // namespace

std::string_view name_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::Undecided:
      return "undecided";
    case Dialect::Legacy:
      return "legacy";
    case Dialect::Modern:
      return "modern";
    case Dialect::Extension:
      return "extension";
  }
  return "unknown";
}

std::string_view name_of(Operation operation) { return row(operation).name; }

std::optional<std::uint8_t> opcode_of(Operation operation, Dialect dialect) {
  const std::uint8_t opcode = column(row(operation), dialect);
  if (opcode == kNone) return std::nullopt;
  return opcode;
}

std::optional<Operation> operation_of(std::uint8_t opcode, Dialect dialect) {
  if (dialect == Dialect::Undecided) return std::nullopt;
  const std::uint8_t index = kByOpcode[static_cast<std::size_t>(dialect) - 1][opcode];
  if (index == kNone) return std::nullopt;
  return static_cast<Operation>(index);
}

void encode(const Request& request, Dialect dialect, std::string& out) {
  const auto opcode = opcode_of(request.operation, dialect);
  MUSTER_ASSERT(opcode && dialect != Dialect::Extension);
  put(out, *opcode);
  bool first_value = true;
  for (const char part : row(request.operation).shape) {
    switch (part) {
      case 'k':
        put_blob(out, request.key);
        break;
      case 'v':
        put_blob(out, first_value ? request.value : request.desired);
        first_value = false;
        break;
      case 'n':
        put(out, request.number);
        break;
      case 'u':
        put(out, static_cast<std::uint32_t>(request.number));
        break;
      default:
        put<std::uint64_t>(out, request.keys.size());
        for (std::size_t index = 0; index < request.keys.size(); ++index) {
          put_blob(out, request.keys[index]);
          if (part == 'P') put_blob(out, request.values[index]);
        }
    }
  }
}

RequestParser::Status RequestParser::next(std::string_view input, Request& request,
                                          std::size_t& consumed) {
  consumed = 0;
  std::size_t handshake_bytes = 0;
  if (dialect_ == Dialect::Undecided) {
    const Status decided = decide(input);
    if (decided != Status::Complete) return decided;
    if (dialect_ == Dialect::Modern) handshake_bytes = 1 + sizeof kValidateMagic;
    input.remove_prefix(handshake_bytes);
    consumed = handshake_bytes;
  }
  if (dialect_ == Dialect::Extension) return next_frame(input, request, consumed);
  const Status scanned = scan(input);
  if (scanned != Status::Complete) return scanned;
  fill(input, request);
  consumed += position_;
  position_ = 0;
  fields_.clear();
  if (fields_.capacity() > kFieldsKept) fields_.shrink_to_fit();
  return Status::Complete;
}

RequestParser::Status RequestParser::decide(std::string_view input) {
  if (input.empty()) return Status::Incomplete;
  const auto first = static_cast<std::uint8_t>(input[0]);
  if (first != 0) {
    if (!operation_of(first, Dialect::Legacy)) {
      return broken(fmt::format("first byte 0x{:02x} is not that of a store client", first));
    }
    dialect_ = Dialect::Legacy;
    return Status::Complete;
  }
  if (input.size() < 1 + sizeof kValidateMagic) return Status::Incomplete;
  dialect_ =
      load<std::uint32_t>(input.data() + 1) == kValidateMagic ? Dialect::Modern : Dialect::Legacy;
  return Status::Complete;
}

RequestParser::Status RequestParser::scan(std::string_view input) {
  const bool legacy = dialect_ == Dialect::Legacy;
  const std::size_t key_max = legacy ? limits_.legacy_key_bytes : limits_.key_bytes;
  const std::size_t value_max = legacy ? limits_.legacy_value_bytes : limits_.value_bytes;
  if (position_ == 0) {
    if (input.empty()) return Status::Incomplete;
    const auto opcode = static_cast<std::uint8_t>(input[0]);
    const auto operation = operation_of(opcode, dialect_);
    if (!operation)
      return broken(
          fmt::format("unknown opcode 0x{:02x} in the {} dialect", opcode, name_of(dialect_)));
    operation_ = *operation;
    position_ = 1;
    step_ = 0;
    blobs_left_ = 0;
  }
  const std::string_view shape = row(operation_).shape;
  while (blobs_left_ > 0 || step_ < shape.size()) {
    if (blobs_left_ > 0) {
      const bool is_value = shape[step_ - 1] == 'P' && blobs_left_ % 2 == 1;
      const Status blob =
          is_value ? scan_blob(input, value_max, "value") : scan_blob(input, key_max, "key");
      if (blob != Status::Complete) return blob;
      --blobs_left_;
      continue;
    }
    const char part = shape[step_];
    const std::size_t bytes_here = input.size() - position_;
    if (part == 'k' || part == 'v') {
      const Status blob =
          part == 'k' ? scan_blob(input, key_max, "key") : scan_blob(input, value_max, "value");
      if (blob != Status::Complete) return blob;
    } else if (part == 'u') {
      if (bytes_here < sizeof(std::uint32_t)) return Status::Incomplete;
      number_ = load<std::uint32_t>(input.data() + position_);
      position_ += sizeof(std::uint32_t);
    } else {
      if (bytes_here < sizeof(std::uint64_t)) return Status::Incomplete;
      number_ = load<std::int64_t>(input.data() + position_);
      if (part != 'n') {
        const auto count = static_cast<std::uint64_t>(number_);
        if (count > limits_.key_count) {
          return broken(fmt::format("{} of {} keys, more than the limit of {}",
                                    row(operation_).name, count, limits_.key_count));
        }
        blobs_left_ = part == 'P' ? 2 * count : count;
      }
      position_ += sizeof(std::uint64_t);
    }
    ++step_;
  }
  return Status::Complete;
}

RequestParser::Status RequestParser::scan_blob(std::string_view input, std::size_t limit,
                                               std::string_view what) {
  if (input.size() - position_ < sizeof(std::uint64_t)) return Status::Incomplete;
  const auto size = load<std::uint64_t>(input.data() + position_);
  if (size > limit) {
    return broken(fmt::format("{} with a {} of {} bytes, more than the limit of {}",
                              row(operation_).name, what, size, limit));
  }
  const std::size_t start = position_ + sizeof(std::uint64_t);
  if (input.size() - start < size) return Status::Incomplete;
  fields_.push_back({start, size});
  position_ = start + size;
  return Status::Complete;
}

void RequestParser::fill(std::string_view input, Request& request) {
  request.operation = operation_;
  request.id = 0;
  request.blocking = false;
  request.key = {};
  request.value = {};
  request.desired = {};
  request.number = number_;
  request.keys.clear();
  request.values.clear();
  const auto view = [&](std::size_t index) {
    return input.substr(fields_[index].offset, fields_[index].size);
  };
  const std::string_view shape = row(operation_).shape;
  if (shape == "K") {
    for (std::size_t index = 0; index < fields_.size(); ++index)
      request.keys.push_back(view(index));
    return;
  }
  if (shape == "P") {
    for (std::size_t index = 0; index < fields_.size(); index += 2) {
      request.keys.push_back(view(index));
      request.values.push_back(view(index + 1));
    }
    return;
  }
  if (!fields_.empty()) request.key = view(0);
  if (fields_.size() > 1) request.value = view(1);
  if (fields_.size() > 2) request.desired = view(2);
}

RequestParser::Status RequestParser::next_frame(std::string_view input, Request& request,
                                                std::size_t& consumed) {
  if (input.size() < sizeof(std::uint32_t)) return Status::Incomplete;
  const auto size = load<std::uint32_t>(input.data());
  if (size < kFrameHeaderBytes - sizeof(std::uint32_t))
    return broken("a frame shorter than its header");
  if (size > limits_.frame_bytes) {
    return broken(
        fmt::format("a frame of {} bytes, more than the limit of {}", size, limits_.frame_bytes));
  }
  if (input.size() - sizeof(std::uint32_t) < size) {
    // What is too long to be said is not gathered first.
    if (!may_become_request(input, limits_))
      return broken(fmt::format("a message of more than {} bytes", limits_.message_bytes));
    return Status::Incomplete;
  }
  consumed = sizeof(std::uint32_t) + size;
  if (!decode_request(input.substr(0, consumed), limits_, request, reason_)) return Status::Broken;
  return Status::Complete;
}

RequestParser::Status RequestParser::broken(std::string reason) {
  reason_ = std::move(reason);
  return Status::Broken;
}

}  // namespace muster::wire
