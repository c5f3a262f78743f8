#include "muster/etcd/messages.h"

#include "muster/base/log.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace muster::etcd {
namespace {

namespace json = boost::json;

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr unsigned char kNoDigit = 255;

constexpr std::array<unsigned char, 256> base64_digits() {
  std::array<unsigned char, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t index = 0; index < kBase64.size(); ++index)
    digits[static_cast<unsigned char>(kBase64[index])] = static_cast<unsigned char>(index);
  return digits;
}

// ---- requests. Written by hand: values may be megabytes, and base64 needs no escaping.

void put_field(std::string& out, std::string_view name) {
  if (out.back() != '{') out += ',';
  out += '"';
  out += name;
  out += "\":";
}
void put_bytes(std::string& out, std::string_view name, std::string_view bytes) {
  put_field(out, name);
  out += '"';
  out += encode_base64(bytes);
  out += '"';
}
void put_number(std::string& out, std::string_view name, std::int64_t number) {
  put_field(out, name);
  out += '"';
  out += std::to_string(number);
  out += '"';
}
void put_text(std::string& out, std::string_view name, std::string_view text) {
  put_field(out, name);
  out += json::serialize(json::string_view(text.data(), text.size()));
}
void put_flag(std::string& out, std::string_view name) {
  put_field(out, name);
  out += "true";
}

void put_operations(std::string& out, std::string_view name,
                    const std::vector<Operation>& operations);

void append(std::string& out, const Range& range) {
  out += '{';
  put_bytes(out, "key", range.key);
  if (!range.range_end.empty()) put_bytes(out, "range_end", range.range_end);
  if (range.limit > 0) put_number(out, "limit", range.limit);
  if (range.revision > 0) put_number(out, "revision", range.revision);
  if (range.keys_only) put_flag(out, "keys_only");
  if (range.count_only) put_flag(out, "count_only");
  if (range.by_creation) {
    put_text(out, "sort_target", "CREATE");
    put_text(out, "sort_order", "ASCEND");
  }
  out += '}';
}
void append(std::string& out, const Put& put) {
  out += '{';
  put_bytes(out, "key", put.key);
  put_bytes(out, "value", put.value);
  if (put.lease != 0) put_number(out, "lease", put.lease);
  out += '}';
}
void append(std::string& out, const Delete& deletion) {
  out += '{';
  put_bytes(out, "key", deletion.key);
  if (!deletion.range_end.empty()) put_bytes(out, "range_end", deletion.range_end);
  if (deletion.want_previous) put_flag(out, "prev_kv");
  out += '}';
}
void append(std::string& out, const Compare& compare) {
  out += '{';
  put_bytes(out, "key", compare.key);
  put_text(out, "result", "EQUAL");
  switch (compare.target) {
    case Compare::Target::CreateRevision:
      put_text(out, "target", "CREATE");
      put_number(out, "create_revision", compare.equals);
      break;
    case Compare::Target::ModRevision:
      put_text(out, "target", "MOD");
      put_number(out, "mod_revision", compare.equals);
      break;
    case Compare::Target::Version:
      put_text(out, "target", "VERSION");
      put_number(out, "version", compare.equals);
      break;
  }
  out += '}';
}
void append(std::string& out, const Txn& txn) {
  out += '{';
  put_field(out, "compare");
  out += '[';
  for (const Compare& compare : txn.compares) {
    if (out.back() != '[') out += ',';
    append(out, compare);
  }
  out += ']';
  put_operations(out, "success", txn.success);
  put_operations(out, "failure", txn.failure);
  out += '}';
}

void put_operations(std::string& out, std::string_view name,
                    const std::vector<Operation>& operations) {
  constexpr std::array<std::string_view, 4> kNames = {"request_range", "request_put",
                                                      "request_delete_range", "request_txn"};
  put_field(out, name);
  out += '[';
  for (const Operation& operation : operations) {
    if (out.back() != '[') out += ',';
    out += '{';
    put_field(out, kNames[operation.index()]);
    std::visit([&out](const auto& request) { append(out, request); }, operation);
    out += '}';
  }
  out += ']';
}

// ---- replies. A Fields remembers whether anything in it was not what it should be.

tl::unexpected<Error> nonsense(std::string_view text) {
  return fail(ErrorKind::Unavailable,
              fmt::format("the answer is not one of etcd: {}", log::quote(text)));
}

class Fields {
 public:
  explicit Fields(const json::object& object, bool& failed) : object_(object), failed_(failed) {}

