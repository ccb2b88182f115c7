"""The demo: both arms at equal measurements on the same engine."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from kernelcast.cli.common import OUT, backend_spec, json_option, run_watched, trust_options
from kernelcast.events import ComponentSpec, RunSpec
from kernelcast.parts import Parts
from kernelcast.problems import load_problem
from kernelcast.report.curves import best_so_far
from kernelcast.report.figures import draw_best_so_far
from kernelcast.search import Search
from kernelcast.state import State
from kernelcast.store import Store
from kernelcast.types import Budget


@click.command()
@click.option("--problem", default="matmul", show_default=True, help="A bundled problem.")
@click.option("--measurements", "-n", default=12, show_default=True, help="Measurements a run.")
@click.option("--seeds", default=1, show_default=True, help="Runs an arm.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    default=Path("kernelcast-demo.png"),
    show_default=True,
    help="Where to draw best-so-far against measurements.",
)
@trust_options
@json_option
def demo(
    problem: str,
    measurements: int,
    seeds: int,
    figure: Path,
    backend: str | None,
    require: str | None,
    allow_unsafe: bool,
    as_json: bool,
) -> None:
    """The whole idea in under 90 seconds: no GPU, no key.

    Searches one problem twice at an equal number of measurements, on the same engine, with the
    same proposer: once measuring everything, once choosing by forecasts.

    \b
    Example:
      kernelcast demo
    """
    arms = {"measure everything": "measure_all", "selective": "selective"}
    curves: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    states: dict[str, list[State]] = {arm: [] for arm in arms}
    loaded = load_problem(problem)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "demo.db") as store:
        for seed in range(seeds):
            for arm, policy in arms.items():
                components = {
                    "policy": ComponentSpec(name=policy),
                    "backend": backend_spec(
                        loaded, backend=backend, require=require, allow_unsafe=allow_unsafe
                    ),
                }
                spec = RunSpec(seed=seed, reuse=False, components=components)
                name = f"{policy}-{seed}"
                live = Search(loaded, Parts.build(components), store, spec=spec, name=name)
                title = f"{loaded.name}, {arm}, run {seed + 1} of {seeds}"
                run_watched(live, Budget(measurements=measurements), title, quiet=as_json)
                curves[arm].append(best_so_far(store.open_run(name)))
                states[arm].append(live.state)
    runs = f"{seeds} runs" if seeds > 1 else "one run"
    title = f"{loaded.name} on this CPU: {measurements} measurements, {runs} an arm"
    draw_best_so_far(curves, figure, title)
    rows = {arm: _demo_row(each) for arm, each in states.items()}
    if as_json:
        seconds = round(time.monotonic() - began, 1)
        click.echo(json.dumps({"arms": rows, "figure": str(figure.resolve()), "seconds": seconds}))
        return
    table = Table(title=f"{loaded.name}: equal measurements, one engine", title_justify="left")
    for column in ("policy", "considered", "measured", "best speedup (measured twice)"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for arm, row in rows.items():
        each = ", ".join(f"{speedup:.2f}x" for speedup in row["speedups"])
        best = f"{row['geometric_mean']:.2f}x  ({each})"
        table.add_row(arm, str(row["considered"]), str(row["measured"]), best)
    OUT.print(table)
    OUT.print(f"figure: {figure.resolve()}")
    OUT.print(
        f"{time.monotonic() - began:.0f} s on this machine; a few runs show the idea, not a proof"
    )


def _demo_row(states: list[State]) -> dict[str, Any]:
    logs = [state.incumbent.log2_speedup for state in states]
    return {
        "considered": sum(state.considered for state in states),
        "measured": sum(state.measured for state in states),
        "speedups": [round(2.0**log2, 3) for log2 in logs],
        "geometric_mean": round(float(2.0 ** np.mean(logs)), 3),
    }
