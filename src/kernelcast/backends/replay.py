"""Recorded measurements served as a backend: kernelcast without a GPU.

A `Recording` is plain data: measurements of many kernels of one problem on one device; `dataset`
makes them of rows. Each kernel gets the time or the failure that was recorded, and is charged the
recorded device seconds. A kernel that was never recorded is a `SetupError`: forecasters would learn
from a made-up failure.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from kernelcast.canonical import canonical_parameters, kernel_id
from kernelcast.errors import SetupError
from kernelcast.types import (
    TIMING_PROTOCOL,
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

UNRECORDED_DEVICE_S = 1.0  # charged where the cost of a measurement was not recorded
_INTERVAL = 1.96  # standard errors either side of a 95% interval


@dataclass(frozen=True)
class Recorded:
    """A time or a failure of one kernel, and the seconds that it cost.

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
        """Seconds of compiling and running, or the stated constant."""
        if self.compile_s is None and self.benchmark_s is None:
            return UNRECORDED_DEVICE_S
        return (self.compile_s or 0.0) + (self.benchmark_s or 0.0)


@dataclass(frozen=True)
class Recording:
    """Measurements of one problem on one device, by kernel id or by configuration key.

    `source` is the template of the configurations, or the text of the reference kernel where
    kernels are recorded by id. All speedups are against the entry `reference`. `oracle_source` is
    the problem's reference.py, where it was recorded.
    """

    problem: str
    device: Device
    language: Language
    source: str
    reference: str
    entries: Mapping[str, Recorded]
    oracle_source: str = ""

    def __post_init__(self) -> None:
        reference = self.entries.get(self.reference)
        if reference is None or reference.runtime_s is None:
            raise SetupError(
                f"the recording of {self.problem} on {self.device.name} has no time for its "
                f"reference {self.reference}: name one that was timed"
            )

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[str | Parameters, Recorded]],
        *,
        problem: str,
        device: Device,
        language: Language,
        source: str,
        reference: str | Parameters,
        oracle_source: str = "",
    ) -> Recording:
        """Make a recording of pairs of a kernel id, or a configuration, and a measurement.

        A kernel recorded several times gets its median time, and a failure only if it never ran.
        """
        groups: dict[str, list[Recorded]] = defaultdict(list)
        for kernel, recorded in rows:
            groups[_key(kernel)].append(recorded)
        entries = {}
        for key, group in groups.items():
            timed = [recorded for recorded in group if recorded.runtime_s is not None]
            timed.sort(key=lambda recorded: recorded.runtime_s or 0.0)
            entries[key] = timed[(len(timed) - 1) // 2] if timed else group[0]
        key = _key(reference)
        return cls(problem, device, language, source, key, entries, oracle_source)

    @cached_property
    def configurations(self) -> Sequence[dict[str, int | float | str]]:
        """All recorded configurations, in the order of the recording."""
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
                name: tuple(sorted(choices, key=lambda value: (isinstance(value, str), value)))
                for name, choices in values.items()
            },
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that is recorded."""
        recorded = repr((self.source, self.reference, sorted(self.entries.items())))
        return content_hash(recorded)[:12]

    @cached_property
    def best_s(self) -> float:
        """The fastest recorded time, which is the best that a search can find."""
        times = (entry.runtime_s for entry in self.entries.values())
        return min(runtime_s for runtime_s in times if runtime_s is not None)


def space_problem(recording: Recording) -> Problem:
    """A problem whose seed is the recording's reference and whose template spans its space.

    The template admits every combination of the recorded values. The proposer `pool` proposes only
    those that were recorded.
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
    """Answers with the recorded measurements; the seed of a measurement is ignored."""

    name = "replay"

    def __init__(self, recording: Recording) -> None:
        self.device = recording.device
        self._recording = recording
        # Part of the measurement cache's key: another recording must not be answered from it.
        self.toolchain = f"recording {recording.fingerprint}"
        self._dearest_s = max(entry.device_s for entry in recording.entries.values())

    def close(self) -> None:
        """Do nothing: no process was started."""

    def quote(self, problem: Problem) -> Spend:
        """One measurement, and the device seconds of the dearest one recorded."""
        del problem
        return {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: self._dearest_s}

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """The recorded compile error, if any, and how long compiling took."""
        entry = self._entry(problem, kernel)
        failed = entry.failure is not None and entry.failure.kind is FailureKind.COMPILE_ERROR
        return Evidence(
            kernel_id=kernel.id,
            toolchain=self.toolchain,
            failure=entry.failure if failed else None,
            compile_s=entry.compile_s or 0.0,
        )

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """The recorded outcome, at the recorded cost of compiling and running.

        Raises:
            SetupError: The kernel was not recorded, or the problem is another one.
        """
        del seed
        entry = self._entry(problem, kernel)
        reference = self._recording.entries[self._recording.reference]
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=_timing(problem, entry, reference) if entry.failure is None else None,
            failure=entry.failure,
            noise_log2=_half_width(reference, reference),
            device_s=entry.device_s,
            effort=effort,
            protocol=TIMING_PROTOCOL,
        )

    def _entry(self, problem: Problem, kernel: Kernel) -> Recorded:
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
        if key not in recording.entries:
            raise SetupError(
                f"kernel {key} was never recorded for {recording.problem} on "
                f"{self.device.name}: propose recorded kernels only, with the proposer 'pool'"
            )
        return recording.entries[key]


_seed_id = lru_cache(maxsize=16)(kernel_id)


def _timing(problem: Problem, entry: Recorded, reference: Recorded) -> Timing:
    assert entry.runtime_s is not None
    assert reference.runtime_s is not None
    log2_speedup = math.log2(reference.runtime_s / entry.runtime_s)
    half_width = _half_width(entry, reference)
    times = {"runtime_s": entry.runtime_s, "reference_runtime_s": reference.runtime_s}
    return Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - half_width,
        high=log2_speedup + half_width,
        resolved=True,
        cases=tuple(
            CaseTiming(case=case.name, log2_ratios=(log2_speedup,), **times)
            for case in problem.timed_cases
        ),
        **times,
    )


def _half_width(one: Recorded, other: Recorded) -> float:
    """Half of the 95% interval of the log2 ratio of two recorded times."""
    assert one.runtime_s is not None
    assert other.runtime_s is not None
    relative = math.hypot(one.std_s / one.runtime_s, other.std_s / other.runtime_s)
    return _INTERVAL * relative / math.log(2)


def _key(kernel: str | Parameters) -> str:
    return kernel if isinstance(kernel, str) else canonical_parameters(kernel)
