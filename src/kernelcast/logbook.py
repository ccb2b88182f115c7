"""The logbook of a tuner: its suggestions and reports in a store, as they happen.

A tuning is a run of the store. It has few kinds of events, and the checksums, signatures,
locks and transactions of all runs.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from kernelcast.errors import StoreError
from kernelcast.events import Reported, Suggested, TuningStarted
from kernelcast.run import Run
from kernelcast.store import Store

_PREFIX = "tune-"
_logger = logging.getLogger(__name__)


class Logbook:
    """The events of one kernel's tuning on one device. One process at a time writes to it."""

    def __init__(
        self,
        store: str | Path | Store,
        *,
        kernel: str,
        device: str | None,
        parameters: Collection[str],
    ) -> None:
        """Open a logbook, or begin it.

        Args:
            store: A path, a database URL or an open store. One that is opened here is closed when
                the logbook is no longer used.
            kernel: Name of the kernel.
            device: Name of the device; None is one without a name.
            parameters: Names of the kernel's parameters.

        Raises:
            StoreError: The store cannot be opened, another process holds the logbook, it was not
                written here, or it is of a kernel with other parameters.
        """
        if isinstance(store, Store):
            self._store = store
        else:
            self._store = Store.open(store)
            weakref.finalize(self, self._store.close)
        started = TuningStarted(kernel=kernel, device=device, parameters=tuple(sorted(parameters)))
        name = f"{_PREFIX}{kernel}@{device or 'unnamed'}"
        if any(info.name == name for info in self._store.runs()):
            self._run = self._store.open_run(name)
            self._run.check_own()
        else:
            self._run = self._store.create_run(name)
            self._run.append([started])
        if _started(self._run) != started:
            raise StoreError(
                f"the store has another run {name!r}, with other parameters: "
                "give the kernel another name"
            )
        self._run.hold()

    def events(self) -> Iterator[Suggested | Reported]:
        """Yield what was suggested and reported, in order."""
        for event in self._run.events("suggested", "reported"):
            if isinstance(event, Suggested | Reported):
                yield event

    def append(self, events: Sequence[Suggested | Reported]) -> None:
        """Write events durably.

        Raises:
            StoreError: Another tuner has written since; nothing is written.
        """
        self._run.append(events)

    def elsewhere(self) -> Mapping[str, Mapping[str, float | None]]:
        """Return the kernel's times on other devices by configuration; None where it failed.

        What was not written here is left out, which is logged.
        """
        own = _started(self._run)
        assert own is not None
        times: dict[str, Mapping[str, float | None]] = {}
        for info in self._store.runs():
            if not info.name.startswith(f"{_PREFIX}{own.kernel}@"):
                continue
            run = self._store.open_run(info.name)
            other = _started(run)
            if other is None or other.device in (None, own.device):
                continue
            if not run.is_own:
                _logger.warning("Nothing is learnt from run %s: it was %s.", run.name, run.written)
            elif (other.kernel, other.parameters) == (own.kernel, own.parameters):
                times[str(other.device)] = {
                    event.configuration: event.seconds
                    for event in run.events("reported")
                    if isinstance(event, Reported)
                }
        return times


def _started(run: Run) -> TuningStarted | None:
    return None if run.state.tuning is None else run.state.tuning.started
