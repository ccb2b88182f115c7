"""What is right: expected outputs and the comparison, in the parent, out of a kernel's reach.

An `Image` is one set of inputs of a case laid out as it will lie in shared memory, with poisoned
outputs and guard bytes around every array. A `Sample` adds the oracle's word: the bounds each
output element must keep. Timed calls are compared with the trusted reference's outputs on the same
inputs instead (`differences`). A kernel that changes an input (it must cast `const` away) is
`CHEATING`; one that writes past an array, leaves an element wrong or unwritten, or is less precise
than its budget, is `WRONG_RESULT`. A problem on which this could not tell right from wrong is
refused (`lint`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._arena import Layout
from kernelcast.backends._inputs import Array, chunks, make_inputs
from kernelcast.errors import ProblemError
from kernelcast.types import Argument, Case, Failure, FailureKind, Problem, Tolerance

Oracle = Callable[[Mapping[str, Array], Case], tuple[Array, ...]]

_POISON = 0xFF  # a NaN in every floating-point type
_QUIET_NAN = 0x7FF80000  # in both float32 and, as its upper half, float64
_RMS_FACTOR = 2.0
_WORST_FACTOR = 4.0
_FLOOR_EPS = 8.0
_FLOOR_SHARE = 0.01
_DIFFERENCE_FACTOR = 1.5  # (1 + 2) / 2: the reference's own error, and twice that
_FEWEST_FOR_A_MEAN = 256
_LEAST_MOVED = 0.05
_FEWEST_TO_TELL = 16


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
        for part in chunks(exact.size):
            slack = np.abs(exact[part])
            slack[~np.isfinite(slack)] = 0.0
            slack *= problem.tolerance.rtol
            slack += problem.tolerance.atol
            low[part] = _rounded(exact[part] - slack, dtype, up=True)
            high[part] = _rounded(exact[part] + slack, dtype, up=False)
        nan = np.isnan(exact)
        return cls(argument, low, high, nan if nan.any() else None)

    def wrong(self, output: Array) -> NDArray[np.bool_]:
        """Which elements are outside their interval; an unwritten one always is."""
        right = (output >= self.low) & (output <= self.high)
        if self.nan is not None:
            right |= self.nan & _written_nan(output)
        return ~right

    def widened(self, slack: float) -> _Expected:
        """The same with wider intervals; infinite slack lets everything pass."""
        dtype = self.low.dtype.type
        with np.errstate(over="ignore"):
            low, high = self.low - dtype(slack), self.high + dtype(slack)
        return replace(self, low=low, high=high)


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
class Image:
    """One set of inputs of a case as it lies in memory: outputs poisoned, guards all around."""

    case: Case
    arguments: tuple[Argument, ...]
    layout: Layout
    content: NDArray[np.uint8]

    @classmethod
    def blank(cls, problem: Problem, case: Case, rng: np.random.Generator) -> Image:
        """An image whose inputs are yet to be filled in."""
        layout = Layout.of(problem, case)
        # Guards are NaNs in every floating-point type, so that reading one shows, and unlike each
        # other: what is computed of one and written to another shows as well.
        words = rng.integers(0, 1 << 19, layout.stride // 4, dtype=np.uint32)
        words |= np.uint32(_QUIET_NAN) | (words << 31)
        image = cls(case, problem.arguments, layout, words.view(np.uint8))
        for argument, offset, length in image._spans():
            if argument.role == "output":
                # No integer is a NaN: random ones are right by chance only.
                integer = argument.dtype.startswith("int")
                poison = rng.integers(0, 256, length, dtype=np.uint8) if integer else _POISON
                image.content[offset : offset + length] = poison
        return image

    def arrays(self, slot: NDArray[np.uint8], role: str) -> list[Array]:
        """Views of a slot's arrays in a role, flat."""
        return [
            slot[offset : offset + length].view(argument.dtype)
            for argument, offset, length in self._spans()
            if argument.role == role
        ]

    def outputs(self) -> list[Argument]:
        """The arguments that a kernel writes."""
        return [each for each in self.arguments if each.role == "output"]

    def damage(self, slot: NDArray[np.uint8]) -> Failure | None:
        """What was written to apart from the outputs: guards by accident, inputs on purpose."""
        changed, end, before = [], 0, "the start"
        for argument, offset, length in self._spans():
            if not _same(slot[end:offset], self.content[end:offset]):
                return self.failure(
                    FailureKind.WRONG_RESULT, f"wrote outside: between {before} and {argument.name}"
                )
            end, before = offset + length, argument.name
            if argument.role == "input" and not _same(slot[offset:end], self.content[offset:end]):
                changed.append(argument.name)
        if not _same(slot[end:], self.content[end:]):
            return self.failure(
                FailureKind.WRONG_RESULT, f"wrote outside: past the end of {before}"
            )
        if changed:
            return self.failure(FailureKind.CHEATING, f"changed its input {', '.join(changed)}")
        return None

    def failure(self, kind: FailureKind, message: str) -> Failure:
        """A failure on this case."""
        return Failure(kind=kind, message=f"case {self.case.name}: {message}")

    def wrong_element(
        self, argument: Argument, wrong: NDArray[np.bool_], output: Array, low: Any, high: Any
    ) -> Failure:
        """The first wrong element, in the array's own indices, and how many there are."""
        at = int(np.argmax(wrong))
        shape = argument.extent(self.case.dimensions)
        index = [int(each) for each in np.unravel_index(at, shape)]
        return self.failure(
            FailureKind.WRONG_RESULT,
            f"{argument.name}{index} is {output[at]}, expected {low[at]} to {high[at]}; "
            f"{int(np.count_nonzero(wrong))} of {wrong.size} elements are wrong",
        )

    def imprecise(self, argument: Argument, rms: float, honest: OutputError) -> Failure:
        """Right element by element, and still not as good as the reference."""
        return self.failure(
            FailureKind.WRONG_RESULT,
            f"{argument.name} is less precise than the reference: root mean square error "
            f"{rms:.3g} tolerances, the reference's is {honest.rms:.3g}, at most "
            f"{honest.most_rms:.3g} is allowed",
        )

    def _spans(self) -> Iterator[tuple[Argument, int, int]]:
        return zip(self.arguments, self.layout.offsets, self.layout.lengths, strict=True)


