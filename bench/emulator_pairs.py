"""Which of two kernels is faster, asked without a GPU: 60 pairs that engineers can order.

The two kernels of a pair compute the same, and one of them does what every guide to CUDA advises
against (`_ordered_pairs.py`). The emulator estimates both for each device; it is right if the
slower one takes more than 1.02 times as long. A kernel that is not emulated counts as wrong. The
default forecaster is asked about the same pairs in both directions, twice: with what compiling
shows alone (the text forecaster), and with the estimates too, as `kernelcast forecast` asks it. It
is right if it expects more of the faster kernel against the slower one than the other way round. A
constant answer is right about no pair.

    python bench/emulator_pairs.py [--quick] [--device NAME ...] [--jobs 2] [--pairs TEXT]

No time here is measured: the order is common knowledge, stated before any estimate was made.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import math
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from _ordered_pairs import PAIRS, Pair
from _result import bench_parser, cannot_run, report, rounded
from kernelcast import plugins
from kernelcast.backends.cuda import CudaBackend
from kernelcast.certainty import consult
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.processes import workers
from kernelcast.protocols import Forecaster
from kernelcast.types import Evidence, Query

DEVICES = ("A100-PCIE-40GB", "RTX-3090")
SMALLEST_RATIO = 1.02
_QUICK_PAIRS = 8


@dataclass(frozen=True)
class Answer:
    """What emulator and forecaster say of one pair on one device."""

    pair: str
    kind: str
    device: str
    ratio: float | None
    """Estimated time of the slower kernel over that of the faster one; None if not emulated."""
    bounds: tuple[str, str]
    """What bounds the slower and the faster kernel, as estimated."""
    forecast_log2: float
    """Median forecast of the faster kernel against the slower one."""
    reversed_log2: float
    """Median forecast of the slower kernel against the faster one."""
    informed_log2: float = 0.0
    """Median forecast of the faster kernel against the slower one, with the estimates."""
    informed_reversed_log2: float = 0.0
    reason: str = ""

    @property
    def emulator_right(self) -> bool:
        """Whether the emulator tells the order."""
        return self.ratio is not None and self.ratio > SMALLEST_RATIO

    @property
    def forecaster_right(self) -> bool:
        """Whether the text forecaster expects more of the faster kernel than of the slower one."""
        return self.forecast_log2 > self.reversed_log2

    @property
    def informed_right(self) -> bool:
        """Whether the forecaster does so with the estimates."""
        return self.informed_log2 > self.informed_reversed_log2


@cache
def _backend(device: str) -> CudaBackend:
    return CudaBackend(device=device)


@cache
def _forecaster() -> Forecaster:
    forecaster: Forecaster = plugins.build("forecaster", ComponentSpec(name="trees"))
    return forecaster


def answer(name: str, device: str) -> Answer:
    """Ask the emulator and the forecaster about one pair."""
    pair = next(one for one in PAIRS if one.name == name)
    backend = _backend(device)
    slow, fast = (backend.inspect(pair.problem, one) for one in (pair.slow, pair.fast))
    estimates = [*slow.emulated, *fast.emulated] if slow.emulated and fast.emulated else []
    medians: list[float] = []
    for is_informed in (False, True):
        query = Query(
            problem=pair.problem,
            device=backend.device,
            candidate=pair.fast,
            anchor=pair.slow,
            anchor_log2_speedup=0.0,
            anchor_runtime_s=math.nan,
            evidence=fast if is_informed else _compiled_only(fast),
            anchor_evidence=slow if is_informed else _compiled_only(slow),
        )
        medians += [_median_log2(query), _median_log2(_reversed(query))]
    forecast, backwards, informed, informed_backwards = medians
    return Answer(
        pair=pair.name,
        kind=pair.kind,
        device=device,
        ratio=estimates[0].runtime_s / estimates[1].runtime_s if estimates else None,
        bounds=(estimates[0].bound_by, estimates[1].bound_by) if estimates else ("", ""),
        forecast_log2=forecast,
        reversed_log2=backwards,
        informed_log2=informed,
        informed_reversed_log2=informed_backwards,
        reason=slow.not_emulated or fast.not_emulated,
    )


def _compiled_only(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"emulated": ()})


def _reversed(query: Query) -> Query:
    return query.model_copy(
        update={
            "candidate": query.anchor,
            "anchor": query.candidate,
            "evidence": query.anchor_evidence,
            "anchor_evidence": query.evidence,
        }
    )


def _median_log2(query: Query) -> float:
    """Return the forecaster's median log2 speedup of the candidate against the anchor."""
    (forecast,) = consult(_forecaster(), [query])
    return forecast.distribution.quantile(0.5) if forecast.p_ok else -math.inf


