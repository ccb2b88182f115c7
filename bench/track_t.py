"""Tuner spaces: how near to the optimum a search comes with few measurements, arm beside arm.

One GPU is left out at a time; a search measures configurations of that space one by one. Arms:
cold (nothing known), sparse (300 random configurations on each other GPU), full (all of them),
other_vendor (full, of the other vendor only), sibling_mean (no model: in the order of the mean of
the other GPUs' times, of the same vendor where there is one), random, and Kernel Tuner's own
strategies. Arms that end in _seconds choose by improvement per device second, where those were
recorded. Where no other GPU of the vendor ran the problem, the vendor's GPUs that ran the same
kernel at another size stand in. A score is best possible time / best found time.

    python bench/track_t.py [--quick] [--seeds 20] [--jobs 2] [--work track_t.jsonl] [--out JSON]

Results are appended to the work file, one line per arm and space: an interrupted run goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import hashlib
import inspect
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from _data import Floats, Space, aligned, siblings_of, tuner_spaces
from _result import bench_parser, json_lines, report, save_figure
from kernelcast.forecasters import _encoding, _gaussian, _prior
from kernelcast.forecasters import space as space_forecaster
from kernelcast.forecasters.space import Sibling, SpaceForecaster
from kernelcast.processes import workers

BUDGETS = (5, 10, 25, 50, 100, 200)
OURS = ("cold", "sparse", "full", "other_vendor")
PER_SECOND = ("cold_seconds", "full_seconds")
PLAIN = ("sibling_mean", "random")
KERNEL_TUNER = "kernel_tuner/"
_SPARSE_ROWS = 300
_INFORMED_BUDGET = 50  # measurements of an arm that knows other GPUs: it is there by then
_NEAR_ENOUGH = 0.95
QUICK_SPACES = (
    "convolution_milo_small@MI50",
    "convolution_milo_small@RTX A4000",
    "convolution_milo_small@RTX A6000",
    "pnpoly@RTX 3090",
)
_QUICK_STRATEGIES = ("genetic_algorithm", "adaptive_tabu_greywolf")


# ------------------------------------------------------------------------------ what others know


@cache
def spaces() -> tuple[Space, ...]:
    """All of them, read once a process."""
    return tuple(tuner_spaces())


def tables(space: Space) -> list[tuple[Space, Floats]]:
    """Other GPUs' times for the configurations of `space`, nan where unknown."""
    found = [(each, aligned(space, each)) for each in siblings_of(space, spaces())]
    if not any(each.vendor == space.vendor for each, _ in found):
        kin = (each for each in spaces() if each.family == space.family)
        for each in kin:
            if each.vendor == space.vendor and each.gpu != space.gpu:
                times = _at_another_size(space, each)
                if np.isfinite(times).mean() > 0.5:
                    found.append((each, times))
    return found


def _at_another_size(space: Space, kin: Space) -> Floats:
    """Times of `kin`'s configurations that agree in all parameters that both have.

    Of a parameter that only `kin` has, the value under which most of the space is found.
    """
    shared = [name for name in space.configurations[0] if name in kin.configurations[0]]
    own = [name for name in kin.configurations[0] if name not in shared]
    if len(shared) < len(space.configurations[0]):
        return np.full(len(space.keys), np.nan)
    by_own: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = {}
    for configuration, ms in zip(kin.configurations, kin.runtime_ms.tolist(), strict=True):
        times = by_own.setdefault(tuple(configuration[name] for name in own), {})
        times[tuple(configuration[name] for name in shared)] = ms
    wanted = [tuple(each[name] for name in shared) for each in space.configurations]
    candidates = [[times.get(key, np.nan) for key in wanted] for times in by_own.values()]
    return max((np.array(each) for each in candidates), key=lambda t: int((~np.isnan(t)).sum()))


