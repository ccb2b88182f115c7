"""How the recorded tuner kernels are compiled and launched: grid, arguments, sizes.

The templates are those of `tuner_kernels`; what a template leaves to its host program is stated
here. A problem without an entry has no template that its parameters apply to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _data import Configuration, read_columns
from kernelcast.backends._emulation import Array
from kernelcast.dataset.tuned_kernel import TunedKernel

_TILED = (("block_size_x", "tile_size_x"), ("block_size_y", "tile_size_y"))
_SAMPLE = 1 << 16  # elements of an array that are held; the others repeat them


@dataclass(frozen=True)
class Launched:
    """A tuned kernel with what it is handed: arrays, and the bits of numbers.

    `recorded` are the parameters of recorded rows that the template knows by another name;
    `only` are the rows that it serves.
    """

    kernel: TunedKernel
    arguments: Sequence[Array | int]
    variables: Mapping[str, bytes] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, int] = field(default_factory=dict)
    per_call: str = ""
    """The parameter by which the recorded time was divided."""

    def serves(self, configuration: Configuration) -> bool:
        """Whether the template was measured with these parameters."""
        return all(configuration[name] == value for name, value in self.only.items())

    def renamed(self, configuration: Configuration) -> Configuration:
        """Return the parameters by their names in the template."""
        return {self.recorded.get(name, name): value for name, value in configuration.items()}


def _array(elements: int, content: NDArray[Any]) -> Array:
    sample = content[: min(len(content), elements)]
    return Array(elements * sample.itemsize, sample.tobytes())


def _floats(elements: int) -> Array:
    drawn = np.random.default_rng(1).normal(size=min(elements, _SAMPLE))
    return _array(elements, drawn.astype(np.float32))


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


@cache
def _templates() -> dict[str, tuple[str, dict[str, int]]]:
    """Source and constants by problem: a parameter that was tuned with one value is a constant."""
    rows = read_columns("tuner_kernels", ("problem", "reference_code", "params"))
    return {
        problem: (
            text,
            {name: values[0] for name, values in json.loads(ranges).items() if len(values) == 1},
        )
        for problem, text, ranges in zip(*rows.values(), strict=True)
    }


def _without(text: str, start: str, end: str | None = None) -> str:
    """Cut a function that is not launched: it would only take time to compile."""
    first = text.index(start)
    return text[:first] + ("" if end is None else text[text.index(end, first) :])


def _convolution(problem: str, **more: Any) -> Launched:
    text, defines = _templates()[problem]
    text = _without(text, "__global__ void convolution_naive").replace('extern "C" {', "")
    border = defines.get("filter_width", 17) // 2 * 2
    kernel = TunedKernel(text, "convolution_kernel", (4096, 4096), _TILED, defines=defines)
    arguments = [_floats(4096**2), _floats((4096 + border) ** 2), _floats(33 * 33)]
    return Launched(kernel, arguments, **more)


def _pnpoly(**more: Any) -> Launched:
    text, defines = _templates()["hub/pnpoly"]
    text = _without(text, "/*\n * The naive implementation")
    angles = np.sort(np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, 600))
    vertices = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    points = 20_000_000
    kernel = TunedKernel(
        text, "cn_pnpoly", (points,), (("block_size_x", "tile_size"),), defines=defines
    )
    bitmap = _array(points, np.zeros(_SAMPLE, np.int32))
    return Launched(
        kernel, [bitmap, _floats(2 * points), points], {"d_vertices": vertices.tobytes()}, **more
    )


def _dedispersion() -> Launched:
    text, defines = _templates()["hub/dedispersion_milo(25000x2048)"]
    header = text[text.index("// ---- dedispersion.h") :]
    text = text[: text.index("// ---- dedispersion.h")].replace('#include "dedispersion.h"', header)
    text = _without(text, 'extern "C"\nvoid __global__ dedispersion_naive', "#ifndef tile_size_x")
    kernel = TunedKernel(text, "dedispersion_kernel", (25000, 2048), _TILED, defines=defines)
    frequency = 1425 + np.arange(1536) * 0.1953125
    shifts = 4148.808 * (frequency**-2.0 - frequency[-1] ** -2.0) / 0.00004096
    samples = _array(1536 * 25650, np.zeros(_SAMPLE, np.uint8))
    arguments = [samples, _floats(25000 * 2048), _array(1536, shifts.astype(np.float32))]
    return Launched(kernel, arguments)


def _hotspot(problem: str) -> Launched:
    text, constants = _templates()[problem]
    defines, size = {"kernel_tuner": 1, "block_size_z": 1, **constants}, constants["grid_width"]
    kernel = TunedKernel(text, "calculate_temp", (size, size), _TILED, defines=defines)
    arrays = [_floats((size + 20) ** 2), _floats((size + 20) ** 2), _floats(size**2)]
    return Launched(kernel, [*arrays, *[_bits(0.1)] * 4], per_call="temporal_tiling_factor")


# What CLBlast's OpenCL needs of CUDA. As in CLBlast's own header, wide vectors are not aligned.
_OPENCL = """
#define restrict __restrict__
#define __kernel extern "C" __global__
#define __global
#define __local __shared__
#define LOCAL_PTR
#define CUDA
#define USE_INLINE_KEYWORD
#define inline __device__ __forceinline__
#define barrier(x) __syncthreads()
#define CLK_LOCAL_MEM_FENCE
#define get_local_id(d) ((d) == 0 ? threadIdx.x : threadIdx.y)
#define get_local_size(d) ((d) == 0 ? blockDim.x : blockDim.y)
#define get_group_id(d) ((d) == 0 ? blockIdx.x : blockIdx.y)
#define get_num_groups(d) ((d) == 0 ? gridDim.x : gridDim.y)
#define mad(a, b, c) ((a) * (b) + (c))
struct float8 { float s0, s1, s2, s3, s4, s5, s6, s7; };
struct float16 {
  float s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sA, sB, sC, sD, sE, sF;
};
"""


def _gemm() -> Launched:
    text, constants = _templates()["fjw/gemm_milo_random(4096x4096)"]
    defines = {"KWG": 32, "STRM": 0, "STRN": 0, **constants}  # the first three vary in one source
    kernel = TunedKernel(
        _OPENCL + text, "Xgemm", (4096, 4096), (("MWG",), ("NWG",)), ("MDIMC", "NDIMC"), defines
    )
    matrix = _floats(4096**2)
    numbers = [4096, 4096, 4096, _bits(1.0), _bits(1.0)]
    return Launched(kernel, [*numbers, matrix, matrix, matrix, 0, 0])


_UPPER = {name.upper(): name for name in ("block_size_x", "block_size_y", "tile_size", "use_method",
    "between_method", "tile_size_x", "tile_size_y", "read_only")}  # fmt: skip


GPUS = {
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA RTX A4000": "RTX-A4000",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
    "NVIDIA GeForce RTX 3060 Laptop GPU": "RTX-3060-Laptop",
    "NVIDIA GeForce RTX 2080 Ti": "RTX-2080-Ti",
    "NVIDIA TITAN RTX": "TITAN-RTX",
}
"""Names in the catalogue of the recorded GPUs that are emulated."""
GROUPS = {
    "convolution": ("hub/convolution", "hub/KTT_convolution"),
    "convolution_milo": ("hub/convolution_milo(4096x4096,15x15)",),
    "convolution_17": ("hub/convolution_milo_small(4096x4096)", "fjw/convolution(4096)"),
    "dedispersion": ("hub/dedispersion_milo(25000x2048)",),
    "gemm": ("hub/gemm",),
    "gemm_A100": ("fjw/gemm_milo_random(4096x4096)",),
    "hotspot": ("fjw/hotspot(8192x8192)",),
    "hotspot_A100": ("fjw/hotspot_milo_random(4096x4096):A100-PCIE-40GB",),
    "hotspot_A4000": ("fjw/hotspot_milo_random(4096x4096):A4000",),
    "pnpoly": ("hub/pnpoly", "hub/KTT_pnpoly"),
}
"""Problems with one source and one set of parameters, by a name that begins with the kernel's."""


@cache
def launched(problem: str) -> Launched:
    """Return how the kernel of a problem is launched.

    Raises:
        KeyError: That is not known.
    """
    match problem:
        case "hub/convolution" | "hub/KTT_convolution":
            names = {**_UPPER, "PADDING": "use_padding"}
            return _convolution("hub/convolution", recorded=names)
        case "hub/convolution_milo(4096x4096,15x15)":
            return _convolution(problem, only={"use_shmem": 1})
        case "hub/convolution_milo_small(4096x4096)" | "fjw/convolution(4096)":
            return _convolution(problem)
        case "hub/pnpoly" | "hub/KTT_pnpoly":
            return _pnpoly(recorded=_UPPER)
        case "hub/dedispersion_milo(25000x2048)":
            return _dedispersion()
        case "hub/gemm" | "fjw/gemm_milo_random(4096x4096)":
            return _gemm()
    if problem.startswith("fjw/hotspot"):
        return _hotspot(problem)
    raise KeyError(problem)
