"""Forecasts of a template's configurations, a few at a time, by a model that is kept.

Measurements are taken up one by one, in the order in which they were learnt. Fits, new factors and
the removal of old measurements come at fixed counts of them. A forecast thus depends on the
measurements, their order and the queries alone, and a resumed run forecasts like an uninterrupted
one. The measurements that a model keeps are bounded, and so is the cost of a forecast.

Without times on other devices, the estimates of emulated configurations take their place: the prior
is made of those of the measured configurations, and others are placed into it by their own.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.forecasters._belief import trust_in
from kernelcast.forecasters._encoding import Domain, Encoding, Levels
from kernelcast.forecasters._failures import FailureModel
from kernelcast.forecasters._gaussian import Floats, GaussianProcess, evenly
from kernelcast.forecasters._prior import (
    FEWEST_FITTED,
    FEWEST_TIMED,
    HARDLY_KNOWN_STD_LOG2,
    Predictions,
    Prior,
    Sibling,
    Target,
    width,
)
from kernelcast.forecasters._reasons import Ranks, ranks_of, reasons
from kernelcast.types import (
    Device,
    Evidence,
    FailureKind,
    Forecast,
    Kernel,
    Observation,
    Parameters,
    Problem,
    Query,
)

# A fit starts from the one before. It is due when the measurements have grown by a share: a tenth,
# or a fifth if they are many.
_MANY = 256
_SHARE, _SHARE_OF_MANY = 10, 5
_FIT_STEPS, _FIT_STEPS_OF_MANY = 6, 4
_MOST_ADDED = 128  # measurements before a new factor
_MOST_ROWS, _ROWS_KEPT = 896, 704
_TYPICAL = 8  # the first measurements, which set the mean
_ESTIMATE_STD_LOG2 = 0.5  # of a configuration that is known by its estimate alone


@dataclass(frozen=True)
class DeviceTimes:
    """Times of a template's configurations on another device.

    `log2_runtime` holds log2 of seconds by canonical parameters; None if the configuration fails.
    """

    device: str
    log2_runtime: Mapping[str, float | None]
    same_vendor: bool = True

    @cached_property
    def ranks(self) -> Ranks:
        """The rank of each configuration, fastest first; None if it fails."""
        return ranks_of(self.log2_runtime)

    @property
    def seconds(self) -> dict[str, float | None]:
        """The times as a `Tuner` knows them."""
        return {
            key: None if log2_s is None else 2.0**log2_s
            for key, log2_s in self.log2_runtime.items()
        }

    def sibling(self, keys: Sequence[str]) -> Sibling:
        """Return the times of the configurations in `keys`."""
        known = [self.log2_runtime.get(key, math.nan) for key in keys]
        return Sibling(
            device=self.device,
            log2_runtime=np.array([math.nan if time is None else time for time in known]),
            failed=np.array([time is None for time in known], dtype=bool),
            same_vendor=self.same_vendor,
        )


Elsewhere = Callable[[Problem, Device], Sequence[DeviceTimes]]


@dataclass(frozen=True)
class _Lesson:
    """One measured configuration."""

    key: str
    parameters: Parameters
    log2_runtime: float
    """In units of the reference's runtime; nan if it failed."""
    log2_estimate: float
    """Of its seconds; nan if it was not emulated."""

    @property
    def failed(self) -> bool:
        return math.isnan(self.log2_runtime)


