"""Recorded measurements served as a backend: kernelcast without a GPU.

A `Recording` is plain data: what was measured of many kernels of one problem on one device;
`dataset` makes them of rows. Each kernel gets the time or the failure that was recorded, and is
charged the device seconds that it took to find out. A kernel that was never recorded is a
`SetupError`, not a failure: a made-up failure would be learnt from, and kept as if somebody had
measured it.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from kernelcast.canonical import canonical_parameters, kernel_id
from kernelcast.errors import SetupError
from kernelcast.types import (
    CaseTiming,
    Device,
    Effort,
    Evidence,
    Failure,
    FailureKind,
    Kernel,
    Language,
    Measurement,
    Parameters,
    Problem,
    Resource,
    Spend,
    Template,
    Timing,
    content_hash,
)

UNRECORDED_DEVICE_S = 1.0  # charged where nobody wrote down what a measurement took
_INTERVAL = 1.96  # standard errors either side of a 95% interval


@dataclass(frozen=True)
class Recorded:
    """What is known of one kernel: a time or a failure, and what it cost to find out.

    `std_s` is the standard error of `runtime_s`.
    """

    runtime_s: float | None = None
    failure: Failure | None = None
    std_s: float = 0.0
    compile_s: float | None = None
    benchmark_s: float | None = None

    def __post_init__(self) -> None:
        if (self.runtime_s is None) == (self.failure is None):
            raise ValueError("a recorded kernel has either a runtime or a failure")

    @property
    def device_s(self) -> float:
        """Compiling and running as recorded, or the stated constant."""
        if self.compile_s is None and self.benchmark_s is None:
            return UNRECORDED_DEVICE_S
        return (self.compile_s or 0.0) + (self.benchmark_s or 0.0)


@dataclass(frozen=True)
class Recording:
    """Measurements of one problem on one device, by kernel id or by configuration key.

    `source` is the template of the configurations, or the text of the reference kernel where
    kernels are recorded by id; `reference` is the key that all speedups are against;
    `oracle_source` is plain Python that says what is computed, where it was recorded.
    """

    problem: str
    device: Device
    language: Language
    source: str
    reference: str
    entries: Mapping[str, Recorded]
    oracle_source: str = ""

    def __post_init__(self) -> None:
        found = self.entries.get(self.reference)
        if found is None or found.runtime_s is None:
            raise SetupError(
                f"the recording of {self.problem} on {self.device.name} has no time for its "
                f"reference {self.reference}: name one that was timed"
            )

    @classmethod
    def from_columns(
        cls,
        *,
        problem: str,
        device: Device,
        language: Language,
        source: str,
        reference: str | Parameters,
        kernels: Sequence[str | Parameters],
        runtime_s: Sequence[float | None],
        failure: Sequence[Failure | None] | None = None,
        std_s: Sequence[float | None] | None = None,
        compile_s: Sequence[float | None] | None = None,
        benchmark_s: Sequence[float | None] | None = None,
        oracle_source: str = "",
    ) -> Recording:
        """From one row a measurement; `kernels` are kernel ids or configurations.

        A kernel recorded several times has its median time, and a failure only if it never ran.
        """
        rows = len(kernels)
        blank: Sequence[None] = [None] * rows
        columns = (runtime_s, failure or blank, std_s or blank, compile_s or blank)
        grouped: dict[str, list[Recorded]] = defaultdict(list)
        for kernel, runtime, failed, std, compiling, running in zip(
            kernels, *columns, benchmark_s or blank, strict=True
        ):
            grouped[_key(kernel)].append(Recorded(runtime, failed, std or 0.0, compiling, running))
        return cls(
            problem=problem,
            device=device,
            language=language,
            source=source,
            reference=_key(reference),
            entries={key: _typical(group) for key, group in grouped.items()},
            oracle_source=oracle_source,
        )

    @cached_property
    def configurations(self) -> Sequence[dict[str, int | float | str]]:
        """Every recorded configuration, in the order recorded."""
        return [json.loads(key) for key in self.entries if key.startswith("{")]

    @cached_property
    def template(self) -> Template | None:
        """Every combination of the recorded values; None where kernels are recorded by id."""
        values: dict[str, set[int | float | str]] = defaultdict(set)
        for configuration in self.configurations:
            for name, value in configuration.items():
                values[name].add(value)
        if not values:
            return None
        return Template(
            source=self.source,
            parameters={
                name: tuple(sorted(taken, key=lambda value: (isinstance(value, str), value)))
                for name, taken in values.items()
            },
        )

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any kernel, time or failure that is recorded."""
        recorded = repr((self.source, self.reference, sorted(self.entries.items())))
        return content_hash(recorded)[:12]

    @cached_property
    def best_s(self) -> float:
        """The fastest recorded time: what a search over this recording can find at best."""
        return min(each.runtime_s for each in self.entries.values() if each.runtime_s is not None)


