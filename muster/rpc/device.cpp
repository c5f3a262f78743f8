#include "muster/rpc/device.h"

#include <fmt/format.h>

#include <string_view>

namespace muster::rpc {

std::string describe(const Device& device) {
  std::string_view name;
  switch (device.kind) {
    case DeviceKind::Cpu:
      return "cpu";
    case DeviceKind::Cuda:
      name = "cuda";
      break;
    case DeviceKind::CudaHost:
      name = "cuda_host";
      break;
    case DeviceKind::Metal:
      name = "metal";
      break;
    case DeviceKind::Rocm:
      name = "rocm";
      break;
    case DeviceKind::RocmHost:
      name = "rocm_host";
      break;
    case DeviceKind::CudaManaged:
      name = "cuda_managed";
      break;
    case DeviceKind::OneApi:
      name = "oneapi";
      break;
  }
  if (!name.empty()) return fmt::format("{}:{}", name, device.index);
  return fmt::format("device_{}:{}", static_cast<std::int32_t>(device.kind), device.index);
}

}  // namespace muster::rpc
