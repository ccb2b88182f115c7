"""A problem folder for each data type: the sum of two arrays, in every measuring language."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from kernelcast import dtypes
from kernelcast.canonical import kernel_id
from kernelcast.dtypes import dtype_of
from kernelcast.languages import ending_of
from kernelcast.problems import load_problem
from kernelcast.types import Kernel, Language, Problem

NAMES: tuple[dtypes.Name, ...] = get_args(dtypes.Name)
NARROW = tuple(name for name in NAMES if dtype_of(name).bytes < 4)
EVERY_FLOAT = tuple(name for name in NAMES if dtype_of(name).is_float)
NARROW_FLOATS = tuple(name for name in NAMES if dtype_of(name).is_narrow)

# Sums of two such integers fit.
_HALVES = {"int8": (-64, 64), "uint8": (0, 128)}

_TOML = """
name = "sum_{dtype}"
family = "elementwise"
summary = "out[i] = a[i] + b[i]"
entry = "add"
language = "{language}"
dimensions = ["N"]
arguments = [
    {{ name = "a", role = "input", dtype = "{dtype}", shape = ["N"], fill = {fill} }},
    {{ name = "b", role = "input", dtype = "{dtype}", shape = ["N"], fill = {fill} }},
    {{ name = "out", role = "output", dtype = "{dtype}", shape = ["N"] }},
]
[cases.main]
dimensions = {{ N = {size} }}
[cases.ragged]
timed = false
dimensions = {{ N = 77 }}
[hidden]
dimensions = {{ N = [1, 3000] }}
[work]
flops = "N"
bytes = "{bytes}*3*N"
[tolerance]
rtol = {rtol}
atol = 0.0
"""
_REFERENCE = """
import numpy as np


def reference(a, b, *, N):
    return {answer}
"""

# Numbers with M bits of mantissa as bits; too large ones become the largest.
_BITS = """
#include <algorithm>
#include <cmath>
#include <cstdint>
template <typename T, int M, int BIAS, int LARGEST> struct Bits {
    static constexpr int SIGN = 8 * sizeof(T) - 1;
    static float of(T x) {
        const int rest = x & ((1 << SIGN) - 1), e = rest >> M, m = rest & ((1 << M) - 1);
        const float size = rest > LARGEST ? NAN
                           : e ? std::ldexp(float(m + (1 << M)), e - BIAS - M)
                               : std::ldexp(float(m), 1 - BIAS - M);
        return x >> SIGN ? -size : size;
    }
    static T to(float x) {
        const T sign = std::signbit(x) ? T(1) << SIGN : 0;
        const float size = std::fabs(x);
        if (std::isnan(x)) return T((1 << SIGN) - 1);
        if (size == 0.0f) return sign;
        const int e = std::max(std::ilogb(size), 1 - BIAS);
        const long n = std::lrint(std::ldexp(size, M - e));
        return T(sign | std::min(n + (long(e + BIAS - 1) << M), long(LARGEST)));
    }
};
"""
_BITS_OF = {
    "bfloat16": "Bits<uint16_t, 7, 127, 0x7F80>",
    "float8_e4m3fn": "Bits<uint8_t, 3, 7, 0x7E>",
    "float8_e5m2": "Bits<uint8_t, 2, 15, 0x7C>",
}
_CPP = """
extern "C" void add(const {type}* a, const {type}* b, {type}* out, int64_t N) {{
    for (int64_t i = 0; i < N; ++i) out[i] = {sum};
}}
"""
_CUDA = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cstdint>
#pragma kernelcast grid((N + 255) / 256) block(256)
extern "C" __global__ void add(const {type}* a, const {type}* b, {type}* out, int64_t N) {{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i < N) out[i] = {sum};
}}
"""
_OPENCL = """
#pragma kernelcast global((N + 63) / 64 * 64) local(64)
typedef {type} T;
__kernel void add(__global const T* a, __global const T* b, __global T* out, long N) {{
    const long i = get_global_id(0);
    if (i < N) {sum};
}}
"""
_TRITON = """
import triton
import triton.language as tl

LAUNCH = {{"grid": ["(N + BLOCK - 1) / BLOCK"], "constants": {{"BLOCK": 256}}}}


@triton.jit
def add(a, b, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x, y = tl.load(a + i, mask=inside), tl.load(b + i, mask=inside)
    tl.store(out + i, {sum}, mask=inside)
"""


def sum_problem(
    folder: Path, name: dtypes.Name, language: Language = "cpp", size: int = 20_000
) -> Problem:
    """Write the problem of a data type to a folder, and load it."""
    dtype = dtype_of(name)
    fill = '{ kind = "integers" }'
    if dtype.is_float:
        fill = '{ kind = "normal" }'
    elif name != "bool":
        low, high = _HALVES.get(name, (-1000, 1000))
        fill = f'{{ kind = "integers", low = {low}, high = {high} }}'
    whole = "a ^ b" if name == "bool" else "a.astype(np.int64) + b"
    text = _TOML.format(
        dtype=name,
        language=language,
        fill=fill,
        size=size,
        bytes=dtype.bytes,
        rtol=dtype.eps / 2 if dtype.is_float else 0.0,
    )
    answer = "a.astype(np.float64) + b" if dtype.is_float else whole
    (folder / "problem.toml").write_text(text)
    (folder / "reference.py").write_text(_REFERENCE.format(answer=answer))
    (folder / f"seed{ending_of(language)}").write_text(source(dtype, language))
    return load_problem(folder)


def seed_kernel(problem: Problem, text: str = "") -> Kernel:
    """The seed of a problem, or another text, as a kernel."""
    text = text or problem.seed_source
    return Kernel(id=kernel_id(text, problem.language), language=problem.language, source=text)


def source(dtype: dtypes.DType, language: Language) -> str:
    """A kernel that adds two arrays of a data type."""
    type_ = dtype.in_language[language]
    if language == "cpp":
        bits = _BITS_OF.get(dtype.name)
        total = (
            f"{bits}::to({bits}::of(a[i]) + {bits}::of(b[i]))" if bits else f"{type_}(a[i] + b[i])"
        )
        if dtype.name == "bool":
            total = "a[i] != b[i]"
        return _BITS + _CPP.format(type=type_, sum=total)
    if language == "cuda":
        total = f"{type_}(float(a[i]) + float(b[i]))" if dtype.is_narrow else "a[i] + b[i]"
        return _CUDA.format(type=type_, sum="a[i] != b[i]" if dtype.name == "bool" else total)
    if language == "opencl":
        total = "out[i] = a[i] != b[i]" if dtype.name == "bool" else "out[i] = a[i] + b[i]"
        if dtype.name == "float16":
            total = "vstore_half(vload_half(i, a) + vload_half(i, b), i, out)"
        return _OPENCL.format(type=type_, sum=total)
    total = "(x.to(tl.float32) + y.to(tl.float32)).to(out.dtype.element_ty)"
    total = total if dtype.is_narrow else "x + y"
    return _TRITON.format(sum="x ^ y" if dtype.name == "bool" else total)
