"""Device slots of this machine: one thread each; kernels run in the backend's processes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from kernelcast.protocols import Backend
from kernelcast.types import Device, Evidence, Job, Kernel, Measurement, Problem, Spend


class LocalFarm:
    """Runs jobs on a backend with `slots` threads.

    A job compiles in its slot: on a CPU, a compiler beside a measurement would disturb it.
    """

    def __init__(self, backend: Backend, slots: int = 1) -> None:
        self.slots = slots
        self._backend = backend
        self._threads = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="device")

    @property
    def device(self) -> Device:
        """The device that all slots share."""
        return self._backend.device

    @property
    def toolchain(self) -> str:
        """The backend's toolchain."""
        return self._backend.toolchain

    def quote(self, problem: Problem) -> Spend:
        """Return the most that one job can cost."""
        return self._backend.quote(problem)

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only, in the caller's thread."""
        return self._backend.inspect(problem, kernel)

    def submit(self, problem: Problem, job: Job) -> Future[Measurement]:
        """Queue a job for the next free slot."""
        return self._threads.submit(
            self._backend.measure, problem, job.kernel, job.seed, job.effort
        )

    def close(self) -> None:
        """Cancel waiting jobs, wait for running ones, and end the backend's processes."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._backend.close()