Errors = Mapping[str, "OutputError"]


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the oracle: root of the mean square, and at worst.

    The mean is taken in units of each element's tolerance: of plain errors a few large elements
    decide, so that it differs several times between inputs, and what the reference showed on some
    would be no budget for others. `most_rms` is what others may be off, if this is the honest
    reference; infinite where there are too few elements for a mean.
    """

    rms: float
    worst: float
    most_rms: float


@dataclass(frozen=True)
class Sample:
    """One set of inputs, and what must be there afterwards by the oracle's word."""

    image: Image
    tolerance: Tolerance
    exact: Mapping[str, Array]
    expected: Mapping[str, _Expected]

    @classmethod
    def draw(
        cls, problem: Problem, case: Case, reference: Oracle, rng: np.random.Generator
    ) -> Sample:
        """Fresh inputs, the oracle's word on them, and a poisoned image of the slot."""
        inputs = make_inputs(problem, case, rng)
        image = Image.blank(problem, case, rng)
        for array, values in zip(
            image.arrays(image.content, "input"), inputs.values(), strict=True
        ):
            array[:] = values.reshape(-1)
        # After the image is made: an oracle that changes its arguments cannot change the kernel's.
        exact = [each.reshape(-1) for each in reference(inputs, case)]
        outputs = image.outputs()
        expected = {
            argument.name: _Expected.of(argument, problem, array)
            for argument, array in zip(outputs, exact, strict=True)
        }
        names = [argument.name for argument in outputs]
        return cls(image, problem.tolerance, dict(zip(names, exact, strict=True)), expected)

    def errors(self, slot: NDArray[np.uint8]) -> dict[str, OutputError]:
        """How far the floating-point outputs are from the oracle; infinite where one is not."""
        return {
            argument.name: self._error(argument, output)
            for argument, output in zip(
                self.image.outputs(), self.image.arrays(slot, "output"), strict=True
            )
            if output.dtype.kind == "f"
        }

    def _error(self, argument: Argument, output: Array) -> OutputError:
        worst = squares = magnitudes = 0.0
        count = 0
        typical = self._typical(argument)
        for part in chunks(output.size):
            exact, found = self.exact[argument.name][part], output[part]
            if not (finite := np.isfinite(exact)).all():
                exact, found = exact[finite], found[finite]
            unit = _slack(exact, self.tolerance)
            unit += typical
            with np.errstate(invalid="ignore", over="ignore"):
                error = found - exact
                worst = float(np.maximum(worst, np.abs(error).max(initial=0.0)))
                error /= unit
                unit = exact / unit
                squares += float(error @ error)
                magnitudes += float(unit @ unit)
            count += exact.size
        rms, magnitude = (
            math.sqrt(_or_infinite(each) / max(count, 1)) for each in (squares, magnitudes)
        )
        # What nobody minds, however precise the reference is.
        rounding = _FLOOR_EPS * float(np.finfo(argument.dtype).eps) * magnitude
        most = max(_RMS_FACTOR * rms, rounding, _FLOOR_SHARE)
        return OutputError(
            rms, _or_infinite(worst), most if count >= _FEWEST_FOR_A_MEAN else math.inf
        )

    def _typical(self, argument: Argument) -> float:
        """What the unit of an element is at least, where magnitudes are not the stated ones.

        The absolute tolerance is then none to speak of, and the mean would be decided by the one
        element that cancels to nearly nothing: by chance, an honest kernel is further off there.
        """
        if self.image.case.scale == 1.0:
            return 0.0
        exact = np.abs(self.exact[argument.name])
        finite = exact[np.isfinite(exact)]
        return self.tolerance.rtol * float(np.median(finite)) if finite.size else 0.0

    def check(self, slot: NDArray[np.uint8], honest: Errors | None = None) -> Failure | None:
        """Compare the slot after the call with what must be there.

        With the honest reference's own errors on the same inputs, they are the budget: twice as
        far from the truth in the mean is a lower precision. Where magnitudes are not those that
        the tolerance was stated for, elements may be off by a few times what the reference is.
        """
        # A copy, because the child could go on writing while this is compared.
        slot = slot.copy()
        if failure := self.image.damage(slot):
            return failure
        errors = self.errors(slot) if honest is not None else {}
        for argument, output in zip(
            self.image.outputs(), self.image.arrays(slot, "output"), strict=True
        ):
            expected = self.expected[argument.name]
            budget = honest.get(argument.name) if honest is not None else None
            if budget is not None and self.image.case.scale != 1.0:
                expected = expected.widened(_WORST_FACTOR * budget.worst)
            wrong = expected.wrong(output)
            if wrong.any():
                return self.image.wrong_element(
                    argument, wrong, output, expected.low, expected.high
                )
            if budget is not None and errors[argument.name].rms > budget.most_rms:
                return self.image.imprecise(argument, errors[argument.name].rms, budget)
        return None


