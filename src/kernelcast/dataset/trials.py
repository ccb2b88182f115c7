"""Recorded evaluations as trials: the query a forecaster would have received, and its outcome.

This is the only replay of rows. Evaluation, training and the benches use it. Its rules:

- Rows with a search id and a step form a search, in the order of their steps. All other rows of
  one problem on one device form a pool, which has no order.
- A search starts with its reference at a log2 speedup of 0.
- A kernel of a pool is against the reference of its row, as pairs of kernels are published.
- A kernel counts once in a search, and once against each reference of a pool, by its id: the first
  row with that id. A row that measures a search's reference again is left out.
- A kernel whose text was not published is never a candidate, but the search has measured it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kernelcast.dataset.keys import problem_group
from kernelcast.dataset.recordings import (
    recorded_device,
    recorded_kernel,
    recorded_observation,
    recorded_problem,
    reference_observation,
)
from kernelcast.dataset.rows import Rows
from kernelcast.types import CaseSpeed, Observation, Query

Anchor = Literal["best", "reference"]
Order = Literal["recorded", "shuffled", "none"]

TRIED = (
    *("row_id", "problem", "family", "language", "device", "template", "source"),
    *("candidate_id", "candidate_source", "candidate_parameters"),
    *("reference_id", "reference_source", "reference_parameters"),
    *("runtime_s", "reference_runtime_s", "log2_speedup", "status", "status_detail", "details"),
    *("search_id", "step", "model"),
)
"""The columns that `recorded_trials` needs."""


@dataclass(frozen=True)
class Trial:
    """One recorded evaluation.

    Attributes:
        query: What a forecaster would have been asked.
        ok: True if the kernel ran and was right.
        log2_speedup: Against the anchor; None if it was not timed.
        observation: What the row teaches; None where a right kernel was not timed.
        news: In a search, what was measured between the previous trial's query and this one.
        row_id: The row it comes from.
    """

    query: Query
    ok: bool
    log2_speedup: float | None
    observation: Observation | None
    news: tuple[Observation, ...] = ()
    row_id: str = ""

    @property
    def log2_over_reference(self) -> float | None:
        """The speedup against what the anchor's own is against; None if it was not timed."""
        if self.log2_speedup is None:
            return None
        return self.log2_speedup + self.query.anchor_log2_speedup


@dataclass(frozen=True)
class Trials:
    """The trials of one recorded search in their order, or of a pool, which has none."""

    problem: str
    device: str
    search: str | None
    ordered: bool
    trials: tuple[Trial, ...]

    @property
    def group(self) -> str:
        """The problems that splits and resampling keep together."""
        return problem_group(self.problem)


def recorded_trials(
    rows: Rows, anchor: Anchor = "best", *, order: Order = "recorded", seed: int = 0
) -> Iterator[Trials]:
    """The searches and pools of a table, in the order in which they first appear.

    Args:
        rows: Any table of rows with the columns `TRIED`.
        anchor: In a search, the fastest kernel measured before (`best`) or the `reference`
            throughout. In a pool it is the reference.
        order: `recorded` keeps searches and pools as they are. `shuffled` makes each pool a search
            in a random order. `none` makes one pool of all kernels of a problem on a device.
        seed: Seed of the random order.
    """
    grouped: dict[tuple[str, str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.select(TRIED).to_pylist():
        stepped = order != "none" and row["step"] is not None
        grouped[row["problem"], row["device"], row["search_id"] if stepped else None].append(row)
    rng = np.random.default_rng(seed)
    for (problem, device, search), members in grouped.items():
        if search is not None:
            members.sort(key=lambda row: row["step"])
        elif order == "shuffled":
            members = [members[at] for at in rng.permutation(len(members))]
        ordered = search is not None or order == "shuffled"
        trials = tuple(_trials(members, ordered=ordered, follow=anchor == "best"))
        if trials:
            yield Trials(problem, device, search, ordered, trials)


def _trials(rows: Sequence[Mapping[str, Any]], *, ordered: bool, follow: bool) -> Iterator[Trial]:
    first = next((row for row in rows if row["reference_source"] or row["template"]), rows[0])
    problem, device = recorded_problem(first), recorded_device(first)
    reference = recorded_kernel(first, "reference")
    news = [reference_observation(first, problem, reference)]
    best, best_log2, best_s = reference, 0.0, first["reference_runtime_s"] or math.nan
    best_cases = _speeds(news[0])
    anchors = {first["reference_id"]: (best, best_s, best_cases)}
    seen = {(reference.id, reference.id)} if ordered else set()
    for row in rows:
        if not ordered:
            against = row["reference_id"] or first["reference_id"]
            if against not in anchors:
                own, own_s = recorded_kernel(row, "reference"), row["reference_runtime_s"]
                own_cases = _speeds(reference_observation(row, problem, own))
                anchors[against] = (own, own_s or math.nan, own_cases)
            best, best_s, best_cases = anchors[against]
        pair = ((reference if ordered else best).id, row["candidate_id"])
        if row["status"] == "reference" or pair in seen:
            continue
        seen.add(pair)
        kernel, log2 = recorded_kernel(row, "candidate"), row["log2_speedup"]
        observation = recorded_observation(row, problem, kernel)
        if row["candidate_source"] is not None or row["candidate_parameters"] is not None:
            yield Trial(
                row_id=row["row_id"],
                query=Query(
                    problem=problem,
                    device=device,
                    candidate=kernel,
                    writer=row["model"] or "",
                    anchor=best,
                    anchor_log2_speedup=best_log2,
                    anchor_runtime_s=best_s,
                    anchor_cases=best_cases,
                ),
                ok=row["status"] == "ok",
                log2_speedup=None if log2 is None else log2 - best_log2,
                observation=observation,
                news=tuple(news) if ordered else (),
            )
            news = []
        if ordered and observation is not None:
            news.append(observation)
            if follow and log2 is not None and log2 > best_log2:
                best, best_log2, best_s = kernel, log2, row["runtime_s"] or math.nan
                best_cases = _speeds(observation)


def _speeds(observation: Observation) -> tuple[CaseSpeed, ...]:
    """The speed of each case that the source published."""
    timing = observation.measurement.timing
    cases = timing.cases if timing is not None else ()
    return tuple(
        CaseSpeed(
            case=case.case,
            runtime_s=case.runtime_s,
            log2_speedup=math.log2(case.reference_runtime_s / case.runtime_s),
        )
        for case in sorted(cases, key=lambda case: -case.runtime_s)
    )
