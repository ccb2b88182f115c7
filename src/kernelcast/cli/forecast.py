"""The command that forecasts one file against another, and the asking that `rank` shares."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import track
from rich.table import Table

from kernelcast import dataset, plugins
from kernelcast.bins import BINS, Bins
from kernelcast.canonical import read_kernel
from kernelcast.certainty import consult
from kernelcast.cli.common import (
    ERR,
    EXISTING_FILE,
    OUT,
    ask_options,
    json_option,
    model_options,
    option,
    read_options,
    use_cache,
)
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.forecasters.emulated import estimated_log2_ratio
from kernelcast.languages import dialect
from kernelcast.llm import rehearsal_text
from kernelcast.parts import read_run
from kernelcast.policies import Selective
from kernelcast.problems import load_problem
from kernelcast.protocols import Backend, Forecaster
from kernelcast.report.tables import NO_EXPERIENCE
from kernelcast.types import (
    SMALLEST_CLAIM_LOG2,
    Candidate,
    Decision,
    Device,
    Evidence,
    Forecast,
    Kernel,
    Language,
    Problem,
    Query,
    Rehearsal,
    View,
)

_BAR = 30
_ADVICE = {
    "measure": "measure it",
    "drop": "drop it, unmeasured",
    "trust": "trust the forecast and build on it, unmeasured",
}


@click.command()
@click.argument("reference", type=EXISTING_FILE)
@click.argument("candidate", type=EXISTING_FILE)
@option("--problem", "Problem they solve (bundled name or folder): shapes, work.")
@option("--device", "Device to forecast for, e.g. H100 (default: this CPU).")
@option(
    "--reference-ms",
    "Measured time of REFERENCE, if known.",
    click.FloatRange(min=0, min_open=True),
)
@ask_options
@model_options
@json_option
def forecast(
    reference: Path,
    candidate: Path,
    problem: str | None,
    device: str | None,
    reference_ms: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Forecast the speedup of CANDIDATE against REFERENCE, two source files of one language.

    \b
    Examples:
      kernelcast forecast seed.cpp candidate.cpp --problem softmax --reference-ms 6.2
      kernelcast forecast ref.cu cand.cu --device H100 \\
          --base-url http://localhost:8000/v1 --model my-model --ask direct

    Without a model endpoint the trees that ship with kernelcast forecast: they know how edits like
    this one have fared elsewhere, not this kernel. Both files are compiled where the compiler for
    the device is installed, and the forecaster is told what that shows. For an NVIDIA GPU, kernels
    of a --problem are emulated on this CPU, which shows wrong ones and estimates both times;
    PyTorch modules for a GPU that is not here are rehearsed on it, which may be wrong. What is
    certain needs no forecaster: a kernel that does not compile fails, and a copy is a tie.
    Without --reference-ms a model is asked in both directions, and so twice.
    P(faster) is the chance of more than 1%, below which no measurement is called faster either.
    """
    use_cache()
    wanted = load_problem(problem).language if problem else None
    anchor, rival = read_kernel(reference, wanted), read_kernel(candidate, wanted)
    if anchor.language != rival.language:
        raise SetupError(
            f"{anchor.language} and {rival.language} are two languages: "
            "compare two kernels of one language"
        )
    target = target_device(device, anchor.language)
    solved = Problem.unstated("unstated", anchor.language, anchor.source)
    if problem:
        loaded = load_problem(problem, device="gpu" if target.kind == "gpu" else "cpu")
        solved = loaded.in_language_of(anchor)
    settings, model = read_options(options, implied="forecaster")
    run = read_run(settings, problem=solved, model=model, known=("forecaster",))
    spec = run.spec.components["forecaster"]
    reference_s = math.nan if reference_ms is None else reference_ms / 1e3
    pool = dataset.Pool(run.problem, anchor, reference_s, (candidate.name,), (rival,))
    asked = ask(spec, pool, target)
    (query,), (answer,) = asked.queries, asked.forecasts
    bins = BINS[spec.options.get("bins", options["llm__bins"])]
    facts = _facts(answer, _decision(answer, query), bins)
    if price := getattr(asked.forecaster, "price", None):
        facts["usage"] |= {"priced": price.priced, "price_source": price.source}
    if as_json:
        click.echo(json.dumps(facts))
        return
    is_asked = spec.name == "llm"
    way = spec.options.get("ask", options["llm__ask"])
    name = f"{spec.options['model']}, {way}" if is_asked else spec.name
    OUT.print(f"Forecast by {name} for {query.device.name} (not a measurement)", style="bold")
    _print_forecast(facts, bins, f"{candidate.name} against {reference.name}")
    note = asked.note
    if query.evidence is not None and query.evidence.rehearsal is not None:
        note = f"{candidate.name} {rehearsal_text(query.evidence.rehearsal)}"
    elif query.evidence is not None:
        verdict = query.evidence.verdict
        which = f"the reference compiles, the candidate {verdict}" if verdict else "both compile"
        note = f"{which}: {query.evidence.toolchain}"
        ratio = estimated_log2_ratio(query)
        if ratio is not None:
            note += f"; both are emulated: {2.0**ratio:.2f}x by the estimates alone"
        elif why := query.evidence.not_emulated:
            note += f"; not emulated: {why}"
    OUT.print(note, style="dim")
    if answer.unparsed:
        OUT.print(
            f"the answer could not be read ({answer.rationale}): nothing is known", style="red"
        )
    elif answer.rationale and is_asked:
        # On one line: a model's text must not look like lines of the result.
        OUT.print(f"its reason: {answer.rationale.replace(chr(10), ' ')}", style="dim")
    if answer.is_prior:
        OUT.print(NO_EXPERIENCE, style="yellow")
    if spec.name == "trees" and answer.p_ok and not answer.objection:
        OUT.print("by trees trained on other kernels: docs/reference/model-card.md says how good")


