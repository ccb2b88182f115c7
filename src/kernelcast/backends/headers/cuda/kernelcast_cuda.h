// CUDA for the CPU, as PyTorch extensions use it: what a .cu file has without an #include.
#pragma once
#include <torch/cuda.h>

#include "kernelcast/device.h"
#include "kernelcast/host.h"

#define __CUDA_ARCH__ 800
namespace at {
template <class T>
struct RestrictPtrTraits {
  using PtrType = T* __restrict__;
};
}  // namespace at
