"""The kernels with a planted fault, and how what is said of them is counted."""

from __future__ import annotations

from collections import Counter

import pytest

import emulator_faults
from _planted_faults import FAULTS, LATER_FAULTS, Check, PlantedFault
from _right_kernels import right_kernels
from emulator_faults import Outcome
from kernelcast.backends._emulation import WORDS
from kernelcast.types import Failure, FailureKind
from tests.backends.gpu_problems import need_nvcc, need_triton
from tests.hooks import gate_runs


def test_there_are_40_different_faults_of_all_kinds() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 40
    checks = Counter(fault.check for fault in FAULTS)
    assert checks["race"] >= 8
    assert checks["guard"] >= 10
    assert checks["poison"] >= 5
    assert checks["barrier"] >= 3
    assert checks["order"] >= 3
    assert sum(fault.base.startswith("triton") for fault in FAULTS) >= 6


def test_every_edit_is_possible_once_and_changes_the_kernel() -> None:
    faults = [*FAULTS, *LATER_FAULTS]
    assert len({fault.sample.kernel.id for fault in faults}) == len(faults)
    right = {sample.kernel.id for sample in right_kernels().values()}
    assert not right & {fault.sample.kernel.id for fault in faults}
    with pytest.raises(ValueError, match="not exactly once"):
        _ = PlantedFault("race", "twice", "seed: matmul", "__syncthreads();", "").sample


def test_the_right_kernels_are_different_and_small_enough() -> None:
    samples = right_kernels().values()
    assert len({sample.kernel.id for sample in samples}) >= 60
    assert all(any(not case.timed for case in sample.problem.cases) for sample in samples)
    assert Counter(sample.language for sample in samples)["triton"] >= 12


@pytest.mark.parametrize(
    ("message", "check"),
    [
        (f"{WORDS['race']}: line 3", "race"),
        (f"{WORDS['misaligned']}: line 3", "guard"),
        (f"{WORDS['unwritten']}: case main", "poison"),
        (f"{WORDS['order']}: wrong", "order"),
        ("case main: out[0] is 1.0, expected 2.0 to 2.0", "result"),
    ],
)
def test_a_failure_tells_the_check(message: str, check: Check) -> None:
    failure = Failure(kind=FailureKind.WRONG_RESULT, message=message)
    assert emulator_faults.noticed_by(failure) == check


def test_what_does_not_compile_is_not_noticed() -> None:
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="expected a ;")
    assert emulator_faults.noticed_by(failure) is None
    assert emulator_faults.noticed_by(None) is None


def said(name: str, check: Check | None, message: str = "", cpu_s: float = 1.0) -> Outcome:
    return Outcome(name, check, message, cpu_s > 0.0, 2.0, cpu_s)


def test_missed_faults_and_other_checks_are_counted_and_named() -> None:
    race = PlantedFault("race", "race", "seed: matmul", "", "")
    guard = PlantedFault("guard", "guard", "seed: matmul", "", "")
    found = [said("a", "race", "x"), said("b", "race", "x"), said("c", None), said("d", None, "x")]
    result = emulator_faults.noticed([race, guard, guard, race], found)
    assert (result["noticed"], result["noticed_by_right_check"]) == (2, 1)
    named = [(one["fault"], one["noticed_by"]) for one in result["otherwise"]]
    assert named == [("guard", "race"), ("guard", None), ("race", None)]
    assert result["by_check"]["race"] == {"faults": 2, "noticed": 1}


def test_false_alarms_and_what_is_not_emulated_are_counted_and_named() -> None:
    right = [said("e", None), said("f", "race", "x"), said("g", None, "brkpt", cpu_s=0.0)]
    result = emulator_faults.alarms(right)
    assert (result["right_kernels"], result["false_alarms"], result["not_emulated"]) == (3, 1, 1)
    assert [one["said"] for one in result["alarms"]] == ["x", "brkpt"]
    assert result["cpu_s"] == {"compile": [2.0, 2.0, 2.0], "compute": [1.0, 1.0, 1.0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    gate_runs(
        2,
        [
            "threads without an element leave their place in a tree of maxima",
            "a barrier for the columns of the matrix alone",
            "Triton: what is masked counts in a variance",
            "an asynchronous copy is used before it has ended",
            "warps add to a sum that the first warp sets to zero",
            "warps add to a sum in global memory without atomics",
        ],
    ),
)
def test_a_fault_is_noticed_by_its_check_and_the_right_kernel_is_not(name: str) -> None:
    need_nvcc()
    need_triton()
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    outcome = emulator_faults.judge(fault.sample, emulator_faults.DEVICE)
    assert outcome.noticed_by == fault.check, outcome
    right = emulator_faults.judge(right_kernels()[fault.base], emulator_faults.DEVICE)
    assert (right.noticed_by, right.message, right.is_emulated) == (None, "", True)
