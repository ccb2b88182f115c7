"""Arms that differ in one part, compared: what each found and spent, and what that proves.

Belongs here: running arms on the same problem through the one loop with as much as possible in
common, and paired statistics over seeds. Nothing here decides or measures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from kernelcast import plugins
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec, Measured, RunSpec, Settled
from kernelcast.judge.curves import best_so_far, mean_interval
from kernelcast.judge.sharing import SharedFarm, SharedProposer
from kernelcast.parts import DEFAULT_PARTS, Parts
from kernelcast.protocols import Farm
from kernelcast.search import INTERRUPTED, Search
from kernelcast.store import Run, Store
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
TIE_LOG2 = math.log2(1.02)  # a difference below 2% is none that anybody would notice
_CONFIDENCE = 0.95
_MOST_SEEDS_ADVISED = 200


# --------------------------------------------------------------------------------- running the arms


@dataclass(frozen=True)
class Plan:
    """What is compared: arms by name, each with its components, on one problem.

    Each arm searches once a seed with so many measurements. What `components` leave out is the
    default; backend and farm are lent by whoever runs the plan.
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
        """How a run of this arm is put together. Nothing is reused unpaid."""
        components = dict(self.arms[arm])
        return RunSpec(seed=seed, inspect=self.inspect, reuse=False, components=components)

    def run_name(self, arm: str, seed: int, farm: Farm) -> str:
        """The name of a run, which changes with anything that its outcome depends on."""
        stated = (
            self.problem.model_dump_json(),
            self.spec(arm, seed).model_dump_json(),
            str(self.measurements),
            farm.device.id,
            farm.toolchain,
        )
        short = re.sub(r"\W+", "-", arm)[:40]
        return f"{self.problem.name[:40]}-{short}-{seed}-{content_hash(' '.join(stated))[:10]}"


@dataclass(frozen=True)
class Cost:
    """What was spent: seconds of the device, and dollars for models."""

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
        """All of it in dollars, at this price of the device."""
        device_usd = self.device_s / 3600.0 * device_usd_per_hour
        return device_usd + self.forecast_usd + self.proposal_usd


@dataclass(frozen=True)
class Outcome:
    """One run of an arm: what it found (measured twice) and what it spent.

    `found[i]` is the best by `i + 1` measurements, `course` what had been spent when each new best
    was confirmed. `unknown` where part of the cost is an upper bound.
    """

    arm: str
    seed: int
    run: str
    kernel_id: str
    log2_speedup: float
    found: tuple[float, ...]
    course: tuple[tuple[Cost, float], ...]
    cost: Cost
    considered: int
    measured: int
    unknown: bool = False

    @classmethod
    def of(cls, arm: str, seed: int, run: Run) -> Outcome:
        """Read off a run's events."""
        spent, best, unknown = Cost(), 0.0, False
        course: list[tuple[Cost, float]] = []
        for event in run.events("settled", "measured"):
            if isinstance(event, Settled):
                spent += event.spend
                unknown |= event.unknown
            elif (
                isinstance(event, Measured)
                and (confirmed := event.confirmed_log2) is not None
                and confirmed > best
            ):
                best = confirmed
                course.append((spent, best))
        state = run.state
        return cls(
            arm=arm,
            seed=seed,
            run=run.name,
            kernel_id=state.incumbent.kernel_id,
            log2_speedup=state.incumbent.log2_speedup,
            found=tuple(best_so_far(run)),
            course=tuple(course),
            cost=spent,
            considered=state.considered,
            measured=state.measured,
            unknown=unknown,
        )

    def found_for(self, usd: float, device_usd_per_hour: float) -> float:
        """Log2 speedup of the best that was confirmed before so much had been spent."""
        within = (best for cost, best in self.course if cost.usd(device_usd_per_hour) <= usd)
        return max(within, default=0.0)


RunsSearch = Callable[[Search, Budget, str], object]


