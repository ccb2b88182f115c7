"""What `rank` does with a run of KernelBench: samples of many problems, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelcast import dataset
from kernelcast.cli.common import OUT
from kernelcast.cli.pools import Ordered, Ordering, measure
from kernelcast.errors import MissingExtra, NoDevice, SetupError
from kernelcast.report.judged import ranking_csv
from kernelcast.report.samples import Chosen, results_report, samples_report
from kernelcast.report.terminal import echo_source
from kernelcast.search import INTERRUPTED, Result
from kernelcast.store import Store
from kernelcast.types import Budget, Device, Measurement


@dataclass(frozen=True)
class Measuring:
    """How the first samples of each problem are measured.

    Attributes:
        store: Where the runs are recorded.
        results: File for the results in KernelBench's form.
        count: Samples of each problem; by default the cut.
    """

    store: str
    results: Path | None = None
    count: int | None = None


def rank_samples(
    folder: Path,
    problems: Path,
    device: Device,
    ordering: Ordering,
    *,
    share: float | None,
    miss: float | None,
    measuring: Measuring | None,
    top: int,
    as_csv: bool,
) -> None:
    """Order the samples of each problem in a run of KernelBench, and measure the first ones.

    Args:
        folder: The run.
        problems: The folder of imported problems.
        device: Device to forecast and measure for.
        ordering: How samples are ordered.
        share: Share of each problem's samples to measure.
        miss: In place of `share`: largest chance to leave out the fastest of a problem.
        measuring: How they are measured, if they are.
        top: Problems to print.
        as_csv: Print every order as CSV, and no more.
    """
    found, left_out = dataset.read_samples(folder, problems)
    file = measuring.results if measuring else None
    results = dict(dataset.read_results(file, device)) if file else {}
    ordered = [ordering.order(samples.pool, device) for samples in found]
    if as_csv:
        echo_source(ranking_csv(*(one.ranking for one in ordered)))
        return
    chosen = [
        Chosen(samples, one.ranking, one.ranking.cut(share=share, miss=miss), one.note)
        for samples, one in zip(found, ordered, strict=True)
    ]
    report = samples_report(chosen, folder, device, ordered[0].forecaster, left_out, top)
    if not ordering.quiet:
        report.show(OUT, as_json=False)
    if measuring is not None:
        failed: dict[int, str] = {}
        for choice, one in zip(chosen, ordered, strict=True):
            samples = choice.samples
            results |= _not_built(samples, one, device)
            count = choice.cut.count if measuring.count is None else measuring.count
            result = None
            try:
                result = _measured(samples, one, count, measuring.store, quiet=ordering.quiet)
            except (NoDevice, MissingExtra):
                raise
            except SetupError as error:  # the problem's seed fails, for example
                failed[samples.number] = str(error)
            if result is not None:
                results |= _results(samples, result.run, measuring.store, device)
            if file:
                dataset.write_results(file, results)
            if result is not None and result.state.ended == INTERRUPTED:
                break
        if len(failed) == len(chosen):
            raise SetupError(next(iter(failed.values())))
        scored = results_report(chosen, results, failed, file, top)
        report.facts["measured"] = scored.facts
        if not ordering.quiet:
            scored.show(OUT, as_json=False)
    if ordering.quiet:
        report.show(OUT, as_json=True)


def _measured(
    samples: dataset.Samples, ordered: Ordered, count: int, store: str, *, quiet: bool
) -> Result | None:
    """Measure the first samples of a problem; None if none is worth it."""
    problem, reference = samples.pool.problem, samples.pool.reference
    # A copy of the reference, which gains nothing, is last; only what cannot run is left out.
    worth = [member.kernel for member in ordered.ranking.members if member.forecast.p_ok]
    wanted = worth[:count]
    if not wanted and reference.id in samples.by_kernel:
        wanted = [reference]  # which a run measures in any case
    if not wanted:
        return None
    budget = Budget(measurements=len(wanted))
    return measure(problem, wanted, ordered.spec, budget, store, quiet=quiet)


def _results(samples: dataset.Samples, run: str, store: str, device: Device) -> dataset.Results:
    """What a run measured, by sample; the last measurement of a kernel counts."""
    problem = samples.pool.problem
    with Store.open(store, create=False) as opened:
        measured = dataset.measured_events(opened.open_run(run))
    return {
        (samples.number, sample): dataset.result_entry(sample, event.measurement, problem, device)
        for event in measured
        if event.measurement.device_id == device.id
        for sample in samples.by_kernel.get(event.measurement.kernel_id, ())
    }


def _not_built(samples: dataset.Samples, ordered: Ordered, device: Device) -> dataset.Results:
    """The samples that do not compile, which is a fact and no forecast."""
    problem = samples.pool.problem
    results = {}
    for evidence in ordered.evidence.values():
        if evidence.compiles:
            continue
        measurement = Measurement(
            kernel_id=evidence.kernel_id,
            problem_id=problem.id,
            device_id=device.id,
            toolchain=evidence.toolchain,
            failure=evidence.failure,
            device_s=0.0,
        )
        for sample in samples.by_kernel[evidence.kernel_id]:
            entry = dataset.result_entry(sample, measurement, problem, device)
            results[samples.number, sample] = {**entry, "compiled": False}
    return results
