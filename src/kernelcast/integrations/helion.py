"""Helion's default search, with neighbours chosen by kernelcast's forecasts.

    import kernelcast.integrations.helion  # then run with HELION_AUTOTUNER=KernelcastSearch

The import adds `KernelcastSearch` to `helion.autotuner.search_algorithms`, where Helion looks for
the name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import quantiles

from kernelcast import Tuner
from kernelcast.integrations._package import check_version

check_version("helion", "1.5.0", "1.5")

from helion import Config  # noqa: E402 - a version that is not supported may lack these
from helion.autotuner import LFBOTreeSearch, search_algorithms  # noqa: E402
from helion.autotuner.base_search import PopulationMember  # noqa: E402

_Point = dict[str, int | float | str]

_SLOW_SLOPE = 0.25  # power of a ratio between two times slower than the fastest quarter
_MOST_LEARNT = 400  # configurations; more take seconds to learn from
_EXPLORED = 0.05  # of what is measured


class KernelcastSearch(LFBOTreeSearch):  # type: ignore[misc]
    """Helion's default search, which measures other neighbours.

    `LFBOTreeSearch` measures about a tenth of the neighbours that it generates. It chooses them by
    a random forest; this class chooses those that are most probably among the fastest, by the
    forecasts of a `Tuner`. A tenth of them is drawn at random, so that no wrong forecast can stall
    the search. All else is Helion's: arguments, effort profiles, neighbours, timing, caches. Every
    process of a distributed kernel chooses the same.
    """

    def _append_training_sample(
        self,
        encoded: object,
        perf: float,
        config: Config,
        fn: Callable[..., object],
        member: PopulationMember | None = None,
    ) -> None:
        """Keep a measured configuration, also one that `seed_training_data` was given."""
        if member is None:
            member = PopulationMember(fn, [perf], self.config_gen.flatten(config), config)
        super()._append_training_sample(encoded, perf, config, fn, member)

    def _surrogate_select(
        self, candidates: list[PopulationMember], n_sorted: int
    ) -> list[PopulationMember]:
        """Return `n_sorted` candidates: those that are measured already, then the chosen ones."""
        learnt = [
            (_point(member.flat_values), perf)
            for member, perf in zip(self._train_members, self.train_y, strict=True)
        ]
        if not any(0 < perf < math.inf for _, perf in learnt):
            chosen: list[PopulationMember] = super()._surrogate_select(candidates, n_sorted)
            return chosen
        kept = [member for member in candidates if member.perfs][: max(0, n_sorted)]
        fresh = [member for member in candidates if not member.perfs]
        wanted = min(n_sorted - len(kept), len(fresh))
        if wanted <= 0:
            return kept
        points = [_point(member.flat_values) for member in fresh]
        scores = _chances(_shortened(learnt), points, wanted)
        if self.surrogate is not None:
            encoded = [self.config_gen.encode_config(member.flat_values) for member in fresh]
            forest = self.surrogate.predict_proba(encoded)[:, 1]
            scores = [ours + float(its) for ours, its in zip(scores, forest, strict=True)]
        order = sorted(range(len(fresh)), key=lambda index: -scores[index])
        explored = math.ceil(_EXPLORED * wanted) if wanted > 2 else 0
        best, others = order[: wanted - explored], order[wanted - explored :]
        best += random.Random(len(learnt)).sample(others, explored)  # noqa: S311 - no secret
        return kept + [fresh[index] for index in best]


def _point(flat_values: Sequence[object]) -> _Point:
    """Return a flat configuration of Helion as one of `Tuner`: a list is a parameter an entry."""
    point: _Point = {}
    for number, value in enumerate(flat_values):
        entries = value if isinstance(value, list | tuple) else [value]
        for place, entry in enumerate(entries):
            known = entry if isinstance(entry, int | float | str) else repr(entry)
            point[f"{number}.{place}"] = int(known) if isinstance(known, bool) else known
    return point


def _shortened(learnt: list[tuple[_Point, float]]) -> list[tuple[_Point, float]]:
    """Return at most `_MOST_LEARNT`: the fastest, and as many of the others, evenly spread."""
    ordered = sorted(learnt, key=lambda sample: sample[1])
    if len(ordered) <= _MOST_LEARNT:
        return ordered
    half = _MOST_LEARNT // 2
    others = ordered[half:]
    return ordered[:half] + others[:: math.ceil(len(others) / half)]


def _chances(learnt: list[tuple[_Point, float]], points: list[_Point], wanted: int) -> list[float]:
    """Return for each point the chance to be among the faster half of the `wanted` fastest."""
    pool = {tuple(point.items()): point for point in [*(point for point, _ in learnt), *points]}
    tuner = Tuner(list(pool.values()))
    for (point, _), seconds in zip(learnt, _told([perf for _, perf in learnt]), strict=True):
        tuner.report(point, seconds=seconds)
    medians = sorted(forecast.seconds for forecast in tuner.forecast(points))
    forecasts = tuner.forecast(points, against_s=medians[wanted // 2])
    return [forecast.speedup.probability_above(0.0) for forecast in forecasts]


def _told(perfs: Sequence[float]) -> list[float]:
    """Return the seconds that a tuner is told, for times in milliseconds.

    The choice is among fast configurations, so differences between slow ones are made smaller. A
    failure counts as the slowest time, so that its neighbours are avoided.
    """
    timed = [perf for perf in perfs if 0 < perf < math.inf]
    knee = quantiles(timed, n=4, method="inclusive")[0] if len(timed) > 1 else timed[0]
    slowest = max(timed)
    told = []
    for perf in perfs:
        ms = perf if 0 < perf < math.inf else slowest
        told.append(1e-3 * (ms if ms <= knee else knee * (ms / knee) ** _SLOW_SLOPE))
    return told


search_algorithms["KernelcastSearch"] = KernelcastSearch
