"""Inputs that no process has seen before, and hidden cases.

A kernel that meets an input twice can remember its answer, so every timed call gets content of its
own. Drawing a million normal numbers takes longer than many kernels. `FreshInputs` draws two long
pools once and mixes windows of them at random places in random proportions, which keeps the
distribution and costs little more than a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelcast.dtypes import DType, dtype_of
from kernelcast.expression import evaluate
from kernelcast.types import Argument, Case, Problem, Special

Array = NDArray[Any]

_CHUNK = 1 << 15  # elements worked on at once
_LEEWAY = 1 << 14  # elements by which a pool is longer than a chunk, at least
_POOL = 1 << 20  # elements
_SCALES = (1 / 16, 16.0)
_MOST_DRAWS = 200
HIDDEN = "hidden-"
"""What the names of hidden cases begin with."""
LATE = ", late"
"""What the names of cases end with that are verified when the timing has ended."""
_SHAPES_TO_CHOOSE_FROM = 4
_SHAPES_FOR_SPECIAL = 48
_MOST_SPECIAL = 3  # elements of an array that are NaN or infinite


def make_inputs(problem: Problem, case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """Fresh input arrays of a case by name, filled as each argument says."""
    inputs = {
        argument.name: _Filling(argument, case).drawn(argument.extent(case.dimensions), rng)
        for argument in problem.arguments
        if argument.role == "input"
    }
    for argument in problem.arguments:
        if special := case.special.get(argument.name):
            _make_special(inputs[argument.name], dtype_of(argument.dtype), special, rng)
    return inputs


def _make_special(array: Array, dtype: DType, special: Special, rng: np.random.Generator) -> None:
    """Put NaN or infinity at a few random places, or make the whole array denormal."""
    if special == "denormal":
        values = array.astype(np.float64)
        values /= max(np.abs(values).max(), dtype.smallest)
        values *= dtype.largest_denormal
        array[...] = values
        return
    flat = array.reshape(-1)
    count = min(flat.size, int(rng.integers(1, _MOST_SPECIAL + 1)))
    places = rng.choice(flat.size, count, replace=False)
    flat[places] = np.nan if special == "nan" else rng.choice((-np.inf, np.inf), count)


def sample_inputs(
    problem: Problem, case: Case, most_bytes: int, rng: np.random.Generator
) -> list[tuple[int, bytes]]:
    """Return the size of each array of a case in bytes, and its first bytes; outputs are zeros."""
    samples = []
    for argument in problem.arguments:
        dtype, elements = dtype_of(argument.dtype), math.prod(argument.extent(case.dimensions))
        shape = (min(elements, most_bytes // dtype.bytes),)
        if argument.role == "input":
            content = _Filling(argument, case).drawn(shape, rng)
        else:
            content = np.zeros(shape, dtype.numpy)
        samples.append((elements * dtype.bytes, content.tobytes()))
    return samples


class _Filling:
    """The fill of one argument of one case, with its bounds as numbers."""

    def __init__(self, argument: Argument, case: Case) -> None:
        fill = argument.fill
        self.kind = fill.kind
        self.dtype = dtype_of(argument.dtype)
        self.wide = self.dtype.wide
        # Whole numbers are counts or indices, whatever their type.
        scale = case.scale if self.dtype.is_float and fill.kind != "integers" else 1.0
        self.mean, self.std = scale * fill.mean, scale * fill.std
        self.low = self.high = 0.0
        if fill.kind != "normal":
            self.low = scale * evaluate(str(fill.low), case.dimensions)
            self.high = scale * evaluate(str(fill.high), case.dimensions)
        if self.dtype.name == "bool":
            self.low, self.high = 0.0, 2.0

    def drawn(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Independent values."""
        return self.dtype.drawn(self._exact(shape, rng))

    def _exact(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Independent values that are not rounded to the type yet."""
        values: Array
        match self.kind:
            case "normal":
                values = self._standard(shape, rng)
                if (self.mean, self.std) != (0.0, 1.0):
                    values *= self.std
                    values += self.mean
            case "uniform":
                values = rng.uniform(self.low, self.high, shape)
            case "integers":
                values = rng.integers(int(self.low), int(self.high), shape)
        return values

    def pool(self, length: int, rng: np.random.Generator) -> Array:
        """Values to take windows of; without the mean or lower bound."""
        if self.kind == "normal":
            normal = self._standard((length,), rng)
            normal *= self.std
            return normal.astype(self.wide, copy=False)
        # What is mixed of narrow numbers is rounded when it has been mixed.
        make = self._exact if self.dtype.is_narrow else self.drawn
        values = make((length,), rng).astype(self.wide, copy=False)
        values -= self.wide.type(self.low)
        return values

    def mix(self, one: Array, other: Array, out: Array, rng: np.random.Generator) -> None:
        """Mix windows of two pools into new content of the same distribution.

        Places and proportions are drawn anew for each chunk. Otherwise the answer of a linear
        kernel that does not mind a shift could be had from its answers to the pools.
        """
        span, low = self.wide.type(self.high - self.low), self.wide.type(self.low)
        for part in chunks(out.size):
            size = out[part].size
            first, second = map(int, rng.integers(len(one) - size + 1, size=2))
            here, there = one[first : first + size], other[second : second + size]
            if self.kind == "normal":
                angle = rng.uniform(0.0, 2.0 * math.pi)
                mixed = np.empty(size, self.wide) if self.dtype.is_narrow else out[part]
                np.multiply(here, self.wide.type(math.cos(angle)), out=mixed)
                mixed += there * self.wide.type(math.sin(angle))
                if self.mean:
                    mixed += self.wide.type(self.mean)
            else:
                mixed = here + there
                mixed -= (mixed >= span) * span
                mixed += low
                if not self.dtype.is_narrow:
                    out[part] = mixed
            if self.dtype.is_narrow:
                out[part] = self.dtype.drawn(mixed)

    def _standard(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.standard_normal(shape, np.float32 if self.wide == np.float32 else np.float64)


def chunks(size: int) -> Iterator[slice]:
    """Slices of so many elements in all, small enough that intermediate results stay in cache."""
    return (slice(start, start + _CHUNK) for start in range(0, size, _CHUNK))


class InputSource(Protocol):
    """A source of inputs of one case that never repeat."""

    def fill(self, arrays: list[Array], rng: np.random.Generator) -> None:
        """Write new content to the input arrays, flat and in the order of the signature."""


class FreshInputs:
    """Inputs that are mixed of two pools."""

    def __init__(self, problem: Problem, case: Case, rng: np.random.Generator) -> None:
        self._pools: list[tuple[_Filling, Array, Array]] = []
        for argument in problem.arguments:
            if argument.role == "input":
                filling = _Filling(argument, case)
                length = min(math.prod(argument.extent(case.dimensions)), _POOL) + _LEEWAY
                self._pools.append((filling, filling.pool(length, rng), filling.pool(length, rng)))

    def fill(self, arrays: list[Array], rng: np.random.Generator) -> None:
        """Write new content to the input arrays, flat and in the order of the signature."""
        for (filling, one, other), out in zip(self._pools, arrays, strict=True):
            filling.mix(one, other, out, rng)


def hidden_cases(
    problem: Problem, count: int, largest_bytes: int, rng: np.random.Generator
) -> list[Case]:
    """Untimed cases that no kernel knows: other shapes, two of three in other magnitudes.

    There are more for the special values that inputs may hold. A problem that states no legal
    shapes gets its smallest case's.
    """
    smallest = min(problem.cases, key=lambda case: array_bytes(problem, case.dimensions))

    def shapes(draws: int) -> list[dict[str, int]]:
        drawn = [_drawn_dimensions(problem, largest_bytes, rng) for _ in range(draws)]
        return [shape for shape in drawn if shape is not None] or [dict(smallest.dimensions)]

    scales = (1.0, *_scales(problem))
    cases = []
    for index in range(count):
        scale = scales[index % len(scales)]
        # Magnitudes show where there is something to add up: of several shapes, the largest.
        drawn = shapes(1 if scale == 1.0 else _SHAPES_TO_CHOOSE_FROM)
        shape = max(drawn, key=lambda shape: array_bytes(problem, shape))
        cases.append(Case(name=f"{HIDDEN}{index}", dimensions=shape, timed=False, scale=scale))
    for name, special in _special_values(problem, rng).items():
        # If a dimension is short, a few special elements may leave no finite result.
        shape = max(shapes(_SHAPES_FOR_SPECIAL), key=lambda shape: _lengths(problem, shape))
        cases.append(Case(name=f"{HIDDEN}{name}", dimensions=shape, timed=False, special=special))
    return cases


def varied_cases(problem: Problem, rng: np.random.Generator) -> list[Case]:
    """The timed cases, untimed, in other magnitudes and with the special values of the inputs.

    Each comes twice, the second time as `LATE`.
    """
    varied: list[Case] = []
    for case in problem.timed_cases:
        scales = _scales(problem) or (1.0,)
        changes: dict[str, dict[str, Any]] = {f"x {scale:g}": {"scale": scale} for scale in scales}
        for name, special in _special_values(problem, rng).items():
            changes[f"with {name}"] = {"special": special}
        for name, change in changes.items():
            for again in ("", LATE):
                named = {"name": f"{case.name} {name}{again}", "timed": False}
                varied.append(case.model_copy(update={**change, **named}))
    return varied


def _scales(problem: Problem) -> tuple[float, ...]:
    """Other magnitudes of inputs; none for inputs that the problem's own code draws."""
    return () if problem.module is not None and problem.module.draw else _SCALES


def _special_values(problem: Problem, rng: np.random.Generator) -> dict[str, dict[str, Special]]:
    """What the inputs hold in each case with special values, by the case's name."""
    held: dict[Special, list[str]] = {}
    for argument in problem.arguments:
        for special in argument.special:
            held.setdefault(special, []).append(argument.name)
    values: dict[str, dict[str, Special]]
    values = {special: dict.fromkeys(names, special) for special, names in sorted(held.items())}
    if len(names := held.get("denormal", [])) > 1:
        # Products show denormals of one factor (of both, they are zero), sums those of all terms.
        values["one-denormal"] = {str(rng.choice(names)): "denormal"}
    return values


def _drawn_dimensions(
    problem: Problem, largest_bytes: int, rng: np.random.Generator
) -> dict[str, int] | None:
    """Log-uniform within the bounds, so that small and odd sizes come as often as large ones."""
    if problem.hidden is None:
        return None
    for _ in range(_MOST_DRAWS):
        drawn = {
            name: int(math.exp(rng.uniform(math.log(low), math.log(high + 1))))
            for name, (low, high) in problem.hidden.dimensions.items()
        }
        fits = array_bytes(problem, drawn) <= largest_bytes
        if fits and all(evaluate(rule, drawn) for rule in problem.hidden.constraints):
            return drawn
    return None


def _lengths(problem: Problem, dimensions: Mapping[str, int]) -> tuple[float, float]:
    """Where the dimensions lie in their ranges, from 0 to 1: the least, and all together."""
    ranges = problem.hidden.dimensions if problem.hidden else {}
    places = [
        math.log(dimensions[name] / low) / math.log(high / low)
        for name, (low, high) in ranges.items()
        if low < high
    ]
    return min(places, default=0.0), sum(places)


def array_bytes(problem: Problem, dimensions: Mapping[str, int]) -> int:
    """Return the bytes of all arrays of a problem."""
    return sum(
        math.prod(argument.extent(dimensions)) * dtype_of(argument.dtype).bytes
        for argument in problem.arguments
    )
