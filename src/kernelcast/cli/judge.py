"""Commands that judge parts on recorded kernels: eval for forecasters, replay for policies."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click
from rich.box import SIMPLE
from rich.progress import Progress
from rich.progress import track as track_progress
from rich.table import Table

from kernelcast import dataset, plugins
from kernelcast.certainty import consult
from kernelcast.cli.common import (
    BINS,
    ERR,
    OUT,
    ask_options,
    forecaster_specs,
    json_option,
    model_options,
)
from kernelcast.errors import ModelError, SetupError
from kernelcast.events import ComponentSpec
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.judge.evaluation import (
    SCORES,
    Answer,
    Estimate,
    Evaluation,
    Questions,
    answered,
    ask,
    ask_at_once,
    asked_queries,
    draw,
    evaluate,
    hindsight,
)
from kernelcast.judge.replaying import Arm, Replayed, replay_search, replay_space, summarise
from kernelcast.report.figures import draw_evaluations, draw_found
from kernelcast.report.terminal import printable
from kernelcast.store import Store
from kernelcast.types import Forecast, Query, Resource

_ANSWERS = Path(".kernelcast/answers.jsonl")
# Only for the estimate. Source text has about so many characters a token; the models of the paper
# wrote 222 to 20,900 tokens an answer.
_CHARACTERS_A_TOKEN = 3.0
_TYPICAL_OUTPUT_TOKENS = 2000


@click.command("eval")
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--forecaster",
    "names",
    multiple=True,
    default=("trees",),
    show_default=True,
    help="Who is judged (repeat to compare); beside llm always trees.",
)
@click.option(
    "--anchor",
    type=click.Choice(get_args(dataset.Anchor)),
    default="best",
    show_default=True,
    help="In a recorded search: forecast against the best so far, or always the reference.",
)
@click.option("--problem", help="Only problems whose name contains this.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many kernels, drawn at random.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for eval.json, eval.png and a model's answers.",
)
@click.option("--yes", is_flag=True, help="Do not ask before a model is paid.")
@ask_options
@model_options
@json_option
def evaluate_forecasters(
    rows: Path,
    names: tuple[str, ...],
    anchor: dataset.Anchor,
    problem: str | None,
    limit: int | None,
    seed: int,
    bins: str,
    out: Path | None,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Judge forecasters on recorded kernels (ROWS, a Parquet file): no hardware is touched.

    Each recorded search is gone through in its order: the forecaster is asked about a kernel,
    then told what came of it. Kernels that belong to no search are asked all at once. Intervals
    are 95%, over problems drawn with replacement.

    A language model is asked after an estimate of the cost and your consent. Its answers are kept
    as they come: started again, the command goes on where it stopped, and pays for nothing twice.

    \b
    Examples:
      kernelcast eval rows.parquet --forecaster trees --forecaster roofline --out judged/
      kernelcast eval rows.parquet --anchor reference --problem softmax --json
      kernelcast eval rows.parquet --limit 200 --forecaster llm --ask direct \\
          --base-url http://localhost:8000/v1 --model my-model --out judged/
    """
    table = dataset.matching(dataset.read_rows(rows, columns=dataset.TRIED), problem)
    if "llm" in names and "trees" not in names:
        names = (*names, "trees")
    specs = forecaster_specs(names, {"bins": bins, **options})
    searches = list(dataset.recorded_trials(table, anchor))
    questions = draw(searches, limit, seed, with_text="llm" in names)
    if not questions:
        raise SetupError("no kernel is left to ask about: their anchors' texts are not published")
    if not any(one.search.trials[at].ok for one in questions for at in one.asked):
        raise SetupError(
            "none of these kernels has a time, so no forecast of a speedup can be judged: "
            "give rows of which some have the status ok"
        )
    evaluations: list[Evaluation] = []
    answers: list[Answer] = []
    for name in names:
        if name == "llm":
            tape = out / "answers.jsonl" if out else _ANSWERS
            answers = _ask_model(specs[name], tape, questions, yes=yes, quiet=as_json)
        else:
            make = partial(plugins.build, "forecaster", specs[name])
            watched = track_progress(
                questions, "asking", console=ERR, transient=True, disable=as_json
            )
            answers = ask(make, watched)
        evaluations.append(evaluate(answers, BINS[bins]))
    evaluations.append(evaluate(hindsight(answers), BINS[bins]))
    facts = [_facts(each) for each in evaluations]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "eval.json").write_text(json.dumps(facts, indent=1) + "\n")
        title = f"{rows.name}, anchored at the {anchor}: forecasts against what was measured"
        draw_evaluations(evaluations, out / "eval.png", title)
    if as_json:
        click.echo(json.dumps({"rows": rows.name, "anchor": anchor, "evaluations": facts}))
        return
    _print(evaluations)
    if out is not None:
        OUT.print(f"written to {out}: eval.json, eval.png")


