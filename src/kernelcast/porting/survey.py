"""Survey of a file: which of its sizes may vary, and what its arrays are for other sizes.

The file is run with a few values of its own numbers. A number is a dimension if a formula says how
the extents and the arguments follow from it (`formula`). What no formula explains keeps the file's
own value. Sizes that the file refuses limit hidden cases (`limits`).
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.porting._probe import Failed, Report
from kernelcast.porting.formula import added, find_formula, find_product, influences
from kernelcast.porting.limits import Limits, Sizes

_JOINT_SAMPLES, _JOINT_TRIES = 5, 16
_HEAVY_BYTES = 256 << 20
_MOST_TEXT = 1500  # characters of the work's formula
_ITEM_BYTES = {"64": 8, "32": 4, "16": 2}


class Subject(Protocol):
    """A file that can be asked about given sizes."""

    @property
    def where(self) -> str:
        """Its name, for messages."""

    @property
    def own(self) -> Mapping[str, int]:
        """Its own sizes."""

    @property
    def choices(self) -> Mapping[str, int]:
        """Sizes that are the number of a choice, from 1 on, and how many choices there are."""

    def smaller(self) -> Iterator[Sizes]:
        """Sizes to begin with, the smallest first, its own last."""

    def report(self, sizes: Mapping[str, int], **options: Any) -> Report:
        """What a call is about. Raises `Failed` if it does not run."""

    def settle(self, _names: Collection[str]) -> set[str]:
        """Take some sizes for no dimensions; return those that are choices from now on."""


class Formula(str):
    """A number of a structure, as a formula of dimensions."""

    __slots__ = ()


@dataclass(frozen=True)
class Array:
    """A tensor of the arguments or the result, for all sizes."""

    name: str
    dtype: str
    shape: tuple[Formula, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return item_bytes(self.dtype)


def item_bytes(dtype: str) -> int:
    """Bytes of an element of a type."""
    return next((size for ending, size in _ITEM_BYTES.items() if dtype.endswith(ending)), 1)


class _Depends(Exception):
    """Something depends on a number in a way that no formula tells; it keeps its own value."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = set(names)