class TunedForecaster:
    """Learns from measured configurations and forecasts others."""

    name = "tuned"

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._lessons: list[_Lesson] = []
        self._causes: Counter[FailureKind] = Counter()
        self._model: _KeptModel | None = None

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations for the next forecast."""
        for observation in observations:
            parameters, measurement = observation.kernel.parameters, observation.measurement
            assert parameters is not None
            if measurement.failure is not None:
                self._causes[measurement.failure.kind] += 1
            log2_speedup = measurement.log2_speedup
            log2_runtime = math.nan if log2_speedup is None else -log2_speedup
            key = canonical_parameters(parameters)
            estimate = _log2_estimate(observation.evidence)
            self._lessons.append(_Lesson(key, parameters, log2_runtime, estimate))

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Forecast each candidate from the measurements on this and on other devices."""
        if not queries:
            return []
        model = self._model_of(queries[0].problem, queries[0].device)
        model.learn(self._lessons)
        asked = _Asked(queries, with_anchors=not self._lessons)
        predictions = model.predict(asked.configurations, asked.log2_estimates)
        units = asked.units(predictions, estimated=not model.has_others)
        why = model.reasons(asked.configurations)
        is_known = model.is_known_elsewhere(asked.configurations) or bool(asked.log2_estimates)
        is_prior = not self._lessons and not is_known
        causes = self._causes or Counter([FailureKind.CRASH])
        total = causes.total()
        anchors = np.array([query.anchor_log2_speedup for query in queries])
        distributions = predictions.speedups(
            np.array(asked.places, dtype=np.intp), np.array(units) - anchors
        )
        forecasts = []
        for query, at, distribution in zip(queries, asked.places, distributions, strict=True):
            chance = 1.0 - float(predictions.p_ok[at])
            failure = {kind: chance * count / total for kind, count in causes.items()}
            forecasts.append(
                Forecast(
                    forecaster=self.name,
                    anchor_id=query.anchor.id,
                    anchor_log2_speedup=query.anchor_log2_speedup,
                    distribution=distribution,
                    failure=failure,
                    rationale=why[at],
                    is_prior=is_prior,
                )
            )
        return forecasts

    def _model_of(self, problem: Problem, device: Device) -> _KeptModel:
        """Return the kept model, or a new one for another problem or device."""
        place = (problem.name, device.name)
        domain = {} if problem.template is None else problem.template.parameters
        if self._model is None or (self._model.place, self._model.domain) != (place, domain):
            others = () if self._elsewhere is None else self._elsewhere(problem, device)
            self._model = _KeptModel(place, domain, others)
        return self._model


class _Asked:
    """The configurations of one call: candidates and, before any measurement, anchors."""

    def __init__(self, queries: Sequence[Query], *, with_anchors: bool) -> None:
        self.configurations: dict[str, Parameters] = {}
        self.log2_estimates: dict[str, float] = {}
        self._index: dict[str, int] = {}
        self._queries = queries
        self.places = [self._place(query.candidate, query.evidence) for query in queries]
        self._anchors: list[int | None] | None = None
        if with_anchors:
            self._anchors = [
                None
                if query.anchor.parameters is None
                else self._place(query.anchor, query.anchor_evidence)
                for query in queries
            ]

    def _place(self, kernel: Kernel, evidence: Evidence | None) -> int:
        assert kernel.parameters is not None
        key = canonical_parameters(kernel.parameters)
        self.configurations.setdefault(key, kernel.parameters)
        estimate = _log2_estimate(evidence)
        if not math.isnan(estimate):
            self.log2_estimates[key] = estimate
        return self._index.setdefault(key, len(self._index))

    def units(self, predictions: Predictions, *, estimated: bool) -> list[float]:
        """Return the log2 runtime of speedup 1 for each query.

        Measured times are in units of the reference's time, so it is 0. Before any measurement it
        is the forecast of the anchor. If the anchor is no configuration, it is the anchor's
        estimate, where predictions are `estimated`, or the forecast of the median configuration.
        """
        if self._anchors is None:
            return [0.0] * len(self._queries)
        log2_runtime = predictions.log2_runtime
        middle = float(np.median(log2_runtime))
        units = []
        for query, at in zip(self._queries, self._anchors, strict=True):
            estimate = _log2_estimate(query.anchor_evidence) if estimated else math.nan
            if at is not None:
                units.append(float(log2_runtime[at]) + query.anchor_log2_speedup)
            elif math.isnan(estimate):
                units.append(middle)
            else:
                units.append(estimate + query.anchor_log2_speedup)
        return units


