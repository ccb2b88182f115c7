"""Tuner spaces: how near to the optimum a search comes with few measurements, arm beside arm.

One GPU is left out at a time; a search measures configurations of that space one by one. Arms:
cold (nothing known), sparse (300 random configurations on each other GPU), full (all of them),
other_vendor (full, of the other vendor only), sibling_mean (no model: in the order of the mean of
the other GPUs' times, of the same vendor where there is one), random, Optuna's TPE and GP samplers,
and Kernel Tuner's own strategies. Hostile arms know times that mislead: those of full permuted,
reversed (the slowest is told to be the fastest), or of another kernel. All of ours go through
`Tuner`. Arms that end in _seconds choose by improvement per device second, where those were
recorded. Where no other GPU of the vendor ran the problem, the vendor's GPUs that ran the same
kernel at another size stand in. A score is best possible time / best found time.

`coverage` is of 80% intervals over configurations that were not measured: the share of spaces in
which they hold 74% to 88% of the times. `auroc_failure` is over the same configurations, in spaces
of which 5% or more fail; `failed_share` is the part of 50 measurements there that failed.
`suggest_ms` is CPU per suggestion, in the worst space of 10,000 configurations or more.

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
from kernelcast import Tuner, tuner
from kernelcast.canonical import canonical_parameters
from kernelcast.forecasters import _belief, _encoding, _failures, _gaussian, _prior
from kernelcast.forecasters import space as space_forecaster
from kernelcast.processes import workers
from kernelcast.scoring import auroc

BUDGETS = (5, 10, 25, 50, 100, 200)
OURS = ("cold", "sparse", "full", "other_vendor")
HOSTILE = ("hostile_permuted", "hostile_reversed", "hostile_kernel")
PER_SECOND = ("cold_seconds", "full_seconds")
OPTUNA = {"optuna_tpe": 100, "optuna_gp": 50}
"""Samplers of Optuna, and how many measurements they make: they take 0.01 and 0.2 s for one."""
TUNED = OURS + HOSTILE + PER_SECOND
PLAIN = ("sibling_mean", "random", *OPTUNA)
KERNEL_TUNER = "kernel_tuner/"
_SPARSE_ROWS = 300
_INFORMED_BUDGET = 50  # measurements of an arm that knows other GPUs: it is there by then
_NEAR_ENOUGH = 0.95
_JUDGED_AT = (25, 50, 100)  # measurements after which forecasts are judged
_JUDGED_ARMS = ("cold", "sparse", "full")
_JUDGED_ROWS = 1000  # configurations drawn for it
_COVERED = (0.74, 0.88)  # by an 80% interval
_OFTEN_FAILING = 0.05
_LARGE_SPACE = 10_000
_OPTUNA_TRIES = 30

Times = dict[str, float | None]
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


def known_times(space: Space, arm: str, seed: int) -> dict[str, Times]:
    """What an arm may know of the space before it measures: seconds by device."""
    if arm == "cold":
        return {}
    if arm == "hostile_kernel":
        return _of_another_kernel(space, seed)
    known = {}
    for number, (other, times) in enumerate(tables(space)):
        if arm == "other_vendor" and (
            other.vendor == space.vendor or other.problem != space.problem
        ):
            continue
        if arm == "sparse":
            rng = np.random.default_rng([seed, number, 300])
            kept = np.flatnonzero(~np.isnan(times))
            kept = rng.choice(kept, size=min(_SPARSE_ROWS, len(kept)), replace=False)
            sampled = np.full(len(times), np.nan)
            sampled[kept] = times[kept]
            times = sampled
        elif arm == "hostile_permuted":
            # The same permutation for all, so that they agree with one another.
            times = times[np.random.default_rng([seed, 77]).permutation(len(times))]
        elif arm == "hostile_reversed":
            times = times.copy()
            order = np.flatnonzero(np.isfinite(times))
            order = order[np.argsort(times[order], kind="stable")]
            times[order] = times[order][::-1]
        known[f"{other.gpu} ({other.label})"] = _seconds(space, times)
    return known


def _of_another_kernel(space: Space, seed: int) -> dict[str, Times]:
    """Times of one problem of another family, each of its configurations standing for some."""
    rng = np.random.default_rng([seed, 78])
    problems = sorted({other.problem for other in spaces() if other.family != space.family})
    problem = problems[int(rng.integers(len(problems)))]
    others = [other for other in spaces() if other.problem == problem]
    rows = rng.integers(min(len(other.keys) for other in others), size=len(space.keys))
    return {
        f"{other.gpu} ({other.label})": _seconds(space, other.runtime_ms[rows]) for other in others
    }


def _seconds(space: Space, times_ms: Floats) -> Times:
    return {
        key: ms * 1e-3 if np.isfinite(ms) else None
        for key, ms in zip(space.keys, times_ms.tolist(), strict=True)
        if not np.isnan(ms)
    }


# ------------------------------------------------------------------------------------------ arms


def run(space: Space, arm: str, seed: int, budget: int) -> list[int]:
    """The configurations that an arm measures, in order."""
    budget = min(budget, len(space.keys))
    if arm == "random":
        drawn = np.random.default_rng([seed, 1]).permutation(len(space.keys))
        return [int(index) for index in drawn[:budget]]
    if arm == "sibling_mean":
        order = np.argsort(_sibling_mean(space), kind="stable")
        return [int(index) for index in order[:budget]]
    if arm in OPTUNA:
        return _by_optuna(space, arm, seed, min(budget, OPTUNA[arm]))
    import _kernel_tuner

    return _kernel_tuner.run(space, arm.removeprefix(KERNEL_TUNER), seed, budget)


def searched(
    space: Space,
    seed: int,
    budget: int,
    known: dict[str, Times] | None = None,
    *,
    estimates: Times | None = None,
    per_second: bool = False,
    judged_at: Sequence[int] = (),
) -> dict[str, Any]:
    """The configurations that the tuner measures, in order, and its forecasts judged."""
    tuner = Tuner(
        space.configurations,
        device=space.gpu,
        known=known,
        estimates=estimates,
        seed=seed,
        per_second=per_second,
    )
    rows = {key: row for row, key in enumerate(space.keys)}
    chosen: list[int] = []
    judged: dict[str, dict[str, float | None]] = {}
    suggest_s = 0.0
    while len(chosen) < budget:
        began = time.process_time()
        (trial,) = tuner.suggest()
        suggest_s += time.process_time() - began
        index = rows[canonical_parameters(trial.configuration)]
        chosen.append(index)
        ms = float(space.runtime_ms[index])
        cost_s = None if space.device_s is None else float(space.device_s[index])
        tuner.report(
            trial,
            seconds=ms * 1e-3 if np.isfinite(ms) else None,
            failed=not np.isfinite(ms),
            cost_s=None if cost_s is None or np.isnan(cost_s) else cost_s,
        )
        if len(chosen) in judged_at:
            judged[str(len(chosen))] = _judged(space, tuner, chosen, seed)
    return {"indices": chosen, "judged": judged, "suggest_s": suggest_s}


def _judged(
    space: Space, tuner: Tuner, measured: Sequence[int], seed: int
) -> dict[str, float | None]:
    """Coverage of 80% intervals and AUROC of failure over configurations not measured."""
    unseen = np.setdiff1d(np.arange(len(space.keys)), measured)
    rng = np.random.default_rng([seed, 80])
    drawn = rng.choice(unseen, size=min(_JUDGED_ROWS, len(unseen)), replace=False)
    forecasts = tuner.forecast([space.configurations[row] for row in drawn])
    seconds = space.runtime_ms[drawn] * 1e-3
    failed = np.isinf(seconds)
    low, high = np.array([forecast.interval_s for forecast in forecasts]).T
    inside = ((seconds >= low) & (seconds <= high))[~failed]
    p_failure = np.array([1 - forecast.p_ok for forecast in forecasts])
    fails_often = np.isinf(space.runtime_ms).mean() >= _OFTEN_FAILING
    return {
        "coverage": float(inside.mean()),
        "auroc_failure": auroc(p_failure, failed) if fails_often else None,
    }


def _by_optuna(space: Space, arm: str, seed: int, budget: int) -> list[int]:
    """Optuna's sampler over the values of each parameter; what the space lacks is told as failed.

    The GP sampler forgets failures and asks for their like again, so it is told that they are as
    slow as the slowest.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = {key: row for row, key in enumerate(space.keys)}
    distributions: Any = {
        name: optuna.distributions.CategoricalDistribution(
            sorted({configuration[name] for configuration in space.configurations})
        )
        for name in space.parameters
    }
    fixed = {
        name: value
        for name, value in space.configurations[0].items()
        if name not in space.parameters
    }
    samplers = {"optuna_tpe": optuna.samplers.TPESampler, "optuna_gp": optuna.samplers.GPSampler}
    study = optuna.create_study(sampler=samplers[arm](seed=seed))
    slowest = -np.inf
    rng = np.random.default_rng([seed, 81])
    chosen: dict[int, None] = {}
    while len(chosen) < budget:
        for _ in range(_OPTUNA_TRIES):
            trial = study.ask(distributions)
            row = rows.get(canonical_parameters({**fixed, **trial.params}))
            ms = np.inf if row is None else float(space.runtime_ms[row])
            if np.isfinite(ms):
                slowest = max(slowest, float(np.log2(ms)))
                study.tell(trial, float(np.log2(ms)))
            elif arm == "optuna_gp" and np.isfinite(slowest):
                study.tell(trial, slowest)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            if row is not None and row not in chosen:
                chosen[row] = None
                break
        else:
            free = np.setdiff1d(np.arange(len(space.keys)), list(chosen))
            chosen[int(rng.choice(free))] = None
    return list(chosen)