@dataclass
class Survey:
    """What is known of a file.

    Attributes:
        names: The dimensions, in the order of the file.
        base: Small sizes with which it runs.
        seen: For sizes that were tried the report, or None if it did not run.
        init, call, returns: Nested structures whose numbers are formulas.
        inputs, outputs: The tensors that these name.
        fills: How each input is filled, or None if the file's own code makes them.
        passed: Outputs that are arguments, too, by the argument's name.
        work: Operations of matrix products and convolutions; empty if they follow no formula.
        lows, rules: The least values of dimensions and further conditions, for hidden cases.
        fixed: Dimensions that no other value was found for.
        equal: Groups of those that have another value together.
        heavy: The smallest sizes with which it runs are large.
    """

    subject: Subject
    names: list[str]
    base: Sizes = field(default_factory=dict)
    seen: dict[tuple[int, ...], Report | None] = field(default_factory=dict)
    init: Any = None
    call: Any = None
    returns: Any = None
    inputs: list[Array] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    fills: list[dict[str, Any]] | None = None
    passed: dict[str, str] = field(default_factory=dict)
    work: str = ""
    lows: Sizes = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    equal: list[set[str]] = field(default_factory=list)
    heavy: bool = False
    finite: bool = True
    last_error: str = ""

    @classmethod
    def of(cls, subject: Subject) -> Survey:
        """Look at a file.

        Raises:
            ProblemError: It does not run, or cannot become a problem.
        """
        names = list(subject.own)
        kept: dict[tuple[int, ...], Report | None] = {}
        while True:
            survey = cls(subject, names, seen=kept)
            try:
                survey._look()
                return survey
            except _Depends as error:
                if choices := error.names & set(subject.choices):
                    raise ProblemError(
                        f"{subject.where}: its arrays depend on {', '.join(sorted(choices))} in a "
                        "way that no formula tells; keep cases with one value of it"
                    ) from None
                gone = error.names - subject.settle(error.names)
                names, kept = [name for name in names if name not in gone], {}

    # ----------------------------------------------------------------------------- questions

    def sizes(self, changes: Mapping[str, int]) -> Sizes:
        """All sizes: those that are no dimensions keep the file's own values."""
        own = self.subject.own
        return {name: changes[name] if name in self.names else own[name] for name in own}

    def ask(self, sizes: Mapping[str, int], **options: Any) -> Report | None:
        """What a call is about with these sizes; None if the file does not run."""
        sizes = self.sizes(sizes)
        key = tuple(sizes.values())
        if options or key not in self.seen:
            try:
                self.seen[key] = self.subject.report(sizes, **options)
            except Failed as error:
                self.seen[key] = None
                self.last_error = str(error)
        return self.seen[key]

    def bytes_of(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all arrays."""
        return sum(
            array.item_bytes * math.prod(int(evaluate(each, sizes)) for each in array.shape)
            for array in self.arrays
        )

    def flops_of(self, sizes: Mapping[str, int]) -> int:
        """Operations of matrix products and convolutions, as far as they are known."""
        return int(evaluate(self.work or "0", sizes))

    @property
    def arrays(self) -> list[Array]:
        """All tensors of a call, each once."""
        return [*self.inputs, *(each for each in self.outputs if each.name not in self.passed)]

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """Whether the file runs with these sizes and is as the formulas say."""
        report = self.ask(sizes)
        if report is None or (self.finite and not report.finite):
            return False
        skeleton, numbers = _split(report)
        with_formulas = [evaluate(formula, self.sizes(sizes)) for formula in self._formulas]
        return skeleton == self._skeleton and numbers == with_formulas

    # ------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        self.base = self._smallest()
        report = self.ask(self.base, deep=True)
        if report is None:
            raise ProblemError(f"{self.subject.where} runs only once with the same sizes")
        self._require(report)
        self.finite = report.finite
        self._skeleton = _split(report)[0]
        self.heavy = _bytes(report) > _HEAVY_BYTES
        if self.heavy and self.names:
            raise _Depends(self.names)
        samples = [self.base, *self._one_by_one()]
        samples += self._together(samples)
        self._fit(samples)
        limits = Limits.of(self)
        self.lows, self.rules = limits.lows, limits.rules
        if not limits.found:
            self.fixed = set(self.names)

    def _smallest(self) -> Sizes:
        for sizes in self.subject.smaller():
            if (sizes := self.sizes(sizes)) and self.ask(sizes) is not None:
                return sizes
            if not sizes and self.ask({}) is not None:
                return {}
        raise ProblemError(f"{self.subject.where} does not run: {self.last_error}")

    def _require(self, report: Report) -> None:
        """Refuse what a problem cannot express."""
        where = self.subject.where
        if report.random:
            raise ProblemError(
                f"{where}: two calls with the same arguments give different results; remove what "
                "is random (dropout), or keeps a state"
            )
        if report.changed and report.reads_changed:
            raise ProblemError(
                f"{where}: it changes an argument that it also reads; return a new tensor instead"
            )
        if set(report.changed) - set(report.passed.values()):
            raise ProblemError(
                f"{where}: it changes an argument that it does not return; return it, or change a "
                "clone"
            )

    def _one_by_one(self) -> list[Sizes]:
        """Samples in which one dimension differs from the base."""
        samples, self._values, stuck, idle = [], {}, [], []
        base = self.ask(self.base)
        assert base is not None
        for name in self.names:
            good, told = [], False
            for value in self._other_values(name):
                sizes = {**self.base, name: value}
                report = self.ask(sizes)
                if report is None:
                    continue
                if _split(report)[0] != self._skeleton:
                    raise _Depends([name])
                told |= _numbers(report) != _numbers(base)
                if name in self.subject.choices and _split(report) != _split(base):
                    raise _Depends([name])
                good.append(value)
                samples.append(sizes)
                if len(good) == 2 and name not in self.subject.choices:
                    break
            self._values[name] = good
            if not good:
                stuck.append(name)
            elif not told and name not in self.subject.choices:
                idle.append(name)
        if idle:
            raise _Depends(idle)
        self.fixed = set(stuck)
        samples += self._pairs(stuck)
        own = self.subject.own
        alone = self.fixed.difference(*self.equal) - set(self.subject.choices)
        if alone := {name for name in alone if self.base[name] == own[name]}:
            raise _Depends(alone)
        return samples

    def _other_values(self, name: str) -> list[int]:
        base = self.base[name]
        if name in self.subject.choices:
            return [each for each in range(1, self.subject.choices[name] + 1) if each != base]
        values = (base + 1, 2 * base, base // 2, 3 * base, base + 2, base - 1)
        return [each for each in dict.fromkeys(values) if each >= 1 and each != base]

    def _pairs(self, stuck: Sequence[str]) -> list[Sizes]:
        """Samples in which several dimensions differ that must be equal."""
        samples = []
        self.equal = []
        for value in dict.fromkeys(self.base[name] for name in stuck):
            group = {name for name in stuck if self.base[name] == value}
            for factor in (2, 3):
                sizes = {**self.base, **dict.fromkeys(group, factor * value)}
                if len(group) > 1 and self._is_like_base(sizes):
                    samples.append(sizes)
                    if group not in self.equal:
                        self.equal.append(group)
        return samples

    def _is_like_base(self, sizes: Sizes) -> bool:
        report = self.ask(sizes)
        return report is not None and _split(report)[0] == self._skeleton

    def _together(self, samples: Sequence[Sizes]) -> list[Sizes]:
        """Samples in which all dimensions differ from the base, and from each other."""
        rng = random.Random(len(samples))  # noqa: S311
        found: list[Sizes] = []
        for _ in range(_JOINT_TRIES):
            sizes = dict(self.base)
            for name in self.names:
                if not self._values[name]:
                    continue
                value = rng.choice(self._values[name])
                if self.base[name] + 1 in self._values[name]:
                    value = self.base[name] + rng.randint(1, max(2, self.base[name] // 2))
                if name in self.subject.choices:
                    value = rng.randint(1, self.subject.choices[name])
                sizes[name] = value
            if sizes not in samples and sizes not in found and self._is_like_base(sizes):
                found.append(sizes)
            if len(found) == _JOINT_SAMPLES:
                break
        return found

    # ------------------------------------------------------------------------------- fitting

    def _fit(self, samples: Sequence[Sizes]) -> None:
        """Find a formula for every number, or say which dimension stands in the way."""
        choices = self.subject.choices
        shown = [{name: s[name] for name in self.names if name not in choices} for s in samples]
        reports = [report for report in map(self.ask, samples) if report is not None]
        columns = list(zip(*(_split(report)[1] for report in reports), strict=True))
        self._formulas = [self._formula(column, shown) for column in columns]
        tree = _tree(reports[0])
        rest = iter(self._formulas)
        tree = _replaced(tree, rest)
        self.init, self.call, self.returns = tree["init"], tree["call"], tree["returns"]
        self.inputs = [Array(name, dtype, tuple(shape)) for name, dtype, shape in tree["inputs"]]
        self.outputs = [Array(name, dtype, tuple(shape)) for name, dtype, shape in tree["outputs"]]
        self.passed = reports[0].passed
        self.fills = self._fitted_fills(reports, shown)
        self.work = self._fitted_work(reports, shown)
        if self.fills is None and reports[0].same_inputs:
            raise ProblemError(
                f"{self.subject.where}: it makes the same inputs each time; remove the seed that "
                "it sets itself"
            )

    def _formula(self, column: Sequence[int], samples: Sequence[Sizes]) -> Formula:
        if (found := find_formula(column, samples)) is not None:
            return Formula(found)
        blamed = sorted(influences(column, samples), key=lambda name: self.base[name])
        for name in (*blamed, *(each for each in self.names if each not in blamed)):
            if name in self.subject.choices:
                continue
            kept = [n for n, sample in enumerate(samples) if sample[name] == self.base[name]]
            if find_formula([column[n] for n in kept], [samples[n] for n in kept]) is not None:
                raise _Depends([name])
        raise _Depends(name for name in self.names if name not in self.subject.choices)

    def _fitted_fills(
        self, reports: Sequence[Report], samples: Sequence[Sizes]
    ) -> list[dict[str, Any]] | None:
        """How the inputs are filled, if it is the same for all sizes and has a name."""
        fills: list[dict[str, Any]] = []
        for index, tensor in enumerate(reports[0].inputs):
            if tensor.name in reports[0].changed:
                fills.append({})
                continue
            seen = [report.inputs[index].fill for report in reports]
            kinds = {fill.get("kind") for fill in seen}
            if kinds - {"normal", "uniform", "integers"} or len(kinds) > 1:
                return None
            fill = {"kind": str(seen[0]["kind"])}
            for bound in ("low", "high"):
                numbers = [each.get(bound) for each in seen]
                if all(type(number) is int for number in numbers):
                    found = find_formula([int(number or 0) for number in numbers], samples)
                    if found is None:
                        return None
                    fill[bound] = found
            fills.append(fill)
        return fills

    def _fitted_work(self, reports: Sequence[Report], samples: Sequence[Sizes]) -> str:
        calls = {len(report.work) for report in reports}
        if len(calls) > 1:
            totals = [sum(each.flops for each in report.work) for report in reports]
            return find_formula(totals, samples) or ""
        known: dict[tuple[int, ...], str | None] = {}
        parts = []
        for works in zip(*(report.work for report in reports), strict=True):
            key = tuple(work.flops for work in works)
            if key not in known:
                known[key] = self._fitted_call(works, samples)
            if (part := known[key]) is None:
                return ""
            parts.append(part)
        text = added(parts)
        return text if parts and len(text) <= _MOST_TEXT else ""

    @staticmethod
    def _fitted_call(works: Sequence[Any], samples: Sequence[Sizes]) -> str | None:
        """The operations of one call, as a product of the extents of its arrays."""
        flat = [list(itertools.chain(*work.extents)) for work in works]
        if len({len(each) for each in flat}) > 1:
            return None
        columns = dict.fromkeys(zip(*flat, strict=True))
        factors: dict[str, Sequence[int]] = {}
        for column in columns:
            found = find_formula(column, samples)
            if found is not None and not found.isdigit():
                factors[found] = column
        return find_product([work.flops for work in works], factors)


# ------------------------------------------------------------------------------------ structures


def _tree(report: Report) -> dict[str, Any]:
    """What a report says of structures, types and extents."""
    return {
        "init": report.init,
        "call": report.call,
        "returns": report.returns,
        "shared": report.shared,
        "inputs": [[each.name, each.dtype, each.shape] for each in report.inputs],
        "outputs": [[each.name, each.dtype, each.shape] for each in report.outputs],
    }


def _split(report: Report) -> tuple[str, list[int]]:
    """A report without its numbers, as text, and the numbers."""
    numbers: list[int] = []
    skeleton = _without(_tree(report), numbers)
    return json.dumps(skeleton), numbers


def _without(value: Any, numbers: list[int]) -> Any:
    if type(value) is int:
        numbers.append(value)
        return {"number": 0}
    if isinstance(value, dict):
        return {key: _without(each, numbers) for key, each in value.items()}
    return [_without(each, numbers) for each in value] if isinstance(value, list) else value


def _replaced(value: Any, formulas: Iterator[Formula]) -> Any:
    """The value with the next formula in place of each number."""
    if type(value) is int:
        return next(formulas)
    if isinstance(value, dict):
        return {key: _replaced(each, formulas) for key, each in value.items()}
    return [_replaced(each, formulas) for each in value] if isinstance(value, list) else value


def _numbers(report: Report) -> list[int]:
    """All numbers that a size may change."""
    bounds = [each.fill.get(bound) for each in report.inputs for bound in ("low", "high")]
    return [
        *_split(report)[1],
        *(number for number in bounds if type(number) is int),
        *(work.flops for work in report.work),
    ]


def _bytes(report: Report) -> int:
    return sum(
        item_bytes(each.dtype) * math.prod(each.shape) for each in (*report.inputs, *report.outputs)
    )