class _KeptModel:
    """The model of one problem on one device, and the measurements that it keeps."""

    def __init__(
        self, place: tuple[str, str], domain: Domain, others: Sequence[DeviceTimes]
    ) -> None:
        self.place, self.domain, self._others = place, domain, others
        # The prior covers all configurations on other devices. Other ones are placed into it.
        keys = list(dict.fromkeys(key for times in others for key in times.log2_runtime))
        self._elsewhere = {key: row for row, key in enumerate(keys)}
        configurations: list[Parameters] = [json.loads(key) for key in keys]
        self._encoding = Encoding.of(configurations, domain)
        _, features = self._encoding.encode(configurations)
        self._prior = Prior.of([times.sibling(keys) for times in others], features)
        self._failures = self._failure_model(features)
        self._by_others = self._prior
        self.has_others = self._prior.knee is not None
        """Whether times on other devices are known."""
        self._log_hyper = self._prior.model().log_hyper
        self._taken = 0
        self._rows: dict[str, _Lesson] = {}
        self._next_start = self._next_fit = self._room = 1
        self._start: list[_Lesson] = []  # the rows at the last count for a new factor
        self._to_fit: list[list[_Lesson]] = []  # the rows at each count for a fit not yet made
        self._process: GaussianProcess | None = None  # of the factor since the last start
        self._levels, self._placed = self._place({}, {})
        self._width = 1.0

    def learn(self, lessons: Sequence[_Lesson]) -> None:
        """Take up the lessons that are new. All linear algebra is left to `predict`."""
        for lesson in lessons[self._taken :]:
            before = self._rows.get(lesson.key)
            self._rows[lesson.key] = lesson
            self._taken += 1
            # The factor has the rows with a time, in their order.
            out_of_order = before is not None and before.failed != lesson.failed
            if out_of_order or self._taken >= self._next_start:
                self._restart()

    def _restart(self) -> None:
        if len(self._rows) > _MOST_ROWS:
            lessons = list(self._rows.values())
            self._rows = {lessons[row].key: lessons[row] for row in _rows_to_keep(lessons)}
        self._start, self._process = list(self._rows.values()), None
        step = max(2, self._taken // (_SHARE if self._taken < _MANY else _SHARE_OF_MANY))
        self._room = min(step, _MOST_ADDED)
        self._next_start = self._taken + self._room
        if self._taken >= self._next_fit:
            self._next_fit = self._taken + step
            self._to_fit.append(self._start)

    def _place(
        self, configurations: Mapping[str, Parameters], log2_estimates: Mapping[str, float]
    ) -> tuple[Levels, Prior]:
        levels, features = self._encoding.encode(list(configurations.values()))
        rows = [self._elsewhere.get(key, -1) for key in configurations]
        estimates = np.array([log2_estimates.get(key, math.nan) for key in configurations])
        return levels, self._prior.at(np.array(rows, dtype=np.intp), features, estimates)

    def _place_rows(self, lessons: Sequence[_Lesson]) -> tuple[Levels, Prior]:
        return self._place(
            {lesson.key: lesson.parameters for lesson in lessons},
            {lesson.key: lesson.log2_estimate for lesson in lessons},
        )

    def _fit(self, lessons: Sequence[_Lesson]) -> None:
        """Set the hyperparameters, starting from those of the fit before."""
        if self.has_others:
            self._weigh_others(lessons)
        else:
            self._start_prior(lessons)
        _, placed = self._place_rows(lessons)
        process = placed.model()
        if len(process.log_hyper) == len(self._log_hyper):
            process.log_hyper = self._log_hyper
        times = _times(lessons)
        timed = np.flatnonzero(~np.isnan(times))
        if len(timed) >= FEWEST_FITTED:
            target = Target.of(times[timed], placed, timed, timed < _TYPICAL)
            steps = _FIT_STEPS if len(timed) < _MANY else _FIT_STEPS_OF_MANY
            process.fit(timed, target.values, steps)
        self._log_hyper = process.log_hyper

    def _weigh_others(self, lessons: Sequence[_Lesson]) -> None:
        """Start from the times on other devices, unless they mislead."""
        self._prior = self._by_others
        _, placed = self._place_rows(lessons)
        times = _times(lessons)
        timed = np.flatnonzero(~np.isnan(times))
        if trust_in(placed, timed, times[timed]) < 0.5:
            self._prior = Prior.cold(placed.features)

    def _start_prior(self, lessons: Sequence[_Lesson]) -> None:
        """Make the prior of the estimates of these configurations, or a cold one."""
        self._encoding = Encoding.of([lesson.parameters for lesson in lessons], self.domain)
        _, features = self._encoding.encode([lesson.parameters for lesson in lessons])
        estimates = np.array([lesson.log2_estimate for lesson in lessons])
        siblings = []
        if np.isfinite(estimates).sum() >= FEWEST_TIMED:
            failed = np.zeros(len(estimates), dtype=bool)
            siblings = [Sibling("emulated", estimates, failed, is_estimate=True)]
        self._prior = Prior.of(siblings, features)
        self._failures = self._failure_model(features)
        rows = enumerate(lesson.key for lesson in lessons) if siblings else ()
        self._elsewhere = {key: row for row, key in rows}

    def _failure_model(self, features: Floats) -> FailureModel:
        return FailureModel(self._encoding.sizes, features, self._prior.failure_share)

    def _conditioned(self) -> GaussianProcess:
        """Return the process that has observed all rows with a time."""
        for lessons in self._to_fit:
            self._fit(lessons)
            self._process = None
        self._to_fit.clear()
        if self._process is None:
            self._levels, self._placed = self._place_rows(self._start)
            self._process = self._placed.model()
            self._process.log_hyper = self._log_hyper
            times = _times(self._start)
            timed = np.flatnonzero(~np.isnan(times))
            self._process.condition(timed, self._room)
            self._width = 1.0
            if self._prior.learns_from(len(timed)):
                target = Target.of(times[timed], self._placed, timed, timed < _TYPICAL)
                self._width = width(self._process, target.values)
        first = len(self._placed.mean)
        added = list(self._rows.values())[first:]
        if added:
            levels, placed = self._place_rows(added)
            self._levels, self._placed = np.vstack([self._levels, levels]), self._placed + placed
            self._process.move(self._placed.features, self._placed.linear)
            for row, lesson in enumerate(added, first):
                if not lesson.failed:
                    self._process.extend(row)
        return self._process

    def predict(
        self, asked: Mapping[str, Parameters], log2_estimates: Mapping[str, float]
    ) -> Predictions:
        """Return predictions for these configurations, some of which have estimates."""
        process = self._conditioned()
        _, prior = self._place(asked, log2_estimates)
        both = self._placed + prior
        times = _times(self._rows.values())
        rows = np.arange(len(times))
        candidates = np.arange(len(times), len(times) + len(asked))
        failed = np.isnan(times)
        timed = rows[~failed]
        features = both.features[:, : len(self._encoding.sizes)]
        self._failures.fit(features[rows], both.failure_share[rows], failed)
        p_ok = 1 - self._failures.p_failure(features[candidates], prior.failure_share)
        if prior.knee is None and log2_estimates and len(timed) < _TYPICAL:
            return self._by_estimates(asked, log2_estimates, p_ok)
        if not prior.learns_from(len(timed)):
            return prior.predictions(times[timed], p_ok)
        target = Target.of(times[timed], both, timed, timed < _TYPICAL)
        process.move(both.features, both.linear)
        process.look(candidates)
        return target.predictions(process, prior.mean, p_ok, self._width)

    def _by_estimates(
        self, asked: Mapping[str, Parameters], log2_estimates: Mapping[str, float], p_ok: Floats
    ) -> Predictions:
        """Return predictions from estimates alone, at the level of the first measured times."""
        offsets = [row.log2_runtime - row.log2_estimate for row in self._rows.values()]
        level = float(np.nanmean(offsets)) if np.isfinite(offsets).any() else 0.0
        middle = float(np.median(list(log2_estimates.values())))
        mean = np.array([log2_estimates.get(key, middle) for key in asked])
        has_one = np.array([key in log2_estimates for key in asked])
        std = np.where(has_one, _ESTIMATE_STD_LOG2, HARDLY_KNOWN_STD_LOG2)
        return Predictions(level + mean, std, p_ok)

    def is_known_elsewhere(self, asked: Mapping[str, Parameters]) -> bool:
        """Return True if another device has a result of any of these configurations."""
        return any(key in self._elsewhere for key in asked)

    def reasons(self, asked: Mapping[str, Parameters]) -> list[str]:
        """Return short reasons: ranks on other devices, the nearest kept measurement."""
        lessons = list(self._rows.values())
        order = np.argsort(_times(lessons), kind="stable")
        outcomes = [
            "failed" if lesson.failed else f"ran at {2.0**-lesson.log2_runtime:.2f}x"
            for lesson in (lessons[row] for row in order)
        ]
        levels, _ = self._encoding.encode(list(asked.values()))
        ranks = {times.device: times.ranks for times in self._others}
        by_key = dict(zip(asked, levels, strict=True))
        return reasons(by_key, self._levels[order], outcomes, ranks)


def _log2_estimate(evidence: Evidence | None) -> float:
    """Return the estimated log2 of the seconds; nan if there is no estimate."""
    estimate = None if evidence is None else evidence.estimated_log2_s
    return math.nan if estimate is None else estimate


def _times(lessons: Iterable[_Lesson]) -> Floats:
    return np.array([lesson.log2_runtime for lesson in lessons], dtype=np.float64)


def _rows_to_keep(lessons: Sequence[_Lesson]) -> list[int]:
    """Return the first and the latest rows, the fastest ones and a spread of the others."""
    latest = len(lessons) - _ROWS_KEPT // 2
    times = _times(lessons[_TYPICAL:latest])
    order = np.argsort(times, kind="stable") + _TYPICAL
    fastest, others = order[: _ROWS_KEPT // 4], np.sort(order[_ROWS_KEPT // 4 :])
    spread = others[evenly(len(others), _ROWS_KEPT // 4 - _TYPICAL)]
    kept = np.concatenate([fastest, spread])
    return [*range(_TYPICAL), *np.sort(kept).tolist(), *range(latest, len(lessons))]