def space_problem(recording: Recording) -> Problem:
    """A problem whose seed is the recording's reference and whose template spans its space.

    The template admits every combination of the recorded values, recorded or not; the proposer
    `pool` proposes the recorded ones only.
    """
    template = recording.template
    seed_source = recording.source
    if template is not None:
        reference = json.loads(recording.reference)
        seed_source = template.render({name: reference[name] for name in template.parameters})
    return Problem.unstated(
        recording.problem,
        recording.language,
        seed_source,
        family=recording.problem.partition("(")[0],
        summary=f"{recording.problem}, recorded on {recording.device.name}",
        oracle_source=recording.oracle_source,
        template=template,
    )


class ReplayBackend:
    """Answers with what was recorded; the seed of a measurement plays no part."""

    name = "replay"

    def __init__(self, recording: Recording) -> None:
        self.device = recording.device
        self._recording = recording
        # Part of the measurement cache's key: another recording must not be answered from it.
        self.toolchain = f"recording {recording.fingerprint}"
        self._dearest_s = max(each.device_s for each in recording.entries.values())

    def close(self) -> None:
        """Nothing was started."""

    def quote(self, problem: Problem) -> Spend:
        """One measurement, and the device seconds of the dearest one recorded."""
        del problem
        return {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: self._dearest_s}

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Whether it compiled and how long that took."""
        found = self._find(problem, kernel)
        failed = found.failure is not None and found.failure.kind is FailureKind.COMPILE_ERROR
        return Evidence(
            kernel_id=kernel.id,
            toolchain=self.toolchain,
            failure=found.failure if failed else None,
            compile_s=found.compile_s or 0.0,
        )

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """The recorded outcome, at the recorded cost of compiling and running."""
        del seed
        found = self._find(problem, kernel)
        reference = self._recording.entries[self._recording.reference]
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=_timing(problem, found, reference) if found.failure is None else None,
            failure=found.failure,
            noise_log2=_half_width(reference, reference),
            device_s=found.device_s,
            effort=effort,
        )

    def _find(self, problem: Problem, kernel: Kernel) -> Recorded:
        recording = self._recording
        if problem.name != recording.problem:
            raise SetupError(
                f"this is a recording of {recording.problem!r}, not of {problem.name!r}: "
                "build the problem with space_problem(recording)"
            )
        key = kernel.id
        if key not in recording.entries:
            if kernel.parameters is not None:
                key = canonical_parameters(kernel.parameters)
            elif key == _seed_id(problem.seed_source, problem.language):
                key = recording.reference
        found = recording.entries.get(key)
        if found is None:
            raise SetupError(
                f"kernel {key} was never recorded for {recording.problem} on "
                f"{self.device.name}: propose recorded kernels only, with the proposer 'pool'"
            )
        return found


_seed_id = lru_cache(maxsize=16)(kernel_id)


def _timing(problem: Problem, found: Recorded, reference: Recorded) -> Timing:
    assert found.runtime_s is not None
    assert reference.runtime_s is not None
    log2_speedup = math.log2(reference.runtime_s / found.runtime_s)
    half_width = _half_width(found, reference)
    return Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - half_width,
        high=log2_speedup + half_width,
        resolved=True,
        runtime_s=found.runtime_s,
        reference_runtime_s=reference.runtime_s,
        cases=tuple(
            CaseTiming(
                case=case.name,
                log2_ratios=(log2_speedup,),
                runtime_s=found.runtime_s,
                reference_runtime_s=reference.runtime_s,
            )
            for case in problem.timed_cases
        ),
    )


def _half_width(one: Recorded, other: Recorded) -> float:
    """Half of the 95% interval of the log2 ratio of two recorded times."""
    assert one.runtime_s is not None
    assert other.runtime_s is not None
    relative = math.hypot(one.std_s / one.runtime_s, other.std_s / other.runtime_s)
    return _INTERVAL * relative / math.log(2)


def _key(kernel: str | Parameters) -> str:
    return kernel if isinstance(kernel, str) else canonical_parameters(kernel)


def _typical(group: list[Recorded]) -> Recorded:
    """The measurement in the middle of those that ran."""
    timed = sorted(
        (each.runtime_s, i) for i, each in enumerate(group) if each.runtime_s is not None
    )
    return group[timed[(len(timed) - 1) // 2][1]] if timed else group[0]
