"""Commands that judge parts on recorded kernels: eval for forecasters, replay for policies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, get_args

import click
from rich.progress import Progress
from rich.progress import track as track_progress

from kernelcast import dataset, plugins
from kernelcast.bins import BINS
from kernelcast.certainty import consult
from kernelcast.cli.common import (
    ANY_PATH,
    ERR,
    EXISTING_FILE,
    FOLDER,
    OUT,
    POSITIVE,
    ask_options,
    forecaster_specs,
    json_option,
    model_options,
)
from kernelcast.errors import ModelError, SetupError
from kernelcast.events import ComponentSpec
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.judge import (
    Answer,
    Arm,
    Evaluation,
    Questions,
    Replayed,
    answered,
    ask,
    ask_at_once,
    asked_queries,
    draw,
    evaluate,
    hindsight,
    known_then,
    recorded_answers,
    replay_search,
    replay_space,
    summarise,
)
from kernelcast.report.figures import draw_evaluations, draw_found
from kernelcast.report.judged import evaluation_report, replay_report
from kernelcast.report.tables import write_json
from kernelcast.report.terminal import printable
from kernelcast.store import Store
from kernelcast.types import Forecast, Query, Resource

T = TypeVar("T")

_ANSWERS = Path(".kernelcast/answers.jsonl")
# For the estimate only. The models of the paper wrote 222 to 20,900 tokens per answer.
_CHARACTERS_A_TOKEN = 3.0
_TYPICAL_OUTPUT_TOKENS = 2000


@click.command("eval")
@click.argument("rows", type=EXISTING_FILE)
@click.option(
    "--forecaster",
    "names",
    multiple=True,
    default=("trees",),
    help="Forecaster to judge (repeat to compare); llm is compared with trees.",
)
@click.option(
    "--forecasts",
    type=EXISTING_FILE,
    help="Recorded forecasts of these rows to judge as well, in their bins.",
)
@click.option(
    "--anchor",
    type=click.Choice(get_args(dataset.Anchor)),
    default="best",
    help="Anchor in a recorded search: the best so far, or always the reference.",
)
@click.option("--problem", help="Only problems whose name contains this.")
@click.option("--limit", type=POSITIVE, help="Number of kernels to draw at random.")
@click.option("--seed", type=int, default=0, help="Seed of the draw.")
@click.option("--out", type=FOLDER, help="Folder for eval.json, eval.png and a model's answers.")
@click.option("--yes", is_flag=True, help="Do not ask before a model is paid.")
@ask_options
@model_options
@json_option
def evaluate_forecasters(
    rows: Path,
    names: tuple[str, ...],
    forecasts: Path | None,
    anchor: dataset.Anchor,
    problem: str | None,
    limit: int | None,
    seed: int,
    out: Path | None,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Judge forecasters on recorded kernels (ROWS, a Parquet file): no hardware is touched.

    A recorded search is replayed in its order: the forecaster forecasts a kernel, then learns its
    outcome. Kernels that belong to no search are forecast all at once. Intervals are 95%, over
    problems drawn with replacement.

    A language model is asked after an estimate of the cost and your consent. Its answers are kept:
    the same command continues where it stopped, and pays for nothing twice.

    --forecasts adds what others forecast of the same rows, from a file of `kernelcast data import
    paper-predictions`.

    \b
    Examples:
      kernelcast eval rows.parquet --forecaster trees --forecaster roofline --out judged/
      kernelcast eval rows.parquet --anchor reference --problem softmax --json
      kernelcast eval rows.parquet --limit 200 --forecaster llm --ask direct \\
          --base-url http://localhost:8000/v1 --model my-model --out judged/
      kernelcast eval eval_set.parquet --forecasts forecasts.parquet --forecaster trees
    """
    whole = dataset.read_rows(rows, columns=dataset.TRIED)
    recorded: dict[str, dataset.ByRow] = {}
    if forecasts is not None:
        told = dataset.read_forecasts(forecasts)
        recorded = dataset.forecasts_by_row(told, whole)
        options["llm__bins"] = told[0].bins
    table = dataset.matching(whole, problem)
    if "llm" in names and "trees" not in names:
        names = (*names, "trees")
    specs = forecaster_specs(names, options)
    bins = BINS[options["llm__bins"]]
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
            answers = ask(make, _watched(questions, "asking", quiet=as_json))
        evaluations.append(evaluate(answers, bins))
    for by_row in recorded.values():
        evaluations.append(evaluate(recorded_answers(questions, by_row), bins))
    evaluations.append(evaluate(hindsight(answers), bins))
    report = evaluation_report(evaluations, rows.name, anchor)
    if out is not None:
        write_json(out / "eval.json", report.facts["evaluations"])
        title = f"{rows.name}, anchored at the {anchor}: forecasts against what was measured"
        draw_evaluations(evaluations, out / "eval.png", title)
    report.show(OUT, as_json=as_json)
    if out is not None and not as_json:
        OUT.print(f"written to {out}: eval.json, eval.png")


def _watched(items: Sequence[T], title: str, *, quiet: bool) -> Iterable[T]:
    return track_progress(items, title, console=ERR, transient=True, disable=quiet)


