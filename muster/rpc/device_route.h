// DeviceRoute: what happens to the tensors of one message: which device they are for on the other
// side, and who moves them to the CPU here, from where they are sent, and to the device there.
//
// Muster itself touches no memory but that of the CPU. A program with accelerators gives its own
// DeviceSupport to `init`.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/buffer.h"
#include "muster/rpc/device.h"
#include "muster/rpc/device_maps.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

// Moves bytes between the CPU and accelerators. Called by any thread, by several at once, also by
// those that read answers: as quick as the copy itself. Throws nothing.
class DeviceSupport {
 public:
  virtual ~DeviceSupport() = default;

  virtual std::int32_t device_count() const = 0;
  // The bytes of `device` at an address that only it understands, in memory of the CPU, at a
  // multiple of kBufferAlignment (allocate_bytes).
  virtual Result<Buffer> to_host(const Device& device, std::span<const std::byte> memory) = 0;
  // Those bytes of the CPU in memory of `device`; refused if there is no such device.
  virtual Result<Buffer> to_device(const Device& device, std::span<const std::byte> bytes) = 0;
};

// For one message, while it is written.
struct DeviceRoute {
  enum class Direction { Request, Response };

  Direction direction = Direction::Request;
  std::string_view peer{};                 // who gets it, for the text
  std::shared_ptr<const DeviceMap> map{};  // nothing: only the CPU can be sent from
  DeviceSupport* support = nullptr;        // of this worker; outlives the writing

  // The device there for what is on `device` here. Invalid if none is mapped; `what` is the tensor.
  Result<Device> target_of(const Device& device, std::string_view what) const;
};

// What was received for an accelerator, moved to it; and what is to be sent, from it.
Result<Buffer> move_to_device(DeviceSupport* support, const Device& device, Buffer bytes);
Result<Buffer> move_to_host(DeviceSupport* support, const Device& device, Buffer memory);

// The maps of one agent, which follow the members of its group. Any thread.
class DeviceDirectory {
 public:
  DeviceDirectory(std::string self, std::shared_ptr<DeviceSupport> support)
      : self_(std::move(self)), support_(std::move(support)) {}

  void update(const DeviceRows& rows);

  // `peer` must be there while the route is used.
  DeviceRoute request_to(std::string_view peer) const;
  DeviceRoute response_to(std::string_view peer) const;
  std::vector<Device> devices() const;
  const std::shared_ptr<DeviceSupport>& support() const { return support_; }

 private:
  using Find = const DeviceMap* (DeviceTable::*)(std::string_view) const;
  DeviceRoute route(DeviceRoute::Direction direction, std::string_view peer, Find find) const;
  std::shared_ptr<const DeviceTable> table() const;

  const std::string self_;
  const std::shared_ptr<DeviceSupport> support_;
  // Whether a look into the table is worth while: most programs have no maps.
  std::atomic<bool> has_maps_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const DeviceTable> table_ = std::make_shared<DeviceTable>();
};

}  // namespace muster::rpc
