"""A synthetic problem, backends and records for tests: exact and instant."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast import events, types
from kernelcast.canonical import kernel_id
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.types import Effort, FailureKind, Kernel, Measurement, Problem, Resource, Spend

FAKE_DEVICE = types.Device(
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


def synthetic_problem(parameters: str = "ABCDE", values: int = 4) -> Problem:
    """Return y = 2 x with a template for `SyntheticBackend`, by default of 1,024 configurations.

    Args:
        parameters: Names of the template's parameters, a letter each.
        values: Number of values of each: powers of two.
    """
    powers = tuple(2**power for power in range(values))
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
            types.Argument(name="x", role="input", dtype="float32", shape=("N",)),
            types.Argument(name="y", role="output", dtype="float32", shape=("N",)),
        ),
        cases=(types.Case(name="main", dimensions={"N": _VECTOR_SIZE}),),
        flops="N",
        bytes="8*N",
        tolerance=types.Tolerance(rtol=1e-6, atol=0.0),
        oracle_source="def reference(x, *, N):\n    return 2.0 * x\n",
        seed_source=source,
        template=types.Template(source=source, parameters=dict.fromkeys(parameters, powers)),
    )


def make_kernel(source: str, parameters: Mapping[str, int | float | str] | None = None) -> Kernel:
    """Return a C++ kernel with its canonical id."""
    return Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source, parameters=parameters)


def synthetic_kernels(count: int, seed: int = 0) -> list[Kernel]:
    """Return different kernels of the synthetic problem's template, drawn by the seed."""
    template = synthetic_problem().template
    assert template is not None
    space = list(template.configurations())
    drawn = np.random.default_rng(seed).permutation(len(space))
    return [make_kernel(template.render(space[i]), space[i]) for i in islice(drawn, count)]


class SyntheticBackend:
    """Invents speeds as a smooth function of the parameters, instantly and without noise.

    A source without the problem's factor is wrong; every thirteenth configuration, by its id,
    fails too.
    """

    name = "synthetic"
    toolchain = "none"

    def __init__(self, device: types.Device = FAKE_DEVICE) -> None:
        self.device = device

    def quote(self, problem: Problem) -> Spend:
        """Quote one measurement and one second."""
        del problem
        return {Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 1.0}

    def inspect(self, problem: Problem, kernel: Kernel) -> types.Evidence:
        """Compile nothing; a source without the entry point does not compile."""
        failure = None
        if problem.entry not in kernel.source:
            failure = types.Failure(kind=FailureKind.COMPILE_ERROR, message="no entry point")
        return types.Evidence(kernel_id=kernel.id, toolchain=self.toolchain, failure=failure)

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Return the invented time of this kernel; the seed is not used."""
        del seed
        failure = self.inspect(problem, kernel).failure
        unlucky = kernel.parameters and int(kernel.id[:8], 16) % 13 == 0
        if failure is None and (unlucky or _FACTOR not in kernel.source):
            failure = types.Failure(kind=FailureKind.WRONG_RESULT, message="y[0] is 0, not 1")
        timing = None if failure else self._timing(problem, kernel)
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=timing,
            failure=failure,
            noise_log2=0.0,
            device_s=0.01,
            effort=effort,
            protocol=types.TIMING_PROTOCOL,
        )

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _timing(self, problem: Problem, kernel: Kernel) -> types.Timing:
        values = [v for v in (kernel.parameters or {}).values() if not isinstance(v, str)]
        # Each parameter has its own optimum, so that the best is inside the space.
        log2_speedup = sum(
            1.0 - 0.5 * abs(math.log2(1 + abs(value)) - 1.0 - 0.5 * index)
            for index, value in enumerate(values)
        )
        runtime_s = _REFERENCE_S / 2.0**log2_speedup
        times = {"runtime_s": runtime_s, "reference_runtime_s": _REFERENCE_S}
        cases = [
            types.CaseTiming(case=case.name, log2_ratios=(log2_speedup,), **times)
            for case in problem.timed_cases
        ]
        return types.Timing(
            log2_speedup=log2_speedup,
            low=log2_speedup,
            high=log2_speedup,
            resolved=True,
            cases=tuple(cases),
            **times,
        )


class RendezvousBackend(SyntheticBackend):
    """Waits until `parties` measurements run at once, then measures; for tests of farms.

    The measurements find each other by files in a folder, across threads and processes. A test may
    open the gate by a file of its own, `*.arrived`.
    """

    _LIMIT_S = 300.0

    def __init__(self, folder: Path, parties: int) -> None:
        super().__init__()
        self._folder = folder
        self._parties = parties

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Wait for the others, then invent a time; raise if they do not come."""
        running = self._folder / f"{seed}.running"
        running.touch()
        together = len(list(self._folder.glob("*.running")))
        (self._folder / f"{seed}.arrived").write_text(str(together))
        deadline = time.monotonic() + self._LIMIT_S
        try:
            while len(list(self._folder.glob("*.arrived"))) < self._parties:
                if time.monotonic() > deadline:
                    raise SetupError(f"fewer than {self._parties} measurements ran together")
                time.sleep(0.002)
            return super().measure(problem, kernel, seed, effort)
        finally:
            running.unlink()

    def most_together(self) -> int:
        """Return the largest number of measurements that ran at once."""
        return max(int(path.read_text()) for path in self._folder.glob("*.arrived"))


