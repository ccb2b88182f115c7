"""Commands that make, continue and read runs: search, resume, ls, show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.common import (
    ANY_PATH,
    ERR,
    EXISTING_FILE,
    OUT,
    POSITIVE,
    ask_options,
    budget_options,
    check_model_is_asked,
    check_writable,
    device_option,
    is_given,
    json_option,
    model_options,
    option,
    part_options,
    read_options,
    run_watched,
    store_option,
    trust_options,
    trust_store_option,
    watch_options,
)
from kernelcast.errors import SetupError
from kernelcast.judge.curves import best_so_far
from kernelcast.languages import ending_of
from kernelcast.parts import Parts, read_budget, read_run
from kernelcast.report.console import archive_table, parameters_text, summary, summary_table
from kernelcast.report.figures import draw_best_so_far
from kernelcast.report.kernel import KernelRecord
from kernelcast.report.tables import Report, listing, table
from kernelcast.report.terminal import echo_source
from kernelcast.run import Run
from kernelcast.search import INTERRUPTED, Result, Search
from kernelcast.state import Gating
from kernelcast.store import DEFAULT_STORE, Store
from kernelcast.types import Budget, Kernel


@click.command()
@click.argument("problem", required=False)
@option(
    "--config",
    "Read the search from this file (`kernelcast init` writes one); options override it.",
    EXISTING_FILE,
)
@budget_options
@part_options
@ask_options
@model_options
@option("--pool policy__pool_size", "Open candidates to choose from.", POSITIVE)
@option("--farm farm__name", "Where kernels are measured: local, or ray.  [default: local]")
@option(
    "--slots farm__slots",
    "Measurements at a time.  [default: 1; with ray, the fair share]",
    POSITIVE,
)
@option("--seed", "Seed of all choices.  [default: 0]", int)
@option(
    "--inspect/--no-inspect",
    "Compile every candidate before it is forecast; for an NVIDIA GPU, emulate it too.  "
    "[default: yes for a GPU's languages]",
    bool,
)
@option(
    "--no-reuse reuse",
    "Measure again what another run has measured.",
    default=True,
    flag_value=False,
    show_default=False,
)
@trust_options
@device_option
@option("--name", "Name of the run (default: problem, date and a random tail).")
@option("--out", "Write the best kernel here too.", ANY_PATH)
@watch_options
@store_option
@json_option
def search(
    problem: str | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    metrics: tuple[str, int] | None,
    traces: bool,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Search a faster kernel for PROBLEM (a bundled name or a folder).

    \b
    Examples:
      kernelcast search softmax --measurements 60
      kernelcast search ./my_kernel --device-seconds 300 --out best.cpp
      kernelcast search --config my_kernel/search.toml
      kernelcast search softmax --farm ray --metrics 127.0.0.1:9464
      kernelcast search softmax --forecaster llm --proposer llm \\
          --base-url http://localhost:8000/v1 --model my-model --candidates 40

    The backend is the one of the problem's language. Ctrl-C stops cleanly; `kernelcast resume RUN`
    goes on. The exit code is 1 if no kernel could be measured.
    """
    if (problem is None) == (config is None):
        raise SetupError(
            "name a problem (`kernelcast search softmax`), or a file with --config; not both"
        )
    check_writable(out, "--out")
    settings, model = read_options(options)
    if problem is not None:
        settings = {"problem": problem, **settings}
    run = read_run(settings, config=config, model=model)
    check_model_is_asked(model, run.spec.components.values())
    budget = run.budget if run.budget != Budget() else Budget(measurements=60)
    options_of_parts = {key for part in run.spec.components.values() for key in part.options}
    if (budget.forecast_usd, budget.proposal_usd) != (None, None) and not any(
        key.startswith("usd") for key in options_of_parts
    ):
        raise SetupError("a cap in dollars needs the model's prices: --price-in and --price-out")
    if budget.measurements == 0 or budget.candidates == 0:
        OUT.print("Nothing to do: the budget allows no measurement. Give -n 1 or more.")
        return
    parts = Parts.build(run.spec.components, run.problem)
    with Store.open(store if is_given("store") else run.store or store) as opened:
        live = Search(run.problem, parts, opened, spec=run.spec, name=name or run.name)
        title = f"{run.problem.name} ({live.name})"
        result = run_watched(live, budget, title, quiet=as_json, metrics=metrics, traces=traces)
        _finish(result, opened, out, as_json)


