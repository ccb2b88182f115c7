"""Reports of a KernelBench run: which samples to measure, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kernelcast.dataset import Results, RunScore, Samples
from kernelcast.judge.ranking import Cut, Ranking
from kernelcast.report.judged import ranked_cells, ranked_facts
from kernelcast.report.tables import Report, table
from kernelcast.types import Device

_LEGEND = (
    "first: the forecast of the first sample to measure, against the reference. P(ok): chance to "
    "compile, run and be right; the speedup is that if it does. Samples are in the order of their "
    "expected gain; those joined by = are one kernel. --csv and --json have every sample."
)
_SCORE = (
    "fast_p: share of the problems with a right sample more than p times as fast as the reference. "
    "Of a problem the fastest counts. A sample that was not measured counts as not right."
)
_REDUCED = "reduced"  # the case of an imported problem whose own sizes are too large for this CPU


@dataclass(frozen=True)
class Chosen:
    """The samples of a problem in order, how many to measure, and how they were compiled."""

    samples: Samples
    ranking: Ranking
    cut: Cut
    compiled: str

    @property
    def name(self) -> str:
        """Name of the problem."""
        return self.samples.pool.problem.name


def samples_report(
    chosen: Sequence[Chosen],
    run: Path,
    device: Device,
    forecaster: str,
    left_out: Sequence[str],
    top: int,
) -> Report:
    """Report the order of each problem's samples, and how many to measure."""
    facts = {
        "run": str(run),
        "device": device.name,
        "forecaster": forecaster,
        "left_out": list(left_out),
        "problems": [_order_facts(one) for one in chosen],
    }
    count = sum(one.samples.count for one in chosen)
    head = (
        f"{run} on {device.name}: {_count(count, 'sample')} of {_count(len(chosen), 'problem')}; "
        f"forecast by {forecaster}, not measured"
    )
    columns = ("problem", "samples", "P(ok)", "speedup", "80% interval", "measure, in this order")
    shown = table(None, columns, left=(0, 5), yields=5)
    for one in chosen[:top]:
        shown.add_row(one.name, str(one.samples.count), *_first(one), _order_text(one))
    notes = [*(f"left out: {reason}" for reason in left_out), *_distinct(chosen)]
    measured = sum(one.cut.count for one in chosen)
    parts: list[Table | Text] = [
        Text(head, style="bold"),
        *(Text(note, style="dim") for note in notes),
        shown,
        *_more(len(chosen), top),
        Text(_LEGEND, style="dim"),
        Text(f"measure {_count(measured, 'kernel')}; of each problem {_reason(chosen)}"),
    ]
    return Report(facts, parts)


def results_report(
    chosen: Sequence[Chosen],
    results: Results,
    failed: Mapping[int, str],
    file: Path | None,
    top: int,
) -> Report:
    """Report what was measured of each problem, and KernelBench's scores of the run."""
    score = RunScore.of(results, {one.samples.number for one in chosen})
    problems = [_result_facts(one, results, failed) for one in chosen]
    reduced = sum(
        any(case.name == _REDUCED for case in one.samples.pool.problem.timed_cases)
        for one in chosen
    )
    facts = {
        "file": None if file is None else str(file),
        "problems": problems,
        "problems_at_reduced_sizes": reduced,
        "samples_with_a_result": score.measured,
        "compiled": score.compiled,
        "right": score.right,
        "unresolved": score.unresolved,
        "fast_p": {f"{p:g}": round(share, 4) for p, share in score.fast_p.items()},
        "proven_faster": round(score.proven, 4),
    }
    columns = ("problem", "results", "right", "fastest", "speedup", "interval", "ms")
    shown = table("Measured", columns, yields=0)
    for problem in problems[:top]:
        shown.add_row(*_result_cells(problem))
    notes = [f"problem {number} was not measured: {why}" for number, why in failed.items()]
    if reduced:
        notes.append(
            f"{_count(reduced, 'problem')} of {score.problems} timed at sizes reduced for this "
            "CPU: their times and speedups are not those of KernelBench's own sizes"
        )
    if score.unresolved:
        notes.append(
            f"{_count(score.unresolved, 'time')} of {score.right} not resolved to the precision "
            "that was asked for, as on a busy machine: see the intervals"
        )
    fast = table(None, ("p", *(f"{p:g}" for p in score.fast_p)))
    fast.add_row("fast_p", *(f"{share:.3f}" for share in score.fast_p.values()))
    proven = round(score.proven * score.problems)
    parts: list[Table | Text] = [
        shown,
        *_more(len(chosen), top),
        *(Text(note, style="yellow") for note in notes),
        Text(
            f"{_count(score.measured, 'sample')} with a result, of which {score.compiled:,} "
            f"compile and {score.right:,} are right; proven faster than the reference: "
            f"{proven} of {_count(score.problems, 'problem')}"
        ),
        fast,
        Text(_SCORE, style="dim"),
    ]
    if file is not None:
        parts.append(Text(f"written to {file}"))
    return Report(facts, parts)