# -------------------------------------------------------------------------------------- asking


@dataclass(frozen=True)
class Asked:
    """Forecasts of kernels, what was asked, and a note on how they were compiled."""

    forecaster: Forecaster
    queries: Sequence[Query]
    forecasts: Sequence[Forecast]
    note: str


def ask(
    spec: ComponentSpec,
    pool: dataset.Pool,
    device: Device,
    *,
    compiles: bool = True,
    quiet: bool = False,
) -> Asked:
    """Forecast the kernels of a pool against its reference.

    Args:
        spec: The forecaster.
        pool: The kernels, their problem and reference, and what is known already.
        device: Device to forecast for.
        compiles: Whether to compile the kernels first, where that is possible.
        quiet: Show no progress.
    """
    forecaster: Forecaster = plugins.build("forecaster", spec)
    evidence: Mapping[str, Evidence] = {}
    note = "not compiled, as --no-compile says"
    if compiles:
        evidence, note = _compile(pool, device, quiet=quiet)
    queries = [
        Query(
            problem=pool.problem,
            device=device,
            candidate=kernel,
            anchor=pool.reference,
            anchor_log2_speedup=0.0,
            anchor_runtime_s=pool.reference_s,
            anchor_measured=bool(pool.known) or not math.isnan(pool.reference_s),
            evidence=evidence.get(kernel.id),
            anchor_evidence=evidence.get(pool.reference.id),
        )
        for kernel in pool.kernels
    ]
    with ERR.status(f"forecasting {len(queries):,} kernels"):
        forecaster.learn(pool.known)
        return Asked(forecaster, queries, consult(forecaster, queries), note)


def target_device(name: str | None, language: Language) -> Device:
    """Return the named device, or this CPU if kernels of the language run on it."""
    if name is not None:
        return find_device(name)
    if not dialect(language).on_cpu:
        raise SetupError(
            f"{language} kernels do not run on this CPU: name a GPU with --device, "
            "e.g. --device H100-SXM5"
        )
    return detect_cpu()


