"""Import of KernelBench results and generated kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.dataset._foreign import _load_json, _seconds, _text_row
from kernelcast.dataset.rows import _MS, UNSTATED, Rows, Status, to_table
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind

_KERNEL_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


def import_kernelbench(
    path: str | Path,
    *,
    device: str | None = None,
    baseline: str | Path | None = None,
    licence: str = UNSTATED,
) -> Rows:
    """Import a KernelBench run. Its times are in milliseconds, whatever its comments say.

    Args:
        path: folder of the run, or its eval_results.json; kernel files lie beside it.
        device: where the kernels ran, for results that do not say.
        baseline: reference times, a file of `generate_baseline_time.py`, for results without.
        licence: licence of the kernels.

    Raises:
        SetupError: a file is missing or malformed, or a result has no kernel, device or baseline.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    results = _results(folder / "eval_results.json" if path.is_dir() else path)
    files: dict[tuple[int, int], tuple[int, Path]] = {}
    for file in sorted(folder.glob("level_*_kernel.py")):
        if match := _KERNEL_FILE.fullmatch(file.name):
            level, number, sample = map(int, match.groups())
            if (number, sample) in files:
                raise SetupError(f"{folder} mixes levels: give each level a folder of its own")
            files[number, sample] = (level, file)
    keys = Counter(key for key, _ in results)
    if keys and keys.most_common(1)[0][1] > 1:
        raise SetupError(
            f"{path} has two results of (problem, sample) {keys.most_common(1)[0][0]}: remove one"
        )
    # A kernel without a result is no row; a result without its kernel is an error.
    if missing := [key for key in keys if key not in files]:
        raise SetupError(
            f"{folder} lacks the kernel files of {len(missing)} results, e.g. (problem, sample) "
            f"{missing[0]}: put them beside the results"
        )
    times = _baseline(Path(baseline)) if baseline else {}
    run = folder.resolve().name
    rows = []
    for (number, sample), entry in results:
        level, file = files[number, sample]
        stats, metadata = entry.get("runtime_stats") or {}, entry.get("metadata") or {}
        status, detail = _status(entry, metadata)
        hardware = device or stats.get("hardware") or metadata.get("hardware")
        if not hardware:
            raise SetupError(f"{folder}: problem {number} names no device: give it (--device)")
        if baseline and (level, number) not in times:
            raise SetupError(f"{baseline} has no time of level {level}, problem {number}")
        name, reference_s = times.get((level, number), (number, None))
        problem = f"kb/level{level}/{name}"
        if entry.get("ref_runtime", -1.0) > 0:
            reference_s = entry["ref_runtime"] * _MS
        timed = status == "ok" and entry.get("runtime", -1.0) > 0
        rows.append(
            _text_row(
                file.read_text(encoding="utf-8", errors="replace"),
                row_id=f"{run}/level{level}/{number}/{sample}",
                problem=problem,
                device=hardware,
                runtime_s=entry["runtime"] * _MS if timed else None,
                reference_runtime_s=reference_s,
                status=status,
                status_detail=detail,
                samples=stats.get("num_trials") if timed else None,
                runtime_std_s=_seconds(stats.get("std")) if timed else None,
                search_id=f"{run}@{problem}",
                step=sample,
                source="KernelBench",
                source_url=file.name,
                licence=licence,
            )
        )
    return to_table(rows)


def _results(path: Path) -> list[tuple[tuple[int, int], Mapping[str, Any]]]:
    """Every result with its problem and sample number."""
    try:
        return [
            ((int(number), int(entry["sample_id"])), entry)
            for number, entries in _load_json(path).items()
            # Early versions keep one sample a problem, without a list.
            for entry in (entries if isinstance(entries, list) else [entries])
        ]
    except _MALFORMED as error:
        raise SetupError(f"{path} is not of KernelBench's results: {error!r}") from error


def _baseline(path: Path) -> dict[tuple[int, int], tuple[str, float]]:
    """The problem's full name and reference seconds, by level and number."""
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
    except _MALFORMED as error:
        raise SetupError(f"{path} holds no times by level and problem file: {error!r}") from error


def _status(entry: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[Status, str | None]:
    if entry["compiled"] and entry["correctness"]:
        return "ok", None
    names = ("compilation_error", "runtime_error", "correctness_issue", "other_error")
    message = next((str(metadata[name]) for name in names if metadata.get(name)), None)
    if message and re.search(r"timed?[ -]?out", message, re.I):
        return FailureKind.TIMEOUT, message
    if not entry["compiled"]:
        return FailureKind.COMPILE_ERROR, message
    crashed = metadata.get("runtime_error")
    return FailureKind.CRASH if crashed else FailureKind.WRONG_RESULT, message
