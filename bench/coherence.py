"""Forecasts that hold up: 500 pairs of kernels, asked in both directions by the user's path.

60 pairs are CUDA kernels whose order every engineer knows (`_ordered_pairs.py`): both are compiled
and emulated, and so are a copy of the slower one under other names and a faulty one. 440 pairs are
kernels of one problem from the recorded data, of which the forecaster is told no time; texts that
are not of the language that their source states are left out. Nothing is measured.

- `self_ties`: share of kernels whose copy is a tie, with at least 0.98 between 0.97x and 1.03x.
- `asymmetry_log2`: mean of |median(a -> b) + median(b -> a)|.
- `chains_agree`: share of the triples whose means add up within their widths.
- `contradictions`: forecasts that deny what compiling showed.
- `known_right`: share of the 60 pairs of which the median has the right direction.
- `known_wrong_sure`: share of which the slower one is called faster with P over 0.7.

    python bench/coherence.py [--quick] [--seed 0] [--device A100-PCIE-40GB]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

from _ordered_pairs import PAIRS, Pair
from _result import bench_parser, report, rounded
from _written import KERNELBENCH, SEARCHES, rows_of
from emulator_pairs import quick_pairs
from kernelcast.canonical import as_kernel
from kernelcast.canonical.lint import faults
from kernelcast.cli.forecast import ask
from kernelcast.dataset import Pool, recorded_trials
from kernelcast.devices import find_device
from kernelcast.events import ComponentSpec
from kernelcast.languages import dialect
from kernelcast.types import (
    SMALLEST_CLAIM_LOG2,
    Device,
    FailureKind,
    Forecast,
    Kernel,
    Problem,
    Query,
)

_DATA = (SEARCHES, *KERNELBENCH, "llm_cuda_l2_hgemm")
_RECORDED_PAIRS = 440
_PAIRS_OF_A_PROBLEM = 4
_PROBLEMS_OF_A_FILE = 80
_TIE_LOG2 = (math.log2(0.97), math.log2(1.03))
_TIE_CHANCE = 0.98
_SURE = 0.7


@dataclass(frozen=True)
class PairAnswer:
    """What is said of one pair: in both directions, of copies, of a faulty kernel."""

    name: str
    there: Forecast
    """The second kernel (of a known pair the faster one) against the first."""
    back: Forecast
    copies: tuple[Forecast, ...]
    contradictions: int
    is_known: bool

    @property
    def asymmetry_log2(self) -> float:
        """How far the two medians are from being opposite."""
        return abs(_median_log2(self.there) + _median_log2(self.back))

    @property
    def self_ties(self) -> Sequence[bool]:
        """Whether each copy is a tie."""
        low, high = _TIE_LOG2
        densities = [forecast.distribution for forecast in self.copies]
        return [density.cdf(high) - density.cdf(low) >= _TIE_CHANCE for density in densities]


def _median_log2(forecast: Forecast) -> float:
    return forecast.distribution.quantile(0.5)


def _asked(
    problem: Problem, device: Device, anchor: Kernel, rivals: Sequence[Kernel], *, compiles: bool
) -> tuple[Sequence[Query], Sequence[Forecast]]:
    names = tuple(str(number) for number in range(len(rivals)))
    pool = Pool(problem, anchor, math.nan, names, tuple(rivals))
    answers = ask(ComponentSpec(name="trees"), pool, device, compiles=compiles, quiet=True)
    return answers.queries, answers.forecasts


def pair_answer(
    name: str, problem: Problem, device: Device, pair: tuple[Kernel, Kernel], *, is_known: bool
) -> PairAnswer:
    """Ask about a pair in both directions, and about a copy of each."""
    directions = []
    contradictions = 0
    for anchor, rival in (pair, pair[::-1]):
        rivals = [rival, _copy(anchor)]
        if is_known:
            rivals.append(_faulty(rival))
        queries, forecasts = _asked(problem, device, anchor, rivals, compiles=is_known)
        contradictions += sum(map(_contradicts, queries, forecasts))
        if is_known:
            contradictions += forecasts[2].p_ok > 0.0
        directions.append(forecasts)
    there, back = directions
    return PairAnswer(name, there[0], back[0], (there[1], back[1]), contradictions, is_known)


def _contradicts(query: Query, forecast: Forecast) -> bool:
    if query.evidence is None:
        return False
    if query.evidence.failure is not None:
        return forecast.p_ok > 0.0
    return forecast.failure.get(FailureKind.COMPILE_ERROR, 0.0) > 0.0


def _copy(kernel: Kernel) -> Kernel:
    mark = "//" if dialect(kernel.language).family == "c" else "#"
    return _kernel(f"{mark} a copy\n{kernel.source}\n", kernel)


def _faulty(kernel: Kernel) -> Kernel:
    return _kernel(kernel.source.replace("float", "floot", 1) + "\n}", kernel)


def _kernel(source: str, like: Kernel) -> Kernel:
    return as_kernel(source, like.language)


def known_pairs(pairs: Sequence[Pair], device: Device) -> Iterator[PairAnswer]:
    """Ask about the pairs of which the order is known."""
    for number, pair in enumerate(pairs, 1):
        answer = pair_answer(pair.name, pair.problem, device, (pair.slow, pair.fast), is_known=True)
        speedup = 2.0 ** _median_log2(answer.there)
        print(f"{number}/{len(pairs)} {pair.name}: {speedup:.2f}x", flush=True)
        yield answer


def recorded_triples(
    seed: int, problems: int
) -> Iterator[tuple[str, Problem, Device, list[Kernel]]]:
    """Draw kernels of one problem that ran, a few from each."""
    rng = np.random.default_rng(seed)
    pools = list(recorded_trials(rows_of(_DATA, problems), "reference", order="none", seed=seed))
    for at in rng.permutation(len(pools)).tolist():
        trials = [
            trial for trial in pools[at].trials if trial.ok and _is_text(trial.query.candidate)
        ]
        chosen = [trials[i] for i in rng.permutation(len(trials))[: _PAIRS_OF_A_PROBLEM + 1]]
        if len(chosen) >= 2:
            query = chosen[0].query
            kernels = [trial.query.candidate for trial in chosen]
            same = [kernel for kernel in kernels if kernel.language == kernels[0].language]
            yield pools[at].problem, query.problem, query.device, same


def _is_text(kernel: Kernel) -> bool:
    flaws = faults(kernel.source, kernel.language)
    return bool(kernel.source) and all(fault.kind != "syntax" for fault in flaws)


def main() -> None:
    parser = bench_parser(__doc__, quick="3 known pairs, 24 recorded ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="A100-PCIE-40GB", help="GPU of the known pairs")
    options = parser.parse_args()
    device = find_device(options.device)
    answers = list(known_pairs(quick_pairs()[:3] if options.quick else PAIRS, device))
    wanted = 24 if options.quick else _RECORDED_PAIRS
    triples = list(recorded_triples(options.seed, 4 if options.quick else _PROBLEMS_OF_A_FILE))
    pairs = (
        (name, problem, place, pair)
        for name, problem, place, kernels in triples
        for pair in pairwise(kernels)
    )
    for name, problem, place, pair in islice(pairs, wanted):
        answers.append(pair_answer(name, problem, place, pair, is_known=False))
    result = scores(answers) | {"chains_agree": _chains_agree(triples, 8 if options.quick else 60)}
    report(rounded({**result, "device": device.name, "seed": options.seed}), options)


def scores(answers: Sequence[PairAnswer]) -> dict[str, Any]:
    """Return the figures of the pairs."""
    known = [answer for answer in answers if answer.is_known]
    ties = [tie for answer in answers for tie in answer.self_ties]
    sure = [answer.back.chance_above(SMALLEST_CLAIM_LOG2) > _SURE for answer in known]
    return {
        "self_ties": float(np.mean(ties)),
        "asymmetry_log2": float(np.mean([answer.asymmetry_log2 for answer in answers])),
        "contradictions": sum(answer.contradictions for answer in answers),
        "known_right": float(np.mean([_median_log2(answer.there) > 0.0 for answer in known])),
        "known_wrong_sure": float(np.mean(sure)),
        "wrong": [answer.name for answer in known if _median_log2(answer.there) <= 0.0],
        "pairs": len(answers),
        "known_pairs": len(known),
    }


def _chains_agree(triples: Sequence[tuple[str, Problem, Device, list[Kernel]]], most: int) -> float:
    """Share of the triples a, b, c of which a -> b and b -> c agree with a -> c."""
    agree: list[bool] = []
    for _, problem, device, kernels in triples:
        if len(kernels) < 3 or len(agree) == most:
            continue
        first, second, third = kernels[:3]
        _, (to_second, to_third) = _asked(problem, device, first, [second, third], compiles=False)
        _, (onwards,) = _asked(problem, device, second, [third], compiles=False)
        parts = [forecast.distribution for forecast in (to_second, onwards, to_third)]
        gap = abs(parts[0].mean() + parts[1].mean() - parts[2].mean())
        agree.append(gap <= math.hypot(*(density.std() for density in parts)))
    return float(np.mean(agree))


if __name__ == "__main__":
    main()
