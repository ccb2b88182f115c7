"""Cases of an imported problem: the file's own sizes, or the largest reduced ones that fit here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.porting._probe import Report
from kernelcast.porting.limits import Sizes, drawn
from kernelcast.porting.survey import Survey

MOST_SECONDS, MOST_BYTES = 0.05, 64 << 20
"""What a call of a timed case may take on this CPU."""
_LEAST_MOVED = 0.2  # of a case's result, by other inputs
_MOST_FLOPS = 20_000_000_000
_NEGLIGIBLE_BYTES, _NEGLIGIBLE_FLOPS = 1 << 16, 10_000_000
_SMALL_BYTES = 1 << 19
_MOST_STEPS = 200
_SMALL_BASE = 8
_WORTH_WHILE = 0.8  # of a cost, at most, that halving a dimension leaves
_FLOPS_PER_BYTE = 10.0
_DRAWS, _TRIES = 8, 400


@dataclass(frozen=True)
class Timed:
    """Sizes that are timed, the report of a call with them, and whether they were reduced."""

    sizes: Sizes
    report: Report
    reduced: bool


def timed_here(survey: Survey, own: Mapping[str, int]) -> Timed:
    """The largest sizes on the way down from some sizes with which a call fits this machine.

    The largest dimension that matters is halved, and then the largest again.

    Raises:
        ProblemError: The file does not run with any of them.
    """
    best: Sizes | None = None
    path = list(_halved(survey, own))
    for sizes in reversed(path):
        size, flops = survey.bytes_of(sizes), survey.flops_of(sizes)
        first = best is None
        if not first and (size > MOST_BYTES or flops > _MOST_FLOPS):
            break
        small = size < _NEGLIGIBLE_BYTES and flops < _NEGLIGIBLE_FLOPS
        if small and sizes is not path[0] and sizes is not path[-1]:
            continue
        report = survey.ask(sizes, timed=True)
        if not survey.runs(sizes):
            continue
        fits = (
            report is not None
            and size + report.weights_bytes <= MOST_BYTES
            and (report.seconds or 0.0) <= MOST_SECONDS
        )
        if report is not None and (fits or first):
            best = sizes
        if not fits:
            break
    report = None if best is None else survey.ask(best, deep=True, timed=True)
    if best is None or report is None:
        raise ProblemError(
            f"{survey.subject.where} does not run with its own sizes, and with no reduced ones: "
            f"{survey.last_error or 'its arrays are then others'}"
        )
    return Timed(best, report, reduced=best != survey.sizes(own))


def _halved(survey: Survey, own: Mapping[str, int]) -> Iterator[Sizes]:
    """Sizes from the given ones down to about the base."""
    sizes = survey.sizes(own)
    for _ in range(_MOST_STEPS):
        yield sizes
        smaller = next(_smaller(survey, sizes), None)
        if smaller is None:
            return
        sizes = smaller


def _smaller(survey: Survey, sizes: Sizes) -> Iterator[Sizes]:
    groups = [{name} for name in survey.names if name not in survey.fixed] + survey.equal
    found = []
    for group in groups:
        name = min(group)
        least = _least(survey, name)
        if name in survey.subject.choices or sizes[name] <= least:
            continue
        halved = {**sizes, **dict.fromkeys(group, max(least, sizes[name] // 2))}
        if all(evaluate(rule, halved) for rule in survey.rules):
            matters = _cost(survey, halved) < _WORTH_WHILE * _cost(survey, sizes)
            found.append((matters, sizes[name], halved))
    found.sort(key=lambda each: each[:2], reverse=True)
    yield from (halved for _, _, halved in found)


def _least(survey: Survey, name: str) -> int:
    """To what a dimension may be reduced: small ones, such as a kernel's size, stay as they are."""
    base = survey.base[name]
    if base < _SMALL_BASE or name in survey.fixed:
        return base
    return max(survey.lows.get(name, base), base // 4)


def _cost(survey: Survey, sizes: Sizes) -> float:
    """About how long a call takes, in bytes that are moved."""
    return survey.bytes_of(sizes) + survey.flops_of(sizes) / _FLOPS_PER_BYTE


def small_cases(survey: Survey, highs: Mapping[str, int]) -> dict[str, Sizes]:
    """An odd and a tiny case, with which the file was run; those that the file allows."""
    if not survey.lows:
        return {}
    found = list(_odd(survey, highs))
    if not found:
        return {}
    found.sort(key=survey.bytes_of)
    cases = {"ragged": found[-1], "tiny": found[0]}
    return cases if found[0] != found[-1] else {"ragged": found[0]}


def tells(survey: Survey, sizes: Sizes) -> bool:
    """Whether other inputs change the result with these sizes, so that wrong kernels are seen."""
    report, base = survey.ask(sizes, deep=True), survey.ask(survey.base, deep=True)
    if report is None or base is None:
        return False
    return report.moved >= _LEAST_MOVED and report.same_inputs <= base.same_inputs


def hidden_ranges(survey: Survey, highs: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The range of each dimension of hidden cases; none if no dimension varies."""
    if not survey.lows or set(survey.names) <= survey.fixed:
        return {}
    return {
        name: (highs[name], highs[name])
        if name in survey.fixed
        else (min(survey.lows[name], highs[name]), highs[name])
        for name in survey.names
    }


def _odd(survey: Survey, highs: Mapping[str, int]) -> Iterator[Sizes]:
    """Sizes that the file runs with, odd where that is allowed."""
    rng = random.Random(11)  # noqa: S311
    ranges = hidden_ranges(survey, highs)
    if not ranges:
        return
    least = survey.bytes_of(survey.sizes({name: low for name, (low, _) in ranges.items()}))
    most = max(_SMALL_BYTES, 4 * least)
    found = 0
    for _ in range(_TRIES):
        sizes = survey.sizes({name: drawn(rng, *ends) for name, ends in ranges.items()})
        allowed = all(evaluate(rule, sizes) for rule in survey.rules)
        if not allowed or survey.bytes_of(sizes) > most:
            continue
        odd = sum(sizes[name] % 2 for name, (low, high) in ranges.items() if low < high)
        if rng.random() > (0.2 + odd) / len(ranges):
            continue
        if survey.runs(sizes) and tells(survey, sizes):
            yield sizes
        if (found := found + 1) == _DRAWS:
            return


def needed_error(reports: Sequence[Report]) -> float | None:
    """The error of the file's own types against float64; None if float64 is not what it means."""
    if any(report.no_float64 or report.error is None for report in reports):
        return None
    return max(report.error or 0.0 for report in reports)
