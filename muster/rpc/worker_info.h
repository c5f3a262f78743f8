// WorkerInfo: the name and the number under which a worker is known to its group.
//
// A value; it never changes once it is made, and whoever holds one holds a name that is fit for
// texts and store keys: letters, digits, '-', '_' and ':' of ASCII only, whatever the locale is.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster::rpc {

inline constexpr std::size_t kWorkerNameBytesMax = 127;
inline constexpr std::int16_t kWorkerIdMax = 32767;

class WorkerInfo {
 public:
  // Invalid when the name or the id is bad; of the two the name is reported. Negative ids of 16
  // bits are let through, since programs make infos for workers that do not exist.
  static Result<WorkerInfo> create(std::string name, std::int64_t id);
  // For a worker that is about to join a group: no negative id either.
  static Result<WorkerInfo> create_member(std::string name, std::int64_t id);

  const std::string& name() const { return name_; }
  std::int16_t id() const { return id_; }

  // "WorkerInfo(id=3, name=a)", as it appears inside many texts.
  std::string describe() const;

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;

 private:
  WorkerInfo(std::string name, std::int16_t id);

  std::string name_;
  std::int16_t id_;
};

// One to 127 bytes of [A-Za-z0-9_:-].
bool is_worker_name(std::string_view name);

}  // namespace muster::rpc

// By the id alone: infos of one id collide but stay unequal, as in torch.distributed.rpc.
template <>
struct std::hash<muster::rpc::WorkerInfo> {
  std::size_t operator()(const muster::rpc::WorkerInfo& info) const noexcept {
    return std::hash<std::int16_t>()(info.id());
  }
};
