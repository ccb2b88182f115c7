"""Compare arms that differ in one part: what each finds and spends, and what that proves.

Every arm runs on the same problem through the search loop with as much as possible in common. The
statistics are paired over seeds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile

import numpy as np

from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec, Measured, RunSpec, Settled
from kernelcast.judge.curves import best_so_far, mean_interval
from kernelcast.judge.sharing import SharedFarm, SharedProposer
from kernelcast.parts import Parts
from kernelcast.protocols import Farm, Following
from kernelcast.run import Run
from kernelcast.search import INTERRUPTED, Search
from kernelcast.store import Store
from kernelcast.tape import Tape
from kernelcast.types import (
    Budget,
    Measurement,
    Problem,
    Proposals,
    Resource,
    Spend,
    content_hash,
)

ADVISED_SEEDS = 10
TIE_LOG2 = math.log2(1.02)  # a smaller difference counts as none
_CONFIDENCE = 0.95
_MOST_SEEDS_ADVISED = 200


# --------------------------------------------------------------------------------- running the arms


@dataclass(frozen=True)
class Plan:
    """A comparison to run: each arm searches the problem once per seed.

    `arms` are the components of each arm by its name; a component that is missing is the default.
    The backend and the farm come from the caller of `run_plan`.
    """

    problem: Problem
    arms: Mapping[str, Mapping[str, ComponentSpec]]
    seeds: int = ADVISED_SEEDS
    measurements: int = 40
    inspect: bool = False

    def __post_init__(self) -> None:
        if len(self.arms) < 2:
            raise SetupError("a comparison needs two arms or more, for example selective,top_k")

    def spec(self, arm: str, seed: int) -> RunSpec:
        """Return the specification of a run, which pays for every measurement."""
        components = dict(self.arms[arm])
        return RunSpec(seed=seed, inspect=self.inspect, reuse=False, components=components)

    def run_name(self, arm: str, seed: int, farm: Farm) -> str:
        """Return the name of a run, with a hash of everything that its outcome depends on."""
        identity = (
            self.problem.model_dump_json(),
            self.spec(arm, seed).model_dump_json(),
            str(self.measurements),
            farm.device.id,
            farm.toolchain,
        )
        short = re.sub(r"\W+", "-", arm)[:40]
        return f"{self.problem.name[:40]}-{short}-{seed}-{content_hash(' '.join(identity))[:10]}"


@dataclass(frozen=True)
class Cost:
    """Device seconds, and dollars paid for models."""

    device_s: float = 0.0
    forecast_usd: float = 0.0
    proposal_usd: float = 0.0

    def __add__(self, spend: Spend) -> Cost:
        return Cost(
            self.device_s + spend.get(Resource.DEVICE_S, 0.0),
            self.forecast_usd + spend.get(Resource.FORECAST_USD, 0.0),
            self.proposal_usd + spend.get(Resource.PROPOSAL_USD, 0.0),
        )

    def usd(self, device_usd_per_hour: float) -> float:
        """Return the total in dollars at this price of the device."""
        device_usd = self.device_s / 3600.0 * device_usd_per_hour
        return device_usd + self.forecast_usd + self.proposal_usd


@dataclass(frozen=True)
class Outcome:
    """One run of an arm.

    `curve[i]` is the best log2 speedup after `i + 1` measurements. `improvements` are the cost so
    far and the log2 speedup at each new best. `unknown` is true if the cost is an upper bound.
    """

    arm: str
    seed: int
    run: str
    kernel_id: str
    log2_speedup: float
    curve: tuple[float, ...]
    improvements: tuple[tuple[Cost, float], ...]
    cost: Cost
    considered: int
    measured: int
    unknown: bool = False

    @classmethod
    def of(cls, arm: str, seed: int, run: Run) -> Outcome:
        """Read the outcome from a run's events."""
        cost, best, unknown = Cost(), 0.0, False
        improvements: list[tuple[Cost, float]] = []
        for event in run.events("settled", "measured"):
            if isinstance(event, Settled):
                cost += event.spend
                unknown |= event.unknown
            elif isinstance(event, Measured) and (event.confirmed_log2 or 0.0) > best:
                best = event.confirmed_log2 or 0.0
                improvements.append((cost, best))
        state = run.state
        return cls(
            arm=arm,
            seed=seed,
            run=run.name,
            kernel_id=state.incumbent.kernel_id,
            log2_speedup=state.incumbent.log2_speedup,
            curve=tuple(best_so_far(run)),
            improvements=tuple(improvements),
            cost=cost,
            considered=state.considered,
            measured=state.measured,
            unknown=unknown,
        )

    def best_for(self, usd: float, device_usd_per_hour: float) -> float:
        """Return the best log2 speedup that was confirmed within this cost."""
        rate = device_usd_per_hour
        return max((best for cost, best in self.improvements if cost.usd(rate) <= usd), default=0.0)


