// Device: where the memory of a tensor is.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace muster::rpc {

// The numbers are those of DLPack; there are more than have a name here.
enum class DeviceKind : std::int32_t {
  Cpu = 1,
  Cuda = 2,
  CudaHost = 3,  // memory of the CPU that the accelerator reads, too
  Metal = 8,
  Rocm = 10,
  RocmHost = 11,
  CudaManaged = 13,
  OneApi = 14,
};

struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  std::int32_t index = 0;

  // Whether the CPU may read the memory.
  bool is_host() const {
    return kind == DeviceKind::Cpu || kind == DeviceKind::CudaHost || kind == DeviceKind::RocmHost;
  }
  friend auto operator<=>(const Device&, const Device&) = default;
};

inline Device cuda(std::int32_t index) { return {DeviceKind::Cuda, index}; }

// "cpu", "cuda:1"
std::string describe(const Device& device);

}  // namespace muster::rpc
