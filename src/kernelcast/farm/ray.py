"""Device slots of a Ray cluster, shared with other searches.

Jobs go straight to the actors that own the slots. One thread of the driver does all the
bookkeeping: callers, results and answers of the registry put calls into its inbox. A loss is
reported when the registry has seen the slot's process dead.
"""

from __future__ import annotations

import hashlib
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernelcast.errors import SetupError, import_extra
from kernelcast.events import ComponentSpec
from kernelcast.farm import _credentials, _registry
from kernelcast.farm._health import disagree
from kernelcast.farm._registry import BEAT_S, Grant, Handle
from kernelcast.farm._slot import CANCELLED, CONTROL, Method, Order, Place, Sick, Unknown, built
from kernelcast.protocols import Backend
from kernelcast.types import (
    Device,
    Evidence,
    Job,
    Kernel,
    Loss,
    Measurement,
    Problem,
    Resource,
    Spend,
)

_MEMORY_S = 5.0  # for which a driver says that it could use the slots that it used
_QUICK_S = 2.0  # a slot whose jobs are quicker than this is sent the next one ahead
_KEEP_S = 5.0  # after which a driver is thought to have stored a result
_ANSWER_S = 30.0  # for which a slot may be silent when it is asked what it has
_OTHER_LEASE_S = 600.0  # of work that is no job
_RESTART_S = 180.0  # for which the registry may not answer
_DEATHS = 3  # of workers under work that is no job, after which the set-up is broken


@dataclass(eq=False)
class _Work:
    method: Method
    future: Future[Any]
    problem: Problem | None = None
    kernel: Kernel | None = None
    job: Job | None = None
    place: Place | None = None  # of a job's result
    adopted: bool = False
    ended: bool = False  # it was adopted, and no process works on it
    withdrawn: bool = False
    recalled: bool = False
    deaths: int = 0


@dataclass(eq=False)
class _Held:
    """A slot that this driver has work on; the first of `works` is under way."""

    handle: Handle
    granted: bool = True
    works: deque[_Work] = field(default_factory=deque)
    since_s: float = 0.0
    quick: bool = False
    lost: str = ""
    knows: set[str] = field(default_factory=set)
    taken: deque[tuple[float, Place]] = field(default_factory=deque)