  // 64-bit integers are text; small ones, and other gateways, write numbers.
  std::int64_t number(std::string_view name) const {
    const json::value* const value = find(name);
    if (value == nullptr) return 0;
    if (const json::string* const text = value->if_string()) {
      std::int64_t number = 0;
      const char* const end = text->data() + text->size();
      const auto [stop, problem] = std::from_chars(text->data(), end, number);
      if (problem != std::errc() || stop != end) failed_ = true;
      return number;
    }
    if (const std::int64_t* const number = value->if_int64()) return *number;
    if (const std::uint64_t* const number = value->if_uint64();
        number != nullptr && *number <= std::uint64_t{INT64_MAX}) {
      return static_cast<std::int64_t>(*number);
    }
    failed_ = true;
    return 0;
  }
  bool flag(std::string_view name) const {
    const json::value* const value = find(name);
    if (value == nullptr) return false;
    if (const bool* const flag = value->if_bool()) return *flag;
    failed_ = true;
    return false;
  }
  std::string text(std::string_view name) const {
    const json::value* const value = find(name);
    if (value == nullptr) return {};
    if (const json::string* const text = value->if_string())
      return std::string(text->data(), text->size());
    failed_ = true;
    return {};
  }
  std::string bytes(std::string_view name) const {
    std::optional<std::string> decoded = decode_base64(text(name));
    if (decoded) return std::move(*decoded);
    failed_ = true;
    return {};
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // An absent object is an empty one.
  Fields object(std::string_view name) const {
    static const json::object nothing;
    const json::value* const value = find(name);
    if (value == nullptr) return Fields(nothing, failed_);
    if (const json::object* const object = value->if_object()) return Fields(*object, failed_);
    failed_ = true;
    return Fields(nothing, failed_);
  }
  template <typename Visit>
  void each(std::string_view name, const Visit& visit) const {
    const json::value* const value = find(name);
    if (value == nullptr) return;
    const json::array* const array = value->if_array();
    if (array == nullptr) {
      failed_ = true;
      return;
    }
    for (const json::value& element : *array) {
      if (const json::object* const object = element.if_object()) {
        visit(Fields(*object, failed_));
      } else {
        failed_ = true;
      }
    }
  }

 private:
  const json::value* find(std::string_view name) const {
    const json::value* const value =
        object_.if_contains(json::string_view(name.data(), name.size()));
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  const json::object& object_;
  bool& failed_;
};

// Parses `text` as an object and lets `read` take from it.
template <typename Reply, typename Read>
Result<Reply> parse(std::string_view text, const Read& read) {
  boost::system::error_code problem;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), problem);
  if (problem || !value.is_object()) return nonsense(text);
  bool failed = false;
  Reply reply;
  read(Fields(value.get_object(), failed), reply);
  if (failed) return nonsense(text);
  return reply;
}

std::int64_t revision_of(const Fields& reply) { return reply.object("header").number("revision"); }

KeyValue read_kv(const Fields& fields) {
  KeyValue kv;
  kv.key = fields.bytes("key");
  kv.value = fields.bytes("value");
  kv.create_revision = fields.number("create_revision");
  kv.mod_revision = fields.number("mod_revision");
  kv.version = fields.number("version");
  return kv;
}

std::vector<KeyValue> read_kvs(const Fields& fields, std::string_view name) {
  std::vector<KeyValue> kvs;
  fields.each(name, [&kvs](const Fields& kv) { kvs.push_back(read_kv(kv)); });
  return kvs;
}

OperationReply read_operation(const Fields& response) {
  OperationReply reply;
  if (response.has("response_range")) {
    const Fields range = response.object("response_range");
    reply.kvs = read_kvs(range, "kvs");
    reply.count = range.number("count");
    reply.more = range.flag("more");
  } else if (response.has("response_delete_range")) {
    const Fields deletion = response.object("response_delete_range");
    reply.kvs = read_kvs(deletion, "prev_kvs");
    reply.count = deletion.number("deleted");
  } else if (response.has("response_txn")) {
    const Fields txn = response.object("response_txn");
    reply.succeeded = txn.flag("succeeded");
    txn.each("responses",
             [&reply](const Fields& inner) { reply.replies.push_back(read_operation(inner)); });
  }
  return reply;
}

// The reports of the gateway: {"error": "text", "code": 14}, in newer ones {"message": ...}, and in
// a stream {"error": {"grpc_code": 14, "message": "text"}} or {"error": {"code": 14, ...}}.
struct Report {
  int code = 0;
  std::string message;
};
std::optional<Report> read_report(std::string_view body) {
  boost::system::error_code problem;
  const json::value value = json::parse(json::string_view(body.data(), body.size()), problem);
  if (problem || !value.is_object()) return std::nullopt;
  bool failed = false;
  const json::object* object = &value.get_object();
  if (const json::value* const inner = object->if_contains("error");
      inner != nullptr && inner->is_object()) {
    object = &inner->get_object();
  }
  const Fields fields(*object, failed);
  Report report;
  report.message = fields.text("message");
  if (report.message.empty()) report.message = fields.text("error");
  report.code = static_cast<int>(fields.number(fields.has("grpc_code") ? "grpc_code" : "code"));
  if (failed || report.message.empty()) return std::nullopt;
  return report;
}

