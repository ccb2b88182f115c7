"""A module for a GPU: kernels of many kinds in one extension, and another extension beside it."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = """
torch::Tensor pipeline(torch::Tensor x, double scale);
torch::Tensor row_sums(torch::Tensor x);
"""

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cub/cub.cuh>
#include <cuda_fp16.h>
#include <curand_kernel.h>

#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a CUDA tensor")
constexpr int TILE = 16;
__constant__ float offsets[2];

__device__ __forceinline__ float warp_sum(float v) {
  for (int by = warpSize / 2; by > 0; by >>= 1) v += __shfl_down_sync(0xffffffff, v, by);
  return v;
}

// Element-wise, four at a time.
template <typename scalar_t, int WIDTH>
__global__ void __launch_bounds__(128)
scaled(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, float scale, int64_t n) {
  const int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * WIDTH;
  if (i + WIDTH <= n) {
    float4 v = *reinterpret_cast<const float4*>(x + i);
    v.x = fmaf(v.x, scale, offsets[0]); v.y = fmaf(v.y, scale, offsets[0]);
    v.z = fmaf(v.z, scale, offsets[0]); v.w = fmaf(v.w, scale, offsets[0]);
    *reinterpret_cast<float4*>(y + i) = v;
  } else {
    for (int64_t at = i; at < n; ++at) y[at] = __ldg(x + at) * scale + offsets[0];
  }
}

// A tile of shared memory with a barrier: y = x^T, and back.
__global__ void transposed(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[TILE][TILE + 1];
  int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  column = blockIdx.y * TILE + threadIdx.x, row = blockIdx.x * TILE + threadIdx.y;
  if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}

// A row a block: shuffles, shared memory of the launch, and an atomic sum of half precision beside.
__global__ void sums(const float* x, float* y, __half* halves, unsigned int* count, int columns) {
  extern __shared__ float partial[];
  float v = 0.0f;
  for (int at = threadIdx.x; at < columns; at += blockDim.x) v += x[blockIdx.x * columns + at];
  v = warp_sum(v);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < blockDim.x / 32 ? partial[lane] : 0.0f;
    v = warp_sum(v);
    if (lane == 0) {
      atomicAdd(&y[blockIdx.x], v);
      atomicAdd(&halves[0], __float2half(1.0f));
      atomicAdd(count, 1u);
    }
  }
}

// The same by CUB.
template <int THREADS>
__global__ void block_sums(const float* x, float* y, int columns) {
  typedef cub::BlockReduce<float, THREADS> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  float v = 0.0f;
  for (int at = threadIdx.x; at < columns; at += THREADS) v += x[blockIdx.x * columns + at];
  v = Reduce(storage).Sum(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}

// Draws that are all kept: the mask is nothing but ones.
__global__ void kept(float* y, unsigned long long seed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, i, 0, &state);
  const float drawn = curand_uniform(&state);
  if (!(drawn > 0.0f && drawn <= 1.0f)) y[i] = NAN;
}

torch::Tensor pipeline(torch::Tensor x, double scale) {
  CHECK_INPUT(x);
  const int rows = x.size(0), columns = x.size(1);
  auto y = torch::empty_like(x), turned = torch::empty({columns, rows}, x.options());
  const float zeros[2] = {0.0f, 1.0f};
  cudaMemcpyToSymbol(offsets, zeros, sizeof zeros);
  const int64_t n = x.numel();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled", ([&] {
    scaled<scalar_t, 4><<<(n / 4 + 128) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), static_cast<float>(scale), n);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  dim3 threads(TILE, TILE);
  dim3 blocks((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
  transposed<<<blocks, threads>>>(y.data_ptr<float>(), turned.data_ptr<float>(), rows, columns);
  dim3 back((rows + TILE - 1) / TILE, (columns + TILE - 1) / TILE);
  transposed<<<back, threads>>>(turned.data_ptr<float>(), y.data_ptr<float>(), columns, rows);
  kept<<<(n + 255) / 256, 256>>>(y.data_ptr<float>(), 7, n);
  return y;
}

torch::Tensor row_sums(torch::Tensor x) {
  const int rows = x.size(0), columns = x.size(1);
  auto y = torch::zeros({rows}, x.options()), again = torch::empty({rows}, x.options());
  auto halves = torch::zeros({1}, x.options().dtype(torch::kHalf));
  auto count = torch::zeros({1}, x.options().dtype(torch::kInt32));
  sums<<<rows, 128, 4 * sizeof(float)>>>(
      x.data_ptr<float>(), y.data_ptr<float>(),
      reinterpret_cast<__half*>(halves.data_ptr<at::Half>()),
      reinterpret_cast<unsigned int*>(count.data_ptr<int>()), columns);
  block_sums<128><<<rows, 128>>>(x.data_ptr<float>(), again.data_ptr<float>(), columns);
  cudaError_t error = cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
  return (y + again) / 2 + (halves.to(torch::kFloat) - rows) + (count - rows);
}
"""

kernels = load_inline(
    name="kernels",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["pipeline", "row_sums"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)

BIASED = r"""
__global__ void biased(float* y, float bias, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += bias;
}
void add_bias(torch::Tensor y, double bias) {
  biased<<<(y.numel() + 63) / 64, 64>>>(y.data_ptr<float>(), bias, y.numel());
}
"""
bias_kernels = load_inline(
    name="bias_kernels",
    cpp_sources="void add_bias(torch::Tensor y, double bias);",
    cuda_sources=BIASED,
    functions=["add_bias"],
)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        assert x.is_cuda and x.device.type == "cuda"
        y = kernels.pipeline(x.contiguous(), self.scale)
        bias_kernels.add_bias(y, 1.0)
        return y, kernels.row_sums(x)
