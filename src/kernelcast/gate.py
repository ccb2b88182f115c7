"""`Gate`: whether to measure a kernel, for a program that writes and measures kernels itself.

    gate = Gate(device="A100-PCIE-40GB", language="cuda", store="gate.db")
    verdict = gate.ask(source, parent=parent_source)
    if verdict.measure:
        gate.tell(source, seconds=measure(source))

The gate forecasts each kernel against its parent, learns from all that it is told, and lets a
policy decide. A share of the kernels is measured whatever their forecasts: these audits show how
many new bests the others may have hidden.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelcast import plugins
from kernelcast.canonical import as_kernel
from kernelcast.devices import detect_cpu, named
from kernelcast.errors import Overtaken, SetupError, StoreError, require_positive
from kernelcast.events import Asked, ComponentSpec, Event, GateStarted, Told
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.protocols import Forecaster, Policy
from kernelcast.run import Run
from kernelcast.store import Store
from kernelcast.types import (
    Audit,
    Candidate,
    Decision,
    Device,
    Failure,
    Forecast,
    Kernel,
    Language,
    Measurement,
    Observation,
    Problem,
    Query,
    View,
)

_PREFIX = "gate-"
_MOST_AUDITS = 2000  # that a policy sees
_LONGEST_GAP = 15  # kernels in a row that are not measured
_TRIES = 100  # to write before other processes do
_T = TypeVar("_T")


@dataclass(frozen=True)
class KernelOutcome:
    """What the gate was told of a kernel: one of seconds, speedup and failure."""

    source: str
    seconds: float | None = None
    speedup: float | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether to measure a kernel, and why.

    `action` is "measure"; "audit", which is measured whatever its forecast; "drop" or "trust",
    which are not measured; or "known" if the gate was told of the same kernel before.
    """

    measure: bool
    action: str
    reason: str
    forecast: Forecast | None = None
    """None if there was nothing to go by."""
    p_new_best: float | None = None
    """The chance that the kernel runs and is faster than all that was told."""
    known: KernelOutcome | None = None


