"""The command line: thin. Results go to standard output, progress and errors to standard error."""

from __future__ import annotations

from typing import Any

import click

from kernelcast.cli.compare import compare
from kernelcast.cli.data import data
from kernelcast.cli.demo import demo
from kernelcast.cli.forecast import forecast
from kernelcast.cli.judge import evaluate_forecasters, replay
from kernelcast.cli.rank import rank
from kernelcast.cli.runs import list_runs, resume, search, show
from kernelcast.cli.setup import doctor, init
from kernelcast.cli.train import train
from kernelcast.errors import KernelcastError
from kernelcast.report.terminal import printable


class _Group(click.Group):
    """Turns kernelcast's own errors into one line without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KernelcastError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kernelcast")
def main() -> None:
    """Find faster kernels with fewer hardware measurements.

    \b
    Start here:
      kernelcast demo                 the whole idea in under 90 seconds
      kernelcast search softmax       a real search on a bundled problem
      kernelcast rank kernels/        which of these to measure
      kernelcast init my_kernel       a problem folder of your own
    """


for _command in (
    compare,
    data,
    demo,
    doctor,
    evaluate_forecasters,
    forecast,
    init,
    list_runs,
    rank,
    replay,
    resume,
    search,
    show,
    train,
):
    main.add_command(_command)