class BrokenBackend(SyntheticBackend):
    """A backend that cannot work at all."""

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Raise `SetupError`."""
        del problem, kernel, seed, effort
        raise SetupError("there is no such device: attach one")


def make_candidate(
    ordinal: int, mean: float | None = None, std: float = 0.5, *, p_fail: float = 0.05
) -> types.Candidate:
    """Return an open candidate with a normal forecast; without a mean, it has no forecast."""
    forecast = None
    if mean is not None:
        forecast = types.Forecast(
            forecaster="fake",
            anchor_id="seed",
            anchor_log2_speedup=0.0,
            distribution=Distribution.normal(mean, std),
            failure={FailureKind.WRONG_RESULT: p_fail},
        )
    return types.Candidate(
        kernel_id=types.content_hash(f"candidate {ordinal}"),
        parent_id="seed",
        ordinal=ordinal,
        forecast=forecast,
    )


def make_view(**changes: Any) -> types.View:
    """Return the view of a policy early in a run, with these changes."""
    view = types.View(
        seed=0,
        incumbent_log2=0.0,
        noise_log2=0.01,
        measured=8,
        free_slots=1,
        measurements_left=100,
        proposals_exhausted=False,
    )
    return view.model_copy(update=changes)


def make_query(
    candidate: Kernel, problem: Problem | None = None, anchor_log2_speedup: float = 0.0
) -> types.Query:
    """Return a query for this kernel against the problem's seed kernel."""
    problem = problem or synthetic_problem()
    return types.Query(
        problem=problem,
        device=FAKE_DEVICE,
        candidate=candidate,
        anchor=make_kernel(problem.seed_source),
        anchor_log2_speedup=anchor_log2_speedup,
        anchor_runtime_s=_REFERENCE_S / 2.0**anchor_log2_speedup,
    )


def make_estimate(runtime_s: float, case: str = "main") -> types.Emulated:
    """Return what emulating a kernel might say of one case."""
    return types.Emulated(
        case=case,
        runtime_s=runtime_s,
        spread_log2=0.5,
        bound_by="memory",
        shares={"memory": 0.9, "issue": 0.3},
        occupancy=0.75,
        limiter="registers",
        sectors_per_request=4.0,
        used_bytes=1.0,
        bank_conflicts=2.0,
        lane_efficiency=0.98,
        lines=((12, 0.6), (13, 0.2)),
        exact=True,
        cpu_s=0.25,
    )


