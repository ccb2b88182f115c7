"""The demo: searches replayed on recorded GPU measurements, then a live search on this CPU.

The recorded space was chosen by a rule, not for its result: `tools/recorded_space.py` states it.
The demo prints the mean over all recorded spaces beside the result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from functools import cache
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.progress import Progress
from rich.table import Table

from kernelcast.backends.replay import Recording, space_problem
from kernelcast.cli.common import (
    FOLDER,
    OUT,
    POSITIVE,
    check_writable,
    json_option,
    option,
    read_options,
    run_watched,
    trust_options,
)
from kernelcast.dataset.recorded_space import recorded_space
from kernelcast.errors import SetupError
from kernelcast.events import Event, Measured
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.judge.curves import best_so_far, drawn_out, mean_interval
from kernelcast.judge.replaying import Arm, replay_space
from kernelcast.languages import ending_of
from kernelcast.parts import Parts, read_run
from kernelcast.policies import MeasureAll, Selective
from kernelcast.processes import workers
from kernelcast.proposers.pool import PoolProposer
from kernelcast.report.console import parameters_text, summary
from kernelcast.report.figures import draw_recorded_and_live
from kernelcast.report.terminal import Terminal
from kernelcast.search import INTERRUPTED, Result, Search
from kernelcast.store import Store
from kernelcast.strategies import BestOfN
from kernelcast.types import Budget

WARM, COLD, RANDOM = "kernelcast, 2 GPUs known", "kernelcast, cold", "random"
ARMS = (WARM, COLD, RANDOM)
PUBLISHED = {RANDOM: 0.78, COLD: 0.89, WARM: 0.99}
"""Means after 25 measurements over the spaces of bench/results/track_t.json with several GPUs."""
PUBLISHED_AFTER, PUBLISHED_SPACES = 25, 28

_SHOWN = (5, 10, 25)
_NEAR = 0.95
# The whole demo takes at most 60 s on two quiet cores, and longer rather than less on busy ones.
_LIVE_UNTIL_S, _LEAST_LIVE_S = 40.0, 20.0
_FEWEST_LIVE, _MOST_LIVE = 10, 60
_PLAIN_EVERY = 15  # replayed searches between two lines, where there is no terminal
_INTERVAL = " ± 95% interval"


@click.command()
@option("--problem", "Problem of the live search.", default="matmul")
@option("--seeds", "Replayed searches per arm.", POSITIVE, 20)
@option("--measurements -n", "Measurements per replayed search.", POSITIVE, 25)
@option("--out", "Folder for the kernel, the figure and the run.", FOLDER, Path("kernelcast-demo"))
@option(
    "--figure",
    "Where to draw the figure (default: demo.png in the folder).",
    click.Path(dir_okay=False, path_type=Path),
)
@option("--quick", "Only see that it works: 2 seeds with 5 measurements, then 2 live ones.", bool)
@trust_options
@json_option
def demo(
    problem: str,
    seeds: int,
    measurements: int,
    out: Path,
    figure: Path | None,
    quick: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """The whole idea in about a minute: no GPU, no key.

    First, searches are replayed on a GPU kernel of which others measured every configuration on
    three GPUs: kernelcast, kernelcast that knows two of the GPUs, and random choice. Then a live
    search finds a faster kernel on this CPU, and writes it to a file.

    \b
    Examples:
      kernelcast demo
      kernelcast demo --problem softmax --out my-demo
    """
    began = time.monotonic()
    if quick:
        seeds, measurements = 2, 5
    settings, _ = read_options(options)
    run = read_run({**settings, "problem": problem, "reuse": False})
    check_writable(figure, "--figure")
    figure = figure or out / "demo.png"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"--out: {out} cannot be made ({error}): name another folder") from error
    check_writable(out / "runs.db", "--out")

    curves = _replays(seeds, measurements, quiet=as_json)
    if not as_json:
        _print_recorded(curves)

    until = max(began + _LIVE_UNTIL_S, time.monotonic() + _LEAST_LIVE_S)
    parts = Parts.build(run.spec.components, run.problem)
    with Store.open(out / "runs.db") as store:
        search = Search(run.problem, parts, store, spec=run.spec)
        live = _Live(search, until)
        search.callbacks.append(live)
        budget = Budget(measurements=2 if quick else _MOST_LIVE)
        result = run_watched(search, budget, f"{run.problem.name} on this CPU", quiet=as_json)
        best = best_so_far(search.log)
    kernel = out / f"best{ending_of(run.problem.language)}"
    kernel.write_text(result.kernel.source)
    space = recorded_space()
    titles = (
        f"Recorded by others: {space.problem} on {_short(_target().device.name)},\n"
        f"{space.url.removeprefix('https://')} ({space.licence})\n"
        f"{seeds} replayed searches each; line: mean, band: middle half",
        f"Measured here: {run.problem.name} on this machine's CPU,\n"
        f"{parts.farm.device.name}\n"
        f"one live search, {len(best)} measurements",
    )
    draw_recorded_and_live(curves, best, live.log2_speedups, figure, titles)
    seconds = time.monotonic() - began
    if as_json:
        facts = {
            "recorded": _recorded_facts(curves),
            "live": {"run": result.run, **summary(result.state)},
            "kernel": str(kernel.resolve()),
            "figure": str(figure.resolve()),
            "seconds": round(seconds, 1),
        }
        click.echo(json.dumps(facts))
        return
    _print_live(result, kernel)
    OUT.print(f"figure: {figure}", soft_wrap=True)
    OUT.print(f"{seconds:.0f} s. What to try next:")
    for command, meaning in (
        (f"kernelcast show latest --store {out / 'runs.db'}", "this search in full"),
        ("kernelcast search softmax", "a longer search"),
        ("kernelcast init my_kernel", "a problem of your own"),
    ):
        OUT.print(f"  {command:55}  {meaning}", soft_wrap=True)


# ------------------------------------------------------------------------------- act 1: recorded


def _target() -> Recording:
    """Return the recording of the GPU that is searched: the last of the three."""
    return list(recorded_space().recordings.values())[-1]


@cache
def _known() -> Sequence[DeviceTimes]:
    return recorded_space().history(space_problem(_target()), _target().device)


@cache
def _shared() -> tuple[Store, PoolProposer]:
    """Return what all replays of a process share: a store in memory, and the configurations."""
    return Store.open("sqlite://"), recorded_space().pool()


_ARMS = {
    WARM: Arm(WARM, lambda **_: Selective(), lambda: TreesForecaster(lambda *_: _known())),
    COLD: Arm(COLD, lambda **_: Selective(), TreesForecaster),
    RANDOM: Arm(RANDOM, lambda **_: MeasureAll(), RooflineForecaster, BestOfN),
}


def _replay(name: str, seed: int, measurements: int) -> tuple[float, ...]:
    """Return what one replayed search found after each measurement, until the best of all."""
    store, pool = _shared()
    return replay_space(
        store,
        f"{name} {seed}",
        _target(),
        _ARMS[name],
        measurements=measurements,
        seed=seed,
        proposer=pool,
        until_best=True,
    ).curve


def _replays(seeds: int, measurements: int, *, quiet: bool) -> dict[str, list[list[float]]]:
    """Replay every arm with the same seeds on all cores; return curves by arm and seed."""
    runs = [(name, seed) for seed in range(seeds) for name in ARMS]
    cores = min(len(os.sched_getaffinity(0)), len(runs))
    title = f"replaying {len(runs)} searches on {cores} processes"
    curves: dict[tuple[str, int], tuple[float, ...]] = {}
    terminal = Terminal(stderr=True, quiet=quiet)
    bar = Progress(console=terminal, transient=True, disable=not terminal.is_terminal)
    with bar, workers(cores) as pool:
        task = bar.add_task(title, total=len(runs))
        jobs = {pool.submit(_replay, *run, measurements): run for run in runs}
        if not terminal.is_terminal:
            terminal.print(title)
        for done, job in enumerate(as_completed(jobs), 1):
            curves[jobs[job]] = job.result()
            bar.advance(task)
            if not terminal.is_terminal and done % _PLAIN_EVERY == 0:
                terminal.print(f"{done} of {len(runs)} searches replayed")
    return {
        name: drawn_out([curves[name, seed] for seed in range(seeds)], measurements).tolist()
        for name in ARMS
    }


def _after(curves: Sequence[Sequence[float]]) -> dict[int, tuple[float, float]]:
    """Return mean and half 95% interval of the best found, by numbers of measurements."""
    length = len(curves[0])
    mean, low, high = mean_interval(curves)
    return {
        point: (float(mean[point - 1]), float(high[point - 1] - low[point - 1]) / 2)
        for point in sorted({*(shown for shown in _SHOWN if shown < length), length})
    }


def _until_near(curves: Sequence[Sequence[float]]) -> list[int | None]:
    """Return by seed the measurements until 95% of the best speed; None if it was not reached."""
    return [
        next((count for count, share in enumerate(curve, 1) if share >= _NEAR), None)
        for curve in curves
    ]


def _recorded_facts(curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    space, target = recorded_space(), _target()
    return {
        "problem": space.problem,
        "gpu": target.device.name,
        "known_gpus": [times.device for times in _known()],
        "configurations": len(target.entries),
        "source": space.url,
        "commit": space.commit,
        "licence": space.licence,
        "arms": {
            name: {
                "found": [[round(share, 5) for share in curve] for curve in runs],
                "mean_after": {point: round(mean, 4) for point, (mean, *_) in _after(runs).items()},
                "measurements_until_95_percent": _until_near(runs),
            }
            for name, runs in curves.items()
        },
    }


def _print_recorded(curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    space, target = recorded_space(), _target()
    seeds = len(curves[RANDOM])
    *_, last = points = list(_after(curves[RANDOM]))
    OUT.print("1. Recorded: searches replayed on GPU measurements of others", style="bold")
    OUT.print(
        f"{space.problem} (CUDA) on {_short(target.device.name)}: all {len(target.entries):,} "
        f"configurations were measured."
    )
    OUT.print(f"Source: {space.url} ({space.licence})", soft_wrap=True)
    shown = _table("search", *(f"after {point}" for point in points), "95% after")
    for name, runs in curves.items():
        cells = [
            f"{mean:.2f}" + (f" ±{half:.2f}" if seeds > 1 else "")
            for mean, half in _after(runs).values()
        ]
        middle = sorted(count or last + 1 for count in _until_near(runs))[(seeds - 1) // 2]
        cells.append(f">{last}" if middle > last else str(middle))
        shown.add_row(name, *cells, style="" if name == RANDOM else "green")
    OUT.print(shown)
    known = " and ".join(_short(times.device) for times in _known())
    for term, meaning in (
        ("after 5", "the best kernel found by 5 measurements, as a share of the best"),
        ("", f"possible speed (1.00); mean of {seeds} seeds{_INTERVAL if seeds > 1 else ''}"),
        ("95% after", "measurements until that share is 0.95; median of the seeds"),
        ("2 GPUs known", f"from the times on {known}"),
        ("cold", "nothing is known before the first measurement"),
        ("random", "measures configurations drawn at random"),
    ):
        OUT.print(f"  {term:12}  {meaning}")
    warm, cold = (
        sum(ours[-1] > other[-1] for ours, other in zip(curves[name], curves[RANDOM], strict=True))
        for name in (WARM, COLD)
    )
    OUT.print(
        f"Seed by seed, after {last}: 2 GPUs known beats random {warm} times of {seeds}, "
        f"cold {cold} of {seeds}."
    )
    OUT.print(
        f"Mean after {PUBLISHED_AFTER} over {PUBLISHED_SPACES} recorded spaces "
        f"(bench/track_t.py): random {PUBLISHED[RANDOM]:.2f}, cold {PUBLISHED[COLD]:.2f}, "
        f"other GPUs known {PUBLISHED[WARM]:.2f}.\n"
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _short(device: str) -> str:
    """Return the name as people say it: RTX 3090, not NVIDIA GeForce RTX 3090."""
    return device.removeprefix("NVIDIA ").removeprefix("GeForce ").removesuffix(" GPU")


# ----------------------------------------------------------------------------------- act 2: live


class _Live:
    """Callback that keeps each measured speedup, and stops the search when its time is over."""

    def __init__(self, search: Search, until: float) -> None:
        self.log2_speedups: list[float | None] = []
        self._search = search
        self._until = until

    def on_event(self, event: Event) -> None:
        if not isinstance(event, Measured):
            return
        if event.purpose == "search":
            self.log2_speedups.append(event.measurement.log2_speedup)
        if len(self.log2_speedups) >= _FEWEST_LIVE and time.monotonic() > self._until:
            self._search.stop("the demo's time is over")


def _print_live(result: Result, kernel: Path) -> None:
    facts = summary(result.state)
    best = facts["best"]
    started = result.state.started
    assert started is not None
    OUT.print("2. Measured here: a live search on this machine's CPU", style="bold")
    OUT.print(
        f"{started.problem.name} on {started.device.name}: "
        f"{facts['measured']} of {facts['considered']} kernels measured."
    )
    if best["origin"] == "seed":
        OUT.print("No kernel was faster than the seed kernel, which is the naive first version.")
    else:
        low, high = best["speedup_interval"]
        times = (f"{best['ms']:.3g} ms", f"{best['speedup']:.1f}x", f"{low:.1f}x to {high:.1f}x")
        table = _table("kernel", "time of a call", "speedup", "95% interval")
        table.add_row("seed, the naive first version", f"{best['seed_ms']:.3g} ms", "1x", "")
        table.add_row("best found, measured twice", *times, style="green")
        OUT.print(table)
        if result.kernel.parameters:
            OUT.print(f"parameters: {parameters_text(result.kernel.parameters)}")
    if result.state.ended == INTERRUPTED:
        OUT.print("The search was stopped by Ctrl-C.")
    OUT.print(f"kernel: {kernel}", soft_wrap=True)
