"""Measured rows as lessons: searches replayed, each candidate asked about before it is measured.

Belongs here: how rows become the very queries and observations a forecaster meets in a run. Rows
that name their steps are replayed in that order; the others of one problem and device are a pool,
replayed in a shuffled order behind their reference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelcast.dataset import Rows
from kernelcast.dataset.recordings import (
    recorded_device,
    recorded_kernel,
    recorded_observation,
    recorded_problem,
    reference_observation,
)
from kernelcast.types import (
    Device,
    FailureKind,
    Kernel,
    Measurement,
    Observation,
    Problem,
    Query,
)


@dataclass(frozen=True)
class Step:
    """One recorded kernel; `measurement` is None where it ran but was not held against anything."""

    row: int
    kernel: Kernel
    measurement: Measurement | None
    fresh: bool

    @property
    def failed(self) -> FailureKind | None:
        """Why it has no time."""
        failure = self.measurement.failure if self.measurement else None
        return failure.kind if failure else None


@dataclass(frozen=True)
class Episode:
    """What was measured on one problem and device, in order; `start` came before the first step."""

    search: str
    problem: Problem
    device: Device
    start: Observation | None
    steps: tuple[Step, ...]
    ordered: bool


@dataclass(frozen=True)
class Anchor:
    """The best measured kernel so far."""

    kernel: Kernel
    log2_speedup: float
    runtime_s: float

    def query(self, episode: Episode, candidate: Kernel) -> Query:
        """The question what this candidate does against the best so far."""
        return Query(
            problem=episode.problem,
            device=episode.device,
            candidate=candidate,
            anchor=self.kernel,
            anchor_log2_speedup=self.log2_speedup,
            anchor_runtime_s=self.runtime_s,
        )


def episodes(rows: Rows, seed: int = 0) -> list[Episode]:
    """Rows as searches and pools, in the order in which they first appear."""
    groups: defaultdict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for number, row in enumerate(rows.to_pylist()):
        if row["status"] == "reference":
            continue
        ordered = row["search_id"] is not None and row["step"] is not None
        names = (row["search_id"],) if ordered else ("", row["problem"], row["device"])
        groups[names].append((number, row))
    shuffled = np.random.default_rng(seed)
    found = []
    for key, members in groups.items():
        if key[0]:
            members = sorted(members, key=lambda each: (each[1]["step"], each[0]))
        else:
            members = [members[i] for i in shuffled.permutation(len(members))]
        found.append(_episode(members, ordered=bool(key[0])))
    return found


def moments(episode: Episode) -> Iterator[tuple[int, Anchor, list[Observation]]]:
    """Before each step: its number, the best so far, and what was measured since the last time.

    Steps before anything has run are passed over: there is nothing to compare them with.
    """
    anchor: Anchor | None = None
    news: list[Observation] = []
    if episode.start is not None:
        news.append(episode.start)
        anchor = _better(anchor, episode.start)
    for number, step in enumerate(episode.steps):
        if anchor is not None:
            yield number, anchor, news
            news = []
        if step.measurement is not None:
            observation = Observation(kernel=step.kernel, measurement=step.measurement)
            news.append(observation)
            anchor = _better(anchor, observation)


def _better(anchor: Anchor | None, observation: Observation) -> Anchor | None:
    timing = observation.measurement.timing
    if timing is None or (anchor is not None and timing.log2_speedup <= anchor.log2_speedup):
        return anchor
    return Anchor(observation.kernel, timing.log2_speedup, timing.runtime_s)


def _episode(members: Sequence[tuple[int, Mapping[str, Any]]], *, ordered: bool) -> Episode:
    first = members[0][1]
    problem, device = recorded_problem(first), recorded_device(first)
    seen: set[str] = set()
    steps = []
    for number, row in members:
        # A configuration's template is no text of its own to learn from.
        kernel = Kernel(
            id=row["candidate_id"], language=row["language"], source=row["candidate_source"] or ""
        )
        observed = recorded_observation(row, problem, kernel)
        # Sources that differ in comments alone count as two, as in the published tracks.
        text = kernel.source or kernel.id
        measurement = observed.measurement if observed else None
        steps.append(Step(number, kernel, measurement, text not in seen))
        seen.add(text)
    start = None
    if not ordered or first["reference_source"] is not None:
        start = reference_observation(first, problem, recorded_kernel(first, "reference"))
    search = first["search_id"] if ordered else f"{first['problem']}@{first['device']}"
    return Episode(search, problem, device, start, tuple(steps), ordered)
