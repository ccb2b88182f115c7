#pragma once
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <optional>
namespace c10::cuda {
struct CUDAGuard {
  explicit CUDAGuard(c10::DeviceIndex) {}
  explicit CUDAGuard(c10::Device) {}
  void set_index(c10::DeviceIndex) {}
};
struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(std::optional<c10::Device> = {}) {}
  explicit OptionalCUDAGuard(c10::DeviceIndex) {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream) {}
};
}  // namespace c10::cuda
namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStreamGuard;
using c10::cuda::OptionalCUDAGuard;
}  // namespace at::cuda
