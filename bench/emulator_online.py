"""Does a search find faster configurations if it knows estimated times? Cold, with and without.

One search knows nothing of a recorded space. The other one knows the estimates of some of its
configurations, drawn at random by each seed, and no time of any GPU. Both measure configurations
one by one with the forecaster of track T; seeds are paired. A score is best possible time / best
found time. Estimates are those of bench/emulator.py: the model's choices are the ones that the
other kernels make. Only configurations that ran were emulated there, so as many of the drawn ones
as would not have run are taken as unknown.

    python bench/emulator_online.py [--quick] [--seeds 20] [--work emulator.jsonl] [--jobs 2]

The work file is the one that bench/emulator.py wrote.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import emulator
import track_t
from _data import Floats, Space
from _result import bench_parser, cannot_run, report, rounded, save_figure
from _tuned_kernels import launched
from kernelcast.canonical import canonical_parameters
from kernelcast.processes import workers

ARMS = ("cold", "emulated")
POINTS = (5, 10, 25)
EMULATED_ROWS = 250
_QUICK_GROUP, _QUICK_ROWS = "convolution_17", 12


def estimates_of(space: Space, known: Mapping[str, float]) -> Floats:
    """Return log2 of the estimated seconds of each configuration; nan where there is none."""
    kernel = launched(space.problem)
    return np.array(
        [
            known.get(canonical_parameters(kernel.renamed(configuration)), np.nan)
            if kernel.serves(configuration)
            else np.nan
            for configuration in space.configurations
        ]
    )


def drawn(space: Space, estimates: Floats, rows: int, seed: int) -> dict[str, float | None]:
    """Return the estimates of some configurations, as a search would come by them."""
    kernel = launched(space.problem)
    is_served = np.array([kernel.serves(configuration) for configuration in space.configurations])
    share = float((is_served & np.isfinite(space.runtime_ms)).mean())
    rng = np.random.default_rng([seed, rows])
    known = np.flatnonzero(np.isfinite(estimates))
    kept = rng.choice(known, size=min(int(rng.binomial(rows, share)), len(known)), replace=False)
    return {space.keys[row]: float(2.0 ** estimates[row]) for row in kept}


def compared(label: str, estimates: Floats, rows: int, seeds: int) -> dict[str, list[float]]:
    """Return the mean scores of both arms in one space, after each measurement."""
    space = next(one for one in track_t.spaces() if one.label == label)
    budget = POINTS[-1]
    curves = {}
    for arm in ARMS:
        runs = [
            track_t.searched(
                space,
                seed,
                budget,
                estimates=drawn(space, estimates, rows, seed) if arm == "emulated" else None,
            )["indices"]
            for seed in range(seeds)
        ]
        curves[arm] = track_t.fractions(space, runs, budget).mean(axis=0).tolist()
    return curves


def summary(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Return the means over spaces, and where the estimates help least."""
    result: dict[str, Any] = {
        arm: {
            str(point): float(np.mean([by_arm[arm][point - 1] for by_arm in curves.values()]))
            for point in POINTS
        }
        for arm in ARMS
    }
    for point in POINTS:
        gains = {
            label: by_arm["emulated"][point - 1] - by_arm["cold"][point - 1]
            for label, by_arm in curves.items()
        }
        worst = min(gains, key=lambda label: gains[label])
        result.setdefault("least_gain", {})[str(point)] = gains[worst]
        result.setdefault("least_gain_in", {})[str(point)] = worst
        result.setdefault("spaces_below", {})[str(point)] = sum(g < -0.01 for g in gains.values())
    result["spaces"] = {
        label: {arm: [by_arm[arm][point - 1] for point in POINTS] for arm in ARMS}
        for label, by_arm in curves.items()
    }
    return result


def draw(curves: Mapping[str, Mapping[str, Sequence[float]]], out: Path) -> None:
    """Draw the mean fraction of the optimum by number of measurements."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for arm, label in zip(ARMS, ("cold", "with estimated times"), strict=True):
        mean = np.mean([by_arm[arm] for by_arm in curves.values()], axis=0)
        axis.plot(np.arange(1, len(mean) + 1), mean, label=label)
    axis.set(xlabel="measurements", ylabel="fraction of the optimum", ylim=(0.4, 1.0))
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    save_figure(figure, out)


def _quick_work(jobs: int) -> Path:
    """Emulate a few configurations of one group."""
    work = Path(tempfile.mkdtemp()) / "emulator_quick.jsonl"
    wanted = [
        emulator.Job(_QUICK_GROUP, key, target)
        for key in emulator.chosen(_QUICK_GROUP, _QUICK_ROWS)
        for target in emulator.targets(_QUICK_GROUP)
    ]
    emulator.collect(wanted, work, jobs)
    return work


def main() -> None:
    parser = bench_parser(__doc__, quick=f"{_QUICK_ROWS} estimates of one kernel, one seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, help="work file of bench/emulator.py")
    arguments = parser.parse_args()
    seeds, rows = arguments.seeds, EMULATED_ROWS
    work = arguments.work or Path(tempfile.gettempdir()) / "emulator.jsonl"
    if arguments.quick:
        work, seeds, rows = _quick_work(arguments.jobs), 1, _QUICK_ROWS
    if not work.is_file():
        cannot_run(f"{work} is not there: run bench/emulator.py --work {work} first")
    known = emulator.log2_estimates(work)
    chosen = [space for space in track_t.spaces() if space.label in known]
    curves = {}
    with workers(arguments.jobs) as pool:
        runs = {
            pool.submit(
                compared, space.label, estimates_of(space, known[space.label]), rows, seeds
            ): space.label
            for space in chosen
        }
        for run in as_completed(runs):
            curves[runs[run]] = run.result()
            ends = (run.result()[arm][POINTS[-1] - 1] for arm in ARMS)
            print(f"{runs[run]:40} {' '.join(f'{end:.3f}' for end in ends)}", flush=True)
    curves = dict(sorted(curves.items()))
    if arguments.out:
        draw(curves, arguments.out)
    facts = {"seeds": seeds, "rows": rows, "count": len(curves)}
    report(rounded({**summary(curves), **facts}), arguments)


if __name__ == "__main__":
    main()