def differences(
    image: Image,
    tolerance: Tolerance,
    honest: Errors,
    slot: NDArray[np.uint8],
    trusted: NDArray[np.uint8],
) -> Failure | None:
    """Where outputs differ from the trusted reference's on the same inputs, beyond what both may.

    Each may be off by the tolerance, so that their difference may be twice that; and in the mean
    by what the reference is off plus what the candidate may be, `honest` as verification found it.
    """
    if failure := image.damage(slot):
        return failure
    ours, theirs = image.arrays(slot, "output"), image.arrays(trusted, "output")
    for argument, output, right in zip(image.outputs(), ours, theirs, strict=True):
        squares = 0.0
        for part in chunks(output.size):
            agree, square = _agree(output[part], right[part], tolerance)
            squares += square
            if not agree.all():
                wrong = ~_agree(output, right, tolerance)[0]
                with np.errstate(over="ignore"):
                    slack = _slack(right.astype(np.float64), tolerance)
                    low, high = right - slack - slack, right + slack + slack
                return image.wrong_element(argument, wrong, output, low, high)
        budget = honest.get(argument.name)
        rms = math.sqrt(squares / max(output.size, 1))
        if budget is not None and rms > _DIFFERENCE_FACTOR * budget.most_rms:
            return image.imprecise(argument, rms, budget)
    return None


