from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelcast.backends._verify import Layout, Sample, make_inputs, oracle
from kernelcast.errors import ProblemError
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import (
    Argument,
    Case,
    Failure,
    FailureKind,
    Fill,
    Problem,
    Tolerance,
)

IDENTITY = "def reference(x, *, N):\n    return x\n"


def make_problem(
    source: str = IDENTITY,
    dtype: Any = "float32",
    fill: Fill | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    outputs: tuple[str, ...] = ("y",),
) -> Problem:
    return Problem(
        name="tiny",
        family="test",
        summary="",
        language="cpp",
        entry="kernel",
        dimensions=("N",),
        arguments=(
            Argument(name="x", role="input", dtype=dtype, shape=("N",), fill=fill or Fill()),
            *(Argument(name=name, role="output", dtype=dtype, shape=("N",)) for name in outputs),
        ),
        cases=(Case(name="main", dimensions={"N": 33}),),
        flops="N",
        bytes="N",
        tolerance=Tolerance(rtol=rtol, atol=atol),
        oracle_source=source,
        seed_source="",
    )


def draw(problem: Problem, seed: int = 0) -> tuple[Sample, NDArray[np.uint8]]:
    """A sample, and the memory after a perfect kernel ran on it."""
    rng = np.random.default_rng(seed)
    sample = Sample.draw(problem, problem.cases[0], oracle(problem), rng)
    slot = sample.image.copy()
    for name in sample.expected:
        array(sample, slot, name)[:] = sample.expected[name].low
    return sample, slot


def array(sample: Sample, slot: NDArray[np.uint8], name: str) -> NDArray[Any]:
    index = [each.name for each in sample.arguments].index(name)
    start, length = sample.layout.offsets[index], sample.layout.lengths[index]
    return slot[start : start + length].view(sample.arguments[index].dtype)


def refused(sample: Sample, slot: NDArray[np.uint8]) -> Failure:
    failure = sample.check(slot)
    assert failure is not None
    return failure


def test_right_output_is_accepted_and_the_untouched_image_is_not() -> None:
    sample, slot = draw(make_problem())
    assert sample.check(slot) is None
    failure = refused(sample, sample.image.copy())
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "33 of 33" in failure.message


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_one_unwritten_element_is_found(dtype: str) -> None:
    fill = Fill(kind="integers", low=-5, high=6)
    sample, slot = draw(make_problem(dtype=dtype, fill=fill))
    assert sample.check(slot) is None
    array(sample, slot, "y")[-1] = array(sample, sample.image, "y")[-1]
    failure = refused(sample, slot)
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "y[32]" in failure.message
    assert "1 of 33" in failure.message


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_tolerance_is_absolute_plus_relative_for_each_element(value: float, error: float) -> None:
    source = f"import numpy as np\ndef reference(x, *, N):\n    return np.full(N, {value!r})\n"
    problem = make_problem(source, dtype="float64", rtol=1e-2, atol=0.5)
    sample, slot = draw(problem)
    array(sample, slot, "y")[:] = value
    assert sample.check(slot) is None
    array(sample, slot, "y")[4] = value + error
    allowed = 0.5 + 1e-2 * abs(value)
    if abs(error) < allowed * (1 - 1e-9) - 1e-9:
        assert sample.check(slot) is None
    elif abs(error) > allowed * (1 + 1e-9) + 1e-9:
        assert refused(sample, slot).kind is FailureKind.WRONG_RESULT


def test_rounding_the_oracle_to_single_precision_is_never_an_error() -> None:
    source = "def reference(x, *, N):\n    return x.astype('float64') / 3\n"
    sample, slot = draw(make_problem(source))
    array(sample, slot, "y")[:] = array(sample, slot, "x").astype(np.float64) / 3
    assert sample.check(slot) is None


def test_nan_and_infinity_must_be_where_the_oracle_has_them() -> None:
    source = (
        "import numpy as np\n"
        "def reference(x, *, N):\n"
        "    y = x.astype(np.float64); y[1] = np.nan; y[2] = np.inf; y[3] = -np.inf\n"
        "    return y\n"
    )
    sample, slot = draw(make_problem(source, rtol=1e-3, atol=1e-3))
    y = array(sample, slot, "y")
    y[1] = np.float32("nan")
    assert sample.check(slot) is None
    for index, wrong in ((0, np.nan), (1, 0.0), (2, 1e38), (2, np.nan), (3, np.inf)):
        right = y[index]
        y[index] = wrong
        assert f"y[{index}]" in refused(sample, slot).message
        y[index] = right
    y[1] = array(sample, sample.image, "y")[1]  # the poison is a NaN too, but nobody wrote it
    assert "y[1]" in refused(sample, slot).message