// For a stream that has no result.
tl::unexpected<Error> reported(std::string_view line) {
  std::optional<Report> report = read_report(line);
  if (!report) return nonsense(line);
  return fail(ErrorKind::Unavailable, std::move(report->message));
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Verdict verdict(Verdict::Kind kind, ErrorKind error, std::string message, int code) {
  return {kind, {error, std::move(message)}, code};
}

Verdict judge_report(Report report) {
  using Kind = Verdict::Kind;
  std::string& message = report.message;
  const int code = report.code;
  switch (code) {
    case 3:  // invalid argument
      // A token of before a change of users or rights, or none where one is needed now.
      if (contains(message, "revision of auth store is old") ||
          contains(message, "user name is empty")) {
        return verdict(Kind::NewToken, ErrorKind::Invalid, std::move(message), code);
      }
      return verdict(Kind::Refused, ErrorKind::Invalid, std::move(message), code);
    case kCodeNotFound:
    case 6:  // already exists
    case kCodeFailedPrecondition:
    case kCodeOutOfRange:
      return verdict(Kind::Refused, ErrorKind::Conflict, std::move(message), code);
    case 7:  // permission denied
      return verdict(Kind::Refused, ErrorKind::Invalid, std::move(message), code);
    case 8:  // resource exhausted
      if (contains(message, "too many requests"))
        return verdict(Kind::Again, ErrorKind::Unavailable, std::move(message), code);
      if (contains(message, "larger than max"))
        return verdict(Kind::Refused, ErrorKind::Invalid, std::move(message), code);
      return verdict(Kind::Refused, ErrorKind::Unavailable, std::move(message), code);
    case 12:  // unimplemented
      return verdict(Kind::Refused, ErrorKind::Unimplemented, std::move(message), code);
    case 14:  // unavailable
      // Said before anything is proposed to the others.
      if (contains(message, "no leader") || contains(message, "not capable"))
        return verdict(Kind::Again, ErrorKind::Unavailable, std::move(message), code);
      return verdict(Kind::Unknown, ErrorKind::Unavailable, std::move(message), code);
    case 16:  // unauthenticated
      return verdict(Kind::NewToken, ErrorKind::Invalid, std::move(message), code);
    default:
      return verdict(Kind::Unknown, ErrorKind::Unavailable, std::move(message), code);
  }
}

}  // namespace

std::string prefix_end(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  // A zero byte means: to the end of all keys.
  if (end.empty()) return std::string(1, '\0');
  end.back() = static_cast<char>(end.back() + 1);
  return end;
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  const auto at = [bytes](std::size_t index) {
    return std::uint32_t{static_cast<unsigned char>(bytes[index])};
  };
  std::size_t index = 0;
  for (; index + 3 <= bytes.size(); index += 3) {
    const std::uint32_t group = at(index) << 16U | at(index + 1) << 8U | at(index + 2);
    for (const unsigned shift : {18U, 12U, 6U, 0U}) text += kBase64[group >> shift & 63U];
  }
  if (bytes.size() - index == 1) {
    const std::uint32_t group = at(index) << 16U;
    text += kBase64[group >> 18U];
    text += kBase64[group >> 12U & 63U];
    text += "==";
  } else if (bytes.size() - index == 2) {
    const std::uint32_t group = at(index) << 16U | at(index + 1) << 8U;
    text += kBase64[group >> 18U];
    text += kBase64[group >> 12U & 63U];
    text += kBase64[group >> 6U & 63U];
    text += '=';
  }
  return text;
}

std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr std::array<unsigned char, 256> kDigits = base64_digits();
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding_count = 0;
  while (padding_count < 2 && !text.empty() && text.back() == '=') {
    text.remove_suffix(1);
    ++padding_count;
  }
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  std::uint32_t group = 0;
  unsigned bit_count = 0;
  for (const char letter : text) {
    const unsigned char digit = kDigits[static_cast<unsigned char>(letter)];
    if (digit == kNoDigit) return std::nullopt;
    group = group << 6U | digit;
    bit_count += 6;
    if (bit_count >= 8) {
      bit_count -= 8;
      bytes += static_cast<char>(group >> bit_count & 255U);
    }
  }
  return bytes;
}

