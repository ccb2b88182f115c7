"""Commands between problem folders and other benchmarks: problem import, problem export."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from kernelcast.cli.common import (
    ANY_PATH,
    ERR,
    FOLDER,
    OUT,
    check_writable,
    json_option,
    option,
    store_option,
)
from kernelcast.errors import SetupError
from kernelcast.porting import Imported, import_gpumode, import_kernelbench, submission_file
from kernelcast.report.terminal import printable
from kernelcast.store import Store

_existing = click.Path(exists=True, path_type=Path)
_to_option = option("--to", "Folder in which the problem folders are made.", FOLDER, Path())
_full_option = option(
    "--full", "Time the file's own sizes too, if they are too large for this CPU.", bool
)


@click.group()
def problem() -> None:
    """Problem folders from KernelBench's and GPU MODE's files, and files to submit.

    \b
    Examples:
      kernelcast problem import kernelbench level1/23_Softmax.py --to problems/
      kernelcast search problems/23_Softmax --proposer llm --base-url URL --model NAME
      kernelcast problem export gpumode latest

    docs/how-to/import-problems.md says what becomes of a file.
    """


@problem.group("import")
def import_problems() -> None:
    """Make problem folders of another benchmark's files.

    \b
    Examples:
      kernelcast problem import kernelbench KernelBench/level1/ --to problems/
      kernelcast problem import gpumode reference-kernels/problems/pmpp_v2/sort_py --to problems/

    The files run in the sandbox, which PyTorch is needed for.
    """


@import_problems.command()
@click.argument("path", type=_existing)
@_to_option
@_full_option
@json_option
def kernelbench(path: Path, to: Path, full: bool, as_json: bool) -> None:
    """Import PATH, a file of KernelBench or a folder of such files.

    \b
    Example:
      kernelcast problem import kernelbench KernelBench/level1/23_Softmax.py --to problems/

    Each file becomes a folder. Its own integers become dimensions, as far as a formula says how
    arrays depend on them; sizes that are too large for this CPU are reduced.
    """
    _show(import_kernelbench(path, to, full=full), as_json=as_json)


@import_problems.command()
@click.argument("path", type=_existing)
@_to_option
@_full_option
@json_option
def gpumode(path: Path, to: Path, full: bool, as_json: bool) -> None:
    """Import PATH, the folder of a task of GPU MODE or a folder of tasks.

    \b
    Example:
      kernelcast problem import gpumode reference-kernels/problems/pmpp_v2/sort_py --to problems/

    Benchmarks become timed cases, tests untimed ones. A submission.py that is right becomes the
    seed.
    """
    _show(import_gpumode(path, to, full=full), as_json=as_json)


@problem.group("export")
def export_problems() -> None:
    """Write what a search found as another benchmark takes it.

    \b
    Example:
      kernelcast problem export gpumode latest --leaderboard grayscale_v2 --gpus A100
    """


@export_problems.command("gpumode")
@click.argument("run")
@option("--leaderboard", "Its name at GPU MODE (default: the task's submission.py states it).")
@option("--gpus", "GPUs to run on, e.g. A100,H100 (default: GPU MODE asks).")
@option("--kernel", "Beginning of a kernel's id.", default="best", show_default=True)
@option("--out", "The file.", ANY_PATH, Path("submission.py"), show_default=True)
@store_option
def export_gpumode(
    run: str, leaderboard: str | None, gpus: str | None, kernel: str, out: Path, store: str
) -> None:
    """Write the best kernel of RUN as the file that is submitted to GPU MODE.

    \b
    Example:
      kernelcast problem export gpumode latest --leaderboard grayscale_v2 --gpus A100

    RUN searched an imported task; it is a name, a unique beginning of one, or `latest`.
    """
    check_writable(out, "--out")
    with Store.open(store, create=False) as opened:
        log = opened.open_run(opened.find_run(run))
        started = log.state.started
        if started is None:
            raise SetupError(f"run {log.name} is no search: name one that `kernelcast ls` lists")
        if not log.is_own:
            ERR.print(f"Run {log.name} was {log.written}.", soft_wrap=True)
        chosen = log.kernel(log.find_kernel(kernel))
    names = [name for name in (gpus or "").split(",") if name]
    text, notes = submission_file(started.problem, chosen, leaderboard, names)
    if chosen.id == started.seed_kernel_id:
        notes.append("it is the seed: the search found nothing faster")
    out.write_text(text, encoding="utf-8")
    for note in notes:
        ERR.print(f"note: {printable(note)}", soft_wrap=True)
    OUT.print(f"written: {printable(str(out))}", soft_wrap=True)


def _show(each: Iterator[Imported], *, as_json: bool) -> None:
    """Wait for the imports and print what became of each; nothing imported is an error."""
    imported: list[Imported] = []
    with ERR.status("importing"):
        imported += each
    done = [one for one in imported if one.folder is not None]
    if as_json:
        rows = [
            {
                "name": one.name,
                "source": str(one.source),
                "folder": str(one.folder) if one.folder else None,
                "refused": one.refused or None,
                "notes": list(one.notes),
            }
            for one in imported
        ]
        click.echo(json.dumps({"problems": rows}))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("file", "problem", ""):
            table.add_column(column, overflow="fold")
        for one in imported:
            words = one.refused or "; ".join(one.notes)
            where = str(one.folder) if one.folder else "refused"
            table.add_row(*(Text(printable(text)) for text in (one.source.name, where, words)))
        OUT.print(table)
        OUT.print(f"{len(done)} of {len(imported)} imported")
        if done:
            first = shlex.quote(str(done[0].folder))
            model = "--proposer llm --base-url URL --model NAME"
            OUT.print(f"next: kernelcast search {first} {model} -n 20", soft_wrap=True)
    if not done:
        raise SetupError("nothing was imported: correct the files as the table says")
