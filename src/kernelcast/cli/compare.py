"""The command that compares arms which differ in one part."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import plugins
from kernelcast.cli.common import (
    OUT,
    ask_options,
    device_option,
    json_option,
    model_options,
    part_options,
    read_options,
    read_setting,
    run_watched,
    trust_options,
)
from kernelcast.errors import SetupError
from kernelcast.judge.comparison import ADVISED_SEEDS, Comparison, Cost, Paired, Plan, run_plan
from kernelcast.parts import KINDS, read_run
from kernelcast.problems import load_problem
from kernelcast.report.figures import draw_comparison
from kernelcast.store import Store
from kernelcast.tape import Tape
from kernelcast.types import Proposals

_VARIED: tuple[plugins.Kind, ...] = ("policy", "strategy", "forecaster", "proposer")


@click.command()
@click.argument("problem")
@click.option(
    "--vary",
    metavar="KEY=VALUE,VALUE[,...]",
    help="The one part, or the one option of a part, in which the arms differ, and its value in "
    "each arm. The others are held against the last.",
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="'KEY=VALUE ...'",
    help="In place of --vary: all that one arm states of the part in which the arms differ "
    "(repeat).",
)
@click.option("--seeds", type=click.IntRange(min=1), default=ADVISED_SEEDS, show_default=True)
@click.option(
    "--measurements",
    "-n",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="Measurements a run, the same for all arms.",
)
@part_options
@click.option("--inspect", is_flag=True, help="Compile every candidate before it is forecast.")
@click.option(
    "--device-usd-per-hour",
    type=click.FloatRange(min=0.0),
    default=1.0,
    show_default=True,
    help="What an hour of the device costs, for the table in total cost.",
)
@ask_options
@model_options
@trust_options
@device_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the runs, compare.json and compare.png.  [default: .kernelcast/compare]",
)
@json_option
def compare(
    problem: str,
    vary: str | None,
    arms: tuple[str, ...],
    seeds: int,
    measurements: int,
    device_usd_per_hour: float,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare arms that differ in one part on PROBLEM (a bundled name or a folder).

    Every arm searches once a seed, on the same engine, with as many measurements, and is served
    the same proposals and the same timing noise as far as they meet. Differences are taken seed by
    seed; the verdict says what they prove, and when they prove nothing.

    \b
    Examples:
      kernelcast compare softmax --vary policy=selective,measure_all
      kernelcast compare softmax --vary policy.audit_share=0.1,0.2 --policy selective
      kernelcast compare softmax --arm "policy=selective policy.pool_size=16" \\
          --arm policy=selective --arm policy=measure_all
      kernelcast compare ./my_kernel --vary strategy=greedy,puct --seeds 20 -n 60 --out compared/

    Ctrl-C stops cleanly; the same command goes on, and runs nothing twice.
    """
    kind, stated = _arms(vary, arms)
    settings, model = read_options(options)
    if f"{kind}.name" in settings and any(
        {kind, f"{kind}.name"} & set(arm) for arm in stated.values()
    ):
        raise SetupError(f"the arms say what the {kind} is: leave out --{kind}")
    loaded = load_problem(problem)
    specs = {
        name: read_run(settings | arm, problem=loaded, model=model, known=("inspect", *KINDS)).spec
        for name, arm in stated.items()
    }
    for spec in specs.values():
        for part in _VARIED:
            plugins.build(part, spec.components[part])  # Refuse a wrong arm before one has run.
    spec = next(iter(specs.values()))
    plan = Plan(
        problem=loaded,
        arms={name: spec.components for name, spec in specs.items()},
        seeds=seeds,
        measurements=measurements,
        inspect=spec.inspect,
    )
    folder = out or Path(".kernelcast/compare")
    backend = plugins.build("backend", spec.components["backend"])
    farm = plugins.build("farm", spec.components["farm"], backend=backend)
    try:
        with Store.open(folder / "store.db") as store:
            found = run_plan(
                plan,
                farm,
                store,
                tape=Tape(Proposals, folder / "proposals.jsonl"),
                run=lambda search, budget, title: run_watched(search, budget, title, quiet=as_json),
            )
    finally:
        farm.close()
    facts = {"device": farm.device.id, "vary": kind, **_facts(found, device_usd_per_hour)}
    if found.seeds:
        curves = {arm: [run.curve for run in found.of(arm)] for arm in plan.arms}
        title = f"{plan.problem.name}: {measurements} measurements, {len(found.seeds)} seeds"
        figure = draw_comparison(curves, found.baseline, folder / "compare.png", title)
        facts["figure"] = str(figure.resolve())
    (folder / "compare.json").write_text(json.dumps(facts, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(facts))
        return
    _print(found, facts, device_usd_per_hour)
    OUT.print(f"written to {folder}: compare.json, compare.png, store.db")
    if not found.complete:
        OUT.print("to go on: the same command again")


def _arms(vary: str | None, texts: Sequence[str]) -> tuple[plugins.Kind, dict[str, dict[str, Any]]]:
    """Return the part in which the arms differ, and the settings of each arm by its name."""
    if (vary is None) == (not texts):
        raise SetupError("say what differs: --vary policy=selective,measure_all, or several --arm")
    option = "--arm" if vary is None else "--vary"
    if vary is None:
        arms = [shlex.split(text) for text in texts]
    else:
        key, _, values = vary.partition("=")
        arms = [[f"{key}={value}"] for value in values.split(",")]
    stated = [dict(read_setting(setting, option) for setting in arm) for arm in arms]
    parts = {key.partition(".")[0] for settings in stated for key in settings}
    kind = next((kind for kind in _VARIED if parts == {kind}), None)
    if kind is None:
        raise SetupError(
            f"{option}: the arms differ in one of {', '.join(_VARIED)}, "
            f"not in {' and '.join(sorted(parts))}"
        )
    # All arms differ in this part: `policy=top_k policy.k=2` is called `top_k k=2`.
    names = [" ".join(setting[len(kind) + 1 :] for setting in arm) for arm in arms]
    if len(set(names)) < max(2, len(arms)):
        raise SetupError(f"{option}: name two arms or more, none of them twice")
    return kind, dict(zip(names, stated, strict=True))


def _facts(found: Comparison, device_usd_per_hour: float) -> dict[str, Any]:
    arms = {}
    for arm in found.plan.arms:
        runs = found.of(arm)
        logs = [run.log2_speedup for run in runs]
        arms[arm] = {
            "speedups": [round(2.0**log2, 4) for log2 in logs],
            "geometric_mean": round(2.0 ** (sum(logs) / len(logs)), 4) if logs else None,
            "considered": sum(run.considered for run in runs),
            "measured": sum(run.measured for run in runs),
            **_costs([run.cost for run in runs], device_usd_per_hour),
            "cost_is_an_upper_bound": any(run.unknown for run in runs),
            "runs": [run.run for run in runs],
        }
    pairs = []
    for arm in found.challengers:
        equal = {
            "equal_measurements": found.at_equal_measurements(arm),
            "equal_cost": found.at_equal_cost(arm, device_usd_per_hour),
        }
        told = {name: _pair_facts(pair, arm, found.baseline) for name, pair in equal.items()}
        pairs.append({"arm": arm, "against": found.baseline, **told})
    return {
        "problem": found.plan.problem.name,
        "measurements": found.plan.measurements,
        "seeds": len(found.seeds),
        "complete": found.complete,
        "device_usd_per_hour": device_usd_per_hour,
        "arms": arms,
        "pairs": pairs,
    }


def _costs(costs: list[Cost], device_usd_per_hour: float) -> dict[str, float]:
    """Means over the runs."""
    several = max(1, len(costs))
    return {
        "device_s": round(sum(each.device_s for each in costs) / several, 3),
        "forecast_usd": round(sum(each.forecast_usd for each in costs) / several, 6),
        "proposal_usd": round(sum(each.proposal_usd for each in costs) / several, 6),
        "total_usd": round(sum(each.usd(device_usd_per_hour) for each in costs) / several, 6),
    }


def _pair_facts(pair: Paired, arm: str, against: str) -> dict[str, Any]:
    figures = {"gain": pair.mean, "low": pair.low, "high": pair.high}
    return {
        # What is unknown is null: neither NaN nor infinity is JSON.
        **{
            name: round(2.0**log2, 4) if math.isfinite(log2) else None
            for name, log2 in figures.items()
        },
        "log2_differences": [round(each, 4) for each in pair.differences],
        "won": pair.wins,
        "tied": pair.ties,
        "lost": pair.losses,
        "verdict": pair.verdict(arm, against),
    }


def _print(found: Comparison, facts: Mapping[str, Any], device_usd_per_hour: float) -> None:
    pairs = {pair["arm"]: pair for pair in facts["pairs"]}
    counts = f"{facts['seeds']} of {found.plan.seeds} seeds, {facts['measurements']} measurements"
    table = _table(
        f"{facts['problem']} on {facts['device']}, equal measurements ({counts})",
        ("best speedup", f"over {found.baseline}", "won, tied, lost", "considered"),
    )
    dear = _table(
        f"total cost a run, the device at ${device_usd_per_hour:g} an hour",
        ("device s", "forecasts $", "proposals $", "total $", f"over {found.baseline} at equal $"),
    )
    for arm, row in facts["arms"].items():
        pair = pairs.get(arm)
        best = "" if row["geometric_mean"] is None else f"{row['geometric_mean']:.3f}x"
        table.add_row(
            arm,
            best,
            _ratio(pair and pair["equal_measurements"]),
            _counts(pair and pair["equal_measurements"]),
            f"{row['considered'] / max(1, facts['seeds']):.0f}",
        )
        bound = "at most " if row["cost_is_an_upper_bound"] else ""
        dear.add_row(
            arm,
            f"{row['device_s']:.1f}",
            f"{row['forecast_usd']:.4f}",
            f"{row['proposal_usd']:.4f}",
            f"{bound}{row['total_usd']:.4f}",
            _ratio(pair and pair["equal_cost"]),
        )
    for each in (table, dear):
        OUT.print(each)
    for pair in pairs.values():
        for where in ("equal_measurements", "equal_cost"):
            told = f"at {where.replace('_', ' ')}: {pair[where]['verdict']}"
            OUT.print(told, style="bold")


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("arm")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _ratio(pair: Mapping[str, Any] | None) -> str:
    if pair is None or pair["low"] is None:
        return ""
    return f"{pair['gain']:.3f}x [{pair['low']:.3f}, {pair['high']:.3f}]"


def _counts(pair: Mapping[str, Any] | None) -> str:
    return f"{pair['won']}, {pair['tied']}, {pair['lost']}" if pair else ""
