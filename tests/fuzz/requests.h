// Requests in one line each, for the tests and fuzz targets of the wire protocol and of the Hub.
//
// The views point to the arguments, which must outlive the request; literals do.
#pragma once

#include "muster/base/assert.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "muster/wire/store_protocol.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {

using wire::Dialect;
using wire::Operation;
using wire::Request;

inline constexpr std::string_view kValidate("\x00\xCE\xF7\x85\x3C", 5);

inline Request request(Operation operation, std::string_view key = {}) {
  Request made;
  made.operation = operation;
  made.key = key;
  return made;
}

inline Request request(Operation operation, std::initializer_list<std::string_view> keys) {
  Request made;
  made.operation = operation;
  made.keys = keys;
  return made;
}

inline Request with_value(Request made, std::string_view value) {
  made.value = value;
  return made;
}

inline Request with_number(Request made, std::int64_t number) {
  made.number = number;
  return made;
}

// The extension only.
inline Request with_id(std::uint32_t id, Request made) {
  made.id = id;
  return made;
}

// The extension only: the request waits on the server.
inline Request blocking(Request made) {
  made.blocking = true;
  return made;
}

inline Request set(std::string_view key, std::string_view value) {
  return with_value(request(Operation::Set, key), value);
}
inline Request compare_set(std::string_view key, std::string_view expected,
                           std::string_view desired) {
  Request made = with_value(request(Operation::CompareSet, key), expected);
  made.desired = desired;
  return made;
}
inline Request get(std::string_view key) { return request(Operation::Get, key); }
inline Request add(std::string_view key, std::int64_t delta) {
  return with_number(request(Operation::Add, key), delta);
}
inline Request check(std::initializer_list<std::string_view> keys) {
  return request(Operation::Check, keys);
}
inline Request wait(std::initializer_list<std::string_view> keys) {
  return request(Operation::Wait, keys);
}
inline Request num_keys() { return request(Operation::NumKeys); }
inline Request watch_key(std::string_view key) { return request(Operation::WatchKey, key); }
inline Request delete_key(std::string_view key) { return request(Operation::DeleteKey, key); }
inline Request append(std::string_view key, std::string_view data) {
  return with_value(request(Operation::Append, key), data);
}
inline Request multi_get(std::initializer_list<std::string_view> keys) {
  return request(Operation::MultiGet, keys);
}
inline Request multi_set(
    std::initializer_list<std::pair<std::string_view, std::string_view>> pairs) {
  Request made = request(Operation::MultiSet);
  for (const auto& [key, value] : pairs) {
    made.keys.push_back(key);
    made.values.push_back(value);
  }
  return made;
}
inline Request cancel_wait() { return request(Operation::CancelWait); }
// The extension's, which says what to cancel.
inline Request cancel(std::uint32_t id) { return with_number(cancel_wait(), id); }
inline Request ping(std::uint32_t nonce) { return with_number(request(Operation::Ping), nonce); }
inline Request queue_push(std::string_view queue, std::string_view item) {
  return with_value(request(Operation::QueuePush, queue), item);
}
inline Request queue_pop(std::string_view queue) { return request(Operation::QueuePop, queue); }
inline Request queue_length(std::string_view queue) {
  return request(Operation::QueueLength, queue);
}
inline Request list_keys() { return request(Operation::ListKeys); }
// The extension's, which lists only keys that begin with `prefix`.
inline Request list_keys(std::string_view prefix) { return request(Operation::ListKeys, prefix); }
inline Request barrier(std::string_view key, std::int64_t member_count) {
  return with_number(request(Operation::Barrier, key), member_count);
}
inline Request upgrade(std::uint32_t version, std::string_view namespace_name) {
  return with_number(request(Operation::Upgrade, namespace_name), version);
}
inline Request watch_prefix(std::string_view prefix) {
  return request(Operation::WatchPrefix, prefix);
}
inline Request drop_namespace(std::string_view name) {
  return request(Operation::DropNamespace, name);
}
inline Request info() { return request(Operation::Info); }
inline Request open_service(std::uint8_t service, std::string_view message) {
  return with_number(with_value(request(Operation::Open), message), service);
}
inline Request say(std::string_view message) {
  return with_value(request(Operation::Say), message);
}

// Requires: the dialect has the operation.
inline std::string bytes_of(const Request& made, Dialect dialect) {
  std::string out;
  if (dialect == Dialect::Extension) {
    wire::encode_request(made, out);
  } else {
    wire::encode(made, dialect, out);
  }
  return out;
}

// A request that owns its bytes, to be kept when the input it was parsed from is gone.
struct KeptRequest {
  Operation operation = Operation::Ping;
  std::uint32_t id = 0;
  bool blocking = false;
  std::string key;
  std::string value;
  std::string desired;
  std::int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;

  friend bool operator==(const KeptRequest&, const KeptRequest&) = default;
};

inline KeptRequest keep(const Request& seen) {
  KeptRequest kept;
  kept.operation = seen.operation;
  kept.id = seen.id;
  kept.blocking = seen.blocking;
  kept.key = seen.key;
  kept.value = seen.value;
  kept.desired = seen.desired;
  kept.number = seen.number;
  kept.keys.assign(seen.keys.begin(), seen.keys.end());
  kept.values.assign(seen.values.begin(), seen.values.end());
  return kept;
}

inline Request view(const KeptRequest& kept) {
  Request seen;
  seen.operation = kept.operation;
  seen.id = kept.id;
  seen.blocking = kept.blocking;
  seen.key = kept.key;
  seen.value = kept.value;
  seen.desired = kept.desired;
  seen.number = kept.number;
  seen.keys.assign(kept.keys.begin(), kept.keys.end());
  seen.values.assign(kept.values.begin(), kept.values.end());
  return seen;
}

// Parses the bytes of one connection as a server does: keeps what is unfinished, in front of what
// comes next. The parser sees each input in memory of exactly its size, so that AddressSanitizer
// notices every byte read past it.
class Feeder {
 public:
  using Status = wire::RequestParser::Status;

  explicit Feeder(const wire::Limits& limits) : parser_(limits) {}

  // What the parser said last; Broken is for ever.
  Status feed(std::string_view bytes) {
    unparsed_ += bytes;
    while (status_ != Status::Broken) {
      const std::vector<char> exact(unparsed_.begin(), unparsed_.end());
      std::size_t consumed = 0;
      status_ = parser_.next({exact.data(), exact.size()}, request_, consumed);
      MUSTER_ASSERT(consumed <= exact.size());
      if (status_ == Status::Complete) requests_.push_back(keep(request_));
      unparsed_.erase(0, consumed);
      if (status_ == Status::Incomplete) break;
    }
    return status_;
  }

  wire::RequestParser& parser() { return parser_; }
  bool broken() const { return status_ == Status::Broken; }
  const std::vector<KeptRequest>& requests() const { return requests_; }
  std::size_t unparsed_bytes() const { return unparsed_.size(); }

 private:
  wire::RequestParser parser_;
  std::string unparsed_;
  Request request_;  // used again and again, as the server does
  Status status_ = Status::Incomplete;
  std::vector<KeptRequest> requests_;
};

}  // namespace muster::tests
