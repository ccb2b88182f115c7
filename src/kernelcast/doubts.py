"""Which results of a run another node checks, and which are not believed any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from kernelcast.events import Leased, Proposed, Retracted, Settled
from kernelcast.protocols import Farm
from kernelcast.run import Run
from kernelcast.state import State
from kernelcast.types import Measurement, Purpose

_REPEATED = 0.02  # of the measurements are made again on another node, to find nodes that lie
_MOST_FIRST = 256  # first measurements that wait to be compared with a second one


class Doubts:
    """Compares measurements of two nodes, and finds what a farm does not believe.

    Args:
        farms: The farms of a search; the first is the one that it decides for.
        seed: Returns a number below 16**15 that depends on the run and on its argument.
    """

    def __init__(self, farms: Sequence[Farm], seed: Callable[[str], int]) -> None:
        self._farms = farms
        self._seed = seed
        self._entries: dict[str, str] = {}  # that the farms doubt, and why
        self._nodes: set[str] = set()
        self._first: dict[str, Measurement] = {}
        self._repeats: list[str] = []

    def node_of(self, kernel_id: str) -> str:
        """Return the node whose measurement of a kernel is to be checked, or ""."""
        return self._first[kernel_id].node if kernel_id in self._first else ""

    def repeat(self, running: Collection[str]) -> str | None:
        """Return a kernel that another node should measure again, if none of `running`."""
        while self._repeats:
            key = self._repeats.pop()
            if key in self._first and key not in running:
                return key
        return None

    def compare(self, measurement: Measurement, purpose: Purpose, best_log2: float) -> None:
        """Keep a first measurement that another node repeats; give the farm both to compare.

        A new best is repeated, and a share of the others.
        """
        if not measurement.slot:
            return
        key, log2_speedup = measurement.kernel_id, measurement.log2_speedup
        first = self._first.pop(key, None)
        if purpose == "search":
            self._nodes.add(measurement.node)
            repeated = len(self._nodes) > 1 and self._seed(f"repeat {key}") < _REPEATED * 16**15
            if repeated:
                self._repeats.append(key)
            if repeated or (log2_speedup is not None and log2_speedup > best_log2):
                self._first[key] = measurement
            if len(self._first) > _MOST_FIRST:
                del self._first[next(iter(self._first))]
        elif first is not None and first.node != measurement.node:
            self._farms[0].compare(first, measurement)

    def collect(self, state: State) -> dict[str, str]:
        """Return the closed entries that the farms do not believe any more; each once."""
        for farm in self._farms:
            self._entries |= farm.doubted()
        # The result of an entry that is open still comes.
        doubted = {e: why for e, why in self._entries.items() if e not in state.entries}
        self._entries = {e: why for e, why in self._entries.items() if e not in doubted}
        return doubted


def retractions(run: Run, doubted: Mapping[str, str]) -> list[Retracted]:
    """Return events that withdraw the results of these entries, which are committed."""
    leases: dict[str, Leased] = {}
    parents: dict[str, str] = {}
    for event in run.events("leased", "settled", "retracted", "proposed"):
        match event:
            case Leased() if event.entry in doubted:
                leases[event.entry] = event
            case Settled(unknown=True) | Retracted():
                leases.pop(event.entry, None)  # it has no result, or none any more
            case Proposed(duplicate=False):
                parents[event.kernel_id] = event.parent_id
    return [
        Retracted(
            entry=entry,
            kernel_id=leased.kernel_id,
            parent_id=parents.get(leased.kernel_id, ""),
            purpose=leased.purpose,
            device=leased.device,
            reason=doubted[entry],
        )
        for entry, leased in leases.items()
    ]
