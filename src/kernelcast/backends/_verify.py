"""Expected outputs and their comparison, in the parent, where no kernel can reach them.

Verification calls are compared with the oracle (`KnownAnswer`), timed calls with the trusted
reference's outputs on the same inputs (`differences`). A kernel that changes an input (it must cast
`const` away) is `CHEATING`. A kernel that writes past an array, leaves an element wrong or
unwritten, or is less precise than its budget is `WRONG_RESULT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._arena import Layout
from kernelcast.backends._inputs import Array, chunks, make_inputs
from kernelcast.dtypes import DType, dtype_of
from kernelcast.errors import ProblemError
from kernelcast.types import (
    SPECIAL_WORDS,
    Argument,
    Case,
    Failure,
    FailureKind,
    Problem,
    Tolerance,
)

# The float64 outputs of inputs, which it leaves as they are.
Reference = Callable[[Mapping[str, Array], Case], tuple[Array, ...]]
Drawing = Callable[[Problem, Case, np.random.Generator], Mapping[str, Array]]
# What a problem's own check says against outputs, which are given with their inputs.
Objection = Callable[[Case, Mapping[str, Array]], str]
Bits = NDArray[np.bool_]
Slot = NDArray[np.uint8]

_POISON = 0xFF  # a NaN in every floating-point type
# Words of guards, by the bytes of the problem's narrowest floating-point type: a NaN in each type
# that is as wide or wider, and its bits that may be anything (signs and payloads).
_QUIET_NANS = {
    1: (0x7FFF_7FFF, 0x8000_8000),
    2: (0x7FF8_7FF8, 0x8007_8007),
    4: (0x7FF8_0000, 0x8007_FFFF),
}
_NO_BOOL = 2  # the least byte that is neither false nor true
_RMS_FACTOR = 2.0
_WORST_FACTOR = 4.0
_FLOOR_EPS = 8.0
_NARROW_FLOOR_EPS = 1.0  # sums of narrow numbers are made in float32
_NARROW_UNITS = 0.75  # of eps: an honest number differs by half a unit, and a unit may double
_FLOOR_SHARE = 0.01
_DIFFERENCE_FACTOR = 1.5  # (1 + 2) / 2: the reference's own error, and twice that
_FEWEST_FOR_A_MEAN = 256
_DENORMAL_SHARE = 1 / 64  # of the median magnitude that is lost if denormals are taken for zero
_FEW_UNITS = 16.0
_LEAST_MOVED = 0.05
_FEWEST_TO_TELL = 16
_MOST_SHOWN = 3  # wrong elements


def in_case(case: Case, failure: Failure, held: str = "") -> Failure:
    """A failure with the case in which it was seen, and in a last line its dimensions."""
    dimensions = ", ".join(f"{name}={size}" for name, size in case.dimensions.items())
    if case.scale != 1.0:
        dimensions += f"; its inputs are {case.scale:g} times as large"
    message = f"case {case.name}{held}: {failure.message}\ncase {case.name} has {dimensions}"
    return failure.model_copy(update={"message": message})


def _outputs(arguments: Iterable[Argument]) -> list[Argument]:
    return [argument for argument in arguments if argument.role == "output"]


@dataclass(frozen=True)
class _Bounds:
    """The closed interval of each element of one output; `nan` marks where NaN is right.

    Those of a narrow type are float32.
    """

    dtype: DType
    low: Array
    high: Array
    nan: Bits | None

    @classmethod
    def of(
        cls, argument: Argument, problem: Problem, tolerance: Tolerance, exact: Array
    ) -> _Bounds:
        dtype = dtype_of(argument.dtype)
        if not dtype.is_float and not np.isfinite(exact).all():
            raise ProblemError(
                f"{problem.name}/reference.py: {argument.name} is {dtype.name} but the reference "
                "holds NaN or infinity there"
            )
        compared = dtype.wide if dtype.is_float else dtype.stored
        low, high = np.empty(exact.size, compared), np.empty(exact.size, compared)
        for part in chunks(exact.size):
            slack = np.abs(exact[part])
            slack[~np.isfinite(slack)] = 0.0
            slack *= tolerance.rtol
            slack += tolerance.atol
            low[part] = _rounded(exact[part] - slack, dtype, np.ceil)
            high[part] = _rounded(exact[part] + slack, dtype, np.floor)
        nan = np.isnan(exact)
        if dtype.saturates:
            if not dtype.has_infinity:
                nan |= np.isinf(low) | np.isinf(high)
            low, high = np.minimum(low, dtype.largest), np.maximum(high, dtype.lowest)
        return cls(dtype, low, high, nan if nan.any() else None)

    def wrong(self, output: Array) -> Bits:
        """Which elements are outside their interval; an unwritten one always is."""
        numbers = self.dtype.numbers(output)
        right = (numbers >= self.low) & (numbers <= self.high)
        if self.nan is not None:
            right |= self.nan & _written_nan(output)
        return ~right

    def widened(self, slack: float) -> _Bounds:
        """The same with wider intervals; infinite slack lets everything pass."""
        if self.dtype.is_narrow:
            low, high = (bound.astype(np.float64) for bound in (self.low, self.high))
            low, high = self.dtype.rounded(low - slack), self.dtype.rounded(high + slack)
            return replace(self, low=low, high=high)
        dtype = self.low.dtype.type
        with np.errstate(over="ignore"):
            return replace(self, low=self.low - dtype(slack), high=self.high + dtype(slack))


def _rounded(bound: Array, dtype: DType, inwards: Callable[[Array], Array]) -> Array:
    """The bound in the output's own type, where comparing costs a quarter."""
    if dtype.is_float:
        # To nearest: rounding is monotone, so that no right element becomes a wrong one.
        return dtype.rounded(bound)
    largest = float(np.nextafter(dtype.largest + 1.0, 0.0))
    return np.clip(inwards(bound), dtype.lowest, largest).astype(dtype.stored)


