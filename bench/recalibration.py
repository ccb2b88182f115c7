"""Does a forecaster that is too sure of itself learn from its errors during a search?

Run: python bench/recalibration.py [--quick] [--out FILE]
The default forecaster is made over-confident by construction: every density is squeezed to a third
of its width. Each recorded tuner space is searched with it through the one loop, recalibration on,
audits included. After 10, 30 and 100 outcomes, 400 configurations that its own proposer offers and
that it did not measure are forecast, and the calibration error of the corrected forecasts is held
against that of the very same forecasts uncorrected. The last line is one JSON object.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

import numpy as np

from _data import Space, tuner_spaces
from _result import bench_parser, report
from kernelcast.backends.replay import Recorded, Recording, ReplayBackend, space_problem
from kernelcast.bins import DEFAULT_BINS
from kernelcast.canonical import canonical_parameters
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.events import Event, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.recalibrate import RecalibratedForecaster
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import Selective
from kernelcast.proposers.pool import PoolProposer
from kernelcast.scoring import expected_calibration_error
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.types import (
    Budget,
    Device,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Node,
    Observation,
    ProposalRequest,
    Query,
    Spend,
)

SQUEEZE = 1 / 3
CHECKPOINTS = (10, 30, 100)
HELD_OUT = 400


class OverConfident:
    """The default forecaster, a third as wide as it thinks right."""

    name = "over-confident"
    concurrency = 0
    refreshes = True

    def __init__(self) -> None:
        self._inner = TreesForecaster()

    def quote(self, queries: Sequence[Query]) -> Spend:
        return self._inner.quote(queries)

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        return [
            each.model_copy(
                update={"forecaster": self.name, "distribution": each.distribution.widen(SQUEEZE)}
            )
            for each in self._inner.forecast(queries)
        ]

    def learn(self, observations: Sequence[Observation]) -> None:
        self._inner.learn(observations)


def recording_of(space: Space) -> Recording:
    """The space as a recording; its reference is the median configuration."""
    timed = np.flatnonzero(np.isfinite(space.runtime_ms))
    middle = timed[np.argsort(space.runtime_ms[timed])[len(timed) // 2]]
    device = Device(
        name=space.gpu,
        kind="replay",
        cores=1,
        clock_hz=1e9,
        peak_flops={},
        bandwidth_bytes_s=1e12,
        source="recorded",
    )
    failed = Failure(kind=FailureKind.CRASH, message="recorded as failed")
    runs = np.isfinite(space.runtime_ms)
    entries = [
        Recorded(float(ms) * 1e-3) if ran else Recorded(failure=failed)
        for ms, ran in zip(space.runtime_ms, runs, strict=True)
    ]
    return Recording.from_rows(
        zip(space.configurations, entries, strict=True),
        problem=space.problem,
        device=device,
        language="cuda",
        source="// not published\n",
        reference=space.configurations[middle],
    )


class Examiner:
    """Watches a search and, at each checkpoint, forecasts configurations it did not measure."""

    def __init__(self, recording: Recording, seed: int) -> None:
        self._recording = recording
        self._rng = np.random.default_rng(seed)
        self.search: Search | None = None
        self.found: dict[int, dict[str, float]] = {}
        self._outcomes = 0

    def on_event(self, event: Event) -> None:
        """Count outcomes; the examination follows the lesson, at the next event."""
        if self._outcomes in CHECKPOINTS and self._outcomes not in self.found:
            self.found[self._outcomes] = self.examine()
        self._outcomes += isinstance(event, Measured) and event.purpose == "search"

    def examine(self) -> dict[str, float]:
        """Calibration error with and without correction, on the same forecasts."""
        assert self.search is not None
        search = self.search
        problem, reference = search.problem, self._recording.entries[self._recording.reference]
        assert problem.template is not None
        assert reference.runtime_s is not None
        anchor = search.state.incumbent
        queries, outcomes = [], []
        for kernel in self._proposed(anchor):
            assert kernel.parameters is not None
            recorded = self._recording.entries[canonical_parameters(kernel.parameters)]
            if recorded.runtime_s is None:
                continue
            queries.append(
                Query(
                    problem=problem,
                    device=search.parts.farm.device,
                    candidate=kernel,
                    anchor=search.store.kernel(anchor.kernel_id),
                    anchor_log2_speedup=anchor.log2_speedup,
                    anchor_runtime_s=reference.runtime_s / 2.0**anchor.log2_speedup,
                )
            )
            change = math.log2(reference.runtime_s / recorded.runtime_s) - anchor.log2_speedup
            outcomes.append(change)
        corrected = search.parts.forecaster.forecast(queries)
        raw = [each.uncorrected for each in corrected]
        return {
            "corrected": _ece([each.distribution for each in corrected], outcomes),
            "uncorrected": _ece([each.distribution for each in raw if each], outcomes),
        }

    def _proposed(self, parent: Node) -> tuple[Kernel, ...]:
        """What the search's own proposer would offer next, but for what was measured."""
        assert self.search is not None
        search = self.search
        request = ProposalRequest(
            ordinal=0,
            problem=search.problem,
            device=search.parts.farm.device,
            parent=search.store.kernel(parent.kernel_id),
            parent_log2_speedup=parent.log2_speedup,
            parent_runtime_s=1.0,
            parent_measured=True,
            count=HELD_OUT,
            seed=int(self._rng.integers(2**32)),
        )
        kernels = search.parts.proposer.propose(request).kernels
        measured = {
            event.measurement.kernel_id
            for event in search.store.open_run(search.name).events("measured")
            if isinstance(event, Measured)
        }
        return tuple(each for each in kernels if each.id not in measured)


