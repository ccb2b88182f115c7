"""Forecasts of a template's configurations, a few at a time, by `space.py`.

For each forecast, the measured configurations and the queried ones make up a pool. A forecast thus
depends on the measurements and the queries alone, and a resumed run forecasts like an uninterrupted
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.distribution import Distribution
from kernelcast.forecasters.space import Predictions, Sibling, SpaceForecaster
from kernelcast.types import Device, FailureKind, Forecast, Observation, Parameters, Problem, Query

# Times have heavier tails than a normal distribution. These are quantiles of Student's t with four
# degrees of freedom, scaled to the middle 68% of a normal.
_LEVELS = (0.001, 0.02, 0.158655, 0.5, 0.841345, 0.98, 0.999)
_PLACES = (-6.28, -2.63, -1.0, 0.0, 1.0, 2.63, 6.28)


@dataclass(frozen=True)
class DeviceTimes:
    """Times of a template's configurations on another device.

    `log2_runtime` holds log2 of seconds by canonical parameters; None if the configuration fails.
    """

    device: str
    log2_runtime: Mapping[str, float | None]
    same_vendor: bool = True

    @cached_property
    def ranks(self) -> Mapping[str, int | None]:
        """The rank of each configuration, fastest first; None if it fails."""
        timed = {key: time for key, time in self.log2_runtime.items() if time is not None}
        ranks: dict[str, int | None] = dict.fromkeys(self.log2_runtime)
        ranks |= {key: rank for rank, key in enumerate(sorted(timed, key=timed.__getitem__), 1)}
        return ranks


Elsewhere = Callable[[Problem, Device], Sequence[DeviceTimes]]


class TunedForecaster:
    """Learns from measured configurations and forecasts others."""

    name = "tuned"

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._lessons: dict[str, tuple[Parameters, float | None]] = {}
        self._causes: Counter[FailureKind] = Counter()
        self._known_elsewhere: dict[tuple[str, str], Sequence[DeviceTimes]] = {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations for the next forecast."""
        for observation in observations:
            parameters, measurement = observation.kernel.parameters, observation.measurement
            assert parameters is not None
            if measurement.failure is not None:
                self._causes[measurement.failure.kind] += 1
            # The log2 runtime in units of the reference's.
            log2_speedup = measurement.log2_speedup
            lesson = (parameters, None if log2_speedup is None else -log2_speedup)
            self._lessons[canonical_parameters(parameters)] = lesson

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Forecast each candidate from the measurements on this and on other devices."""
        if not queries:
            return []
        pool = _Pool(self._lessons, queries)
        others = self._others(queries[0].problem, queries[0].device)
        space = SpaceForecaster(
            pool.configurations, [pool.sibling(times) for times in others], domain=pool.domain
        )
        for key, (_, log2_runtime) in self._lessons.items():
            space.learn(pool.place[key], log2_runtime)
        predictions = space.predict()
        causes = self._causes or Counter([FailureKind.CRASH])
        total = causes.total()
        units = pool.units(predictions, queries, measured=bool(self._lessons))
        reasons = _Reasons(pool, others, self._lessons)
        is_prior = not self._lessons and not any(
            key in times.log2_runtime for times in others for key in pool.place
        )
        # Speedup falls as runtime rises, so the slow side has the low quantiles.
        runtimes = np.array([predictions.at(-place) for place in _PLACES])
        forecasts = []
        for query, unit in zip(queries, units, strict=True):
            key = _key(query)
            at = pool.place[key]
            chance = 1.0 - float(predictions.p_ok[at])
            failure = {kind: chance * count / total for kind, count in causes.items()}
            speedups = unit - runtimes[:, at] - query.anchor_log2_speedup
            forecasts.append(
                Forecast(
                    forecaster=self.name,
                    anchor_id=query.anchor.id,
                    anchor_log2_speedup=query.anchor_log2_speedup,
                    distribution=Distribution.from_quantiles(_LEVELS, speedups),
                    failure=failure,
                    rationale=reasons.of(key),
                    is_prior=is_prior,
                )
            )
        return forecasts

    def _others(self, problem: Problem, device: Device) -> Sequence[DeviceTimes]:
        if self._elsewhere is None:
            return ()
        place = (problem.name, device.name)
        if place not in self._known_elsewhere:
            self._known_elsewhere[place] = self._elsewhere(problem, device)
        return self._known_elsewhere[place]


class _Pool:
    """The configurations of one forecast: measured ones, candidates and anchors."""

    def __init__(
        self, lessons: Mapping[str, tuple[Parameters, float | None]], queries: Sequence[Query]
    ) -> None:
        by_key: dict[str, Parameters] = {key: lesson[0] for key, lesson in lessons.items()}
        for query in queries:
            for kernel in (query.candidate, query.anchor):
                if kernel.parameters is not None:
                    by_key.setdefault(canonical_parameters(kernel.parameters), kernel.parameters)
        names = next(iter(by_key.values())).keys()
        template = queries[0].problem.template
        self.domain = template.parameters if template is not None else None
        self.configurations = list(by_key.values())
        self.place = {key: index for index, key in enumerate(by_key)}
        codes: dict[str, dict[object, int]] = {name: {} for name in names}
        self.levels = np.array(
            [
                [code.setdefault(point.get(name), len(code)) for name, code in codes.items()]
                for point in self.configurations
            ]
        ).reshape(len(by_key), len(codes))

    def sibling(self, times: DeviceTimes) -> Sibling:
        known = [times.log2_runtime.get(key, np.nan) for key in self.place]
        return Sibling(
            device=times.device,
            log2_runtime=np.array([np.nan if time is None else time for time in known]),
            failed=np.array([time is None for time in known]),
            same_vendor=times.same_vendor,
        )

    def units(
        self, predictions: Predictions, queries: Sequence[Query], *, measured: bool
    ) -> list[float]:
        """Return the log2 runtime of speedup 1 for each query.

        Measured times are in units of the reference's time, so it is 0. Before any measurement it
        is the forecast of the anchor or, if the anchor is no configuration, of the median one.
        """
        if measured:
            return [0.0] * len(queries)
        middle = float(np.median(predictions.log2_runtime))
        units = []
        for query in queries:
            anchor = query.anchor.parameters
            if anchor is None:
                units.append(middle)
            else:
                at = self.place[canonical_parameters(anchor)]
                units.append(float(predictions.log2_runtime[at]) + query.anchor_log2_speedup)
        return units


class _Reasons:
    """Short reasons for forecasts: ranks on other devices, the nearest measured configuration."""

    def __init__(
        self,
        pool: _Pool,
        others: Sequence[DeviceTimes],
        lessons: Mapping[str, tuple[Parameters, float | None]],
    ) -> None:
        self._pool = pool
        self._ranks = [(times.device, times.ranks) for times in others]
        # Fastest first, so that the fastest of equally near configurations is named.
        order = sorted(lessons, key=lambda key: (lessons[key][1] is None, lessons[key][1] or 0.0))
        self._outcomes = [lessons[key][1] for key in order]
        self._measured = pool.levels[[pool.place[key] for key in order]]

    def of(self, key: str) -> str:
        ranked = [(ranks[key], len(ranks), device) for device, ranks in self._ranks if key in ranks]
        failed = [device for rank, _, device in ranked if rank is None]
        places = sorted((rank / count, device) for rank, count, device in ranked if rank)
        reasons = [f"top {share:.1%} on {device}" for share, device in places[:2]]
        reasons += [f"fails on {device}" for device in failed[:1]]
        if self._outcomes:
            steps = (self._measured != self._pool.levels[self._pool.place[key]]).sum(axis=1)
            nearest = int(np.argmin(steps))
            log2_runtime = self._outcomes[nearest]
            outcome = "failed" if log2_runtime is None else f"ran at {2.0**-log2_runtime:.2f}x"
            reasons.append(f"{steps[nearest]} parameters from one that {outcome}")
        return "; ".join(reasons) or "nothing is measured yet"


def _key(query: Query) -> str:
    assert query.candidate.parameters is not None
    return canonical_parameters(query.candidate.parameters)
