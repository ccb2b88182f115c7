"""Commands that make, continue and read runs: search, resume, ls, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast.cli.common import (
    ASK_KEYS,
    MODEL_KEYS,
    OUT,
    ask_options,
    asking,
    backend_spec,
    budget_of,
    budget_options,
    component,
    device_option,
    json_option,
    model_options,
    run_watched,
    set_options,
    store_option,
    trust_options,
)
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec, RunSpec
from kernelcast.parts import Parts
from kernelcast.problems import load_problem
from kernelcast.report.console import archive_table, summary, summary_table
from kernelcast.report.curves import best_so_far
from kernelcast.report.figures import draw_best_so_far
from kernelcast.report.terminal import echo_source
from kernelcast.search import INTERRUPTED, Result, Search
from kernelcast.store import Store


@click.command()
@click.argument("problem")
@budget_options
@click.option("--policy", default="selective", show_default=True, help="What is measured.")
@click.option("--strategy", default="puct", show_default=True, help="What becomes a parent.")
@click.option("--forecaster", default="trees", show_default=True, help="Who predicts.")
@click.option("--proposer", default="template", show_default=True, help="Who writes kernels.")
@ask_options
@model_options
@click.option("--pool", type=int, help="Open candidates to choose from (the policy's default).")
@click.option("--slots", type=int, default=1, show_default=True, help="Measurements at a time.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--inspect", is_flag=True, help="Compile every candidate before it is forecast.")
@click.option("--no-reuse", is_flag=True, help="Measure again what another run has measured.")
@trust_options
@device_option
@click.option("--name", help="Name of the run (default: problem, date and a random tail).")
@click.option("--out", type=click.Path(path_type=Path), help="Write the best kernel here.")
@store_option
@json_option
def search(
    problem: str,
    policy: str,
    strategy: str,
    forecaster: str,
    proposer: str,
    pool: int | None,
    slots: int,
    seed: int,
    inspect: bool,
    no_reuse: bool,
    backend: str | None,
    device: str | None,
    require: str | None,
    allow_unsafe: bool,
    name: str | None,
    out: Path | None,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Search a faster kernel for PROBLEM (a bundled name or a folder).

    \b
    Examples:
      kernelcast search softmax --measurements 60
      kernelcast search ./my_kernel --device-seconds 300 --out best.cpp
      kernelcast search softmax --forecaster llm --proposer llm \\
          --base-url http://localhost:8000/v1 --model my-model --candidates 40

    Ctrl-C stops cleanly; `kernelcast resume RUN` goes on.
    """
    model = {key: options.pop(key) for key in MODEL_KEYS}
    ask = {key: options.pop(key) for key in ASK_KEYS}
    budget = budget_of(options, default_measurements=60)
    priced = any(model[key] for key in MODEL_KEYS if key.startswith("usd"))
    if not priced and (budget.forecast_usd is not None or budget.proposal_usd is not None):
        raise SetupError("a cap in dollars needs the model's prices: --price-in and --price-out")
    loaded = load_problem(problem)
    components = {
        # Both ask the same model, so what is set of it holds for both.
        "proposer": component(proposer, {**model, **set_options(ask["more"])}),
        "forecaster": asking({**model, **ask})
        if forecaster == "llm"
        else component(forecaster, model),
        "policy": ComponentSpec(name=policy, options={"pool_size": pool} if pool else {}),
        "strategy": ComponentSpec(name=strategy),
        "backend": backend_spec(
            loaded, backend=backend, device=device, require=require, allow_unsafe=allow_unsafe
        ),
        "farm": ComponentSpec(name="local", options={"slots": slots}),
    }
    spec = RunSpec(seed=seed, inspect=inspect, reuse=not no_reuse, components=components)
    with Store.open(store) as opened:
        live = Search(loaded, Parts.build(components), opened, spec=spec, name=name)
        _finish(
            run_watched(live, budget, f"{loaded.name} ({live.name})", quiet=as_json), out, as_json
        )


def _finish(result: Result, out: Path | None, as_json: bool) -> None:
    if out is not None:
        out.write_text(result.kernel.source)
    if as_json:
        click.echo(json.dumps({"run": result.run, **summary(result.state)}))
        return
    OUT.print(summary_table(result.state, f"Run {result.run}"))
    where = f"written to {out}" if out else f"kernelcast show {result.run} --kernel"
    OUT.print(f"best kernel: {where}")
    if result.state.ended == INTERRUPTED:
        OUT.print(f"to go on: kernelcast resume {result.run}")


@click.command()
@click.argument("run")
@budget_options
@click.option("--out", type=click.Path(path_type=Path), help="Write the best kernel here.")
@store_option
@json_option
def resume(run: str, out: Path | None, store: str, as_json: bool, **options: Any) -> None:
    """Go on with a RUN that was stopped, killed or has spent its budget.

    \b
    Examples:
      kernelcast resume softmax-20261115-101500-1f2e
      kernelcast resume softmax-20261115-101500-1f2e --measurements 120

    Caps are totals for the run; those not given stay as they were.
    """
    with Store.open(store) as opened:
        live = Search.resume(opened, run)
        stated = budget_of(options, default_measurements=None).model_dump(exclude_none=True)
        budget = live.state.budget.model_copy(update=stated)
        _finish(
            run_watched(live, budget, f"{live.problem.name} ({run})", quiet=as_json), out, as_json
        )


@click.command("ls")
@store_option
@json_option
def list_runs(store: str, as_json: bool) -> None:
    """List the runs of the store, the latest last.

    \b
    Example:
      kernelcast ls
    """
    with Store.open(store) as opened:
        rows = [(info, opened.open_run(info.name).state) for info in opened.runs()]
        rows = [(info, state) for info, state in rows if state.started is not None]
    if as_json:
        click.echo(json.dumps([{"run": info.name, **summary(state)} for info, state in rows]))
        return
    if not rows:
        OUT.print("no runs yet: kernelcast search softmax")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "best", "measured", "not measured", "status"):
        table.add_column(column, no_wrap=column != "status")
    for info, state in rows:
        best = f"{2.0**state.incumbent.log2_speedup:.2f}x"
        counts = [str(state.measured), str(state.dropped + state.trusted + len(state.open))]
        table.add_row(info.name, best, *counts, state.ended or "unfinished: resume it")
    OUT.print(table)


@click.command()
@click.argument("run")
@click.option("--kernel", is_flag=True, help="Print only the best kernel's source.")
@click.option("--top", default=10, show_default=True, help="Kernels of the archive to list.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw best-so-far to this PNG.")
@store_option
@json_option
def show(run: str, kernel: bool, top: int, figure: Path | None, store: str, as_json: bool) -> None:
    """Show where a RUN stands and what it found.

    \b
    Examples:
      kernelcast show softmax-20261115-101500-1f2e
      kernelcast show softmax-20261115-101500-1f2e --kernel > best.cpp
      kernelcast show softmax-20261115-101500-1f2e --figure best.png
    """
    with Store.open(store) as opened:
        log = opened.open_run(run)
        state = log.state
        if kernel:
            echo_source(opened.kernel(state.incumbent.kernel_id).source)
            return
        if figure is not None:
            draw_best_so_far({run: [best_so_far(log)]}, figure, f"Best so far, {run}")
        if as_json:
            click.echo(json.dumps({"run": run, **summary(state)}))
            return
        OUT.print(summary_table(state, f"Run {run}"))
        OUT.print(archive_table(state, top))
        if figure is not None:
            OUT.print(f"figure: {figure}")
