"""Device slots of this machine: one thread each; kernels run in the backend's processes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from kernelcast import plugins
from kernelcast.events import ComponentSpec
from kernelcast.protocols import Backend, Farm
from kernelcast.types import Device, Evidence, Job, Kernel, Loss, Measurement, Problem, Spend


class LocalFarm:
    """Runs jobs on a backend, or the one that a spec names, with `slots` threads.

    A job compiles in its slot: on a CPU, a compiler beside a measurement would disturb it. Evidence
    is compiled in a slot of a CPU too, but beside the slots of any other device.
    """

    def __init__(self, backend: Backend | ComponentSpec, slots: int = 1) -> None:
        self.slots = slots
        self._backend: Backend = (
            plugins.build("backend", backend) if isinstance(backend, ComponentSpec) else backend
        )
        self._withdrawn: set[str] = set()
        self._threads = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="device")
        self._compilers = self._threads
        if self.device.kind != "cpu":
            self._compilers = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="compile")

    @property
    def others(self) -> tuple[Farm, ...]:
        """No other devices."""
        return ()

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

    def inspect(self, problem: Problem, kernel: Kernel) -> Future[Evidence]:
        """Queue a kernel to be compiled only."""
        return self._compilers.submit(self._backend.inspect, problem, kernel)

    def submit(self, problem: Problem, job: Job) -> Future[Measurement | Loss]:
        """Queue a job for the next free slot."""
        return self._threads.submit(self._measure, problem, job)

    def _measure(self, problem: Problem, job: Job) -> Measurement | Loss:
        if job.entry not in self._withdrawn:
            measurement = self._backend.measure(problem, job.kernel, job.seed, job.effort)
            if job.entry not in self._withdrawn:
                return measurement
        return Loss(reason="it was cancelled")

    def cancel(self, entry: str) -> None:
        """Withdraw a job. One that is under way ends by the backend's own limits."""
        self._withdrawn.add(entry)

    def adopt(self, run: str) -> dict[str, Future[Measurement | Loss]]:
        """Return no job: a slot is a thread, which ends with its process."""
        del run
        return {}

    def doubted(self) -> dict[str, str]:
        """Return nothing: each measurement carries the noise and the conditions of this machine."""
        return {}

    def compare(self, first: Measurement, second: Measurement) -> None:
        """Do nothing: there is one node."""

    def close(self) -> None:
        """Cancel waiting jobs, wait for running ones, and end the backend's processes."""
        for threads in (self._compilers, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)
        self._backend.close()