# ------------------------------------------------------------------------------ asking a model


def _ask_model(
    spec: ComponentSpec,
    tape: Path,
    questions: Sequence[Questions],
    *,
    yes: bool,
    quiet: bool,
) -> list[Answer]:
    """The answers on the tape, and after consent those that are missing, which are added to it."""
    replayed, forecaster = (
        plugins.build(
            "forecaster",
            ComponentSpec(
                name="llm",
                options={**spec.options, "cassette": str(tape), "cassette_mode": mode},
            ),
        )
        for mode in ("replay", "record")
    )
    queries = asked_queries(questions)
    told: dict[int, Forecast] = {}
    for at, query in enumerate(queries):
        with contextlib.suppress(ModelError):
            (told[at],) = consult(replayed, [query])
    missing = [at for at in range(len(queries)) if at not in told]
    if missing:
        wanted = [queries[at] for at in missing]
        ERR.print(
            f"{len(queries)} kernels, {len(told)} of them answered in {tape} before.\n"
            f"{_estimate(forecaster, wanted)}",
        )
        if not yes:
            click.confirm(
                printable(f"Ask {spec.options['model']} about {len(missing)}?"),
                abort=True,
                err=True,
            )
        with Progress(
            *Progress.get_default_columns(), console=ERR, transient=True, disable=quiet
        ) as progress:
            task = progress.add_task("asking", total=len(missing))
            found = ask_at_once(forecaster, wanted, lambda: progress.advance(task))
        told |= dict(zip(missing, found, strict=True))
    return answered(questions, [told[at] for at in range(len(queries))])


def _estimate(forecaster: LlmForecaster, queries: Sequence[Query]) -> str:
    """What the answers will cost, as a rule and at most."""
    read = written = 0.0
    for request in (each for query in queries for each in forecaster.requests(query)):
        characters = sum(len(message["content"]) for message in request.messages)
        read += request.samples * characters / _CHARACTERS_A_TOKEN
        written += request.samples * min(_TYPICAL_OUTPUT_TOKENS, request.max_output_tokens)
    most, price = forecaster.quote(queries), forecaster.price
    usual = f"About {read:,.0f} tokens to read and {written:,.0f} to write"
    bound = f"at most {most[Resource.FORECAST_TOKENS]:,.0f} in all, with every retry"
    if not price.priced:
        unpriced = f"dollars are unknown ({price.source}): state --price-in and --price-out"
        return f"{usual}; {bound}; {unpriced}."
    usd = price.usd(round(read), round(written))
    return f"{usual}, ${usd:.2f}; {bound}, ${most[Resource.FORECAST_USD]:.2f} ({price.source})."


# ------------------------------------------------------------------------------------- telling


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    def numbers(estimate: Estimate) -> list[float | None]:
        # What is undefined is null: NaN is no JSON.
        figures = (estimate.value, estimate.low, estimate.high)
        return [round(each, 5) if math.isfinite(each) else None for each in figures]

    return {
        "forecaster": evaluation.forecaster,
        "kernels": evaluation.kernels,
        "timed": evaluation.timed,
        "problems": evaluation.groups,
        "scores": {name: numbers(each) for name, each in evaluation.scores.items()},
        "loss_by_share_measured": {
            f"{share:g}": numbers(each) for share, each in evaluation.regret.items()
        },
        "reliability": [[round(each, 5) for each in row] for row in evaluation.reliability],
        "risk_coverage": {
            f"{share:g}": round(risk, 5) for share, risk in _risks(evaluation).items()
        },
        "unparsed": evaluation.unparsed,
        "usage": evaluation.usage.model_dump(),
    }


def _risks(evaluation: Evaluation) -> dict[float, float]:
    """Mean half-Brier of the surest forecasts, by the share of them that is kept."""
    curve = evaluation.risk_coverage
    if not curve.risk.size:
        return {}
    ends = {share: math.ceil(share * curve.risk.size) - 1 for share in (0.25, 0.5, 0.75, 1.0)}
    return {share: float(curve.risk[end]) for share, end in ends.items()}


