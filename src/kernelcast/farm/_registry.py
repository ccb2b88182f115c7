"""The slots of a Ray cluster, and which search may use which: one detached actor a cluster.

It does not see jobs. A driver says a few times a second what it holds and how much it could use; it
is told which slots it may use, and which to give back when their present work has ended.
"""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernelcast.errors import SetupError, import_extra
from kernelcast.farm._slot import CONTROL, NAMESPACE, Slot, seize

UNIT = "kernelcast_slot"
"""The Ray resource of which a node has one unit a device slot."""
DEVICE = "kernelcast-device"
"""The Ray label that names the type of a node's devices."""
SHARED = "kernelcast-shared"
"""The Ray label that says how many slots of a node share a process; for slots that only wait."""
NAME = "registry"
REFUSED = (
    "the cluster refuses this machine's token: copy the first node's ~/.kernelcast/farm/token, or "
    "name it by RAY_AUTH_TOKEN_PATH"
)
BEAT_S = 0.25
"""Between two messages of a driver to the registry, if there are few drivers."""
_BEATS_PER_S = 100  # messages of all drivers together, but for urgent ones
_SLOWEST_BEAT_S = 3.0
_SILENCE_S = 15.0  # after which a driver's slots are given to others
_TURN_S = 20.0  # after which slots that cannot be divided evenly pass on
_RECHECK_S = 10.0  # between two checks of a slot that is not believed
_COMPARED = 20  # latest comparisons of a node
_DISPUTES = 3  # after which a node may not be believed any more
_NODES_S = 1.0  # between two looks at the cluster's nodes


class Handle(NamedTuple):
    """A slot as drivers know it: the actor, and the actor's concurrency group that is the slot."""

    id: str
    node: str
    actor: Any
    group: str


class Grant(NamedTuple):
    """The answer to a driver.

    `slots`: those that it may use. `leave`: those that it gives back when their work has ended.
    `ended`: those of its lost slots whose process is dead, and whether their node is alive.
    `share`: the number of slots that it may count on. `beat_s`: the time to its next message.
    `doubted`: entries of its run whose results are not believed any more, with the reasons.
    """

    slots: list[Handle]
    leave: set[str]
    ended: dict[str, bool]
    share: int
    beat_s: float
    doubted: dict[str, str]


@dataclass(eq=False)
class _Slot:
    handle: Handle
    process: str
    device: str
    node: str
    index: int
    session: int = 0
    ending: bool = False
    check: Any = None  # a call that returns when the slot is free or, if it is ending, dead
    limit_s: float = float("inf")  # the time at which the check is given up
    leave: bool = False
    sick: str = ""  # why its measurements are not believed
    recheck_s: float = float("inf")


@dataclass(eq=False)
class _Session:
    device: str
    run: str = ""
    wanted: int = 0
    lease_s: float = 60.0
    seen_s: float = field(default_factory=time.monotonic)


