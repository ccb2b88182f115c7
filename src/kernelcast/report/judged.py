"""Reports of judgements: evaluations, replays, comparisons and rankings."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from kernelcast.judge.comparison import Comparison, Paired
from kernelcast.judge.evaluation import SCORES, Estimate, Evaluation
from kernelcast.judge.ranking import Cut, Ranked, Ranking
from kernelcast.report.tables import NO_EXPERIENCE, Report, listing, table

_SIDE_BY_SIDE = 3  # forecasters that 80 columns hold with their intervals
_SCORES_A_TABLE = 6
_LABEL = 13  # characters of a score's name beside three forecasters
_MORE = (
    "Answers that are not readable count as knowing nothing. "
    "Intervals, losses, risks and reliability: --json, or eval.json in the folder of --out."
)


def _finite(value: float, digits: int) -> float | None:
    """Round; None stands for nan and infinity, which JSON does not have."""
    return round(value, digits) if math.isfinite(value) else None


# ------------------------------------------------------------------------------------- evaluations


def evaluation_report(evaluations: Sequence[Evaluation], rows: str, anchor: str) -> Report:
    """Report the scores of several forecasters on the same rows.

    A few are shown side by side with their intervals, more by one line each without.
    """
    first = evaluations[0]
    risks = [_risks(evaluation) for evaluation in evaluations]
    counts = f"{first.kernels:,} recorded kernels ({first.timed:,} timed), {first.groups} problems"
    scores = [
        name for name in SCORES if any(math.isfinite(one.scores[name].value) for one in evaluations)
    ]
    meanings = {name: SCORES[name] for name in scores}
    parts: list[Table | Text]
    if len(evaluations) <= _SIDE_BY_SIDE:
        parts = [
            _side_by_side(counts, scores, evaluations, risks),
            *(Text(note) for evaluation in evaluations for note in _evaluation_notes(evaluation)),
        ]
        meanings |= {
            "loss at 10%": "speed lost by measuring only the tenth forecast to be fastest",
            "risk at 25%": "mean half-Brier of the quarter of forecasts that is surest",
        }
    else:
        parts = [*_line_by_line(counts, scores, evaluations), Text(_MORE)]
    legend = listing(None, meanings.items())
    legend.style = "dim"
    facts = [_evaluation_facts(one, risk) for one, risk in zip(evaluations, risks, strict=True)]
    return Report({"rows": rows, "anchor": anchor, "evaluations": facts}, [*parts, legend])


def _side_by_side(
    title: str,
    scores: Sequence[str],
    evaluations: Sequence[Evaluation],
    risks: Sequence[Mapping[float, float]],
) -> Table:
    lines = {
        name if len(name) <= _LABEL else name.replace("_", "\n"): [
            str(one.scores[name]) for one in evaluations
        ]
        for name in scores
    }
    for share, loss in evaluations[0].regret.items():
        if math.isfinite(loss.value) and share < 1.0:
            lines[f"loss at {share:.0%}"] = [str(one.regret[share]) for one in evaluations]
    for share in risks[0]:
        lines[f"risk at {share:.0%}"] = [f"{risk[share]:.3f}" for risk in risks]
    columns = ("score", *(one.forecaster for one in evaluations))
    return table(title, columns, ((name, *cells) for name, cells in lines.items()))


def _line_by_line(
    title: str, scores: Sequence[str], evaluations: Sequence[Evaluation]
) -> list[Table | Text]:
    """Return tables that 80 columns hold: all scores, and what was read and spent."""
    tables = []
    for start in range(0, len(scores), _SCORES_A_TABLE):
        some = scores[start : start + _SCORES_A_TABLE]
        headers = ("\n".join(name.rsplit("_", 1)).replace("_", " ") for name in some)
        rows = (
            (one.forecaster, *(f"{one.scores[name].value:.3f}" for name in some))
            for one in evaluations
        )
        tables.append(table(None, ("forecaster", *headers), rows, yields=0))
    spent = (
        (
            one.forecaster,
            f"{one.forecasts:,}",
            f"{one.unparsed:,}",
            f"{one.usage.input_tokens:,}",
            f"{one.usage.output_tokens:,}",
            f"{'at most ' if one.usage.unknown else ''}{one.usage.usd:.4f}"
            if one.usage.usd
            else "",
        )
        for one in evaluations
    )
    columns = ("forecasts", "not\nreadable", "tokens\nread", "tokens\nwritten", "$")
    tables.append(table(None, ("forecaster", *columns), spent, yields=0))
    spaced = [part for each in tables for part in (Text(""), each)]
    return [Text(title, style="italic"), *spaced[1:], Text("")]


def _risks(evaluation: Evaluation) -> dict[float, float]:
    """Return the mean half-Brier of the surest forecasts, by the share of them that is kept."""
    risk = evaluation.risk_coverage.risk
    shares = (0.25, 0.5, 0.75, 1.0) if risk.size else ()
    return {share: float(risk[math.ceil(share * risk.size) - 1]) for share in shares}


def _evaluation_facts(evaluation: Evaluation, risks: Mapping[float, float]) -> dict[str, Any]:
    def numbers(estimate: Estimate) -> list[float | None]:
        return [_finite(value, 5) for value in (estimate.value, estimate.low, estimate.high)]

    return {
        "forecaster": evaluation.forecaster,
        "forecasts": evaluation.forecasts,
        "kernels": evaluation.kernels,
        "timed": evaluation.timed,
        "problems": evaluation.groups,
        "scores": {name: numbers(score) for name, score in evaluation.scores.items()},
        "loss_by_share_measured": {
            f"{share:g}": numbers(loss) for share, loss in evaluation.regret.items()
        },
        "reliability": [[round(value, 5) for value in row] for row in evaluation.reliability],
        "risk_coverage": {f"{share:g}": round(risk, 5) for share, risk in risks.items()},
        "unparsed": evaluation.unparsed,
        "usage": evaluation.usage.model_dump(),
    }


def _evaluation_notes(evaluation: Evaluation) -> list[str]:
    buckets = ", ".join(
        f"{claimed:.2f} claimed {right:.2f} right ({count})"
        for claimed, right, count in evaluation.reliability
    )
    notes = [f"reliability of {evaluation.forecaster}: {buckets or 'nothing timed'}"]
    usage = evaluation.usage
    if usage.tokens or evaluation.unparsed:
        price = f" for ${usage.usd:.4f}" if usage.usd else ""
        notes.append(
            f"{evaluation.forecaster} read {'at most ' if usage.unknown else ''}"
            f"{usage.input_tokens:,} and wrote {usage.output_tokens:,} tokens{price}; "
            f"{evaluation.unparsed} answers could not be read and count as knowing nothing"
        )
    return notes


# ----------------------------------------------------------------------------------------- replays

_KINDS = {
    "spaces": "Recorded spaces: best found over best recorded, after so many measurements",
    "searches": "Recorded searches: measurements saved, and what that cost",
}


def replay_report(arms: Mapping[str, Mapping[str, Mapping[str, float]]], rows: str) -> Report:
    """Report the summary of each policy on recorded spaces and searches."""
    parts = []
    for kind, title in _KINDS.items():
        facts = {name: summary[kind] for name, summary in arms.items() if kind in summary}
        if facts:
            columns = [column.replace("_", " ") for column in next(iter(facts.values()))]
            cells = ((name, *(f"{v:.4g}" for v in fact.values())) for name, fact in facts.items())
            parts.append(table(title, ("policy", *columns), cells))
    return Report({"rows": rows, "arms": arms}, parts)


# ------------------------------------------------------------------------------------- comparisons


def comparison_report(
    comparison: Comparison, device: str, kind: str, device_usd_per_hour: float
) -> Report:
    """Report what each arm found and spent, and what that proves against the last arm."""
    plan, seeds, against = comparison.plan, len(comparison.seeds), comparison.baseline
    arms = {arm: _arm_facts(comparison, arm, device_usd_per_hour) for arm in plan.arms}
    pairs: dict[str, dict[str, Any]] = {
        arm: {
            "arm": arm,
            "against": against,
            "equal_measurements": _pair_facts(comparison.at_equal_measurements(arm), arm, against),
            "equal_cost": _pair_facts(
                comparison.at_equal_cost(arm, device_usd_per_hour), arm, against
            ),
        }
        for arm in comparison.challengers
    }
    speeds, costs = [], []
    for arm, facts in arms.items():
        pair = pairs.get(arm, {})
        equal, priced = pair.get("equal_measurements", {}), pair.get("equal_cost", {})
        best = facts["geometric_mean"]
        counts = f"{equal['won']}, {equal['tied']}, {equal['lost']}" if equal else ""
        considered = f"{facts['considered'] / max(1, seeds):.0f}"
        speedup = "" if best is None else f"{best:.3f}x"
        speeds.append((arm, speedup, _ratio(equal), counts, considered))
        usd = [f"{facts[name]:.4f}" for name in ("forecast_usd", "proposal_usd", "total_usd")]
        bound = "at most " if facts["cost_is_an_upper_bound"] else ""
        usd[-1] = f"{bound}{usd[-1]}"
        costs.append((arm, f"{facts['device_s']:.1f}", *usd, _ratio(priced)))
    columns = ("arm", "best speedup", f"over {against}", "won, tied, lost", "considered")
    dollars = ("forecasts $", "proposals $", "total $", f"over {against} at equal $")
    measured = f"{seeds} of {plan.seeds} seeds, {plan.measurements} measurements"
    price = f"the device at ${device_usd_per_hour:g} an hour"
    tables = [
        table(f"{plan.problem.name} on {device}, equal measurements ({measured})", columns, speeds),
        table(f"total cost a run, {price}", ("arm", "device s", *dollars), costs),
    ]
    verdicts = [
        Text(f"at {where.replace('_', ' ')}: {pair[where]['verdict']}", style="bold")
        for pair in pairs.values()
        for where in ("equal_measurements", "equal_cost")
    ]
    facts = {
        "device": device,
        "vary": kind,
        "problem": plan.problem.name,
        "measurements": plan.measurements,
        "seeds": seeds,
        "complete": comparison.complete,
        "device_usd_per_hour": device_usd_per_hour,
        "arms": arms,
        "pairs": list(pairs.values()),
    }
    return Report(facts, [*tables, *verdicts])


def _arm_facts(comparison: Comparison, arm: str, device_usd_per_hour: float) -> dict[str, Any]:
    """Return the speedups of an arm, and its costs as means over the runs."""
    runs = comparison.of(arm)
    logs = [run.log2_speedup for run in runs]

    def mean(values: Sequence[float], digits: int) -> float:
        return round(fmean(values), digits) if values else 0.0

    return {
        "speedups": [round(2.0**log2, 4) for log2 in logs],
        "geometric_mean": round(2.0 ** fmean(logs), 4) if logs else None,
        "considered": sum(run.considered for run in runs),
        "measured": sum(run.measured for run in runs),
        "device_s": mean([run.cost.device_s for run in runs], 3),
        "forecast_usd": mean([run.cost.forecast_usd for run in runs], 6),
        "proposal_usd": mean([run.cost.proposal_usd for run in runs], 6),
        "total_usd": mean([run.cost.usd(device_usd_per_hour) for run in runs], 6),
        "cost_is_an_upper_bound": any(run.unknown for run in runs),
        "runs": [run.run for run in runs],
    }


def _pair_facts(pair: Paired, arm: str, against: str) -> dict[str, Any]:
    def ratio(log2: float) -> float | None:
        return _finite(2.0**log2, 4) if math.isfinite(log2) else None

    return {
        "gain": ratio(pair.mean),
        "low": ratio(pair.low),
        "high": ratio(pair.high),
        "log2_differences": [round(difference, 4) for difference in pair.differences],
        "won": pair.wins,
        "tied": pair.ties,
        "lost": pair.losses,
        "verdict": pair.verdict(arm, against),
    }


def _ratio(pair: Mapping[str, Any]) -> str:
    if not pair or pair["low"] is None:
        return ""
    return f"{pair['gain']:.3f}x [{pair['low']:.3f}, {pair['high']:.3f}]"


# ---------------------------------------------------------------------------------------- rankings

_LEGEND = (
    "P(fastest): chance to be the fastest of the pool. speedup: forecast against the reference if "
    "it runs, median and 80% interval. P(ok): chance to compile, run and be right. The order is by "
    "expected gain over the best of the pool."
)
_CSV = ("rank", "kernel", "chance_fastest", "median_speedup", "low", "high", "p_ok", "why")


def ranking_report(ranking: Ranking, cut: Cut, pool: Mapping[str, Any], top: int) -> Report:
    """Report the order of a pool and its cut.

    `pool` states the pool's problem, device, forecaster, numbers of kernels, known and left out.
    """
    members = ranking.members
    order = [ranked_facts(member) for member in members[: max(top, cut.count)]]
    unknown = sum(member.forecast.is_prior for member in members)
    facts = {
        **pool,
        "unlike_any_known": unknown,
        "cut": {"count": cut.count, "chance": round(cut.chance, 4), "reason": cut.reason},
        "order": order,
    }
    kernels = "1 kernel" if pool["kernels"] == 1 else f"{pool['kernels']:,} kernels"
    known = f", {pool['known']} measured already" if pool["known"] else ""
    head = (
        f"{pool['problem']} on {pool['device']}: {kernels}{known}; "
        f"forecast by {pool['forecaster']}, not measured"
    )
    notes = [*(f"left out: {reason}" for reason in pool["left_out"]), pool["compiled"]]
    reasons = {kernel["why"] for kernel in order[:top]}
    last = "kernel" if len(reasons) == 1 else "kernel, and why"
    columns = ("", "P(fastest)", "speedup", "80% interval", "P(ok)", last)
    shown = table(None, columns, left=(5,), yields=5)
    for number, kernel in enumerate(order[:top], 1):
        name = Text(kernel["kernel"])
        if len(reasons) > 1:
            name.append(f"\n{kernel['why']}", style="dim")
        style = "" if number <= cut.count else "dim"
        shown.add_row(str(number), *ranked_cells(kernel), name, style=style)
    legend = [_LEGEND]
    if len(reasons) == 1 and (reason := reasons.pop()):
        legend.insert(0, f"why: {reason}")
    parts: list[Table | Text] = [
        Text(head, style="bold"),
        *(Text(note, style="dim") for note in notes),
        shown,
        *(Text(line, style="dim") for line in legend),
        Text(f"measure the first {cut.count:,}: {cut.reason}" if cut.count else cut.reason),
    ]
    if unknown:
        is_all = unknown == sum(not member.is_ruled_out for member in members)
        some = (
            f"Nothing like {unknown} of these was measured: theirs is the forecast of any kernel."
        )
        parts.append(Text(NO_EXPERIENCE if is_all else some, style="yellow"))
    if cut.count and len(members) > 1 and members[0].chance - members[-1].chance < 1e-9:
        advice = "nothing tells these kernels apart yet: --measure some, or give --history"
        parts.append(Text(advice))
    return Report(facts, parts)


def ranked_facts(ranked: Ranked) -> dict[str, Any]:
    """Return a kernel of a pool, and what is forecast of it, as plain data."""
    density = ranked.forecast.against_reference()
    runs = ranked.forecast.p_ok > 0.0
    low, middle, high = (
        round(2.0 ** density.quantile(level), 4) if runs else None for level in (0.1, 0.5, 0.9)
    )
    return {
        "kernel": ranked.label,
        "id": ranked.kernel.id,
        "chance_fastest": round(ranked.chance, 5),
        "median_speedup": middle,
        "interval_80": [low, high],
        "p_ok": round(ranked.forecast.p_ok, 4),
        "is_prior": ranked.forecast.is_prior,
        "why": ranked.forecast.rationale,
    }


def ranked_cells(kernel: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return P(fastest), speedup, interval and P(ok) of a kernel's facts, for a table."""
    chance, (low, high) = kernel["chance_fastest"], kernel["interval_80"]
    runs = low is not None
    return (
        "<0.001" if 0.0 < chance < 0.001 else f"{chance:.3f}",
        f"~{kernel['median_speedup']:.2f}x" if runs else "-",
        f"{low:.2f}x to {high:.2f}x" if runs else "-",
        f"{kernel['p_ok']:.2f}",
    )


def ranking_csv(*rankings: Ranking) -> str:
    """Return the whole order as CSV, that of each pool after the other."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for ranking in rankings:
        for number, ranked in enumerate(ranking.members, 1):
            facts = ranked_facts(ranked)
            low, high = facts["interval_80"]
            writer.writerow({**facts, "rank": number, "low": low, "high": high})
    return lines.getvalue()