def _print(evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    counts = f"{first.kernels:,} recorded kernels ({first.timed:,} timed), {first.groups} problems"
    table = Table(title=counts, title_justify="left", box=SIMPLE)
    table.add_column("score", no_wrap=True)
    for each in evaluations:
        table.add_column(each.forecaster, justify="right")
    for name in SCORES:
        table.add_row(name, *(str(each.scores[name]) for each in evaluations))
    for share, loss in first.regret.items():
        if math.isfinite(loss.value) and share < 1.0:
            losses = (str(each.regret[share]) for each in evaluations)
            table.add_row(f"loss at {share:.0%}", *losses)
    for share in _risks(first):
        risks = (f"{_risks(each)[share]:.3f}" for each in evaluations)
        table.add_row(f"risk at {share:.0%}", *risks)
    OUT.print(table)
    for each in evaluations:
        buckets = ", ".join(
            f"{claimed:.2f} claimed {right:.2f} right ({count})"
            for claimed, right, count in each.reliability
        )
        OUT.print(f"reliability of {each.forecaster}: {buckets or 'nothing timed'}")
        if each.usage.tokens:
            bound = "at most " if each.usage.unknown else ""
            OUT.print(
                f"{each.forecaster} read {bound}{each.usage.input_tokens:,} and wrote "
                f"{each.usage.output_tokens:,} tokens for ${each.usage.usd:.4f}; "
                f"{each.unparsed} answers could not be read and count as knowing nothing",
            )
    told = {
        **SCORES,
        "loss at 10%": "speed lost by measuring only the tenth that is forecast to be fastest",
        "risk at 25%": "mean half-Brier of the quarter of forecasts that is surest",
    }
    for name, meaning in told.items():
        OUT.print(f"  {name:14} {meaning}", style="dim")


@click.command()
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("measure_all", "selective"),
    show_default=True,
    help="What is compared (repeat to compare).",
)
@click.option("--forecaster", default="trees", show_default=True, help="Who predicts.")
@click.option("--problem", help="Only problems whose name contains this.")
@click.option("--device", help="Only devices whose name contains this.")
@click.option(
    "--measurements", "-n", default=50, show_default=True, help="Measurements a recorded space."
)
@click.option("--seeds", default=3, show_default=True, help="Runs an arm and recorded space.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many recordings.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw found against measured.")
@model_options
@json_option
def replay(
    rows: Path,
    policies: tuple[str, ...],
    forecaster: str,
    problem: str | None,
    device: str | None,
    measurements: int,
    seeds: int,
    limit: int | None,
    figure: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare policies on what was recorded (ROWS, a Parquet file): no hardware is touched.

    Recorded spaces (tuned kernels) are searched with a budget of measurements. Recorded searches
    (kernels in the order they were written) are gone through once: each kernel is measured or
    not, and what was proposed does not depend on it.

    \b
    Examples:
      kernelcast replay rows.parquet --problem convolution --device A100 -n 50 --seeds 5
      kernelcast replay rows.parquet --policy measure_all --policy selective --limit 40
    """
    table = dataset.matching(dataset.read_rows(rows), problem, device)
    wanted = list(islice(dataset.recorded_trials(table, "reference"), limit))
    spec = forecaster_specs((forecaster,), options)[forecaster]
    make = partial(plugins.build, "forecaster", spec)
    arms = [Arm(name, partial(_policy, name), make) for name in policies]
    found: list[Replayed] = []
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "replay.db") as store:
        for each in track_progress(
            wanted, "replaying", console=ERR, transient=True, disable=as_json
        ):
            found += _replays(store, table, each, arms, measurements, seeds)
    facts = {name: summarise([one for one in found if one.arm == name]) for name in policies}
    if figure is not None:
        curves = {name: [one.curve for one in found if one.arm == name] for name in policies}
        draw_found(curves, figure, f"{rows.name}: {len(wanted)} recordings")
    if as_json:
        click.echo(json.dumps({"rows": str(rows), "arms": facts}))
        return
    _print_replay(facts)
    if figure is not None:
        OUT.print(f"figure: {figure.resolve()}")


def _policy(name: str, *, streamed: bool) -> Any:
    """A recorded search shows its kernels one by one: there is no pool to choose from."""
    options = {"pool_size": 1} if streamed else {}
    return plugins.build("policy", ComponentSpec(name=name, options=options))


def _replays(
    store: Store,
    table: dataset.Rows,
    recorded: dataset.Trials,
    arms: Sequence[Arm],
    measurements: int,
    seeds: int,
) -> Iterator[Replayed]:
    tuned = recorded.trials[0].query.candidate.parameters is not None
    recording = dataset.recording(table, recorded.problem, recorded.device, recorded.search)
    for arm in arms:
        for seed in range(seeds if tuned else 1):
            name = f"{len(store.runs())}"
            if tuned:
                yield replay_space(
                    store, name, recording, arm, measurements=measurements, seed=seed
                )
            else:
                kernels = [trial.query.candidate for trial in recorded.trials]
                yield replay_search(store, name, recording, arm, kernels=kernels, seed=seed)


_KINDS = {
    "spaces": "Recorded spaces: best found over best recorded, after so many measurements",
    "searches": "Recorded searches: measurements saved, and what that cost",
}


def _print_replay(arms: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    for kind, title in _KINDS.items():
        facts = {name: each[kind] for name, each in arms.items() if kind in each}
        if not facts:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("policy")
        for column in next(iter(facts.values())):
            table.add_column(column.replace("_", " "), justify="right")
        for name, fact in facts.items():
            table.add_row(name, *(f"{value:.4g}" for value in fact.values()))
        OUT.print(table)
