"""Rows as recordings, for the replay backend and the pool proposer.

Also turns one row into the problem, device, kernel and observation of kernelcast's own types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Literal

from kernelcast.backends.replay import Recorded, Recording, ReplayBackend
from kernelcast.canonical import canonical_parameters
from kernelcast.dataset._foreign import _is_plain_python
from kernelcast.dataset.keys import configuration_id
from kernelcast.dataset.rows import _MS, Rows, _compute, read_rows
from kernelcast.devices import named
from kernelcast.errors import SetupError
from kernelcast.languages import dialect
from kernelcast.proposers.pool import PoolProposer
from kernelcast.types import (
    CaseTiming,
    Device,
    Failure,
    FailureKind,
    Kernel,
    Language,
    Measurement,
    Observation,
    Parameters,
    Problem,
    Timing,
)


def recording(rows: Rows, problem: str, device: str, search: str | None = None) -> Recording:
    """The recording of one problem on one device, or of one of its searches.

    Tuned kernels are recorded by configuration. Other kernels are recorded by kernel id, with the
    runtime that their speedup gives against the median time of the reference, since the reference
    was timed anew beside each of them.

    Raises:
        SetupError: there are no such rows, or they name no reference.
    """
    pc = _compute()
    chosen = pc.and_(pc.equal(rows["problem"], problem), pc.equal(rows["device"], device))
    if search is not None:
        chosen = pc.and_(chosen, pc.equal(rows["search_id"], search))
    measured = [row for row in rows.filter(chosen).to_pylist() if row["status"] != "reference"]
    if not measured:
        raise SetupError(
            f"there are no rows of {problem!r} on {device!r}: "
            "`kernelcast data describe` lists what there is"
        )
    tuned = [row for row in measured if row["candidate_parameters"] is not None]
    return _tuned(tuned) if tuned else _texts(measured)


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
    entries = []
    for row in rows:
        std_s, samples = row["runtime_std_s"], row["samples"]
        outcome = Recorded(
            runtime_s=row["runtime_s"],
            failure=recorded_failure(row),
            std_s=std_s / math.sqrt(samples) if std_s and samples else 0.0,
            compile_s=row["compile_s"],
            benchmark_s=row["benchmark_s"],
        )
        entries.append((json.loads(row["candidate_parameters"]), outcome))
    reference = json.loads(first["reference_parameters"])
    return _recording(first, entries, reference, first["template"])


def _texts(rows: list[dict[str, Any]]) -> Recording:
    times = [row["reference_runtime_s"] for row in rows if row["reference_runtime_s"] is not None]
    first = next((row for row in rows if row["reference_id"] is not None), None)
    if not times or first is None:
        raise SetupError(f"no kernel of {rows[0]['problem']!r} was timed beside a known reference")
    reference_s = median(times)
    entries = [(first["reference_id"], Recorded(reference_s))]
    for row in rows:
        failure, log2_speedup = recorded_failure(row), row["log2_speedup"]
        runtime_s = None if log2_speedup is None else reference_s / 2.0**log2_speedup
        if failure is not None or runtime_s is not None:
            entries.append((row["candidate_id"], Recorded(runtime_s, failure)))
    return _recording(first, entries, first["reference_id"], first["reference_source"])


def _recording(
    row: Mapping[str, Any], entries: Iterable[Any], reference: Any, source: str | None
) -> Recording:
    if not source:
        # A comment stands in for a source that was not published; no forecaster sees it.
        mark = "//" if dialect(row["language"]).family == "c" else "#"
        source = f"{mark} the text of {row['problem']} was not published\n"
    return Recording.from_rows(
        entries,
        problem=row["problem"],
        device=recorded_device(row),
        language=row["language"],
        source=source,
        reference=reference,
        oracle_source=recorded_problem(row).oracle_source,
    )


def recorded_device(row: Mapping[str, Any]) -> Device:
    """The device of a row, by its own name, with the catalogue's figures if it knows the name."""
    name, known = row["device"], named(row["device"])
    if known is not None:
        source = f"recorded in {row['source']}; figures are those of {known.name}: {known.source}"
        return known.model_copy(update={"name": name, "kind": "replay", "source": source})
    return Device(
        name=name,
        kind="replay",
        cores=0,
        clock_hz=0.0,
        peak_flops={},
        bandwidth_bytes_s=0.0,
        source=f"recorded in {row['source']}; its figures are not known",
    )


