"""Accuracy of the timing protocol on a busy machine: A/A, planted slowdowns, coverage.

Run: python bench/timing.py [--quick] [--effort normal] [--out FILE]
A loop keeps each core busy while the reference is measured against itself and against copies that
compute 2% or 5% (and, to find the limit, 1%, 3% and 10%) of their elements twice. Every comparison
is a whole measurement: a fresh confined process, new inputs, every output verified. "Faster" is
`Measurement.faster`. A slowdown is found if the whole interval lies below zero. Coverage is the
share of A/A intervals that contain zero. Comparisons come in random order. The last line is one
JSON object.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

from _result import bench_parser, report
from kernelcast.backends.cpp import CppBackend
from kernelcast.testing import make_kernel
from kernelcast.types import Effort, Measurement
from overhead import PASS, SEED, arithmetic

CALL_S = 1e-3
ARMS = {0: 500, 1: 60, 2: 150, 3: 60, 5: 150, 10: 60}
QUICK = {0: 16, 2: 8, 5: 8}


def slower_by(percent: int) -> str:
    """The seed kernel with the first few percent of its elements computed twice."""
    again = PASS.format(end=f"N * {percent} / 100")
    barrier = 'asm volatile("" ::: "memory");'
    return SEED.rstrip().removesuffix("}") + f"    {barrier}{again}}}\n" if percent else SEED


@contextmanager
def busy_cores() -> Iterator[int]:
    """Run an endless loop on each core."""
    loops = [
        multiprocessing.get_context("fork").Process(target=_spin, args=(core,), daemon=True)
        for core in sorted(os.sched_getaffinity(0))
    ]
    for loop in loops:
        loop.start()
    try:
        yield len(loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def main() -> None:
    """Print the results of each planted slowdown."""
    parser = bench_parser(__doc__, quick="16 A/A, 8 of two slowdowns each")
    parser.add_argument("--effort", choices=("screening", "normal", "final"), default="normal")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    effort: Effort = options.effort
    arms = QUICK if options.quick else ARMS
    backend = CppBackend()
    started = time.perf_counter()
    elements = 1000
    probe = backend.measure(arithmetic(elements), make_kernel(SEED), 0)
    assert probe.timing is not None, probe.failure
    problem = arithmetic(round(elements * CALL_S / probe.timing.runtime_s))
    order = [percent for percent, count in arms.items() for _ in range(count)]
    np.random.default_rng(options.seed).shuffle(order)
    measurements: dict[int, list[Measurement]] = defaultdict(list)
    with busy_cores() as loops:
        backend.measure(problem, make_kernel(SEED), seed=1, effort=effort)  # the noise floor
        for index, percent in enumerate(order):
            measurement = backend.measure(problem, make_kernel(slower_by(percent)), index, effort)
            assert measurement.timing is not None, measurement.failure
            measurements[percent].append(measurement)
            if index % 50 == 49:
                print(
                    f"{index + 1} of {len(order)} after {time.perf_counter() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    backend.close()
    rows = {percent: summary(measurements[percent]) for percent in sorted(measurements)}
    for percent, row in rows.items():
        print(f"{percent:3}% slower: {row}")
    detected = [percent for percent, row in rows.items() if percent and row["found"] >= 0.9]
    result = {
        "false_faster": rows[0]["faster"],
        "found_2pct": rows[2]["found"],
        "found_5pct": rows[5]["found"],
        "coverage": rows[0]["covered"],
        "smallest_found_in_90pct": min(detected, default=None),
        "comparisons": {percent: len(measurements[percent]) for percent in rows},
        "effort": effort,
        "busy_loops": loops,
        "noise_log2": median(tie.noise_log2 or 0.0 for tie in measurements[0]),
        "rows": rows,
        "seconds": round(time.perf_counter() - started),
        "seed": options.seed,
    }
    report(result, options)


def summary(measurements: list[Measurement]) -> dict[str, Any]:
    """Shares over the comparisons of one arm, and medians."""
    timings = [row.timing for row in measurements if row.timing is not None]
    half_widths = [2 ** ((timing.high - timing.low) / 2) - 1 for timing in timings]

    def share(held: list[bool]) -> float:
        return round(sum(held) / len(held), 4)

    return {
        "faster": share([row.faster for row in measurements]),
        "found": share([timing.high < 0.0 for timing in timings]),
        "covered": share([timing.low <= 0.0 <= timing.high for timing in timings]),
        "resolved": share([timing.resolved for timing in timings]),
        "half_width": round(median(half_widths), 4),
        "speedup": round(2 ** median(timing.log2_speedup for timing in timings), 4),
        "rounds": median(len(timing.cases[0].log2_ratios) for timing in timings),
    }


if __name__ == "__main__":
    main()