class Gate:
    """Says which kernels to measure, and learns from what it is told.

    Kernels with the same canonical source are one kernel, which gets one verdict. Several processes
    may open the same gate of a store: each sees what the others were told.
    """

    def __init__(
        self,
        *,
        language: Language,
        device: str | None = None,
        store: str | Path | Store | None = None,
        task: str = "kernel",
        policy: str | Policy = "conformal",
        miss: float = 0.05,
        least_chance: float = 0.02,
        forecaster: Forecaster | None = None,
        seed: int = 0,
    ) -> None:
        """Open a gate, or begin it.

        Args:
            language: Language of the kernels: "cpp", "cuda", "triton", "torch" and others.
            device: Name of the device that is measured on; by default this machine's CPU for C++,
                else a GPU of which nothing is known.
            store: A path, a database URL or an open store, where all is kept. A gate of the same
                task and device goes on with it. Without one, the gate forgets when it ends.
            task: Name of what the kernels compute: tasks in one store do not mix.
            policy: Name of a policy, or one with a pool of one kernel.
            miss: For "conformal": the share of the kernels that are not measured of which each may
                have been a new best.
            least_chance: For "conformal": a kernel with this chance of a new best is measured,
                whatever the audits allow.
            forecaster: What forecasts; by default the trees that come with kernelcast.
            seed: Seed of the audits.

        Raises:
            SetupError: The policy cannot be built.
            StoreError: The store cannot be opened, or the gate in it was not written here.
        """
        self._device = _device(device, language)
        self._policy = _policy(policy, miss, least_chance)
        self._forecaster = forecaster or TreesForecaster()
        self._task, self._language, self._seed = task, language, seed
        self._lock = threading.Lock()
        self._kernels: dict[str, Kernel] = {}
        self._asked: dict[str, Asked] = {}
        self._told: dict[str, Told] = {}
        self._parents: dict[str, str] = {}
        self._problem: Problem | None = None
        self._reference: Told | None = None
        self._best: str | None = None
        self._audits: deque[Audit] = deque(maxlen=_MOST_AUDITS)
        self._stale = self._gap = self._to_measure = self._read = 0
        self._run: Run | None = None
        if store is not None:
            started = GateStarted(task=task, language=language, device=device)
            if not isinstance(store, Store):
                store = Store.open(store)
                weakref.finalize(self, store.close)
            self._run = _opened(store, f"{_PREFIX}{task}@{device or 'unnamed'}", started)
            self._catch_up()

    # --------------------------------------------------------------------------- ask and tell

    def ask(self, source: str, parent: str | None = None) -> Verdict:
        """Say whether to measure a kernel.

        The same kernel gets the same verdict again until the gate is told of it.

        Args:
            source: The kernel.
            parent: The kernel that it was made from, if there is one.

        Raises:
            StoreError: The store cannot be written.
        """
        kernel = as_kernel(source, self._language)
        made_from = None if parent is None else as_kernel(parent, self._language)

        def verdict() -> Verdict:
            if kernel.id not in self._told and kernel.id not in self._asked:
                asked = self._decide(kernel, made_from)
                self._write(asked, [kernel, *([made_from] if made_from else [])])
            return self._verdict(kernel.id)

        return self._persistently(verdict)

    def tell(
        self,
        source: str,
        *,
        seconds: float | None = None,
        speedup: float | None = None,
        failure: Failure | str | None = None,
        cost_s: float = 0.0,
    ) -> None:
        """Tell what became of a kernel, whether the gate was asked about it or not.

        The first kernel with a time is what the others are compared with. Telling again replaces
        what was told before.

        Args:
            source: The kernel.
            seconds: Its time; or state `speedup` or `failure` instead.
            speedup: How many times as fast as something that stays the same; larger is better.
            failure: Why it has neither: the name of a `FailureKind`, or the message of a crash.
            cost_s: Device seconds that measuring took.

        Raises:
            SetupError: There is not one of `seconds`, `speedup` and `failure`, or times and
                speedups are mixed.
            StoreError: The store cannot be written.
        """
        if (seconds, speedup, failure).count(None) != 2:
            raise SetupError("tell one of these: seconds=..., speedup=... or failure=...")
        require_positive(seconds=seconds, speedup=speedup)
        kernel = as_kernel(source, self._language)
        told = Told(
            kernel_id=kernel.id,
            seconds=seconds,
            speedup=speedup,
            failure=Failure.of(failure) if isinstance(failure, str) else failure,
            cost_s=cost_s,
        )

        def write() -> None:
            first = self._reference
            if first is not None and told.rate and (first.seconds is None) != (seconds is None):
                raise SetupError("times and speedups are mixed: tell the one or the other")
            self._write(told, [kernel])

        self._persistently(write)

    @property
    def best(self) -> KernelOutcome | None:
        """The fastest kernel that the gate was told of; None before any."""
        return None if self._best is None else self._outcome(self._best)

    @property
    def outcomes(self) -> tuple[KernelOutcome, ...]:
        """What the gate was told of, each kernel once, in order."""
        return tuple(self._outcome(key) for key in self._told)

    @property
    def asked(self) -> int:
        """How many different kernels the gate was asked about."""
        return len(self._asked)

    @property
    def to_measure(self) -> int:
        """How many of them it said to measure."""
        return self._to_measure

    # ------------------------------------------------------------------------------- deciding

    def _decide(self, kernel: Kernel, parent: Kernel | None) -> Asked:
        parent_id = None if parent is None else parent.id
        if self._problem is None or self._best is None:
            decision = Decision(action="measure", score=1.0, reason="nothing was told yet")
            return Asked(kernel_id=kernel.id, parent_id=parent_id, decision=decision)
        forecast = self._forecast(self._problem, kernel, self._anchor(parent_id))
        if self._gap >= _LONGEST_GAP:
            reason = f"blind: {self._gap} kernels in a row were not measured"
            decision = Decision(action="audit", score=1.0, reason=reason)
        else:
            candidate = Candidate(
                kernel_id=kernel.id,
                parent_id=parent_id or self._best,
                ordinal=len(self._asked),
                forecast=forecast,
            )
            (decision,) = self._policy.decide([candidate], self._view()).values()
        return Asked(kernel_id=kernel.id, parent_id=parent_id, decision=decision, forecast=forecast)

    def _view(self) -> View:
        return View(
            seed=self._seed,
            incumbent_log2=self._best_log2,
            noise_log2=None,
            # Audits are drawn by this number: each kernel is a draw of its own, measured or not.
            measured=len(self._asked),
            free_slots=1,
            measurements_left=math.inf,
            proposals_exhausted=False,
            stale=self._stale,
            considered=len(self._asked),
            audits=tuple(self._audits),
        )

    def _forecast(self, problem: Problem, kernel: Kernel, anchor_id: str) -> Forecast:
        log2_speedup = self._log2(anchor_id)
        assert log2_speedup is not None
        query = Query(
            problem=problem,
            device=self._device,
            candidate=kernel,
            anchor=self._kernels[anchor_id],
            anchor_log2_speedup=log2_speedup,
            anchor_runtime_s=self._told[anchor_id].seconds or math.nan,
            incumbent_log2=self._best_log2,
        )
        (forecast,) = self._forecaster.forecast([query])
        return forecast

    def _anchor(self, parent_id: str | None) -> str:
        """Return the nearest ancestor with a speed; the best kernel if there is none."""
        seen: set[str] = set()
        while parent_id is not None and parent_id not in seen:
            if self._log2(parent_id) is not None:
                return parent_id
            seen.add(parent_id)
            parent_id = self._parents.get(parent_id)
        assert self._best is not None
        return self._best

    def _log2(self, kernel_id: str) -> float | None:
        """Return a kernel's log2 speedup against the reference; None if it has none."""
        told = self._told.get(kernel_id)
        if told is None or told.rate is None:
            return None
        assert self._reference is not None
        assert self._reference.rate is not None
        return math.log2(told.rate / self._reference.rate)

    @property
    def _best_log2(self) -> float:
        return 0.0 if self._best is None else self._log2(self._best) or 0.0

    def _verdict(self, kernel_id: str) -> Verdict:
        if kernel_id in self._told:
            known = self._outcome(kernel_id)
            reason = "the same kernel was measured before"
            return Verdict(measure=False, action="known", reason=reason, known=known)
        asked = self._asked[kernel_id]
        decision, forecast = asked.decision, asked.forecast
        return Verdict(
            decision.measures,
            decision.action,
            decision.reason,
            forecast,
            None if forecast is None else forecast.chance_above(self._best_log2),
        )

    def _outcome(self, kernel_id: str) -> KernelOutcome:
        told = self._told[kernel_id]
        source = self._kernels[kernel_id].source
        return KernelOutcome(source, told.seconds, told.speedup, told.failure)

    # ------------------------------------------------------------------------- what was written

    def _persistently(self, action: Callable[[], _T]) -> _T:
        """Do something with all that is written, again if another process writes meanwhile."""
        with self._lock:
            for _ in range(_TRIES):
                self._catch_up()
                try:
                    return action()
                except Overtaken:
                    continue
        raise StoreError(
            f"other processes write to gate {self._task!r} all the time: run fewer at once"
        )

    def _catch_up(self) -> None:
        """Read what this and other processes have written since the last time."""
        if self._run is None:
            return
        self._run.catch_up()
        if self._run.state.events > self._read:
            self._run.check_own()
            self._take(list(self._run.events(after=self._read)))

    def _write(self, event: Asked | Told, kernels: Sequence[Kernel]) -> None:
        if self._run is not None:
            self._run.append([event], kernels)
        self._kernels.update((kernel.id, kernel) for kernel in kernels)
        self._take([event])

    def _take(self, events: Sequence[Event]) -> None:
        """Apply events, in order; the forecaster learns from all of them at once."""
        self._read += len(events)
        news = [event for event in events if isinstance(event, Asked | Told)]
        parents = [event.parent_id for event in news if isinstance(event, Asked)]
        ids = [*(event.kernel_id for event in news), *filter(None, parents)]
        if missing := [key for key in dict.fromkeys(ids) if key not in self._kernels]:
            assert self._run is not None
            kernels = self._run.kernels(missing)
            self._kernels.update((kernel.id, kernel) for kernel in kernels)
        observations: list[Observation] = []
        for event in news:
            if isinstance(event, Asked):
                self._note(event)
            else:
                observations += self._learn_of(event)
        if observations:
            self._forecaster.learn(observations)

    def _note(self, event: Asked) -> None:
        self._asked[event.kernel_id] = event
        if event.parent_id is not None:
            self._parents[event.kernel_id] = event.parent_id
        self._to_measure += event.decision.measures
        self._gap = 0 if event.decision.measures else self._gap + 1

    def _learn_of(self, event: Told) -> list[Observation]:
        """Take what was told, and return what the forecaster can learn of it."""
        key, is_first = event.kernel_id, event.kernel_id not in self._told
        self._told[key] = event
        if self._reference is None:
            if event.rate is None:
                return []
            # The forecaster can learn from what failed before, since it now has a problem.
            self._reference, self._best = event, key
            source = self._kernels[key].source
            self._problem = Problem.unstated(self._task, self._language, source)
            return [self._observation(told) for told in self._told.values() if told.rate is None]
        log2_speedup, best_log2 = self._log2(key), self._best_log2
        is_better = log2_speedup is not None and log2_speedup > best_log2
        asked = self._asked.get(key)
        if asked is not None and asked.forecast is not None and is_first:
            if asked.decision.action == "audit":
                chance = 0.0 if asked.forecast.objection else asked.forecast.chance_above(best_log2)
                self._audits.append(Audit(p_new_best=chance, new_best=is_better))
            self._stale += 1
        if is_better:
            self._best, self._stale = key, 0
        elif key == self._best:  # told again, and slower or failed
            rates = {key: told.rate for key, told in self._told.items() if told.rate is not None}
            self._best = max(rates, key=rates.__getitem__, default=None)
        return [self._observation(event)]

    def _observation(self, event: Told) -> Observation:
        assert self._problem is not None
        log2_speedup = self._log2(event.kernel_id)
        measurement = Measurement.reported(
            event.kernel_id,
            self._problem,
            self._device,
            log2_speedup=log2_speedup,
            reference_s=(self._reference and self._reference.seconds) or math.nan,
            failure=event.failure,
            cost_s=event.cost_s,
        )
        return Observation(kernel=self._kernels[event.kernel_id], measurement=measurement)


