from __future__ import annotations

import itertools
from typing import Any

import pytest

from kernelcast.errors import SetupError
from kernelcast.proposers.pool import PoolProposer
from kernelcast.testing import (
    ProposerContract,
    make_kernel,
    make_request,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Kernel, Parameters, Proposals

NAMES = ("A", "B", "C", "D", "E")
# Half of the synthetic problem's space, by a rule that no template would state.
HALF: list[Parameters] = [
    dict(zip(NAMES, values, strict=True))
    for index, values in enumerate(itertools.product((1, 2, 4, 8), repeat=5))
    if index * 7919 % 16 < 8
]


class TestPoolProposer(ProposerContract):
    def make(self) -> Any:
        return PoolProposer(HALF)


class TestPoolOfKernels(ProposerContract):
    def make(self) -> Any:
        return PoolProposer(synthetic_kernels(20))


def steps(child: Kernel, parent: Kernel) -> int:
    assert child.parameters is not None
    assert parent.parameters is not None
    return sum(child.parameters[name] != parent.parameters[name] for name in NAMES)


def a_member() -> Kernel:
    template = synthetic_problem().template
    assert template is not None
    return make_kernel(template.render(HALF[100]), HALF[100])


def test_only_members_are_proposed_and_each_can_be() -> None:
    seen: set[str] = set()
    for seed in range(60):
        kernels = PoolProposer(HALF).propose(make_request(50, seed)).kernels
        assert len({kernel.id for kernel in kernels}) == 50
        assert all(kernel.parameters in HALF for kernel in kernels)
        seen.update(kernel.id for kernel in kernels)
    assert len(seen) == len(HALF)


def test_configurations_are_rendered_in_the_template_s_order() -> None:
    backwards = [dict(reversed(list(member.items()))) for member in HALF]
    forwards = PoolProposer(HALF).propose(make_request(5, 1)).kernels
    assert PoolProposer(backwards).propose(make_request(5, 1)).kernels == forwards
    template = synthetic_problem().template
    assert template is not None
    assert all(template.render(kernel.parameters or {}) == kernel.source for kernel in forwards)


def test_children_of_a_member_are_one_or_two_steps_away() -> None:
    parent = a_member()
    pool = PoolProposer(HALF, local=1.0)
    distances = [
        steps(child, parent)
        for seed in range(100)
        for child in pool.propose(make_request(1, seed, parent)).kernels
    ]
    assert set(distances) == {1, 2}
    assert 55 <= distances.count(1) <= 85


def test_a_share_of_the_children_is_drawn_anywhere() -> None:
    parent = a_member()
    children = [
        child
        for seed in range(40)
        for child in PoolProposer(HALF, local=0.5).propose(make_request(4, seed, parent)).kernels
    ]
    far = sum(steps(child, parent) > 2 for child in children)
    assert len(children) == 160
    assert 40 <= far <= 100


def test_fruitless_requests_look_further_afield() -> None:
    parent = a_member()
    pool = PoolProposer(HALF, local=1.0)
    near = 0
    for seed in range(40):
        request = make_request(4, seed, parent).model_copy(update={"fruitless": 5})
        near += sum(steps(child, parent) <= 2 for child in pool.propose(request).kernels)
    assert near < 40


def test_when_draws_are_in_vain_members_are_handed_out_in_order() -> None:
    pool = PoolProposer(synthetic_kernels(20))
    found = [
        kernel
        for ordinal in range(50, 55)
        for kernel in pool.propose(
            make_request(4).model_copy(update={"fruitless": ordinal - 40, "proposed": 4 * ordinal})
        ).kernels
    ]
    assert sorted(kernel.id for kernel in found) == sorted(k.id for k in synthetic_kernels(20))


def test_a_small_pool_is_proposed_whole() -> None:
    kernels = synthetic_kernels(3)
    assert {k.id for k in PoolProposer(kernels).propose(make_request(9)).kernels} == {
        kernel.id for kernel in kernels
    }


def test_members_without_parameters_have_no_neighbours_but_are_drawn() -> None:
    written = [make_kernel(f"void kernel() {{ int i = {i}; }}") for i in range(5)]
    parent = a_member()
    kernels = PoolProposer(written, local=1.0).propose(make_request(2, parent=parent)).kernels
    assert len(kernels) == 2
    assert all(kernel in written for kernel in kernels)


def test_a_pool_must_fit_its_problem() -> None:
    with pytest.raises(SetupError, match="the pool is empty"):
        PoolProposer([])
    bare = synthetic_problem().model_copy(update={"template": None})
    for pool, problem in (([{"TILE": 4}], synthetic_problem()), (HALF, bare)):
        with pytest.raises(SetupError, match="same recording"):
            PoolProposer(pool).propose(make_request(1, problem=problem))


def test_an_ordered_pool_is_handed_out_once_and_in_order() -> None:
    kernels = synthetic_kernels(5)
    proposer = PoolProposer(kernels, ordered=True)
    shown: list[Proposals] = []
    for count in (2, 1, 2):  # a search asks for as many as its pool has room for
        proposed = sum(len(answer.kernels) for answer in shown)
        request = make_request(count).model_copy(update={"proposed": proposed})
        shown.append(proposer.propose(request))
    assert [kernel for answer in shown for kernel in answer.kernels] == kernels
    assert [answer.exhausted for answer in shown] == [False, False, True]
