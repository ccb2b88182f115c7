"""Forecasts of a template's configurations as they come: `space.py` for a pool that is not fixed.

A run meets configurations a few at a time. Each time, those that were measured and those that are
asked about make up a pool, so that a forecast depends on the measurements and the question alone:
a resumed run forecasts as the one that never stopped.
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

# Times have heavier tails than a normal: levels and places, in deviations, of Student's t with four
# degrees of freedom, whose middle 68% are as wide as a normal's.
_LEVELS = (0.001, 0.02, 0.158655, 0.5, 0.841345, 0.98, 0.999)
_PLACES = (-6.28, -2.63, -1.0, 0.0, 1.0, 2.63, 6.28)


@dataclass(frozen=True)
class DeviceTimes:
    """What is known of a template's configurations on another device.

    Log2 of seconds by canonical parameters, None where the configuration fails there.
    """

    device: str
    log2_runtime: Mapping[str, float | None]
    same_vendor: bool = True

    @cached_property
    def ranks(self) -> Mapping[str, int | None]:
        """The place of each configuration, fastest first; None where it fails."""
        timed = {key: each for key, each in self.log2_runtime.items() if each is not None}
        ranks: dict[str, int | None] = dict.fromkeys(self.log2_runtime)
        ranks |= {key: rank for rank, key in enumerate(sorted(timed, key=timed.__getitem__), 1)}
        return ranks


Elsewhere = Callable[[Problem, Device], Sequence[DeviceTimes]]


class TunedForecaster:
    """Learns from measured configurations; forecasts the ones it is asked about."""

    name = "tuned"

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._lessons: dict[str, tuple[Parameters, float | None]] = {}
        self._causes: Counter[FailureKind] = Counter()
        self._known_elsewhere: dict[tuple[str, str], Sequence[DeviceTimes]] = {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations; the next forecast uses them."""
        for each in observations:
            parameters, measurement = each.kernel.parameters, each.measurement
            assert parameters is not None
            if measurement.failure is not None:
                self._causes[measurement.failure.kind] += 1
            # As log2 runtime in units of the reference's.
            log2_speedup = measurement.log2_speedup
            lesson = (parameters, None if log2_speedup is None else -log2_speedup)
            self._lessons[canonical_parameters(parameters)] = lesson

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Each candidate from all that was measured here and elsewhere."""
        if not queries:
            return []
        pool = _Pool(self._lessons, queries)
        others = self._others(queries[0].problem, queries[0].device)
        space = SpaceForecaster(
            pool.configurations, [pool.sibling(each) for each in others], domain=pool.domain
        )
        for key, (_, log2_runtime) in self._lessons.items():
            space.learn(pool.place[key], log2_runtime)
        told = space.predict()
        causes = self._causes or Counter([FailureKind.CRASH])
        total = causes.total()
        units = pool.units(told, queries, measured=bool(self._lessons))
        reasons = _Reasons(pool, others, self._lessons)
        is_prior = not self._lessons and not any(
            key in each.log2_runtime for each in others for key in pool.place
        )
        # Speedup falls as runtime rises: the slow side is the low one.
        runtimes = np.array([told.at(-place) for place in _PLACES])
        answers = []
        for query, unit in zip(queries, units, strict=True):
            key = _key(query)
            at = pool.place[key]
            chance = 1.0 - float(told.p_ok[at])
            failure = {kind: chance * count / total for kind, count in causes.items()}
            speedups = unit - runtimes[:, at] - query.anchor_log2_speedup
            answers.append(
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
        return answers

    def _others(self, problem: Problem, device: Device) -> Sequence[DeviceTimes]:
        if self._elsewhere is None:
            return ()
        place = (problem.name, device.name)
        if place not in self._known_elsewhere:
            self._known_elsewhere[place] = self._elsewhere(problem, device)
        return self._known_elsewhere[place]


class _Pool:
    """The configurations of one forecast: measured, asked about, and what they are held against."""

    def __init__(
        self, lessons: Mapping[str, tuple[Parameters, float | None]], queries: Sequence[Query]
    ) -> None:
        found: dict[str, Parameters] = {key: each for key, (each, _) in lessons.items()}
        for query in queries:
            for kernel in (query.candidate, query.anchor):
                if kernel.parameters is not None:
                    found.setdefault(canonical_parameters(kernel.parameters), kernel.parameters)
        names = next(iter(found.values())).keys()
        template = queries[0].problem.template
        self.domain = template.parameters if template is not None else None
        self.configurations = list(found.values())
        self.place = {key: index for index, key in enumerate(found)}
        codes: dict[str, dict[object, int]] = {name: {} for name in names}
        self.levels = np.array(
            [
                [code.setdefault(each.get(name), len(code)) for name, code in codes.items()]
                for each in self.configurations
            ]
        ).reshape(len(found), len(codes))

    def sibling(self, times: DeviceTimes) -> Sibling:
        known = [times.log2_runtime.get(key, np.nan) for key in self.place]
        return Sibling(
            device=times.device,
            log2_runtime=np.array([np.nan if each is None else each for each in known]),
            failed=np.array([each is None for each in known]),
            same_vendor=times.same_vendor,
        )

    def units(self, told: Predictions, queries: Sequence[Query], *, measured: bool) -> list[float]:
        """The log2 runtime that speedup 1 stands for, by query.

        Measured times are in units of the reference's: it is 0. Where nothing was measured here,
        it is what is forecast of the anchor or, if that is no configuration, of the middle one.
        """
        if measured:
            return [0.0] * len(queries)
        middle = float(np.median(told.log2_runtime))
        units = []
        for query in queries:
            anchor = query.anchor.parameters
            if anchor is None:
                units.append(middle)
            else:
                at = self.place[canonical_parameters(anchor)]
                units.append(float(told.log2_runtime[at]) + query.anchor_log2_speedup)
        return units


class _Reasons:
    """What a forecast rests on, in a few words."""

    def __init__(
        self,
        pool: _Pool,
        others: Sequence[DeviceTimes],
        lessons: Mapping[str, tuple[Parameters, float | None]],
    ) -> None:
        self._pool = pool
        self._ranks = [(each.device, each.ranks) for each in others]
        # The fastest first, so that of equally near ones it is named.
        order = sorted(lessons, key=lambda key: (lessons[key][1] is None, lessons[key][1] or 0.0))
        self._outcomes = [lessons[key][1] for key in order]
        self._measured = pool.levels[[pool.place[key] for key in order]]

    def of(self, key: str) -> str:
        ranked = [(ranks[key], len(ranks), device) for device, ranks in self._ranks if key in ranks]
        failed = [device for rank, _, device in ranked if rank is None]
        places = sorted((rank / count, device) for rank, count, device in ranked if rank)
        told = [f"top {share:.1%} on {device}" for share, device in places[:2]]
        told += [f"fails on {device}" for device in failed[:1]]
        if self._outcomes:
            steps = (self._measured != self._pool.levels[self._pool.place[key]]).sum(axis=1)
            nearest = int(np.argmin(steps))
            log2_runtime = self._outcomes[nearest]
            outcome = "failed" if log2_runtime is None else f"ran at {2.0**-log2_runtime:.2f}x"
            told.append(f"{steps[nearest]} parameters from one that {outcome}")
        return "; ".join(told) or "nothing is measured yet"


def _key(query: Query) -> str:
    assert query.candidate.parameters is not None
    return canonical_parameters(query.candidate.parameters)
