"""The recorded edits are what they say they are."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from kernelcast.backends.cpp import CppBackend
from kernelcast.problems import load_problem
from kernelcast.testing import make_kernel
from kernelcast.types import Move
from tests.recorded_edits import PROBLEMS, Edit, Quality, edits_of

ALL = [edit for problem in PROBLEMS for edit in edits_of(problem).values()]
EVERY = 48


def test_there_are_many_of_all_kinds() -> None:
    assert len(ALL) >= 150
    assert all(len(edits_of(problem)) >= 50 for problem in PROBLEMS)
    assert set(Counter(edit.quality for edit in ALL)) == set(get_args(Quality))
    assert sum(not edit.truthful for edit in ALL) >= 30
    assert sum(edit.is_rewrite for edit in ALL) >= 40
    assert len({edit.source for edit in ALL}) == len(ALL)


@pytest.mark.parametrize("edit", ALL, ids=lambda edit: f"{edit.problem}-{edit.number}")
def test_an_answer_is_one_that_a_model_may_give(edit: Edit) -> None:
    assert 0 < len(edit.answer["idea"]) <= 300
    assert set(edit.answer["moves"]) <= set(get_args(Move))
    assert ("kernel" in edit.answer) != ("edits" in edit.answer)


@pytest.mark.slow
@pytest.mark.measures
def test_what_fails_fails_as_stated_and_the_rest_runs() -> None:
    """Of every forty-eighth; speeds are not held to, for they depend on the machine."""
    wrong = []
    backend = CppBackend()
    for edit in ALL[::EVERY]:
        measured = backend.measure(load_problem(edit.problem), make_kernel(edit.source), seed=1)
        found = str(measured.failure.kind) if measured.failure else "runs"
        stated = edit.quality if edit.quality not in ("faster", "same", "slower") else "runs"
        if found != stated:
            why = measured.failure.message if measured.failure else ""
            wrong.append(f"{edit.problem} {edit.number}: {found}, stated {edit.quality}: {why}")
    backend.close()
    assert not wrong
