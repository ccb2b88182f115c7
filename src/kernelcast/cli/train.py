"""The command that trains the forecaster of written kernels."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelcast import dataset
from kernelcast.cli.common import ERR, OUT, json_option
from kernelcast.forecasters._source import SHIPPED
from kernelcast.judge.evaluation import SCORES, evaluate
from kernelcast.training import check_publishable, cross_validate, train_source_model


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
    path, card = out / SHIPPED, out / "card.md"
    with ERR.status(
        f"training on {table.num_rows:,} rows, then on five parts of them for the card"
    ):
        model = train_source_model(table, seed)
        model.save(path)
        answers = [a for fold in cross_validate(table, seed=seed) for a in fold.searched()]
    judged = evaluate(answers)
    command = f"kernelcast train {' '.join(path.name for path in rows)} --seed {seed}"
    licences = ", ".join(sorted(set(table["licence"].to_pylist())))
    card.write_text(
        f"""# A source model of kernelcast

Made by `{command}` from {table.num_rows:,} rows: {model.header.trained_on}.
Licences: {licences}.

{judged.kernels:,} kernels of {judged.groups:,} problems, {judged.timed:,} of them timed, were
forecast along their searches by models that had not seen the problem (95% intervals over problems).
On other operators, languages and devices than these, do not trust the model.

| score | value | meaning |
| --- | --- | --- |
"""
        + "".join(f"| {name} | {judged.scores[name]} | {what} |\n" for name, what in SCORES.items())
    )
    size = path.stat().st_size
    if as_json:
        click.echo(json.dumps({"model": str(path), "bytes": size, "card": str(card)}))
        return
    OUT.print(f"{path}: {size / 1e6:.1f} MB; what it is worth: {card}")