def siblings(space: Space, arm: str, seed: int) -> list[Sibling]:
    """What an arm may know of the space before it measures."""
    if arm == "cold":
        return []
    found = []
    for number, (other, times) in enumerate(tables(space)):
        if arm == "other_vendor" and (
            other.vendor == space.vendor or other.problem != space.problem
        ):
            continue
        if arm == "sparse":
            rng = np.random.default_rng([seed, number, 300])
            known = np.flatnonzero(~np.isnan(times))
            kept = rng.choice(known, size=min(_SPARSE_ROWS, len(known)), replace=False)
            sampled = np.full(len(times), np.nan)
            sampled[kept] = times[kept]
            times = sampled
        failed = np.isinf(times)
        log2_runtime = np.log2(np.where(failed, np.nan, times))
        found.append(Sibling(other.gpu, log2_runtime, failed, other.vendor == space.vendor))
    return found


# ------------------------------------------------------------------------------------------ arms


def run(space: Space, arm: str, seed: int, budget: int) -> list[int]:
    """The configurations that an arm measures, in order."""
    budget = min(budget, len(space.keys))
    if arm == "random":
        drawn = np.random.default_rng([seed, 1]).permutation(len(space.keys))
        return [int(index) for index in drawn[:budget]]
    if arm == "sibling_mean":
        order = np.argsort(_mean_of(siblings(space, arm, seed)), kind="stable")
        return [int(index) for index in order[:budget]]
    if arm.startswith(KERNEL_TUNER):
        import _kernel_tuner

        return _kernel_tuner.run(space, arm.removeprefix(KERNEL_TUNER), seed, budget)
    known = siblings(space, arm.removesuffix("_seconds"), seed)
    return searched(space, known, seed, budget, per_second=arm in PER_SECOND)


def searched(
    space: Space, known: Sequence[Sibling], seed: int, budget: int, *, per_second: bool = False
) -> list[int]:
    """The configurations that the forecaster measures, in order."""
    forecaster = SpaceForecaster(space.configurations, known, seed)
    chosen: list[int] = []
    for _ in range(budget):
        index = forecaster.choose(per_second=per_second)
        ms = space.runtime_ms[index]
        cost_s = None if space.device_s is None else float(space.device_s[index])
        forecaster.learn(index, float(np.log2(ms)) if np.isfinite(ms) else None, cost_s)
        chosen.append(index)
    return chosen


def _mean_of(known: Sequence[Sibling]) -> Floats:
    kin = [each for each in known if each.same_vendor] or known
    above = np.array([each.log2_runtime - np.nanmin(each.log2_runtime) for each in kin])
    counted = np.isfinite(above).sum(axis=0)
    mean = np.nansum(above, axis=0) / np.maximum(counted, 1)
    fails = np.any([each.failed for each in kin], axis=0)
    # Unknown everywhere goes with the average; a failure anywhere goes last.
    order: Floats = np.where(counted == 0, np.nanmean(above), mean) + 1e3 * fails
    return order


def admitted(space: Space, arm: str) -> bool:
    """Whether an arm has anything to go by on a space."""
    if arm in PER_SECOND and space.device_s is None:
        return False
    arm = arm.removesuffix("_seconds")
    others = siblings_of(space, spaces())
    if arm in ("sparse", "full", "sibling_mean"):
        return bool(others)
    if arm == "other_vendor":
        return any(each.vendor != space.vendor for each in others)
    return True


def _reach(arm: str, budget: int) -> int:
    """How many measurements an arm makes."""
    informed = arm.startswith(("sparse", "full", "other_vendor"))
    return min(budget, _INFORMED_BUDGET) if informed else budget


def _job(arm: str, label: str, seeds: int, budget: int) -> dict[str, Any]:
    space = next(each for each in spaces() if each.label == label)
    began = time.process_time()
    indices = [run(space, arm, seed, _reach(arm, budget)) for seed in range(seeds)]
    return {
        **_key(space, arm, seeds, budget),
        "indices": indices,
        "cpu_s": round(time.process_time() - began, 2),
    }


def _key(space: Space, arm: str, seeds: int, budget: int) -> dict[str, Any]:
    return {
        "arm": arm,
        "space": space.label,
        "fingerprint": space.fingerprint,
        "seeds": seeds,
        "budget": _reach(arm, budget),
        "version": _version() if arm in OURS + PER_SECOND else "",
    }


@cache
def _version() -> str:
    """Changes with the forecaster's code: whether what it chose still holds."""
    modules = (space_forecaster, _prior, _encoding, _gaussian)
    files = map(inspect.getfile, modules)
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:12]


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        entry[name] for name in ("arm", "space", "fingerprint", "seeds", "budget", "version")
    )