@dataclass(frozen=True)
class Image:
    """One set of inputs of a case as it lies in memory: outputs poisoned, guards all around."""

    case: Case
    arguments: tuple[Argument, ...]
    layout: Layout
    content: Slot

    @classmethod
    def blank(cls, problem: Problem, case: Case, rng: np.random.Generator) -> Image:
        """An image whose inputs are not filled yet."""
        layout = Layout.of(problem, case)
        # Guards are NaNs in the problem's floating-point types, so that reading one shows. They
        # differ, so that copying one to another shows as well.
        dtypes = [dtype_of(argument.dtype) for argument in problem.arguments]
        narrowest = min((dtype.bytes for dtype in dtypes if dtype.is_float), default=4)
        nan, free = _QUIET_NANS[min(narrowest, 4)]
        words = rng.integers(0, 1 << 32, layout.stride // 4, dtype=np.uint32)
        words &= np.uint32(free)
        words |= np.uint32(nan)
        image = cls(case, problem.arguments, layout, words.view(np.uint8))
        for argument, offset, length in image._spans():
            if argument.role == "output":
                poisoned = image.content[offset : offset + length]
                poisoned[:] = _POISON
                if not (dtype := dtype_of(argument.dtype)).is_float:
                    # No integer is a NaN: random ones are right by chance only.
                    least = _NO_BOOL if dtype.name == "bool" else 0
                    poisoned[:] = rng.integers(least, 256, length, dtype=np.uint8)
        return image

    def arrays(self, slot: Slot, role: str) -> list[Array]:
        """Flat views of a slot's arrays in a role; of a bool, its bytes."""
        return [
            slot[offset : offset + length].view(dtype_of(argument.dtype).stored)
            for argument, offset, length in self._spans()
            if argument.role == role
        ]

    def outputs(self, slot: Slot) -> Iterator[tuple[Argument, Array]]:
        """Each output argument with its flat view in a slot."""
        return zip(_outputs(self.arguments), self.arrays(slot, "output"), strict=True)

    def damage(self, slot: Slot) -> Failure | None:
        """A failure if a guard (by accident) or an input (on purpose) was written to."""
        changed, end, before = [], 0, "the start"
        for argument, offset, length in self._spans():
            if not _same(slot[end:offset], self.content[end:offset]):
                return self.wrong(f"wrote outside: between {before} and {argument.name}")
            end, before = offset + length, argument.name
            if argument.role == "input" and not _same(slot[offset:end], self.content[offset:end]):
                changed.append(argument.name)
        if not _same(slot[end:], self.content[end:]):
            return self.wrong(f"wrote outside: past the end of {before}")
        if changed:
            message = f"case {self.case.name}: changed its input {', '.join(changed)}"
            return Failure(kind=FailureKind.CHEATING, message=message)
        return None

    def wrong_element(
        self, argument: Argument, wrong: Bits, output: Array, low: Any, high: Any
    ) -> Failure:
        """The first wrong elements, in the array's own indices, and how many there are."""
        shape = argument.extent(self.case.dimensions)
        first, *others = (
            f"{argument.name}{[int(index) for index in np.unravel_index(place, shape)]} is "
            f"{output[place]}, expected {low[place]} to {high[place]}"
            for place in np.flatnonzero(wrong)[:_MOST_SHOWN]
        )
        count = f"{int(np.count_nonzero(wrong))} of {wrong.size} elements are wrong"
        return self.wrong("\n".join([f"{first}; {count}", *others]))

    def imprecise(self, argument: Argument, rms: float, honest: OutputError) -> Failure:
        """The failure of an output whose elements are right, but less precise than allowed."""
        return self.wrong(
            f"{argument.name} is less precise than the reference: root mean square error "
            f"{rms:.3g} tolerances, the reference's is {honest.rms:.3g}, at most "
            f"{honest.most_rms:.3g} is allowed"
        )

    def wrong(self, message: str) -> Failure:
        """A wrong result, with the case and what its inputs hold."""
        kinds = sorted(SPECIAL_WORDS[special] for special in set(self.case.special.values()))
        held = f" (inputs hold {', '.join(kinds)})" if kinds else ""
        return in_case(self.case, Failure(kind=FailureKind.WRONG_RESULT, message=message), held)

    def _spans(self) -> Iterator[tuple[Argument, int, int]]:
        return zip(self.arguments, self.layout.offsets, self.layout.lengths, strict=True)


Errors = Mapping[str, "OutputError"]


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the oracle: root mean square in tolerances, and at worst.

    A mean of plain errors would be decided by a few large elements, and is no budget. `most_rms` is
    what other kernels may be off if this is the reference; infinite for few elements and denormals.
    """

    rms: float
    worst: float
    most_rms: float


@dataclass(frozen=True)
class KnownAnswer:
    """One set of inputs, the oracle's exact outputs, and the bounds of each output."""

    image: Image
    tolerance: Tolerance
    exact: Mapping[str, Array]
    bounds: Mapping[str, _Bounds]
    objection: Objection | None = None

    @classmethod
    def draw(
        cls,
        problem: Problem,
        case: Case,
        reference: Reference,
        rng: np.random.Generator,
        draw_inputs: Drawing = make_inputs,
        objection: Objection | None = None,
    ) -> KnownAnswer:
        """Draw inputs, lay them out, and ask the oracle."""
        inputs = draw_inputs(problem, case, rng)
        image = Image.blank(problem, case, rng)
        views = image.arrays(image.content, "input")
        for array, values in zip(views, inputs.values(), strict=True):
            array[:] = values.reshape(-1)
        answers = [array.reshape(-1) for array in reference(inputs, case)]
        outputs = _outputs(problem.arguments)
        exact = {output.name: array for output, array in zip(outputs, answers, strict=True)}
        tolerance = problem.tolerance
        if "denormal" in case.special.values():
            tolerance = _for_denormals(tolerance, outputs, exact)
        bounds = {
            output.name: _Bounds.of(output, problem, tolerance, exact[output.name])
            for output in outputs
        }
        return cls(image, tolerance, exact, bounds, objection)

    def errors(self, slot: Slot) -> dict[str, OutputError]:
        """How far the floating-point outputs are from the oracle; infinite where one is NaN."""
        return {
            argument.name: self._error(argument, output)
            for argument, output in self.image.outputs(slot)
            if dtype_of(argument.dtype).is_float
        }

    def _error(self, argument: Argument, output: Array) -> OutputError:
        worst = squares = magnitudes = 0.0
        count, dtype = 0, dtype_of(argument.dtype)
        smallest_unit = self._smallest_units.get(argument.name, 0.0)
        for part in chunks(output.size):
            exact, actual = self.exact[argument.name][part], dtype.numbers(output[part])
            is_finite = np.isfinite(exact)
            if dtype.is_narrow:  # what may be too large for the type is held by its bounds alone
                with np.errstate(invalid="ignore"):
                    is_finite &= _slack(exact, self.tolerance) <= dtype.largest - np.abs(exact)
            if not is_finite.all():
                exact, actual = exact[is_finite], actual[is_finite]
            unit = _slack(exact, self.tolerance)
            unit += smallest_unit
            with np.errstate(invalid="ignore", over="ignore"):
                error = actual - exact
                worst = float(np.maximum(worst, np.abs(error).max(initial=0.0)))
                error /= unit
                unit = exact / unit
                squares += float(error @ error)
                magnitudes += float(unit @ unit)
            count += exact.size
        rms = math.sqrt(_or_infinite(squares) / max(count, 1))
        # Rounding of this size is allowed, however precise the reference is.
        rounding = dtype.eps * (_NARROW_FLOOR_EPS if dtype.is_narrow else _FLOOR_EPS)
        rounding *= math.sqrt(_or_infinite(magnitudes) / max(count, 1))
        most = max(_RMS_FACTOR * rms, rounding, _FLOOR_SHARE)
        # Among denormals, rounding alone may be more than the mean of a precise reference.
        has_mean = (
            count >= _FEWEST_FOR_A_MEAN and "denormal" not in self.image.case.special.values()
        )
        most_rms = most if has_mean else math.inf
        return OutputError(rms, _or_infinite(worst), most_rms)

    @cached_property
    def _smallest_units(self) -> dict[str, float]:
        """What is added to an output's tolerances in a case of other magnitudes.

        The absolute tolerance hardly counts there. Without this, one element that cancels to
        nearly nothing would decide the mean, where an honest kernel may be off by chance.
        """
        if self.image.case.scale == 1.0:
            return {}
        rtol = self.tolerance.rtol
        return {name: rtol * _middle_magnitude(exact) for name, exact in self.exact.items()}

    def check(self, slot: Slot, honest: Errors | None = None) -> Failure | None:
        """Compare the slot after the call with the known answer.

        `honest` are the reference's errors on the same inputs, which are the budget. In a case of
        other magnitudes, elements may be off by a few times what the reference is.
        """
        # A copy, because the child could go on writing while this is compared.
        slot = slot.copy()
        if failure := self.image.damage(slot):
            return failure
        errors = self.errors(slot) if honest is not None else {}
        for argument, output in self.image.outputs(slot):
            bounds = self.bounds[argument.name]
            budget = honest.get(argument.name) if honest is not None else None
            if budget is not None and self.image.case.scale != 1.0:
                bounds = bounds.widened(_WORST_FACTOR * budget.worst)
            wrong = bounds.wrong(output)
            if wrong.any():
                return self.image.wrong_element(argument, wrong, output, bounds.low, bounds.high)
            if budget is not None and errors[argument.name].rms > budget.most_rms:
                return self.image.imprecise(argument, errors[argument.name].rms, budget)
        return self._objected(slot)

    def _objected(self, slot: Slot) -> Failure | None:
        """The failure that the problem's own check finds."""
        if self.objection is None:
            return None
        case, problem_arguments = self.image.case, self.image.arguments
        flat: dict[str, Array] = {}
        for role in ("input", "output"):
            named = (each.name for each in problem_arguments if each.role == role)
            flat |= dict(zip(named, self.image.arrays(slot, role), strict=True))
        words = self.objection(case, flat)
        return self.image.wrong(words) if words else None


def differences(
    image: Image, tolerance: Tolerance, honest: Errors, slot: Slot, trusted: Slot
) -> Failure | None:
    """Compare outputs with the trusted reference's on the same inputs.

    Elements may differ by twice the tolerance, and in the mean by what the reference is off
    (`honest`, from verification) plus what the candidate may be.
    """
    if failure := image.damage(slot):
        return failure
    expected = image.arrays(trusted, "output")
    for (argument, output), right in zip(image.outputs(slot), expected, strict=True):
        squares, dtype = 0.0, dtype_of(argument.dtype)
        for part in chunks(output.size):
            agree, square = _agree(dtype, output[part], right[part], tolerance)
            squares += square
            if not agree.all():
                wrong = ~_agree(dtype, output, right, tolerance)[0]
                right = dtype.numbers(right)
                with np.errstate(over="ignore", invalid="ignore"):
                    slack = _slack(right.astype(np.float64), tolerance)
                    low, high = right - slack - slack, right + slack + slack
                return image.wrong_element(argument, wrong, output, low, high)
        budget = honest.get(argument.name)
        rms = math.sqrt(squares / max(output.size, 1))
        if budget is not None and rms > _DIFFERENCE_FACTOR * budget.most_rms:
            return image.imprecise(argument, rms, budget)
    return None


def _agree(dtype: DType, output: Array, right: Array, tolerance: Tolerance) -> tuple[Bits, float]:
    """Which elements agree, and the sum of their squared differences in tolerances."""
    if dtype.name == "bool":
        return output == right, 0.0
    if dtype.is_narrow:
        return _agree_narrowly(dtype, output, right, tolerance)
    if not dtype.is_float:  # their difference could wrap around
        output, right = output.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = output - right
        apart /= _slack(right, tolerance)
        distance = np.abs(apart)
        if distance.max() <= 2.0:  # false if one is NaN
            return np.ones(output.shape, np.bool_), float(apart @ apart)
        close: Bits = distance <= 2.0
    near = apart[close]
    close |= (output == right) | (np.isnan(right) & _written_nan(output))
    return close, float(near @ near)


def _agree_narrowly(
    dtype: DType, output: Array, right: Array, tolerance: Tolerance
) -> tuple[Bits, float]:
    """The same for a narrow type, where two right numbers may be a unit apart beside all else."""
    numbers = (dtype.numbers(array).astype(np.float64) for array in (output, right))
    ours, theirs = (np.clip(each, dtype.lowest, dtype.largest) for each in numbers)
    slack = _slack(theirs, tolerance)
    unit = _NARROW_UNITS * dtype.eps * np.abs(theirs) + dtype.smallest
    apart = np.abs(ours - theirs)
    close: Bits = apart <= 2.0 * (slack + unit)
    with np.errstate(over="ignore"):
        near = apart[close] / slack[close]
        squares = float(near @ near)
    close |= np.isnan(theirs) & _written_nan(output)
    if not dtype.has_infinity:  # what is too large may be NaN, or the largest number
        close |= (np.abs(theirs) == dtype.largest) & _written_nan(output)
        close |= np.isnan(theirs) & (np.abs(ours) == dtype.largest)
    return close, squares


def _for_denormals(
    tolerance: Tolerance, outputs: Iterable[Argument], exact: Mapping[str, Array]
) -> Tolerance:
    """The tolerance without an absolute part that hides results of zero.

    What is left is a small share of the results, and rounding, which is absolute in denormals.
    """
    atol = tolerance.atol
    for output in outputs:
        if (dtype := dtype_of(output.dtype)).is_float:
            middle = _middle_magnitude(exact[output.name])
            rounding = _FEW_UNITS * dtype.smallest
            atol = max(rounding, min(atol, _DENORMAL_SHARE * middle + rounding))
    return Tolerance(rtol=tolerance.rtol, atol=atol)


def _middle_magnitude(exact: Array) -> float:
    """The median magnitude of the finite elements; 0 if there is none."""
    magnitude = np.abs(exact[np.isfinite(exact)])
    return float(np.median(magnitude)) if magnitude.size else 0.0


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _slack(right: Array, tolerance: Tolerance) -> Array:
    """The tolerance of each element: finite, since only infinity is near infinity, and not 0."""
    slack: Array = np.abs(right)
    slack *= tolerance.rtol
    slack += tolerance.atol
    kind = np.finfo(slack.dtype)
    np.clip(slack, kind.tiny, kind.max, out=slack)
    return slack


def _written_nan(output: Array) -> Bits:
    """NaNs that a kernel wrote, in contrast to the poison, which is a NaN too."""
    bits = np.dtype(f"u{output.itemsize}")
    poison = np.full(1, _POISON, dtype=np.uint8).repeat(output.itemsize).view(bits)
    written: Bits = np.isnan(output) & (output.view(bits) != poison)
    return written


def lint(
    problem: Problem,
    reference: Reference,
    rng: np.random.Generator,
    draw_inputs: Drawing = make_inputs,
) -> None:
    """Refuse a problem on which a kernel that ignores its inputs would be right.

    In every case the outputs must change with each input, and in more than a few elements, by more
    than the tolerance. Cases too small to tell count only if there is no other.

    Raises:
        ProblemError: The problem is refused; the message says what to change.
    """
    outputs = _outputs(problem.arguments)

    def elements(case: Case) -> int:
        return sum(math.prod(output.extent(case.dimensions)) for output in outputs)

    telling = [case for case in problem.cases if elements(case) >= _FEWEST_TO_TELL]
    telling = telling or [max(problem.cases, key=elements)]
    read = [_lint_case(problem, case, reference, rng, draw_inputs) for case in telling]
    for argument in problem.arguments:
        if argument.role == "input" and not any(argument.name in names for names in read):
            raise ProblemError(
                f"{problem.name}: the input {argument.name} is the same each time it is drawn, so "
                "a kernel need not read it: leave it out, or draw something else"
            )


def _lint_case(
    problem: Problem,
    case: Case,
    reference: Reference,
    rng: np.random.Generator,
    draw_inputs: Drawing,
) -> set[str]:
    """Refuse a case, or return the inputs that change the outputs.

    Those that are not among them are the same each time that the problem's own code draws them.
    """
    one, other = (draw_inputs(problem, case, rng) for _ in range(2))
    outputs = _outputs(problem.arguments)

    def answer(inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        return tuple(map(_held, outputs, reference(inputs, case)))

    first, second = answer(one), answer(other)
    for argument, before, after in zip(outputs, first, second, strict=True):
        if not np.isfinite(before).any():
            raise ProblemError(
                f"{problem.name}: {argument.name} holds no finite number in case {case.name!r}: "
                "any kernel that writes NaN would be right; mend reference.py or the fills"
            )
        moved = _moved(before, after, problem.tolerance)
        if moved < _LEAST_MOVED:
            raise ProblemError(
                f"{problem.name}: with other inputs only {moved:.1%} of {argument.name} changes by "
                f"more than the tolerance in case {case.name!r}, so a kernel that ignores its "
                "inputs would be right: widen the fills, or tighten [tolerance]"
            )
    drawn = {argument.name for argument in problem.arguments if argument.fill.kind == "drawn"}
    read = {name for name in one if name not in drawn or not np.array_equal(one[name], other[name])}
    for name in one:
        if name not in read:
            continue
        changed = answer({**one, name: other[name]})
        pairs = zip(first, changed, strict=True)
        if not any(_moved(*pair, problem.tolerance) for pair in pairs):
            raise ProblemError(
                f"{problem.name}: the input {name} changes nothing by more than the tolerance in "
                f"case {case.name!r}, so a kernel need not read it: leave it out, widen its fill, "
                "or tighten [tolerance]"
            )
    return read


def _held(argument: Argument, exact: Array) -> Array:
    """What an output can hold of an answer: a narrow type may round a difference away."""
    dtype = dtype_of(argument.dtype)
    return dtype.rounded(exact).astype(np.float64) if dtype.is_narrow else exact


def _moved(before: Array, after: Array, tolerance: Tolerance) -> float:
    """The share of elements that two answers do not agree on."""
    with np.errstate(invalid="ignore"):
        slack = tolerance.atol + tolerance.rtol * np.abs(before)
        same = (np.abs(before - after) <= slack) | (before == after)
    return float(np.mean(~same & ~(np.isnan(before) & np.isnan(after))))


def _same(one: Slot, other: Slot) -> bool:
    whole = one.size // 8 * 8
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and (
        np.array_equal(one[whole:], other[whole:])
    )
