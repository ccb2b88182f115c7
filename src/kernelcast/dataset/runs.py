"""Export of a stored run's measured kernels."""

from __future__ import annotations

import json
import math

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.dataset.rows import UNSTATED, Row, Rows, Status, to_table
from kernelcast.events import Inspected, Measured, Proposed, RunStarted
from kernelcast.store import Run
from kernelcast.types import Measurement, Timing


def export_run(run: Run, *, licence: str = UNSTATED) -> Rows:
    """Everything a run measured, in order: its reference, its candidates, its confirmations."""
    started: RunStarted | None = None
    parents: dict[str, str] = {}
    compile_s: dict[str, float] = {}
    rows: list[Row] = []
    for event in run.events("run_started", "proposed", "inspected", "measured"):
        match event:
            case RunStarted():
                started = event
            case Proposed(duplicate=False):
                parents[event.kernel_id] = event.parent_id
            case Inspected():
                compile_s[event.kernel_id] = event.evidence.compile_s
            case Measured():
                assert started is not None
                row = _measured_row(run, started, event, len(rows), licence)
                key = event.measurement.kernel_id
                cost = {"parent_id": parents.get(key), "compile_s": compile_s.get(key)}
                rows.append(row.model_copy(update=cost))
    return to_table(rows)


def _measured_row(run: Run, started: RunStarted, event: Measured, number: int, licence: str) -> Row:
    measurement, problem = event.measurement, started.problem
    kernel = run.store.kernel(measurement.kernel_id)
    timing, failure = measurement.timing, measurement.failure
    status: Status = failure.kind if failure else "ok"
    proposer = started.spec.components.get("proposer")
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
        status="reference" if event.purpose == "reference" and timing else status,
        status_detail=failure and failure.message,
        samples=timing and sum(len(case.log2_ratios) for case in timing.cases),
        runtime_std_s=timing and _timing_spread(timing),
        benchmark_s=measurement.device_s,
        search_id=run.name,
        step=number,
        model=proposer.options.get("model") if proposer else None,
        source="kernelcast run",
        licence=licence,
        details=_run_details(event, measurement),
    )


def _timing_spread(timing: Timing) -> float | None:
    """The spread of single paired ratios within a case, carried over to the runtime."""
    variances = [np.var(each.log2_ratios, ddof=1) for each in timing.cases if each.log2_ratios[1:]]
    if not variances:
        return None
    return timing.runtime_s * math.log(2.0) * math.sqrt(float(np.mean(variances)))


def _run_details(event: Measured, measurement: Measurement) -> str:
    return json.dumps(
        {
            "purpose": event.purpose,
            "cached": event.cached,
            "toolchain": measurement.toolchain,
            "problem_id": measurement.problem_id,
            "noise_log2": measurement.noise_log2,
        }
    )