def answers(pairs: Sequence[Pair], devices: Sequence[str], processes: int) -> list[Answer]:
    """Ask about all pairs and devices, in that order, and print what comes in."""
    with workers(processes) as pool:
        runs = [pool.submit(answer, pair.name, device) for pair in pairs for device in devices]
        for run in as_completed(runs):
            line = run.result()
            ratio = line.reason if line.ratio is None else f"{line.ratio:.3g}"
            verdict = "right" if line.emulator_right else "WRONG"
            medians = f"{2.0**line.forecast_log2:.3g} {2.0**line.reversed_log2:.3g}"
            shown = f"{ratio} {line.bounds} forecast {medians}"
            print(f"{verdict} {line.device:15} {line.pair:58} {shown}", flush=True)
        return [run.result() for run in runs]


def scores(lines: Sequence[Answer]) -> dict[str, Any]:
    """Return the shares of right answers, by kind as well, and every wrong one."""
    kinds: dict[str, list[Answer]] = defaultdict(list)
    for line in lines:
        kinds[line.kind].append(line)
    return {
        "pairs": len({line.pair for line in lines}),
        **_shares(lines),
        "by_kind": {
            kind: {"pairs": len({line.pair for line in kinds[kind]}), **_shares(kinds[kind])}
            for kind in sorted(kinds)
        },
        "wrong": [
            {key: value for key, value in asdict(line).items() if not key.endswith("_log2")}
            for line in lines
            if not line.emulator_right
        ],
        "forecaster_wrong": sorted({line.pair for line in lines if not line.forecaster_right}),
    }


def _shares(lines: Sequence[Answer]) -> dict[str, float]:
    return {
        "emulator_right": sum(line.emulator_right for line in lines) / len(lines),
        "forecaster_right": sum(line.forecaster_right for line in lines) / len(lines),
        "informed_right": sum(line.informed_right for line in lines) / len(lines),
    }


def quick_pairs() -> list[Pair]:
    """Return the first pair of some kinds."""
    first: dict[str, Pair] = {}
    for pair in PAIRS:
        first.setdefault(pair.kind, pair)
    return list(first.values())[:: len(first) // _QUICK_PAIRS][:_QUICK_PAIRS]


def main() -> None:
    parser = bench_parser(__doc__, quick=f"{_QUICK_PAIRS} pairs of different kinds, one device")
    parser.add_argument("--device", nargs="+", default=list(DEVICES), help="GPUs of the catalogue")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pairs", help="only pairs whose name or kind contains this text")
    arguments = parser.parse_args()
    pairs = quick_pairs() if arguments.quick else list(PAIRS)
    if arguments.pairs:
        pairs = [pair for pair in pairs if arguments.pairs in f"{pair.name} {pair.kind}"]
    devices = arguments.device[:1] if arguments.quick else arguments.device
    try:
        for device in devices:
            _backend(device)
    except SetupError as error:
        cannot_run(str(error))
    result = scores(answers(pairs, devices, arguments.jobs))
    report(rounded({**result, "devices": devices}), arguments)


if __name__ == "__main__":
    main()
