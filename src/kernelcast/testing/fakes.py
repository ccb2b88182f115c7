"""A problem, backends and records that are made up, exact and instant."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.canonical import kernel_id
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.events import (
    BudgetChanged,
    CalibrationRecord,
    Decided,
    Event,
    Forecasted,
    Inspected,
    Measured,
    Proposed,
    Reserved,
    RunEnded,
    RunSpec,
    RunStarted,
    Settled,
    Unanswered,
    Voided,
)
from kernelcast.types import (
    Argument,
    Budget,
    Candidate,
    Case,
    CaseTiming,
    Decision,
    Device,
    Effort,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Measurement,
    Problem,
    ProposalRequest,
    Query,
    Resource,
    Spend,
    Template,
    Timing,
    Tolerance,
    View,
    content_hash,
)

FAKE_DEVICE = Device(
    name="synthetic",
    kind="replay",
    cores=1,
    clock_hz=1e9,
    peak_flops={"float32": 1e12, "float64": 5e11},
    bandwidth_bytes_s=1e11,
    source="invented for tests",
)
_REFERENCE_S = 1e-2
_VECTOR_SIZE = 4096
_FACTOR = "2.0f"


def synthetic_problem() -> Problem:
    """y = 2 x with a template of 1,024 configurations, whose speeds `SyntheticBackend` makes up."""
    powers = (1, 2, 4, 8)
    source = (
        '#include <cstdint>\nextern "C" void kernel(const float* x, float* y, int64_t N) {\n'
        f"  for (int64_t i = 0; i < N; ++i) y[i] = {_FACTOR} * x[i];\n}}\n"
    )
    return Problem(
        name="synthetic",
        family="synthetic",
        summary="y = 2 x",
        language="cpp",
        entry="kernel",
        dimensions=("N",),
        arguments=(
            Argument(name="x", role="input", dtype="float32", shape=("N",)),
            Argument(name="y", role="output", dtype="float32", shape=("N",)),
        ),
        cases=(Case(name="main", dimensions={"N": _VECTOR_SIZE}),),
        flops="N",
        bytes="8*N",
        tolerance=Tolerance(rtol=1e-6, atol=0.0),
        oracle_source="def reference(x, *, N):\n    return 2.0 * x\n",
        seed_source=source,
        template=Template(
            source=source, parameters=dict.fromkeys(("A", "B", "C", "D", "E"), powers)
        ),
    )


def make_kernel(source: str, parameters: Mapping[str, int | float | str] | None = None) -> Kernel:
    """A C++ kernel under its canonical id."""
    return Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source, parameters=parameters)


def synthetic_kernels(count: int, seed: int = 0) -> list[Kernel]:
    """Distinct kernels of the synthetic problem's template, drawn by the seed."""
    template = synthetic_problem().template
    assert template is not None
    space = list(template.configurations())
    drawn = np.random.default_rng(seed).permutation(len(space))
    return [make_kernel(template.render(space[i]), space[i]) for i in islice(drawn, count)]


