"""The data types that a kernel's arrays may have: their names and bytes, and how numbers round.

NumPy lacks bfloat16 and both float8 types; ml_dtypes adds them. Sums and comparisons of narrow
floating-point types (less than 32 bits) are made in float32, which holds each of their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Name = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]
_FLOAT32 = np.dtype(np.float32)
_finfo: Any = ml_dtypes.finfo
_BELOW_NORMAL = 16.0  # by which the largest denormal inputs are below the smallest normal number
_FEWEST_DENORMALS = 4  # that such inputs tell apart


@dataclass(frozen=True)
class DType:
    """One data type.

    Attributes:
        name: Its name in problem.toml.
        numpy: Its NumPy type.
        is_float: Whether its numbers have a fraction.
        in_language: What a kernel calls it, by language. C++ and OpenCL C have no bfloat16 and no
            float8 here: a kernel gets their bits as integers.
        has_infinity: Whether it holds infinity. What is too large for a type without it is NaN.
        saturates: Whether some hardware stores its largest number for what is too large.
    """

    name: Name
    numpy: np.dtype[Any]
    is_float: bool
    in_language: Mapping[str, str]
    has_infinity: bool = False
    saturates: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.numpy.itemsize

    @property
    def is_narrow(self) -> bool:
        """Whether it is a floating-point type of less than 32 bits."""
        return self.is_float and self.bytes < _FLOAT32.itemsize

    @cached_property
    def stored(self) -> np.dtype[Any]:
        """The NumPy type of its bytes in memory: a byte of a bool may be neither 0 nor 1."""
        return np.dtype(np.uint8) if self.name == "bool" else self.numpy

    @cached_property
    def wide(self) -> np.dtype[Any]:
        """The type to calculate in. The sum of two integers needs more room than they have."""
        if self.is_narrow:
            return _FLOAT32
        return self.numpy if self.is_float else np.dtype(np.int64)

    @cached_property
    def eps(self) -> float:
        """The distance from 1 to the next number."""
        return float(_finfo(self.numpy).eps)

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        if self.name == "bool":
            return 1.0
        kind = _finfo if self.is_float else np.iinfo
        return float(kind(self.numpy).max)

    @cached_property
    def lowest(self) -> float:
        """The least finite number."""
        return -self.largest if self.is_float else float(np.iinfo(self.stored).min)

    @cached_property
    def smallest(self) -> float:
        """The smallest positive number, which is denormal."""
        return float(_finfo(self.numpy).smallest_subnormal)

    @cached_property
    def largest_denormal(self) -> float:
        """The largest of denormal inputs: far below the normal numbers, if there is room."""
        normal = float(_finfo(self.numpy).smallest_normal)
        far_below = normal / _BELOW_NORMAL
        return (
            far_below if far_below >= _FEWEST_DENORMALS * self.smallest else normal - self.smallest
        )

    def numbers(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what an array in memory holds, in float32 if it is narrow, else as it is."""
        return array.astype(np.float32) if self.is_narrow else array

    def drawn(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as elements of an input; a narrow type holds no larger ones than it can."""
        if self.is_narrow:
            values = np.clip(values, self.lowest, self.largest)
        return np.ascontiguousarray(values, dtype=self.numpy)

    def rounded(self, values: NDArray[np.float64]) -> NDArray[Any]:
        """Return float64 rounded to the nearest number, or infinity beyond the largest.

        The result has the type itself, or float32 if that is narrow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.is_narrow:
                return values.astype(self.numpy)
            # ml_dtypes rounds by way of float32; NumPy's own float16 does not.
            source = values if self.numpy == np.float16 else _rounded_to_odd(values)
            result = source.astype(self.numpy).astype(np.float32)
        if not self.has_infinity:
            is_beyond = np.isnan(result) & ~np.isnan(values)
            result[is_beyond] = np.copysign(np.float32(np.inf), values[is_beyond])
        return result


def _rounded_to_odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return float32 that a narrower type rounds as it would round the values themselves.

    What float32 does not hold goes to the neighbour whose last bit is 1, so that it stays on its
    side of every tie.
    """
    near = values.astype(np.float32)
    places = np.flatnonzero((near != values) & (near.view(np.uint32) & 1 == 0) & ~np.isnan(values))
    is_above = values.flat[places] > near.flat[places]
    towards = np.where(is_above, np.float32(np.inf), np.float32(-np.inf))
    near.flat[places] = np.nextafter(near.flat[places], towards)
    return near


def _float(name: Name, cpp: str, cuda: str, opencl: str, triton: str, **facts: bool) -> DType:
    names = {"cpp": cpp, "cuda": cuda, "opencl": opencl, "triton": triton, "torch": f"torch.{name}"}
    numpy = np.dtype(getattr(ml_dtypes, name, name))
    facts = {"has_infinity": True, **facts}
    return DType(name, numpy, is_float=True, in_language=MappingProxyType(names), **facts)


def _whole(name: Name, c: str, opencl: str, triton: str) -> DType:
    names = {"cpp": c, "cuda": c, "opencl": opencl, "triton": triton, "torch": f"torch.{name}"}
    return DType(name, np.dtype(name), is_float=False, in_language=MappingProxyType(names))


_ALL = (
    _float("float64", "double", "double", "double", "fp64"),
    _float("float32", "float", "float", "float", "fp32"),
    _float("float16", "_Float16", "__half", "half", "fp16"),
    _float("bfloat16", "uint16_t", "__nv_bfloat16", "ushort", "bf16"),
    _float(
        "float8_e4m3fn",
        *("uint8_t", "__nv_fp8_e4m3", "uchar", "fp8e4nv"),
        has_infinity=False,
        saturates=True,
    ),
    _float("float8_e5m2", "uint8_t", "__nv_fp8_e5m2", "uchar", "fp8e5", saturates=True),
    _whole("int64", "int64_t", "long", "i64"),
    _whole("int32", "int32_t", "int", "i32"),
    _whole("int16", "int16_t", "short", "i16"),
    _whole("int8", "int8_t", "char", "i8"),
    _whole("uint8", "uint8_t", "uchar", "u8"),
    _whole("bool", "bool", "uchar", "u1"),
)
_BY_NAME = MappingProxyType({each.name: each for each in _ALL})
_NARROW = frozenset(each.numpy for each in _ALL if each.is_narrow)


def dtype_of(name: Name) -> DType:
    """Return the data type of this name."""
    return _BY_NAME[name]


def names_in(language: str) -> dict[str, str]:
    """Return what the kernels of a language call each data type."""
    return {each.name: each.in_language[language] for each in _ALL}


def shown(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which reference.py gets an array: float32 in place of narrow types.

    Many functions of NumPy, SciPy and PyTorch do not take those, or add up in them.
    """
    return _FLOAT32 if dtype in _NARROW else dtype