RunsSearch = Callable[[Search, Budget, str], object]


def run_plan(
    plan: Plan,
    farm: Farm,
    store: Store,
    *,
    tape: Tape[Proposals] | None = None,
    run: RunsSearch | None = None,
) -> Comparison:
    """Run every arm with every seed, except for runs that the store holds complete.

    Ctrl-C ends the comparison; the interrupted run does not count. The next call repeats it, and
    reuses the measurements of its seed.

    Args:
        plan: What to compare.
        farm: Farm that measures; the caller closes it.
        store: Store of the runs.
        tape: Answers of models, for all arms.
        run: Function that runs one search with a budget under a title.
    """
    tape = tape or Tape(Proposals)
    run = run or (lambda search, budget, _title: search.run(budget))
    outcomes: list[Outcome] = []
    names = list(plan.arms)
    for seed in range(plan.seeds):
        known = _known(plan, farm, store, seed)
        # Each seed begins with another arm, because the first arm meets a colder machine.
        for arm in (*names[seed % len(names) :], *names[: seed % len(names)]):
            name, is_complete = _next_run(store, plan.run_name(arm, seed, farm))
            if not is_complete:
                spec = plan.spec(arm, seed)
                parts = _parts(plan, arm, SharedFarm(farm, known), seed, tape)
                search = Search(plan.problem, parts, store, spec=spec, name=name)
                title = f"{plan.problem.name}, {arm}, seed {seed + 1} of {plan.seeds}"
                run(search, Budget(measurements=plan.measurements), title)
                if search.state.ended == INTERRUPTED:
                    return Comparison(plan, tuple(outcomes))
            outcomes.append(Outcome.of(arm, seed, _opened(store, name)))
    return Comparison(plan, tuple(outcomes))


def _known(plan: Plan, farm: Farm, store: Store, seed: int) -> dict[tuple[str, str], Measurement]:
    """Return the measurements of this seed by purpose and kernel; seeds stay independent."""
    known: dict[tuple[str, str], Measurement] = {}
    for arm in plan.arms:
        for name in _attempts(store, plan.run_name(arm, seed, farm)):
            for event in _opened(store, name).events("measured"):
                assert isinstance(event, Measured)
                known.setdefault((event.purpose, event.measurement.kernel_id), event.measurement)
    return known


def _next_run(store: Store, base: str) -> tuple[str, bool]:
    """Return the name of the complete run and True, or the name for a new run and False."""
    attempts = _attempts(store, base)
    for name in attempts:
        if _opened(store, name).state.ended not in (None, INTERRUPTED):
            return name, True
    return (f"{base}-{len(attempts) + 1}" if attempts else base), False


def _opened(store: Store, name: str) -> Run:
    """Return a run that was written here: others are neither compared nor repeated."""
    run = store.open_run(name)
    run.check_own()
    return run


def _attempts(store: Store, base: str) -> list[str]:
    """Return the names of a run and its repetitions in the store, oldest first."""
    stored = {info.name for info in store.runs()}
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return list(takewhile(stored.__contains__, names))


def _parts(plan: Plan, arm: str, farm: Farm, seed: int, tape: Tape[Proposals]) -> Parts:
    components = plan.arms[arm]
    parts = Parts.build(components, plan.problem, farm)
    if isinstance(parts.proposer, Following):  # It depends on its own run: nothing can be shared.
        return parts
    identity = content_hash(repr(components.get("proposer")))[:10]
    return replace(parts, proposer=SharedProposer(parts.proposer, seed, tape, identity))


# ---------------------------------------------------------------------------------- what it proves


