"""The command that trains the forecaster of written kernels."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelcast import dataset
from kernelcast.cli.common import ERR, OUT, json_option
from kernelcast.forecasters._source import SHIPPED
from kernelcast.judge.evaluation import SCORES, evaluate
from kernelcast.training.folds import cross_validate
from kernelcast.training.trees import check_publishable, describe_sources, train_source_model


@click.command()
@click.argument("rows", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("model"),
    show_default=True,
    help="Folder for the model and its card.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def train(rows: tuple[Path, ...], out: Path, seed: int, as_json: bool) -> None:
    """Train the forecaster of written kernels on ROWS (Parquet files of measured kernels).

    Writes the model and a card that says what it was trained on and how well it does on problems
    it has not seen. Rows without a stated licence are refused, and so is what was published for
    evaluation only. Takes minutes.

    \b
    Example:
      kernelcast data import kernelbench runs/my_run --licence MIT --out rows.parquet
      kernelcast train rows.parquet --out my_model
      kernelcast rank kernels/ --trees my_model/model.json.zst
    """
    table = dataset.concatenate([dataset.read_rows(path) for path in rows])
    check_publishable(table)
    model, card = out / SHIPPED, out / "card.md"
    with ERR.status(
        f"training on {table.num_rows:,} rows, then on five parts of them for the card"
    ):
        train_source_model(table, seed, trained_on=describe_sources(table)).save(model)
        card.write_text(_card(table, seed, [path.name for path in rows]))
    size = model.stat().st_size
    if as_json:
        click.echo(json.dumps({"model": str(model), "bytes": size, "card": str(card)}))
        return
    OUT.print(f"{model}: {size / 1e6:.1f} MB; what it is worth: {card}")


def _card(rows: dataset.Rows, seed: int, names: list[str]) -> str:
    """What the model was trained on, and the scores of models that had not seen the problem."""
    answers = [answer for fold in cross_validate(rows, seed=seed) for answer in fold.searched()]
    judged = evaluate(answers)
    scores = [f"| {name} | {judged.scores[name]} | {what} |" for name, what in SCORES.items()]
    return "\n".join(
        (
            "# A source model of kernelcast\n",
            f"Made by `kernelcast train {' '.join(names)} --seed {seed}` from "
            f"{rows.num_rows:,} rows: {describe_sources(rows)}.",
            f"Licences: {', '.join(sorted(set(rows['licence'].to_pylist())))}.\n",
            "## Scores\n",
            f"{judged.kernels:,} kernels of {judged.groups:,} problems, {judged.timed:,} of them "
            "timed. Each was forecast by a\nmodel trained on other problems, along its search; "
            "95% intervals over problems.\n",
            "| score | value | meaning |\n| --- | --- | --- |",
            *scores,
            "\nOn other operators, languages and devices than these it must not be trusted.\n",
        )
    )
