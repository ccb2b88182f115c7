"""Export of a stored run's measured kernels."""

from __future__ import annotations

import json
import math

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.dataset.rows import UNSTATED, Row, Rows, to_table
from kernelcast.errors import SetupError
from kernelcast.events import Inspected, Measured, Proposed, Retracted, RunStarted
from kernelcast.run import Run
from kernelcast.types import Timing


def export_run(run: Run, *, licence: str = UNSTATED) -> Rows:
    """Export everything a run measured, in order: reference, candidates and confirmations.

    What was retracted later is left out.

    Raises:
        SetupError: The run is no search: it is a tuner's or a gate's.
        StoreError: The run was not written here: rows teach forecasters.
    """
    run.check_own()
    if run.state.made_by != "search":
        raise SetupError(
            f"run {run.name} is a {run.state.made_by}'s, of which no rows are made: read its "
            f"times from {run.state.made_by.title()}(store=...).outcomes"
        )
    started: RunStarted | None = None
    parents: dict[str, str] = {}
    compile_s: dict[str, float] = {}
    for event in run.events("run_started", "proposed", "inspected"):
        match event:
            case RunStarted():
                started = event
            case Proposed(duplicate=False):
                parents[event.kernel_id] = event.parent_id
            case Inspected():
                compile_s[event.kernel_id] = event.evidence.compile_s
    rows: list[Row] = []
    for event in measured_events(run):
        assert started is not None
        key = event.measurement.kernel_id
        row = _measured_row(run, started, event, len(rows))
        known = {"parent_id": parents.get(key), "compile_s": compile_s.get(key)}
        rows.append(row.model_copy(update={**known, "licence": licence}))
    return to_table(rows)


def measured_events(run: Run) -> list[Measured]:
    """Everything that a run measured, in order, without what was retracted later."""
    measured: list[Measured] = []
    for event in run.events("measured", "retracted"):
        match event:
            case Measured():
                measured.append(event)
            case Retracted():
                measured = [other for other in measured if not event.withdraws(other)]
    return measured


def _measured_row(run: Run, started: RunStarted, event: Measured, number: int) -> Row:
    measurement, problem = event.measurement, started.problem
    kernel = run.kernel(measurement.kernel_id)
    timing, failure = measurement.timing, measurement.failure
    proposer = started.spec.components.get("proposer")
    details = {
        "purpose": event.purpose,
        "cached": event.cached,
        "toolchain": measurement.toolchain,
        "problem_id": measurement.problem_id,
        "noise_log2": measurement.noise_log2,
    }
    return Row(
        row_id=f"{run.name}/{number}",
        problem=problem.name,
        family=problem.family,
        language=kernel.language,
        backend=kernel.language,
        device=measurement.device_id,
        candidate_id=kernel.id,
        candidate_source=kernel.source,
        candidate_parameters=kernel.parameters and canonical_parameters(kernel.parameters),
        reference_id=started.seed_kernel_id,
        reference_source=problem.seed_source,
        runtime_s=timing and timing.runtime_s,
        reference_runtime_s=timing and timing.reference_runtime_s,
        log2_speedup=timing and timing.log2_speedup,
        status=failure.kind if failure else "reference" if event.purpose == "reference" else "ok",
        status_detail=failure and failure.message,
        samples=timing and sum(len(case.log2_ratios) for case in timing.cases),
        runtime_std_s=timing and runtime_std_s(timing),
        benchmark_s=measurement.device_s,
        search_id=run.name,
        step=number,
        model=proposer.options.get("model") if proposer else None,
        source="kernelcast run",
        licence=UNSTATED,
        details=json.dumps(details),
    )


def runtime_std_s(timing: Timing) -> float | None:
    """Standard deviation of single paired ratios within a case, carried over to the runtime."""
    ratios = [case.log2_ratios for case in timing.cases if len(case.log2_ratios) > 1]
    if not ratios:
        return None
    variance = float(np.mean([np.var(case, ddof=1) for case in ratios]))
    return timing.runtime_s * math.log(2.0) * math.sqrt(variance)