def _recorded(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {_identity(entry): entry for entry in json_lines(path)}


def _from_kernel_tuner(
    path: Path | None, chosen: Sequence[Space], arms: Sequence[str], seeds: int, budget: int
) -> list[dict[str, Any]]:
    """Runs that `_kernel_tuner.py` recorded, as lines of the work file."""
    if path is None:
        return []
    import _kernel_tuner

    runs = _kernel_tuner.recorded(path)
    entries = []
    for arm in arms:
        for space in chosen:
            strategy = arm.removeprefix(KERNEL_TUNER)
            keys = [_kernel_tuner.run_of(space, strategy, seed, budget) for seed in range(seeds)]
            if all(key in runs for key in keys):
                found = [runs[key] for key in keys]
                entries.append({**_key(space, arm, seeds, budget), "indices": found, "cpu_s": 0.0})
    return entries


# ---------------------------------------------------------------------------------------- scores


def fractions(space: Space, runs: Sequence[Sequence[int]], budget: int) -> Floats:
    """Best possible / best found after each measurement: one row a run."""
    rows = np.zeros((len(runs), budget))
    for row, indices in zip(rows, runs, strict=True):
        found = space.best_ms / np.minimum.accumulate(space.runtime_ms[list(indices)])
        row[: len(found)] = found
        row[len(found) :] = found[-1]  # a strategy that gave up keeps what it has
    return rows


def seconds_to_near(space: Space, runs: Sequence[Sequence[int]], budget: int) -> float:
    """Expected device seconds to come within 5%: all seconds spent, by runs that got there."""
    assert space.device_s is not None
    reached, spent = 0, 0.0
    for indices, fraction in zip(runs, fractions(space, runs, budget), strict=True):
        seconds = np.nan_to_num(space.device_s[list(indices)], nan=np.nanmedian(space.device_s))
        near = np.flatnonzero(fraction[: len(seconds)] >= _NEAR_ENOUGH)
        reached += len(near) > 0
        spent += float(seconds[: near[0] + 1 if len(near) else None].sum())
    return spent / max(reached, 1)


def summary(entries: Sequence[dict[str, Any]], budget: int) -> dict[str, Any]:
    """The arms' means and worst over spaces, and device seconds against Kernel Tuner."""
    by_label = {space.label: space for space in spaces()}
    curves: dict[str, dict[str, NDArray[np.float64]]] = {}
    seconds: dict[str, dict[str, float]] = {}
    for entry in entries:
        space = by_label[entry["space"]]
        curve = fractions(space, entry["indices"], entry["budget"]).mean(axis=0)
        curves.setdefault(entry["arm"], {})[space.label] = curve
        if space.device_s is not None:
            spent = seconds_to_near(space, entry["indices"], entry["budget"])
            seconds.setdefault(entry["arm"], {})[space.label] = spent
    points = [point for point in BUDGETS if point <= budget]

    def at(reduce: Callable[..., Any], arm: str) -> dict[str, float]:
        values = reduce(np.stack(list(curves[arm].values())), axis=0)
        reached = (point for point in points if point <= len(values))
        return {str(point): round(float(values[point - 1]), 4) for point in reached}

    means = {arm: at(np.mean, arm) for arm in curves}
    strategies = [arm for arm in curves if arm.startswith(KERNEL_TUNER)]
    result: dict[str, Any] = {
        arm: mean for arm, mean in means.items() if not arm.startswith(KERNEL_TUNER)
    }
    result["worst"] = {arm: at(np.min, arm) for arm in result}
    if strategies:
        result["kernel_tuner_best"] = {
            str(p): max(means[arm][str(p)] for arm in strategies) for p in points
        }
        result["kernel_tuner"] = {arm.removeprefix(KERNEL_TUNER): means[arm] for arm in strategies}
        best = min(strategies, key=lambda arm: _geometric_mean(list(seconds[arm].values())))
        result["device_seconds"] = {
            arm: _geometric_mean([seconds[arm][label] / seconds[best][label] for label in spent])
            for arm, spent in seconds.items()
            if not arm.startswith(KERNEL_TUNER)
        }
        result["device_seconds_against"] = best.removeprefix(KERNEL_TUNER)
        # Like against like: Kernel Tuner knows nothing of other GPUs either.
        result["device_seconds_ratio"] = result["device_seconds"].get("cold_seconds")
    result["spaces"] = {
        arm: {
            label: [round(float(curve[point - 1]), 4) for point in points if point <= len(curve)]
            for label, curve in by_space.items()
        }
        for arm, by_space in curves.items()
    }
    result["curves"] = {
        arm: np.stack(list(by_space.values())).mean(axis=0) for arm, by_space in curves.items()
    }
    return result


def _geometric_mean(values: Sequence[float]) -> float:
    return round(float(np.exp(np.mean(np.log(values)))), 4)


def draw(curves: dict[str, Floats], out: Path) -> None:
    """Mean fraction of the optimum by number of measurements, Kernel Tuner's arms in grey."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for arm, curve in curves.items():
        ours = not arm.startswith(KERNEL_TUNER)
        axis.plot(
            np.arange(1, len(curve) + 1),
            curve,
            color=None if ours else "0.75",
            linewidth=2.0 if arm in OURS else 1.0,
            label=arm if ours else None,
            zorder=2 if ours else 1,
        )
    axis.plot([], [], color="0.75", label="Kernel Tuner's strategies")
    axis.set(xscale="log", xlabel="measurements", ylabel="fraction of the optimum", ylim=(0.5, 1.0))
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    save_figure(figure, out)


def main() -> None:
    parser = bench_parser(__doc__, quick="four small spaces, two seeds")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--arm", action="append", help="only these arms")
    parser.add_argument("--work", type=Path, help="where results gather; default: temporary")
    parser.add_argument("--kernel-tuner-runs", type=Path, help="work file of _kernel_tuner.py")
    parser.add_argument("--without-kernel-tuner", action="store_true")
    arguments = parser.parse_args()
    chosen, seeds, budget, jobs = list(spaces()), arguments.seeds, arguments.budget, arguments.jobs
    if arguments.quick:
        chosen = [space for space in chosen if space.label in QUICK_SPACES]
        seeds, budget, jobs = 2, 50, 1  # each process reads all spaces
    arms = [*OURS, *PER_SECOND, *PLAIN]
    if not arguments.without_kernel_tuner:
        import _kernel_tuner

        strategies = _QUICK_STRATEGIES if arguments.quick else _kernel_tuner.STRATEGIES
        arms += [f"{KERNEL_TUNER}{strategy}" for strategy in strategies]
    if arguments.arm:
        arms = [arm for arm in arms if arm in arguments.arm]
    name = "track_t_quick.jsonl" if arguments.quick else "track_t.jsonl"
    work = arguments.work or Path(tempfile.gettempdir()) / name
    if arguments.quick and arguments.work is None:
        work.unlink(missing_ok=True)
    done = _recorded(work)
    strategies_arms = [arm for arm in arms if arm.startswith(KERNEL_TUNER)]
    for entry in _from_kernel_tuner(
        arguments.kernel_tuner_runs, chosen, strategies_arms, seeds, budget
    ):
        done[_identity(entry)] = entry
    wanted = [(arm, space) for arm in arms for space in chosen if admitted(space, arm)]
    missing = [
        pair for pair in wanted if _identity(_key(pair[1], pair[0], seeds, budget)) not in done
    ]
    with workers(jobs) as pool, work.open("a") as out:
        runs = [pool.submit(_job, arm, space.label, seeds, budget) for arm, space in missing]
        for number, job in enumerate(as_completed(runs), 1):
            entry = job.result()
            out.write(json.dumps(entry) + "\n")
            out.flush()
            done[_identity(entry)] = entry
            print(f"{number}/{len(runs)} {entry['arm']} {entry['space']} {entry['cpu_s']} s")
    entries = [done[_identity(_key(space, arm, seeds, budget))] for arm, space in wanted]
    result = summary(entries, budget)
    curves = result.pop("curves")
    if arguments.out:
        draw(curves, arguments.out)
    report({**result, "seeds": seeds}, arguments)


if __name__ == "__main__":
    main()
