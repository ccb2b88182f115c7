"""Kernels with one planted fault each: a right kernel, an edit of it, and the check that must
notice it. Each is an error that engineers and language models make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from _kernels import Sample
from _right_kernels import right_kernels

Check = Literal["race", "guard", "poison", "barrier", "order", "result"]


@dataclass(frozen=True)
class PlantedFault:
    """An edit that makes a right kernel wrong.

    Args:
        check: What must notice it: the shadow of shared memory (race), the bounds and alignment of
            addresses (guard), memory that nothing has written (poison), threads that do not come to
            a barrier (barrier), another order of the warps (order), or the oracle alone (result).
        name: What is wrong.
        base: Name of the right kernel.
        old: Text that the kernel has once.
        new: What replaces it.
    """

    check: Check
    name: str
    base: str
    old: str
    new: str

    @property
    def sample(self) -> Sample:
        """The kernel with its fault."""
        right = right_kernels()[self.base]
        if right.source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.base} has its old text not exactly once")
        return Sample(self.name, right.problem, right.source.replace(self.old, self.new))


FAULTS = (
    # -------------------------------------------------------------------------------- races
    PlantedFault(
        "race",
        "tiles are used before all threads have loaded them",
        "cuda: matmul",
        "        __syncthreads();\n#pragma unroll",
        "#pragma unroll",
    ),
    PlantedFault(
        "race",
        "tiles are loaded again while some threads still use them",
        "seed: matmul",
        "sum += as[y][k] * bs[k][x];\n        __syncthreads();",
        "sum += as[y][k] * bs[k][x];",
    ),
    PlantedFault(
        "race",
        "partial results are overwritten before all threads have read the maximum",
        "seed: softmax",
        "    most = partial[0];\n    __syncthreads();\n",
        "    most = partial[0];\n",
    ),
    PlantedFault(
        "race",
        "the levels of a tree of sums are not apart",
        "cuda: row_sum",
        "        __syncthreads();\n        if (threadIdx.x < half)",
        "        if (threadIdx.x < half)",
    ),
    PlantedFault(
        "race",
        "a function that sums a block is called again before its memory is free",
        "seed: layernorm",
        "    __syncthreads();\n    if (threadIdx.x % 32 == 0)",
        "    if (threadIdx.x % 32 == 0)",
    ),
    PlantedFault(
        "race",
        "a double buffer has only one buffer",
        "cuda: double buffer",
        "int next = 1 - turn;",
        "int next = turn;",
    ),
    PlantedFault(
        "race",
        "the first tile of a double buffer is not waited for",
        "cuda: double buffer",
        "K, N);\n    __syncthreads();\n",
        "K, N);\n",
    ),
    PlantedFault(
        "race",
        "bins are counted by plain additions",
        "cuda: histogram",
        "atomicAdd(&counts[x[i]], 1);",
        "counts[x[i]] += 1;",
    ),
    PlantedFault(
        "race",
        "bins are counted before all of them are zero",
        "cuda: histogram",
        "counts[b] = 0;\n    __syncthreads();",
        "counts[b] = 0;",
    ),
    PlantedFault(
        "race",
        "a barrier of a warp where warps share",
        "seed: cross_entropy",
        "partial[thread] += partial[thread + half];\n        __syncthreads();",
        "partial[thread] += partial[thread + half];\n        __syncwarp();",
    ),
    PlantedFault(
        "race",
        "a sweep begins before the last one has ended everywhere",
        "seed: stencil",
        "        __syncthreads();\n        float* kept",
        "        float* kept",
    ),
    # ------------------------------------------------------------------------------- guards
    PlantedFault(
        "guard",
        "one element too many",
        "cuda: vector_add",
        "if (i < N)",
        "if (i <= N)",
    ),
    PlantedFault(
        "guard",
        "columns beyond the matrix are written",
        "seed: matmul",
        "if (row < M && column < N) c[",
        "if (row < M) c[",
    ),
    PlantedFault(
        "guard",
        "rows beyond the matrix are read",
        "seed: matmul",
        "start + y < K && column < N ? b[",
        "column < N ? b[",
    ),
    PlantedFault(
        "guard",
        "rows above the image are read",
        "seed: conv2d",
        "row >= 0 && row < H",
        "row < H",
    ),
    PlantedFault(
        "guard",
        "the last load of four elements goes beyond the end",
        "cuda: axpy",
        "i < N / 4; i += stride",
        "i <= N / 4; i += stride",
    ),
    PlantedFault(
        "guard",
        "loads of four elements in rows of any length",
        "cuda: wide loads",
        "if (N % 4 == 0) {",
        "if (N >= 4) {",
    ),
    PlantedFault(
        "guard",
        "a shared array is one element too short",
        "seed: layernorm",
        "partial[WARPS];",
        "partial[WARPS - 1];",
    ),
    PlantedFault(
        "guard",
        "the launch gives shared memory for one of two copies",
        "seed: stencil",
        "shared(8 * ",
        "shared(4 * ",
    ),
    PlantedFault(
        "guard",
        "an index beyond an array of the thread",
        "slow: sorting 32 values in local memory",
        "k < 31;",
        "k < 32;",
    ),
    # ------------------------------------------------------------------------------- poison
    PlantedFault(
        "poison",
        "a ragged tile is loaded without zeros around",
        "seed: matmul",
        "bs[y][x] = start + y < K && column < N ? b[(start + y) * N + column] : 0.0f;",
        "if (start + y < K && column < N) bs[y][x] = b[(start + y) * N + column];",
    ),
    PlantedFault(
        "poison",
        "threads without an element leave their place in a tree of sums",
        "cuda: row_sum",
        "partial[threadIdx.x] = sum;",
        "if (threadIdx.x < N) partial[threadIdx.x] = sum;",
    ),
    PlantedFault(
        "poison",
        "threads without an element leave their place in a tree of maxima",
        "seed: softmax",
        "partial[thread] = most;",
        "if (thread < C) partial[thread] = most;",
    ),
    PlantedFault(
        "poison",
        "bins do not begin at zero",
        "cuda: histogram",
        "    for (int b = threadIdx.x; b < B; b += blockDim.x) counts[b] = 0;\n",
        "",
    ),
    PlantedFault(
        "poison",
        "the last row of a halo is not loaded",
        "cuda: stencil",
        "e < 340;",
        "e < 306;",
    ),
    PlantedFault(
        "poison",
        "an asynchronous copy is used before it has ended",
        "cuda: asynchronous copies",
        "__pipeline_wait_prior(1);",
        "__pipeline_wait_prior(2);",
    ),
    PlantedFault(
        "poison",
        "sums in registers do not begin at zero",
        "cuda: matmul",
        "float sums[4][4] = {};",
        "float sums[4][4];",
    ),
    # ----------------------------------------------------------------------------- barriers
    PlantedFault(
        "barrier",
        "a barrier for the columns of the matrix alone",
        "cuda: transpose",
        "    __syncthreads();\n",
        "    if (j < N) __syncthreads();\n",
    ),
    PlantedFault(
        "barrier",
        "a barrier for the threads that add alone",
        "seed: softmax",
        "        if (thread < half) partial[thread] += partial[thread + half];\n"
        "        __syncthreads();\n",
        "        if (thread < half) {\n            partial[thread] += partial[thread + half];\n"
        "            __syncthreads();\n        }\n",
    ),
    PlantedFault(
        "barrier",
        "a barrier in the branch of the thread that loads",
        "slow: distances to points that come one by one",
        "if (!threadIdx.x) p = y[k]; __syncthreads();",
        "if (!threadIdx.x) { p = y[k]; __syncthreads(); }",
    ),
    # -------------------------------------------------------------------------------- order
    PlantedFault(
        "order",
        "warps add to a sum that the first warp sets to zero",
        "cuda: sums in the output",
        "out[blockIdx.x] = 0.0f;\n    __syncthreads();",
        "out[blockIdx.x] = 0.0f;",
    ),
    PlantedFault(
        "order",
        "warps add to a sum in global memory without atomics",
        "cuda: sums in the output",
        "atomicAdd(&out[blockIdx.x], sum);",
        "out[blockIdx.x] += sum;",
    ),
    PlantedFault(
        "order",
        "elements of other warps are read before they are written",
        "cuda: turns in the output",
        "+ j]);\n    __syncthreads();",
        "+ j]);",
    ),
    # ------------------------------------------------------------------------------- results
    PlantedFault(
        "result",
        "labels of 64 bits are read as 32 bits",
        "seed: cross_entropy",
        "const long long* labels",
        "const int* labels",
    ),
    # -------------------------------------------------------------------------------- Triton
    PlantedFault(
        "guard",
        "Triton: a store without a mask",
        "triton: vector_add",
        "tl.load(y + i, mask=keep), mask=keep)",
        "tl.load(y + i, mask=keep))",
    ),
    PlantedFault(
        "guard",
        "Triton: a load without a mask",
        "triton: bias_gelu",
        "tl.load(b + j, mask=keep, other=0.0)",
        "tl.load(b + j)",
    ),
    PlantedFault(
        "guard",
        "Triton: the mask forgets the inner dimension",
        "triton: matmul",
        "keep_b = (k[:, None] < K) & (j[None, :] < N)",
        "keep_b = j[None, :] < N",
    ),
    PlantedFault(
        "guard",
        "Triton: the stride of the input for the output",
        "triton: transpose",
        "out + j[:, None] * M + i[None, :]",
        "out + j[:, None] * N + i[None, :]",
    ),
    PlantedFault(
        "result",
        "Triton: what is masked counts as zero in a softmax",
        "triton: softmax",
        'other=-float("inf")',
        "other=0.0",
    ),
    PlantedFault(
        "result",
        "Triton: what is masked counts in a variance",
        "triton: layernorm",
        "apart = tl.where(keep, values - mean, 0.0)",
        "apart = values - mean",
    ),
)

LATER_FAULTS = (
    PlantedFault(
        "race",
        "a filter is used before all threads have loaded it",
        "seed: conv2d",
        "weight[f * taps + e];\n    __syncthreads();",
        "weight[f * taps + e];",
    ),
    PlantedFault(
        "race",
        "sums of warps are read before all are written",
        "fast: sums of all beginnings of a row",
        "parts[t / 32] = s; __syncthreads();",
        "parts[t / 32] = s;",
    ),
    PlantedFault(
        "race",
        "the second of two passes begins too early",
        "fast: box filter of 17 x 17 by all its points",
        "sums[r][t] = s;\n    }\n    __syncthreads();",
        "sums[r][t] = s;\n    }\n",
    ),
    PlantedFault(
        "race",
        "a sum by atomics is read before all have added",
        "slow: sum of a block at one shared address",
        "atomicAdd(&all, s); __syncthreads();",
        "atomicAdd(&all, s);",
    ),
    PlantedFault(
        "race",
        "a value for all threads changes while some still need it",
        "slow: distances to points that come one by one",
        "s += fabsf(v - p); __syncthreads();",
        "s += fabsf(v - p);",
    ),
    PlantedFault(
        "guard",
        "a row of a halo too many",
        "cuda: stencil",
        "i < M && j >= 0",
        "i <= M && j >= 0",
    ),
    PlantedFault(
        "guard",
        "threads beyond the row go on",
        "cuda: bias_gelu",
        "    if (j >= N) return;\n",
        "",
    ),
    PlantedFault(
        "guard",
        "bins are numbered from one",
        "cuda: histogram",
        "&counts[x[i]]",
        "&counts[x[i] + 1]",
    ),
    PlantedFault(
        "guard",
        "the launch gives shared memory for one channel",
        "seed: conv2d",
        "shared(4 * C * KH * KW)",
        "shared(4 * KH * KW)",
    ),
    PlantedFault(
        "guard",
        "Triton: a loop over a row without a mask",
        "triton: row_sum",
        "tl.load(x + row * N + j, mask=j < N, other=0.0)",
        "tl.load(x + row * N + j)",
    ),
    PlantedFault(
        "guard",
        "Triton: the mask forgets the first row",
        "triton: stencil",
        "tl.load(here - N, mask=inside, other=0.0)",
        "tl.load(here - N, mask=keep, other=0.0)",
    ),
    PlantedFault(
        "poison",
        "sums of the tensor cores do not begin at zero",
        "cuda: half_matmul",
        "    fill_fragment(sums, 0.0f);\n",
        "",
    ),
    PlantedFault(
        "poison",
        "the last element of an array of the thread is not filled",
        "slow: sorting 32 values in local memory",
        "for (int k = 0; k < 32; k++) v[k]",
        "for (int k = 0; k < 31; k++) v[k]",
    ),
    PlantedFault(
        "poison",
        "the output that warps add to is not set to zero",
        "cuda: sums in the output",
        "    if (threadIdx.x == 0) out[blockIdx.x] = 0.0f;\n",
        "",
    ),
    PlantedFault(
        "barrier",
        "a loop with barriers for the threads inside of the matrix alone",
        "seed: matmul",
        "    for (int start = 0",
        "    if (row < M && column < N) for (int start = 0",
    ),
    PlantedFault(
        "order",
        "elements are divided while other warps still add them",
        "cuda: turns in the output",
        "sum += row[j];\n    __syncthreads();",
        "sum += row[j];",
    ),
    PlantedFault(
        "result",
        "the variance of a sample, not of the row",
        "seed: layernorm",
        "block_sum(squares) / C",
        "block_sum(squares) / (C - 1)",
    ),
    PlantedFault(
        "result",
        "a fragment in the order of columns",
        "cuda: half_matmul",
        "matrix_b, 16, 16, 16, half, row_major",
        "matrix_b, 16, 16, 16, half, col_major",
    ),
)
"""Written after the emulator was mended by what the others showed."""
