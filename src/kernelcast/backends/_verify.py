"""Inputs, expected outputs and the comparison: all of it in the parent, out of a kernel's reach.

A `Sample` is one set of inputs of a case laid out as it will lie in shared memory, with poisoned
outputs and guard bytes around every array, and the bounds each output element must keep. A kernel
that changes an input (it must cast `const` away) is `CHEATING`; one that writes past an array, or
leaves an element wrong or unwritten, is `WRONG_RESULT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Argument, Case, Failure, FailureKind, Problem

Array = NDArray[Any]
Oracle = Callable[[Mapping[str, Array], Case], tuple[Array, ...]]

_ALIGNMENT = 64
_GUARD_BYTES = 256
_PAGE = 4096
_CHUNK = 1 << 15  # elements worked on at once, so that what lies between stays in the cache
_POISON = 0xFF  # a NaN in every floating-point type, so that reading a guard shows as well


def make_inputs(problem: Problem, case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """Fresh input arrays of a case, by name, each filled as its argument says."""
    return {
        argument.name: _filled(argument, case, rng)
        for argument in problem.arguments
        if argument.role == "input"
    }


def _filled(argument: Argument, case: Case, rng: np.random.Generator) -> Array:
    shape = argument.extent(case.dimensions)
    fill = argument.fill
    match fill.kind:
        case "normal":
            dtype = np.float32 if argument.dtype == "float32" else np.float64
            values: Array = rng.standard_normal(shape, dtype=dtype)
            if (fill.mean, fill.std) != (0.0, 1.0):
                values *= fill.std
                values += fill.mean
        case "uniform":
            low, high = (evaluate(str(each), case.dimensions) for each in (fill.low, fill.high))
            values = rng.uniform(low, high, shape)
        case "integers":
            low, high = (evaluate(str(each), case.dimensions) for each in (fill.low, fill.high))
            values = rng.integers(int(low), int(high), shape)
    return np.ascontiguousarray(values, dtype=argument.dtype)


def oracle(problem: Problem) -> Oracle:
    """The problem's reference.py as a function of inputs and case, returning float64 outputs.

    The text is the user's own data, trusted as their shell is; kernels never come this way.
    """
    where = f"{problem.name}/reference.py"
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(problem.oracle_source, where, "exec"), namespace)  # noqa: S102
    reference = namespace.get("reference")
    if not callable(reference):
        raise ProblemError(f"{where}: define a function reference(inputs..., *, dimensions...)")
    outputs = [each for each in problem.arguments if each.role == "output"]

    def expected(inputs: Mapping[str, Array], case: Case) -> tuple[Array, ...]:
        try:
            answer = reference(*inputs.values(), **case.dimensions)
        except Exception as error:
            raise ProblemError(f"{where}: case {case.name!r} raised {error!r}") from error
        arrays = answer if isinstance(answer, tuple) else (answer,)
        if len(arrays) != len(outputs):
            raise ProblemError(f"{where}: returned {len(arrays)} arrays, not {len(outputs)}")
        for argument, array in zip(outputs, arrays, strict=True):
            shape = argument.extent(case.dimensions)
            if np.shape(array) != shape:
                raise ProblemError(
                    f"{where}: case {case.name!r}: {argument.name} has shape {np.shape(array)}, "
                    f"problem.toml says {shape}"
                )
        return tuple(np.asarray(array, dtype=np.float64) for array in arrays)

    return expected


@dataclass(frozen=True)
class Layout:
    """Where the arrays of one case lie from the start of a slot, and how long a slot is."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    stride: int

    @classmethod
    def of(cls, problem: Problem, case: Case) -> Layout:
        """Arrays in the order of the signature, aligned, with a guard before, between, after."""
        offsets, lengths, end = [], [], 0
        for argument in problem.arguments:
            start = -(-(end + _GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
            length = int(np.prod(argument.extent(case.dimensions), dtype=np.int64))
            length *= np.dtype(argument.dtype).itemsize
            offsets.append(start)
            lengths.append(length)
            end = start + length
        stride = -(-(end + _GUARD_BYTES) // _PAGE) * _PAGE
        return cls(tuple(offsets), tuple(lengths), stride)


@dataclass(frozen=True)
class _Expected:
    """The closed interval each element of one output must lie in; NaN where NaN is right."""

    argument: Argument
    low: Array
    high: Array
    nan: NDArray[np.bool_] | None

    @classmethod
    def of(cls, argument: Argument, problem: Problem, exact: Array) -> _Expected:
        dtype = np.dtype(argument.dtype)
        if dtype.kind == "i" and not np.isfinite(exact).all():
            raise ProblemError(
                f"{problem.name}/reference.py: {argument.name} is {dtype} but the reference "
                "holds NaN or infinity there"
            )
        low, high = np.empty(exact.size, dtype), np.empty(exact.size, dtype)
        flat = exact.reshape(-1)
        for start in range(0, exact.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            slack = np.abs(flat[part])
            slack[~np.isfinite(slack)] = 0.0
            slack *= problem.tolerance.rtol
            slack += problem.tolerance.atol
            low[part] = _rounded(flat[part] - slack, dtype, up=True)
            high[part] = _rounded(flat[part] + slack, dtype, up=False)
        nan = np.isnan(exact)
        shape = exact.shape
        return cls(argument, low.reshape(shape), high.reshape(shape), nan if nan.any() else None)

    def wrong(self, output: Array) -> NDArray[np.bool_]:
        """Which elements are outside their interval; an unwritten one always is."""
        right = (output >= self.low) & (output <= self.high)
        if self.nan is not None:
            poison = np.full(1, _POISON, dtype=np.uint8).repeat(output.itemsize).view(output.dtype)
            bits = np.dtype(f"u{output.itemsize}")
            written = output.view(bits) != poison.view(bits)
            right |= self.nan & np.isnan(output) & written
        return ~right


def _rounded(bound: Array, dtype: np.dtype[Any], *, up: bool) -> Array:
    """The bound in the output's own type, where comparing costs a quarter.

    Integers round inwards. Floats round to nearest, which never turns a right element into a
    wrong one because rounding is monotone, and lets in at most half a unit in the last place.
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return bound.astype(dtype)
    largest = float(np.nextafter(float(np.iinfo(dtype).max) + 1.0, 0.0))
    return np.clip(np.ceil(bound) if up else np.floor(bound), -largest, largest).astype(dtype)


@dataclass(frozen=True)
class Sample:
    """One set of inputs of a case as it lies in memory, and what must be there afterwards."""

    case: Case
    arguments: tuple[Argument, ...]
    layout: Layout
    image: NDArray[np.uint8]
    expected: Mapping[str, _Expected]

    @classmethod
    def draw(
        cls, problem: Problem, case: Case, reference: Oracle, rng: np.random.Generator
    ) -> Sample:
        """Fresh inputs, the oracle's word on them, and a poisoned image of the slot."""
        inputs = make_inputs(problem, case, rng)
        layout = Layout.of(problem, case)
        image = np.full(layout.stride, _POISON, dtype=np.uint8)
        for argument, offset, length in zip(
            problem.arguments, layout.offsets, layout.lengths, strict=True
        ):
            if argument.role == "input":
                image[offset : offset + length] = inputs[argument.name].reshape(-1).view(np.uint8)
            elif argument.dtype.startswith("int"):
                # No integer is a NaN: random ones are right by chance only.
                image[offset : offset + length] = rng.integers(0, 256, length, dtype=np.uint8)
        # After the image is made: an oracle that changes its arguments cannot change the kernel's.
        exact = reference(inputs, case)
        outputs = (each for each in problem.arguments if each.role == "output")
        expected = {
            argument.name: _Expected.of(argument, problem, array)
            for argument, array in zip(outputs, exact, strict=True)
        }
        return cls(case, problem.arguments, layout, image, expected)

    def check(self, slot: NDArray[np.uint8]) -> Failure | None:
        """Compare the slot after the call with what must be there."""
        end = 0
        for argument, offset, length in self._spans():
            if argument.role == "output":
                # A copy, because the child could go on writing while this is compared.
                output = slot[offset : offset + length].copy().view(argument.dtype)
                if not _same(slot[end:offset], self.image[end:offset]):
                    return self._trespass(slot)
                shape = argument.extent(self.case.dimensions)
                if failure := self._compare(self.expected[argument.name], output.reshape(shape)):
                    return failure
                end = offset + length
        return None if _same(slot[end:], self.image[end:]) else self._trespass(slot)

    def _spans(self) -> Iterator[tuple[Argument, int, int]]:
        return zip(self.arguments, self.layout.offsets, self.layout.lengths, strict=True)

    def _trespass(self, slot: NDArray[np.uint8]) -> Failure:
        """What was written to apart from the outputs: guards by accident, inputs on purpose."""
        end, before = 0, "the start"
        for argument, offset, length in self._spans():
            if not _same(slot[end:offset], self.image[end:offset]):
                return self._failure(
                    FailureKind.WRONG_RESULT, f"wrote outside: between {before} and {argument.name}"
                )
            end, before = offset + length, argument.name
        if not _same(slot[end:], self.image[end:]):
            return self._failure(
                FailureKind.WRONG_RESULT, f"wrote outside: past the end of {before}"
            )
        changed = [
            argument.name
            for argument, offset, length in self._spans()
            if argument.role == "input"
            and not _same(slot[offset : offset + length], self.image[offset : offset + length])
        ]
        return self._failure(FailureKind.CHEATING, f"changed its input {', '.join(changed)}")

    def _compare(self, expected: _Expected, output: Array) -> Failure | None:
        wrong = expected.wrong(output)
        count = int(np.count_nonzero(wrong))
        if not count:
            return None
        index = tuple(int(each) for each in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        return self._failure(
            FailureKind.WRONG_RESULT,
            f"{expected.argument.name}{list(index)} is {output[index]}, expected "
            f"{expected.low[index]} to {expected.high[index]}; {count} of {wrong.size} "
            "elements are wrong",
        )

    def _failure(self, kind: FailureKind, message: str) -> Failure:
        return Failure(kind=kind, message=f"case {self.case.name}: {message}")


def _same(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    whole = one.size // 8 * 8
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and (
        np.array_equal(one[whole:], other[whole:])
    )
