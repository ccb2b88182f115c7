"""`Tuner`: which configuration of a kernel to measure next, for a program that owns the loop.

    tuner = Tuner(configurations, device="A100-PCIE-40GB", known=times_elsewhere)
    while tuner.stop_reason is None:
        for trial in tuner.suggest():
            tuner.report(trial, seconds=measure(trial.configuration))
    print(tuner.best)

A configuration is a mapping of parameter names to values. Where it is a key, it is the JSON text of
that mapping, as `json.dumps` writes it: `{"block": 64, "tile": 4}`. The order of the names and the
spaces do not matter. A row's `candidate_parameters` is such a text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.devices import same_vendor
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError, require_positive
from kernelcast.events import EVENT, Reported, Suggested
from kernelcast.forecasters._reasons import ranks_of, reasons
from kernelcast.forecasters.space import Predictions, Sibling, SpaceForecaster
from kernelcast.sampler import LARGEST_POOL, Sampler
from kernelcast.types import Budget, Parameters, Template, content_hash

if TYPE_CHECKING:
    from kernelcast.logbook import Logbook
    from kernelcast.store import Store

Times = Mapping[str, float | None]
"""Seconds by the JSON text of a configuration; None where it failed."""

_FILE_VERSION = 1
_REDRAWN_EVERY = 20  # reports
_NEAR_BEST = 5  # configurations, near to which others are drawn
_KNOWN_SHARE = 0.4  # of the pool, for the fastest configurations of other devices
_LEAST_GAIN = 0.001  # of the time; less is below the precision of timing
_HOPELESS = 5  # suggestions in a row that expect less


@dataclass(frozen=True)
class Trial:
    """A configuration to measure, and its number among the suggestions."""

    number: int
    configuration: Parameters


@dataclass(frozen=True)
class Outcome:
    """A measured configuration; `seconds` is None if it failed, `cost_s` is what measuring took."""

    configuration: Parameters
    seconds: float | None
    cost_s: float | None = None


@dataclass(frozen=True)
class RuntimeForecast:
    """The forecast of one configuration's time, if it runs, and of its chance to run."""

    configuration: Parameters
    seconds: float
    """The median."""
    interval_s: tuple[float, float]
    """The middle 80%."""
    p_ok: float
    speedup: Distribution
    """Of log2 of another time over this one's: the best so far or, before any, one second."""