def _order_facts(one: Chosen) -> dict[str, Any]:
    samples = one.samples
    return {
        "problem": one.name,
        "number": samples.number,
        "samples": samples.count,
        "left_out": list(samples.pool.left_out),
        "compiled": one.compiled,
        "cut": {
            "count": one.cut.count,
            "chance": round(one.cut.chance, 4),
            "reason": one.cut.reason,
        },
        "order": [
            {**ranked_facts(member), "samples": list(samples.by_kernel[member.kernel.id])}
            for member in one.ranking.members
        ],
    }


def _first(one: Chosen) -> Iterable[str]:
    """Cells of the forecast of the first sample to measure."""
    if not one.cut.count:
        return ("-", "-", "-")
    _, speedup, interval, p_ok = ranked_cells(ranked_facts(one.ranking.members[0]))
    return (p_ok, speedup, interval)


def _order_text(one: Chosen) -> Text:
    """The samples to measure, and why others will not be."""
    members = one.ranking.members
    shown = Text(", ".join(one.samples.numbers_of(m.kernel) for m in members[: one.cut.count]))
    ruled_out = [member for member in members if member.is_ruled_out]
    for member in ruled_out:
        why = member.forecast.objection or member.forecast.rationale
        shown.append(f"\nnot {one.samples.numbers_of(member.kernel)}: {why}", style="dim")
    later = len(members) - one.cut.count - len(ruled_out)
    if later:
        shown.append(f"\n{later} more below the cut", style="dim")
    if reference := one.samples.by_kernel.get(one.samples.pool.reference.id):
        same = " = ".join(map(str, reference))
        shown.append(f"\n{same}: the reference itself", style="dim")
    return shown


def _distinct(chosen: Sequence[Chosen]) -> list[str]:
    """Notes on how kernels were compiled, each once, if compiling failed for whole problems."""
    notes = (one.compiled for one in chosen if one.compiled.startswith("not compiled"))
    return list(dict.fromkeys(notes))


def _reason(chosen: Sequence[Chosen]) -> str:
    return next(
        (one.cut.reason.partition(";")[0] for one in chosen if one.cut.count),
        "none, as none is worth a measurement",
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _more(count: int, top: int) -> list[Text]:
    return [Text(f"and {_count(count - top, 'problem')} more (--top)")] if count > top else []


def _result_facts(one: Chosen, results: Results, failed: Mapping[int, str]) -> dict[str, Any]:
    number = one.samples.number
    entries = {
        sample: results[number, sample]
        for numbers in one.samples.by_kernel.values()
        for sample in numbers
        if (number, sample) in results
    }
    right = {
        sample: entry["metadata"]["kernelcast"]
        for sample, entry in sorted(entries.items())
        if entry["correctness"]
    }
    facts = {
        "problem": one.name,
        "number": number,
        "samples": one.samples.count,
        "results": len(entries),
        "right": len(right),
        "not_measured_because": failed.get(number),
        "fastest": None,
    }
    if right:
        fastest = max(right, key=lambda sample: right[sample]["log2_speedup"])
        ours = right[fastest]
        facts["fastest"] = {
            "sample": fastest,
            "speedup": round(2.0 ** ours["log2_speedup"], 4),
            "interval": [round(2.0**end, 4) for end in ours["interval_log2"]],
            "faster": ours["faster"],
            "runtime_ms": entries[fastest]["runtime"],
        }
    return facts


def _result_cells(problem: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (f"{problem['results']} of {problem['samples']}", str(problem["right"]))
    fastest = problem["fastest"]
    if fastest is None:
        return (problem["problem"], *counts, "-", "-", "-", "-")
    low, high = fastest["interval"]
    proven = ", proven faster" if fastest["faster"] else ""
    return (
        problem["problem"],
        *counts,
        f"sample {fastest['sample']}",
        f"{fastest['speedup']:.2f}x",
        f"{low:.2f}x to {high:.2f}x{proven}",
        f"{fastest['runtime_ms']:.4g}",
    )
