"""Strategies with and without forecasts, and what a bound on missed winners holds and costs.

Run: python bench/search_replay.py [--quick] [--seeds 24] [--jobs 2] [--out FILE]
Recorded tuner spaces are searched through the one loop with 100 measurements; seeds take the spaces
by turns, all arms the same. Each strategy runs twice: measuring whatever it is proposed, and
choosing by forecasts (`selective`). Beside them is the proposer `tuner`, the default. A score is
best recorded time / best found time after 25, 50 and 100 measurements, the mean over seeds. The
policy `conformal` is given targets for the share of candidates turned away unmeasured that would
have been a new best; the recording knows which were. A target is held if the observed rate is no
higher than what a binomial of the target's rate stays below with 95%. A target of 1% takes 99
audits before anything may be turned away at all, so that arm makes 250 measurements. What the bound
costs is told by how many measurements `selective` needs to find as much. The last line is one JSON
object.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product, repeat
from statistics import fmean
from typing import Any

from scipy.stats import binom, binomtest

from _data import tuner_spaces
from _result import bench_parser, report
from kernelcast import plugins
from kernelcast.backends.replay import Recording, space_problem
from kernelcast.canonical import canonical_parameters
from kernelcast.events import ComponentSpec, Decided, Measured
from kernelcast.judge.curves import drawn_out
from kernelcast.judge.replaying import Arm, Replayed, replay_space
from kernelcast.processes import workers
from kernelcast.proposers.pool import PoolProposer
from kernelcast.proposers.template import configured_kernel
from kernelcast.proposers.tuner import TunerProposer
from kernelcast.run import Run
from kernelcast.store import Store
from recalibration import recording_of

STRATEGIES = ("puct", "greedy", "islands", "best_of_n")
TARGETS = (0.01, 0.05, 0.10)
BUDGETS = (25, 50, 100)
LONG = 250  # measurements of the arm with the tightest target
USUAL, TUNER = "puct/selective", "tuner"
CONFIDENCE = 0.95
# Different problems and vendors; large, so that a search does not see all of a space.
SPACES = (
    "dedispersion_milo@A100",
    "gemm@RTX 3060",
    "convolution@RTX 3090",
    "hotspot_milo_random@RTX A4000",
    "dedispersion_milo@MI250X",
    "gemm_milo_random@A100",
)
SEEDS, QUICK_SEEDS = 24, 1


def _policy(spec: ComponentSpec, *, streamed: bool) -> Any:
    del streamed
    return plugins.build("policy", spec)


def arm_of(name: str, policy: ComponentSpec, strategy: str = "puct") -> Arm:
    """An arm by the names of its parts; who measures everything needs no forecasts."""
    forecaster = "roofline" if policy.name == "measure_all" else "trees"
    return Arm(
        name,
        partial(_policy, policy),
        partial(plugins.build, "forecaster", ComponentSpec(name=forecaster)),
        partial(plugins.build, "strategy", ComponentSpec(name=strategy)),
    )


def arms() -> list[Arm]:
    """Every strategy with and without forecasts, the tuner, then the bound at each target."""
    found = [
        arm_of(f"{strategy}/{policy}", ComponentSpec(name=policy), strategy)
        for strategy in STRATEGIES
        for policy in ("measure_all", "selective")
    ]
    found.append(arm_of(TUNER, ComponentSpec(name="measure_all")))
    found += [
        arm_of(
            f"conformal/{each:g}", ComponentSpec(name="conformal", options={"miss_target": each})
        )
        for each in TARGETS
    ]
    return found


def pool_of(recording: Recording) -> PoolProposer:
    """All kernels of a recording, rendered once for all runs."""
    problem = space_problem(recording)
    template = problem.template
    assert template is not None
    return PoolProposer(
        [
            configured_kernel(problem, template, {name: each[name] for name in template.parameters})
            for each in recording.configurations
        ]
    )


def run_space(
    label: str, seeds: Sequence[int], measurements: int, longest: int
) -> tuple[list[Replayed], dict[str, list[tuple[int, int]]]]:
    """All arms with these seeds; and by arm, what each run turned away and missed.

    The tightest target is given `longest` measurements, all others `measurements`.
    """
    recording = recording_of(next(space for space in tuner_spaces() if space.label == label))
    replayed: list[Replayed] = []
    missed: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    pool = pool_of(recording)
    for arm, seed in product(arms(), seeds):
        tightest = arm.name == f"conformal/{min(TARGETS):g}"
        with Store.open("sqlite://") as store:
            replayed.append(
                replay_space(
                    store,
                    "run",
                    recording,
                    arm,
                    measurements=longest if tightest else measurements,
                    seed=seed,
                    proposer=TunerProposer(configurations=recording.configurations)
                    if arm.name == TUNER
                    else pool,
                )
            )
            missed[arm.name].append(missed_winners(store.open_run("run"), recording))
    return replayed, missed


def missed_winners(run: Run, recording: Recording) -> tuple[int, int]:
    """Count the candidates that a replayed run turned away, and the new bests among them.

    A candidate is turned away if it was dropped or trusted, so never measured. It is a new best if
    it is faster, as recorded, than the best confirmed at that time.
    """
    best, turned_away, missed = 0.0, 0, 0
    reference_s = recording.entries[recording.reference].runtime_s
    assert reference_s is not None
    for event in run.events("decided", "measured"):
        if isinstance(event, Measured) and (confirmed := event.confirmed_log2) is not None:
            best = max(best, confirmed)
        elif isinstance(event, Decided) and event.decision.action in ("drop", "trust"):
            turned_away += 1
            parameters = run.store.kernel(event.kernel_id).parameters
            key = event.kernel_id if parameters is None else canonical_parameters(parameters)
            runtime_s = recording.entries[key].runtime_s
            missed += runtime_s is not None and math.log2(reference_s / runtime_s) > best
    return turned_away, missed


def curve_of(runs: Sequence[Replayed]) -> list[float]:
    """Mean fraction of the best recorded after each measurement."""
    longest = max(len(run.curve) for run in runs)
    means: list[float] = drawn_out([run.curve for run in runs], longest).mean(axis=0).tolist()
    return means


def misses(counts: Sequence[tuple[int, int]], target: float | None) -> dict[str, Any]:
    """The observed rate with its exact 95% interval, and whether it keeps to the target."""
    turned_away, missed = (sum(each) for each in zip(*counts, strict=True))
    rate = missed / turned_away if turned_away else 0.0
    low, high = 0.0, 1.0
    if turned_away:
        low, high = binomtest(missed, turned_away).proportion_ci(CONFIDENCE, method="exact")
    facts: dict[str, Any] = {
        "turned_away": turned_away,
        "missed": missed,
        "rate": round(rate, 5),
        "low": round(float(low), 5),
        "high": round(float(high), 5),
        "runs_that_missed": sum(each > 0 for _, each in counts),
        "runs": len(counts),
    }
    if target is not None:
        allowed = float(binom.ppf(CONFIDENCE, turned_away, target)) / max(1, turned_away)
        # Who turns nobody away holds any target, and has shown nothing.
        facts |= {
            "allowed": round(allowed, 5),
            "held": rate <= allowed,
            "vacuous": not turned_away,
        }
    return facts


def reached(curve: Sequence[float], score: float) -> int | None:
    """The measurements after which a curve is at this score; None where it never is."""
    return next((count for count, each in enumerate(curve, 1) if each >= score), None)


def summary(
    replayed: Sequence[Replayed],
    missed: Mapping[str, Sequence[tuple[int, int]]],
) -> dict[str, Any]:
    """Scores by strategy, and the bound's rates and costs."""
    by_arm: defaultdict[str, list[Replayed]] = defaultdict(list)
    for run in replayed:
        by_arm[run.arm].append(run)
    curves = {arm: curve_of(runs) for arm, runs in by_arm.items()}
    usual = curves[USUAL]

    def scores(arm: str) -> dict[str, float]:
        return {str(budget): round(curves[arm][:budget][-1], 4) for budget in BUDGETS}

    conformal = {}
    for target in TARGETS:
        arm = f"conformal/{target:g}"
        conformal[f"{target:g}"] = {
            **misses(missed[arm], target),
            "found": scores(arm),
            "selective_needs": {
                str(budget): reached(usual, curves[arm][:budget][-1]) for budget in BUDGETS
            },
            "lost_to_selective": {
                str(budget): round(1.0 - curves[arm][:budget][-1] / usual[:budget][-1], 4)
                for budget in BUDGETS
            },
        }
    return {
        "strategies": {
            strategy: {
                "without": scores(f"{strategy}/measure_all"),
                "with": scores(f"{strategy}/selective"),
            }
            for strategy in STRATEGIES
        },
        "tuner": scores(TUNER),
        "conformal": conformal,
        "targets_held": sum(each["held"] for each in conformal.values()),
        "of_these_vacuous": sum(each["vacuous"] for each in conformal.values()),
        "selective": {**misses(missed[USUAL], None), "found": scores(USUAL)},
        "spaces": {
            where: {
                arm: [
                    round(fmean(run.curve[:budget][-1] for run in runs if run.where == where), 4)
                    for budget in BUDGETS
                ]
                for arm, runs in by_arm.items()
            }
            for where in dict.fromkeys(run.where for run in replayed)
        },
    }