def _ask_model(
    spec: ComponentSpec, tape: Path, questions: Sequence[Questions], *, yes: bool, quiet: bool
) -> list[Answer]:
    """Return the answers on the tape; after consent, ask for those that are missing."""
    options = {**spec.options, "cassette": str(tape)}
    replayed, forecaster = (
        plugins.build(
            "forecaster", ComponentSpec(name="llm", options={**options, "cassette_mode": mode})
        )
        for mode in ("replay", "record")
    )
    queries, known = asked_queries(questions), known_then(questions)
    forecasts: dict[int, Forecast] = {}
    for at, query in enumerate(queries):
        with contextlib.suppress(ModelError):
            (forecasts[at],) = consult(replayed.knowing(known[at]), [query])
    missing = [at for at in range(len(queries)) if at not in forecasts]
    if missing:
        unasked = [(forecaster.knowing(known[at]), queries[at]) for at in missing]
        ERR.print(
            f"{len(queries)} kernels, {len(forecasts)} of them answered in {tape} before.\n"
            f"{_estimate(unasked)}",
        )
        if not yes:
            question = printable(f"Ask {spec.options['model']} about {len(missing)}?")
            click.confirm(question, abort=True, err=True)
        with Progress(console=ERR, transient=True, disable=quiet) as progress:
            task = progress.add_task("asking", total=len(missing))
            answers = ask_at_once(unasked, lambda: progress.advance(task))
        forecasts |= zip(missing, answers, strict=True)
    return answered(questions, [forecasts[at] for at in range(len(queries))])


def _estimate(asked: Sequence[tuple[LlmForecaster, Query]]) -> str:
    """Say what the answers will cost, typically and at most."""
    read = written = 0.0
    most: Counter[Resource] = Counter()
    for forecaster, query in asked:
        most.update(forecaster.quote([query]))
        for request in forecaster.requests(query):
            characters = sum(len(message["content"]) for message in request.messages)
            read += request.samples * characters / _CHARACTERS_A_TOKEN
            written += request.samples * min(_TYPICAL_OUTPUT_TOKENS, request.max_output_tokens)
    price = asked[0][0].price
    usual = f"About {read:,.0f} tokens to read and {written:,.0f} to write"
    bound = f"at most {most[Resource.FORECAST_TOKENS]:,.0f} in all, with every retry"
    if not price.priced:
        unpriced = f"dollars are unknown ({price.source}): state --price-in and --price-out"
        return f"{usual}; {bound}; {unpriced}."
    usd = price.usd(round(read), round(written))
    return f"{usual}, ${usd:.2f}; {bound}, ${most[Resource.FORECAST_USD]:.2f} ({price.source})."


@click.command()
@click.argument("rows", type=EXISTING_FILE)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("measure_all", "selective"),
    help="Policy to judge (repeat to compare).",
)
@click.option("--forecaster", default="trees", help="Forecaster.")
@click.option("--problem", help="Only problems whose name contains this.")
@click.option("--device", help="Only devices whose name contains this.")
@click.option(
    "--measurements",
    "-n",
    default=50,
    help="Measurements per recorded space.",
)
@click.option("--seeds", default=3, help="Runs per policy on a recorded space.")
@click.option("--limit", type=POSITIVE, help="Number of recordings.")
@click.option("--figure", type=ANY_PATH, help="PNG file to draw.")
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
    (kernels in the order they were written) are replayed once: the policy decides for each kernel
    whether to measure it; the proposals do not depend on that.

    \b
    Examples:
      kernelcast replay rows.parquet --problem convolution --device A100 -n 50 --seeds 5
      kernelcast replay rows.parquet --policy measure_all --policy selective --limit 40
    """
    table = dataset.matching(dataset.read_rows(rows), problem, device)
    recorded = list(islice(dataset.recorded_trials(table, "reference"), limit))
    spec = forecaster_specs((forecaster,), options)[forecaster]
    make = partial(plugins.build, "forecaster", spec)
    arms = [Arm(name, partial(_policy, name), make) for name in policies]
    runs: list[Replayed] = []
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "replay.db") as store:
        for trials in _watched(recorded, "replaying", quiet=as_json):
            runs += _replays(store, table, trials, arms, measurements, seeds)
    by_arm = {name: [run for run in runs if run.arm == name] for name in policies}
    if figure is not None:
        curves = {name: [run.curve for run in runs] for name, runs in by_arm.items()}
        draw_found(curves, figure, f"{rows.name}: {len(recorded)} recordings")
    facts = {name: summarise(runs) for name, runs in by_arm.items()}
    replay_report(facts, str(rows)).show(OUT, as_json=as_json)
    if figure is not None and not as_json:
        OUT.print(f"figure: {figure.resolve()}")


def _policy(name: str, *, streamed: bool) -> Any:
    # A recorded search shows its kernels one by one: there is no pool to choose from.
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
    kernels = [trial.query.candidate for trial in recorded.trials]
    recording = dataset.recording(table, recorded.problem, recorded.device, recorded.search)
    is_search = kernels[0].parameters is None
    for arm, seed in product(arms, range(1 if is_search else seeds)):
        name = str(len(store.runs()))
        if is_search:
            yield replay_search(store, name, recording, arm, kernels=kernels)
        else:
            yield replay_space(store, name, recording, arm, measurements=measurements, seed=seed)
