"""Import of KernelBench results and generated kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.dataset._foreign import _backend, _KernelIds, _language, _load_json, _log2, _scaled
from kernelcast.dataset.keys import _matches, problem_family
from kernelcast.dataset.rows import _MS, UNSTATED, Row, Rows, Status, to_table
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind

_KERNEL_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")


def import_kernelbench(
    path: str | Path,
    *,
    device: str | None = None,
    baseline: str | Path | None = None,
    licence: str = UNSTATED,
) -> Rows:
    """A KernelBench run: eval_results.json and the kernel files beside it, joined by number.

    Times are in milliseconds there, whatever its comments say. Reference times are those of the
    results themselves where they have them, else of `baseline` (a file of
    `generate_baseline_time.py`, by level and problem file).
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    file = folder / "eval_results.json" if path.is_dir() else path
    evaluated: list[tuple[tuple[int, int], Mapping[str, Any]]] = []
    try:
        for number, entries in _load_json(file).items():
            # Early versions keep one sample a problem, without a list.
            for entry in entries if isinstance(entries, list) else [entries]:
                evaluated.append(((int(number), int(entry["sample_id"])), entry))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetupError(f"{file} is not of KernelBench's results: {error!r}") from error
    files = {}
    for file in sorted(folder.glob("level_*_kernel.py")):
        if found := _KERNEL_FILE.fullmatch(file.name):
            level, number, sample = map(int, found.groups())
            if (number, sample) in files:
                raise SetupError(f"{folder} mixes levels: give each level a folder of its own")
            files[number, sample] = (level, file)
    keys = [key for key, _ in evaluated]
    # Kernels that were never evaluated are no rows; results without their kernel are an error.
    wanted = [key for key in files if key in set(keys)]
    _matches(keys, wanted, f"the kernel files of {folder}")
    times = _baseline(Path(baseline)) if baseline else {}
    ids = _KernelIds()
    rows = []
    for key, entry in evaluated:
        level, file = files[key]
        source = file.read_text(encoding="utf-8", errors="replace")
        stats, metadata = entry.get("runtime_stats") or {}, entry.get("metadata") or {}
        status, detail = _kernelbench_status(entry, metadata)
        where = device or stats.get("hardware") or metadata.get("hardware")
        if not where:
            raise SetupError(f"{folder}: problem {key[0]} names no device: give it (--device)")
        name, reference_s = f"kb/level{level}/{key[0]}", None
        if baseline:
            if (level, key[0]) not in times:
                raise SetupError(f"{baseline} has no time of level {level}, problem {key[0]}")
            stem, reference_s = times[level, key[0]]
            name = f"kb/level{level}/{stem}"
        if entry.get("ref_runtime", -1.0) > 0:
            reference_s = entry["ref_runtime"] * _MS
        timed = status == "ok" and entry.get("runtime", -1.0) > 0
        runtime_s = entry["runtime"] * _MS if timed else None
        backend = _backend(source)
        language = _language(backend, source)
        rows.append(
            Row(
                row_id=f"{folder.resolve().name}/level{level}/{key[0]}/{key[1]}",
                problem=name,
                family=problem_family(name),
                language=language,
                backend=backend,
                device=where,
                candidate_id=ids[source, language],
                candidate_source=source,
                runtime_s=runtime_s,
                reference_runtime_s=reference_s,
                log2_speedup=_log2(runtime_s and reference_s and reference_s / runtime_s),
                status=status,
                status_detail=detail,
                samples=stats.get("num_trials") if timed else None,
                runtime_std_s=_scaled(stats.get("std")) if timed else None,
                search_id=f"{folder.resolve().name}@{name}",
                step=key[1],
                source="KernelBench",
                source_url=file.name,
                licence=licence,
            )
        )
    return to_table(rows)


def _baseline(path: Path) -> dict[tuple[int, int], tuple[str, float]]:
    """Reference seconds, and the problem's full name, by level and number."""
    try:
        return {
            (int(level.removeprefix("level")), int(file.split("_")[0])): (
                file.removesuffix(".py"),
                entry["mean"] * _MS,
            )
            for level, problems in _load_json(path).items()
            for file, entry in problems.items()
            if entry
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetupError(f"{path} holds no times by level and problem file: {error!r}") from error


def _kernelbench_status(
    entry: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[Status, str | None]:
    if entry["compiled"] and entry["correctness"]:
        return "ok", None
    said = next(
        (
            str(metadata[name])
            for name in ("compilation_error", "runtime_error", "correctness_issue", "other_error")
            if metadata.get(name)
        ),
        None,
    )
    if said and re.search(r"timed?[ -]?out", said, re.I):
        return FailureKind.TIMEOUT, said
    if not entry["compiled"]:
        return FailureKind.COMPILE_ERROR, said
    crashed = metadata.get("runtime_error")
    return FailureKind.CRASH if crashed else FailureKind.WRONG_RESULT, said