class SyntheticBackend:
    """Made-up speeds that are a smooth function of the parameters, at once and without noise.

    A source that lost the problem's factor is wrong; every thirteenth configuration, by its id,
    fails as well.
    """

    name = "synthetic"
    toolchain = "none"

    def __init__(self, device: Device = FAKE_DEVICE) -> None:
        self.device = device

    def quote(self, problem: Problem) -> Spend:
        """One measurement and at most a second."""
        del problem
        return {Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 1.0}

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Nothing is compiled; a source without a kernel counts as not compiling."""
        failure = None
        if problem.entry not in kernel.source:
            failure = Failure(kind=FailureKind.COMPILE_ERROR, message="no entry point")
        return Evidence(kernel_id=kernel.id, toolchain=self.toolchain, failure=failure)

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """The made-up time of this kernel, whatever the seed."""
        del seed
        failure = self.inspect(problem, kernel).failure
        unlucky = kernel.parameters and int(kernel.id[:8], 16) % 13 == 0
        if failure is None and (unlucky or _FACTOR not in kernel.source):
            failure = Failure(kind=FailureKind.WRONG_RESULT, message="y[0] is 0, not 1")
        timing = None if failure else self._timing(problem, kernel)
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=timing,
            failure=failure,
            device_s=0.01,
            effort=effort,
        )

    def close(self) -> None:
        """Nothing was started."""

    def _timing(self, problem: Problem, kernel: Kernel) -> Timing:
        values = [v for v in (kernel.parameters or {}).values() if not isinstance(v, str)]
        # Each parameter has its own optimum, so that the best lies inside the space.
        log2_speedup = sum(
            1.0 - 0.5 * abs(math.log2(1 + abs(value)) - 1.0 - 0.5 * index)
            for index, value in enumerate(values)
        )
        runtime_s = _REFERENCE_S / 2.0**log2_speedup
        return Timing(
            log2_speedup=log2_speedup,
            low=log2_speedup,
            high=log2_speedup,
            resolved=True,
            runtime_s=runtime_s,
            reference_runtime_s=_REFERENCE_S,
            cases=tuple(
                CaseTiming(
                    case=case.name,
                    log2_ratios=(log2_speedup,),
                    runtime_s=runtime_s,
                    reference_runtime_s=_REFERENCE_S,
                )
                for case in problem.timed_cases
            ),
        )


class RendezvousBackend(SyntheticBackend):
    """Measures only once `parties` measurements are under way together; for tests of farms.

    It meets itself through files in a folder, so that it works across threads and processes.
    `hold_s` is how long each measurement then takes.
    """

    _PATIENCE_S = 10.0

    def __init__(self, folder: Path, parties: int, hold_s: float = 0.0) -> None:
        super().__init__()
        self._folder = folder
        self._parties = parties
        self._hold_s = hold_s

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Wait for the others, then make up a time; raise where they do not come."""
        running = self._folder / f"{seed}.running"
        running.touch()
        together = len(list(self._folder.glob("*.running")))
        (self._folder / f"{seed}.arrived").write_text(str(together))
        deadline = time.monotonic() + self._PATIENCE_S
        try:
            while len(list(self._folder.glob("*.arrived"))) < self._parties:
                if time.monotonic() > deadline:
                    raise SetupError(f"fewer than {self._parties} measurements ran together")
                time.sleep(0.002)
            time.sleep(self._hold_s)
            return super().measure(problem, kernel, seed, effort)
        finally:
            running.unlink()

    def most_together(self) -> int:
        """The most measurements that were under way when another began, itself included."""
        return max(int(each.read_text()) for each in self._folder.glob("*.arrived"))


class BrokenBackend(SyntheticBackend):
    """A backend that cannot work at all."""

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Say so."""
        del problem, kernel, seed, effort
        raise SetupError("there is no such device: attach one")


# ----------------------------------------------------------------------------------- records


def make_candidate(
    ordinal: int, mean: float | None = None, std: float = 0.5, *, p_fail: float = 0.05
) -> Candidate:
    """An open candidate with a normal forecast against the reference; none without a mean."""
    forecast = None
    if mean is not None:
        forecast = Forecast(
            forecaster="fake",
            anchor_id="seed",
            anchor_log2_speedup=0.0,
            distribution=Distribution.normal(mean, std),
            failure={FailureKind.WRONG_RESULT: p_fail},
        )
    return Candidate(
        kernel_id=content_hash(f"candidate {ordinal}"),
        parent_id="seed",
        ordinal=ordinal,
        forecast=forecast,
    )


def make_view(**changes: Any) -> View:
    """What a policy sees early in a run with one free slot, but for the changes."""
    usual = View(
        seed=0,
        incumbent_log2=0.0,
        noise_log2=0.01,
        measured=8,
        free_slots=1,
        measurements_left=100,
        proposals_exhausted=False,
    )
    return usual.model_copy(update=changes)


def make_query(
    candidate: Kernel, problem: Problem | None = None, anchor_log2_speedup: float = 0.0
) -> Query:
    """This kernel against the problem's seed kernel."""
    problem = problem or synthetic_problem()
    return Query(
        problem=problem,
        device=FAKE_DEVICE,
        candidate=candidate,
        anchor=make_kernel(problem.seed_source),
        anchor_log2_speedup=anchor_log2_speedup,
        anchor_runtime_s=_REFERENCE_S / 2.0**anchor_log2_speedup,
    )


