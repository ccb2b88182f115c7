"""The command that orders a pool of kernels, says how many to measure, and measures them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kernelcast import dataset, languages
from kernelcast.cli.common import (
    ANY_PATH,
    EXISTING_FILE,
    OUT,
    POSITIVE,
    ask_options,
    check_writable,
    json_option,
    model_options,
    option,
    read_options,
    store_option,
    trust_options,
    use_cache,
)
from kernelcast.cli.forecast import target_device
from kernelcast.cli.pools import Ordered, Ordering, measure
from kernelcast.cli.samples import Measuring, rank_samples
from kernelcast.devices import catalogue
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.report.console import summary, summary_table
from kernelcast.report.judged import ranking_csv, ranking_report
from kernelcast.report.terminal import echo_source
from kernelcast.types import Budget, Device, Language


def _known(_context: Any, _parameter: Any, language: str) -> str:
    """Return a language that is built in or installed."""
    try:
        languages.dialect(language)
    except SetupError as error:
        raise click.BadParameter(str(error)) from error
    return language


@click.command()
@click.argument("path", metavar="POOL")
@option("--reference", "Kernel that a folder's kernels are compared with.", EXISTING_FILE)
@option(
    "--problem",
    "Problem they solve (name or folder); of rows, part of its name; of a KernelBench run, the "
    "folder of all imported problems.",
)
@option("--device backend__device", "Device to rank for (default: the file's, or this CPU).")
@option(
    "--reference-ms",
    "Measured time of a folder's reference, if known.",
    click.FloatRange(min=0, min_open=True),
)
@option("--history", "Rows of the same problem on other devices (Parquet).", EXISTING_FILE)
@option(
    "--restrict",
    "Condition on a tuner's space, e.g. 'block_x * block_y <= 1024' (repeat).",
    multiple=True,
    metavar="EXPRESSION",
)
@option(
    "--language",
    f"Language of a tuner's space: {', '.join(languages.BUILT_IN)}, or that of a plug-in.",
    default="cuda",
    callback=_known,
    metavar="LANGUAGE",
)
@option(
    "--trees",
    "Model that `kernelcast train trees` wrote (default: the one that ships).",
    EXISTING_FILE,
)
@option("--share", "Cut after this share of the pool.", click.FloatRange(0, 1, min_open=True))
@option(
    "--miss",
    "Cut where the fastest is left out with at most this chance (default: 0.05).",
    click.FloatRange(0, 1, min_open=True, max_open=True),
)
@option("--top", "Lines to print.", POSITIVE, 20)
@option("--csv as_csv", "The whole order as CSV on stdout.", bool)
@option("--no-compile", "Do not compile a folder's kernels first.", bool)
@option("--measure measures", "Go on to measure them on the hardware at hand.", bool)
@option("--measurements -n", "With --measure: measure so many (default: the cut).", POSITIVE)
@option(
    "--eval-results results",
    "With --measure, of a KernelBench run: write the results here, as its eval_results.json.",
    ANY_PATH,
)
@trust_options
@option("--seed", "Seed of all choices.", int, 0)
@ask_options
@model_options
@store_option
@json_option
def rank(
    path: str,
    share: float | None,
    miss: float | None,
    top: int,
    as_csv: bool,
    no_compile: bool,
    measures: bool,
    measurements: int | None,
    results: Path | None,
    reference_ms: float | None,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Order the kernels of POOL by what measuring each promises, and say how many to measure.

    \b
    POOL is one of
      a folder of kernel files   .cpp .cu .hip .cl .py; `reference.*` or --reference is the anchor
      a Parquet file of rows     forecasts are made from its rows of other devices
      a Kernel Tuner cache (or a T1 specification)   the space; what is cached is known already
      a problem                  every configuration of its template
      a run of KernelBench       level_L_problem_P_sample_S_kernel.py: each problem by itself

    \b
    Examples:
      kernelcast rank kernels/ --reference kernels/naive.cu --device H100-SXM5
      kernelcast rank rows.parquet --problem convolution --device A100 --share 0.1
      kernelcast rank gemm_cache.json --history other_gpus.parquet --miss 0.05
      kernelcast rank softmax --measure -n 20
      kernelcast rank runs/my_run --problem problems/ --measure \\
          --eval-results runs/my_run/eval_results.json

    A folder's kernels are compiled where the compiler for the device is installed: one that does
    not compile comes last, and none is compiled twice: what it shows is kept in KERNELCAST_CACHE,
    by default ~/.cache/kernelcast. PyTorch modules for a GPU that is not here are rehearsed on this
    CPU: one that seems to fail comes late, and is not ruled out. A forecast is no measurement:
    intervals are 80%, and the cut is right as far as the forecasts are calibrated. Without a model
    endpoint the shipped trees forecast written kernels, and the tuner of `kernelcast tune`
    forecasts configurations.
    """
    if share is not None and miss is not None:
        raise SetupError("--share and --miss both state the cut: give one of them")
    if (measurements is not None or results is not None) and not measures:
        raise SetupError("-n and --eval-results are about measurements: give --measure with them")
    check_writable(results, "--eval-results")
    use_cache()
    device, trees = options["backend__device"], options.pop("trees")
    rows = [str(file) for file in (options.pop("history"), path) if str(file).endswith(".parquet")]
    described = {key: options.pop(key) for key in ("problem", "reference", "restrict", "language")}
    if share is None and miss is None:
        miss = 0.05
    settings, model = read_options(options, implied="forecaster")
    ordering = Ordering(settings, model, rows, trees, compiles=not no_compile, quiet=as_json)
    if dataset.is_kernelbench_run(Path(path)):
        problems = _folder_of_problems(path, described["problem"])
        if described["reference"] or reference_ms is not None:
            raise SetupError("each problem of a KernelBench run has its own reference: name none")
        rank_samples(
            Path(path),
            problems,
            target_device(device, "torch"),
            # All that are chosen: correctness is a result, too.
            replace(ordering, settings={"policy": "measure_all", **settings}),
            share=share,
            miss=miss,
            measuring=Measuring(store, results, measurements) if measures else None,
            top=top,
            as_csv=as_csv,
        )
        return
    if results is not None:
        raise SetupError("--eval-results is for runs of KernelBench: leave it out here")
    pool = _read_pool(path, device, **described)
    if reference_ms is not None:
        pool = replace(pool, reference_s=reference_ms / 1e3)
    if measures and not pool.problem.arguments:
        raise SetupError(
            f"{pool.problem.name!r} cannot be measured here, its inputs are not stated: "
            "give --problem with a problem folder (kernelcast init makes one)"
        )
    target = _device(device or pool.device, pool)
    ordered = ordering.order(pool, target)
    ranking = ordered.ranking
    cut = ranking.cut(share=share, miss=miss)
    if as_csv:
        echo_source(ranking_csv(ranking))
        return
    facts = {
        "pool": path,
        "problem": pool.problem.name,
        "device": target.name,
        "forecaster": ordered.forecaster,
        "kernels": len(pool.kernels),
        "known": len(pool.known),
        "left_out": list(pool.left_out),
        "compiled": ordered.note,
    }
    report = ranking_report(ranking, cut, facts, top)
    if not as_json:
        report.show(OUT, as_json=False)
    if measures:
        count = cut.count if measurements is None else measurements
        report.facts["measured"] = _measured(pool, ordered, count, store, quiet=as_json)
    if as_json:
        report.show(OUT, as_json=True)


