"""How right is the critic's "not worth hardware"? Precision and recall without any model.

    python bench/critic.py [--quick] [--out bench/results/critic.json]

A kernel was not worth hardware if it failed or was not faster than its parent by more than 2%, and
by more than the noise of the day.
Two collections:
- the recorded edits (tests/edits): each is compiled beside its parent and measured against it here,
  so the critic sees claim, text and instructions; once more by the texts alone. What does not
  compile is left out: the compiler, not the critic, says so.
- kernels that language models wrote in recorded searches (../shared/data), against the kernel they
  followed. Texts alone, and nobody recorded a claim, so all it can find is that nothing changed.
--quick takes every sixteenth edit, and of the searches a few problems. On the last line JSON.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from _result import bench_parser, report
from _written import SEARCHES, rows_of, searched_rows
from kernelcast.backends.cpp import CppBackend
from kernelcast.certainty import consult
from kernelcast.dataset.recordings import recorded_kernel, recorded_problem
from kernelcast.forecasters.critic import CriticForecaster
from kernelcast.problems import load_problem
from kernelcast.testing import FAKE_DEVICE, make_kernel
from kernelcast.types import Claim, Evidence, Kernel, Problem, Query

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.recorded_edits import PROBLEMS, Edit, edits_of

WORTH_LOG2 = math.log2(1.02)
_MORE_SEARCHES = "llm_kb_small_sets"


@dataclass(frozen=True)
class Verdict:
    """What the critic said of one kernel, and what came of it."""

    kernel: str
    objection: str
    worth: bool
    truthful: bool = True


def main() -> None:
    options = bench_parser(__doc__, quick="every sixteenth edit, a few problems").parse_args()
    began = time.monotonic()
    edits = [edit for name in PROBLEMS for edit in edits_of(name).values()]
    with closing(CppBackend()) as backend:
        judged = [_judged(backend, edit) for edit in edits[:: 16 if options.quick else 1]]
    compiled = [verdicts for verdicts in judged if verdicts is not None]
    informed, by_text = (list(each) for each in zip(*compiled, strict=True))
    for each in informed:
        if each.objection and each.worth:
            print(f"wrongly: {each.kernel}: {each.objection}")
    problems = 14 if options.quick else None
    written = {
        SEARCHES: list(_written(searched_rows(problems).to_pylist())),
        _MORE_SEARCHES: list(_written(rows_of([_MORE_SEARCHES], problems).to_pylist())),
    }
    untrue = [each for each in informed if not each.truthful]
    report(
        {
            "recorded_edits": {
                **_scores(informed),
                "did_not_compile": len(judged) - len(compiled),
                "untrue_claims": len(untrue),
                "untrue_claims_objected_to": sum(bool(each.objection) for each in untrue),
                "reasons": dict(Counter(_reason(each) for each in informed if each.objection)),
            },
            "recorded_edits_by_text_alone": _scores(by_text),
            "written_kernels": {name: _scores(found) for name, found in written.items()},
            "seconds": round(time.monotonic() - began, 1),
        },
        options,
    )


# ----------------------------------------------------------------------------- recorded edits


def _judged(backend: CppBackend, edit: Edit) -> tuple[Verdict, Verdict] | None:
    """With evidence and without; None for what does not compile."""
    problem = load_problem(edit.problem)
    # Measured against its parent, not the seed: pairs of calls, so that 2% can be told.
    against_parent = problem.model_copy(update={"seed_source": edit.parent_source})
    parent, child = (make_kernel(each) for each in (edit.parent_source, edit.source))
    evidence = backend.inspect(problem, child)
    if evidence.failure is not None:
        return None
    claim = Claim(idea=edit.answer["idea"], moves=tuple(edit.answer["moves"]))
    query = _query(problem, parent, child, claim, backend.inspect(problem, parent), evidence)
    measured = backend.measure(against_parent, child, seed=1, effort="normal")
    found = measured.log2_speedup
    # What the parent differs from itself by, measured in the same way, means nothing.
    worth = found is not None and found > max(WORTH_LOG2, measured.noise_log2 or 0.0)
    name = f"{edit.problem}/{edit.number} ({edit.quality})"
    failed = measured.failure.kind if measured.failure else "failed"
    print(f"{name}: {failed if found is None else f'{2**found:.3f}x'}", flush=True)
    blind = query.model_copy(update={"evidence": None, "anchor_evidence": None})
    informed, by_text = (
        Verdict(name, each.objection, worth, edit.truthful)
        for each in consult(CriticForecaster(), [query, blind])
    )
    return informed, by_text


def _query(
    problem: Problem,
    anchor: Kernel,
    candidate: Kernel,
    claim: Claim,
    anchor_evidence: Evidence | None = None,
    evidence: Evidence | None = None,
) -> Query:
    return Query(
        problem=problem,
        device=FAKE_DEVICE,
        candidate=candidate,
        anchor=anchor,
        anchor_log2_speedup=0.0,
        anchor_runtime_s=math.nan,
        evidence=evidence,
        anchor_evidence=anchor_evidence,
        claim=claim,
    )


# ---------------------------------------------------------------------------- written kernels


def _written(rows: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    """Each kernel whose text and outcome, and whose parent's text and time, were published."""
    parents: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["search_id"] or "", row["step"] or 0)):
        search, log2 = row["search_id"] or "", row["log2_speedup"]
        parent = parents.get((search, row["parent_id"] or ""))
        told = row["candidate_source"] is not None
        if parent is not None and told and (row["status"] != "ok" or log2 is not None):
            query = _query(
                recorded_problem(row),
                recorded_kernel(parent, "candidate"),
                recorded_kernel(row, "candidate"),
                Claim(),
            )
            (answer,) = consult(CriticForecaster(), [query])
            worth = log2 is not None and log2 - parent["log2_speedup"] > WORTH_LOG2
            yield Verdict(f"{search}/{row['step']}", answer.objection, worth)
        if told and log2 is not None:
            parents[search, row["candidate_id"]] = row


# ------------------------------------------------------------------------------------- scores


def _scores(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Precision and recall of an objection as the verdict "not worth hardware"."""
    objected = [each for each in verdicts if each.objection]
    worthless = sum(not each.worth for each in verdicts)
    right = sum(not each.worth for each in objected)
    return {
        "kernels": len(verdicts),
        "not_worth_hardware": worthless,
        "objections": len(objected),
        "right": right,
        "precision": _share(right, len(objected)),
        "recall": _share(right, worthless),
    }


def _share(part: int, whole: int) -> dict[str, Any] | None:
    """A share with its 95% interval (Wilson); None of nothing."""
    if not whole:
        return None
    interval = binomtest(part, whole).proportion_ci(method="wilson")
    return {
        "value": round(part / whole, 4),
        "interval": [round(float(interval.low), 4), round(float(interval.high), 4)],
    }


def _reason(verdict: Verdict) -> str:
    return verdict.objection.partition(":")[0]


if __name__ == "__main__":
    main()