def make_request(
    count: int, seed: int = 0, parent: Kernel | None = None, problem: Problem | None = None
) -> ProposalRequest:
    """A wish for children of the problem's seed kernel, or of another."""
    problem = problem or synthetic_problem()
    return ProposalRequest(
        ordinal=0,
        problem=problem,
        device=FAKE_DEVICE,
        parent=parent or make_kernel(problem.seed_source),
        parent_log2_speedup=0.0,
        parent_runtime_s=_REFERENCE_S,
        parent_measured=True,
        count=count,
        seed=seed,
    )


def example_history() -> tuple[list[Event], list[Kernel]]:
    """The events of a short run, each kind at least once, and the kernels they name."""
    problem, backend = synthetic_problem(), SyntheticBackend()
    seed = make_kernel(problem.seed_source)
    timed = [
        kernel
        for kernel in synthetic_kernels(12)
        if backend.measure(problem, kernel, 0).failure is None
    ]
    dropped, trusted, audited, best = sorted(
        timed[:4], key=lambda kernel: backend.measure(problem, kernel, 0).log2_speedup or 0.0
    )
    actions = {dropped.id: "drop", trusted.id: "trust", audited.id: "audit", best.id: "measure"}
    proposed = [
        Proposed(kernel_id=key, parent_id=seed.id, proposer="fake", request=0) for key in actions
    ]
    forecast = make_candidate(0, 0.5).forecast
    assert forecast is not None
    device_only: Spend = {Resource.DEVICE_S: 1.0}
    spent: Spend = {Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 0.01}
    record = CalibrationRecord(
        blind=True,
        p_ok=0.95,
        ok=True,
        crps=0.2,
        half_brier=0.3,
        confidence=0.6,
        bin_correct=True,
        inside_80=True,
    )
    events: list[Event] = [
        RunStarted(
            spec=RunSpec(),
            problem=problem,
            device=FAKE_DEVICE,
            seed_kernel_id=seed.id,
            budget=Budget(measurements=10, device_s=100.0),
        ),
        Reserved(entry="reference-0", spend=device_only),
        Settled(entry="reference-0", spend={Resource.DEVICE_S: 0.01}),
        Measured(measurement=backend.measure(problem, seed, 0), purpose="reference"),
        *proposed,
        proposed[0].model_copy(update={"request": 1, "duplicate": True}),
        Unanswered(parent_id=seed.id, request=2, reason="no kernel"),
        Inspected(kernel_id=best.id, evidence=backend.inspect(problem, best)),
        *(Forecasted(kernel_id=key, forecast=forecast) for key in actions),
        *(
            Decided(
                kernel_id=key,
                decision=Decision.model_validate(
                    {"action": action, "score": -math.inf, "reason": "an example"}
                ),
                log2_speedup=0.5 if action == "trust" else None,
            )
            for key, action in actions.items()
        ),
        Reserved(entry="search-1", spend=backend.quote(problem)),
        Settled(entry="search-1", spend=spent),
        Measured(
            measurement=backend.measure(problem, audited, 0), purpose="search", calibration=record
        ),
        Reserved(entry="search-2", spend=backend.quote(problem)),
        Voided(entry="search-2"),
        Reserved(entry="search-3", spend=backend.quote(problem)),
        Settled(entry="search-3", spend=spent),
        Measured(measurement=backend.measure(problem, best, 0), purpose="search"),
        Reserved(entry="confirmation-4", spend=device_only),
        Settled(entry="confirmation-4", spend={Resource.DEVICE_S: 0.01}),
        Measured(measurement=backend.measure(problem, best, 1), purpose="confirmation"),
        RunEnded(reason="an example"),
        BudgetChanged(budget=Budget(measurements=20, device_s=100.0)),
        Reserved(entry="search-5", spend=backend.quote(problem)),
    ]
    return events, [seed, dropped, trusted, audited, best]
