#include "muster/store/file_log.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr char kUserMark = '/';
constexpr char kDeleteMark = '-';
constexpr char kPushMark = '<';
constexpr char kPopMark = '>';

void append_length(std::size_t length, std::string& out) {
  for (std::size_t index = 0; index < kLengthBytes; ++index) {
    out.push_back(static_cast<char>((length >> (8 * index)) & 0xff));
  }
}

void append_record(std::string_view marks, std::string_view name, std::string_view value,
                   std::string& out) {
  MUSTER_ASSERT(name.size() <= kFileKeyBytesMax && value.size() <= kFileValueBytesMax);
  append_length(marks.size() + name.size(), out);
  out.append(marks);
  out.append(name);
  append_length(value.size(), out);
  out.append(value);
}

// The bytes of a length that are there, the missing ones taken as 0: the least that the length can
// turn out to be.
std::size_t least_length(std::string_view bytes) {
  std::size_t length = 0;
  for (std::size_t index = 0; index < std::min(bytes.size(), kLengthBytes); ++index) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[index])) << (8 * index);
  }
  return length;
}

// Whether a record's key can begin with `start`. PyTorch's own keys are plain words; that much is
// asked of them so that a file that is something else altogether is recognised early.
bool can_start_key(std::string_view start) {
  if (start.empty() || start[0] == kUserMark || start[0] == kDeleteMark) return true;
  return std::all_of(start.begin(), start.end(),
                     [](char letter) { return letter > ' ' && letter <= '~'; });
}

std::string user_record_key(std::string_view key) {
  std::string out;
  out.reserve(1 + key.size());
  out.push_back(kUserMark);
  out.append(key);
  return out;
}

}  // namespace

void append_set(std::string_view key, std::string_view value, std::string& out) {
  append_record("/", key, value, out);
}

void append_delete(std::string_view key, std::string& out) { append_record("-/", key, "", out); }

void append_push(std::string_view queue, std::string_view item, std::string& out) {
  append_record("-<", queue, item, out);
}

void append_pop(std::string_view queue, std::string& out) { append_record("->", queue, "", out); }

Result<std::optional<FileRecord>> decode_record(std::string_view bytes) {
  const std::size_t key_bytes = least_length(bytes);
  if (key_bytes > kFileRecordKeyBytesMax) {
    return fail(ErrorKind::Invalid, fmt::format("a key of {} bytes or more, where {} are allowed",
                                                key_bytes, kFileRecordKeyBytesMax));
  }
  if (bytes.size() < kLengthBytes) return std::nullopt;
  if (key_bytes == 0) return fail(ErrorKind::Invalid, "a key of 0 bytes");

  const std::string_view key = bytes.substr(kLengthBytes, key_bytes);
  if (!can_start_key(key)) {
    return fail(ErrorKind::Invalid, fmt::format("the key {}", log::quote(key)));
  }
  if (key.size() < key_bytes) return std::nullopt;

  const std::string_view rest = bytes.substr(kLengthBytes + key_bytes);
  const std::size_t value_bytes = least_length(rest);
  if (value_bytes > kFileValueBytesMax) {
    return fail(ErrorKind::Invalid, fmt::format("a value of {} bytes or more, where {} are allowed",
                                                value_bytes, kFileValueBytesMax));
  }
  if (rest.size() < kLengthBytes + value_bytes) return std::nullopt;
  return FileRecord{.key = key,
                    .value = rest.substr(kLengthBytes, value_bytes),
                    .bytes = kLengthBytes + key_bytes + kLengthBytes + value_bytes};
}

Result<std::size_t> FileLog::replay(std::string_view bytes, const Observer& observer) {
  std::size_t consumed = 0;
  for (;;) {
    const auto record = decode_record(bytes.substr(consumed));
    if (!record) return fail(record.error());
    if (!*record) return consumed;
    apply(**record, observer);
    consumed += (*record)->bytes;
    position_ += (*record)->bytes;
  }
}

void FileLog::apply(const FileRecord& record, const Observer& observer) {
  if (record.key[0] == kDeleteMark) {
    apply_marked(record.key.substr(1), record.value, observer);
    return;
  }
  const auto [entry, created] = entries_.try_emplace(std::string(record.key));
  entry->second = record.value;
  if (record.key[0] != kUserMark || !observer) return;
  observer({.kind = created ? FileChange::Kind::Created : FileChange::Kind::Updated,
            .name = record.key.substr(1),
            .value = record.value});
}

void FileLog::apply_marked(std::string_view mark_and_name, std::string_view value,
                           const Observer& observer) {
  const char mark = mark_and_name.empty() ? '\0' : mark_and_name[0];
  const std::string_view name = mark_and_name.substr(mark == '\0' ? 0 : 1);
  if (mark == kPushMark) {
    queues_[std::string(name)].emplace_back(value);
    if (observer) observer({.kind = FileChange::Kind::Pushed, .name = name, .value = value});
  } else if (mark == kPopMark) {
    const auto queue = queues_.find(name);
    if (queue == queues_.end()) return;
    queue->second.pop_front();
    if (queue->second.empty()) queues_.erase(queue);
  } else if (const auto entry = entries_.find(mark_and_name); entry != entries_.end()) {
    entries_.erase(entry);
    if (mark == kUserMark && observer) {
      observer({.kind = FileChange::Kind::Deleted, .name = name, .value = {}});
    }
  }
}

const std::string* FileLog::find(std::string_view key) const {
  const auto entry = entries_.find(user_record_key(key));
  return entry == entries_.end() ? nullptr : &entry->second;
}

Result<std::int64_t> FileLog::sum(std::string_view key, std::int64_t delta) const {
  const std::string* const text = find(key);
  if (text == nullptr || text->empty()) return delta;
  const std::optional<std::int64_t> value = parse_counter(*text);
  if (!value) {
    return fail(ErrorKind::Invalid,
                fmt::format("cannot add to key {}: its value {} is not a number", log::quote(key),
                            log::quote(*text)));
  }
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(*value) +
                                   static_cast<std::uint64_t>(delta));
}

std::vector<std::string> FileLog::keys(std::string_view prefix) const {
  const std::string first = user_record_key(prefix);
  std::vector<std::string> out;
  for (auto entry = entries_.lower_bound(first);
       entry != entries_.end() && entry->first.starts_with(first); ++entry) {
    out.push_back(entry->first.substr(1));
  }
  return out;
}

const std::string* FileLog::front(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? nullptr : &found->second.front();
}

std::size_t FileLog::queue_length(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : found->second.size();
}

}  // namespace muster::store