def _finish(result: Result, opened: Store, out: Path | None, as_json: bool) -> None:
    """Write the best kernel and report the run; fail if every measurement failed."""
    state = result.state
    written = _best_file(opened, result.run, result.kernel)
    written.parent.mkdir(parents=True, exist_ok=True)
    for path in (written, out):
        if path is not None:
            path.write_text(result.kernel.source)
    _report(opened.open_run(result.run), result.kernel, out or written, 10, as_json)
    if not as_json and state.ended == INTERRUPTED:
        OUT.print(f"to go on: kernelcast resume {result.run}", soft_wrap=True)
    failed = sum(state.failures.values())
    if failed and failed == state.measured:
        first = next(iter(state.first_failures.values()))
        raise SetupError(
            f"all {failed} measurements failed; the first ({first.failure.kind}):\n"
            f"{first.failure.message.strip()}\n"
            f"To see a kernel: kernelcast show {result.run} --kernel {first.kernel_id[:8]}"
        )


def _report(run: Run, best: Kernel, file: Path | None, top: int, as_json: bool) -> None:
    """Print where a run stands, and the file of its best kernel."""
    if as_json:
        facts = {"run": run.name, "written_here": run.is_own, **summary(run.state)}
        facts["best"] |= {"parameters": best.parameters, "file": str(file) if file else None}
        click.echo(json.dumps(facts))
        return
    OUT.print(summary_table(run.state, _title("Run", run), best.parameters))
    OUT.print(archive_table(run.state, top, run.kernel))
    where = _shown(file) if file else f"kernelcast show {run.name} --source"
    OUT.print(f"best kernel: {where}", soft_wrap=True)


def _title(what: str, run: Run) -> str:
    """Return a title that says if the figures below it were not made here."""
    return f"{what} {run.name}" if run.is_own else f"{what} {run.name}: {run.written}"


def _trust(run: Run) -> None:
    """Sign a run that was not written here with the user's key, after saying what that means."""
    run.replay()  # a snapshot says nothing of the events that it covers
    if run.is_own:
        return
    ERR.print(
        f"Run {run.name} was {run.written}. It is signed with your key now: kernelcast will run "
        "its problem's code, and learn from its measurements, as if you had made them here.",
        soft_wrap=True,
    )
    run.sign()


def _best_file(opened: Store, run: str, kernel: Kernel) -> Path:
    """Return the file of a run's best kernel: beside the store, under the run's name."""
    folder = (opened.path or DEFAULT_STORE).parent
    name = re.sub(r"[^\w.=,:+-]", "-", run)
    return folder / "best" / f"{name}{ending_of(kernel.language)}"


