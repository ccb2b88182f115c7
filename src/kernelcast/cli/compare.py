"""The command that compares arms which differ in one part."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import plugins
from kernelcast.cli.common import (
    ASK_KEYS,
    MODEL_KEYS,
    OUT,
    ask_options,
    asking,
    backend_spec,
    component,
    device_option,
    json_option,
    model_options,
    run_watched,
    set_options,
    trust_options,
)
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.judge.comparison import ADVISED_SEEDS, Comparison, Cost, Paired, Plan, run_plan
from kernelcast.parts import DEFAULT_PARTS
from kernelcast.problems import load_problem
from kernelcast.report.figures import draw_comparison
from kernelcast.store import Store
from kernelcast.tape import Tape
from kernelcast.types import Proposals

_VARIED: tuple[plugins.Kind, ...] = ("policy", "strategy", "forecaster", "proposer")
_ENDPOINT = (*MODEL_KEYS, *ASK_KEYS)


@click.command()
@click.argument("problem")
@click.option(
    "--vary",
    required=True,
    metavar="PART=ARM,ARM[,...]",
    help="The one part in which the arms differ, and what it is in each; the last is what the "
    "others are held against. PART is policy, strategy, forecaster or proposer, an ARM its "
    "name, with options as name:option=value:option=value.",
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
@click.option("--policy", help=f"What is measured.  [default: {DEFAULT_PARTS['policy']}]")
@click.option("--strategy", help=f"What becomes a parent.  [default: {DEFAULT_PARTS['strategy']}]")
@click.option("--forecaster", help=f"Who predicts.  [default: {DEFAULT_PARTS['forecaster']}]")
@click.option("--proposer", help=f"Who writes kernels.  [default: {DEFAULT_PARTS['proposer']}]")
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
    vary: str,
    seeds: int,
    measurements: int,
    inspect: bool,
    device_usd_per_hour: float,
    backend: str | None,
    device: str | None,
    require: str | None,
    allow_unsafe: bool,
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
      kernelcast compare softmax --vary policy=selective:pool_size=16,selective,measure_all
      kernelcast compare ./my_kernel --vary strategy=greedy,puct --seeds 20 -n 60 --out compared/

    Ctrl-C stops cleanly; the same command goes on, and runs nothing twice.
    """
    endpoint = {key: options.pop(key) for key in _ENDPOINT}
    kind, arms = _arms(vary)
    if options[kind] is not None:
        raise SetupError(f"--vary says what the {kind} is: leave out --{kind}")
    fixed = {each: options[each] or DEFAULT_PARTS[each] for each in _VARIED if each != kind}
    loaded = load_problem(problem)
    measuring = backend_spec(
        loaded, backend=backend, device=device, require=require, allow_unsafe=allow_unsafe
    )
    shared: dict[str, ComponentSpec] = {"backend": measuring}
    for each, text in fixed.items():
        shared[each] = _component(each, text, endpoint)
    plan = Plan(
        problem=loaded,
        arms={arm: {**shared, kind: _component(kind, arm, endpoint)} for arm in arms},
        seeds=seeds,
        measurements=measurements,
        inspect=inspect,
    )
    for components in plan.arms.values():
        plugins.build(kind, components[kind])  # a wrong arm is refused before another one has run
    folder = out or Path(".kernelcast/compare")
    local = ComponentSpec(name=DEFAULT_PARTS["farm"])
    farm = plugins.build("farm", local, backend=plugins.build("backend", measuring))
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


def _arms(vary: str) -> tuple[plugins.Kind, list[str]]:
    """The part that varies, and each arm as it was written."""
    stated, given, rest = vary.partition("=")
    kind = next((each for each in _VARIED if each == stated), None)
    if kind is None or not given:
        raise SetupError(
            f"--vary takes PART=ARM,ARM with one of {', '.join(_VARIED)}, not {vary!r}"
        )
    # A comma may be part of an option's value: an arm begins with a name.
    arms = re.split(r",(?=[A-Za-z_]\w*(?:[:,]|$))", rest)
    if len(set(arms)) < max(2, len(arms)):
        raise SetupError(f"--vary {kind}={rest}: name two arms or more, none of them twice")
    return kind, arms


def _component(kind: plugins.Kind, text: str, endpoint: Mapping[str, Any]) -> ComponentSpec:
    """What `name:option=value` states; a language model gets its endpoint."""
    # A colon may be part of a value, as in an address: an option begins with its name.
    name, *more = re.split(r":(?=[A-Za-z_]\w*=)", text)
    options = set_options(more)
    if name != "llm":
        return ComponentSpec(name=name, options=options)
    own = {key: options.pop(key) for key in list(options) if key in endpoint}
    stated = {**endpoint, **own}
    if kind == "forecaster":
        spec = asking(stated)
    else:
        model = {key: stated[key] for key in MODEL_KEYS}
        spec = component(name, {**model, **set_options(stated["more"])})
    return ComponentSpec(name=name, options={**spec.options, **options})


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