def _policy(policy: str | Policy, miss: float, least_chance: float) -> Policy:
    if isinstance(policy, str):
        options: dict[str, float] = {"pool_size": 1}
        if policy == "conformal":
            options |= {"miss_target": miss, "drop_below": least_chance}
        built: Policy = plugins.build("policy", ComponentSpec(name=policy, options=options))
        policy = built
    if policy.pool_size != 1:
        raise SetupError(
            f"policy {policy.name!r} chooses among {policy.pool_size} kernels, and a gate is asked "
            "about one: build it with pool_size=1"
        )
    return policy


def _device(name: str | None, language: Language) -> Device:
    if name is None and language == "cpp":
        return detect_cpu()
    unknown = Device(
        name=name or "unnamed",
        kind="cpu" if language == "cpp" else "gpu",
        cores=0,
        clock_hz=0.0,
        peak_flops={},
        bandwidth_bytes_s=0.0,
        source="not known",
    )
    return (name and named(name)) or unknown


def _opened(store: Store, name: str, started: GateStarted) -> Run:
    """Return the gate's run; several processes may begin it at once."""
    if all(info.name != name for info in store.runs()):
        try:
            store.create_run(name).append([started])
        except StoreError:  # another process was faster
            if all(info.name != name for info in store.runs()):
                raise
    run = store.open_run(name)
    run.check_own()
    gating = run.state.gating
    if gating is None or gating.started != started:
        raise StoreError(f"the store has another run {name!r}: give the gate another task")
    return run
