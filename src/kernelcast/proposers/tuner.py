"""Proposer of what a `Tuner` would measure next: configurations of a problem's template.

It follows the run: what is proposed and measured changes its tuner, and nothing else does. A
resumed run tells it the same again, so that it goes on as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelcast.canonical import canonical_parameters
from kernelcast.events import Reported, Suggested
from kernelcast.forecasters.trees import Elsewhere
from kernelcast.proposers.template import configured_kernel, template_of
from kernelcast.tuner import Tuner
from kernelcast.types import (
    Kernel,
    Observation,
    Parameters,
    ProposalRequest,
    Proposals,
    Spend,
    Template,
)


class TunerProposer:
    """Proposes the most promising configurations first, whatever the parent.

    Times are in units of the reference's. `elsewhere` has times on other devices. `configurations`
    are the space, by default all that the template admits.
    """

    name = "tuner"
    concurrency = 0
    repairs = False

    def __init__(
        self,
        elsewhere: Elsewhere | None = None,
        configurations: Sequence[Parameters] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._configurations = configurations
        self._told: list[Suggested | Reported] = []
        self._taken = 0
        self._tuner: Tuner | None = None
        self._place: tuple[str, str, int] | None = None

    def quote(self, request: ProposalRequest) -> Spend:
        """Return no cost."""
        del request
        return {}

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return what the tuner would suggest; after fruitless requests, what comes after it."""
        template = template_of(request.problem)
        tuner = self._tuner_of(request, template)
        wanted = tuner.preview(request.count + request.fruitless)[request.fruitless :]
        kernels = [
            # In the template's order of parameters, one configuration is always the same source.
            configured_kernel(
                request.problem, template, {name: point[name] for name in template.parameters}
            )
            for point in wanted
        ]
        return Proposals(kernels=tuple(kernels), exhausted=not kernels)

    def admit(self, kernels: Sequence[Kernel]) -> None:
        """Take kernels for suggested: they are not proposed again."""
        for kernel in kernels:
            if kernel.parameters is not None:
                key = canonical_parameters(kernel.parameters)
                self._told.append(Suggested(configuration=key))

    def refute(self, kernel: Kernel) -> None:
        """Report a configuration that does not compile, or is wrong when it is emulated."""
        self._report(kernel, None)

    def learn(self, observations: Sequence[Observation]) -> None:
        """Report the measured configurations to the tuner."""
        for observation in observations:
            self._report(observation.kernel, observation.measurement.log2_speedup)

    def _report(self, kernel: Kernel, log2_speedup: float | None) -> None:
        if kernel.parameters is not None:
            seconds = None if log2_speedup is None else 2.0**-log2_speedup
            key = canonical_parameters(kernel.parameters)
            self._told.append(Reported(configuration=key, seconds=seconds))

    def _tuner_of(self, request: ProposalRequest, template: Template) -> Tuner:
        """Return the tuner of the run, which has heard all that was told."""
        problem, device = request.problem, request.device
        place = (problem.id, device.name, request.run_seed)
        if self._tuner is None or self._place != place:
            self._place, self._taken = place, 0
            known = {
                times.device: times.seconds
                for times in (self._elsewhere(problem, device) if self._elsewhere else ())
            }
            space = template if self._configurations is None else self._configurations
            self._tuner = Tuner(space, device=device.name, known=known, seed=request.run_seed)
        for event in self._told[self._taken :]:
            self._tuner.repeat(event)
        self._taken = len(self._told)
        return self._tuner
