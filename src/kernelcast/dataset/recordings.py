"""Rows as recordings: what the replay backend serves and the pool proposer draws from.

Belongs here too: how one row becomes the problem, device, kernel and observation of our own types,
for all who replay rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from statistics import median
from typing import Any, Literal

from kernelcast.backends.replay import Recorded, Recording, ReplayBackend
from kernelcast.dataset._foreign import _says_what_is_computed
from kernelcast.dataset.rows import _MS, Rows, _compute, read_rows
from kernelcast.errors import SetupError
from kernelcast.proposers.pool import PoolProposer
from kernelcast.types import (
    CaseTiming,
    Device,
    Failure,
    FailureKind,
    Kernel,
    Measurement,
    Observation,
    Problem,
    Timing,
)


def recording(rows: Rows, problem: str, device: str, search: str | None = None) -> Recording:
    """The rows of one problem on one device, or of one search of them.

    Tuned kernels are recorded by configuration. Texts are recorded by kernel id, each at its
    speedup of one common reference time, for the reference was timed anew beside each.
    """
    compute = _compute()
    chosen = compute.and_(
        compute.equal(rows["problem"], problem), compute.equal(rows["device"], device)
    )
    if search is not None:
        chosen = compute.and_(chosen, compute.equal(rows["search_id"], search))
    found = [row for row in rows.filter(chosen).to_pylist() if row["status"] != "reference"]
    if not found:
        raise SetupError(
            f"there are no rows of {problem!r} on {device!r}: "
            "`kernelcast data describe` lists what there is"
        )
    tuned = [row for row in found if row["candidate_parameters"] is not None]
    return _tuned(tuned) if tuned else _texts(found)


def open_replay(path: str, problem: str, device: str) -> ReplayBackend:
    """The replay backend of a file of rows, which is how a run's spec names it."""
    return ReplayBackend(recording(read_rows(path), problem, device))


def open_pool(path: str, problem: str, device: str, local: float = 0.7) -> PoolProposer:
    """The proposer of the configurations in a file of rows."""
    members = recording(read_rows(path), problem, device).configurations
    if not members:
        raise SetupError(f"{problem!r} was recorded as texts: hand the pool its kernels instead")
    return PoolProposer(members, local)


def _tuned(rows: list[dict[str, Any]]) -> Recording:
    first = rows[0]
    if first["reference_parameters"] is None:
        raise SetupError(f"the rows of {first['problem']!r} name no reference configuration")
    return Recording.from_rows(
        (
            (
                json.loads(row["candidate_parameters"]),
                Recorded(
                    row["runtime_s"],
                    recorded_failure(row),
                    _standard_error(row),
                    row["compile_s"],
                    row["benchmark_s"],
                ),
            )
            for row in rows
        ),
        problem=first["problem"],
        device=recorded_device(first),
        language=first["language"],
        source=first["template"] or _unpublished(first),
        reference=json.loads(first["reference_parameters"]),
    )


def _texts(rows: list[dict[str, Any]]) -> Recording:
    first = rows[0]
    times = [row["reference_runtime_s"] for row in rows if row["reference_runtime_s"] is not None]
    known = [row for row in rows if row["status"] != "ok" or row["log2_speedup"] is not None]
    reference = next((row for row in rows if row["reference_id"] is not None), None)
    if not times or reference is None:
        raise SetupError(f"no kernel of {first['problem']!r} was timed beside a known reference")
    reference_s = median(times)
    entries = [(reference["reference_id"], Recorded(reference_s))]
    for row in known:
        failure, log2_speedup = recorded_failure(row), row["log2_speedup"]
        runtime_s = None if log2_speedup is None else reference_s / 2.0**log2_speedup
        entries.append((row["candidate_id"], Recorded(runtime_s, failure)))
    return Recording.from_rows(
        entries,
        problem=first["problem"],
        device=recorded_device(first),
        language=reference["language"],
        source=reference["reference_source"] or _unpublished(reference),
        reference=reference["reference_id"],
        oracle_source=recorded_problem(reference).oracle_source,
    )


def _unpublished(row: Mapping[str, Any]) -> str:
    """What stands in for a text that nobody published: a comment, which no forecaster sees."""
    mark = "#" if row["language"] in ("python", "triton") else "//"
    return f"{mark} the text of {row['problem']} was not published\n"


