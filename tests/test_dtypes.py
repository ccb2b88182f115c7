"""Data types: what they are called, and that numbers round to them as IEEE 754 says."""

from __future__ import annotations

from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelcast.dtypes import Name, dtype_of, names_in, shown
from kernelcast.languages import dialect, element_type
from kernelcast.types import Argument

NAMES: tuple[Name, ...] = get_args(Name)
NARROW_FLOATS = [name for name in NAMES if dtype_of(name).is_narrow]


def every_number(name: Name) -> NDArray[np.float64]:
    """All finite numbers of a narrow type, in order."""
    kind = dtype_of(name)
    bits = np.arange(1 << 8 * kind.bytes, dtype=f"u{kind.bytes}")
    with np.errstate(invalid="ignore"):
        numbers = bits.view(kind.numpy).astype(np.float32).astype(np.float64)
    finite: NDArray[np.float64] = np.unique(numbers[np.isfinite(numbers)])
    return finite


@pytest.mark.parametrize("name", NAMES)
def test_a_type_is_what_numpy_says(name: Name) -> None:
    kind = dtype_of(name)
    assert kind.name == name == Argument(name="x", role="input", dtype=name, shape=()).dtype
    assert kind.bytes == kind.stored.itemsize == kind.numpy.itemsize
    if name == "bool":
        assert (kind.lowest, kind.largest, kind.stored) == (0.0, 1.0, np.dtype(np.uint8))
    else:
        limits = (ml_dtypes.finfo if kind.is_float else np.iinfo)(kind.numpy)
        assert (kind.lowest, kind.largest) == (float(limits.min), float(limits.max))
    assert np.can_cast(kind.stored, kind.wide)


@pytest.mark.parametrize("name", NARROW_FLOATS)
def test_numbers_round_to_the_nearest_and_ties_to_even(name: Name) -> None:
    numbers = every_number(name)
    ties = (numbers[1:] + numbers[:-1]) / 2
    kind = dtype_of(name)
    assert np.array_equal(kind.rounded(numbers), numbers)
    assert np.array_equal(kind.rounded(np.nextafter(ties, np.inf)), numbers[1:])
    assert np.array_equal(kind.rounded(np.nextafter(ties, -np.inf)), numbers[:-1])
    chosen = kind.rounded(ties).astype(kind.numpy)
    assert not (chosen.view(f"u{kind.bytes}") & 1).any()
    largest = kind.largest
    beyond = np.array([2 * largest, -2 * largest, 1e300, np.inf, np.nan])
    assert np.array_equal(
        kind.rounded(beyond), [np.inf, -np.inf, np.inf, np.inf, np.nan], equal_nan=True
    )


@given(st.sampled_from(NAMES), st.floats(-1e6, 1e6))
def test_drawn_values_are_in_the_type_and_finite(name: Name, value: float) -> None:
    kind = dtype_of(name)
    if kind.is_float:
        drawn = kind.drawn(np.array([value]))
        assert drawn.dtype == kind.numpy
        assert np.isfinite(drawn.astype(np.float64)).all()


@pytest.mark.parametrize("name", NARROW_FLOATS)
def test_a_reference_gets_float32_for_narrow_numbers(name: Name) -> None:
    assert shown(dtype_of(name).numpy) == np.dtype(np.float32)
    assert shown(np.dtype(np.int8)) == np.dtype(np.int8)


def test_each_measuring_language_has_a_name_for_each_type() -> None:
    for language in ("cpp", "cuda", "opencl", "triton"):
        assert list(names_in(language)) == list(NAMES)
        for name in NAMES:
            assert element_type(language, name) == dtype_of(name).in_language[language]
    assert "bool" not in dialect("cpp").dtypes
    assert element_type("cpp", "bfloat16") == "uint16_t"
