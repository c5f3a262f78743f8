#include "muster/rpc/worker_info.h"

#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace muster::rpc {
namespace {

// Not std::isalnum: what that accepts depends on the locale.
bool is_name_character(char character) {
  return (character >= 'A' && character <= 'Z') || (character >= 'a' && character <= 'z') ||
         (character >= '0' && character <= '9') || character == '-' || character == '_' ||
         character == ':';
}

}  // namespace

bool is_worker_name(std::string_view name) {
  return !name.empty() && name.size() <= kWorkerNameBytesMax &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

WorkerInfo::WorkerInfo(std::string name, std::int16_t id) : name_(std::move(name)), id_(id) {}

Result<WorkerInfo> WorkerInfo::create(std::string name, std::int64_t id) {
  if (!is_worker_name(name)) return fail(ErrorKind::Invalid, bad_worker_name_text(name));
  // Before the number is narrowed: one that does not fit must not become another worker's.
  if (id < std::numeric_limits<std::int16_t>::min() || id > kWorkerIdMax) {
    return fail(ErrorKind::Invalid, bad_worker_id_text(id));
  }
  return WorkerInfo(std::move(name), static_cast<std::int16_t>(id));
}

Result<WorkerInfo> WorkerInfo::create_member(std::string name, std::int64_t id) {
  Result<WorkerInfo> info = create(std::move(name), id);
  if (info && id < 0) return fail(ErrorKind::Invalid, negative_worker_id_text(id));
  return info;
}

std::string WorkerInfo::describe() const {
  return fmt::format("WorkerInfo(id={}, name={})", id_, name_);
}

}  // namespace muster::rpc
