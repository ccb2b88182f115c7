"""Which of two kernels is faster, asked without a GPU: 60 pairs that engineers can order.

The two kernels of a pair compute the same, and one of them does what every guide to CUDA advises
against (`_ordered_pairs.py`). The emulator estimates both for each device; it is right if the
slower one takes more than 1.02 times as long. A kernel that is not emulated counts as wrong.
`coherence.py` asks the forecaster about the same pairs.

    python bench/emulator_pairs.py [--quick] [--device NAME ...] [--jobs 2] [--pairs TEXT]

No time here is measured: the order is common knowledge, stated before any estimate was made.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from _ordered_pairs import PAIRS, Pair
from _result import bench_parser, cannot_run, report, rounded
from kernelcast.backends.cuda import CudaBackend
from kernelcast.errors import SetupError
from kernelcast.processes import workers

DEVICES = ("A100-PCIE-40GB", "RTX-3090")
SMALLEST_RATIO = 1.02
_QUICK_PAIRS = 8


@dataclass(frozen=True)
class Answer:
    """What the emulator says of one pair on one device."""

    pair: str
    kind: str
    device: str
    ratio: float | None
    """Estimated time of the slower kernel over that of the faster one; None if not emulated."""
    bounds: tuple[str, str]
    """What bounds the slower and the faster kernel, as estimated."""
    reason: str = ""

    @property
    def emulator_right(self) -> bool:
        """Whether the emulator tells the order."""
        return self.ratio is not None and self.ratio > SMALLEST_RATIO


@cache
def _backend(device: str) -> CudaBackend:
    return CudaBackend(device=device)


def answer(name: str, device: str) -> Answer:
    """Ask the emulator about one pair."""
    pair = next(one for one in PAIRS if one.name == name)
    backend = _backend(device)
    slow, fast = (backend.inspect(pair.problem, one) for one in (pair.slow, pair.fast))
    estimates = [*slow.emulated, *fast.emulated] if slow.emulated and fast.emulated else []
    return Answer(
        pair=pair.name,
        kind=pair.kind,
        device=device,
        ratio=estimates[0].runtime_s / estimates[1].runtime_s if estimates else None,
        bounds=(estimates[0].bound_by, estimates[1].bound_by) if estimates else ("", ""),
        reason=slow.not_emulated or fast.not_emulated,
    )


def answers(pairs: Sequence[Pair], devices: Sequence[str], processes: int) -> list[Answer]:
    """Ask about all pairs and devices, in that order, and print what comes in."""
    with workers(processes) as pool:
        runs = [pool.submit(answer, pair.name, device) for pair in pairs for device in devices]
        for run in as_completed(runs):
            line = run.result()
            ratio = line.reason if line.ratio is None else f"{line.ratio:.3g}"
            verdict = "right" if line.emulator_right else "WRONG"
            print(f"{verdict} {line.device:15} {line.pair:58} {ratio} {line.bounds}", flush=True)
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
        "wrong": [asdict(line) for line in lines if not line.emulator_right],
    }


def _shares(lines: Sequence[Answer]) -> dict[str, float]:
    return {
        "emulator_right": sum(line.emulator_right for line in lines) / len(lines),
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