def _sibling_mean(space: Space) -> Floats:
    others = tables(space)
    kin = [times for other, times in others if other.vendor == space.vendor]
    times_ms = np.array(kin or [times for _, times in others])
    fails = np.isinf(times_ms).any(axis=0)
    above = np.log2(np.where(np.isinf(times_ms), np.nan, times_ms))
    above -= np.nanmin(above, axis=1, keepdims=True)
    counted = np.isfinite(above).sum(axis=0)
    mean = np.nansum(above, axis=0) / np.maximum(counted, 1)
    # Unknown everywhere goes with the average; a failure anywhere goes last.
    order: Floats = np.where(counted == 0, np.nanmean(above), mean) + 1e3 * fails
    return order


def admitted(space: Space, arm: str) -> bool:
    """Whether an arm has anything to go by on a space."""
    if arm in PER_SECOND and space.device_s is None:
        return False
    arm = arm.removesuffix("_seconds")
    others = siblings_of(space, spaces())
    if arm in ("sparse", "full", "sibling_mean", "hostile_permuted", "hostile_reversed"):
        return bool(others)
    if arm == "other_vendor":
        return any(each.vendor != space.vendor for each in others)
    return True


def _reach(arm: str, budget: int) -> int:
    """How many measurements an arm makes."""
    if arm in OPTUNA:
        return min(budget, OPTUNA[arm])
    informed = arm.startswith(("sparse", "full", "other_vendor", "hostile"))
    return min(budget, _INFORMED_BUDGET) if informed else budget


