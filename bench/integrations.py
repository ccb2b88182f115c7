"""The adapters in the systems they are made for: what their users get for the same measurements.

Tuning. Each package runs through its own public entry (`triton.autotune`, Kernel Tuner's
`tune_kernel`, Optuna's `study.optimize`) on recorded GPU times, with kernelcast cold (nothing
known) and sparse (300 random configurations on each other GPU), for 50 measurements. Beside it the
strategies that come with the packages. The spaces are those of each problem that several GPUs
measured, on its first two GPUs by name. A score is best possible time / best found time.

Writing. Whole searches of OpenEvolve and ShinkaEvolve on C++ problems, with recorded answers of a
model and recorded times, with and without the gate. The answers come in a drawn order, or each is
like the parent that the system chose. `saved` is the share of measurements that the gate saves,
`loss` what the best kernel is slower by, `gap` the most candidates in a row without a measurement,
`stalls` the searches in which that is 20 or more.

Filtering. Helion's surrogate picks configurations from recorded populations, by its own random
forest and by kernelcast.

    python bench/integrations.py [--quick] [--seeds 20] [--jobs 2] [--work FILE] [--only PART]

The work file keeps each run, so that an interrupted bench goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import _by_evolve
import track_t
from _data import Space, siblings_of
from _result import bench_parser, cannot_run, json_lines, report, rounded
from kernelcast.processes import workers

BUDGET = 50
PARTS = ("tuning", "writing", "filtering")
KNOWING = ("cold", "sparse")
KERNEL_TUNER = ("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm", "bayes_opt_repaired")
"""The strategies that lead `track_t` at 50 measurements, and the one that most people know."""
BASELINES = (
    "random",
    "optuna_tpe",
    "optuna_gp",
    *(f"kernel_tuner/{name}" for name in KERNEL_TUNER),
)
_GPUS = 2  # of each problem
_MOST_SEEDS = {"optuna_gp": 3}  # it takes ten times as long as the others
_QUICK_SPACES = ("pnpoly@RTX 3090", "convolution_milo_small@MI50")
_LONGEST_GAP = 20


PACKAGES = ("kernel_tuner", "optuna", "triton")


def chosen_spaces(*, quick: bool) -> list[Space]:
    """The first GPUs by name of each problem that several GPUs measured."""
    if quick:
        return [space for space in track_t.spaces() if space.label in _QUICK_SPACES]
    by_problem: defaultdict[str, list[Space]] = defaultdict(list)
    for space in track_t.spaces():
        if siblings_of(space, track_t.spaces()):
            by_problem[space.problem].append(space)
    return [space for found in by_problem.values() for space in found[:_GPUS]]


def _by_package(
    package: str, space: Space, seed: int, known: Mapping[str, track_t.Times]
) -> list[int]:
    """The configurations that were measured through the package's public entry."""
    if package == "optuna":
        import _by_optuna

        return _by_optuna.run(space, seed, BUDGET, known)
    if package == "triton":
        import _by_triton

        return _by_triton.run(space, seed, BUDGET, known)
    import _kernel_tuner

    return _kernel_tuner.run(space, _kernel_tuner.ADAPTER, seed, BUDGET, known)


def _run(arm: str, label: str, seed: int) -> dict[str, Any]:
    space = next(each for each in track_t.spaces() if each.label == label)
    package, _, knowing = arm.partition(":")
    if knowing:
        known = track_t.known_times(space, knowing, seed)
        indices = _by_package(package, space, seed, known)
    else:
        indices = track_t.run(space, arm, seed, BUDGET)
    found = space.runtime_ms[indices[:BUDGET]]
    return {
        "arm": arm,
        "space": label,
        "seed": seed,
        "score": space.best_ms / float(found.min()),
        "measured": len(indices),
    }


def tuning(spaces: Sequence[Space], seeds: int, jobs: int, work: Path | None) -> dict[str, Any]:
    """The means of all arms, and how far kernelcast is ahead in each package."""
    arms = [*BASELINES, *(f"{package}:{knowing}" for package in PACKAGES for knowing in KNOWING)]
    done = {(e["arm"], e["space"], e["seed"]): e for e in _kept(work) if "arm" in e}
    seeds_of = {arm: min(seeds, _MOST_SEEDS.get(arm, seeds)) for arm in arms}
    wanted = [(arm, s.label, seed) for arm in arms for s in spaces for seed in range(seeds_of[arm])]
    missing = [key for key in wanted if key not in done]
    with workers(jobs) as pool:
        for future in as_completed([pool.submit(_run, *key) for key in missing]):
            entry = future.result()
            done[entry["arm"], entry["space"], entry["seed"]] = entry
            _keep(work, entry)
    scores = {
        arm: {
            s.label: float(
                np.mean([done[arm, s.label, seed]["score"] for seed in range(seeds_of[arm])])
            )
            for s in spaces
        }
        for arm in arms
    }
    means = {arm: float(np.mean(list(by_space.values()))) for arm, by_space in scores.items()}
    strategies = {name: means[f"kernel_tuner/{name}"] for name in KERNEL_TUNER}
    bar = max(*strategies.values(), means["optuna_tpe"], means["optuna_gp"])

    def ahead(package: str, knowing: str) -> dict[str, float]:
        arm = f"{package}:{knowing}"
        against = [scores[arm][s.label] - scores["random"][s.label] for s in spaces]
        return {
            "mean": means[arm],
            "ahead": means[arm] - bar,
            "worst_against_random": min(against),
        }

    by_package = {
        package: {knowing: ahead(package, knowing) for knowing in KNOWING} for package in PACKAGES
    }
    return {
        "kernelcast": {
            knowing: float(np.mean([by_package[p][knowing]["mean"] for p in PACKAGES]))
            for knowing in KNOWING
        },
        "kernel_tuner_best": max(strategies.values()),
        "optuna_tpe": means["optuna_tpe"],
        "optuna_gp": means["optuna_gp"],
        "random": means["random"],
        "kernel_tuner": strategies,
        "by_package": by_package,
        "least": {
            measure: min(by_package[p][k][name] for p in PACKAGES for k in ks)
            for measure, name, ks in (
                ("cold", "ahead", ("cold",)),
                ("sparse", "ahead", ("sparse",)),
                ("against_random", "worst_against_random", KNOWING),
            )
        },
        "spaces": scores,
        "gpus": sorted({s.gpu for s in spaces}),
    }


