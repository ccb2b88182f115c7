"""What the summary of a run says of its best kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.farm.local import LocalFarm
from kernelcast.policies import MeasureAll
from kernelcast.report.console import summary
from kernelcast.store import Store
from kernelcast.testing import SyntheticBackend
from kernelcast.types import Budget, Kernel, Problem, Timing
from tests.test_search import make_parts, start


class Drifting(SyntheticBackend):
    """Its times are shorter than its ratios say, as on a machine whose speed changes."""

    def _timing(self, problem: Problem, kernel: Kernel) -> Timing:
        timing = super()._timing(problem, kernel)
        ends = {"low": timing.log2_speedup - 0.1, "high": timing.log2_speedup + 0.05}
        return timing.model_copy(update={"runtime_s": 0.8 * timing.runtime_s, **ends})


def test_the_time_of_the_best_kernel_lies_in_its_interval(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        parts = make_parts(MeasureAll(), farm=LocalFarm(Drifting()))
        best = summary(start(store, parts, name="x").run(Budget(measurements=6)).state)["best"]
    low, high = best["ms_interval"]
    assert low < best["ms"] < high
    fastest, slowest = best["speedup_interval"]
    assert high / low == pytest.approx(slowest / fastest, rel=1e-3)
