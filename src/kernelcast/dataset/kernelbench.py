"""KernelBench's runs: rows of their results, results of ours in their form, and its scores."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from kernelcast.dataset._foreign import _load_json, _seconds, _text_row
from kernelcast.dataset.rows import _MS, UNSTATED, Rows, Status, to_table
from kernelcast.dataset.runs import runtime_std_s
from kernelcast.errors import SetupError
from kernelcast.types import Device, FailureKind, Measurement, Problem, Timing

FAST_P = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""The speedups p for which KernelBench states fast_p."""
Entry = Mapping[str, Any]
Results = Mapping[tuple[int, int], Entry]
"""Entries of an eval_results.json by the numbers of problem and sample."""

_KERNEL_FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_OURS = "kernelcast"  # key in the metadata of an entry for what KernelBench has no key for
_MESSAGES = {
    FailureKind.COMPILE_ERROR: "compilation_error",
    FailureKind.WRONG_RESULT: "correctness_issue",
    FailureKind.CRASH: "runtime_error",
    FailureKind.TIMEOUT: "runtime_error",
    FailureKind.CHEATING: "correctness_issue",
}
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
    files = sample_files(folder)
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
        paired = _ours(entry).get("log2_speedup") if timed else None
        rows.append(
            _text_row(
                file.read_text(encoding="utf-8", errors="replace"),
                row_id=f"{run}/level{level}/{number}/{sample}",
                problem=problem,
                device=hardware,
                runtime_s=entry["runtime"] * _MS if timed else None,
                reference_runtime_s=reference_s,
                **({} if paired is None else {"log2_speedup": paired}),
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


def sample_files(folder: Path) -> dict[tuple[int, int], tuple[int, Path]]:
    """The level and file of each sample in a run, by the numbers of problem and sample.

    Raises:
        SetupError: Two levels have the same numbers.
    """
    files: dict[tuple[int, int], tuple[int, Path]] = {}
    for file in sorted(folder.glob("level_*_kernel.py")):
        if match := _KERNEL_FILE.fullmatch(file.name):
            level, number, sample = map(int, match.groups())
            if (number, sample) in files:
                raise SetupError(f"{folder} mixes levels: give each level a folder of its own")
            files[number, sample] = (level, file)
    return files


# ------------------------------------------------------------------------------ results of ours


def result_entry(
    sample: int, measurement: Measurement, problem: Problem, device: Device
) -> dict[str, Any]:
    """Return what was measured of a sample as an entry of eval_results.json; times in ms.

    What KernelBench has no key for stands in `metadata`, under `kernelcast`. `mean` is the median
    time. `std`, `min` and `max` are those of the paired ratios, carried over to the time.
    """
    place = {"hardware": measurement.device_id, "device": _torch_device(device)}
    ours: dict[str, Any] = {"version": version("kernelcast"), "toolchain": measurement.toolchain}
    entry: dict[str, Any] = {
        "sample_id": sample,
        "compiled": True,
        "correctness": True,
        "metadata": {**place, _OURS: ours},
        "runtime": -1.0,
        "runtime_stats": {},
    }
    if failure := measurement.failure:
        entry["compiled"] = failure.kind != FailureKind.COMPILE_ERROR
        entry["correctness"] = False
        entry["metadata"][_MESSAGES[failure.kind]] = failure.message
        ours["failure"] = str(failure.kind)
    if timing := measurement.timing:
        entry["runtime"] = timing.runtime_s / _MS
        entry["runtime_stats"] = _stats(timing) | place
        entry["ref_runtime"] = timing.reference_runtime_s / _MS
        ours |= {
            "log2_speedup": timing.log2_speedup,
            "interval_log2": [timing.low, timing.high],
            "faster": measurement.faster,
            "resolved": timing.resolved,
            "sandbox": measurement.sandbox,
            "effort": measurement.effort,
            "cases": {case.name: dict(case.dimensions) for case in problem.timed_cases},
        }
    return entry


def _torch_device(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else "cuda:0"


def _stats(timing: Timing) -> dict[str, Any]:
    away = [ratio - median(case.log2_ratios) for case in timing.cases for ratio in case.log2_ratios]
    std_s = runtime_std_s(timing)
    return {
        "mean": timing.runtime_s / _MS,
        "std": None if std_s is None else std_s / _MS,
        "min": timing.runtime_s / _MS / 2.0 ** max(away, default=0.0),
        "max": timing.runtime_s / _MS / 2.0 ** min(away, default=0.0),
        "num_trials": len(away),
    }


def read_results(path: Path, device: Device) -> Results:
    """Return the results of ours that a file holds for a device; none if there is no file.

    Raises:
        SetupError: It holds other results, which a new file would lose.
    """
    if not path.exists():
        return {}
    results = dict(_results(path))
    for (number, sample), entry in results.items():
        if not _ours(entry) or entry["metadata"].get("hardware") != device.id:
            raise SetupError(
                f"{path} holds results that kernelcast did not measure on {device.id}, e.g. of "
                f"(problem, sample) {(number, sample)}: name another file"
            )
    return results


def write_results(path: Path, results: Results) -> None:
    """Write an eval_results.json, which takes the place of an earlier one as a whole."""
    by_problem: dict[str, list[Entry]] = {}
    for (number, _), entry in sorted(results.items()):
        by_problem.setdefault(str(number), []).append(entry)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(f"{json.dumps(by_problem, indent=4)}\n")
    draft.replace(path)


@dataclass(frozen=True)
class RunScore:
    """KernelBench's scores of a run. A sample without a result is as one that is not right.

    `fast_p` is the share of the problems with a right sample whose speedup over the reference
    exceeds p, by p. `proven` is the share of those with one that is faster beyond the noise.
    `unresolved` counts right samples whose time is not as precise as was asked for.
    """

    problems: int
    measured: int
    compiled: int
    right: int
    unresolved: int
    fast_p: Mapping[float, float]
    proven: float

    @classmethod
    def of(cls, results: Results, problems: Collection[int]) -> RunScore:
        """Score the results of these problems, of which only the fastest right sample counts."""
        entries = {key: entry for key, entry in results.items() if key[0] in problems}
        right = {key: _ours(entry) for key, entry in entries.items() if entry["correctness"]}

        def share(numbers: set[int]) -> float:
            return len(numbers) / len(problems) if problems else 0.0

        return cls(
            problems=len(problems),
            measured=len(entries),
            compiled=sum(entry["compiled"] for entry in entries.values()),
            right=len(right),
            unresolved=sum(not ours["resolved"] for ours in right.values()),
            fast_p={
                p: share({key[0] for key, ours in right.items() if 2.0 ** ours["log2_speedup"] > p})
                for p in FAST_P
            },
            proven=share({key[0] for key, ours in right.items() if ours["faster"]}),
        )


# -------------------------------------------------------------------------------------- reading


def _ours(entry: Entry) -> Mapping[str, Any]:
    """What kernelcast added to an entry; nothing in an entry of KernelBench."""
    ours = (entry.get("metadata") or {}).get(_OURS)
    return ours if isinstance(ours, Mapping) else {}


def _results(path: Path) -> list[tuple[tuple[int, int], Entry]]:
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


def _status(entry: Entry, metadata: Mapping[str, Any]) -> tuple[Status, str | None]:
    if entry["compiled"] and entry["correctness"]:
        return "ok", None
    if (kind := _ours(entry).get("failure")) in set(FailureKind):
        return FailureKind(kind), metadata.get(_MESSAGES[FailureKind(kind)])
    names = ("compilation_error", "runtime_error", "correctness_issue", "other_error")
    message = next((str(metadata[name]) for name in names if metadata.get(name)), None)
    if message and re.search(r"timed?[ -]?out", message, re.I):
        return FailureKind.TIMEOUT, message
    if not entry["compiled"]:
        return FailureKind.COMPILE_ERROR, message
    crashed = metadata.get("runtime_error")
    return FailureKind.CRASH if crashed else FailureKind.WRONG_RESULT, message
