"""The command line. Results go to standard output, progress and errors to standard error."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any

import click

from kernelcast.errors import KernelcastError

COMMANDS = {
    "compare": "Compare arms that differ in one part on PROBLEM (a bundled name or a folder).",
    "data": "Rows of measured kernels: import, export, describe and split them.",
    "demo": "The whole idea in about a minute: no GPU, no key.",
    "doctor": "Say what works on this machine, and what to install for the rest.",
    "eval": "Judge forecasters on recorded kernels (ROWS, a Parquet file): no hardware is touched.",
    "farm": "The Ray cluster that `--farm ray` measures on: start, join, watch and stop it.",
    "forecast": "Forecast the speedup of CANDIDATE against REFERENCE, two source files of one "
    "language.",
    "init": "Make a problem FOLDER that runs, to be changed into your own.",
    "inspect": "Say what KERNEL (a .cu or Triton file) does on a GPU, without one.",
    "ls": "List the runs of the store, the latest last: problem, best, what was spent, and state.",
    "problem": "Problem folders from KernelBench's and GPU MODE's files, and files to submit.",
    "rank": "Order the kernels of POOL by what measuring each promises, and say how many to "
    "measure.",
    "replay": "Compare policies on what was recorded (ROWS, a Parquet file): no hardware is "
    "touched.",
    "resume": "Go on with a RUN that was stopped, killed or has spent its budget.",
    "search": "Search a faster kernel for PROBLEM (a bundled name or a folder).",
    "show": "Show where a RUN stands and what it found.",
    "train": "Train a forecaster on rows of measured kernels (Parquet files).",
    "tune": "Say which configurations of CACHE to measure next, what they may gain, and when to "
    "stop.",
}
"""For each command its line in `kernelcast --help`."""
_ELSEWHERE = {
    "doctor": "setup:doctor",
    "eval": "judge:evaluate_forecasters",
    "init": "setup:init",
    "ls": "runs:list_runs",
    "replay": "judge:replay",
    "resume": "runs:resume",
    "search": "runs:search",
    "show": "runs:show",
}
"""Module and function of each command that is not a function in a module of its own name."""


class _Commands(UserDict[str, Any]):
    """The commands by name; the module of a command is imported when the command is used."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        module, _, function = _ELSEWHERE.get(name, f"{name}:{name}").partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), function)
        return command


class _Group(click.Group):
    """Lists the commands without importing them, and shows kernelcast's errors as one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KernelcastError as error:
            from kernelcast.report.terminal import printable

            raise click.ClickException(printable(str(error))) from error


@click.group(
    cls=_Group,
    commands=_Commands(dict.fromkeys(COMMANDS)),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="kernelcast")
def main() -> None:
    """Find faster kernels with fewer hardware measurements.

    \b
    Start here:
      kernelcast demo                 the whole idea in about a minute
      kernelcast search softmax       a real search on a bundled problem
      kernelcast rank kernels/        which of these to measure
      kernelcast init my_kernel       a problem folder of your own
    """