def _ece(densities: Sequence[Distribution], outcomes: Sequence[float]) -> float:
    confidences, correct = [], []
    for density, outcome in zip(densities, outcomes, strict=True):
        probabilities = density.bin_probabilities(DEFAULT_BINS)
        confidences.append(max(probabilities))
        correct.append(float(np.argmax(probabilities) == DEFAULT_BINS.index(2.0**outcome)))
    return expected_calibration_error(confidences, correct)


def searched(space: Space, seed: int, measurements: int) -> dict[int, dict[str, float]]:
    """Calibration errors by checkpoint along one search of the space."""
    recording = recording_of(space)
    examiner = Examiner(recording, seed)
    parts = Parts(
        proposer=PoolProposer(list(recording.configurations)),
        forecaster=RecalibratedForecaster(OverConfident()),
        policy=Selective(drop_below=0.0),  # or it would soon drop everything, sure of itself
        strategy=Puct(),
        farm=LocalFarm(ReplayBackend(recording)),
    )
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        examiner.search = Search(
            space_problem(recording),
            parts,
            store,
            spec=RunSpec(seed=seed, reuse=False),
            callbacks=[examiner],
        )
        examiner.search.run(Budget(measurements=measurements))
    return examiner.found


def main() -> None:
    """Print a row a space, and the figures over all of them."""
    parser = bench_parser(__doc__, quick="one space")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spaces = tuner_spaces()
    if options.quick:
        spaces = spaces[:1]
    started = time.perf_counter()
    rows = {}
    for space in spaces:
        try:
            rows[space.label] = searched(space, options.seed, max(CHECKPOINTS) + 2)
        except SetupError as error:
            raise SystemExit(f"{space.label}: {error}") from error
        told = "  ".join(
            f"{count}: {each['uncorrected']:.3f} -> {each['corrected']:.3f}"
            for count, each in rows[space.label].items()
        )
        print(f"{space.label:32} {told}", flush=True)

    def over_all(count: int, arm: str) -> float:
        return round(mean(row[count][arm] for row in rows.values()), 4)

    worst_after_10 = max(row[10]["corrected"] - row[10]["uncorrected"] for row in rows.values())
    ratios = [row[100]["corrected"] / row[100]["uncorrected"] for row in rows.values()]
    result = {
        "ece_uncorrected_100": over_all(100, "uncorrected"),
        "ece_corrected_100": over_all(100, "corrected"),
        "ratio_100": round(over_all(100, "corrected") / over_all(100, "uncorrected"), 4),
        "median_ratio_100": round(median(ratios), 4),
        "spaces_halved_100": round(mean(ratio <= 0.5 for ratio in ratios), 4),
        "ece_uncorrected_10": over_all(10, "uncorrected"),
        "ece_corrected_10": over_all(10, "corrected"),
        "worst_increase_10": round(worst_after_10, 4),
        "spaces": len(rows),
        "rows": rows,
        "seconds": round(time.perf_counter() - started),
        "seed": options.seed,
    }
    report(result, options)


if __name__ == "__main__":
    main()