def _folder_of_problems(run: str, named: str | None) -> Path:
    if named is None or not Path(named).is_dir():
        raise SetupError(
            f"{run} is a run of KernelBench: name the folder of its problems with --problem; "
            "`kernelcast problem import kernelbench KernelBench/level1/ --to problems/` makes one"
        )
    return Path(named)


def _read_pool(
    name: str,
    device: str | None,
    problem: str | None,
    reference: Path | None,
    restrict: tuple[str, ...],
    language: Language,
) -> dataset.Pool:
    path = Path(name)
    if path.suffix == ".parquet":
        rows = dataset.matching(dataset.read_rows(path, columns=dataset.TRIED), problem)
        if device is None:
            raise SetupError("say for which device (--device): rows hold many")
        return dataset.rows_pool(rows, device)
    if path.suffix == ".json":
        return dataset.space_pool(path, restrictions=restrict, language=language, device=device)
    if path.is_dir() and not (path / "problem.toml").exists():
        return dataset.folder_pool(path, reference, load_problem(problem) if problem else None)
    return dataset.template_pool(load_problem(name))


def _device(name: str | None, pool: dataset.Pool) -> Device:
    """Return a known device with its figures, or for rows and caches one by its name alone."""
    if name is None or pool.device is None:
        return target_device(name, pool.problem.language)
    return catalogue().get(name) or Device(
        name=name,
        kind="gpu",
        cores=0,
        clock_hz=0.0,
        peak_flops={},
        bandwidth_bytes_s=0.0,
        source="named by the user; its figures are not known",
    )


def _measured(
    pool: dataset.Pool, ordered: Ordered, count: int, store: str, *, quiet: bool
) -> dict[str, Any]:
    """Measure the pool best first; each measurement changes what is measured next."""
    members = ordered.ranking.members
    # The problem's template renders a configuration when its turn comes.
    wanted = [
        ranked.kernel if ranked.kernel.parameters is None else ranked.kernel.parameters
        for ranked in members
        if not ranked.is_ruled_out
    ]
    if not wanted:
        raise SetupError("nothing is measured: no kernel of the pool is worth it, see why above")
    budget = Budget(measurements=count)
    result = measure(pool.problem, wanted, ordered.spec, budget, store, quiet=quiet)
    best = result.kernel
    fastest = "the reference itself"
    for ranked in reversed(members):
        is_best = ranked.kernel.parameters and ranked.kernel.parameters == best.parameters
        if is_best or ranked.kernel.id == best.id:
            fastest = ranked.label
    if not quiet:
        OUT.print(summary_table(result.state, f"Run {result.run}"))
        OUT.print(f"fastest: {fastest} (kernelcast show {result.run} --kernel)")
    return {"run": result.run, "fastest": fastest, **summary(result.state)}