@dataclass(frozen=True)
class Paired:
    """Log2 differences of two arms, one per seed, with their mean and its Student interval.

    `wins` and `losses` are the seeds in which the first arm did better or worse by more than 2%.
    """

    differences: tuple[float, ...]
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[float], confidence: float = _CONFIDENCE) -> Paired:
        """Build from one difference per seed; a single one has an infinite interval."""
        mean, low, high = map(float, mean_interval(differences, confidence))
        return cls(tuple(differences), mean, low, high)

    @property
    def wins(self) -> int:
        """Seeds that the first arm won."""
        return sum(difference > TIE_LOG2 for difference in self.differences)

    @property
    def losses(self) -> int:
        """Seeds that the first arm lost."""
        return sum(difference < -TIE_LOG2 for difference in self.differences)

    @property
    def ties(self) -> int:
        """Seeds without a winner."""
        return len(self.differences) - self.wins - self.losses

    def verdict(self, arm: str, against: str) -> str:
        """Return a one-sentence verdict, or 'no verdict'."""
        seeds = len(self.differences)
        if seeds < 2:
            return f"no verdict: {seeds} seeds in which all arms are complete tell nothing"
        ratio = f"{2.0**self.mean:.3f}x ({2.0**self.low:.3f}x to {2.0**self.high:.3f}x)"
        counts = f"won {self.wins}, tied {self.ties} and lost {self.losses} of {seeds} seeds"
        few = "" if seeds >= ADVISED_SEEDS else f"; {seeds} seeds are few, take {ADVISED_SEEDS}"
        if self.low > -TIE_LOG2 and self.high < TIE_LOG2:
            verdict = f"{arm} and {against} find the same, within 2%: {ratio}"
        elif self.low > 0.0 and self.wins > self.losses:
            verdict = f"{arm} finds faster kernels than {against}: {ratio}"
        elif self.high < 0.0 and self.losses > self.wins:
            verdict = f"{arm} finds slower kernels than {against}: {ratio}"
        else:
            verdict = f"no verdict between {arm} and {against}: {ratio}{self._advice()}"
        return f"{verdict}; {arm} {counts}{few}"

    def _advice(self) -> str:
        """Say how many seeds might settle a difference of this size."""
        if not self.low <= 0.0 <= self.high:
            return ", but not in most seeds"
        spread = float(np.std(self.differences, ddof=1))
        needed = math.ceil((1.96 * spread / abs(self.mean)) ** 2) if self.mean else math.inf
        if needed > _MOST_SEEDS_ADVISED:
            return ", and more seeds would hardly tell them apart"
        needed = max(int(needed), len(self.differences) + 1)
        return f"; about {needed} seeds would settle a difference of this size"


@dataclass(frozen=True)
class Comparison:
    """The outcomes of all arms; statistics use the seeds in which every arm is complete."""

    plan: Plan
    outcomes: tuple[Outcome, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in which every arm is complete."""
        arms = Counter(outcome.seed for outcome in self.outcomes)
        return tuple(sorted(seed for seed, runs in arms.items() if runs == len(self.plan.arms)))

    @property
    def complete(self) -> bool:
        """True if no run is left."""
        return len(self.seeds) == self.plan.seeds

    @property
    def baseline(self) -> str:
        """The last arm, against which the others are compared."""
        return list(self.plan.arms)[-1]

    @property
    def challengers(self) -> list[str]:
        """All other arms."""
        return list(self.plan.arms)[:-1]

    def of(self, arm: str) -> list[Outcome]:
        """Return the outcomes of an arm in the order of the complete seeds."""
        runs = (run for run in self.outcomes if run.arm == arm and run.seed in self.seeds)
        return sorted(runs, key=lambda run: run.seed)

    def at_equal_measurements(self, arm: str) -> Paired:
        """Compare an arm with the baseline after as many measurements."""
        return self._paired(arm, lambda ours, theirs: ours.log2_speedup - theirs.log2_speedup)

    def at_equal_cost(self, arm: str, device_usd_per_hour: float) -> Paired:
        """Compare an arm with the baseline, each at the total cost of the cheaper run."""
        rate = device_usd_per_hour

        def difference(ours: Outcome, theirs: Outcome) -> float:
            usd = min(ours.cost.usd(rate), theirs.cost.usd(rate))
            return ours.best_for(usd, rate) - theirs.best_for(usd, rate)

        return self._paired(arm, difference)

    def _paired(self, arm: str, difference: Callable[[Outcome, Outcome], float]) -> Paired:
        pairs = zip(self.of(arm), self.of(self.baseline), strict=True)
        # All intervals together hold with the confidence (Bonferroni).
        confidence = 1.0 - (1.0 - _CONFIDENCE) / len(self.challengers)
        return Paired.of([difference(*pair) for pair in pairs], confidence)
