"""Commands on rows of measured kernels: data import, export, describe, split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kernelcast import dataset
from kernelcast.cli.common import OUT, json_option, store_option
from kernelcast.errors import SetupError
from kernelcast.store import Store

_IMPORTERS: dict[str, Callable[..., dataset.Rows]] = {
    "kernel-tuner": dataset.import_kernel_tuner_cache,
    "t4": dataset.import_t4,
    "kernelbench": dataset.import_kernelbench,
    "gpu-forecasters": dataset.import_gpu_forecasters,
}
# What a foreign format leaves unsaid, and which importers take it.
_UNSAID = {
    "problem": ("kernel-tuner", "t4"),
    "device": ("kernel-tuner", "t4", "kernelbench", "gpu-forecasters"),
    "language": ("kernel-tuner", "t4"),
    "template": ("kernel-tuner", "t4"),
    "baseline": ("kernelbench",),
    "licence": ("kernel-tuner", "t4", "kernelbench", "gpu-forecasters"),
}

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
@click.argument("kind", type=click.Choice(sorted(_IMPORTERS)))
@click.argument("paths", type=_existing, nargs=-1, required=True, metavar="PATH...")
@_out_file
@click.option("--problem", help="Problem's name, where the file has none (kernel-tuner, t4).")
@click.option("--device", help="Device's name, where the file has none.")
@click.option("--language", help="Kernel language (kernel-tuner, t4; default: cuda).")
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The tuned kernel's source (kernel-tuner, t4).",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Reference times, e.g. baseline_time_torch.json (kernelbench).",
)
@click.option("--licence", help="Licence of the rows (default: unstated).")
@json_option
def import_rows(
    kind: str, paths: tuple[Path, ...], out: Path, as_json: bool, **unsaid: Any
) -> None:
    """Turn measured kernels of a public format into rows.

    \b
    KIND is one of
      kernel-tuner     cache files of Kernel Tuner
      t4               results files in the T4 schema
      kernelbench      run folders of KernelBench: eval_results.json and kernel files
      gpu-forecasters  Parquet files of the paper's released data sets

    \b
    Examples:
      kernelcast data import kernel-tuner gemm_A100.json --template gemm.cu --out rows.parquet
      kernelcast data import kernelbench runs/my_run --baseline baseline_time_torch.json \\
          --out rows.parquet
    """
    stated = {name: value for name, value in unsaid.items() if value is not None}
    for name in stated:
        if kind not in _UNSAID[name]:
            raise SetupError(f"--{name} is for {' and '.join(_UNSAID[name])}: leave it out here")
    if "template" in stated:
        stated["template"] = stated["template"].read_text()
    rows = dataset.concatenate([_IMPORTERS[kind](path, **stated) for path in paths])
    dataset.write_rows(out, rows)
    _tell(rows, out, as_json)


@data.command()
@click.argument("run")
@_out_file
@click.option("--licence", default="unstated", show_default=True, help="Licence of the kernels.")
@store_option
@json_option
def export(run: str, out: Path, licence: str, store: str, as_json: bool) -> None:
    """Write what a RUN measured as rows.

    \b
    Example:
      kernelcast data export softmax-20261115-101500-1f2e --out rows.parquet
    """
    with Store.open(store, create=False) as opened:
        rows = dataset.export_run(opened.open_run(opened.find_run(run)), licence=licence)
    dataset.write_rows(out, rows)
    _tell(rows, out, as_json)


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
        table = Table(box=None, pad_edge=False)
        table.add_column(column)
        table.add_column("rows", justify="right")
        table.add_column("ok", justify="right")
        for value, count in counts.items():
            table.add_row(value, f"{count['rows']:,}", f"{count['ok']:,}")
        OUT.print(table)
        OUT.print()


@data.command()
@click.argument("file", type=_existing)
@click.option("--by", type=click.Choice(dataset.SPLITS), required=True, help="What is held apart.")
@click.option("--folds", type=click.IntRange(min=2), help="Every group is tested in one fold.")
@click.option("--hold-out", multiple=True, help="Test on this group (repeat for more).")
@click.option("--seed", type=int, default=0, show_default=True, help="Which groups share a fold.")
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
    """Part FILE into rows to train on and rows to test on, and check that nothing leaks.

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
    table = Table(box=None, pad_edge=False)
    for column in ("split", "train rows", "test rows"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for fact in facts:
        table.add_row(fact["name"], f"{fact['train']:,}", f"{fact['test']:,}")
    OUT.print(table)
    OUT.print(f"no leaks; written to {out}")


def _tell(rows: dataset.Rows, out: Path, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"out": str(out), **dataset.describe(rows)}))
        return
    OUT.print(f"{rows.num_rows:,} rows written to {out}: kernelcast data describe {out}")