std::string to_json(const Range& range) {
  std::string out;
  append(out, range);
  return out;
}

std::string to_json(const Txn& txn) {
  std::string out;
  append(out, txn);
  return out;
}

std::string to_json(const WatchRange& range) {
  std::string out = "{\"create_request\":{";
  put_bytes(out, "key", range.key);
  if (!range.range_end.empty()) put_bytes(out, "range_end", range.range_end);
  if (range.start_revision > 0) put_number(out, "start_revision", range.start_revision);
  if (!range.puts || !range.deletes) {
    put_field(out, "filters");
    out += range.puts ? "[\"NODELETE\"]" : "[\"NOPUT\"]";
  }
  out += "}}";
  return out;
}

std::string lease_grant_json(std::int64_t id, std::int64_t ttl_s) {
  return fmt::format(R"({{"ID":"{}","TTL":"{}"}})", id, ttl_s);
}

std::string lease_json(std::int64_t id) { return fmt::format(R"({{"ID":"{}"}})", id); }

std::string authenticate_json(std::string_view user, std::string_view password) {
  std::string out = "{";
  put_text(out, "name", user);
  put_text(out, "password", password);
  out += '}';
  return out;
}

Result<RangeReply> parse_range(std::string_view text) {
  return parse<RangeReply>(text, [](const Fields& fields, RangeReply& reply) {
    reply.revision = revision_of(fields);
    reply.kvs = read_kvs(fields, "kvs");
    reply.count = fields.number("count");
    reply.more = fields.flag("more");
  });
}

Result<TxnReply> parse_txn(std::string_view text) {
  return parse<TxnReply>(text, [](const Fields& fields, TxnReply& reply) {
    reply.revision = revision_of(fields);
    reply.succeeded = fields.flag("succeeded");
    fields.each("responses", [&reply](const Fields& response) {
      reply.replies.push_back(read_operation(response));
    });
  });
}

Result<WatchMessage> parse_watch(std::string_view line) {
  bool has_result = false;
  auto message = parse<WatchMessage>(line, [&has_result](const Fields& outer, WatchMessage& reply) {
    has_result = outer.has("result");
    const Fields fields = outer.object("result");
    reply.revision = revision_of(fields);
    reply.created = fields.flag("created");
    reply.cancelled = fields.flag("canceled");
    reply.compact_revision = fields.number("compact_revision");
    reply.cancel_reason = fields.text("cancel_reason");
    fields.each("events", [&reply](const Fields& event) {
      Event& read = reply.events.emplace_back();
      read.kind = event.text("type") == "DELETE" ? Event::Kind::Delete : Event::Kind::Put;
      read.kv = read_kv(event.object("kv"));
    });
  });
  if (message && !has_result) return reported(line);
  return message;
}

Result<LeaseReply> parse_lease_grant(std::string_view text) {
  return parse<LeaseReply>(
      text, [](const Fields& fields, LeaseReply& reply) { reply.ttl_s = fields.number("TTL"); });
}

Result<LeaseReply> parse_keep_alive(std::string_view text) {
  bool has_result = false;
  auto lease = parse<LeaseReply>(text, [&has_result](const Fields& fields, LeaseReply& reply) {
    has_result = fields.has("result");
    reply.ttl_s = fields.object("result").number("TTL");
  });
  if (lease && !has_result) return reported(text);
  return lease;
}

Result<std::string> parse_token(std::string_view text) {
  return parse<std::string>(
      text, [](const Fields& fields, std::string& token) { token = fields.text("token"); });
}

Result<StatusReply> parse_status(std::string_view text) {
  return parse<StatusReply>(text, [](const Fields& fields, StatusReply& reply) {
    reply.revision = revision_of(fields);
    // Member numbers are unsigned; only whether there is one counts.
    const std::string leader = fields.text("leader");
    reply.has_leader = !leader.empty() && leader != "0";
    reply.version = fields.text("version");
  });
}

Verdict judge(int http_status, std::string_view body) {
  if (std::optional<Report> report = read_report(body); report && report->code != 0)
    return judge_report(std::move(*report));
  std::string message = fmt::format("HTTP status {}: {}", http_status, log::quote(body));
  if (http_status == 404) {
    return verdict(Verdict::Kind::Refused, ErrorKind::Unimplemented,
                   message + "; is this etcd 3.4 or later, with its gateway on?", 0);
  }
  if (http_status >= 400 && http_status < 500)
    return verdict(Verdict::Kind::Refused, ErrorKind::Invalid, std::move(message), 0);
  return verdict(Verdict::Kind::Unknown, ErrorKind::Unavailable, std::move(message), 0);
}

}  // namespace muster::etcd