class Registry:
    """Makes a slot for each unit that a node declares, and shares the slots fairly."""

    def __init__(self) -> None:
        self._ray = import_extra("ray", "ray")
        self._slots: dict[str, _Slot] = {}
        self._sessions: dict[int, _Session] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._looked_s = float("-inf")
        self._drained: set[str] = set()
        self._doubted: dict[str, dict[str, str]] = {}  # by run: entries, and why
        self._compared: dict[str, deque[tuple[str, bool]]] = {}  # by node: with which, and agreed
        self._look()

    def open(self, device: str) -> tuple[int, str]:
        """Return the number of a new session, and the type of its devices.

        Raises:
            SetupError: The cluster has no such device, or several types and none is named.
        """
        self._look()
        types = {self._device(node) for node in self._nodes.values() if self._units(node)}
        listed = ", ".join(sorted(types)) or "none"
        if not types or (device and device not in types):
            raise SetupError(
                f"the Ray cluster has no slots of device {device or 'any'!r} (it has: {listed}): "
                "add a node by `kernelcast farm join`, or by "
                f"ray start --resources '{{\"{UNIT}\": 1}}' --labels {DEVICE}=NAME"
            )
        if not device and len(types) > 1:
            raise SetupError(
                f"the Ray cluster has several devices, name one as farm.device: {listed}"
            )
        session = time.time_ns()
        self._sessions[session] = _Session(device or listed)
        return session, device or listed

    def sync(
        self,
        session: int,
        device: str,
        wanted: int,
        holding: Sequence[str],
        lost: Sequence[str],
        lease_s: float,
        run: str = "",
        sick: Mapping[str, str] | None = None,
    ) -> Grant:
        """Note that a driver is alive, what it holds and what it could use.

        Args:
            session: The driver's session.
            device: Type of its devices.
            wanted: Number of slots that it could use now.
            holding: The slots that it uses. One that it was given before and does not name is free.
            lost: Slots whose process is to be ended, or has ended.
            lease_s: The most that one of its jobs may take.
            run: Name of its run.
            sick: Slots that said that they are not to be believed, and why.
        """
        now = time.monotonic()
        own = self._sessions.setdefault(session, _Session(device))
        own.wanted, own.lease_s, own.seen_s, own.run = wanted, lease_s, now, run
        for key in lost:
            if key in self._slots:
                self._end(self._slots[key])
        for key, reason in (sick or {}).items():
            if key in self._slots:
                self._quarantine(self._slots[key], reason)
        for slot in self._slots.values():
            if slot.session == session and slot.handle.id not in holding and not slot.ending:
                self._free(slot)
        self._tick(now)
        for key in holding:  # after a restart of the registry, what drivers hold is theirs
            known = self._slots.get(key)
            if known is not None and not known.session and not known.ending:
                known.session = session
        self._divide(device, now)
        mine = [s for s in self._slots.values() if s.session == session and not s.ending]
        kept = {slot.handle.id: slot.handle for slot in mine if not (slot.leave or slot.sick)}
        return Grant(
            slots=list(kept.values()),
            leave=set(holding) - set(kept),
            ended={k: k.split(".")[0] in self._nodes for k in lost if k not in self._slots},
            share=self._share(device, session),
            beat_s=min(max(BEAT_S, len(self._sessions) / _BEATS_PER_S), _SLOWEST_BEAT_S),
            doubted=self._doubted.get(run, {}),
        )

    def leave(self, session: int) -> None:
        """End a session: its slots are free."""
        ended = self._sessions.pop(session, None)
        if ended is not None:
            self._doubted.pop(ended.run, None)
        for slot in self._slots.values():
            if slot.session == session and not slot.ending:
                self._free(slot)

    def compare(self, first: str, second: str, *, agree: bool) -> None:
        """Note whether two nodes agree on a kernel.

        A node that two others contradict, more often than not, is given no more work. It may be
        faulty or lie, and a check of its own noise proves nothing then: it stays out until it
        joins again.
        """
        for node, other in ((first, second), (second, first)):
            compared = self._compared.setdefault(node, deque(maxlen=_COMPARED))
            compared.append((other, agree))
            if reason := self._contradicted(node):
                for slot in self._slots.values():
                    if slot.handle.node == node:
                        self._quarantine(slot, reason, recheck=False)

    def _contradicted(self, node: str) -> str:
        """Return why a node is not believed, or ""."""
        compared = self._compared.get(node, ())
        against = [other for other, agree in compared if not agree]
        if len(against) < _DISPUTES or 2 * len(against) <= len(compared) or len(set(against)) == 1:
            return ""
        return f"it disagrees with the nodes {', '.join(sorted(set(against)))}"

    def places(self, device: str) -> list[Handle]:
        """Return all slots of a device."""
        slots = self._slots.values()
        return [slot.handle for slot in slots if slot.device == device and not slot.ending]

    def drain(self, node: str) -> None:
        """Give out no slot of a node any more; end each slot when its work has ended.

        Args:
            node: Name or id of the node.
        """
        self._look()
        named = {key for key, n in self._nodes.items() if node in (key, n["NodeName"])}
        self._drained |= named
        for slot in self._slots.values():
            if slot.node in named:
                slot.leave = True
                if not slot.session and slot.check is None:
                    self._end(slot)

    def status(self) -> list[dict[str, Any]]:
        """Return what is known of each slot."""
        self._tick(time.monotonic())
        return [
            {
                "slot": slot.handle.id,
                "node": slot.handle.node,
                "device": slot.device,
                "session": slot.session or None,
                "state": _state(slot),
                "reason": slot.sick,
                "draining": slot.node in self._drained,
            }
            for slot in self._slots.values()
        ]

    def overview(self) -> dict[str, Any]:
        """Return the searches with their fair shares, and the ids of drained nodes."""
        held = Counter(slot.session for slot in self._slots.values())
        searches = [
            {
                "session": key,
                "run": session.run.rpartition("@")[0],
                "device": session.device,
                "wanted": session.wanted,
                "share": self._share(session.device, key),
                "held": held[key],
            }
            for key, session in self._sessions.items()
        ]
        return {"searches": searches, "drained": sorted(self._drained)}

    # ----------------------------------------------------------------------------- the cluster

    @staticmethod
    def _units(node: dict[str, Any]) -> int:
        return int(node["Resources"].get(UNIT, 0))

    @staticmethod
    def _device(node: dict[str, Any]) -> str:
        return str(node["Labels"].get(DEVICE, "cpu"))

    def _look(self) -> None:
        """Learn which nodes there are, make the slots of new ones, forget those of dead ones."""
        self._looked_s = time.monotonic()
        self._nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for slot in list(self._slots.values()):
            if slot.node not in self._nodes:
                del self._slots[slot.handle.id]
                self._compared.pop(slot.handle.node, None)
        made = {(slot.node, slot.index) for slot in self._slots.values()}
        for key, node in self._nodes.items():
            shared = int(node["Labels"].get(SHARED, 1))
            for first in range(0, self._units(node), shared):
                if (key, first) not in made and key not in self._drained:
                    self._make(node, range(first, min(first + shared, self._units(node))))

    def _make(self, node: dict[str, Any], indices: range) -> None:
        """Start a slot's process, or find the one that outlived an earlier registry."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        key, name = node["NodeID"], node["NodeName"]
        groups = {f"slot{index}": 1 for index in indices}
        prefix = f"{key}.{indices[0]}."
        actors = self._ray.util.list_named_actors(all_namespaces=True)
        known = [actor["name"] for actor in actors if actor["name"].startswith(prefix)]
        if known:
            process = known[0]
            actor = self._ray.get_actor(process, namespace=NAMESPACE)
        else:
            process = f"{prefix}{time.time_ns()}"
            actor = (
                self._ray.remote(concurrency_groups={**groups, CONTROL: 1})(Slot)
                .options(
                    name=process,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    num_cpus=0,
                    resources={UNIT: len(indices)},
                    scheduling_strategy=NodeAffinitySchedulingStrategy(key, soft=False),
                )
                .remote(name, indices[0], self._units(node))
            )
        for index, group in zip(indices, groups, strict=True):
            handle = Handle(f"{process}.{index}", name, actor, group)
            slot = _Slot(handle, process, self._device(node), key, index)
            slot.sick = self._contradicted(name)
            self._slots[handle.id] = slot
            self._check(slot)

    def _tick(self, now: float) -> None:
        """Take note of what has happened since the last call."""
        if now - self._looked_s > _NODES_S:
            self._look()
        for key, session in list(self._sessions.items()):
            if now - session.seen_s > _SILENCE_S:
                del self._sessions[key]
                for slot in self._slots.values():
                    if slot.session == key and not slot.ending:
                        self._free(slot, limit_s=now + session.lease_s)
        checks = {slot.check: slot for slot in self._slots.values() if slot.check is not None}
        answered, _ = (
            self._ray.wait(list(checks), num_returns=len(checks), timeout=0) if checks else ([], [])
        )
        for check in answered:
            slot = checks[check]
            slot.check, slot.limit_s = None, float("inf")
            try:
                answer = self._ray.get(check)
            except self._ray.exceptions.RayError:
                self._end(slot, again=True)
                continue
            if slot.ending:
                for other in [s for s in self._slots.values() if s.process == slot.process]:
                    del self._slots[other.handle.id]
                self._looked_s = float("-inf")
            elif slot.leave and not slot.session:
                self._end(slot)
            elif isinstance(answer, list):
                for run, entry, _ in answer:
                    self._doubted.setdefault(run, {})[entry] = slot.sick
            elif isinstance(answer, str):
                slot.sick, slot.recheck_s = answer, now + _RECHECK_S if answer else float("inf")
        for slot in self._slots.values():
            if slot.check is None and not slot.ending and not slot.session and now > slot.recheck_s:
                slot.recheck_s = float("inf")
                self._call(slot, "recheck", slot.handle.group)
        for slot in self._slots.values():
            if slot.check is not None and not slot.ending and now > slot.limit_s:
                self._end(slot)

    def _check(self, slot: _Slot, limit_s: float = float("inf")) -> None:
        slot.limit_s = limit_s
        self._call(slot, "ready", slot.handle.group)

    @staticmethod
    def _call(slot: _Slot, method: str, group: str) -> None:
        call = getattr(slot.handle.actor, method)
        slot.check = call.options(concurrency_group=group).remote()

    def _quarantine(self, slot: _Slot, reason: str, *, recheck: bool = True) -> None:
        """Give a slot out no more; what it has measured since its last good check is doubted."""
        if slot.sick or slot.ending:
            return
        slot.sick = reason
        slot.recheck_s = time.monotonic() + _RECHECK_S if recheck else float("inf")
        self._call(slot, "doubts", CONTROL)

    def _free(self, slot: _Slot, limit_s: float = float("inf")) -> None:
        """Take a slot back. It is given out again when it answers, after what it still works on."""
        slot.session, slot.leave = 0, slot.node in self._drained
        if not slot.sick:
            self._check(slot, limit_s)

    def _end(self, slot: _Slot, *, again: bool = False) -> None:
        """End a slot's process by a task on its node, which returns when the process is dead."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if slot.ending and not again:
            return
        first = slot
        for other in self._slots.values():
            if other.process == slot.process:
                other.ending, other.session, other.check = True, 0, None
                first = min(first, other, key=lambda s: s.index)
        here = NodeAffinitySchedulingStrategy(slot.node, soft=False)
        reap = self._ray.remote(num_cpus=0, max_retries=0)(_reap).options(scheduling_strategy=here)
        slot.check = reap.remote(slot.handle.node, first.index)

    # --------------------------------------------------------------------------- the fair share

    def _usable(self, device: str) -> list[_Slot]:
        return [
            slot
            for slot in self._slots.values()
            if slot.device == device and slot.node not in self._drained and not slot.sick
        ]

    def _share(self, device: str, session: int) -> int:
        active = {key for key, s in self._sessions.items() if s.device == device and s.wanted}
        return max(1, len(self._usable(device)) // len(active | {session}))

    def _divide(self, device: str, now: float) -> None:
        """Mark the slots that sessions must leave, and give the free ones out.

        No session gets more than it wants or, while another wants more, more than its equal part.
        What is left of an even division passes from session to session.
        """
        slots = [slot for slot in self._usable(device) if not slot.ending]
        wants = {k: s.wanted for k, s in sorted(self._sessions.items()) if s.device == device}
        due = fair_shares(wants, len(slots), turn=int(now / _TURN_S))
        order = list(due)
        held: dict[int, list[_Slot]] = {key: [] for key in wants}
        for slot in slots:
            if slot.session in held:
                held[slot.session].append(slot)
        # A session gives back what it has too much only if another one is due more than it has.
        starved = sum(max(0, due[key] - len(held[key])) for key in order)
        idle = [slot for slot in slots if not slot.session and slot.limit_s == float("inf")]
        free = [slot for slot in idle if slot.check is None]
        needed = starved - len(idle)
        for key in order:
            surplus = held[key][due[key] :]
            for slot in held[key]:
                slot.leave = slot in surplus[: max(needed, 0)]
            needed -= len(surplus)
        claims = [key for key in order for _ in range(due[key] - len(held[key]))]
        for key, slot in zip(claims, free, strict=False):
            slot.session = key


def fair_shares(wants: Mapping[int, int], slots: int, turn: int) -> dict[int, int]:
    """Return how many slots each session is due, the first of this turn first.

    A turn begins where the last one had no slot left, so that none waits for long if there are more
    sessions than slots.
    """
    keys = list(wants)
    first = turn * slots % max(len(keys), 1)
    due = dict.fromkeys([*keys[first:], *keys[:first]], 0)
    while slots and any(due[key] < wants[key] for key in due):
        for key in due:
            if slots and due[key] < wants[key]:
                due[key] += 1
                slots -= 1
    return due


def _state(slot: _Slot) -> str:
    if slot.ending:
        return "ending"
    return "quarantined" if slot.sick else "checked" if slot.check else "ready"


def _reap(node: str, index: int) -> None:
    """End the process of a slot of this node; return when it is dead."""
    seize(node, index).close()


def connect(ray: Any, address: str) -> Any:
    """Join the Ray cluster and return the handle of its registry, which is started if need be.

    Raises:
        SetupError: There is no cluster at the address.
    """
    if not ray.is_initialized():
        try:
            if ":" in address:  # Ray itself takes minutes to find that there is nothing
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=10.0).close()
            ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            if "AuthToken" in f"{error} {error.__cause__}":
                raise SetupError(REFUSED) from error
            raise SetupError(
                f"there is no Ray cluster at {address!r} ({error}): start one by "
                "`kernelcast farm up`, let this machine join it by `kernelcast farm join`, or name "
                "its address as farm.address"
            ) from error
    options = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    # It lives on the head node: other nodes come and go.
    head = {"node:__internal_head__": 0.001}
    part = ray.remote(Registry).options(num_cpus=0, resources=head, max_restarts=-1, **options)
    return part.remote()
