"""The command line: thin. Results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from kernelcast import plugins
from kernelcast.backends.cpp import CppBackend
from kernelcast.bins import DEFAULT_BINS
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import KernelcastError, SetupError
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.report.console import Progress, archive_table, summary, summary_table
from kernelcast.report.figures import best_so_far, draw_best_so_far
from kernelcast.search import DEFAULT_STORE, Parts, Result, Search
from kernelcast.store import Store
from kernelcast.types import (
    Budget,
    ComponentSpec,
    Forecast,
    Kernel,
    Language,
    Problem,
    Query,
    RunSpec,
    Tolerance,
)

_LANGUAGES: dict[str, Language] = {
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cu": "cuda",
    ".hip": "hip",
    ".cl": "opencl",
    ".py": "triton",
}
_EXTRAS = {
    "llm": "openai",
    "data": "pyarrow",
    "ray": "ray",
    "postgres": "psycopg",
    "opencl": "pyopencl",
    "cuda": "cuda",
    "triton": "triton",
    "train": "trl",
    "ui": "fastapi",
}
_out = Console()
_err = Console(stderr=True)


class _Group(click.Group):
    """Turns kernelcast's own errors into one line without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KernelcastError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kernelcast")
def main() -> None:
    """Find faster kernels with fewer hardware measurements.

    \b
    Start here:
      kernelcast demo                 the whole idea in under 90 seconds
      kernelcast search softmax       a real search on a bundled problem
      kernelcast init my_kernel       a problem folder of your own
    """


def _store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        envvar="KERNELCAST_STORE",
        default=str(DEFAULT_STORE),
        show_default=True,
        help="The store: a file (SQLite) or a database URL.",
    )(command)


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--model", help="Model name at the endpoint."),
        click.option(
            "--base-url", help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1."
        ),
        click.option(
            "--api-key-env",
            default="KERNELCAST_API_KEY",
            show_default=True,
            help="Environment variable that holds the key; local servers need none.",
        ),
    ):
        command = option(command)
    return command


def _budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--proposal-usd", type=float, help="Cap on dollars for proposals."),
        click.option("--forecast-usd", type=float, help="Cap on dollars for forecasts."),
        click.option("--candidates", type=int, help="Stop after this many candidates."),
        click.option("--device-seconds", type=float, help="Cap on device seconds."),
        click.option("--measurements", "-n", type=int, help="Cap on kernels measured."),
    ):
        command = option(command)
    return command


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    progress = Progress(Console(stderr=True, quiet=quiet))
    try:
        yield progress
    finally:
        progress.close()


def _run(search: Search, budget: Budget, title: str, *, quiet: bool) -> Result:
    with _progress(quiet) as progress:
        search.callbacks.append(progress)
        search.begin(budget)
        progress.watch(search.state, title)
        return search.run(budget)


# ------------------------------------------------------------------------------------- search


