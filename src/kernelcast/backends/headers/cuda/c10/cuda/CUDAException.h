#pragma once
#define C10_CUDA_CHECK(expression)                                                      \
  do {                                                                                  \
    const cudaError_t kc_error = expression;                                            \
    TORCH_CHECK(kc_error == cudaSuccess, "CUDA error: ", cudaGetErrorString(kc_error)); \
  } while (0)
#define C10_CUDA_CHECK_WARN(expression) (void)(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
