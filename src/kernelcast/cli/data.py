"""Commands on rows of measured kernels: data import, export, describe, split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import dataset
from kernelcast.cli.common import EXISTING_FILE, OUT, json_option, store_option
from kernelcast.errors import SetupError
from kernelcast.store import Store

_IMPORTERS: dict[str, Callable[..., dataset.Rows]] = {
    "kernel-tuner": dataset.import_kernel_tuner_cache,
    "t4": dataset.import_t4,
    "kernelbench": dataset.import_kernelbench,
    "gpu-forecasters": dataset.import_gpu_forecasters,
}
_PREDICTIONS = "paper-predictions"

_existing = click.Path(exists=True, path_type=Path)
_out_file = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Parquet file."
)


@click.group()
def data() -> None:
    """Rows of measured kernels: import, export, describe and split them.

    \b
    Example:
      kernelcast data import kernel-tuner gemm_A100.json --out rows.parquet
      kernelcast data describe rows.parquet
      kernelcast data split rows.parquet --by problem --folds 5 --out folds/

    What a row holds: docs/reference/rows.md.
    """


@data.command("import")
@click.argument("kind", type=click.Choice(sorted((*_IMPORTERS, _PREDICTIONS))))
@click.argument("paths", type=_existing, nargs=-1, required=True, metavar="PATH...")
@_out_file
@click.option("--problem", help="Problem's name, where the file has none (kernel-tuner, t4).")
@click.option("--device", help="Device's name, where the file has none.")
@click.option("--language", help="Kernel language (kernel-tuner, t4; default: cuda).")
@click.option(
    "--template", type=EXISTING_FILE, help="The tuned kernel's source (kernel-tuner, t4)."
)
@click.option(
    "--baseline",
    type=EXISTING_FILE,
    help="Reference times, e.g. baseline_time_torch.json (kernelbench).",
)
@click.option("--licence", help="Licence of the rows (default: unstated).")
@json_option
def import_rows(
    kind: str, paths: tuple[Path, ...], out: Path, as_json: bool, **options: Any
) -> None:
    """Import measured kernels of a public format as rows, or published forecasts of such rows.

    \b
    KIND is one of
      kernel-tuner       cache files of Kernel Tuner
      t4                 results files in the T4 schema
      kernelbench        run folders of KernelBench: eval_results.json and kernel files
      gpu-forecasters    Parquet files of the paper's released data sets
      paper-predictions  Parquet files of the paper's forecasts of its eval set: for eval

    \b
    Examples:
      kernelcast data import kernel-tuner gemm_A100.json --template gemm.cu --out rows.parquet
      kernelcast data import kernelbench runs/my_run --baseline baseline_time_torch.json \\
          --out rows.parquet
      kernelcast data import paper-predictions predictions.parquet --out forecasts.parquet
    """
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        takers = [kind for kind, take in _IMPORTERS.items() if name in signature(take).parameters]
        if kind not in takers:
            raise SetupError(f"--{name} is for {' and '.join(takers)}: leave it out here")
    if "template" in options:
        options["template"] = options["template"].read_text()
    if kind == _PREDICTIONS:
        _write_forecasts(dataset.import_paper_predictions(paths), out, as_json)
        return
    rows = dataset.concatenate([_IMPORTERS[kind](path, **options) for path in paths])
    _write(rows, out, as_json)


@data.command()
@click.argument("run")
@_out_file
@click.option("--licence", default="unstated", show_default=True, help="Licence of the kernels.")
@store_option
@json_option
def export(run: str, out: Path, licence: str, store: str, as_json: bool) -> None:
    """Write the kernels that a RUN measured as rows.

    \b
    Example:
      kernelcast data export softmax-20261115-101500-1f2e --out rows.parquet
    """
    with Store.open(store, create=False) as opened:
        rows = dataset.export_run(opened.open_run(opened.find_run(run)), licence=licence)
    _write(rows, out, as_json)


@data.command()
@click.argument("file", type=_existing)
@json_option
def describe(file: Path, as_json: bool) -> None:
    """Count the rows of FILE by source, family, device, status and licence.

    \b
    Example:
      kernelcast data describe rows.parquet
    """
    facts = dataset.describe(dataset.read_rows(file, columns=dataset.DESCRIBED))
    if as_json:
        click.echo(json.dumps(facts))
        return
    totals = ", ".join(f"{facts[name]:,} {name}" for name in ("rows", "problems", "searches"))
    OUT.print(f"{file}: {totals}")
    for column, counts in facts["by"].items():
        rows = [(value, count["rows"], count["ok"]) for value, count in counts.items()]
        _print((column, "rows", "ok"), rows)
        OUT.print()


@data.command()
@click.argument("file", type=_existing)
@click.option("--by", type=click.Choice(dataset.SPLITS), required=True, help="What is kept apart.")
@click.option(
    "--folds", type=click.IntRange(min=2), help="Number of folds; each group is tested in one."
)
@click.option("--hold-out", multiple=True, help="Test on this group (repeat for more).")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Decides which groups share a fold."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
@json_option
def split(
    file: Path,
    by: str,
    folds: int | None,
    hold_out: tuple[str, ...],
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Split FILE into rows to train on and rows to test on, and check that nothing leaks.

    \b
    Examples:
      kernelcast data split rows.parquet --by problem --folds 5 --out folds/
      kernelcast data split rows.parquet --by device --hold-out A100 --out a100/

    Writes NAME.train.parquet and NAME.test.parquet for each fold.
    """
    parts = dataset.split_by(
        dataset.read_rows(file), by, folds=folds, held_out=hold_out or None, seed=seed
    )
    out.mkdir(parents=True, exist_ok=True)
    facts = []
    for part in parts:
        dataset.write_rows(out / f"{part.name}.train.parquet", part.train)
        dataset.write_rows(out / f"{part.name}.test.parquet", part.test)
        facts.append({"name": part.name, "train": part.train.num_rows, "test": part.test.num_rows})
    if as_json:
        click.echo(json.dumps({"by": by, "seed": seed, "splits": facts}))
        return
    rows = [(fact["name"], fact["train"], fact["test"]) for fact in facts]
    _print(("split", "train rows", "test rows"), rows)
    OUT.print(f"no leaks; written to {out}")


def _print(header: Sequence[str], rows: Iterable[tuple[str, int, int]]) -> None:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left")
    for name, *counts in rows:
        table.add_row(name, *(f"{count:,}" for count in counts))
    OUT.print(table)


def _write(rows: dataset.Rows, out: Path, as_json: bool) -> None:
    dataset.write_rows(out, rows)
    if as_json:
        click.echo(json.dumps({"out": str(out), **dataset.describe(rows)}))
        return
    OUT.print(f"{rows.num_rows:,} rows written to {out}: kernelcast data describe {out}")


def _write_forecasts(
    forecasts: Sequence[dataset.RecordedForecast], out: Path, as_json: bool
) -> None:
    dataset.write_forecasts(out, forecasts)
    made = Counter(forecast.forecaster for forecast in forecasts)
    unparsed = Counter(forecast.forecaster for forecast in forecasts if forecast.unparsed)
    if as_json:
        by_forecaster = {
            name: {"forecasts": count, "unparsed": unparsed[name]} for name, count in made.items()
        }
        click.echo(json.dumps({"out": str(out), "forecasters": by_forecaster}))
        return
    rows = [(name, count, unparsed[name]) for name, count in made.items()]
    _print(("forecaster", "forecasts", "not readable"), rows)
    OUT.print(f"{len(forecasts):,} forecasts written to {out}: for kernelcast eval --forecasts")
