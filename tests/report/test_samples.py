"""Reports of a KernelBench run, as a reader sees them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kernelcast.canonical import as_kernel
from kernelcast.dataset import Pool, Samples
from kernelcast.distribution import Distribution
from kernelcast.judge.ranking import Ranking
from kernelcast.report.samples import Chosen, results_report, samples_report
from kernelcast.report.tables import Report
from kernelcast.report.terminal import Terminal
from kernelcast.types import Failure, FailureKind, Forecast
from tests.test_dataset_samples import CPU, PROBLEM, entry, timing


def seen(report: Report) -> str:
    page = io.StringIO()
    report.show(Terminal(file=page, width=120), as_json=False)
    return page.getvalue()


@pytest.fixture
def chosen() -> Chosen:
    """Sample 0, sample 1, which does not compile, and sample 2, which is the reference."""
    good, bad = (as_kernel(f"x = {number}\n", "torch") for number in (0, 1))
    reference = as_kernel(PROBLEM.seed_source, "torch")
    likely = Forecast(
        forecaster="trees",
        anchor_id=reference.id,
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(0.0, 1.0),
        failure={FailureKind.CRASH: 0.25},
    )
    broken = {"failure": {FailureKind.COMPILE_ERROR: 1.0}, "rationale": "it does not compile: E1"}
    forecasts = [likely, likely.model_copy(update=broken)]
    pool = Pool(PROBLEM, reference, 1.0, ("a", "b"), (good, bad))
    ranking = Ranking.of(pool.labels, [good, bad], forecasts)
    by_kernel = {good.id: (0,), bad.id: (1,), reference.id: (2,)}
    return Chosen(Samples(23, pool, by_kernel), ranking, ranking.cut(share=1.0), "compiled")


def test_a_forecast_is_marked_and_what_is_not_measured_says_why(chosen: Chosen) -> None:
    report = samples_report([chosen], Path("run"), CPU, "trees", ["a reason"], top=20)
    page = seen(report)
    assert "3 samples of 1 problem; forecast by trees, not measured" in page
    assert "left out: a reason" in page
    assert "0.75   ~1.00x" in page
    assert "not 1: it does not compile: E1" in page
    assert "2: the reference itself" in page
    assert "measure 1 kernel; of each problem" in page
    (problem,) = report.facts["problems"]
    assert [each["samples"] for each in problem["order"]] == [[0], [1]]


def test_results_and_scores_are_shown_and_what_was_not_measured_is_not(chosen: Chosen) -> None:
    results = {(23, 0): entry(timing(1.0)), (23, 2): entry(timing(0.0), 2)}
    report = results_report([chosen], results, {}, Path("e.json"), top=20)
    page = seen(report)
    assert "softmax   2 of 3      2  sample 0    2.00x  1.87x to 2.14x, proven faster   1" in page
    assert (
        "2 samples with a result, of which 2 compile and 2 are right; proven faster than the"
        in page
    )
    assert report.facts["fast_p"] == {
        "0": 1.0,
        "0.5": 1.0,
        "0.8": 1.0,
        "1": 1.0,
        "1.5": 1.0,
        "2": 0,
    }
    assert "written to e.json" in page
    assert "reduced" not in page
    nothing = results_report([chosen], {}, {23: "its seed fails"}, None, top=20)
    assert "problem 23 was not measured: its seed fails" in seen(nothing)
    assert "0 of 3" in seen(nothing)
    wrong = {(23, 0): entry(Failure(kind=FailureKind.CRASH, message="m"))}
    assert results_report([chosen], wrong, {}, None, top=20).facts["fast_p"]["0"] == 0.0