def _shown(path: Path) -> Path:
    """Return a path as a person would write it: relative if it is below this folder."""
    path, here = path.resolve(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@click.command()
@click.argument("run")
@budget_options
@option("--out", "Write the best kernel here too.", ANY_PATH)
@watch_options
@store_option
@trust_store_option
@json_option
def resume(
    run: str,
    out: Path | None,
    metrics: tuple[str, int] | None,
    traces: bool,
    store: str,
    trust_store: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Go on with a RUN that was stopped, killed or has spent its budget.

    \b
    Examples:
      kernelcast resume latest
      kernelcast resume softmax-20261115-101500-1f2e --measurements 120

    RUN is a name, a unique beginning of one, or `latest`. Caps are totals for the run; those not
    given stay as they were. A run that was not written here is refused without --trust-store.
    """
    check_writable(out, "--out")
    with Store.open(store, create=False) as opened:
        name = opened.find_run(run)
        if trust_store:
            _trust(opened.open_run(name))
        live = Search.resume(opened, name)
        settings, _ = read_options(options)
        caps = read_budget(settings).model_dump(exclude_none=True)
        budget = live.state.budget.model_copy(update=caps)
        made = live.state.measured - live.state.cached
        if budget.measurements is not None and made >= budget.measurements:
            OUT.print(
                f"Nothing to do: run {live.name} has made {made} of {budget.measurements} "
                f"measurements. Raise the total, for example -n {2 * max(made, 1)}.",
                soft_wrap=True,
            )
            return
        title = f"{live.problem.name} ({live.name})"
        result = run_watched(live, budget, title, quiet=as_json, metrics=metrics, traces=traces)
        _finish(result, opened, out, as_json)


@click.command("ls")
@store_option
@trust_store_option
@json_option
def list_runs(store: str, trust_store: bool, as_json: bool) -> None:
    """List the runs of the store, the latest last: problem, best, what was spent, and state.

    \b
    Examples:
      kernelcast ls
      kernelcast ls --store copied.db --trust-store
    """
    rows: list[dict[str, Any]] = []
    if is_given("store") or Path(store).exists():
        with Store.open(store, create=False) as opened:
            runs = [opened.open_run(info.name) for info in opened.runs()]
            for run in runs:
                if trust_store:
                    _trust(run)
            rows = [
                {
                    "run": run.name,
                    "written_here": run.is_own,
                    "written": run.written,
                    "state": _state_of(run),
                    **_facts(run),
                }
                for run in runs
                if run.state.started is not None or run.state.made_by != "search"
            ]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        OUT.print("no runs yet: kernelcast search softmax")
    else:
        columns = ("run", "problem", "best", "measured", "device s", "state")
        cells = [
            (
                row["run"],
                row["problem"],
                _best_cell(row["best"]),
                str(row["measured"]),
                f"{row['spent'].get('device_s', 0.0):.0f}",
                row["state"].partition(":")[0] if row["written_here"] else row["written"],
            )
            for row in rows
        ]
        OUT.print(table(None, columns, cells, left=range(6), yields=0))


def _facts(run: Run) -> dict[str, Any]:
    """Return a search's summary, or that of a tuner's or a gate's run."""
    tuning, gating = run.state.tuning, run.state.gating
    if gating is not None:
        return _gate_facts(gating)
    if tuning is None:
        return summary(run.state)
    best = tuning.best
    return {
        "problem": tuning.started.kernel,
        "device": tuning.started.device,
        "best": best and {"parameters": json.loads(best.configuration), "seconds": best.seconds},
        "measured": tuning.reports,
        "spent": {"device_s": round(tuning.cost_s, 6)},
    }


def _shown_facts(run: Run) -> dict[str, Any]:
    """Return what `show --json` says of a tuner's or a gate's run."""
    state = _state_of(run)
    return {"run": run.name, "written_here": run.is_own, "state": state, **_facts(run)}


def _gate_facts(gating: Gating) -> dict[str, Any]:
    best = gating.best
    result = None
    if best is not None:
        unit, value = ("seconds", best.seconds) if best.seconds else ("speedup", best.speedup)
        result = {"kernel": best.kernel_id, unit: value}
    return {
        "problem": gating.started.task,
        "device": gating.started.device,
        "best": result,
        "measured": gating.told,
        "failed": gating.failed,
        "asked": gating.asked,
        "not_measured": gating.asked - gating.to_measure,
        "spent": {"device_s": round(gating.cost_s, 6)},
    }


def _best_cell(best: Mapping[str, Any] | None) -> str:
    if best is None:
        return "-"
    return f"{best['seconds'] * 1e3:.4g} ms" if "seconds" in best else f"{best['speedup']:.2f}x"


def _state_of(run: Run) -> str:
    """Return whether a run is running, has ended, or was killed."""
    if (holder := run.holder()) is not None:
        return f"running ({holder})"
    match run.state.made_by:
        case "tuner":
            return "tuned by a program"
        case "gate":
            return "asked by a program"
    return run.state.ended or "unfinished: resume it"


@click.command()
@click.argument("run")
@option(
    "--kernel",
    "Show one kernel whole: parameters, forecast, evidence, times, failure and source. ID is the "
    "beginning of its id; without it, the best.",
    is_flag=False,
    flag_value="best",
    metavar="[ID]",
)
@option("--source", "Print only the source, of the best or of --kernel.", bool)
@option("--top", "Kernels of the archive to list.", POSITIVE, 10)
@option("--figure", "Draw best-so-far to this PNG.", ANY_PATH)
@store_option
@trust_store_option
@json_option
def show(
    run: str,
    kernel: str | None,
    source: bool,
    top: int,
    figure: Path | None,
    store: str,
    trust_store: bool,
    as_json: bool,
) -> None:
    """Show where a RUN stands and what it found.

    \b
    Examples:
      kernelcast show latest
      kernelcast show latest --source > best.cpp
      kernelcast show softmax-20261115 --kernel 1f2e9a
      kernelcast show latest --figure best.png

    RUN is a name, a unique beginning of one, or `latest`.
    """
    check_writable(figure, "--figure")
    with Store.open(store, create=False) as opened:
        log = opened.open_run(opened.find_run(run))
        if trust_store:
            _trust(log)
        if log.state.tuning is not None:
            _show_tuning(log, as_json)
            return
        if log.state.gating is not None:
            _show_gate(log, source=source, as_json=as_json)
            return
        if log.state.started is None:
            raise SetupError(f"run {log.name} never began: start a new search")
        chosen = log.kernel(log.find_kernel(kernel or "best"))
        if source:
            if not log.is_own:
                ERR.print(f"Run {log.name} was {log.written}.", soft_wrap=True)
            echo_source(chosen.source)
        elif kernel is None:
            _show_run(log, chosen, top, figure, as_json)
        elif as_json:
            facts = {"run": log.name, "written_here": log.is_own}
            click.echo(json.dumps({**facts, **KernelRecord.of(log, chosen.id).facts()}))
        else:
            if not log.is_own:
                OUT.print(_title("Run", log))
            OUT.print(KernelRecord.of(log, chosen.id).table())
            OUT.print()
            OUT.print(chosen.source, soft_wrap=True)


def _show_tuning(run: Run, as_json: bool) -> None:
    facts = _shown_facts(run)
    best = facts["best"]
    rows = [
        ("best time", _best_cell(best)),
        ("parameters", parameters_text(best["parameters"]) if best else "-"),
        ("device", facts["device"] or "unnamed"),
        ("measured", f"{facts['measured']} configurations"),
        ("state", facts["state"]),
    ]
    Report(facts, [listing(_title("Tuning", run), rows)]).show(OUT, as_json=as_json)


def _show_gate(run: Run, *, source: bool, as_json: bool) -> None:
    facts = _shown_facts(run)
    best = facts["best"]
    if source:
        if best is None:
            raise SetupError(f"run {run.name} was told of no kernel with a time yet")
        echo_source(run.kernel(best["kernel"]).source)
        return
    rows = [
        ("best", _best_cell(best)),
        ("kernel", f"{best['kernel'][:12]}: --source prints it" if best else "-"),
        ("device", facts["device"] or "unnamed"),
        ("asked about", f"{facts['asked']} different kernels"),
        ("not measured", str(facts["not_measured"])),
        ("told of", f"{facts['measured']}, of which {facts['failed']} failed"),
        ("state", facts["state"]),
    ]
    Report(facts, [listing(_title("Gate", run), rows)]).show(OUT, as_json=as_json)


def _show_run(run: Run, best: Kernel, top: int, figure: Path | None, as_json: bool) -> None:
    file = _best_file(run.store, run.name, best)
    is_written = file.exists() and file.read_text() == best.source
    if figure is not None:
        draw_best_so_far({run.name: [best_so_far(run)]}, figure, _title("Best so far,", run))
    _report(run, best, file if is_written else None, top, as_json)
    if as_json:
        return
    if (holder := run.holder()) is not None:
        OUT.print(f"running: {holder}")
    elif not run.is_own:
        OUT.print(
            f"This run was {run.written}: its figures are not known to be true, and it is not "
            f"resumed. If you trust it: kernelcast show {run.name} --trust-store",
            soft_wrap=True,
        )
    elif run.state.ended is None:
        OUT.print(f"unfinished: kernelcast resume {run.name}", soft_wrap=True)
    if figure is not None:
        OUT.print(f"figure: {_shown(figure)}", soft_wrap=True)
