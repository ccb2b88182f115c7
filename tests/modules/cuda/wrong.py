"""A module for a GPU whose `fault` chooses among kernels that are all wrong."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor reversed(torch::Tensor x, int64_t fault);"

CUDA = r"""
#include <torch/extension.h>

enum { RIGHT, NO_BARRIER, PAST_THE_END, WRONG_INDEX, UNWRITTEN, TOO_MANY_THREADS, TOO_FAR_AWAY };

// Each block reverses its 64 elements.
__global__ void reverse(const float* x, float* y, int n, int fault) {
  __shared__ float part[64];
  const int i = blockIdx.x * 64 + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] : 0.0f;
  if (fault != NO_BARRIER) __syncthreads();
  const int from = fault == WRONG_INDEX ? 62 - threadIdx.x : 63 - threadIdx.x;
  const int to = fault == TOO_FAR_AWAY ? i + (1 << 30) : i;
  if (fault == UNWRITTEN && i == 5) return;
  if (i < n || fault == PAST_THE_END) y[to] = part[max(from, 0)];
}

torch::Tensor reversed(torch::Tensor x, int64_t fault) {
  auto y = torch::empty_like(x);
  const int n = x.numel(), blocks = (n + 63) / 64 + (fault == PAST_THE_END);
  const int threads = fault == TOO_MANY_THREADS ? 2048 : 64;
  reverse<<<blocks, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, fault);
  return y;
}
"""

kernels = load_inline(
    name="kernels", cpp_sources=CPP, cuda_sources=CUDA, functions=["reversed"]
)


class ModelNew(nn.Module):
    def forward(self, x, fault):
        return kernels.reversed(x, fault)
