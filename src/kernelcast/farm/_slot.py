"""The process that owns a device slot of a Ray node.

It holds a lock of its machine for as long as it lives. The kernel gives the lock back when no
thread of the process runs any more, so a slot's lock says what no message can: that nothing of the
old process uses the device.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernelcast import plugins
from kernelcast.backends._preflight import pin
from kernelcast.canonical import as_kernel
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.farm._health import Health
from kernelcast.locks import FileLocks
from kernelcast.protocols import Backend
from kernelcast.types import Job, Kernel, Loss, Measurement, Problem

NAMESPACE = "kernelcast"
"""The Ray namespace of the registry and of the slots."""
CANCELLED = "it was cancelled"
CONTROL = "control"
"""The concurrency group of calls that do not wait for a slot's work."""
_BACKENDS = 4  # that a slot keeps built
_KEPT = 256  # results of a slot that no driver has acknowledged

Method = Literal["describe", "quote", "inspect", "measure"]
Place = tuple[str, str, int]
"""Where a result is kept: its run, its entry and the session that ordered it."""


class Order(NamedTuple):
    """One piece of work. Backend and problem are named by hashes; a slot is sent each of them once.

    `taken`: the places of earlier results of this slot that it need not keep any longer.
    """

    method: Method
    session: int
    backend: str
    problem: str = ""
    kernel: Kernel | None = None
    job: Job | None = None
    taken: tuple[Place, ...] = ()


class Unknown(NamedTuple):
    """The answer to an order whose backend or problem the slot does not have."""


class Sick(NamedTuple):
    """The answer to a job on a slot whose measurements are not believed."""

    reason: str


class Slot:
    """Works on one order at a time for all searches, and keeps results until they are taken.

    Args:
        node: Name of the node.
        index: Number of the slot on its node.
        slots: Number of slots of the node.
    """

    def __init__(self, node: str, index: int, slots: int = 1) -> None:
        pin(index, slots)
        for name in [name for name in os.environ if name.endswith("_API_KEY")]:
            del os.environ[name]
        self.name = f"{node}/{index}"
        self._lock = seize(node, index)
        self._backends: dict[str, Backend] = {}
        self._problems: dict[str, Problem] = {}
        self._kept: dict[Place, Future[Any]] = {}
        self._withdrawn: set[Place] = set()
        self._sessions: dict[str, int] = {}
        self._health = Health()
        self._since_check: dict[Place, None] = {}
        self._latest: tuple[Backend, Problem] | None = None

    def ready(self) -> int:
        """Return the id of this process, when the work before this call has ended."""
        return os.getpid()

    def work(self, order: Order, backend: Any = None, problem: Problem | None = None) -> Any:
        """Do what an order asks for. A broken set-up is returned as a `SetupError`.

        Args:
            order: The order.
            backend: Its backend, or the spec of it, if this slot may not have it.
            problem: Its problem, if this slot may not have it.
        """
        for place in order.taken:
            self._kept.pop(place, None)
        if problem is not None:
            self._problems[problem.id] = problem
        if order.job is None:
            return self._answer(order, backend)
        place = (order.job.run, order.job.entry, order.session)
        if order.session < self._sessions.get(order.job.run, 0):
            return Loss(reason="another driver has taken the run over")
        if place in self._withdrawn:
            self._withdrawn.remove(place)
            return Loss(reason=CANCELLED)
        result = self._kept[place] = Future()
        answer = Sick(self._health.reason) if self._health.reason else self._answer(order, backend)
        if isinstance(answer, Measurement):
            answer = self._judged(place, answer)
        result.set_result(answer)
        if isinstance(answer, Unknown | Sick):
            self._kept.pop(place, None)
        if len(self._kept) > _KEPT:
            for old, kept in list(self._kept.items())[:-_KEPT]:
                if kept.done():
                    self._kept.pop(old, None)
        return answer

    def _judged(self, place: Place, measurement: Measurement) -> Measurement | Sick:
        """Return a measurement with this slot's name, unless it shows that the slot is sick."""
        if self._health.see(measurement):
            self._since_check.clear()
        if self._health.reason:
            return Sick(self._health.reason)
        self._since_check[place] = None
        return measurement.model_copy(update={"slot": self.name})

    def doubts(self) -> list[Place]:
        """Return what this slot has measured since its last good check."""
        return list(self._since_check)

    def recheck(self) -> str:
        """Time the latest reference against itself; return why this slot is not believed, or ""."""
        if self._latest is not None:
            backend, problem = self._latest
            seed = as_kernel(problem.seed_source, problem.language)
            try:
                measurement = backend.measure(problem, seed, time.time_ns())
            except SetupError as error:
                return str(error)
            if self._health.see(measurement):
                self._since_check.clear()
        return self._health.reason

    def _answer(self, order: Order, backend: Any) -> Any:
        try:
            if backend is not None and order.backend not in self._backends:
                self._backends[order.backend] = built(backend)
                if len(self._backends) > _BACKENDS:
                    self._backends.pop(next(iter(self._backends))).close()
            if order.backend not in self._backends:
                return Unknown()
            backend = self._backends[order.backend]
            if order.method == "describe":
                return backend.device, backend.toolchain
            if order.problem not in self._problems:
                return Unknown()
            problem = self._problems[order.problem]
            if order.method == "quote":
                return backend.quote(problem)
            if order.job is None:
                return backend.inspect(problem, order.kernel)
            job, self._latest = order.job, (backend, problem)
            return backend.measure(problem, job.kernel, job.seed, job.effort)
        except SetupError as error:
            return error
        except Exception as error:
            return SetupError(f"{self.name}: {type(error).__name__}: {error}")

    def withdraw(self, place: Place) -> bool:
        """Skip a job that waits; return False if it has begun."""
        if place in self._kept:
            return False
        self._withdrawn.add(place)
        return True

    def adopt(self, run: str, session: int) -> dict[Place, bool]:
        """Return the jobs of a run, and whether each has ended.

        Orders of the run's earlier sessions that have not begun are refused from now on.
        """
        self._sessions[run] = session
        kept = list(self._kept.items())  # the slot's thread may add one meanwhile
        return {place: result.done() for place, result in kept if place[0] == run}

    def collect(self, place: Place) -> Any:
        """Return the result of a job when it has ended."""
        kept = self._kept.get(place)
        return Loss(reason="its result was not kept") if kept is None else kept.result()


def built(backend: Backend | ComponentSpec) -> Backend:
    """Return a backend, built here if it is a spec."""
    if not isinstance(backend, ComponentSpec):
        return backend
    part: Backend = plugins.build("backend", backend)
    return part


def seize(node: str, index: int) -> FileLocks:
    """Take the lock of a slot of this machine, and end the process that has it.

    The children of that process are ended too. On return they are seen dead.
    """
    from ray import get_runtime_context

    session = get_runtime_context().get_session_name()
    folder = Path(tempfile.gettempdir()) / f"kernelcast-{os.getuid()}" / session
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks = FileLocks(folder / f"{node}-{index}.slot")
    ended: set[int] = set()
    while not locks.take(0):
        if pid := locks.owner(0):
            ended |= _end(pid)
        time.sleep(0.01)
    while any(_alive(pid) for pid in ended):
        time.sleep(0.01)
    return locks


def _end(pid: int) -> set[int]:
    """Kill a process and its descendants, children last."""
    family = [pid]
    for member in family:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            with suppress(OSError):
                family += map(int, children.read_text().split())
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    return set(family)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
