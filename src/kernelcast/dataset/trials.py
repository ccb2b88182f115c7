"""Recorded evaluations as questions: what a forecaster would have been asked, what came of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from kernelcast.dataset.keys import problem_group
from kernelcast.dataset.recordings import (
    recorded_device,
    recorded_kernel,
    recorded_observation,
    recorded_problem,
)
from kernelcast.dataset.rows import Rows
from kernelcast.types import Observation, Query

Anchor = Literal["best", "reference"]

TRIED = (
    "problem",
    "family",
    "language",
    "device",
    "template",
    "candidate_id",
    "candidate_source",
    "candidate_parameters",
    "reference_id",
    "reference_source",
    "reference_parameters",
    "runtime_s",
    "reference_runtime_s",
    "log2_speedup",
    "status",
    "status_detail",
    "details",
    "search_id",
    "step",
    "source",
)
"""The columns that `recorded_trials` needs."""


@dataclass(frozen=True)
class Trial:
    """One recorded evaluation. `log2_speedup` is against the anchor; None if it was not timed.

    `observation` is what a forecaster learns from it afterwards, None where a kernel ran and was
    right but nobody timed it.
    """

    query: Query
    ok: bool
    log2_speedup: float | None
    observation: Observation | None


@dataclass(frozen=True)
class Trials:
    """The evaluations of one recorded search in their order, or of a pool that has none."""

    problem: str
    device: str
    search: str | None
    ordered: bool
    trials: tuple[Trial, ...]

    @property
    def group(self) -> str:
        """What splits and resampling keep together."""
        return problem_group(self.problem)


def recorded_trials(rows: Rows, anchor: Anchor = "best") -> Iterator[Trials]:
    """Each search of a table, or each problem on each device where no search is named.

    A kernel counts once in each, where it came first. In a search the anchor is the fastest kernel
    measured before (`best`), or the reference throughout.
    """
    grouped: dict[tuple[str, str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.select(TRIED).to_pylist():
        grouped[row["problem"], row["device"], row["search_id"]].append(row)
    for (problem, device, search), found in grouped.items():
        ordered = search is not None and all(row["step"] is not None for row in found)
        if ordered:
            found.sort(key=lambda row: row["step"])
        trials = tuple(_trials(found, follow=ordered and anchor == "best"))
        if trials:
            yield Trials(problem, device, search, ordered, trials)


def _trials(rows: list[dict[str, Any]], *, follow: bool) -> Iterator[Trial]:
    first = next((row for row in rows if row["reference_source"] or row["template"]), rows[0])
    reference = recorded_kernel(first, "reference")
    problem, device = recorded_problem(first), recorded_device(first)
    best, best_log2, best_s = reference, 0.0, math.nan
    seen: set[str] = set()
    for row in rows:
        if row["candidate_id"] in seen:
            continue
        seen.add(row["candidate_id"])
        kernel, log2 = recorded_kernel(row, "candidate"), row["log2_speedup"]
        known = row["candidate_source"] is not None or row["candidate_parameters"] is not None
        if row["status"] != "reference" and known:
            query = Query(
                problem=problem,
                device=device,
                candidate=kernel,
                anchor=best,
                anchor_log2_speedup=best_log2,
                anchor_runtime_s=best_s,
            )
            yield Trial(
                query=query,
                ok=row["status"] == "ok",
                log2_speedup=None if log2 is None else log2 - best_log2,
                observation=recorded_observation(row, problem, kernel),
            )
        if follow and log2 is not None and log2 > best_log2:
            # The text of a search's unedited start is often unpublished: the reference stands in.
            best = kernel if known else reference
            best_log2, best_s = log2, row["runtime_s"] or math.nan