def _agree(output: Array, right: Array, tolerance: Tolerance) -> tuple[NDArray[np.bool_], float]:
    """Which elements agree, and of those the sum of the squares of how many tolerances apart."""
    if output.dtype.kind == "i":  # their difference could wrap around
        output, right = output.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = output - right
        apart /= _slack(right, tolerance)
        distance = np.abs(apart)
        if distance.max() <= 2.0:  # which it is not if one is no number
            return np.ones(output.shape, np.bool_), float(apart @ apart)
        close: NDArray[np.bool_] = distance <= 2.0
    near = apart[close]
    close |= (output == right) | (np.isnan(right) & _written_nan(output))
    return close, float(near @ near)


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _slack(right: Array, tolerance: Tolerance) -> Array:
    """The tolerance of each element; never infinite, for nothing but infinity is near infinity,
    and never nothing, for it is divided by.
    """
    slack: Array = np.abs(right)
    slack *= tolerance.rtol
    slack += tolerance.atol
    kind = np.finfo(slack.dtype)
    np.clip(slack, kind.tiny, kind.max, out=slack)
    return slack


def _written_nan(output: Array) -> NDArray[np.bool_]:
    """NaNs that a kernel wrote; the poison is one too, but nobody's answer."""
    bits = np.dtype(f"u{output.itemsize}")
    poison = np.full(1, _POISON, dtype=np.uint8).repeat(output.itemsize).view(bits)
    written: NDArray[np.bool_] = np.isnan(output) & (output.view(bits) != poison)
    return written


def lint(problem: Problem, reference: Oracle, rng: np.random.Generator) -> None:
    """Refuse a problem on which a kernel that ignores its inputs would be right.

    The outputs must change with the inputs, with each of them, and in more than a few elements,
    by more than the tolerance lets pass: in every case, for a kernel may go by the shapes and
    answer one with a constant. Cases too small to tell count only where there is no other.
    """
    telling = [each for each in problem.cases if _elements(problem, each) >= _FEWEST_TO_TELL]
    for case in telling or [max(problem.cases, key=lambda each: _elements(problem, each))]:
        _lint_case(problem, case, reference, rng)


def _lint_case(problem: Problem, case: Case, reference: Oracle, rng: np.random.Generator) -> None:
    one, other = (make_inputs(problem, case, rng) for _ in range(2))
    first = reference(_copies(one), case)
    outputs = [each for each in problem.arguments if each.role == "output"]
    for argument, before, after in zip(
        outputs, first, reference(_copies(other), case), strict=True
    ):
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
    for name in one:
        changed = reference(_copies({**one, name: other[name]}), case)
        pairs = zip(first, changed, strict=True)
        if not any(_moved(*pair, problem.tolerance) for pair in pairs):
            raise ProblemError(
                f"{problem.name}: the input {name} changes nothing by more than the tolerance in "
                f"case {case.name!r}, so a kernel need not read it: leave it out, widen its fill, "
                "or tighten [tolerance]"
            )


def _moved(before: Array, after: Array, tolerance: Tolerance) -> float:
    """The share of elements that two answers do not agree on."""
    with np.errstate(invalid="ignore"):
        slack = tolerance.atol + tolerance.rtol * np.abs(before)
        same = (np.abs(before - after) <= slack) | (before == after)
    return float(np.mean(~same & ~(np.isnan(before) & np.isnan(after))))


def _copies(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in inputs.items()}


def _elements(problem: Problem, case: Case) -> int:
    outputs = (each for each in problem.arguments if each.role == "output")
    return sum(math.prod(each.extent(case.dimensions)) for each in outputs)


def _same(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    whole = one.size // 8 * 8
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and (
        np.array_equal(one[whole:], other[whole:])
    )