def recorded_problem(row: Mapping[str, Any]) -> Problem:
    """The problem of a row, stated by its reference; one in plain Python is also its oracle."""
    reference = row["reference_source"] or ""
    oracle = reference if _is_plain_python(reference) else ""
    shapes = "are those of the reference" if oracle else "are not stated"
    return Problem.unstated(
        row["problem"],
        row["language"],
        reference or row["template"] or "",
        family=row["family"],
        oracle_source=oracle,
        summary=f"shapes and dtypes {shapes}",
    )


def recorded_kernel(row: Mapping[str, Any], role: Literal["candidate", "reference"]) -> Kernel:
    """The candidate or the reference of a row; its source is empty if it was not published."""
    parameters, source = row[f"{role}_parameters"], row[f"{role}_source"] or row["template"] or ""
    plain = role == "reference" and _is_plain_python(source)
    return Kernel(
        id=row[f"{role}_id"] or "unstated",
        language="python" if plain else row["language"],
        source=source,
        parameters=json.loads(parameters) if parameters else None,
    )


def configured(problem: str, language: Language, parameters: Parameters) -> Kernel:
    """One configuration of a tuned problem as a kernel without source."""
    key = configuration_id(problem, canonical_parameters(parameters))
    return Kernel(id=key, language=language, source="", parameters=parameters)


def recorded_failure(row: Mapping[str, Any]) -> Failure | None:
    """The failure of a row's kernel, None if it ran."""
    if row["status"] in ("ok", "reference"):
        return None
    kind = FailureKind(row["status"])
    return Failure(kind=kind, message=row["status_detail"] or f"recorded as {kind}")


def recorded_observation(
    row: Mapping[str, Any], problem: Problem, kernel: Kernel
) -> Observation | None:
    """The observation of a row; None if the kernel was right but not timed."""
    failure, log2_speedup = recorded_failure(row), row["log2_speedup"]
    timing = None
    if failure is None:
        if log2_speedup is None:
            return None
        timing = Timing(
            log2_speedup=log2_speedup,
            low=log2_speedup,
            high=log2_speedup,
            resolved=True,
            runtime_s=row["runtime_s"] or math.nan,
            reference_runtime_s=row["reference_runtime_s"] or math.nan,
            cases=_cases(row),
        )
    measurement = Measurement(
        kernel_id=kernel.id,
        problem_id=problem.id,
        device_id=row["device"],
        toolchain="recorded",
        timing=timing,
        failure=failure,
        device_s=0.0,
    )
    return Observation(kernel=kernel, measurement=measurement, writer=row.get("model") or "")


def reference_observation(row: Mapping[str, Any], problem: Problem, kernel: Kernel) -> Observation:
    """The observation of a row's reference at its own speed, with which every search begins."""
    details = json.loads(row["details"] or "{}")
    own = {
        "status": "reference",
        "log2_speedup": 0.0,
        "runtime_s": row["reference_runtime_s"],
        "details": json.dumps({"ms": details.get("ref_ms"), "ref_ms": details.get("ref_ms")}),
    }
    observation = recorded_observation({**row, **own}, problem, kernel)
    assert observation is not None
    return observation


def _cases(row: Mapping[str, Any]) -> tuple[CaseTiming, ...]:
    """Times by shape, if the source published them beside those of the reference."""
    details = json.loads(row["details"]) if row["details"] else {}
    times_ms, references_ms = details.get("ms") or (), details.get("ref_ms") or ()
    if len(times_ms) != len(references_ms) or not all((*times_ms, *references_ms)):
        return ()
    return tuple(
        CaseTiming(
            case=str(number),
            log2_ratios=(),
            runtime_s=time_ms * _MS,
            reference_runtime_s=reference_ms * _MS,
        )
        for number, (time_ms, reference_ms) in enumerate(zip(times_ms, references_ms, strict=True))
    )
