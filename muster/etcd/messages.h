// What is said to etcd v3 over its HTTP/JSON gateway, and what it answers: requests to JSON, JSON
// to replies, failures to verdicts. Pure.
//
// The gateway writes bytes as base64, 64-bit integers as text, and leaves out what is zero.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muster::etcd {

struct KeyValue {
  std::string key;
  std::string value;
  std::int64_t create_revision = 0;
  std::int64_t mod_revision = 0;  // of the last write; of the deletion in a Delete event
  std::int64_t version = 0;       // writes since the key was created

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// Reads one key, or all from `key` to before `range_end`. Linearizable.
struct Range {
  std::string key;
  std::string range_end = {};
  std::int64_t limit = 0;     // none
  std::int64_t revision = 0;  // as it was then; 0 for now
  bool keys_only = false;
  bool count_only = false;
  bool by_creation = false;  // oldest first, instead of by key
};
struct Put {
  std::string key;
  std::string value;
  std::int64_t lease = 0;
};
struct Delete {
  std::string key;
  std::string range_end = {};
  bool want_previous = false;  // the reply has what was deleted
};
struct Txn;
using Operation = std::variant<Range, Put, Delete, Txn>;

struct Compare {
  enum class Target { CreateRevision, ModRevision, Version };
  std::string key;
  Target target = Target::ModRevision;
  std::int64_t equals = 0;  // an absent key has 0 everywhere
};
// If every comparison holds, `success` is carried out, else `failure`; all at one revision.
struct Txn {
  std::vector<Compare> compares;
  std::vector<Operation> success;
  std::vector<Operation> failure;
};

// What one operation of a transaction came to.
struct OperationReply {
  std::vector<KeyValue> kvs;  // found by a Range, or deleted
  std::int64_t count = 0;     // of all keys in the range, whatever the limit; of deleted keys
  bool more = false;          // the limit cut the reply
  bool succeeded = false;     // of an inner Txn
  std::vector<OperationReply> replies = {};  // of an inner Txn
};
struct RangeReply {
  std::int64_t revision = 0;  // of the whole store when this was read
  std::vector<KeyValue> kvs;
  std::int64_t count = 0;
  bool more = false;
};
struct TxnReply {
  std::int64_t revision = 0;
  bool succeeded = false;
  std::vector<OperationReply> replies;
  // An earlier attempt of this transaction had no answer: it may have been the one that counted.
  bool repeated = false;
};

// One key, or a range of keys, to be told about.
struct WatchRange {
  std::string key;
  std::string range_end = {};
  std::int64_t start_revision = 0;  // the first one to hear about
  bool puts = true;
  bool deletes = true;
};
struct Event {
  enum class Kind { Put, Delete };
  Kind kind = Kind::Put;
  KeyValue kv;
};
// One message of a watch stream.
struct WatchMessage {
  std::int64_t revision = 0;
  bool created = false;
  bool cancelled = false;
  std::int64_t compact_revision = 0;  // when cancelled: what is older is no longer known
  std::string cancel_reason;
  std::vector<Event> events;
};

// The end of the range of all keys that begin with `prefix`.
std::string prefix_end(std::string_view prefix);

std::string encode_base64(std::string_view bytes);
// Nothing if it is not base64.
std::optional<std::string> decode_base64(std::string_view text);

std::string to_json(const Range& range);
std::string to_json(const Txn& txn);
std::string to_json(const WatchRange& range);
std::string lease_grant_json(std::int64_t id, std::int64_t ttl_s);
std::string lease_json(std::int64_t id);
std::string authenticate_json(std::string_view user, std::string_view password);

// Errors of these say what was wrong with the reply; the caller knows whose it was.
Result<RangeReply> parse_range(std::string_view text);
Result<TxnReply> parse_txn(std::string_view text);
// A line of the stream; Unavailable if it is the gateway's report of an error.
Result<WatchMessage> parse_watch(std::string_view line);
struct LeaseReply {
  std::int64_t ttl_s = 0;  // 0: there is no such lease
};
Result<LeaseReply> parse_lease_grant(std::string_view text);
Result<LeaseReply> parse_keep_alive(std::string_view text);
Result<std::string> parse_token(std::string_view text);
struct StatusReply {
  std::int64_t revision = 0;
  bool has_leader = false;
  std::string version;
};
Result<StatusReply> parse_status(std::string_view text);

// What an answer that is no success means for the request.
struct Verdict {
  enum class Kind {
    Refused,   // final: `error` is for the caller
    Again,     // not carried out; another member may be able to
    Unknown,   // perhaps carried out
    NewToken,  // not carried out: the token of the user is not valid (any more)
  };
  Kind kind = Kind::Refused;
  Error error;
  int code = 0;  // gRPC's, where the answer had one
};
// gRPC's status codes that callers look at.
inline constexpr int kCodeNotFound = 5;
inline constexpr int kCodeFailedPrecondition = 9;
inline constexpr int kCodeOutOfRange = 11;
Verdict judge(int http_status, std::string_view body);

}  // namespace muster::etcd
