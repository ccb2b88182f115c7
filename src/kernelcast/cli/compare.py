"""The command that compares arms which differ in one part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast import plugins
from kernelcast.cli.common import (
    AMOUNT,
    FOLDER,
    OUT,
    POSITIVE,
    ask_options,
    check_model_is_asked,
    device_option,
    json_option,
    model_options,
    option,
    part_options,
    read_options,
    read_setting,
    run_watched,
    trust_options,
)
from kernelcast.errors import SetupError
from kernelcast.judge.comparison import ADVISED_SEEDS, Plan, run_plan
from kernelcast.parts import KINDS, read_run
from kernelcast.report.figures import draw_comparison
from kernelcast.report.judged import comparison_report
from kernelcast.report.tables import write_json
from kernelcast.store import Store
from kernelcast.tape import Tape
from kernelcast.types import Proposals

_VARIED: tuple[plugins.Kind, ...] = ("policy", "strategy", "forecaster", "proposer")


@click.command()
@click.argument("problem")
@option(
    "--vary",
    "The part, or the option of a part, in which the arms differ, and its value in each arm. "
    "The last arm is the baseline.",
    metavar="KEY=VALUE,VALUE[,...]",
)
@option(
    "--arm arms",
    "In place of --vary: the settings of one arm, all of the same part (repeat).",
    multiple=True,
    metavar="'KEY=VALUE ...'",
)
@option("--seeds", "Runs per arm.", POSITIVE, ADVISED_SEEDS)
@option("--measurements -n", "Measurements per run, the same for all arms.", POSITIVE, 40)
@part_options
@option(
    "--inspect/--no-inspect",
    "Compile every candidate before it is forecast.  [default: yes for a GPU's languages]",
    bool,
)
@option(
    "--device-usd-per-hour",
    "Price of the device per hour, for the table of total cost.",
    AMOUNT,
    1.0,
)
@ask_options
@model_options
@trust_options
@device_option
@option(
    "--out",
    "Folder for the runs, compare.json and compare.png.",
    FOLDER,
    Path(".kernelcast/compare"),
)
@json_option
def compare(
    problem: str,
    vary: str | None,
    arms: tuple[str, ...],
    seeds: int,
    measurements: int,
    device_usd_per_hour: float,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare arms that differ in one part on PROBLEM (a bundled name or a folder).

    Every arm searches once per seed with the same number of measurements. Arms that reach the same
    kernel get the same proposals and the same measured times. Differences are taken seed by seed;
    the verdict says what they prove, or that they prove nothing.

    \b
    Examples:
      kernelcast compare softmax --vary policy=selective,measure_all
      kernelcast compare softmax --vary policy.audit_share=0.1,0.2 --policy selective
      kernelcast compare softmax --arm "policy=selective policy.pool_size=16" \\
          --arm policy=selective --arm policy=measure_all
      kernelcast compare ./my_kernel --vary strategy=greedy,puct --seeds 20 -n 60 --out compared/

    Ctrl-C stops cleanly; the same command goes on, and runs nothing twice.
    """
    kind, settings_by_arm = _arms(vary, arms)
    settings, model = read_options(options)
    if f"{kind}.name" in settings and any(
        {kind, f"{kind}.name"} & set(arm) for arm in settings_by_arm.values()
    ):
        raise SetupError(f"the arms say what the {kind} is: leave out --{kind}")
    runs = {
        name: read_run(settings | arm, problem=problem, model=model, known=("inspect", *KINDS))
        for name, arm in settings_by_arm.items()
    }
    specs = {name: run.spec for name, run in runs.items()}
    check_model_is_asked(model, (p for s in specs.values() for p in s.components.values()))
    for spec in specs.values():
        for part in _VARIED:
            plugins.build(part, spec.components[part])  # Refuse a wrong arm before one has run.
    spec = next(iter(specs.values()))
    plan = Plan(
        problem=next(iter(runs.values())).problem,
        arms={name: spec.components for name, spec in specs.items()},
        seeds=seeds,
        measurements=measurements,
        inspect=spec.inspect,
    )
    backend = plugins.build("backend", spec.components["backend"])
    farm = plugins.build("farm", spec.components["farm"], backend=backend)
    try:
        with Store.open(out / "store.db") as store:
            comparison = run_plan(
                plan,
                farm,
                store,
                tape=Tape(Proposals, out / "proposals.jsonl"),
                run=lambda search, budget, title: run_watched(search, budget, title, quiet=as_json),
            )
    finally:
        farm.close()
    report = comparison_report(comparison, farm.device.id, kind, device_usd_per_hour)
    if comparison.seeds:
        curves = {arm: [run.curve for run in comparison.of(arm)] for arm in plan.arms}
        title = f"{plan.problem.name}: {measurements} measurements, {len(comparison.seeds)} seeds"
        figure = draw_comparison(curves, comparison.baseline, out / "compare.png", title)
        report.facts["figure"] = str(figure.resolve())
    write_json(out / "compare.json", report.facts)
    report.show(OUT, as_json=as_json)
    if as_json:
        return
    OUT.print(f"written to {out}: compare.json, compare.png, store.db")
    if not comparison.complete:
        OUT.print("to go on: the same command again")


def _arms(vary: str | None, texts: Sequence[str]) -> tuple[plugins.Kind, dict[str, dict[str, Any]]]:
    """Return the part in which the arms differ, and the settings of each arm by its name."""
    if (vary is None) == (not texts):
        raise SetupError("say what differs: --vary policy=selective,measure_all, or several --arm")
    option = "--arm" if vary is None else "--vary"
    if vary is None:
        arms = [text.split() for text in texts]
    else:
        key, _, values = vary.partition("=")
        arms = [[f"{key}={value}"] for value in values.split(",")]
    settings = [dict(read_setting(setting, option) for setting in arm) for arm in arms]
    parts = {key.partition(".")[0] for arm_settings in settings for key in arm_settings}
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
    return kind, dict(zip(names, settings, strict=True))