def writing(
    problems: Mapping[str, Sequence[str]], seeds: Sequence[int], jobs: int, work: Path | None
) -> dict[str, Any]:
    """Searches of OpenEvolve and ShinkaEvolve by problem and order, with and without the gate.

    ShinkaEvolve pins another httpx, so `KERNELCAST_SHINKA` names the Python that has it.
    """
    pythons = {"openevolve": sys.executable, "shinka": os.environ.get("KERNELCAST_SHINKA", "")}
    if not all(pythons.values()):
        cannot_run("set KERNELCAST_SHINKA to a Python with shinka-evolve and kernelcast")
    done = {tuple(e["search"]): _by_evolve.End(**e["end"]) for e in _kept(work) if "search" in e}
    wanted = [
        (system, *rest)
        for system, names in problems.items()
        for rest in product(names, _by_evolve.ORDERS, seeds, (True, False))
    ]

    def search(key: tuple[str, str, str, int, bool]) -> None:
        done[key] = _searched(pythons[key[0]], key)
        _keep(work, {"search": key, "end": asdict(done[key])})

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(search, [key for key in wanted if key not in done]))

    def compared(*arm: str) -> dict[str, Any]:
        pairs = [(done[*arm, seed, True], done[*arm, seed, False]) for seed in seeds]
        return _by_evolve.summary(pairs)

    result = {
        system: {
            problem: {order: compared(system, problem, order) for order in _by_evolve.ORDERS}
            for problem in names
        }
        for system, names in problems.items()
    }
    stalls = sum(done[key].longest_gap >= _LONGEST_GAP for key in wanted)
    return {**result, "stalls": stalls}


def _searched(python: str, key: tuple[str, str, str, int, bool]) -> _by_evolve.End:
    """One search in a process of its own: both systems leave threads and settings behind."""
    *arguments, is_gated = key
    code = (
        "import dataclasses, json, _by_evolve\n"
        f"end = _by_evolve.search(*{arguments!r}, is_gated={is_gated})\n"
        "print(json.dumps(dataclasses.asdict(end)))"
    )
    here = Path(__file__).parent
    searched = subprocess.run(
        [python, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parent}"},
        capture_output=True,
        text=True,
    )
    if searched.returncode:
        cannot_run(f"the search of {key} ended:\n{searched.stderr[-2000:]}")
    return _by_evolve.End(**json.loads(searched.stdout.splitlines()[-1]))


def _kept(work: Path | None) -> list[dict[str, Any]]:
    return [] if work is None else list(json_lines(work))


def _keep(work: Path | None, entry: Mapping[str, Any]) -> None:
    if work:
        with work.open("a") as out:
            out.write(json.dumps(entry) + "\n")


def main() -> None:
    """Run the parts and report."""
    parser = bench_parser(__doc__, "two spaces and seeds; the figures mean nothing")
    parser.add_argument("--seeds", type=int, default=20, help="of each space")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--work", type=Path, help="keep runs here; goes on if it is there")
    parser.add_argument("--only", action="append", choices=PARTS, help="default: all")
    options = parser.parse_args()
    parts = options.only or PARTS
    seeds = 2 if options.quick else options.seeds
    result: dict[str, Any] = {"seeds": seeds, "budget": BUDGET}
    if "tuning" in parts:
        spaces = chosen_spaces(quick=options.quick)
        result |= tuning(spaces, seeds, options.jobs, options.work)
    if "writing" in parts:
        first = 1 if options.quick else None
        problems = {system: names[:first] for system, names in _by_evolve.PROBLEMS.items()}
        judged = _by_evolve.JUDGED[:first]
        result |= writing(problems, judged, options.jobs, options.work)
    if "filtering" in parts:
        import _by_helion

        result |= _by_helion.compare(range(1 if options.quick else 10))
    packages = ("kernel-tuner", "optuna", "triton", "openevolve", "helion")
    report(rounded(result), options, *packages)


if __name__ == "__main__":
    main()