def run_plan(
    plan: Plan,
    farm: Farm,
    store: Store,
    *,
    tape: Tape[Proposals] | None = None,
    run: RunsSearch | None = None,
) -> Comparison:
    """Run every arm with every seed; what the store holds complete is not run again.

    A run that was cut short is made anew, from what had been measured of its seed so far. Ctrl-C
    stops the run under way, which is then not counted. `run` runs one search under a title.
    """
    tape = tape or Tape(Proposals)
    run = run or (lambda search, budget, _title: search.run(budget))
    outcomes: list[Outcome] = []
    names = list(plan.arms)
    for seed in range(plan.seeds):
        known = _known(plan, farm, store, seed)
        # Whoever comes first finds the machine as the last seed left it: they take turns.
        for arm in (*names[seed % len(names) :], *names[: seed % len(names)]):
            name, is_done = _place(store, plan.run_name(arm, seed, farm))
            if not is_done:
                spec = plan.spec(arm, seed)
                parts = _parts(spec.components, SharedFarm(farm, known), seed, tape)
                search = Search(plan.problem, parts, store, spec=spec, name=name)
                title = f"{plan.problem.name}, {arm}, seed {seed + 1} of {plan.seeds}"
                run(search, Budget(measurements=plan.measurements), title)
                if search.state.ended == INTERRUPTED:
                    return Comparison(plan, tuple(outcomes))
            outcomes.append(Outcome.of(arm, seed, store.open_run(name)))
    return Comparison(plan, tuple(outcomes))


def _known(plan: Plan, farm: Farm, store: Store, seed: int) -> dict[tuple[str, str], Measurement]:
    """What the runs of this seed have measured, by purpose and kernel.

    Never across seeds: they are to be independent of one another.
    """
    known: dict[tuple[str, str], Measurement] = {}
    for arm in plan.arms:
        for name in _attempts(store, plan.run_name(arm, seed, farm)):
            for event in store.open_run(name).events("measured"):
                assert isinstance(event, Measured)
                known.setdefault((event.purpose, event.measurement.kernel_id), event.measurement)
    return known


def _place(store: Store, base: str) -> tuple[str, bool]:
    """The name under which a run is to be found or made, and whether it is there complete."""
    attempts = _attempts(store, base)
    for name in attempts:
        ended = store.open_run(name).state.ended
        if ended is not None and ended != INTERRUPTED:
            return name, True
    return (f"{base}-{len(attempts) + 1}" if attempts else base), False


def _attempts(store: Store, base: str) -> list[str]:
    """The runs of this name and its repetitions, oldest first."""
    there = {info.name for info in store.runs()}
    repeated = (f"{base}-{number}" for number in count(2))
    found = [base] if base in there else []
    while found and (name := next(repeated)) in there:
        found.append(name)
    return found


def _parts(
    components: Mapping[str, ComponentSpec], farm: Farm, seed: int, tape: Tape[Proposals]
) -> Parts:
    def part(kind: plugins.Kind) -> Any:
        return plugins.build(kind, components.get(kind, ComponentSpec(name=DEFAULT_PARTS[kind])))

    identity = content_hash(repr(components.get("proposer")))[:10]
    return Parts(
        proposer=SharedProposer(part("proposer"), seed, tape, identity),
        forecaster=part("forecaster"),
        policy=part("policy"),
        strategy=part("strategy"),
        farm=farm,
    )


# ---------------------------------------------------------------------------------- what it proves


