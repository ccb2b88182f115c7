"""Give the arms of a comparison the same proposals, model answers and timing noise."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future

from kernelcast.protocols import Farm, Proposer
from kernelcast.tape import Tape
from kernelcast.types import (
    Device,
    Job,
    Loss,
    Measurement,
    Problem,
    ProposalRequest,
    Proposals,
    Spend,
    Usage,
    content_hash,
)

_DRAWS = 30  # attempts to draw a new child from a stream


class SharedProposer:
    """A proposer that gives every arm the same children of the same parent.

    Child number n of a parent is drawn with a seed that depends on the run's seed, the parent and
    n alone. It does not depend on how many children an arm asks for at once, or on what it did
    before.

    The answer of a model (`concurrency` above 0) cannot be drawn again. It is kept on the `tape`
    and given, at its recorded cost, to every arm with the same request: the same parent, partner,
    repair and history, asked for a step of the same size. Without the history, an arm would learn
    from the measurements of another.
    `identity` tells proposers apart that share a tape.
    """

    def __init__(
        self, inner: Proposer, seed: int, tape: Tape[Proposals], identity: str = ""
    ) -> None:
        self.name = inner.name
        self.concurrency = inner.concurrency
        self.repairs = inner.repairs
        self._inner = inner
        self._seed = seed
        self._tape = tape
        self._identity = identity
        self._drawn: Counter[str] = Counter()
        self._served: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def quote(self, request: ProposalRequest) -> Spend:
        """Return the quote of the proposer itself."""
        return self._inner.quote(request)

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return the next children of this parent."""
        answers: list[Proposals] = []
        for _ in range(request.count):
            answers.append(self._next(request))
            if answers[-1].exhausted:
                break
        return Proposals(
            kernels=tuple(kernel for answer in answers for kernel in answer.kernels),
            claims={key: claim for answer in answers for key, claim in answer.claims.items()},
            missed=tuple(attempt for answer in answers for attempt in answer.missed),
            usage=Usage.total(answer.usage for answer in answers),
            # The pool is exhausted only if no kernel came at all.
            exhausted=answers[-1].exhausted and not any(answer.kernels for answer in answers),
            failure="; ".join(answer.failure for answer in answers if answer.failure),
        )

    def _next(self, request: ProposalRequest) -> Proposals:
        stream = _stream(request, informed=self.concurrency > 0)
        answer = Proposals(kernels=())
        for fruitless in range(_DRAWS):
            with self._lock:
                number = self._drawn[stream]
                self._drawn[stream] += 1
                ordinal = self._drawn.total() - 1
            key = content_hash(f"{self._seed} {stream} {number}")
            single = request.model_copy(
                update={
                    "count": 1,
                    "seed": int(key[:15], 16),
                    "ordinal": ordinal,
                    "proposed": ordinal,
                    # An arm that finds nothing new has to look further afield than its streams.
                    "fruitless": max(fruitless, request.fruitless),
                }
            )
            if self.concurrency:
                return self._recorded(f"{self._identity} {key}", single)
            answer = self._inner.propose(single)
            new = {kernel.id for kernel in answer.kernels} - self._served[stream]
            self._served[stream] |= new
            if new or answer.exhausted:
                break
        return answer

    def _recorded(self, key: str, request: ProposalRequest) -> Proposals:
        answer = self._tape.find(key)
        if answer is None:
            answer = self._inner.propose(request)
            self._tape.keep(key, answer)
        return answer


class SharedFarm:
    """A farm that measures a kernel once per seed and gives every arm the same measurement.

    The arms then share the timing noise. The loop still charges each arm for the measurement, which
    it would not do for a hit in the store's cache.
    """

    def __init__(self, farm: Farm, known: dict[tuple[str, str], Measurement]) -> None:
        self.slots = farm.slots
        self.device: Device = farm.device
        self.toolchain = farm.toolchain
        self.quote = farm.quote
        self.inspect = farm.inspect
        self.cancel = farm.cancel
        self.adopt = farm.adopt
        self.others = farm.others
        self.doubted = farm.doubted
        self.compare = farm.compare
        self._farm = farm
        self._known = known

    def submit(self, problem: Problem, job: Job) -> Future[Measurement | Loss]:
        """Measure, or return the known measurement of this kernel for the same purpose."""
        key = (job.purpose, job.kernel.id)
        if key in self._known:
            recalled: Future[Measurement | Loss] = Future()
            recalled.set_result(self._known[key])
            return recalled
        future = self._farm.submit(problem, job)

        def remember(done: Future[Measurement | Loss]) -> None:
            if not done.cancelled() and done.exception() is None:
                outcome = done.result()
                if isinstance(outcome, Measurement):
                    self._known[key] = outcome

        future.add_done_callback(remember)
        return future

    def close(self) -> None:
        """Do nothing: the farm goes on to the next run."""


def _stream(request: ProposalRequest, *, informed: bool) -> str:
    """Return what a child depends on: the parent and, for a model, the rest of the request."""
    if not informed:
        return request.parent.id
    history = [
        # Measured changes are never twice the same: quarters tell whether arms know the same.
        (entry.claim.idea, entry.outcome, entry.measured, round(4.0 * (entry.log2_change or 0.0)))
        for entry in request.history
    ]
    repair = request.repair and (request.repair.kernel.id, request.repair.complaint)
    partner = request.partner and request.partner.id
    place = request.parent.id, request.parent_measured, request.bold
    return repr((*place, partner, repair, history))
