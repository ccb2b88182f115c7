"""Selective against measuring everything: real searches on this machine, on the same proposals.

Run: python bench/search_real.py [--quick] [--jobs 2] [--work FOLDER] [--out FILE]
Each bundled C++ problem is searched by both arms with the same seeds, as many measurements, the
same template proposals and the same timing noise (`kernelcast.judge.comparison`). What both arms of
a seed found is then measured once more, side by side in this process and against the same seed
kernel; all figures are from these last measurements. A problem is won, tied (within 2%) or lost by
the geometric mean over its seeds. With --jobs, so many problems are searched at a time, each in a
process that has one core for itself, so that threads win nothing; without, one after the other on
all cores. With --work, a run that was stopped goes on where it stopped. The last line is one JSON
object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from _result import bench_parser, json_lines, report
from kernelcast.backends.cpp import CppBackend
from kernelcast.events import ComponentSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.judge.comparison import TIE_LOG2, Comparison, Paired, Plan, run_plan
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.processes import workers
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.types import Budget, Problem, content_hash

ARM, BASELINE = "selective", "measure_all"
QUICK_PROBLEM, QUICK_SEEDS, QUICK_MEASUREMENTS = "cross_entropy", 2, 4


class Finals:
    """The last measurement of each arm's best, one line a seed in a file."""

    def __init__(self, path: Path, backend: CppBackend) -> None:
        self._path = path
        self._backend = backend
        self._known: dict[str, dict[str, float | None]] = {
            line["key"]: line["log2_speedups"] for line in json_lines(path)
        }

    def of(self, store: Store, found: Comparison) -> list[dict[str, float | None]]:
        """Log2 speedup by arm, seed after seed; None where the best kernel fails now."""
        return [self._final(store, found, seed) for seed in found.seeds]

    def _final(self, store: Store, found: Comparison, seed: int) -> dict[str, float | None]:
        runs = {run.arm: run for run in found.outcomes if run.seed == seed}
        key = " ".join(run.run for _, run in sorted(runs.items()))
        if key not in self._known:
            measured: dict[str, float | None] = {}
            # One after the other, so that the machine is the same; the first by turns.
            for arm in sorted(runs, reverse=bool(seed % 2)):
                kernel = store.kernel(runs[arm].kernel_id)
                if kernel.id not in measured:
                    job_seed = int(content_hash(f"final {key} {kernel.id}")[:12], 16)
                    again = self._backend.measure(found.plan.problem, kernel, job_seed, "normal")
                    measured[kernel.id] = again.log2_speedup
            self._known[key] = {arm: measured[run.kernel_id] for arm, run in runs.items()}
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "log2_speedups": self._known[key]}) + "\n")
        return self._known[key]


def plan_of(problem: Problem, seeds: int, measurements: int) -> Plan:
    """The default search, and the same but for its policy."""
    return Plan(
        problem=problem,
        arms={name: {"policy": ComponentSpec(name=name)} for name in (ARM, BASELINE)},
        seeds=seeds,
        measurements=measurements,
    )


def run_told(search: Search, budget: Budget, title: str) -> None:
    """Run a search and say what came of it."""
    began = time.perf_counter()
    result = search.run(budget)
    state = result.state
    print(
        f"{title}: {result.speedup:.3f}x, considered {state.considered}, "
        f"measured {state.measured}, {time.perf_counter() - began:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def row_of(found: Comparison, finals: list[dict[str, float | None]]) -> dict[str, Any]:
    """The figures of one problem. A kernel that fails now is worth the seed kernel."""
    logs = {arm: [final[arm] or 0.0 for final in finals] for arm in (ARM, BASELINE)}
    pair = Paired.of([ours - theirs for ours, theirs in zip(*logs.values(), strict=True)])
    return {
        "gain": round(2.0**pair.mean, 4),
        "low": round(2.0**pair.low, 4),
        "high": round(2.0**pair.high, 4),
        "result": _result(pair.mean),
        "seeds_won": pair.wins,
        "seeds_tied": pair.ties,
        "seeds_lost": pair.losses,
        "verdict": pair.verdict(ARM, BASELINE),
        "speedup": {arm: round(2.0 ** fmean(each), 4) for arm, each in logs.items()},
        "speedups": {arm: [round(2.0**log2, 3) for log2 in each] for arm, each in logs.items()},
        "failed_finals": sum(log2 is None for final in finals for log2 in final.values()),
        "considered": {arm: fmean(run.considered for run in found.of(arm)) for arm in logs},
        "device_s": {
            arm: round(fmean(run.cost.device_s for run in found.of(arm)), 2) for arm in logs
        },
        "gain_in_search": round(2.0 ** found.at_equal_measurements(ARM).mean, 4),
        "gain_at_equal_cost": round(2.0 ** found.at_equal_cost(ARM, 1.0).mean, 4),
    }


def search_problem(name: str, seeds: int, measurements: int, work: Path) -> dict[str, Any]:
    """Both arms with every seed on one problem, what they found measured again."""
    work.mkdir(parents=True, exist_ok=True)
    backend = CppBackend()
    farm = LocalFarm(backend)
    finals = Finals(work / "finals.jsonl", backend)
    try:
        with Store.open(work / "store.db") as store:
            plan = plan_of(load_problem(name), seeds, measurements)
            found = run_plan(plan, farm, store, run=run_told)
            if not found.complete:
                raise SystemExit("interrupted; with --work, the same command goes on")
            row = row_of(found, finals.of(store, found))
    finally:
        farm.close()
    print(name, json.dumps(row), flush=True)
    return {**row, "device": backend.device.id, "toolchain": backend.toolchain}


def _result(log2_gain: float) -> str:
    if abs(log2_gain) <= TIE_LOG2:
        return "tie"
    return "win" if log2_gain > 0.0 else "loss"


def main() -> None:
    """Print a row a problem, and the figures over all of them."""
    parser = bench_parser(__doc__, quick="one problem, two seeds, four measurements")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--measurements", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, help="problems at a time, a core each")
    parser.add_argument(
        "--work", type=Path, help="folder that keeps what is done; a new one for new code"
    )
    options = parser.parse_args()
    names, seeds, measurements = bundled_problems("cpp"), options.seeds, options.measurements
    if options.quick:
        names, seeds, measurements = [QUICK_PROBLEM], QUICK_SEEDS, QUICK_MEASUREMENTS
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        work: Path = options.work or Path(temporary)
        tasks = [(name, seeds, measurements, work / name) for name in names]
        if options.jobs == 1:
            rows = {name: search_problem(name, *rest) for name, *rest in tasks}
        else:
            with workers(options.jobs, a_core_each=True) as pool:
                done = pool.map(search_problem, *zip(*tasks, strict=True))
                rows = dict(zip(names, done, strict=True))
    results = [row["result"] for row in rows.values()]
    gains = [row["gain"] for row in rows.values()]
    report(
        {
            "geomean_gain": round(geometric_mean(gains), 4),
            "wins": results.count("win"),
            "ties": results.count("tie"),
            "losses": results.count("loss"),
            "problems": rows,
            "seeds": seeds,
            "measurements": measurements,
            "jobs": options.jobs,
            "seconds": round(time.perf_counter() - started),
        },
        options,
    )


if __name__ == "__main__":
    main()
