"""Right CUDA and Triton kernels with problems that are small enough to emulate.

They are the tests' kernels, the seeds of the bundled problems, the kernels of the ordered pairs
whose answer NumPy states in a line, and a few more that talk in ways that those do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from _kernels import Sample
from _ordered_pairs import PAIRS, Pair
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import Case, Language, Problem

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.backends.gpu_problems import CUDA_KERNELS, TRITON_KERNELS, gpu_problem

_WITHOUT_LAUNCH = "scale"

_DOUBLE_BUFFER = """
// Two tiles in turn: one is loaded while the other is used, with one barrier a turn.
#define TILE 16
#pragma kernelcast grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE) block(TILE, TILE)
__device__ float at(const float* x, int i, int j, int rows, int columns) {
    return i < rows && j < columns ? x[i * columns + j] : 0.0f;
}
extern "C" __global__ void kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float as[2][TILE][TILE], bs[2][TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, turn = 0;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    as[0][y][x] = at(a, row, x, M, K);
    bs[0][y][x] = at(b, y, column, K, N);
    __syncthreads();
    for (int start = 0; start < K; start += TILE) {
        int next = 1 - turn;
        if (start + TILE < K) {
            as[next][y][x] = at(a, row, start + TILE + x, M, K);
            bs[next][y][x] = at(b, start + TILE + y, column, K, N);
        }
        for (int k = 0; k < TILE; ++k) sum += as[turn][y][k] * bs[turn][k][x];
        __syncthreads();
        turn = next;
    }
    if (row < M && column < N) c[row * N + column] = sum;
}
"""
_ASYNC_COPIES = """
// A row a block; the next part of the row is copied to shared memory while this one is summed.
#include <cuda_pipeline.h>
#define THREADS 32
#pragma kernelcast grid(M) block(THREADS)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    __shared__ float parts[2][THREADS];
    const float* row = x + blockIdx.x * N;
    int t = threadIdx.x, turn = 0;
    float sum = 0.0f;
    if (t < N) __pipeline_memcpy_async(&parts[0][t], &row[t], 4);
    __pipeline_commit();
    for (int j = t; j < N; j += THREADS, turn = 1 - turn) {
        if (j + THREADS < N) __pipeline_memcpy_async(&parts[1 - turn][t], &row[j + THREADS], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        sum += parts[turn][t];
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (t == 0) out[blockIdx.x] = sum;
}
"""
_WIDE_LOADS = """
// A row a warp, four elements a load where every row begins at a multiple of 16 bytes.
#pragma kernelcast grid(M) block(32)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    const float* row = x + blockIdx.x * N;
    float sum = 0.0f;
    if (N % 4 == 0) {
        const float4* wide = reinterpret_cast<const float4*>(row);
        for (int j = threadIdx.x; j < N / 4; j += 32) {
            float4 v = wide[j];
            sum += v.x + v.y + v.z + v.w;
        }
    } else {
        for (int j = threadIdx.x; j < N; j += 32) sum += row[j];
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
"""
_SUMS_IN_THE_OUTPUT = """
// A row a block; the output is set to zero, and each warp adds its sum to it.
#define THREADS 128
#pragma kernelcast grid(M) block(THREADS)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    float sum = 0.0f;
    for (int j = threadIdx.x; j < N; j += THREADS) sum += x[blockIdx.x * N + j];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[blockIdx.x] = 0.0f;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicAdd(&out[blockIdx.x], sum);
}
"""
_TURNS_IN_THE_OUTPUT = """
// A row a block, without the maximum; exponentials wait in the output, and every thread divides a
// stretch that other threads have written.
#define THREADS 64
#pragma kernelcast grid(M) block(THREADS)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    float* row = out + blockIdx.x * N;
    for (int j = threadIdx.x; j < N; j += THREADS) row[j] = expf(x[blockIdx.x * N + j]);
    __syncthreads();
    float sum = 0.0f;
    for (int j = 0; j < N; ++j) sum += row[j];
    __syncthreads();
    int stretch = (N + THREADS - 1) / THREADS;
    for (int j = threadIdx.x * stretch; j < min(N, (threadIdx.x + 1) * stretch); ++j) row[j] /= sum;
}
"""
_WRITTEN = {
    "double buffer": ("matmul", _DOUBLE_BUFFER),
    "asynchronous copies": ("row_sum", _ASYNC_COPIES),
    "wide loads": ("row_sum", _WIDE_LOADS),
    "sums in the output": ("row_sum", _SUMS_IN_THE_OUTPUT),
    "turns in the output": ("softmax", _TURNS_IN_THE_OUTPUT),
}

# Of each pair: sizes of a small case, and its answer by the arrays x and y in double precision.
_STATED = {
    "copy in chunks of 64 a thread": ("N=32768", "x"),
    "row sums by a thread a row": ("M=256 N=77", "x.sum(1)"),
    "scaling with threads down the columns": ("M=256 N=256", "2 * x"),
    "bias of 64 channels by a thread a pixel": ("P=128 C=64", "x + y"),
    "matrix times vector by a thread a row": ("M=64 N=300", "x @ y"),
    "softmax by a thread a row": (
        "M=64 N=77",
        "np.exp(x) / np.exp(x).sum(1, keepdims=True)",
    ),
    "transpose without a tile": ("M=64 N=96", "x.T"),
    "order of three axes reversed without a tile": ("A=32 B=3 C=64", "x.transpose(2, 1, 0)"),
    "bytes inverted one by one": ("N=2048", "~x"),
    "mean and variance of long rows in two passes": (
        "M=3 N=2500",
        "np.stack([x.mean(1), x.var(1)], 1)",
    ),
    "sum, then sum of cubes of two long arrays": ("M=3 N=1000", "(x - y + x**3 * y).sum(1)"),
    "naive product with threads down the columns": ("M=64 N=96 K=64", "x @ y"),
    "naive product against sums in registers": ("M=64 N=128 K=40", "x @ y"),
    "shared tile of 16 against sums in registers": ("M=128 N=128 K=48", "x @ y"),
    "box filter of 17 x 17 by all its points": ("M=32 N=64", "windows(x, (17, 17)).sum((2, 3))"),
    "128 taps, one output a thread against eight": ("N=2048", "windows(x, 128)[:N] @ y"),
    "product with a transposed tile": ("M=64 N=96 K=64", "x @ y"),
    "distances to points that come one by one": ("N=512 K=256", "abs(x[:, None] - y).sum(1)"),
    "diffusion of 32 cells by shared memory against shuffles": (
        "N=512",
        "(x.reshape(-1, 32) @ np.linalg.matrix_power(ring, 128)).ravel()",
    ),
    "tree of every second thread against halves": ("N=1024", "x.reshape(-1, 256).sum(1)"),
    "sum of a block by its first thread": ("N=2048", "x.reshape(-1, 1024).sum(1)"),
    "sum of a block at one shared address": ("N=1024", "x.reshape(-1, 512).sum(1)"),
    "axpy by one block": ("N=2304", "2.5 * x + y"),
    "one thread a block": ("N=512", "1 + (x - 1) * 0.9**64"),
    "norms of 64 long rows by a warp a row": ("M=3 N=3000", "np.sqrt((x * x).sum(1))"),
    "copy through shared memory of 48 KB a block": (
        "N=320",
        "x.reshape(-1, 64)[:, ::-1].ravel()",
    ),
    "polynomial of 1024 terms as one chain": (
        "N=128",
        "np.polynomial.polynomial.polyval(0.2 * x, y)",
    ),
    "one load in flight against eight": ("N=65536", "x.reshape(-1, 8192).sum(0)"),
    "product whose sums spill": ("M=128 N=256 K=16", "x @ y"),
    "sorting 32 values in local memory": ("N=8192", "np.sort(x.reshape(-1, 32, 128), 1).ravel()"),
    "constants without f": ("N=512", "1 + (x - 1) * 0.99**256"),
    "exponentials of doubles": ("N=512", "repeated(lambda v: np.exp(-v), 16, x)"),
    "product with sums in double": ("M=32 N=48 K=32", "x @ y"),
    "places in a ring by modulo": (
        "N=512 R=100",
        "x[(np.arange(N)[:, None] + 7 * np.arange(512)) % R].sum(1)",
    ),
    "row and column of a window by division": (
        "M=16 N=64 W=16",
        "windows(x, (16, 16)).sum((2, 3))",
    ),
    "sinf of small angles against __sinf": (
        "N=512",
        "repeated(lambda v: np.sin(v) + 0.3, 32, x)",
    ),
    "one over sqrtf against rsqrtf": (
        "N=512",
        "repeated(lambda v: (v * v + 0.1) ** -0.5, 64, x)",
    ),
    "sine of an element in the inner loop of a product": ("M=32 N=48 K=32", "np.sin(x) @ y"),
    "sums of all beginnings of a row": ("M=3", "x.cumsum(1)"),
}
_ORACLE = """
import functools