class Tuner:
    """Suggests configurations, learns from their times, and knows when to stop.

    A configuration is suggested at most once. Several trials may be in flight; they are reported in
    any order. The same reports in the same order give the same suggestions.
    """

    def __init__(
        self,
        configurations: Sequence[Parameters] | Template,
        *,
        device: str | None = None,
        known: Mapping[str, Times] | None = None,
        estimates: Times | None = None,
        budget: Budget | None = None,
        store: str | Path | Store | None = None,
        kernel: str | None = None,
        seed: int = 0,
        per_second: bool = False,
    ) -> None:
        """Make a tuner.

        Args:
            configurations: The space: a list, or a template's parameters and constraints. At most
                20,000 configurations of a template are forecast at once; of a larger space they
                are drawn at random, and drawn anew near the fastest as reports come in.
            device: Name of the device that is measured on.
            known: Times by device. Those of `device` itself count as measured. Devices of its
                vendor are believed first, all of them only as far as their times agree with what
                is measured; a device that the catalogue does not know may be of any vendor.
            estimates: Times that no device measured, e.g. by the emulator.
            budget: Caps on measurements and on their cost in device seconds.
            store: A path, a database URL or an open store, where suggestions and reports are kept
                as they happen. A tuner of the same kernel and device goes on where the last one
                stopped, whatever ended it. Times of the kernel on other devices are known.
            kernel: Name of the kernel in the store; by default its space. Two kernels with equal
                spaces need names. A named kernel keeps its times if its space changes.
            seed: Seed of all choices.
            per_second: Whether to choose by the expected gain per second of cost.

        Raises:
            SetupError: There is no configuration, one is there twice, or `known` is malformed.
            StoreError: The store cannot be opened, or another process tunes the kernel on the
                device.
        """
        self.device, self.budget = device, budget or Budget()
        self._seed, self._per_second = seed, per_second
        self._sampler: Sampler | None = None
        if isinstance(configurations, Template):
            self._sampler = Sampler(configurations, seed)
            configurations = self._sampler.first()
        pool = {canonical_parameters(point): point for point in configurations}
        if len(pool) < len(configurations):
            raise SetupError("a configuration is listed twice: list each once")
        self._known = {name: _canonical(times, pool) for name, times in (known or {}).items()}
        self._estimates = _canonical(estimates or {}, pool)
        self._logbook = None if store is None else self._opened(store, kernel, pool)
        self._events: list[Suggested | Reported] = []
        self._outcomes: dict[str, Outcome] = {}
        self._in_flight: dict[str, Trial] = {}
        self._orphans: list[Trial] = []
        self._suggested = self._reported = self._since_redrawn = self._hopeless = 0
        self._cost_s = 0.0
        own = {} if device is None else self._known.get(device, {})
        if self._sampler is not None:
            measured = {key: json.loads(key) for key in own}
            pool = _shortened(measured | self._fast_elsewhere() | pool, len(measured))
        self._place(pool)
        for key, seconds in own.items():
            if key in self._rows:
                self._learn(key, Outcome(self._pool[self._rows[key]], seconds))
        if self._logbook is not None:
            for event in self._logbook.events():
                if self._has(event.configuration):
                    self.repeat(event)
            self._orphans = list(self._in_flight.values())

    # ------------------------------------------------------------------------- ask and tell

    def suggest(self, n: int = 1) -> list[Trial]:
        """Return at most `n` configurations to measure, the most promising first.

        Trials in flight are taken into account: neither they nor what is much like them is
        suggested. There are fewer than `n`, or none, if the budget or the space ends. After a
        process has ended, what it had in flight is suggested again first.
        """
        flying = set(map(id, self._in_flight.values()))
        orphans = [trial for trial in self._orphans if id(trial) in flying]
        trials, self._orphans = orphans[:n], orphans[n:]
        fresh: list[Suggested | Reported] = []
        while len(trials) < n and self._ended() is None:
            key = self._choose()
            trials.append(self._launch(key))
            fresh.append(Suggested(configuration=key))
        self._note(fresh)
        return trials

    def preview(self, n: int = 1) -> list[Parameters]:
        """Return the configurations that `suggest` would choose next, and choose none."""
        pending = [self._rows[key] for key in self._in_flight]
        chosen: list[int] = []
        while len(chosen) < n and len(self._outcomes) + len(pending) < len(self._pool):
            chosen.append(self._forecaster.choose(per_second=self._per_second, pending=pending))
            pending.append(chosen[-1])
        return [self._pool[row] for row in chosen]

    def _note(self, events: Sequence[Suggested | Reported]) -> None:
        """Keep events; in a store they are durable before the caller sees them."""
        if self._logbook is not None and events:
            self._logbook.append(events)
        self._events.extend(events)

    def _choose(self) -> str:
        pending = [self._rows[key] for key in self._in_flight]
        index = self._forecaster.choose(per_second=self._per_second, pending=pending)
        gain = self._forecaster.expected_gain
        self._hopeless = self._hopeless + 1 if gain < _LEAST_GAIN else 0
        return self._keys[index]

    def _launch(self, key: str) -> Trial:
        trial = Trial(self._suggested, self._pool[self._rows[key]])
        self._suggested += 1
        self._in_flight[key] = trial
        return trial

    def report(
        self,
        trial: Trial | Parameters,
        *,
        seconds: float | None = None,
        failed: bool = False,
        cost_s: float | None = None,
    ) -> None:
        """Tell the outcome of a trial, or of any configuration of the space.

        A second report of a configuration replaces the first.

        Args:
            trial: The trial, or the configuration.
            seconds: Its time.
            failed: Whether it failed: it has no time then.
            cost_s: Device seconds that measuring took, compiling included.

        Raises:
            SetupError: There is no time and no failure, or the space lacks the configuration.
        """
        configuration = trial.configuration if isinstance(trial, Trial) else trial
        if failed == (seconds is not None):
            raise SetupError("report either a time (seconds=...) or a failure (failed=True)")
        require_positive(seconds=seconds, cost_s=cost_s)
        event = Reported(configuration=self._key(configuration), seconds=seconds, cost_s=cost_s)
        self._note([event])
        self._take(event)

    def _take(self, event: Reported) -> None:
        key = event.configuration
        self._in_flight.pop(key, None)
        self._reported += 1
        self._cost_s += event.cost_s or 0.0
        self._learn(key, Outcome(self._pool[self._rows[key]], event.seconds, event.cost_s))
        self._since_redrawn += 1
        if self._sampler is not None and self._since_redrawn >= _REDRAWN_EVERY:
            self._redraw()

    def _learn(self, key: str, outcome: Outcome) -> None:
        self._outcomes.pop(key, None)
        self._outcomes[key] = outcome
        log2_runtime = None if outcome.seconds is None else math.log2(outcome.seconds)
        self._forecaster.learn(self._rows[key], log2_runtime, outcome.cost_s)

    # ------------------------------------------------------------------------ what is known

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was measured, in the order of the reports."""
        return tuple(self._outcomes.values())

    @property
    def in_flight(self) -> tuple[Trial, ...]:
        """What was suggested and not reported yet."""
        return tuple(self._in_flight.values())

    @property
    def best(self) -> Outcome | None:
        """The fastest measured configuration; None before any time."""
        timed = [outcome for outcome in self._outcomes.values() if outcome.seconds is not None]
        return min(timed, key=lambda outcome: outcome.seconds or math.inf, default=None)

    @property
    def stop_reason(self) -> str | None:
        """Why to stop, None if there is no reason yet.

        The budget is spent, every configuration was measured, or each of the last five suggestions
        expected to gain less than 0.1% on the best time. The last is advice: `suggest` goes on.
        """
        if (reason := self._ended()) is not None:
            return reason
        if self._hopeless >= _HOPELESS:
            return f"no improvement is expected: less than {_LEAST_GAIN:.1%} of the best time"
        return None

    def _ended(self) -> str | None:
        begun = self._reported + len(self._in_flight)
        if self.budget.measurements is not None and begun >= self.budget.measurements:
            return f"the budget is spent: {self.budget.measurements} measurements"
        if self.budget.device_s is not None and self._cost_s >= self.budget.device_s:
            return f"the budget is spent: {self._cost_s:.6g} of {self.budget.device_s:g} seconds"
        if len(self._outcomes.keys() | self._in_flight.keys()) == len(self._pool):
            return f"the space is exhausted: all {len(self._pool)} configurations were tried"
        return None

    @property
    def configurations(self) -> tuple[Parameters, ...]:
        """The space, or the part of a large one that is forecast at present."""
        return tuple(self._pool)

    def forecast(
        self, configurations: Iterable[Parameters] | None = None, *, against_s: float | None = None
    ) -> list[RuntimeForecast]:
        """Forecast configurations, measured or not.

        Args:
            configurations: The configurations; by default every one of `configurations`.
            against_s: The time that speedups are against; by default the best so far.

        Raises:
            SetupError: The space lacks a configuration.
        """
        rows = self._rows_of(configurations)
        if not rows:
            return []
        predictions = self._forecaster.predict()
        best = self.best
        if against_s is None:
            against_s = 1.0 if best is None or best.seconds is None else best.seconds
        unit = math.log2(against_s)
        speedups = predictions.speedups(np.array(rows, dtype=np.intp), np.full(len(rows), unit))
        return [
            self._runtime_forecast(row, speedup, unit, predictions)
            for row, speedup in zip(rows, speedups, strict=True)
        ]

    def _rows_of(self, configurations: Iterable[Parameters] | None) -> list[int]:
        if configurations is None:
            return list(range(len(self._pool)))
        keys = [self._key(point) for point in configurations]
        return [self._rows[key] for key in keys]  # a key may have moved the others

    def _runtime_forecast(
        self, row: int, speedup: Distribution, unit: float, predictions: Predictions
    ) -> RuntimeForecast:
        slow, fast = (2.0 ** (unit - end) for end in speedup.interval(0.8))
        return RuntimeForecast(
            configuration=self._pool[row],
            seconds=2.0 ** (unit - speedup.quantile(0.5)),
            interval_s=(fast, slow),
            p_ok=float(predictions.p_ok[row]),
            speedup=speedup,
        )

    def reasons(self, configurations: Iterable[Parameters] | None = None) -> list[str]:
        """Say what forecasts rest on: ranks on other devices, and the nearest measurement."""
        rows = self._rows_of(configurations)
        levels = self._forecaster.levels
        measured = sorted(self._outcomes.items(), key=lambda item: item[1].seconds or math.inf)
        ends = [
            "failed" if outcome.seconds is None else f"took {outcome.seconds * 1e3:.4g} ms"
            for _, outcome in measured
        ]
        ranks = {name: ranks_of(t) for name, t in self._known.items() if name != self.device}
        asked = {self._keys[row]: levels[row] for row in rows}
        places = [self._rows[key] for key, _ in measured]
        texts = dict(zip(asked, reasons(asked, levels[places], ends, ranks), strict=True))
        return [texts[self._keys[row]] for row in rows]

    # ----------------------------------------------------------------------- save and resume

    def _opened(
        self, store: str | Path | Store, kernel: str | None, pool: Mapping[str, Parameters]
    ) -> Logbook:
        """Return the logbook, after taking what it knows of other devices for known."""
        from kernelcast.logbook import Logbook  # the database is slow to import

        space = json.dumps(sorted(pool))
        if self._sampler is not None:
            space = self._sampler.template.model_dump_json()
        logbook = Logbook(
            store,
            kernel=kernel or content_hash(space)[:12],
            device=self.device,
            parameters=next(iter(pool.values()), {}),
        )
        for device, times in logbook.elsewhere().items():
            self._known[device] = {**times, **self._known.get(device, {})}
        return logbook

    def save(self, path: str | Path) -> None:
        """Write all that `load` needs to a JSON file."""
        if self._sampler is None:
            space: dict[str, Any] = {"configurations": self._pool}
        else:
            space = {"template": self._sampler.template.model_dump()}
        content = {
            "version": _FILE_VERSION,
            **space,
            "device": self.device,
            "known": self._known,
            "estimates": self._estimates,
            "budget": self.budget.model_dump(),
            "seed": self._seed,
            "per_second": self._per_second,
            "events": [event.model_dump() for event in self._events],
        }
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tuner:
        """Read a tuner that `save` wrote. It goes on as the saved one would have.

        It makes the suggestions again, which takes as long as it did.

        Raises:
            SetupError: The file is none of `save`.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["version"] != _FILE_VERSION:
                raise ValueError(f"it has version {content['version']}")
            options = {name: content[name] for name in ("device", "known", "estimates", "seed")}
            options |= {"per_second": content["per_second"], "budget": Budget(**content["budget"])}
            space = content.get("configurations") or Template(**content["template"])
            tuner = cls(space, **options)
            for event in map(EVENT.validate_python, content["events"]):
                if isinstance(event, Suggested | Reported):
                    tuner.repeat(event)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{path} is no file of Tuner.save: {error!r}") from error
        return tuner

    def repeat(self, event: Suggested | Reported) -> None:
        """Do again what another tuner of the space did: suggest this, or take this report.

        Raises:
            SetupError: The space lacks the configuration.
        """
        key = self._key(json.loads(event.configuration))
        if isinstance(event, Reported):
            self._take(event)
        elif key not in self._outcomes:
            self._choose()  # moves the model as it did before
            self._launch(key)
        self._events.append(event)

    # -------------------------------------------------------------------------------- the pool

    def _key(self, configuration: Parameters) -> str:
        key = canonical_parameters(configuration)
        if key not in self._rows:
            if not self._has(key):
                raise SetupError(f"the space has no configuration {key}: check names and values")
            self._replace({key: configuration, **dict(zip(self._keys, self._pool, strict=True))})
        return key

    def _has(self, key: str) -> bool:
        """Return whether the space has a configuration, drawn or not."""
        is_drawn = key in self._rows
        return is_drawn or (self._sampler is not None and self._sampler.admits(json.loads(key)))

    def _place(self, pool: Mapping[str, Parameters]) -> None:
        """Forecast this pool from now on, by nothing yet."""
        self._keys = list(pool)
        self._pool = list(pool.values())
        self._rows = {key: row for row, key in enumerate(self._keys)}
        siblings = [
            self._sibling(name, times, is_kin=same_vendor(name, self.device))
            for name, times in self._known.items()
            if name != self.device
        ]
        if self._estimates:
            siblings.append(self._sibling("estimated", self._estimates, is_estimate=True))
        domain = None if self._sampler is None else self._sampler.template.parameters
        self._forecaster = SpaceForecaster(self._pool, siblings, self._seed, domain)

    def _sibling(
        self, name: str, times: Times, *, is_kin: bool = True, is_estimate: bool = False
    ) -> Sibling:
        log2_runtime = np.full(len(self._pool), np.nan)
        failed = np.zeros(len(self._pool), dtype=bool)
        for key, seconds in times.items():
            row = self._rows.get(key)
            if row is not None and seconds is None:
                failed[row] = True
            elif row is not None and seconds is not None:
                log2_runtime[row] = math.log2(seconds)
        return Sibling(name, log2_runtime, failed, is_kin, is_estimate)

    def _replace(self, pool: Mapping[str, Parameters]) -> None:
        """Forecast this pool from now on, by all that was learnt."""
        blind = [self._keys[row] for row in self._forecaster.blind]
        self._place(pool)
        self._forecaster.blind.update(self._rows[key] for key in blind if key in self._rows)
        for key, outcome in list(self._outcomes.items()):
            self._learn(key, outcome)

    def _redraw(self) -> None:
        """Draw the pool anew: what was measured, neighbours of the fastest, and others."""
        assert self._sampler is not None
        self._since_redrawn = 0
        if self._sampler.is_listed:
            return
        timed = [outcome for outcome in self._outcomes.values() if outcome.seconds is not None]
        fastest = sorted(timed, key=lambda outcome: outcome.seconds or math.inf)[:_NEAR_BEST]
        kept = {key: outcome.configuration for key, outcome in self._outcomes.items()}
        kept |= {key: trial.configuration for key, trial in self._in_flight.items()}
        near = self._sampler.near([outcome.configuration for outcome in fastest], self._reported)
        others = dict(zip(self._keys, self._pool, strict=True))
        pool = kept | self._fast_elsewhere() | near | others
        self._replace(_shortened(pool, len(kept)))

    def _fast_elsewhere(self) -> dict[str, Parameters]:
        """Return the fastest configurations of each other device, if the space has to be drawn."""
        if self._sampler is None or self._sampler.is_listed:
            return {}
        others = [times for name, times in self._known.items() if name != self.device]
        fast: dict[str, Parameters] = {}
        for times in (*others, self._estimates):
            order = sorted(times, key=lambda key: times[key] or math.inf)
            for key in order[: int(_KNOWN_SHARE * LARGEST_POOL) // (len(others) + 1)]:
                if self._sampler.admits(configuration := json.loads(key)):
                    fast[key] = configuration
        return fast


def _shortened(pool: Mapping[str, Parameters], measured: int) -> dict[str, Parameters]:
    """Return the first configurations, as many as are forecast at once, and all measured ones."""
    return dict(islice(pool.items(), max(LARGEST_POOL, measured)))


def _canonical(times: Times, usual: Container[str]) -> dict[str, float | None]:
    """Return times by canonical keys; the `usual` keys are canonical already."""
    canonical: dict[str, float | None] = {}
    for key, seconds in times.items():
        if seconds is not None and not 0.0 < seconds < math.inf:
            raise SetupError(f"the time of {key} is {seconds}: give seconds, or None if it failed")
        if key in usual:
            canonical[key] = seconds
            continue
        try:
            canonical[canonical_parameters(json.loads(key))] = seconds
        except (ValueError, TypeError, AttributeError) as error:
            raise SetupError(
                f"{key!r} is no configuration: a key is its JSON text, as json.dumps writes it"
            ) from error
    return canonical
