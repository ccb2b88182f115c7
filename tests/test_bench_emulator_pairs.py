"""The pairs of kernels of known order, and how answers about them are counted."""

from __future__ import annotations

import pytest

import emulator_pairs
from _ordered_pairs import PAIRS
from emulator_pairs import Answer
from kernelcast.backends._launch import read_launch
from tests.backends.gpu_problems import need_nvcc


def test_there_are_60_different_pairs_of_many_kinds() -> None:
    assert len(PAIRS) == 60
    assert len({pair.name for pair in PAIRS}) == 60
    assert len({pair.kind for pair in PAIRS}) >= 12
    assert all(pair.slow.id != pair.fast.id for pair in PAIRS)
    assert len({kernel.id for pair in PAIRS for kernel in (pair.slow, pair.fast)}) > 110


def test_every_kernel_states_a_launch_that_its_problem_can_have() -> None:
    for pair in PAIRS:
        for kernel in (pair.slow, pair.fast):
            launch = read_launch(kernel.source)
            assert launch is not None, pair.name
            assert launch.fault(pair.problem.cases) is None, pair.name
            assert "@@" not in kernel.source, pair.name


def test_the_quick_pairs_are_of_different_kinds() -> None:
    assert len({pair.kind for pair in emulator_pairs.quick_pairs()}) == 8


def answered(pair: str, ratio: float | None) -> Answer:
    return Answer(pair, "made up", "RTX-3090", ratio, ("", ""))


def test_close_reversed_and_missing_estimates_are_wrong() -> None:
    lines = [
        answered("clear", 1.5),
        answered("close", 1.01),
        answered("reversed", 0.5),
        answered("not emulated", None),
    ]
    result = emulator_pairs.scores(lines)
    assert result["emulator_right"] == 0.25
    assert [line["pair"] for line in result["wrong"]] == ["close", "reversed", "not emulated"]
    assert result["by_kind"]["made up"]["pairs"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "scaling with threads down the columns",
        "recurrence along rows of 32",
        "division by the same number again and again",
    ],
)
def test_a_pair_is_ordered(name: str) -> None:
    need_nvcc()
    line = emulator_pairs.answer(name, "RTX-3090")
    assert line.emulator_right, line