@main.command()
@click.argument("problem")
@_budget_options
@click.option("--policy", default="selective", show_default=True, help="What is measured.")
@click.option("--strategy", default="puct", show_default=True, help="What becomes a parent.")
@click.option("--forecaster", default="trees", show_default=True, help="Who predicts.")
@click.option("--proposer", default="template", show_default=True, help="Who writes kernels.")
@_model_options
@click.option("--pool", type=int, help="Open candidates to choose from (the policy's default).")
@click.option("--slots", type=int, default=1, show_default=True, help="Measurements at a time.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--inspect", is_flag=True, help="Compile every candidate before it is forecast.")
@click.option("--no-reuse", is_flag=True, help="Measure again what another run has measured.")
@click.option("--name", help="Name of the run (default: problem, date and a random tail).")
@click.option("--out", type=click.Path(path_type=Path), help="Write the best kernel here.")
@_store_option
@_json_option
def search(
    problem: str,
    policy: str,
    strategy: str,
    forecaster: str,
    proposer: str,
    pool: int | None,
    slots: int,
    seed: int,
    inspect: bool,
    no_reuse: bool,
    name: str | None,
    out: Path | None,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Search a faster kernel for PROBLEM (a bundled name or a folder).

    \b
    Examples:
      kernelcast search softmax --measurements 60
      kernelcast search ./my_kernel --device-seconds 300 --out best.cpp
      kernelcast search softmax --forecaster llm --proposer llm \\
          --base-url http://localhost:8000/v1 --model my-model --candidates 40

    Ctrl-C stops cleanly; `kernelcast resume RUN` goes on.
    """
    model = {key: options.pop(key) for key in ("base_url", "model", "api_key_env")}
    budget = _budget(options, default_measurements=60)
    components = {
        "proposer": _component(proposer, model),
        "forecaster": _component(forecaster, model),
        "policy": ComponentSpec(name=policy, options={"pool_size": pool} if pool else {}),
        "strategy": ComponentSpec(name=strategy),
        "farm": ComponentSpec(name="local", options={"slots": slots}),
    }
    spec = RunSpec(seed=seed, inspect=inspect, reuse=not no_reuse, components=components)
    loaded = load_problem(problem)
    with Store.open(store) as opened:
        live = Search(loaded, Parts.build(components), opened, spec=spec, name=name)
        _finish(_run(live, budget, f"{loaded.name} ({live.name})", quiet=as_json), out, as_json)


def _component(name: str, model: dict[str, str | None]) -> ComponentSpec:
    if name != "llm":
        return ComponentSpec(name=name)
    if not model["base_url"] or not model["model"]:
        raise SetupError("a language model needs --base-url and --model")
    return ComponentSpec(name="llm", options=model)


def _budget(options: dict[str, Any], default_measurements: int | None) -> Budget:
    caps = {
        "measurements": options["measurements"],
        "device_s": options["device_seconds"],
        "forecast_usd": options["forecast_usd"],
        "proposal_usd": options["proposal_usd"],
        "candidates": options["candidates"],
    }
    if all(cap is None for cap in caps.values()):
        caps["measurements"] = default_measurements
    return Budget(**caps)


def _finish(result: Result, out: Path | None, as_json: bool) -> None:
    if out is not None:
        out.write_text(result.kernel.source)
    if as_json:
        click.echo(json.dumps({"run": result.run, **summary(result.state)}))
        return
    _out.print(summary_table(result.state, f"Run {result.run}"))
    where = f"written to {out}" if out else f"kernelcast show {result.run} --kernel"
    _out.print(f"best kernel: {where}")


@main.command()
@click.argument("run")
@_budget_options
@click.option("--out", type=click.Path(path_type=Path), help="Write the best kernel here.")
@_store_option
@_json_option
def resume(run: str, out: Path | None, store: str, as_json: bool, **options: Any) -> None:
    """Go on with a RUN that was stopped, killed or has spent its budget.

    \b
    Examples:
      kernelcast resume softmax-20261115-101500-1f2e
      kernelcast resume softmax-20261115-101500-1f2e --measurements 120

    Caps are totals for the run; those not given stay as they were.
    """
    with Store.open(store) as opened:
        live = Search.resume(opened, run)
        stated = _budget(options, default_measurements=None).model_dump(exclude_none=True)
        budget = live.state.budget.model_copy(update=stated)
        _finish(_run(live, budget, f"{live.problem.name} ({run})", quiet=as_json), out, as_json)


# ---------------------------------------------------------------------------------- reading


@main.command("ls")
@_store_option
@_json_option
def list_runs(store: str, as_json: bool) -> None:
    """List the runs of the store, the latest last.

    \b
    Example:
      kernelcast ls
    """
    with Store.open(store) as opened:
        rows = [(info, opened.open_run(info.name).state) for info in opened.runs()]
        rows = [(info, state) for info, state in rows if state.started is not None]
    if as_json:
        click.echo(json.dumps([{"run": info.name, **summary(state)} for info, state in rows]))
        return
    if not rows:
        _out.print("no runs yet: kernelcast search softmax")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "best", "measured", "not measured", "status"):
        table.add_column(column, no_wrap=column != "status")
    for info, state in rows:
        best = f"{2.0**state.incumbent.log2_speedup:.2f}x"
        counts = [str(state.measured), str(state.dropped + state.trusted + len(state.open))]
        table.add_row(info.name, best, *counts, state.ended or "unfinished: resume it")
    _out.print(table)


@main.command()
@click.argument("run")
@click.option("--kernel", is_flag=True, help="Print only the best kernel's source.")
@click.option("--top", default=10, show_default=True, help="Kernels of the archive to list.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw best-so-far to this PNG.")
@_store_option
@_json_option
def show(run: str, kernel: bool, top: int, figure: Path | None, store: str, as_json: bool) -> None:
    """Show where a RUN stands and what it found.

    \b
    Examples:
      kernelcast show softmax-20261115-101500-1f2e
      kernelcast show softmax-20261115-101500-1f2e --kernel > best.cpp
      kernelcast show softmax-20261115-101500-1f2e --figure best.png
    """
    with Store.open(store) as opened:
        log = opened.open_run(run)
        state = log.state
        if kernel:
            click.echo(opened.kernel(state.incumbent.kernel_id).source, nl=False)
            return
        if figure is not None:
            draw_best_so_far({run: [best_so_far(log)]}, figure, f"Best so far, {run}")
        if as_json:
            click.echo(json.dumps({"run": run, **summary(state)}))
            return
        _out.print(summary_table(state, f"Run {run}"))
        _out.print(archive_table(state, top))
        if figure is not None:
            _out.print(f"figure: {figure}")


# --------------------------------------------------------------------------------- forecast


@main.command()
@click.argument("reference", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("candidate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--problem", help="Problem they solve (bundled name or folder): shapes, work.")
@click.option("--device", help="Device to forecast for (default: this CPU).")
@click.option(
    "--reference-ms", type=float, default=1.0, help="Measured time of REFERENCE, if known."
)
@_model_options
@_json_option
def forecast(
    reference: Path,
    candidate: Path,
    problem: str | None,
    device: str | None,
    reference_ms: float,
    as_json: bool,
    **model: str | None,
) -> None:
    """Forecast the speedup of CANDIDATE against REFERENCE, two source files of one language.

    \b
    Examples:
      kernelcast forecast seed.cpp candidate.cpp --problem softmax --reference-ms 6.2
      kernelcast forecast ref.cu cand.cu --device H100-SXM5 \\
          --base-url http://localhost:8000/v1 --model my-model

    Without a model endpoint the forecast is the roofline's: a wide prior, cut off at the device's
    peaks, the same for every candidate.
    """
    language = _LANGUAGES.get(candidate.suffix)
    if language is None:
        raise SetupError(f"{candidate}: known endings are {', '.join(_LANGUAGES)}")
    anchor, rival = (
        Kernel(id=kernel_id(text, language), language=language, source=text)
        for text in (reference.read_text(), candidate.read_text())
    )
    name = "llm" if model["base_url"] else "roofline"
    forecaster = plugins.build(
        "forecaster", _component(name, model) if name == "llm" else ComponentSpec(name=name)
    )
    query = Query(
        problem=load_problem(problem) if problem else _unstated_problem(anchor),
        device=find_device(device) if device else detect_cpu(),
        candidate=rival,
        anchor=anchor,
        anchor_log2_speedup=0.0,
        anchor_runtime_s=reference_ms / 1e3,
    )
    with _err.status("forecasting"):
        answer = forecaster.forecast([query])[0]
    if as_json:
        click.echo(json.dumps(_forecast_data(answer)))
    else:
        _print_forecast(answer, name)


def _unstated_problem(anchor: Kernel) -> Problem:
    return Problem(
        name="unstated",
        family="unstated",
        summary="two kernels that compute the same; shapes and dtypes are not stated",
        language=anchor.language,
        entry="kernel",
        dimensions=(),
        arguments=(),
        cases=(),
        flops="0",
        bytes="0",
        tolerance=Tolerance(rtol=0.0, atol=0.0),
        oracle_source="",
        seed_source=anchor.source,
    )


def _forecast_data(answer: Forecast) -> dict[str, Any]:
    density = answer.distribution
    low, high = density.interval(0.8)
    return {
        "forecaster": answer.forecaster,
        "p_ok": answer.p_ok,
        "p_failure": {kind.value: chance for kind, chance in answer.failure.items()},
        "p_faster": answer.p_ok * density.probability_faster_than(1.0),
        "median_speedup": 2.0 ** density.quantile(0.5),
        "interval_80": [2.0**low, 2.0**high],
        "bins": dict(
            zip(DEFAULT_BINS.labels, density.bin_probabilities(DEFAULT_BINS), strict=True)
        ),
        "unparsed": answer.unparsed,
        "usage": answer.usage.model_dump(),
        "rationale": answer.rationale,
    }


def _print_forecast(answer: Forecast, name: str) -> None:
    data = _forecast_data(answer)
    table = Table(box=None, pad_edge=False, show_header=False)
    for index, (label, chance) in enumerate(data["bins"].items()):
        bar = "█" * round(40 * chance)
        table.add_row(label, DEFAULT_BINS.range_text(index), f"{chance:6.1%}", bar)
    _out.print(f"Forecast by {name} (not a measurement)", style="bold")
    _out.print(table)
    low, high = data["interval_80"]
    _out.print(
        f"median {data['median_speedup']:.2f}x, 80% interval {low:.2f}x to {high:.2f}x, "
        f"P(runs and is right) {data['p_ok']:.2f}, P(faster) {data['p_faster']:.2f}"
    )
    usage = answer.usage
    if usage.tokens:
        _out.print(f"{usage.tokens:,} tokens, ${usage.usd:.4f}, {usage.seconds:.1f} s")
    if answer.unparsed:
        _out.print(
            "the model's answer could not be read; this is the uniform forecast", style="red"
        )
    if name == "roofline":
        _out.print("only a prior: give --base-url and --model for a forecast of this very kernel")


# ----------------------------------------------------------------------------- init and doctor


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a problem FOLDER that runs, to be changed into your own.

    \b
    Example:
      kernelcast init my_kernel && kernelcast search ./my_kernel -n 20
    """
    if folder.exists() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    scaffold = resources.files("kernelcast.problems") / "scaffold"
    for item in sorted(scaffold.iterdir(), key=lambda each: each.name):
        text = item.read_text().replace("PROBLEM_NAME", folder.resolve().name)
        (folder / item.name).write_text(text)
        _out.print(f"wrote {folder / item.name}")
    _out.print(f"next: kernelcast search {folder}/ -n 20")


@main.command()
@_json_option
def doctor(as_json: bool) -> None:
    """Say what works on this machine, and what to install for the rest.

    \b
    Example:
      kernelcast doctor
    """
    checks = list(_checks())
    if as_json:
        rows = [{"check": a, "works": ok, "detail": detail} for a, ok, detail in checks]
        click.echo(json.dumps(rows))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for check, ok, detail in checks:
            mark = "[green]works[/]" if ok else "[yellow]missing[/]"
            table.add_row(check, mark, detail)
        _out.print(table)
        _out.print(f"bundled problems: {', '.join(bundled_problems())}")
    if not {check: ok for check, ok, _ in checks}["C++ kernels"]:
        sys.exit(1)


def _checks() -> Iterator[tuple[str, bool, str]]:
    version = importlib.metadata.version("kernelcast")
    yield "kernelcast", True, f"{version}, Python {sys.version.split()[0]}"
    device = detect_cpu()
    yield "device", True, f"{device.id}; {device.source}"
    try:
        backend = CppBackend()
        yield "C++ kernels", True, backend.toolchain
        backend.close()
    except SetupError as error:
        yield "C++ kernels", False, str(error)
    found = shutil.which("objdump") is not None
    yield "instruction mix", found, "objdump" if found else "apt-get install binutils"
    yield (
        "sandbox",
        False,
        "level S0: kernels run in child processes with limits, but are not yet confined; "
        "search only kernels you would run yourself",
    )
    found = shutil.which("nvidia-smi") is not None
    yield "GPU", False, "found, but GPU backends are not in this version" if found else "none found"
    for extra, module in _EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        yield f"extra {extra}", found, module if found else f"pip install 'kernelcast[{extra}]'"


# -------------------------------------------------------------------------------------- demo


@main.command()
@click.option("--problem", default="softmax", show_default=True, help="A bundled problem.")
@click.option("--measurements", "-n", default=20, show_default=True, help="Measurements a run.")
@click.option("--seeds", default=2, show_default=True, help="Runs an arm.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    default=Path("kernelcast-demo.png"),
    show_default=True,
    help="Where to draw best-so-far against measurements.",
)
@_json_option
def demo(problem: str, measurements: int, seeds: int, figure: Path, as_json: bool) -> None:
    """The whole idea in under 90 seconds: no GPU, no key.

    Searches one problem twice at an equal number of measurements, on the same engine, with the
    same proposer: once measuring everything, once choosing by forecasts.

    \b
    Example:
      kernelcast demo
    """
    arms = {"measure everything": "measure_all", "selective": "selective"}
    curves: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    states: dict[str, list[Any]] = {arm: [] for arm in arms}
    loaded = load_problem(problem)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "demo.db") as store:
        for seed in range(seeds):
            for arm, policy in arms.items():
                components = {"policy": ComponentSpec(name=policy)}
                spec = RunSpec(seed=seed, reuse=False, components=components)
                name = f"{policy}-{seed}"
                live = Search(loaded, Parts.build(components), store, spec=spec, name=name)
                title = f"{loaded.name}, {arm}, run {seed + 1} of {seeds}"
                _run(live, Budget(measurements=measurements), title, quiet=as_json)
                curves[arm].append(best_so_far(store.open_run(name)))
                states[arm].append(live.state)
    draw_best_so_far(
        curves, figure, f"{loaded.name} on this CPU: {measurements} measurements, {seeds} seeds"
    )
    rows = {arm: _demo_row(each) for arm, each in states.items()}
    if as_json:
        seconds = round(time.monotonic() - began, 1)
        click.echo(json.dumps({"arms": rows, "figure": str(figure.resolve()), "seconds": seconds}))
        return
    table = Table(title=f"{loaded.name}: equal measurements, one engine", title_justify="left")
    for column in ("policy", "considered", "measured", "best speedup (measured twice)"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for arm, row in rows.items():
        each = ", ".join(f"{speedup:.2f}x" for speedup in row["speedups"])
        best = f"{row['geometric_mean']:.2f}x  ({each})"
        table.add_row(arm, str(row["considered"]), str(row["measured"]), best)
    _out.print(table)
    _out.print(f"figure: {figure.resolve()}")
    _out.print(
        f"{time.monotonic() - began:.0f} s on this machine; a few runs show the idea, not a proof"
    )


def _demo_row(states: list[Any]) -> dict[str, Any]:
    logs = [state.incumbent.log2_speedup for state in states]
    return {
        "considered": sum(state.considered for state in states),
        "measured": sum(state.measured for state in states),
        "speedups": [round(2.0**log2, 3) for log2 in logs],
        "geometric_mean": round(float(2.0 ** np.mean(logs)), 3),
    }
