"""Proposer of kernels from a fixed pool: random members, and neighbours of the parent.

It serves spaces that no constraint describes, such as recorded configurations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.errors import SetupError
from kernelcast.proposers.template import configured_kernel
from kernelcast.types import Kernel, Parameters, Problem, ProposalRequest, Proposals, Spend

_STEPS = {1: 0.7, 2: 0.3}  # share of the neighbours by the number of parameters that differ
_SWEEP_AFTER = 10  # fruitless requests before members are proposed in order


class PoolProposer:
    """Draws members; a share `local` of them differ from the parent in one or two parameters.

    Members are kernels, or configurations of the problem's template, which are rendered when they
    are proposed. A draw depends on the request alone, so a member can be drawn twice. When draws
    give nothing new, members are proposed in order. An `ordered` pool is proposed in order from the
    start, once, as a recorded search was.
    """

    name = "pool"
    concurrency = 0
    repairs = False

    def __init__(
        self,
        members: Sequence[Kernel | Parameters],
        local: float = 0.7,
        *,
        ordered: bool = False,
    ) -> None:
        if not members:
            raise SetupError("the pool is empty: give it at least one kernel or configuration")
        self._members = list(members)
        self._local = local
        self._ordered = ordered
        points = [m.parameters if isinstance(m, Kernel) else m for m in self._members]
        names = sorted({name for point in points if point for name in point})
        self._codes: dict[str, dict[int | float | str, int]] = {name: {} for name in names}
        self._points = np.array([self._encode(point or {}) for point in points], dtype=np.int32)

    def quote(self, request: ProposalRequest) -> Spend:
        """Return no cost."""
        del request
        return {}

    def propose(self, request: ProposalRequest) -> Proposals:
        """Draw distinct members by the request's seed."""
        rng = np.random.default_rng(request.seed)
        size = len(self._members)
        count = min(request.count, size)
        if self._ordered:
            end = request.proposed + count
            kernels = (
                self._kernel(request.problem, at) for at in range(request.proposed, min(end, size))
            )
            return Proposals(kernels=tuple(kernels), exhausted=end >= size)
        if request.fruitless < _SWEEP_AFTER:
            # The more requests give nothing new, the fewer neighbours are drawn.
            share = self._local * 0.5**request.fruitless
            near = self._neighbours(request.parent, int(rng.binomial(count, share)), rng)
            drawn = np.concatenate([near, rng.permutation(size)])
        else:
            drawn = (request.proposed + np.arange(size)) % size
        chosen = list(dict.fromkeys(drawn.tolist()))[:count]
        return Proposals(kernels=tuple(self._kernel(request.problem, index) for index in chosen))

    def _encode(self, point: Parameters) -> list[int]:
        return [
            codes.setdefault(point[name], len(codes)) if name in point else -1
            for name, codes in self._codes.items()
        ]

    def _neighbours(
        self, parent: Kernel, count: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw up to `count` members that differ from the parent in one or two parameters."""
        if parent.parameters is None or count == 0:
            return np.empty(0, dtype=np.int64)
        here = [
            codes.get(parent.parameters.get(name, ""), -2) for name, codes in self._codes.items()
        ]
        distance = (self._points != here).sum(axis=1)
        # An exponential race gives each ring of members its share, whatever its size.
        rate = np.zeros(len(distance))
        for steps, share in _STEPS.items():
            ring = distance == steps
            rate[ring] = share / max(1, ring.sum())
        near = np.flatnonzero(rate)
        arrival = rng.exponential(size=len(near)) / rate[near]
        return near[np.argsort(arrival)[:count]]

    def _kernel(self, problem: Problem, index: int) -> Kernel:
        member = self._members[index]
        if isinstance(member, Kernel):
            return member
        template = problem.template
        if template is None or template.parameters.keys() != member.keys():
            raise SetupError(
                f"the pool's configurations of {sorted(member)} do not fit the template of "
                f"{problem.name!r}: build pool and problem from the same recording"
            )
        # In the template's order of parameters, one configuration is always the same source.
        configuration = {name: member[name] for name in template.parameters}
        return configured_kernel(problem, template, configuration)
