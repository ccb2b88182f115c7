"""The command that forecasts one file against another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import plugins
from kernelcast.bins import DEFAULT_BINS
from kernelcast.canonical import kernel_id, language_of
from kernelcast.cli.common import ERR, OUT, component, json_option, model_options
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.types import Forecast, Kernel, Problem, Query


@click.command()
@click.argument("reference", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("candidate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--problem", help="Problem they solve (bundled name or folder): shapes, work.")
@click.option("--device", help="Device to forecast for (default: this CPU).")
@click.option(
    "--reference-ms", type=float, default=1.0, help="Measured time of REFERENCE, if known."
)
@model_options
@json_option
def forecast(
    reference: Path,
    candidate: Path,
    problem: str | None,
    device: str | None,
    reference_ms: float,
    as_json: bool,
    **model: Any,
) -> None:
    """Forecast the speedup of CANDIDATE against REFERENCE, two source files of one language.

    \b
    Examples:
      kernelcast forecast seed.cpp candidate.cpp --problem softmax --reference-ms 6.2
      kernelcast forecast ref.cu cand.cu --device H100-SXM5 \\
          --base-url http://localhost:8000/v1 --model my-model

    Without a model endpoint the trees that ship with kernelcast forecast: they know how edits like
    this one have fared elsewhere, not this kernel.
    """
    language = language_of(candidate)
    if language is None:
        raise SetupError(f"{candidate}: known endings are .cpp, .cc, .cu, .hip, .cl and .py")
    anchor, rival = (
        Kernel(id=kernel_id(text, language), language=language, source=text)
        for text in (reference.read_text(), candidate.read_text())
    )
    name = "llm" if model["base_url"] else "trees"
    forecaster = plugins.build("forecaster", component(name, model))
    query = Query(
        problem=load_problem(problem)
        if problem
        else Problem.unstated("unstated", language, anchor.source),
        device=find_device(device) if device else detect_cpu(),
        candidate=rival,
        anchor=anchor,
        anchor_log2_speedup=0.0,
        anchor_runtime_s=reference_ms / 1e3,
    )
    with ERR.status("forecasting"):
        answer = forecaster.forecast([query])[0]
    if as_json:
        click.echo(json.dumps(_forecast_data(answer)))
    else:
        _print_forecast(answer, name)


def _forecast_data(answer: Forecast) -> dict[str, Any]:
    density = answer.distribution
    low, high = density.interval(0.8)
    return {
        "forecaster": answer.forecaster,
        "p_ok": answer.p_ok,
        "p_failure": {kind.value: chance for kind, chance in answer.failure.items()},
        "p_faster": answer.p_ok * density.probability_faster_than(1.0),
        "median_speedup": 2.0 ** density.quantile(0.5),
        "interval_80": [2.0**low, 2.0**high],
        "bins": dict(
            zip(DEFAULT_BINS.labels, density.bin_probabilities(DEFAULT_BINS), strict=True)
        ),
        "unparsed": answer.unparsed,
        "usage": answer.usage.model_dump(),
        "rationale": answer.rationale,
    }


def _print_forecast(answer: Forecast, name: str) -> None:
    data = _forecast_data(answer)
    table = Table(box=None, pad_edge=False, show_header=False)
    for index, (label, chance) in enumerate(data["bins"].items()):
        bar = "█" * round(40 * chance)
        table.add_row(label, DEFAULT_BINS.range_text(index), f"{chance:6.1%}", bar)
    OUT.print(f"Forecast by {name} (not a measurement)", style="bold")
    OUT.print(table)
    low, high = data["interval_80"]
    OUT.print(
        f"median {data['median_speedup']:.2f}x, 80% interval {low:.2f}x to {high:.2f}x, "
        f"P(runs and is right) {data['p_ok']:.2f}, P(faster) {data['p_faster']:.2f}"
    )
    usage = answer.usage
    if usage.tokens:
        OUT.print(f"{usage.tokens:,} tokens, ${usage.usd:.4f}, {usage.seconds:.1f} s")
    if answer.unparsed:
        OUT.print("the model's answer could not be read; this is the uniform forecast", style="red")
    if name == "trees":
        OUT.print("by trees trained on other kernels: docs/reference/model-card.md says how good")
