"""Replay recordings through the search loop: what an arm finds, saves and misses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kernelcast.backends.replay import Recording, ReplayBackend, space_problem
from kernelcast.errors import SetupError
from kernelcast.events import Event, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.judge.curves import best_so_far
from kernelcast.parts import Parts
from kernelcast.proposers.pool import PoolProposer
from kernelcast.protocols import Forecaster, Policy, Proposer, Strategy
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Greedy, Puct
from kernelcast.types import Budget, Kernel, Resource

_BUDGETS = (10, 25, 50, 100, 200)
_NEGLIGIBLE_LOSS = 0.02  # timing noise of recorded searches


class _MakesPolicy(Protocol):
    def __call__(self, *, streamed: bool) -> Policy: ...


@dataclass(frozen=True)
class Arm:
    """A policy, a forecaster and a strategy; each run gets new ones.

    `policy` is called with `streamed=True` where kernels come one by one, so that the policy can
    hold none back.
    """

    name: str
    policy: _MakesPolicy
    forecaster: Callable[[], Forecaster]
    strategy: Callable[[], Strategy] = Puct


@dataclass(frozen=True)
class Replayed:
    """One run on a recording.

    `curve[i]` is the best speed found by `i + 1` measurements, as a fraction of the best recorded.
    `offered` is the number of kernels that could have been measured.
    """

    arm: str
    where: str
    kind: Literal["space", "search"]
    seed: int
    curve: tuple[float, ...]
    offered: int
    measured: int
    device_s: float

    @property
    def loss(self) -> float:
        """Share of the best recorded speed that was missed, 0 to 1."""
        return 1.0 - (self.curve[-1] if self.curve else 0.0)


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
    """Search a recorded space.

    Args:
        store: Store of the run.
        name: Name of the run.
        recording: Recorded configurations and their times.
        arm: Parts that search.
        measurements: Budget of the run.
        seed: Seed of the run.
        proposer: Pool of the space's kernels, for callers that replay one space often.
        until_best: Stop once the fastest recorded kernel is found; `curve` is shorter then.

    Raises:
        SetupError: The recording holds texts, not configurations.
    """
    members = recording.configurations
    if not members:
        raise SetupError(f"{recording.problem!r} was recorded as texts: replay its searches")
    search = _search(store, name, recording, arm, proposer or PoolProposer(members), seed)
    if until_best:
        search.callbacks.append(_UntilBest(search, recording))
    search.run(Budget(measurements=measurements))
    return _replayed("space", search, recording, arm, recording.best_s, len(members))


class _UntilBest:
    """Callback that stops a replay once the fastest recorded kernel is found."""

    def __init__(self, search: Search, recording: Recording) -> None:
        self._search = search
        self._best_log2 = math.log2(_reference_s(recording) / recording.best_s)

    def on_event(self, event: Event) -> None:
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
    """Show the kernels of a recorded search once, in their order, each to be measured or not.

    Only the choice of what to measure is replayed: the proposals do not depend on it.

    Raises:
        SetupError: None of the kernels was recorded.
    """
    recorded = recording.entries
    members = [kernel for kernel in kernels if kernel.id in recorded]
    if not members:
        raise SetupError(f"no text of the search on {recording.problem!r} was recorded")
    # The best of a search is the best that was shown, not the best recorded elsewhere.
    times = [recorded[kernel.id].runtime_s for kernel in members]
    best_s = min(time for time in (*times, _reference_s(recording)) if time is not None)
    proposer = PoolProposer(members, ordered=True)
    search = _search(store, name, recording, arm, proposer, seed, streamed=True)
    search.run(Budget())
    return _replayed("search", search, recording, arm, best_s, len(members))


def summarise(runs: Sequence[Replayed]) -> dict[str, dict[str, float]]:
    """Summarise an arm: speed by measurements on spaces, savings and losses on searches."""
    facts: dict[str, dict[str, float]] = {}
    spaces = [run for run in runs if run.kind == "space"]
    if spaces:
        last = max(len(run.curve) for run in spaces)
        facts["spaces"] = {
            f"at_{budget}": _mean([run.curve[:budget][-1] for run in spaces])
            for budget in (*(budget for budget in _BUDGETS if budget < last), last)
        }
        facts["spaces"]["device_s"] = round(sum(run.device_s for run in spaces), 3)
        facts["spaces"]["runs"] = len(spaces)
    searches = [run for run in runs if run.kind == "search"]
    if searches:
        measured, offered = (
            sum(getattr(run, name) for run in searches) for name in ("measured", "offered")
        )
        facts["searches"] = {
            "saved": round(1.0 - measured / offered, 4),
            "within_2_percent": _mean([run.loss <= _NEGLIGIBLE_LOSS for run in searches]),
            "mean_loss": _mean([run.loss for run in searches]),
            "runs": len(searches),
        }
    return facts


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
    streamed: bool = False,
) -> Search:
    parts = Parts(
        proposer=proposer,
        forecaster=arm.forecaster(),
        policy=arm.policy(streamed=streamed),
        # The order of a recorded search is fixed: its anchor is the best so far.
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
    best_s: float,
    offered: int,
) -> Replayed:
    optimum = math.log2(_reference_s(recording) / best_s)
    return Replayed(
        arm=arm.name,
        where=f"{recording.problem} on {recording.device.name}",
        kind=kind,
        seed=search.spec.seed,
        curve=tuple(2.0 ** (best - optimum) for best in best_so_far(search.log)),
        offered=offered,
        measured=search.state.measured,
        device_s=search.state.spent.get(Resource.DEVICE_S, 0.0),
    )


def _reference_s(recording: Recording) -> float:
    runtime_s = recording.entries[recording.reference].runtime_s
    assert runtime_s is not None
    return runtime_s
