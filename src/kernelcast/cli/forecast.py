"""The command that forecasts one file against another."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import plugins
from kernelcast.bins import Bins
from kernelcast.canonical import kernel_id, language_of
from kernelcast.cli.common import BINS, ERR, OUT, ask_options, asking, json_option, model_options
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.policies import Selective
from kernelcast.problems import load_problem
from kernelcast.protocols import Forecaster
from kernelcast.types import (
    Candidate,
    Decision,
    Device,
    Evidence,
    Forecast,
    Kernel,
    Problem,
    Query,
    View,
)

_BAR = 40
_ADVICE = {
    "measure": "measure it",
    "drop": "drop it, unmeasured",
    "trust": "trust the forecast and build on it, unmeasured",
}


@click.command()
@click.argument("reference", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("candidate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--problem", help="Problem they solve (bundled name or folder): shapes, work.")
@click.option("--device", help="Device to forecast for, e.g. H100 (default: this CPU).")
@click.option("--reference-ms", type=float, help="Measured time of REFERENCE, if known.")
@ask_options
@model_options
@json_option
def forecast(
    reference: Path,
    candidate: Path,
    problem: str | None,
    device: str | None,
    reference_ms: float | None,
    bins: str,
    as_json: bool,
    **model: Any,
) -> None:
    """Forecast the speedup of CANDIDATE against REFERENCE, two source files of one language.

    \b
    Examples:
      kernelcast forecast seed.cpp candidate.cpp --problem softmax --reference-ms 6.2
      kernelcast forecast ref.cu cand.cu --device H100 \\
          --base-url http://localhost:8000/v1 --model my-model --ask direct

    Without a model endpoint the trees that ship with kernelcast forecast: they know how edits like
    this one have fared elsewhere, not this kernel. Both files are compiled where the compiler for
    the device is installed, and the forecaster is told what that shows; nothing is run.
    """
    language = language_of(candidate)
    if language is None:
        raise SetupError(f"{candidate}: known endings are .cpp, .cc, .cu, .hip, .cl and .py")
    anchor, rival = (
        Kernel(id=kernel_id(text, language), language=language, source=text)
        for text in (reference.read_text(), candidate.read_text())
    )
    is_asked = bool(model["base_url"] or model["model"])
    spec = asking(model, bins=bins) if is_asked else ComponentSpec(name="trees")
    forecaster: Forecaster = plugins.build("forecaster", spec)
    unstated = Problem.unstated("unstated", language, anchor.source)
    query = Query(
        problem=load_problem(problem) if problem else unstated,
        device=find_device(device) if device else detect_cpu(),
        candidate=rival,
        anchor=anchor,
        anchor_log2_speedup=0.0,
        anchor_runtime_s=math.nan if reference_ms is None else reference_ms / 1e3,
    )
    with ERR.status("compiling"):
        query = _with_evidence(query)
    with ERR.status("forecasting"):
        answer = forecaster.forecast([query])[0]
    facts = _facts(answer, _decision(answer, query), BINS[bins], _price(forecaster))
    if as_json:
        click.echo(json.dumps(facts))
        return
    who = f"{model['model']}, {model['ask']}" if is_asked else spec.name
    OUT.print(f"Forecast by {who} for {query.device.name} (not a measurement)", style="bold")
    _print_forecast(facts, BINS[bins], f"{candidate.name} against {reference.name}")
    OUT.print(_compiled(query), style="dim")
    if answer.unparsed:
        OUT.print(
            f"the answer could not be read ({answer.rationale}): nothing is known", style="red"
        )
    elif answer.rationale and is_asked:
        OUT.print(f"its reason: {answer.rationale}", style="dim")
    if not is_asked:
        OUT.print("by trees trained on other kernels: docs/reference/model-card.md says how good")


# ------------------------------------------------------------------------------------ evidence


def _with_evidence(query: Query) -> Query:
    """The query with what compiling tells of both kernels, where it can be had."""
    spec = _compiler(query.candidate, query.device)
    if spec is None:
        return query
    try:
        with closing(plugins.build("backend", spec)) as backend:
            found: list[Evidence] = [
                backend.inspect(query.problem, kernel) for kernel in (query.anchor, query.candidate)
            ]
    except SetupError:
        return query
    # A reference is known to work: if it does not compile here, this is not its toolchain.
    if found[0].failure is not None:
        return query
    return query.model_copy(update={"anchor_evidence": found[0], "evidence": found[1]})


def _compiler(kernel: Kernel, device: Device) -> ComponentSpec | None:
    """The backend that compiles this language for this device."""
    if kernel.language == "cpp" and device.kind == "cpu":
        return ComponentSpec(name="cpp", options={"allow_unsafe": False})
    if kernel.language == "triton" and device.target:
        return ComponentSpec(name="triton", options={"device": device.name})
    if kernel.language == "cuda" and device.target.startswith("sm_"):
        return ComponentSpec(name="cuda", options={"device": device.name})
    return None


def _compiled(query: Query) -> str:
    if query.evidence is None:
        return "neither was compiled here; the forecast is from the sources alone"
    if query.evidence.failure is not None:
        return f"the reference compiles, the candidate does not: {query.evidence.toolchain}"
    return f"both compile: {query.evidence.toolchain}"


# ------------------------------------------------------------------------------------- telling


def _decision(answer: Forecast, query: Query) -> Decision:
    """What a search would do with it, if the reference were the best so far."""
    if query.anchor.id == query.candidate.id:
        same = "the same kernel, but for comments, layout and names"
        return Decision(action="drop", score=0.0, reason=same)
    failure = query.evidence and query.evidence.failure
    if failure:
        said = failure.message.splitlines()
        why = next((line.strip() for line in said if "error" in line), failure.kind.value)
        return Decision(action="drop", score=0.0, reason=f"it does not compile: {why}")
    alone = Candidate(
        kernel_id=query.candidate.id, parent_id=query.anchor.id, ordinal=0, forecast=answer
    )
    view = View(
        seed=0,
        incumbent_log2=query.anchor_log2_speedup,
        noise_log2=0.0,
        measured=0,
        free_slots=1,
        measurements_left=math.inf,
        proposals_exhausted=True,
    )
    return Selective(pool_size=1).decide([alone], view)[alone.kernel_id]


def _price(forecaster: Forecaster) -> dict[str, Any]:
    price = getattr(forecaster, "price", None)
    if price is None:
        return {}
    return {"priced": price.priced, "price_source": price.source}


def _facts(
    answer: Forecast, decision: Decision, bins: Bins, price: dict[str, Any]
) -> dict[str, Any]:
    density = answer.distribution
    low, high = density.interval(0.8)
    return {
        "forecaster": answer.forecaster,
        "p_ok": answer.p_ok,
        "p_failure": {kind.value: chance for kind, chance in answer.failure.items()},
        "p_faster": answer.p_ok * density.probability_faster_than(1.0),
        "median_speedup": 2.0 ** density.quantile(0.5),
        "interval_80": [2.0**low, 2.0**high],
        "bins": dict(zip(bins.labels, density.bin_probabilities(bins), strict=True)),
        "decision": decision.action,
        "decision_reason": decision.reason,
        "unparsed": answer.unparsed,
        "usage": {**answer.usage.model_dump(), **price},
        "rationale": answer.rationale,
    }


def _print_forecast(facts: dict[str, Any], bins: Bins, pair: str) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for index, (label, chance) in enumerate(facts["bins"].items()):
        bar = "█" * round(_BAR * chance)
        table.add_row(label, bins.range_text(index), f"{chance:6.1%}", bar)
    OUT.print(f"Speedup of {pair}, if it runs and is right:")
    OUT.print(table)
    low, high = facts["interval_80"]
    OUT.print(f"median {facts['median_speedup']:.2f}x, 80% interval {low:.2f}x to {high:.2f}x")
    fears = ", ".join(
        f"{kind.replace('_', ' ')} {chance:.2f}"
        for kind, chance in facts["p_failure"].items()
        if chance >= 0.005
    )
    OUT.print(
        f"P(faster) {facts['p_faster']:.2f}, P(runs and is right) {facts['p_ok']:.2f}"
        + (f" ({fears})" if fears else "")
    )
    OUT.print(f"A search would {_ADVICE[facts['decision']]} ({facts['decision_reason']})")
    usage = facts["usage"]
    if usage["input_tokens"]:
        cost = f"${usage['usd']:.4f}" if usage["priced"] else "cost unknown"
        bound = "at most " if usage["unknown"] else ""
        OUT.print(
            f"{bound}{usage['input_tokens']:,} tokens read, {usage['output_tokens']:,} written, "
            f"{cost} ({usage['price_source']}), {usage['seconds']:.1f} s"
        )
