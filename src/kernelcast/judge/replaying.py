"""Arms on what was recorded: the one loop over spaces and searches that somebody measured before.

Belongs here: a run on a recording, and what it found, saved and missed of what was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kernelcast.backends.replay import Recording, ReplayBackend, space_problem
from kernelcast.canonical import canonical_parameters
from kernelcast.errors import SetupError
from kernelcast.events import Decided, Event, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.judge.curves import best_so_far
from kernelcast.parts import Parts
from kernelcast.proposers.pool import PoolProposer
from kernelcast.protocols import Forecaster, Policy, Proposer, Strategy
from kernelcast.search import Search
from kernelcast.store import Run, Store
from kernelcast.strategies import Greedy, Puct
from kernelcast.types import (
    Budget,
    Kernel,
    Resource,
)

_BUDGETS = (10, 25, 50, 100, 200)
_NEGLIGIBLE_LOSS = 0.02  # timing noise of recorded searches: less counts as none


class _MakesPolicy(Protocol):
    def __call__(self, *, streamed: bool) -> Policy: ...


@dataclass(frozen=True)
class Arm:
    """A policy with its forecaster and strategy; all are made anew for each run.

    Where kernels are `streamed`, they come one by one and the policy can hold none back.
    """

    name: str
    policy: _MakesPolicy
    forecaster: Callable[[], Forecaster]
    strategy: Callable[[], Strategy] = Puct


@dataclass(frozen=True)
class Replayed:
    """One run on a recording.

    `found[i]` is the best found by `i + 1` measurements, as a fraction of the best recorded;
    `offered` kernels were there to be measured, `measured` were.
    """

    arm: str
    where: str
    kind: Literal["space", "search"]
    seed: int
    found: tuple[float, ...]
    offered: int
    measured: int
    device_s: float

    @property
    def loss(self) -> float:
        """What was missed of the best recorded, 0 (nothing) to 1."""
        return 1.0 - (self.found[-1] if self.found else 0.0)


def replay_space(
    store: Store,
    name: str,
    recording: Recording,
    arm: Arm,
    *,
    measurements: int,
    seed: int = 0,
    proposer: Proposer | None = None,
    until_best: bool = False,
) -> Replayed:
    """A search over a recorded space with so many measurements, kept as the run `name`.

    With `until_best` it ends as soon as the fastest recorded kernel is found; `found` is shorter
    then. The arm is not told: it would have gone on, and found nothing better.
    A caller that replays a space often hands in a pool of its kernels, to make them only once.
    """
    members = recording.configurations
    if not members:
        raise SetupError(f"{recording.problem!r} was recorded as texts: replay its searches")
    proposer = proposer or PoolProposer(members)
    budget = Budget(measurements=measurements)
    search = _search(store, name, recording, arm, proposer, seed, streamed=False)
    if until_best:
        search.callbacks.append(_UntilBest(search, recording))
    return _replayed("space", search, recording, arm, budget, recording.best_s, len(members))


class _UntilBest:
    """A callback that ends a replay when its best kernel is the fastest recorded."""

    def __init__(self, search: Search, recording: Recording) -> None:
        self._search = search
        self._best_log2 = math.log2(_reference_s(recording) / recording.best_s)

    def on_event(self, event: Event) -> None:
        """Look at each new best."""
        confirmed = event.confirmed_log2 if isinstance(event, Measured) else None
        if confirmed is not None and confirmed >= self._best_log2:
            self._search.stop("the fastest recorded kernel is found")


def replay_search(
    store: Store,
    name: str,
    recording: Recording,
    arm: Arm,
    *,
    kernels: Sequence[Kernel],
    seed: int = 0,
) -> Replayed:
    """A recorded search as it went: each kernel is shown once, in order, and measured or not.

    Only the choice of what to measure is replayed; what was proposed does not depend on it.
    """
    recorded = recording.entries
    members = [kernel for kernel in kernels if kernel.id in recorded]
    if not members:
        raise SetupError(f"no text of the search on {recording.problem!r} was recorded")
    # A search is held to what it was shown; of a space, everything could have been proposed.
    shown = [recorded[kernel.id].runtime_s for kernel in members]
    best_s = min(each for each in (*shown, _reference_s(recording)) if each is not None)
    proposer = PoolProposer(members, ordered=True)
    search = _search(store, name, recording, arm, proposer, seed, streamed=True)
    return _replayed("search", search, recording, arm, Budget(), best_s, len(members))


def summarise(found: Sequence[Replayed]) -> dict[str, dict[str, float]]:
    """What an arm reached: on spaces by measurements, on searches by what it saved and lost."""
    facts: dict[str, dict[str, float]] = {}
    spaces = [one for one in found if one.kind == "space"]
    if spaces:
        last = max(len(one.found) for one in spaces)
        facts["spaces"] = {
            f"at_{budget}": _mean([one.found[:budget][-1] for one in spaces])
            for budget in sorted({each for each in _BUDGETS if each < last} | {last})
        }
        facts["spaces"]["device_s"] = round(sum(one.device_s for one in spaces), 3)
        facts["spaces"]["runs"] = len(spaces)
    searches = [one for one in found if one.kind == "search"]
    if searches:
        measured, offered = (
            sum(getattr(one, name) for one in searches) for name in ("measured", "offered")
        )
        facts["searches"] = {
            "saved": round(1.0 - measured / offered, 4),
            "within_2_percent": _mean([one.loss <= _NEGLIGIBLE_LOSS for one in searches]),
            "mean_loss": _mean([one.loss for one in searches]),
            "runs": len(searches),
        }
    return facts


def missed_winners(run: Run, recording: Recording) -> tuple[int, int]:
    """How many candidates a replayed run turned away, and how many of them were new bests.

    Turned away is what was dropped or trusted, so never measured; the recording knows it even so. A
    new best is faster than the best confirmed when the candidate was turned away.
    """
    best, turned_away, missed = 0.0, 0, 0
    reference_s = _reference_s(recording)
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


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


def _search(
    store: Store,
    name: str,
    recording: Recording,
    arm: Arm,
    proposer: Proposer,
    seed: int,
    *,
    streamed: bool,
) -> Search:
    parts = Parts(
        proposer=proposer,
        forecaster=arm.forecaster(),
        policy=arm.policy(streamed=streamed),
        # What comes next in a recorded search is given: it is held against the best so far.
        strategy=Greedy() if streamed else arm.strategy(),
        farm=LocalFarm(ReplayBackend(recording)),
    )
    spec = RunSpec(seed=seed, reuse=False)
    return Search(space_problem(recording), parts, store, spec=spec, name=name)


def _replayed(
    kind: Literal["space", "search"],
    search: Search,
    recording: Recording,
    arm: Arm,
    budget: Budget,
    best_s: float,
    offered: int,
) -> Replayed:
    state = search.run(budget).state
    optimum = math.log2(_reference_s(recording) / best_s)
    return Replayed(
        arm=arm.name,
        where=f"{recording.problem} on {recording.device.name}",
        kind=kind,
        seed=search.spec.seed,
        found=tuple(2.0 ** (best - optimum) for best in best_so_far(search.log)),
        offered=offered,
        measured=state.measured,
        device_s=state.spent.get(Resource.DEVICE_S, 0.0),
    )


def _reference_s(recording: Recording) -> float:
    runtime_s = recording.entries[recording.reference].runtime_s
    assert runtime_s is not None
    return runtime_s