def _standard_error(row: Mapping[str, Any]) -> float:
    if row["runtime_std_s"] is None or not row["samples"]:
        return 0.0
    return float(row["runtime_std_s"] / math.sqrt(row["samples"]))


def recorded_device(row: Mapping[str, Any]) -> Device:
    """The device of a row; the source gives no more than its name."""
    return Device(
        name=row["device"],
        kind="replay",
        cores=0,
        clock_hz=0.0,
        peak_flops={},
        bandwidth_bytes_s=0.0,
        source=f"recorded in {row['source']}; cores, clock and peaks were not",
    )


def recorded_problem(row: Mapping[str, Any]) -> Problem:
    """The problem of a row, known by its reference; one in plain Python is its oracle too."""
    reference = row["reference_source"] or ""
    return Problem.unstated(
        row["problem"],
        row["language"],
        reference or row["template"] or "",
        family=row["family"],
        oracle_source=reference if _says_what_is_computed(reference) else "",
    )


def recorded_kernel(row: Mapping[str, Any], role: Literal["candidate", "reference"]) -> Kernel:
    """The kernel of a row, or what it was held against; without text where none was published."""
    parameters, source = row[f"{role}_parameters"], row[f"{role}_source"] or row["template"] or ""
    plain = role == "reference" and _says_what_is_computed(source)
    return Kernel(
        id=row[f"{role}_id"] or "unstated",
        language="python" if plain else row["language"],
        source=source,
        parameters=json.loads(parameters) if parameters else None,
    )


def recorded_failure(row: Mapping[str, Any]) -> Failure | None:
    """Why the kernel of a row has no time, None where it ran."""
    if row["status"] == "ok":
        return None
    kind = FailureKind(row["status"])
    return Failure(kind=kind, message=row["status_detail"] or f"recorded as {kind}")


def recorded_observation(
    row: Mapping[str, Any], problem: Problem, kernel: Kernel
) -> Observation | None:
    """What a row teaches; None where a kernel ran and was right but was not timed."""
    failure = None if row["status"] == "reference" else recorded_failure(row)
    if failure is not None:
        return _observed(row, problem, kernel, failure)
    if row["log2_speedup"] is None:
        return None
    return _observed(
        row, problem, kernel, _timing(row, row["log2_speedup"], row["runtime_s"], _cases(row))
    )


def reference_observation(row: Mapping[str, Any], problem: Problem, kernel: Kernel) -> Observation:
    """The reference of a row at its own speed, which every search measures first."""
    cases = _cases(row, "ref_ms")
    return _observed(row, problem, kernel, _timing(row, 0.0, row["reference_runtime_s"], cases))


def _timing(
    row: Mapping[str, Any],
    log2_speedup: float,
    runtime_s: float | None,
    cases: tuple[CaseTiming, ...],
) -> Timing:
    return Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup,
        high=log2_speedup,
        resolved=True,
        runtime_s=runtime_s or math.nan,
        reference_runtime_s=row["reference_runtime_s"] or math.nan,
        cases=cases,
    )


def _cases(row: Mapping[str, Any], column: str = "ms") -> tuple[CaseTiming, ...]:
    """Times by shape, where the source published them beside those of the reference."""
    details = json.loads(row["details"]) if row["details"] else {}
    times, references = details.get(column) or (), details.get("ref_ms") or ()
    if len(times) != len(references) or not all(times) or not all(references):
        return ()
    return tuple(
        CaseTiming(
            case=str(number),
            log2_ratios=(),
            runtime_s=time_ms * _MS,
            reference_runtime_s=reference_ms * _MS,
        )
        for number, (time_ms, reference_ms) in enumerate(zip(times, references, strict=True))
    )


def _observed(
    row: Mapping[str, Any], problem: Problem, kernel: Kernel, outcome: Timing | Failure
) -> Observation:
    measurement = Measurement(
        kernel_id=kernel.id,
        problem_id=problem.id,
        device_id=row["device"],
        toolchain="recorded",
        timing=outcome if isinstance(outcome, Timing) else None,
        failure=outcome if isinstance(outcome, Failure) else None,
        device_s=0.0,
    )
    return Observation(kernel=kernel, measurement=measurement)