def _compile(
    pool: dataset.Pool, device: Device, *, quiet: bool
) -> tuple[Mapping[str, Evidence], str]:
    """Return evidence by kernel id, none if nothing can be compiled, and what was done."""
    written = [kernel for kernel in pool.kernels if kernel.source and kernel.parameters is None]
    language = pool.reference.language
    if not written:
        return {}, "not compiled: these are configurations, not written kernels"
    on_gpu = {"triton": "", "cuda": "sm_", "torch": "sm_"}.get(language)
    if dialect(language).on_cpu and device.kind == "cpu":
        spec = ComponentSpec(name=language)
    elif on_gpu is not None and device.target and device.target.startswith(on_gpu):
        spec = ComponentSpec(name=language, options={"device": device.name})
    else:
        return {}, f"not compiled: there is no compiler of {language} for {device.name} here"
    try:
        with closing(plugins.build("backend", spec)) as backend:
            anchor: Evidence = backend.inspect(pool.problem, pool.reference)
            # A reference is known to work: if it does not compile, this is not its toolchain.
            if anchor.failure is not None:
                fix = "" if pool.problem.arguments else "; give the --problem that they solve"
                why = f"the reference {anchor.verdict} here ({anchor.failure.headline}){fix}"
                return {}, f"not compiled: {why}"
            evidence = _inspect(backend, pool.problem, written, quiet=quiet)
    except SetupError as error:
        return {}, f"not compiled: {error}"
    found = evidence.values()
    everything = {pool.reference.id: anchor, **evidence}
    if anchor.rehearsal is not None:
        return everything, _rehearsal_note([one.rehearsal for one in found if one.rehearsal])
    good = sum(one.compiles for one in found)
    note = f"{good} of {len(evidence)} kernels compile with {anchor.toolchain}"
    if emulated := sum(bool(one.emulated) for one in found):
        wrong = sum(one.compiles and one.failure is not None for one in found)
        note += f"; {emulated} are emulated" + (f", which finds {wrong} wrong" if wrong else "")
    return everything, note


def _rehearsal_note(rehearsals: Sequence[Rehearsal]) -> str:
    """What came of modules that were rehearsed."""
    failed = sum(one.failure is not None for one in rehearsals)
    ran = sum(one.stage == "running" for one in rehearsals)
    ran_too = f", {ran} of them also run on its small cases" if ran else ""
    return (
        f"the device is not here: {len(rehearsals)} modules are read on this CPU{ran_too}; "
        f"seeming to fail: {failed}, which counts as evidence and rules none out"
    )


def _inspect(
    backend: Backend, problem: Problem, kernels: Sequence[Kernel], *, quiet: bool
) -> dict[str, Evidence]:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        evidence = track(
            threads.map(lambda kernel: backend.inspect(problem, kernel), kernels),
            "compiling",
            len(kernels),
            console=ERR,
            transient=True,
            disable=quiet or not ERR.is_terminal,
        )
        return {kernel.id: one for kernel, one in zip(kernels, evidence, strict=True)}


# ------------------------------------------------------------------------------------- printing


def _decision(answer: Forecast, query: Query) -> Decision:
    """Return what a search would do with it, if the reference were the best so far."""
    if not answer.p_ok:
        return Decision(action="drop", score=0.0, reason=answer.rationale)
    alone = Candidate(
        kernel_id=query.candidate.id, parent_id=query.anchor.id, ordinal=0, forecast=answer
    )
    view = View(
        seed=0,
        incumbent_log2=query.anchor_log2_speedup,
        noise_log2=None,
        measured=0,
        free_slots=1,
        measurements_left=math.inf,
        proposals_exhausted=True,
    )
    return Selective(pool_size=1).decide([alone], view)[alone.kernel_id]


def _facts(answer: Forecast, decision: Decision, bins: Bins) -> dict[str, Any]:
    density = answer.distribution
    low, high = density.interval(0.8)
    runs = answer.p_ok > 0.0
    return {
        "forecaster": answer.forecaster,
        "p_ok": answer.p_ok,
        "p_failure": {kind.value: chance for kind, chance in answer.failure.items()},
        "p_faster": answer.p_ok * density.probability_above(SMALLEST_CLAIM_LOG2),
        "median_speedup": 2.0 ** density.quantile(0.5) if runs else None,
        "interval_80": [2.0**low, 2.0**high] if runs else None,
        "bins": dict(
            zip(bins.labels, density.bin_probabilities(bins) if runs else (), strict=runs)
        ),
        "decision": decision.action,
        "decision_reason": decision.reason,
        "is_prior": answer.is_prior,
        "unparsed": answer.unparsed,
        "usage": answer.usage.model_dump(),
        "rationale": answer.rationale,
    }


def _print_forecast(facts: dict[str, Any], bins: Bins, pair: str) -> None:
    if facts["p_ok"]:
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
        cost = f"${usage['usd']:.4f}" if usage.get("priced") else "cost unknown"
        source = f" ({usage['price_source']})" if "price_source" in usage else ""
        bound = "at most " if usage["unknown"] else ""
        OUT.print(
            f"{bound}{usage['input_tokens']:,} tokens read, {usage['output_tokens']:,} written, "
            f"{cost}{source}, {usage['seconds']:.1f} s"
        )