class RayFarm:
    """Runs jobs on the slots of a Ray cluster that the registry grants to this search.

    A job ahead of its slot waits in the driver, but for one at each slot that is quick.

    Args:
        backend: The backend, or the spec of it, which each slot builds.
        slots: The most slots to use; 0 is as many as the fair share.
        address: Address of the cluster.
        device: Type of device, as the nodes declare it; needed if there are several. After a
            comma, further types: what runs on the first is measured on each of them too.
        lease_s: Seconds after which a job is lost and its worker killed; by default 60 more than
            twice the quoted device seconds.

    Raises:
        SetupError: There is no cluster, it has no such device, or the backend cannot be built.
    """

    def __init__(
        self,
        backend: Backend | ComponentSpec,
        slots: int = 0,
        address: str = "auto",
        device: str = "",
        lease_s: float = 0.0,
    ) -> None:
        if slots < 0:
            raise ValueError("a farm has 0 slots or more")
        _credentials.load()
        self._ray = import_extra("ray", "ray")
        self._backend = backend
        self._device: Device
        self._toolchain: str
        self._backend_id = hashlib.sha256(pickle.dumps(backend)).hexdigest()
        self._most = slots
        self._lease_s = lease_s
        self._run_name = ""
        self._quotes: dict[str, Spend] = {}
        self._objects: dict[str, Any] = {}
        self.stale = 0
        """Number of results that came after their loss was reported."""
        self.others: tuple[RayFarm, ...] = ()
        """Farms of the further types of device."""
        self._registry = _registry.connect(self._ray, address)
        device, *further = device.split(",")
        self._session, self._type = self._get(self._registry.open, device)
        self._waiting: deque[_Work] = deque()
        self._held: dict[str, _Held] = {}
        self._sick: dict[str, str] = {}
        self._doubted: dict[str, str] = {}
        self._reported: set[str] = set()
        self._used: deque[tuple[float, int]] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asked_s = 0.0
        self._beat_s = BEAT_S
        self._asking = self._closing = self._urgent = False
        self._share: int = self._get(self._registry.sync, *self._message()).share
        self._pump = threading.Thread(target=self._run, name="ray-farm", daemon=True)
        self._pump.start()
        try:
            self._device, self._toolchain = self._ask("describe").result()
            for name in further:
                self.others += (RayFarm(backend, slots, address, name, lease_s),)
            ids = [farm.device.id for farm in (self, *self.others)]
            if len(set(ids)) < len(ids):
                raise SetupError(f"farm.device names one device twice: {', '.join(ids)}")
        except BaseException:  # includes Ctrl-C: the slots are given back
            self.close()
            raise

    # ---------------------------------------------------------------------------- for the search

    @property
    def device(self) -> Device:
        """The device that all slots share."""
        return self._device

    @property
    def toolchain(self) -> str:
        """The backend's toolchain."""
        return self._toolchain

    @property
    def slots(self) -> int:
        """The fair share of this search: it changes as others come and go."""
        return min(self._most, self._share) if self._most else self._share

    def quote(self, problem: Problem) -> Spend:
        """Return the most that one job can cost."""
        if problem.id not in self._quotes:
            self._quotes[problem.id] = self._ask("quote", problem).result()
        return self._quotes[problem.id]

    def inspect(self, problem: Problem, kernel: Kernel) -> Future[Evidence]:
        """Queue a kernel to be compiled only: on any CPU, or in a slot if the device is a CPU."""
        if self.device.kind == "cpu":
            return self._ask("inspect", problem, kernel)
        if problem.id not in self._objects:
            self._objects[problem.id] = self._ray.put((self._backend, problem))
        task = self._ray.remote(num_cpus=1)(_inspect)
        compiling = task.remote(self._backend_id, self._objects[problem.id], kernel).future()
        future: Future[Evidence] = Future()
        compiling.add_done_callback(lambda ended: _resolve(future, _value(ended)))
        return future

    def submit(self, problem: Problem, job: Job) -> Future[Measurement | Loss]:
        """Queue a job for the next slot."""
        return self._ask("measure", problem, job.kernel, job)

    def cancel(self, entry: str) -> None:
        """Withdraw a job; if it is under way, its worker is killed."""
        self._inbox.put(partial(self._cancel, entry))

    def adopt(self, run: str) -> dict[str, Future[Measurement | Loss]]:
        """Return the jobs of a run that slots work on, or whose results they keep.

        A job that the earlier driver had sent ahead, and that has not begun, will not.
        """
        handles = self._get(self._registry.places, self._type)
        asked = {
            handle.actor.adopt.options(concurrency_group=CONTROL).remote(run, self._session): handle
            for handle in {handle.actor: handle for handle in handles}.values()
        }
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
        futures: dict[str, Future[Measurement | Loss]] = {}
        for answer in answered:
            try:
                places = self._ray.get(answer)
            except self._ray.exceptions.RayError:
                continue  # the slot has died, and its results with it
            for place, ended in places.items():
                future = futures[place[1]] = Future()
                work = _Work("measure", future, place=place, adopted=True, ended=ended)
                self._inbox.put(partial(self._collect, asked[answer], work))
        return futures

    def doubted(self) -> dict[str, str]:
        """Return the entries of the run that slots measured which are not believed any more."""
        doubted = self._doubted
        new = {entry: doubted[entry] for entry in doubted if entry not in self._reported}
        self._reported |= set(new)
        return new

    def compare(self, first: Measurement, second: Measurement) -> None:
        """Tell the registry whether two nodes agree."""
        self._registry.compare.remote(first.node, second.node, agree=not disagree(first, second))

    def close(self) -> None:
        """Cancel the jobs of this search, give its slots back and leave the cluster as it is."""
        self._inbox.put(self._close)
        for farm in self.others:
            farm.close()
        self._pump.join()

    # --------------------------------------------------------------------------- on its one thread

    def _ask(
        self,
        method: Method,
        problem: Problem | None = None,
        kernel: Kernel | None = None,
        job: Job | None = None,
    ) -> Future[Any]:
        work = _Work(method, Future(), problem, kernel, job)
        if job is not None:
            work.place = (job.run, job.entry, self._session)
            self._run_name = job.run
        self._inbox.put(partial(self._admit, work))
        return work.future

    def _get(self, call: Any, *arguments: Any) -> Any:
        """Call the registry, again while it is being started anew."""
        deadline_s = time.monotonic() + _RESTART_S
        while True:
            try:
                return self._ray.get(call.remote(*arguments))
            except self._ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, SetupError) else error) from None
            except self._ray.exceptions.RayActorError as error:
                if time.monotonic() > deadline_s:
                    raise SetupError(
                        f"the registry of the Ray cluster does not answer ({error}): look at the "
                        "head node, or start the cluster again"
                    ) from error
                time.sleep(BEAT_S)

    def _run(self) -> None:
        while not (self._closing and not any(held.works for held in self._held.values())):
            try:
                self._inbox.get(timeout=self._beat_s)()
                while True:
                    self._inbox.get_nowait()()
            except queue.Empty:
                pass
            self._dispatch()
            self._beat()
        self._registry.leave.remote(self._session)

    def _beat(self) -> None:
        """Lose the work whose lease has run out, and ask the registry for slots."""
        now = time.monotonic()
        if self._asking or (now - self._asked_s < self._beat_s and not self._urgent):
            return
        for held in self._held.values():
            if held.works and not held.lost and now - held.since_s > self._lease(held.works[0]):
                held.lost = "its lease ran out"
        self._asking, self._urgent, self._asked_s = True, False, now
        asking = self._registry.sync.remote(*self._message(), self._sick).future()
        self._sick = {}
        asking.add_done_callback(lambda ended: self._inbox.put(partial(self._granted, ended)))

    def _message(self) -> tuple[Any, ...]:
        now = time.monotonic()
        works = len(self._waiting) + sum(len(held.works) for held in self._held.values())
        self._used.append((now, works))
        while now - self._used[0][0] > _MEMORY_S:
            self._used.popleft()
        wanted = 0 if self._closing else max(works for _, works in self._used)
        return (
            self._session,
            self._type,
            min(wanted, self._most) if self._most else wanted,
            [key for key, held in self._held.items() if held.granted and not held.lost],
            [key for key, held in self._held.items() if held.lost],
            max([0.0, *(self._lease(held.works[0]) for held in self._held.values() if held.works)]),
            self._run_name,
        )

    def _lease(self, work: _Work) -> float:
        """Return the seconds that some work may take; an adopted job's problem is not known."""
        quote = self._quotes.get(work.problem.id) if work.problem else None
        if work.method != "measure" or (quote is None and not self._lease_s):
            return _OTHER_LEASE_S
        return self._lease_s or 2.0 * (quote or {}).get(Resource.DEVICE_S, 0.0) + 60.0

    def _granted(self, ended: Future[Any]) -> None:
        self._asking = False
        if ended.exception() is not None:
            return  # the registry is being started again
        grant: Grant = ended.result()
        self._share, self._beat_s, self._doubted = grant.share, grant.beat_s, grant.doubted
        for key, node_lives in grant.ended.items():
            self._bury(self._held.pop(key), node_lives=node_lives)
        for handle in grant.slots:
            self._held.setdefault(handle.id, _Held(handle)).granted = True
        for key in grant.leave & set(self._held):
            self._held[key].granted = False
            self._release(self._held[key])

    def _release(self, held: _Held) -> None:
        """Give a slot back that has nothing left to do, if it is to be left."""
        if not held.works and not held.granted and not held.lost:
            del self._held[held.handle.id]
            self._urgent = True

    def _admit(self, work: _Work) -> None:
        if self._closing:
            work.future.cancel()
            return
        self._waiting.append(work)
        self._urgent = self._urgent or not self._held

    def _dispatch(self) -> None:
        usable = [held for held in self._held.values() if held.granted and not held.lost]
        for ahead in (0, 1):
            for held in usable:
                if len(held.works) == ahead <= held.quick and (work := self._next(held, usable)):
                    self._waiting.remove(work)
                    self._send(held, work)
        idle = sum(not held.works for held in usable)
        for held in self._held.values():
            # What waits at a slot is called back if another slot is idle, or this one is left.
            stuck = len(held.works) > 1 and time.monotonic() - held.since_s > _QUICK_S
            if stuck and not held.lost and (idle > 0 or not held.granted):
                idle -= 1
                self._recall(held, held.works[-1])

    def _next(self, held: _Held, usable: Sequence[_Held]) -> _Work | None:
        """Return the first work that waits and need not be done by another node."""
        for work in self._waiting:
            avoid = work.job.avoid if work.job else ""
            if avoid != held.handle.node or all(other.handle.node == avoid for other in usable):
                return work
        return None

    def _send(self, held: _Held, work: _Work) -> None:
        now = time.monotonic()
        taken = []
        while held.taken and now - held.taken[0][0] > _KEEP_S:
            taken.append(held.taken.popleft()[1])
        problem = work.problem.id if work.problem else ""
        kernel = None if work.job else work.kernel
        order = Order(
            work.method, self._session, self._backend_id, problem, kernel, work.job, tuple(taken)
        )
        # What a slot knows already is not sent again.
        sent = [
            value if key and key not in held.knows else None
            for key, value in ((self._backend_id, self._backend), (problem, work.problem))
        ]
        held.knows |= {self._backend_id, problem}
        self._call(held, work, "work", order, *sent)

    def _collect(self, handle: Handle, work: _Work) -> None:
        held = self._held.setdefault(handle.id, _Held(handle, granted=False))
        self._call(held, work, "collect", work.place)

    def _call(self, held: _Held, work: _Work, method: str, *arguments: Any) -> None:
        if not held.works:
            held.since_s = time.monotonic()
        held.works.append(work)
        call = getattr(held.handle.actor, method).options(concurrency_group=held.handle.group)
        running = call.remote(*arguments).future()
        running.add_done_callback(
            lambda ended: self._inbox.put(partial(self._ended, held, work, ended))
        )

    def _ended(self, held: _Held, work: _Work, ended: Future[Any]) -> None:
        if held.lost or work not in held.works:
            self.stale += isinstance(_value(ended), Measurement)
            return
        value = _value(ended)
        if value is None:
            held.lost, self._urgent = "its worker died", True
            return
        now = time.monotonic()
        held.works.remove(work)
        held.quick = work.job is not None and now - held.since_s < _QUICK_S
        held.since_s = now
        if isinstance(value, Unknown):
            held.knows.clear()
            self._send(held, work)
            return
        if isinstance(value, Sick):
            self._sick[held.handle.id], held.granted, self._urgent = value.reason, False, True
            if work.adopted:
                _resolve(work.future, Loss(reason=value.reason))
            else:
                self._waiting.appendleft(work)
            self._release(held)
            return
        if work.place:
            held.taken.append((now, work.place))
        if isinstance(value, Measurement) and value.device_id != self._device.id:
            value = SetupError(
                f"slot {held.handle.group} of node {held.handle.node} measures on "
                f"{value.device_id}, other slots of {self._type!r} on {self._device.id}: give the "
                f"nodes different labels {_registry.DEVICE}"
            )
        _resolve(work.future, value)
        self._release(held)

    def _bury(self, held: _Held, *, node_lives: bool) -> None:
        """Report the losses of a slot whose process is dead; what had not begun waits again."""
        for begun, work in reversed([(not index, w) for index, w in enumerate(held.works)]):
            if work.withdrawn:
                _resolve(work.future, Loss(reason=CANCELLED))
            elif work.adopted or (begun and work.job):
                suspect = node_lives and begun
                reason = held.lost if node_lives else "its node was lost"
                _resolve(work.future, Loss(reason=reason, suspect=suspect))
            elif work.deaths + begun >= _DEATHS:
                message = f"{work.method} ended {_DEATHS} workers, the last on {held.handle.node}"
                _resolve(work.future, SetupError(message))
            else:
                work.deaths += begun
                self._waiting.appendleft(work)
        held.works.clear()

    def _cancel(self, entry: str) -> None:
        for work in [w for w in self._waiting if w.job and w.job.entry == entry]:
            self._waiting.remove(work)
            _resolve(work.future, Loss(reason=CANCELLED))
        for held in list(self._held.values()):
            for index, work in enumerate(list(held.works)):
                if work.place and work.place[1] == entry:
                    self._withdraw(held, work, begun=index == 0)

    def _withdraw(self, held: _Held, work: _Work, *, begun: bool) -> None:
        work.withdrawn = True
        if work.ended:
            held.works.remove(work)
            _resolve(work.future, Loss(reason=CANCELLED))
            self._release(held)
        elif begun:
            held.lost, self._urgent = held.lost or CANCELLED, True
        else:
            self._recall(held, work)

    def _recall(self, held: _Held, work: _Work) -> None:
        """Ask a slot not to begin a job."""
        if work.place and not work.recalled:
            work.recalled = True
            call = held.handle.actor.withdraw.options(concurrency_group=CONTROL)
            call.remote(work.place).future().add_done_callback(
                lambda ended: self._inbox.put(partial(self._called_back, held, work, ended))
            )

    def _called_back(self, held: _Held, work: _Work, ended: Future[Any]) -> None:
        if ended.exception() is not None or work not in held.works:
            return
        if not ended.result():  # it has begun
            if work.withdrawn:
                held.lost, self._urgent = held.lost or CANCELLED, True
            return
        held.works.remove(work)
        if work.withdrawn:
            _resolve(work.future, Loss(reason=CANCELLED))
        else:
            work.recalled = False
            self._waiting.appendleft(work)
        self._release(held)

    def _close(self) -> None:
        self._closing = self._urgent = True
        for work in self._waiting:
            work.future.cancel()
        self._waiting.clear()
        for held in self._held.values():
            for index, work in enumerate(held.works):
                work.withdrawn, held.lost = True, held.lost or CANCELLED
                if index:
                    work.future.cancel()


def _value(ended: Future[Any]) -> Any:
    """Return what a call to a slot returned, or why it could not, or None if its process died."""
    from ray.exceptions import RayTaskError

    error = ended.exception()
    if error is None:
        return ended.result()
    if isinstance(error, RayTaskError):
        return SetupError(f"a Ray worker cannot do its work: {error}")
    return None


def _resolve(future: Future[Any], value: Any) -> None:
    """Give a future its value, unless its holder has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(value, BaseException):
        future.set_exception(value)
    elif value is None:
        future.set_exception(SetupError("Ray lost a compilation several times: see its logs"))
    else:
        future.set_result(value)


_built: dict[str, Backend] = {}


def _inspect(key: str, parts: tuple[Backend | ComponentSpec, Problem], kernel: Kernel) -> Any:
    """Compile a kernel in a worker of any node."""
    try:
        if key not in _built:
            _built[key] = built(parts[0])
        return _built[key].inspect(parts[1], kernel)
    except SetupError as error:
        return error