def _job(arm: str, label: str, seeds: int, budget: int) -> dict[str, Any]:
    space = next(each for each in spaces() if each.label == label)
    began = time.process_time()
    reach = _reach(arm, budget)
    entry: dict[str, Any] = _key(space, arm, seeds, budget)
    if arm in TUNED:
        size = min(reach, len(space.keys))
        runs = [
            searched(
                space,
                seed,
                size,
                known_times(space, arm.removesuffix("_seconds"), seed),
                per_second=arm in PER_SECOND,
                judged_at=_JUDGED_AT if arm in _JUDGED_ARMS else (),
            )
            for seed in range(seeds)
        ]
        entry["indices"] = [run["indices"] for run in runs]
        entry["judged"] = [run["judged"] for run in runs]
        entry["suggest_ms"] = 1e3 * float(np.mean([run["suggest_s"] for run in runs])) / size
    else:
        entry["indices"] = [run(space, arm, seed, reach) for seed in range(seeds)]
    return {**entry, "cpu_s": round(time.process_time() - began, 2)}


def _key(space: Space, arm: str, seeds: int, budget: int) -> dict[str, Any]:
    return {
        "arm": arm,
        "space": space.label,
        "fingerprint": space.fingerprint,
        "seeds": seeds,
        "budget": _reach(arm, budget),
        "version": _version() if arm in TUNED else "",
    }


