from __future__ import annotations

import threading
from typing import Any

import pytest

from kernelcast.farm.local import LocalFarm
from kernelcast.protocols import Backend
from kernelcast.testing import (
    BackendContract,
    FarmContract,
    SyntheticBackend,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Effort, Job, Kernel, Measurement, Problem


class TestLocalFarm(FarmContract):
    def make(self, backend: Backend, slots: int) -> Any:
        return LocalFarm(backend, slots)


class TestLocalFarmOfOneSlot(FarmContract):
    slots = 1

    def make(self, backend: Backend, slots: int) -> Any:
        return LocalFarm(backend, slots)


class TestSyntheticBackend(BackendContract):
    """The fake that farms are tested on keeps the contract of the real thing."""

    def make(self) -> Backend:
        return SyntheticBackend()


class WitnessBackend(SyntheticBackend):
    """Notes where and with what it is called, and that it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int] = []
        self.efforts: list[Effort] = []
        self.threads: set[str] = set()
        self.closed = 0

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        self.seeds.append(seed)
        self.efforts.append(effort)
        self.threads.add(threading.current_thread().name)
        return super().measure(problem, kernel, seed, effort)

    def close(self) -> None:
        self.closed += 1


def test_the_seed_reaches_the_backend_on_a_device_thread() -> None:
    backend, (kernel,) = WitnessBackend(), synthetic_kernels(1)
    farm = LocalFarm(backend)
    job = Job(entry="search-0", purpose="search", kernel=kernel, seed=4711)
    farm.submit(synthetic_problem(), job).result(timeout=300)
    farm.close()
    assert backend.seeds == [4711]
    assert {name.rsplit("_", 1)[0] for name in backend.threads} == {"device"}
    assert backend.closed == 1


def test_the_purpose_of_a_job_decides_the_effort() -> None:
    backend, (kernel,) = WitnessBackend(), synthetic_kernels(1)
    farm = LocalFarm(backend)
    purposes: tuple[Any, ...] = ("search", "reference", "confirmation")
    for purpose in purposes:
        job = Job(entry=purpose, purpose=purpose, kernel=kernel, seed=1)
        measurement = farm.submit(synthetic_problem(), job).result(timeout=300)
        assert isinstance(measurement, Measurement)
        assert measurement.effort == job.effort
    farm.close()
    assert backend.efforts == ["screening", "normal", "final"]


def test_a_farm_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        LocalFarm(SyntheticBackend(), slots=0)
