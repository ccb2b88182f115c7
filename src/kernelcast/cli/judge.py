"""Commands that judge parts on recorded kernels: eval for forecasters, replay for policies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click
from rich.progress import track
from rich.table import Table

from kernelcast import dataset, plugins
from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.cli.common import ERR, OUT, component, json_option, model_options
from kernelcast.comparison import Arm, Replayed, replay_search, replay_space, summarise
from kernelcast.evaluation import SCORES, Evaluation, ask, evaluate, hindsight
from kernelcast.events import ComponentSpec
from kernelcast.report.figures import draw_evaluations, draw_found
from kernelcast.store import Store

_BINS = {"default": DEFAULT_BINS, "paper": PAPER_BINS}


@click.command("eval")
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--forecaster",
    "names",
    multiple=True,
    default=("trees",),
    show_default=True,
    help="Who is judged (repeat to compare).",
)
@click.option(
    "--anchor",
    type=click.Choice(get_args(dataset.Anchor)),
    default="best",
    show_default=True,
    help="In a recorded search: forecast against the best so far, or always the reference.",
)
@click.option("--problem", help="Only problems whose name contains this.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many searches.")
@click.option(
    "--bins", type=click.Choice(tuple(_BINS)), default="default", help="Ours, or the paper's eight."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for eval.json and eval.png.",
)
@model_options
@json_option
def evaluate_forecasters(
    rows: Path,
    names: tuple[str, ...],
    anchor: dataset.Anchor,
    problem: str | None,
    limit: int | None,
    bins: str,
    out: Path | None,
    as_json: bool,
    **model: Any,
) -> None:
    """Judge forecasters on recorded kernels (ROWS, a Parquet file): no hardware is touched.

    Each recorded search is gone through in its order: the forecaster is asked about a kernel,
    then told what came of it. Kernels that belong to no search are asked all at once. Intervals
    are 95%, over problems drawn with replacement.

    \b
    Examples:
      kernelcast eval rows.parquet --forecaster trees --forecaster roofline --out judged/
      kernelcast eval rows.parquet --anchor reference --problem softmax --json
    """
    table = dataset.matching(dataset.read_rows(rows, columns=dataset.TRIED), problem)
    searches = list(islice(dataset.recorded_trials(table, anchor), limit))
    evaluations: list[Evaluation] = []
    answers = []
    for name in names:
        make = partial(plugins.build, "forecaster", component(name, model))
        watched = track(searches, f"asking {name}", console=ERR, transient=True, disable=as_json)
        answers = ask(make, watched)
        evaluations.append(evaluate(answers, _BINS[bins]))
    evaluations.append(evaluate(hindsight(answers), _BINS[bins]))
    facts = [_facts(each) for each in evaluations]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "eval.json").write_text(json.dumps(facts, indent=1) + "\n")
        title = f"{rows.name}, anchored at the {anchor}: forecasts against what was measured"
        draw_evaluations(evaluations, out / "eval.png", title)
    if as_json:
        click.echo(json.dumps({"rows": str(rows), "anchor": anchor, "evaluations": facts}))
        return
    _print(evaluations)
    if out is not None:
        OUT.print(f"written to {out}: eval.json, eval.png")


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    def numbers(estimate: Any) -> list[float]:
        return [round(each, 5) for each in (estimate.value, estimate.low, estimate.high)]

    return {
        "forecaster": evaluation.forecaster,
        "kernels": evaluation.kernels,
        "timed": evaluation.timed,
        "problems": evaluation.groups,
        "scores": {name: numbers(each) for name, each in evaluation.scores.items()},
        "loss_by_share_measured": {
            f"{share:g}": numbers(each) for share, each in evaluation.regret.items()
        },
        "reliability": [list(row) for row in evaluation.reliability],
    }


def _print(evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    counts = f"{first.kernels:,} recorded kernels ({first.timed:,} timed), {first.groups} problems"
    table = Table(title=counts, title_justify="left")
    table.add_column("score", no_wrap=True)
    for each in evaluations:
        table.add_column(each.forecaster, justify="right", no_wrap=True)
    for name in SCORES:
        table.add_row(name, *(str(each.scores[name]) for each in evaluations))
    for share, loss in first.regret.items():
        if math.isfinite(loss.value) and share < 1.0:
            losses = (str(each.regret[share]) for each in evaluations)
            table.add_row(f"loss at {share:.0%}", *losses)
    OUT.print(table)
    for name, meaning in SCORES.items():
        OUT.print(f"  {name:14} {meaning}", style="dim", highlight=False)


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
    **model: Any,
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
    make = partial(plugins.build, "forecaster", component(forecaster, model))
    arms = [Arm(name, partial(_policy, name), make) for name in policies]
    found: list[Replayed] = []
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "replay.db") as store:
        for each in track(wanted, "replaying", console=ERR, transient=True, disable=as_json):
            found += _replays(store, table, each, arms, measurements, seeds)
    facts = {name: summarise([one for one in found if one.arm == name]) for name in policies}
    if figure is not None:
        curves = {name: [one.found for one in found if one.arm == name] for name in policies}
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
