"""Import of auto-tuning results: Kernel Tuner caches and T4 files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.canonical import canonical_parameters, kernel_id
from kernelcast.dataset._foreign import _load_json, _log2_ratio, _seconds
from kernelcast.dataset.keys import configuration_id, problem_family
from kernelcast.dataset.rows import _MS, _NS, UNSTATED, Row, Rows, Status, _table_of
from kernelcast.errors import SetupError
from kernelcast.languages import dialect
from kernelcast.types import FailureKind, Parameters, content_hash

_CACHE_ERRORS = {
    "InvalidConfig": FailureKind.COMPILE_ERROR,
    "CompilationFailedConfig": FailureKind.COMPILE_ERROR,
    "RuntimeFailedConfig": FailureKind.CRASH,
}
_CACHE_ERROR_TIME = 1e20  # how older caches write a configuration that failed
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
    """Import a Kernel Tuner cache file, finished or left open; its times are in milliseconds.

    The speedup is against the configuration of median time, since the order of a cache is chance.

    Args:
        path: the cache file.
        problem: name of the problem; by default the kernel's name and size in the cache.
        device: name of the device; by default the one in the cache.
        language: language of the kernel.
        template: source of the tuned kernel.
        licence: licence of the rows.

    Raises:
        SetupError: the file is no cache, or holds a configuration twice.
    """
    path = Path(path)
    # A cache stays open while Kernel Tuner runs, and after a crash.
    cache = _load_json(path, unclosed="}}")
    try:
        size = cache.get("problem_size", "")
        sizes = "x".join(map(str, size)) if isinstance(size, list) else str(size)
        common = {
            "problem": problem or f"tuned/{cache['kernel_name']}({sizes})",
            "device": device or cache["device_name"],
            "language": language,
            "template": template,
            "source": "Kernel Tuner cache",
            "source_url": path.name,
            "licence": licence,
        }
        return _table_of(cache_rows(cache, common))
    except (KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} is not a Kernel Tuner cache: it lacks {error}") from error


def import_t4(
    path: str | Path,
    *,
    problem: str | None = None,
    device: str | None = None,
    language: str = "cuda",
    template: str | None = None,
    licence: str = UNSTATED,
) -> Rows:
    """Import a results file in the T4 schema of the auto-tuning methodology.

    The arguments are those of `import_kernel_tuner_cache`, but the file names neither problem nor
    device, so both must be given. The time is the measurement named `time`, in its stated unit.
    """
    path = Path(path)
    if not problem or not device:
        raise SetupError(f"{path} names no problem and no device: give both (--problem, --device)")
    try:
        columns = [_t4_columns(result, path) for result in _load_json(path)["results"]]
    except (KeyError, TypeError) as error:
        raise SetupError(f"{path} is not a T4 results file: it lacks {error}") from error
    common = {
        "problem": problem,
        "device": device,
        "language": language,
        "template": template,
        "source": "T4 results",
        "source_url": path.name,
        "licence": licence,
    }
    return _table_of(_tuned_rows(columns, common))


def cache_rows(cache: Mapping[str, Any], common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a Kernel Tuner cache's content; `common` are the columns it does not have."""
    columns = [
        _cache_columns(entry, _cache_parameters(cache, key, entry))
        for key, entry in cache["cache"].items()
    ]
    return _tuned_rows(columns, common)


def cache_parameter_names(cache: Mapping[str, Any]) -> list[str]:
    """The names of a cache's parameters, in the order in which its keys state their values."""
    return list(cache.get("tune_params_keys") or cache["tune_params"])


def _cache_parameters(cache: Mapping[str, Any], key: str, entry: Mapping[str, Any]) -> Parameters:
    """The parameters of an entry; published caches state them in its key alone ("16,8,1")."""
    names = cache_parameter_names(cache)
    lacking = [name for name in names if name not in entry]
    if not lacking:
        return {name: entry[name] for name in names}
    texts = [text.strip() for text in key.split(",")]
    if len(texts) != len(names):
        raise SetupError(
            f"the entry {key!r} of the cache lacks {lacking[0]!r}, and its key holds {len(texts)}"
            f" values for {len(names)} parameters: state them in the entry"
        )
    ranges = cache.get("tune_params") or {}
    stated = {
        name: _value(text, ranges.get(name, ())) for name, text in zip(names, texts, strict=True)
    }
    return {name: entry.get(name, stated[name]) for name in names}