def make_request(
    count: int, seed: int = 0, parent: Kernel | None = None, problem: Problem | None = None
) -> types.ProposalRequest:
    """Return a request for children of the problem's seed kernel, or of another parent."""
    problem = problem or synthetic_problem()
    return types.ProposalRequest(
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


def example_history() -> tuple[list[events.Event], list[Kernel]]:
    """Return the events of a short search, each kind of one at least once, and its kernels."""
    problem, backend = synthetic_problem(), SyntheticBackend()
    seed = make_kernel(problem.seed_source)
    quote = backend.quote(problem)
    device_only: Spend = {Resource.DEVICE_S: 1.0}

    def measured(
        entry: str,
        kernel: Kernel,
        spend: Spend,
        calibration: events.CalibrationRecord | None = None,
    ) -> list[events.Event]:
        cost = {name: 0.01 if name is Resource.DEVICE_S else 1 for name in spend}
        event = events.Measured.model_validate(
            {
                "measurement": backend.measure(problem, kernel, 0),
                "purpose": entry.partition("-")[0],
                "calibration": calibration,
            }
        )
        return [
            events.Reserved(entry=entry, spend=spend),
            events.Settled(entry=entry, spend=cost),
            event,
        ]

    def lost(entry: str, kernel: Kernel) -> list[events.Event]:
        key: dict[str, Any] = {"entry": entry, "kernel_id": kernel.id, "attempt": 1}
        return [
            events.Reserved(entry=entry, spend=device_only),
            events.Leased(**key, lease=1, purpose="search", device=FAKE_DEVICE.id),
            events.Settled(entry=entry, spend=device_only, unknown=True, lease=1),
            events.Lost(**key, reason="its node was lost"),
        ]

    def log2_speedup(kernel: Kernel) -> float:
        return backend.measure(problem, kernel, 0).log2_speedup or -math.inf

    timed = [kernel for kernel in synthetic_kernels(12) if log2_speedup(kernel) > -math.inf]
    dropped, trusted, audited, best = sorted(timed[:4], key=log2_speedup)
    actions = {dropped.id: "drop", trusted.id: "trust", audited.id: "audit", best.id: "measure"}
    proposed = [
        events.Proposed(kernel_id=key, parent_id=seed.id, proposer="fake", request=0)
        for key in actions
    ]
    decided = [
        events.Decided(
            kernel_id=key,
            decision=types.Decision.model_validate(
                {"action": action, "score": -math.inf, "reason": "an example"}
            ),
            log2_speedup=0.5 if action == "trust" else None,
        )
        for key, action in actions.items()
    ]
    forecast = make_candidate(0, 0.5).forecast
    assert forecast is not None
    calibration = events.CalibrationRecord(
        blind=True,
        p_ok=0.95,
        ok=True,
        crps=0.2,
        half_brier=0.3,
        confidence=0.6,
        bin_correct=True,
        inside_80=True,
    )
    recorded: list[events.Event] = [
        events.RunStarted(
            spec=events.RunSpec(),
            problem=problem,
            device=FAKE_DEVICE,
            seed_kernel_id=seed.id,
            budget=types.Budget(measurements=10, device_s=100.0),
        ),
        *measured("reference-0", seed, device_only),
        *proposed,
        proposed[0].model_copy(update={"request": 1, "duplicate": True}),
        events.Unanswered(parent_id=seed.id, request=2, reason="no kernel"),
        events.Inspected(kernel_id=best.id, evidence=backend.inspect(problem, best)),
        *(events.Forecasted(kernel_id=key, forecast=forecast) for key in actions),
        *decided,
        *measured("search-1", audited, quote, calibration),
        events.Reserved(entry="search-2", spend=quote),
        events.Voided(entry="search-2"),
        *lost("search-6", best),
        events.Quarantined(kernel_id=dropped.id, reason="an example"),
        *measured("search-3", best, quote),
        *measured("confirmation-4", best, device_only),
        events.Retracted(
            entry="confirmation-4",
            kernel_id=best.id,
            parent_id=seed.id,
            purpose="confirmation",
            device=FAKE_DEVICE.id,
            reason="an example",
        ),
        *measured("confirmation-7", best, device_only),
        events.RunEnded(reason="an example"),
        events.BudgetChanged(budget=types.Budget(measurements=20, device_s=100.0)),
        events.Reserved(entry="search-5", spend=quote),
    ]
    return recorded, [seed, dropped, trusted, audited, best]


def example_tuning() -> list[events.Event]:
    """Return the events of a short tuning, each kind at least once."""
    configuration = '{"block":64}'
    return [
        events.TuningStarted(kernel="an example", device="A100", parameters=("block",)),
        events.Suggested(configuration=configuration),
        events.Reported(configuration=configuration, seconds=0.5, cost_s=2.0),
        events.Reported(configuration='{"block":128}', seconds=None),
    ]


def example_gate() -> list[events.Event]:
    """Return the events of a short gate, each kind at least once."""
    measure = types.Decision(action="measure", score=1.0, reason="nothing was told yet")
    failure = types.Failure(kind=FailureKind.CRASH, message="it hung")
    return [
        events.GateStarted(task="an example", language="cpp", device="A100"),
        events.Asked(kernel_id="a", parent_id=None, decision=measure),
        events.Told(kernel_id="a", seconds=0.5, cost_s=2.0),
        events.Asked(kernel_id="b", parent_id="a", decision=measure),
        events.Told(kernel_id="b", failure=failure),
    ]
