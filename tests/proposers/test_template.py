from __future__ import annotations

from typing import Any

import pytest

from kernelcast.errors import SetupError
from kernelcast.proposers.template import TemplateProposer
from kernelcast.testing import (
    ProposerContract,
    make_kernel,
    make_request,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Kernel, Problem, Template


class TestTemplateProposer(ProposerContract):
    def make(self) -> Any:
        return TemplateProposer()


def constrained(*constraints: str) -> Problem:
    problem = synthetic_problem()
    assert problem.template is not None
    template = problem.template.model_copy(update={"constraints": constraints})
    return problem.model_copy(update={"template": template})


def steps(child: Kernel, parent: Kernel) -> int:
    assert child.parameters is not None
    assert parent.parameters is not None
    return sum(child.parameters[name] != parent.parameters[name] for name in child.parameters)


def test_kernels_are_distinct_and_carry_their_parameters() -> None:
    kernels = TemplateProposer().propose(make_request(50)).kernels
    assert len({kernel.id for kernel in kernels}) == 50
    for kernel in kernels:
        assert kernel.parameters is not None
        for name, value in kernel.parameters.items():
            assert f"#define {name} {value}\n" in kernel.source


def test_constraints_hold() -> None:
    request = make_request(40, problem=constrained("A >= B", "C * D <= 8"))
    for kernel in TemplateProposer().propose(request).kernels:
        assert kernel.parameters is not None
        a, b, c, d = (int(kernel.parameters[name]) for name in "ABCD")
        assert a >= b
        assert c * d <= 8


def test_another_seed_proposes_others() -> None:
    first, second = (TemplateProposer().propose(make_request(5, seed)).kernels for seed in (1, 2))
    assert first != second


def test_children_of_a_configuration_are_one_or_two_steps_away() -> None:
    (parent,) = synthetic_kernels(1)
    children = TemplateProposer(local=1.0).propose(make_request(30, parent=parent)).kernels
    assert {steps(child, parent) for child in children} == {1, 2}


def test_a_share_of_the_children_is_drawn_anywhere() -> None:
    (parent,) = synthetic_kernels(1)
    children = [
        child
        for seed in range(40)
        for child in TemplateProposer(local=0.5).propose(make_request(4, seed, parent)).kernels
    ]
    far = sum(steps(child, parent) > 2 for child in children)
    assert len(children) == 160
    # Of a random draw 90% differ from the parent in three places or more: about 45% of all.
    assert 40 <= far <= 100


def test_every_neighbour_can_be_reached() -> None:
    (parent,) = synthetic_kernels(1)
    children = [
        child
        for seed in range(60)
        for child in TemplateProposer(local=1.0).propose(make_request(4, seed, parent)).kernels
    ]
    # Five parameters, each with three other values.
    assert len({child.id for child in children if steps(child, parent) == 1}) == 15


def test_a_small_space_is_proposed_whole() -> None:
    request = make_request(9, problem=constrained("A == 1", "B == 1", "C == 1", "D == 1"))
    answer = TemplateProposer().propose(request)
    assert len(answer.kernels) == 4
    assert not answer.exhausted


def test_a_space_without_a_configuration_is_exhausted() -> None:
    answer = TemplateProposer().propose(make_request(2, problem=constrained("A > 8")))
    assert answer.kernels == ()
    assert answer.exhausted


def test_a_parameter_with_one_value_stays() -> None:
    problem = synthetic_problem()
    template = Template(source=problem.seed_source, parameters={"A": (4,), "B": (1, 2)})
    problem = problem.model_copy(update={"template": template})
    parent = make_kernel(template.render({"A": 4, "B": 1}), {"A": 4, "B": 1})
    answer = TemplateProposer(local=1.0).propose(make_request(3, parent=parent, problem=problem))
    assert [kernel.parameters for kernel in answer.kernels] == [{"A": 4, "B": 2}]


def test_a_parent_of_another_template_is_left_aside() -> None:
    stranger = make_kernel("void kernel() {}", {"A": 3, "TILE": 16})
    answer = TemplateProposer().propose(make_request(10, parent=stranger))
    assert len(answer.kernels) == 10
    assert all(set(kernel.parameters or ()) == set("ABCDE") for kernel in answer.kernels)


def test_a_problem_without_a_template_needs_one() -> None:
    problem = synthetic_problem().model_copy(update={"template": None})
    with pytest.raises(SetupError, match=r"template\.toml"):
        TemplateProposer().propose(make_request(1, problem=problem))