def _value(text: str, usual: Sequence[int | float | str]) -> int | float | str:
    """The value that a text states: one of the usual ones, or else what it looks like."""
    for value in usual:
        if str(value) == text:
            return value
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _cache_columns(entry: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    outcome = entry.get("__error__") or entry["time"]
    time_ms = _number(outcome)
    failed = not math.isfinite(time_ms) or time_ms >= _CACHE_ERROR_TIME
    return {
        "candidate_parameters": canonical_parameters(parameters),
        "status": _CACHE_ERRORS.get(str(outcome), FailureKind.CRASH) if failed else "ok",
        "status_detail": str(outcome) if failed else None,
        "runtime_s": None if failed else time_ms * _MS,
        "compile_s": _seconds(entry.get("compile_time")),
        "benchmark_s": _seconds(entry.get("benchmark_time")),
        **_spread(entry.get("times")),
    }


def _number(outcome: Any) -> float:
    """The time that an outcome states, as a number or as text; nan if it is none."""
    try:
        return float(outcome)
    except ValueError:
        return math.nan


def _t4_columns(result: Mapping[str, Any], path: Path) -> dict[str, Any]:
    times = result["times"]
    status: Status = "ok"
    if result["invalidity"] != "correct":
        status = _T4_INVALIDITY.get(result["invalidity"], FailureKind.CRASH)
    elif not result["correctness"]:
        status = FailureKind.WRONG_RESULT
    runtime_s = None
    if status == "ok":
        measurements = {entry["name"]: entry for entry in result.get("measurements", ())}
        time = measurements.get("time")
        if time is None or isinstance(time["value"], str):
            raise SetupError(f"{path}: a correct configuration has no measurement named 'time'")
        unit = time.get("unit", "").lower()
        if unit not in _UNITS_S:
            raise SetupError(f"{path}: times are in {unit!r}; known are {sorted(_UNITS_S)}")
        runtime_s = time["value"] * _UNITS_S[unit]
    return {
        "candidate_parameters": canonical_parameters(result["configuration"]),
        "status": status,
        "status_detail": None if status == "ok" else result["invalidity"],
        "runtime_s": runtime_s,
        "compile_s": _seconds(times.get("compilation_time", times.get("compilation"))),
        "benchmark_s": _seconds(times.get("benchmark")),
        **_spread(times.get("runtimes")),
    }


def _spread(times_ms: Iterable[float] | None) -> dict[str, Any]:
    times_s = [time * _MS for time in times_ms or ()]
    std_s = float(np.std(times_s, ddof=1)) if len(times_s) > 1 else None
    return {"samples": len(times_s) or None, "runtime_std_s": std_s}


def _tuned_rows(
    configurations: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The rows of a tuned kernel's configurations; their reference has the median time."""
    file, problem, language = common["source_url"], common["problem"], common["language"]
    if not common["device"]:
        raise SetupError(f"{file} names no device: give it (--device)")
    dialect(language)  # raises for one that is unknown
    runtimes = {c["candidate_parameters"]: c["runtime_s"] for c in configurations}
    if len(runtimes) != len(configurations):
        keys = Counter(c["candidate_parameters"] for c in configurations)
        raise SetupError(f"{file} holds a configuration twice: {keys.most_common(1)[0][0]}")
    template = common.get("template")
    template_id = kernel_id(template, language) if template else problem
    reference_s, reference = median_configuration(runtimes)
    search = f"{problem}@{common['device']}"
    same = dict.fromkeys(Row.model_fields) | {
        **common,
        "family": problem_family(problem),
        "backend": language,
        "reference_id": reference and configuration_id(template_id, reference),
        "reference_parameters": reference,
        "reference_runtime_s": reference_s,
        "search_id": search,
    }
    return [
        {
            **same,
            **configuration,
            "row_id": f"{search}/{content_hash(key)[:12]}",
            "candidate_id": configuration_id(template_id, key),
            "log2_speedup": _log2_ratio(reference_s, runtime_s),
        }
        for configuration, (key, runtime_s) in zip(configurations, runtimes.items(), strict=True)
    ]


def median_configuration(
    runtime_s: Mapping[str, float | None],
) -> tuple[float, str] | tuple[None, None]:
    """Runtime and key of the configuration of median time, which speedups are against."""
    timed = sorted((time, key) for key, time in runtime_s.items() if time)
    return timed[(len(timed) - 1) // 2] if timed else (None, None)
