#pragma once
#include <c10/cuda/CUDAException.h>
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
#define TORCH_CUDABLAS_CHECK(expression) TORCH_CHECK((expression) == 0, "CUDA error: cuBLAS")