def test_changed_input_is_cheating_and_a_damaged_guard_is_wrong() -> None:
    sample, slot = draw(make_problem(outputs=("y", "z"), source=IDENTITY.replace("x\n", "x, x\n")))
    assert sample.check(slot) is None
    array(sample, slot, "x")[7] += 1
    failure = refused(sample, slot)
    assert failure.kind is FailureKind.CHEATING
    assert "input x" in failure.message

    ends = [
        offset + length
        for offset, length in zip(sample.layout.offsets, sample.layout.lengths, strict=True)
    ]
    for position, words in (
        (0, "between the start and x"),
        (ends[0], "between x and y"),
        (sample.layout.offsets[2] - 1, "between y and z"),
        (ends[2], "past the end of z"),
        (sample.layout.stride - 1, "past the end of z"),
    ):
        _, slot = draw(make_problem(outputs=("y", "z"), source=IDENTITY.replace("x\n", "x, x\n")))
        slot[position] ^= 1
        failure = refused(sample, slot)
        assert failure.kind is FailureKind.WRONG_RESULT
        assert words in failure.message


def test_arrays_are_aligned_and_apart() -> None:
    problem = make_problem(outputs=("y", "z"))
    layout = Layout.of(problem, problem.cases[0])
    assert all(offset % 64 == 0 for offset in layout.offsets)
    ends = [0, *(o + n for o, n in zip(layout.offsets, layout.lengths, strict=True))]
    starts = [*layout.offsets, layout.stride]
    assert all(start - end >= 256 for start, end in zip(starts, ends, strict=True))
    assert layout.stride % 4096 == 0


def test_the_oracle_cannot_change_what_the_kernel_gets() -> None:
    source = "def reference(x, *, N):\n    x[:] = 0\n    return x\n"
    sample, _ = draw(make_problem(source))
    assert np.count_nonzero(array(sample, sample.image, "x")) == 33


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n", "define a function reference"),
        ("def reference(x, *, N):\n    return x[1:]\n", "shape"),
        ("def reference(x, *, N):\n    return x, x\n", "2 arrays, not 1"),
        ("def reference(x, *, N):\n    return 1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_broken_oracle_is_a_problem_error(source: str, complaint: str) -> None:
    with pytest.raises(ProblemError, match=complaint):
        draw(make_problem(source))


def test_integer_output_needs_a_finite_oracle() -> None:
    source = "import numpy as np\ndef reference(x, *, N):\n    return np.full(N, np.nan)\n"
    with pytest.raises(ProblemError, match="NaN or infinity"):
        draw(make_problem(source, dtype="int32", fill=Fill(kind="integers", high=9)))


def test_fills() -> None:
    rng = np.random.default_rng(3)
    case = Case(name="main", dimensions={"N": 10_000})

    def values(dtype: str, fill: Fill) -> NDArray[Any]:
        array = make_inputs(make_problem(dtype=dtype, fill=fill), case, rng)["x"]
        assert array.dtype == dtype
        assert array.shape == (10_000,)
        return array

    normal = values("float32", Fill(mean=2.0, std=3.0))
    assert normal.mean() == pytest.approx(2.0, abs=0.2)
    assert normal.std() == pytest.approx(3.0, abs=0.2)
    uniform = values("float64", Fill(kind="uniform", low=-1.0, high=3.0))
    assert -1.0 <= uniform.min() < -0.9
    assert 2.9 < uniform.max() < 3.0
    integers = values("int32", Fill(kind="integers", low=0, high="N // 1000"))
    assert set(integers.tolist()) == set(range(10))


def test_other_seeds_give_other_inputs() -> None:
    problem = make_problem()
    first, again, other = (draw(problem, seed)[0].image for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", bundled_problems())
def test_bundled_oracles_answer_on_their_correctness_cases(name: str) -> None:
    problem = load_problem(name)
    for case in problem.cases:
        if not case.timed:
            sample = Sample.draw(problem, case, oracle(problem), np.random.default_rng(0))
            assert sample.check(sample.image.copy()) is not None
