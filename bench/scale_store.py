"""Append and fold a long run: is the cost per event flat, and does a long run open quickly?

The events are those the loop writes, in its batches and at realistic sizes: proposals with their
kernels, forecasts with full densities, decisions, reservations, measurements. One append is one
durable transaction (SQLite, WAL, synchronous=FULL).

    python bench/scale_store.py [--quick]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from _result import bench_parser, report
from kernelcast.distribution import Distribution
from kernelcast.events import (
    Decided,
    Event,
    Forecasted,
    Measured,
    Proposed,
    Reserved,
    RunSpec,
    RunStarted,
    Settled,
)
from kernelcast.problems import load_problem
from kernelcast.run import Run
from kernelcast.store import Store
from kernelcast.testing import FAKE_DEVICE
from kernelcast.types import (
    Budget,
    CaseTiming,
    Decision,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Measurement,
    Resource,
    Timing,
    content_hash,
)

POOL = 16
MEASURED_PER_POOL = 4


def measurement(rng: np.random.Generator, kernel: str, log2_speedup: float) -> Measurement:
    """A measurement as the C++ backend makes them: 20 paired ratios, or now and then a failure."""
    if rng.random() < 0.1:
        failure = Failure(kind=FailureKind.WRONG_RESULT, message="y[17] is 0.25, not 0.5")
        return Measurement(
            kernel_id=kernel,
            problem_id="p",
            device_id="d",
            toolchain="t",
            failure=failure,
            device_s=0.3,
        )
    ratios = tuple(np.round(rng.normal(log2_speedup, 0.02, 20), 5).tolist())
    case = CaseTiming(case="main", log2_ratios=ratios, runtime_s=1e-3, reference_runtime_s=5e-3)
    timing = Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - 0.02,
        high=log2_speedup + 0.02,
        resolved=True,
        runtime_s=1e-3,
        reference_runtime_s=5e-3,
        cases=(case,),
    )
    return Measurement(
        kernel_id=kernel, problem_id="p", device_id="d", toolchain="t", timing=timing, device_s=0.4
    )


def fill(run: Run, total: int, seed: int) -> list[float]:
    """Append until the run holds `total` events; seconds of CPU and disk for each tenth."""
    rng = np.random.default_rng(seed)
    template = load_problem("softmax").template
    assert template is not None
    tenths: list[float] = []
    serial, parent = 0, "seed"
    started = time.perf_counter()
    while run.state.events < total:
        pool: list[Kernel] = []
        for _ in range(POOL):
            source = f"#define SERIAL {serial}\n{template.source}"
            # The lexer's cost is not the store's: ids come straight from the source here.
            pool.append(
                Kernel(
                    id=content_hash(source), language="cpp", source=source, parameters={"S": serial}
                )
            )
            serial += 1
        request = serial // POOL
        run.append(
            [
                Proposed(
                    kernel_id=kernel.id, parent_id=parent, proposer="template", request=request
                )
                for kernel in pool
            ],
            kernels=pool,
        )
        # Speedups creep up as in a search, so that archive and eviction work for a living.
        values = rng.normal(0.3 * np.log2(2 + serial) - 2, 1.0, POOL)
        run.append(
            [
                Forecasted(
                    kernel_id=kernel.id,
                    forecast=Forecast(
                        forecaster="trees",
                        anchor_id=parent,
                        anchor_log2_speedup=0.0,
                        distribution=Distribution.normal(float(value), 0.5),
                        failure={FailureKind.WRONG_RESULT: 0.1},
                    ),
                )
                for kernel, value in zip(pool, values, strict=True)
            ]
        )
        order = np.argsort(-values)
        decided: list[Event] = []
        for rank, index in enumerate(order):
            action = "measure" if rank < MEASURED_PER_POOL else "trust" if rank < 6 else "drop"
            decided.append(
                Decided(
                    kernel_id=pool[index].id,
                    decision=Decision(action=action, score=0.1, reason="P(new best) 0.10"),
                    log2_speedup=float(values[index]) if action == "trust" else None,
                )
            )
        run.append(decided)
        for index in order[:MEASURED_PER_POOL]:
            kernel = pool[index]
            entry = f"m{run.state.attempts}"
            run.append(
                [Reserved(entry=entry, spend={Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 10})]
            )
            result = measurement(rng, kernel.id, float(values[index]))
            run.append(
                [
                    Settled(entry=entry, spend={Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 0.4}),
                    Measured(measurement=result, purpose="search"),
                ]
            )
            if result.failure is None:
                parent = kernel.id
            if kernel.id in run.state.unconfirmed:
                run.append([Measured(measurement=result, purpose="confirmation")])
        while len(tenths) < 10 and run.state.events >= total * (len(tenths) + 1) // 10:
            now = time.perf_counter()
            tenths.append(now - started)
            started = now
            print(
                f"{run.state.events:>9,} events: {tenths[-1] / (total / 10) * 1e6:.1f} us an event",
                flush=True,
            )
    return tenths


def main() -> None:
    parser = bench_parser(__doc__, quick="100,000 events instead of 1,000,000")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total = 100_000 if arguments.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store.open(path) as store:
            run = store.create_run("long")
            problem = load_problem("softmax")
            seed_kernel = Kernel(id="seed", language="cpp", source=problem.seed_source)
            started = RunStarted(
                spec=RunSpec(seed=arguments.seed),
                problem=problem,
                device=FAKE_DEVICE,
                seed_kernel_id=seed_kernel.id,
                budget=Budget(),
            )
            run.append([started], kernels=[seed_kernel])
            tenths = fill(run, total, arguments.seed)
            expected = run.state
        began = time.perf_counter()
        with Store.open(path) as store:
            opened = store.open_run("long")
            best, archive = opened.state.incumbent, opened.state.archive
            open_s = time.perf_counter() - began
            assert opened.state == expected, "the opened state is not the state that was written"
            size = path.stat().st_size
            print(f"best 2^{best.log2_speedup:.2f}, {len(archive)} in the archive, {size:,} bytes")
    result = {
        "events": expected.events,
        "last_over_first": round(tenths[-1] / tenths[0], 3),
        "open_s": round(open_s, 3),
    }
    report(result, arguments, "sqlalchemy")


if __name__ == "__main__":
    main()