@cache
def _version() -> str:
    """Changes with the forecaster's code: whether what it chose still holds."""
    modules = (tuner, space_forecaster, _belief, _failures, _prior, _encoding, _gaussian)
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
    result["hostile"] = _against_cold(curves, points)
    result |= _forecasts_judged(entries, by_label)
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


def _against_cold(
    curves: dict[str, dict[str, NDArray[np.float64]]], points: Sequence[int]
) -> dict[str, Any]:
    """What misleading times cost against knowing nothing: the mean and the worst over spaces."""
    result: dict[str, Any] = {}
    for arm in HOSTILE:
        shared = sorted(curves.get(arm, {}).keys() & curves.get("cold", {}).keys())
        for point in points:
            change = {
                label: float(curves[arm][label][point - 1] - curves["cold"][label][point - 1])
                for label in shared
                if point <= len(curves[arm][label])
            }
            if change:
                mean = result.setdefault("mean", {}).setdefault(arm.removeprefix("hostile_"), {})
                worst = result.setdefault("worst", {}).setdefault(arm.removeprefix("hostile_"), {})
                mean[str(point)] = round(float(np.mean(list(change.values()))), 4)
                worst[str(point)] = round(min(change.values()), 4)
    for kind, pick in (("mean", min), ("worst", min)):
        for point in points:
            values = [by[str(point)] for by in result.get(kind, {}).values() if str(point) in by]
            if values:
                result.setdefault(f"least_{kind}", {})[str(point)] = pick(values)
    return result


def _forecasts_judged(
    entries: Sequence[dict[str, Any]], by_label: dict[str, Space]
) -> dict[str, Any]:
    """Coverage and AUROC of failure by arm and number of measurements, failures, and CPU."""
    coverage: dict[str, dict[str, dict[str, float]]] = {}
    aurocs: dict[str, dict[str, list[float]]] = {}
    wasted: dict[str, list[float]] = {}
    suggest_ms: dict[str, float] = {}
    for entry in entries:
        arm, space = entry["arm"], by_label[entry["space"]]
        for point in {point: None for run in entry.get("judged", ()) for point in run}:
            runs = [run[point] for run in entry["judged"]]
            covered = float(np.mean([run["coverage"] for run in runs]))
            coverage.setdefault(arm, {}).setdefault(point, {})[space.label] = round(covered, 3)
            told = [run["auroc_failure"] for run in runs if run["auroc_failure"] is not None]
            if told:
                aurocs.setdefault(arm, {}).setdefault(point, []).append(float(np.mean(told)))
        failed = np.isinf(space.runtime_ms)
        if arm in TUNED and failed.mean() >= _OFTEN_FAILING:
            share = np.mean([failed[run[:_INFORMED_BUDGET]].mean() for run in entry["indices"]])
            wasted.setdefault(arm, []).append(float(share))
        if "suggest_ms" in entry and len(space.keys) >= _LARGE_SPACE:
            suggest_ms[arm] = round(max(suggest_ms.get(arm, 0.0), entry["suggest_ms"]), 1)
    low, high = _COVERED
    return {
        "coverage": {
            arm: {
                point: round(float(np.mean([low <= c <= high for c in by_space.values()])), 3)
                for point, by_space in by_point.items()
            }
            for arm, by_point in coverage.items()
        },
        "coverage_spaces": coverage,
        "auroc_failure": {
            arm: {point: round(float(np.mean(values)), 4) for point, values in by_point.items()}
            for arm, by_point in aurocs.items()
        },
        "failed_share": {arm: round(float(np.mean(shares)), 4) for arm, shares in wasted.items()},
        "suggest_ms": suggest_ms,
    }


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
    arms = [*TUNED, *PLAIN]
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