def main() -> None:
    """Print a row a space, and the figures over all of them."""
    parser = bench_parser(__doc__, quick="one space, one seed, 25 measurements")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes; figures do not depend on it"
    )
    options = parser.parse_args()
    seeds = QUICK_SEEDS if options.quick else options.seeds
    labels = SPACES[:1] if options.quick else SPACES
    measurements, longest = (min(BUDGETS),) * 2 if options.quick else (max(BUDGETS), LONG)
    started = time.perf_counter()
    replayed: list[Replayed] = []
    missed: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    with workers(options.jobs) as pool:
        turns = [range(turn, seeds, len(labels)) for turn in range(len(labels))]
        done = pool.map(run_space, labels, turns, repeat(measurements), repeat(longest))
        for label, (runs, counts) in zip(labels, done, strict=True):
            replayed += runs
            for arm, each in counts.items():
                missed[arm] += each
            print(
                f"{label}: {len(runs)} runs, {time.perf_counter() - started:.0f} s so far",
                file=sys.stderr,
                flush=True,
            )
    result = summary(replayed, missed)
    for strategy, each in result["strategies"].items():
        print(f"{strategy:10} without {each['without']}  with {each['with']}")
    print(f"{TUNER:10} {result['tuner']}")
    for target, each in result["conformal"].items():
        print(
            f"conformal {target}: missed {each['missed']} of {each['turned_away']} turned away "
            f"({each['rate']:.2%}, allowed {each['allowed']:.2%}), found {each['found']}"
        )
    report({**result, "seeds": seeds, "seconds": round(time.perf_counter() - started)}, options)


if __name__ == "__main__":
    main()
