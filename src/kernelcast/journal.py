"""The journal of a search: its events are entered here, applied at once and written in groups.

All that has happened since the last commit is one transaction. Nothing is acknowledged, paid or
submitted before its group is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelcast import events, types
from kernelcast.errors import BudgetExceeded, SetupError
from kernelcast.events import Event, RunSpec
from kernelcast.parts import Parts
from kernelcast.protocols import Callback
from kernelcast.run import Run
from kernelcast.state import State
from kernelcast.types import Kernel, Problem, Spend


class Journal:
    """The run of a search, with what all of its steps read.

    Args:
        problem: What to compute.
        parts: The parts of the search.
        spec: Seed and options of the run.
        callbacks: Receive every event.
    """

    def __init__(
        self, problem: Problem, parts: Parts, spec: RunSpec, callbacks: Sequence[Callback]
    ) -> None:
        self.problem = problem
        self.parts = parts
        self.spec = spec
        self.run: Run | None = None
        """The run in the store; None before the search begins."""
        self.stopped: str | None = None
        """Why no further candidate is measured."""
        self._callbacks = callbacks

    @property
    def log(self) -> Run:
        """The run in the store, with its events."""
        if self.run is None:
            raise SetupError("the search has not begun: call begin(budget) or run(budget)")
        return self.run

    @property
    def state(self) -> State:
        """The current state of the run."""
        return self.log.state

    @property
    def seed_kernel_id(self) -> str:
        """The problem's own kernel."""
        assert self.state.started is not None
        return self.state.started.seed_kernel_id

    def kernel(self, key: str) -> Kernel:
        """Return a kernel of the run."""
        return self.log.kernel(key)

    def runtime_s(self, log2_speedup: float) -> float:
        """Return the seconds per call at this speedup, from the reference's measured time."""
        reference = self.state.reference
        assert reference is not None
        assert reference.timing is not None
        return reference.timing.reference_runtime_s / float(2.0**log2_speedup)

    def seed(self, purpose: str) -> int:
        """Return a seed that depends only on the run's seed and the purpose."""
        return int(types.content_hash(f"{self.spec.seed} {purpose}")[:15], 16)

    def stage(self, batch: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        """Apply events to the state; the next commit writes them."""
        self.log.stage(batch, kernels)

    def commit(self) -> None:
        """Write what has happened since the last commit, then tell the callbacks."""
        for event in self.log.commit():
            for callback in self._callbacks:
                callback.on_event(event)

    def reserve(self, purpose: str, spend: Spend) -> str | None:
        """Return the entry of a new reservation; stop the run if it would exceed the budget."""
        entry = f"{purpose}-{self.state.attempts}"
        try:
            self.stage([events.Reserved(entry=entry, spend=spend)])
        except BudgetExceeded as error:
            self.stopped = f"budget spent: {error}"
            return None
        return entry

    def stop(self, reason: str) -> None:
        """Measure no further candidate; a new best is still confirmed."""
        self.stopped = self.stopped or reason
