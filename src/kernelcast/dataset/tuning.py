"""Import of auto-tuning results: Kernel Tuner caches and T4 files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.canonical import C_FAMILY, canonical_parameters, kernel_id
from kernelcast.dataset._foreign import _load_json, _log2, _scaled
from kernelcast.dataset.keys import configuration_id, problem_family
from kernelcast.dataset.rows import _MS, _NS, UNSTATED, Rows, Status, _arrow, _mapped, _table
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind, content_hash


@dataclass(frozen=True)
class _Configuration:
    """One configuration of a tuned kernel, as an auto-tuner wrote it down."""

    parameters: str
    status: Status
    detail: str | None
    runtime_s: float | None
    timings_s: tuple[float, ...]
    compile_s: float | None
    benchmark_s: float | None


_TUNER_ERRORS = {
    "InvalidConfig": FailureKind.COMPILE_ERROR,
    "CompilationFailedConfig": FailureKind.COMPILE_ERROR,
    "RuntimeFailedConfig": FailureKind.CRASH,
}
_TUNER_ERROR_TIME = 1e20  # how older caches write a configuration that failed
_T4_INVALIDITY = {
    "timeout": FailureKind.TIMEOUT,
    "compile": FailureKind.COMPILE_ERROR,
    "constraints": FailureKind.COMPILE_ERROR,
    "runtime": FailureKind.CRASH,
    "correctness": FailureKind.WRONG_RESULT,
}
_UNITS_S = {
    "": _MS,  # Kernel Tuner's own files leave the unit out
    "ms": _MS,
    "milliseconds": _MS,
    "s": 1.0,
    "seconds": 1.0,
    "us": 1e-6,
    "microseconds": 1e-6,
    "ns": _NS,
    "nanoseconds": _NS,
}


def import_kernel_tuner_cache(
    path: str | Path,
    *,
    problem: str | None = None,
    device: str | None = None,
    language: str = "cuda",
    template: str | None = None,
    licence: str = UNSTATED,
) -> Rows:
    """A Kernel Tuner cache file, finished or left open; times are in milliseconds there.

    The speedup is against the configuration of median time: which one a cache holds first depends
    on the tuner's luck.
    """
    path = Path(path)
    # A cache stays open while Kernel Tuner runs, and after a crash.
    cache = _load_json(path, unclosed="}}")
    try:
        names, entries = cache["tune_params_keys"], cache["cache"].values()
        size = cache.get("problem_size", "")
        sizes = "x".join(map(str, size)) if isinstance(size, list) else str(size)
        problem = problem or f"tuned/{cache['kernel_name']}({sizes})"
        device = device or cache["device_name"]
        found = cached_configurations(entries, names)
    except (KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} is not a Kernel Tuner cache: it lacks {error}") from error
    return _space(path, "Kernel Tuner cache", found, problem, device, language, template, licence)


def cached_configurations(
    entries: Iterable[Mapping[str, Any]], names: Sequence[str]
) -> list[_Configuration]:
    """What a Kernel Tuner cache holds of each configuration it has tried."""
    return [_cache_entry(entry, names) for entry in entries]


def _cache_entry(entry: Mapping[str, Any], names: Sequence[str]) -> _Configuration:
    time = entry.get("__error__") or entry["time"]
    failed = isinstance(time, str) or not math.isfinite(time) or time >= _TUNER_ERROR_TIME
    return _Configuration(
        parameters=canonical_parameters({name: entry[name] for name in names}),
        status=_TUNER_ERRORS.get(str(time), FailureKind.CRASH) if failed else "ok",
        detail=str(time) if failed else None,
        runtime_s=None if failed else time * _MS,
        timings_s=tuple(each * _MS for each in entry.get("times") or ()),
        compile_s=_scaled(entry.get("compile_time")),
        benchmark_s=_scaled(entry.get("benchmark_time")),
    )


def import_t4(
    path: str | Path,
    *,
    problem: str | None = None,
    device: str | None = None,
    language: str = "cuda",
    template: str | None = None,
    licence: str = UNSTATED,
) -> Rows:
    """A results file in the T4 schema of the auto-tuning methodology.

    It names neither problem nor device, so both must be given. The time is the measurement named
    `time`, in the unit stated; the speedup is against the configuration of median time.
    """
    path = Path(path)
    if not problem or not device:
        raise SetupError(f"{path} names no problem and no device: give both (--problem, --device)")
    try:
        found = [_t4_result(result, path) for result in _load_json(path)["results"]]
    except (KeyError, TypeError) as error:
        raise SetupError(f"{path} is not a T4 results file: it lacks {error}") from error
    return _space(path, "T4 results", found, problem, device, language, template, licence)


def _t4_result(result: Mapping[str, Any], path: Path) -> _Configuration:
    times = result["times"]
    status: Status = "ok"
    if result["invalidity"] != "correct":
        status = _T4_INVALIDITY.get(result["invalidity"], FailureKind.CRASH)
    elif not result["correctness"]:
        status = FailureKind.WRONG_RESULT
    runtime_s = None
    if status == "ok":
        timed = {each["name"]: each for each in result.get("measurements", ())}.get("time")
        if timed is None or isinstance(timed["value"], str):
            raise SetupError(f"{path}: a correct configuration has no measurement named 'time'")
        unit = timed.get("unit", "").lower()
        if unit not in _UNITS_S:
            raise SetupError(f"{path}: times are in {unit!r}; known are {sorted(_UNITS_S)}")
        runtime_s = timed["value"] * _UNITS_S[unit]
    return _Configuration(
        parameters=canonical_parameters(result["configuration"]),
        status=status,
        detail=None if status == "ok" else result["invalidity"],
        runtime_s=runtime_s,
        timings_s=tuple(each * _MS for each in times.get("runtimes") or ()),
        compile_s=_scaled(times.get("compilation_time", times.get("compilation"))),
        benchmark_s=_scaled(times.get("benchmark")),
    )


def _space(
    path: Path,
    source: str,
    space: Sequence[_Configuration],
    problem: str,
    device: str,
    language: str,
    template: str | None,
    licence: str,
) -> Rows:
    if not device:
        raise SetupError(f"{path} names no device: give it (--device)")
    if language not in C_FAMILY | {"triton"}:
        raise SetupError(f"no language {language!r}: use one of {sorted(C_FAMILY)} or triton")
    keys = [each.parameters for each in space]
    if len(set(keys)) != len(keys):
        raise SetupError(
            f"{path} holds a configuration twice: {Counter(keys).most_common(1)[0][0]}"
        )
    template_id = kernel_id(template, language) if template else problem
    timed = sorted((each.runtime_s, each.parameters) for each in space if each.runtime_s)
    reference_s, reference = timed[(len(timed) - 1) // 2] if timed else (None, None)
    count = len(space)
    return _table(
        {
            "row_id": [f"{problem}@{device}/{content_hash(key)[:12]}" for key in keys],
            "problem": [problem] * count,
            "family": [problem_family(problem)] * count,
            "language": [language] * count,
            "backend": [language] * count,
            "device": [device] * count,
            "template": _mapped(_arrow().array([problem] * count), lambda _: template),
            "candidate_id": [configuration_id(template_id, key) for key in keys],
            "candidate_parameters": keys,
            "reference_id": [reference and configuration_id(template_id, reference)] * count,
            "reference_parameters": [reference] * count,
            "runtime_s": [each.runtime_s for each in space],
            "reference_runtime_s": [reference_s] * count,
            "log2_speedup": [
                _log2(each.runtime_s and reference_s and reference_s / each.runtime_s)
                for each in space
            ],
            "status": [each.status for each in space],
            "status_detail": [each.detail for each in space],
            "samples": [len(each.timings_s) or None for each in space],
            "runtime_std_s": [_spread(each.timings_s) for each in space],
            "compile_s": [each.compile_s for each in space],
            "benchmark_s": [each.benchmark_s for each in space],
            "search_id": [f"{problem}@{device}"] * count,
            "source": [source] * count,
            "source_url": [path.name] * count,
            "licence": [licence] * count,
        }
    )


def _spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
