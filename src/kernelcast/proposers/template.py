"""Proposer of kernels from a problem's template: random configurations, neighbours of the parent.

It needs no language model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelcast.canonical import kernel_id
from kernelcast.errors import SetupError
from kernelcast.types import (
    Kernel,
    Parameters,
    Problem,
    ProposalRequest,
    Proposals,
    Spend,
    Template,
)

_TRIES = 100  # draws before a space or a neighbourhood counts as exhausted


@dataclass(frozen=True)
class TemplateProposer:
    """Draws configurations; a share `local` of them are one or two steps from the parent."""

    local: float = 0.7
    name: str = "template"
    concurrency: int = 0
    repairs: bool = False

    def quote(self, request: ProposalRequest) -> Spend:
        """Return no cost."""
        del request
        return {}

    def propose(self, request: ProposalRequest) -> Proposals:
        """Draw distinct valid configurations by the request's seed."""
        template = template_of(request.problem)
        rng = np.random.default_rng(request.seed)
        parent = request.parent.parameters
        if parent is not None and not _within(template, parent):
            parent = None
        # The more requests give nothing new, the fewer neighbours are drawn.
        local = self.local * 0.5**request.fruitless if parent is not None else 0.0
        drawn: dict[tuple[int | float | str, ...], Kernel] = {}
        for _ in range(_TRIES * request.count):
            if len(drawn) == request.count:
                break
            configuration = _draw(template, parent if rng.random() < local else None, rng)
            if configuration is None:
                continue
            key = tuple(configuration.values())
            if key not in drawn:
                drawn[key] = configured_kernel(request.problem, template, configuration)
        return Proposals(kernels=tuple(drawn.values()), exhausted=not drawn)


def template_of(problem: Problem) -> Template:
    """Return the template of a problem, or raise SetupError."""
    if problem.template is None:
        raise SetupError(
            f"problem {problem.name!r} has no template: let a language model write kernels "
            "(--proposer llm --base-url URL --model NAME), or add a template and template.toml to "
            "its folder"
        )
    return problem.template


def configured_kernel(
    problem: Problem, template: Template, configuration: dict[str, int | float | str]
) -> Kernel:
    """Render a template with a configuration into a kernel."""
    source = template.render(configuration)
    return Kernel(
        id=kernel_id(source, problem.language),
        language=problem.language,
        source=source,
        parameters=configuration,
    )


def _draw(
    template: Template, parent: Parameters | None, rng: np.random.Generator
) -> dict[str, int | float | str] | None:
    """Draw a valid configuration, near the parent if there is one; None after many tries."""
    for _ in range(_TRIES):
        draw = _neighbour(template, parent, rng) if parent is not None else _random(template, rng)
        if template.admits(draw):
            return draw
    return None


def _within(template: Template, parameters: Parameters) -> bool:
    """Return whether the parameters are a point of the template's space."""
    return parameters.keys() == template.parameters.keys() and all(
        parameters[name] in values for name, values in template.parameters.items()
    )


def _random(template: Template, rng: np.random.Generator) -> dict[str, int | float | str]:
    return {name: values[rng.integers(len(values))] for name, values in template.parameters.items()}


def _neighbour(
    template: Template, parent: Parameters, rng: np.random.Generator
) -> dict[str, int | float | str]:
    """Move one or two parameters, mostly to an adjacent value."""
    child = dict(parent)
    movable = [name for name, values in template.parameters.items() if len(values) > 1]
    moves = min(len(movable), 1 + int(rng.random() < 0.3))
    for name in rng.choice(movable, size=moves, replace=False):
        values = template.parameters[name]
        here = values.index(parent[name])
        if rng.random() < 0.7:
            there = here + (1 if rng.random() < 0.5 else -1)
            there = there if 0 <= there < len(values) else here + (here - there)
        else:
            there = (here + int(rng.integers(1, len(values)))) % len(values)
        child[name] = values[there]
    return child
