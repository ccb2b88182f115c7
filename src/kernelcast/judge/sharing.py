"""What the arms of a comparison have in common: proposals, a model's answers, timing noise.

Belongs here: parts that stand in front of other parts, so that arms are served the same wherever
they ask the same.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future

from kernelcast.protocols import Farm, Proposer
from kernelcast.tape import Tape
from kernelcast.types import (
    Device,
    Evidence,
    Job,
    Kernel,
    Measurement,
    Problem,
    ProposalRequest,
    Proposals,
    Spend,
    Usage,
    content_hash,
)

_DRAWS = 30  # of a stream, before it is taken to hold nothing new


class SharedProposer:
    """A proposer whose children are numbered by parent, so that arms are served the same ones.

    Child number n of a parent is drawn with a seed of its own, which depends on the run's seed, the
    parent and n alone: not on how many children an arm asks for at once, nor on what it did before.
    Arms that come to the same parent get the same children, in the same order; under parents that
    only one of them has, there is nothing to share.

    An answer that takes a model (`concurrency` above 0) cannot be drawn again: it is kept on the
    `tape` and served to every arm that asks the same, at its recorded cost. The same means parent,
    partner, repair and what the history tells, else one arm would learn from what another measured.
    `identity` says which proposer it was.
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
        """What asking the proposer itself could cost."""
        return self._inner.quote(request)

    def propose(self, request: ProposalRequest) -> Proposals:
        """The next children of this parent."""
        answers: list[Proposals] = []
        for _ in range(request.count):
            answers.append(self._next(request))
            if answers[-1].exhausted:
                break
        return Proposals(
            kernels=tuple(kernel for each in answers for kernel in each.kernels),
            claims={key: claim for each in answers for key, claim in each.claims.items()},
            missed=tuple(attempt for each in answers for attempt in each.missed),
            usage=Usage.total(each.usage for each in answers),
            # One kernel less than was wished for is not the end of them.
            exhausted=answers[-1].exhausted and not any(each.kernels for each in answers),
            failure="; ".join(each.failure for each in answers if each.failure),
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
            asked = request.model_copy(
                update={
                    "count": 1,
                    "seed": int(key[:15], 16),
                    "ordinal": ordinal,
                    "proposed": ordinal,
                    # Where an arm finds nothing new any more, it must look further afield than
                    # its streams would, and shares them no longer.
                    "fruitless": max(fruitless, request.fruitless),
                }
            )
            if self.concurrency:
                return self._recorded(f"{self._identity} {key}", asked)
            answer = self._inner.propose(asked)
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
    """A farm that measures a kernel once a seed and tells every arm the same of it.

    Timing noise is then common to the arms. Each is still charged what the measurement took: the
    loop reserves and settles as ever, which reuse through the store's cache would not.
    """

    def __init__(self, farm: Farm, known: dict[tuple[str, str], Measurement]) -> None:
        self.slots = farm.slots
        self.device: Device = farm.device
        self.toolchain = farm.toolchain
        self._farm = farm
        self._known = known

    def quote(self, problem: Problem) -> Spend:
        """The most that one job can cost, measured before or not."""
        return self._farm.quote(problem)

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only, now."""
        return self._farm.inspect(problem, kernel)

    def submit(self, problem: Problem, job: Job) -> Future[Measurement]:
        """Measure, or recall what was measured of this kernel for the same purpose."""
        key = (job.purpose, job.kernel.id)
        if key in self._known:
            recalled: Future[Measurement] = Future()
            recalled.set_result(self._known[key])
            return recalled
        future = self._farm.submit(problem, job)

        def remember(done: Future[Measurement]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._known[key] = done.result()

        future.add_done_callback(remember)
        return future

    def close(self) -> None:
        """The farm is lent: it goes on to the next run."""


def _stream(request: ProposalRequest, *, informed: bool) -> str:
    """What a child is drawn from: the parent and, for a model, all that it is told beside it."""
    if not informed:
        return request.parent.id
    told = [
        # Amounts are measured, and never twice the same: steps of a quarter are enough to say
        # whether two arms know the same.
        (each.claim.idea, each.outcome, each.measured, round(4.0 * (each.log2_change or 0.0)))
        for each in request.history
    ]
    repair = request.repair and (request.repair.kernel.id, request.repair.complaint)
    partner = request.partner and request.partner.id
    return repr((request.parent.id, request.parent_measured, partner, repair, told))
