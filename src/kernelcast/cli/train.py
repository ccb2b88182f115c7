"""The command that trains the forecaster of written kernels."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelcast import dataset
from kernelcast.cli.common import ERR, OUT, json_option
from kernelcast.training.trees import ship


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
    names = " ".join(path.name for path in rows)
    with ERR.status(
        f"training on {table.num_rows:,} rows, then on five parts of them for the card"
    ):
        model = ship(table, out, seed, command=f"kernelcast train {names}")
    card = out / "card.md"
    if as_json:
        size = model.stat().st_size
        click.echo(json.dumps({"model": str(model), "bytes": size, "card": str(card)}))
        return
    OUT.print(f"{model}: {model.stat().st_size / 1e6:.1f} MB; what it is worth: {card}")