@dataclass(frozen=True)
class Paired:
    """Differences of two arms, seed by seed, in log2: their mean and its Student interval.

    A seed is won or lost by more than 2%.
    """

    differences: tuple[float, ...]
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[float], confidence: float = _CONFIDENCE) -> Paired:
        """From one difference a seed; of a single one, the interval is everything."""
        mean, low, high = (float(each) for each in mean_interval(differences, confidence))
        return cls(tuple(differences), mean, low, high)

    @property
    def wins(self) -> int:
        """Seeds in which the first arm did better."""
        return sum(each > TIE_LOG2 for each in self.differences)

    @property
    def losses(self) -> int:
        """Seeds in which the second did."""
        return sum(each < -TIE_LOG2 for each in self.differences)

    @property
    def ties(self) -> int:
        """The others."""
        return len(self.differences) - self.wins - self.losses

    def verdict(self, arm: str, against: str) -> str:
        """What may be said of it, in words; also that nothing may."""
        seeds = len(self.differences)
        if seeds < 2:
            return f"no verdict: {seeds} seeds in which all arms are complete tell nothing"
        ratio = f"{2.0**self.mean:.3f}x ({2.0**self.low:.3f}x to {2.0**self.high:.3f}x)"
        counts = f"won {self.wins}, tied {self.ties} and lost {self.losses} of {seeds} seeds"
        few = "" if seeds >= ADVISED_SEEDS else f"; {seeds} seeds are few, take {ADVISED_SEEDS}"
        if self.low > -TIE_LOG2 and self.high < TIE_LOG2:
            said = f"{arm} and {against} find the same, within 2%: {ratio}"
        elif self.low > 0.0 and self.wins > self.losses:
            said = f"{arm} finds faster kernels than {against}: {ratio}"
        elif self.high < 0.0 and self.losses > self.wins:
            said = f"{arm} finds slower kernels than {against}: {ratio}"
        else:
            said = f"no verdict between {arm} and {against}: {ratio}{self._advice()}"
        return f"{said}; {arm} {counts}{few}"

    def _advice(self) -> str:
        """How many seeds might settle a difference of this size."""
        if not self.low <= 0.0 <= self.high:
            return ", but not in most seeds"
        spread = float(np.std(self.differences, ddof=1))
        wanted = math.ceil((1.96 * spread / abs(self.mean)) ** 2) if self.mean else math.inf
        if wanted > _MOST_SEEDS_ADVISED:
            return ", and more seeds would hardly tell them apart"
        # What the interval misses by a little, as many seeds again may settle.
        wanted = max(int(wanted), len(self.differences) + 1)
        return f"; about {wanted} seeds would settle a difference of this size"


@dataclass(frozen=True)
class Comparison:
    """What all arms found; statistics are over the seeds in which every arm is complete."""

    plan: Plan
    outcomes: tuple[Outcome, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in which every arm is complete."""
        arms = Counter(each.seed for each in self.outcomes)
        return tuple(sorted(seed for seed, runs in arms.items() if runs == len(self.plan.arms)))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run."""
        return len(self.seeds) == self.plan.seeds

    @property
    def baseline(self) -> str:
        """The arm that the others are held against: the last."""
        return list(self.plan.arms)[-1]

    @property
    def challengers(self) -> list[str]:
        """All other arms."""
        return list(self.plan.arms)[:-1]

    def of(self, arm: str) -> list[Outcome]:
        """The runs of an arm, one a complete seed, in the seeds' order."""
        runs = (each for each in self.outcomes if each.arm == arm and each.seed in self.seeds)
        return sorted(runs, key=lambda each: each.seed)

    def at_equal_measurements(self, arm: str) -> Paired:
        """What an arm finds more than the baseline with as many measurements."""
        pairs = zip(self.of(arm), self.of(self.baseline), strict=True)
        return self._paired([ours.log2_speedup - theirs.log2_speedup for ours, theirs in pairs])

    def at_equal_cost(self, arm: str, device_usd_per_hour: float) -> Paired:
        """The same where both may spend what the cheaper of the two runs cost in all."""
        rate = device_usd_per_hour
        differences = []
        for ours, theirs in zip(self.of(arm), self.of(self.baseline), strict=True):
            usd = min(ours.cost.usd(rate), theirs.cost.usd(rate))
            differences.append(ours.found_for(usd, rate) - theirs.found_for(usd, rate))
        return self._paired(differences)

    def _paired(self, differences: Sequence[float]) -> Paired:
        # Of several intervals at once, all are to hold with the confidence stated.
        return Paired.of(differences, 1.0 - (1.0 - _CONFIDENCE) / len(self.challengers))