import numpy as np

windows = np.lib.stride_tricks.sliding_window_view
cells = np.eye(32)
ring = 0.5 * cells + 0.25 * (np.roll(cells, 1, 0) + np.roll(cells, -1, 0))


def repeated(step, count, x):
    return functools.reduce(lambda v, _: step(v), range(count), x)


def reference(*inputs, DIMENSIONS):
    x, y, *_ = [v.astype(float) if v.dtype.kind == "f" else v for v in inputs] + [None]
    return ANSWER
"""


@cache
def right_kernels() -> dict[str, Sample]:
    """Return every kernel by its name."""
    return {sample.name: sample for sample in _samples()}


def _samples() -> Iterator[Sample]:
    for name in bundled_problems("cpp"):
        problem = load_problem(name, language="cuda")
        yield Sample(f"seed: {name}", problem, problem.seed_source)
    named: tuple[tuple[Language, list[str]], ...] = (
        ("cuda", CUDA_KERNELS),
        ("triton", TRITON_KERNELS),
    )
    for language, names in named:
        for name in names:
            if name != _WITHOUT_LAUNCH:
                problem = gpu_problem(name, language)
                yield Sample(f"{language}: {name}", problem, problem.seed_source)
    for name, (solved, source) in _WRITTEN.items():
        yield Sample(f"cuda: {name}", gpu_problem(solved, "cuda"), source.lstrip())
    pairs = {pair.name: pair for pair in PAIRS}
    for name, (sizes, answer) in _STATED.items():
        problem = _with_small_case(pairs[name], sizes, answer)
        yield Sample(f"slow: {name}", problem, pairs[name].slow.source)
        yield Sample(f"fast: {name}", problem, pairs[name].fast.source)


def _with_small_case(pair: Pair, sizes: str, answer: str) -> Problem:
    """Return the problem of a pair with a case to emulate, and the oracle of that."""
    dimensions = {key: int(value) for key, value in (size.split("=") for size in sizes.split())}
    small = Case(name="small", dimensions=dimensions, timed=False)
    oracle = _ORACLE.replace("ANSWER", answer).replace("DIMENSIONS", ", ".join(dimensions))
    changed = {"cases": (*pair.problem.cases, small), "oracle_source": oracle}
    return pair.problem.model_copy(update=changed)
