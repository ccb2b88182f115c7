from __future__ import annotations

import math
import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import overhead
from kernelcast.backends._arena import Arena, Layout
from kernelcast.backends._inputs import hidden_cases
from kernelcast.backends._verify import (
    Image,
    KnownAnswer,
    OutputError,
    differences,
    lint,
)
from kernelcast.dtypes import Name, dtype_of
from kernelcast.errors import ProblemError
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import (
    Argument,
    Case,
    Failure,
    FailureKind,
    Fill,
    Problem,
    Special,
    Tolerance,
)

from .conftest import plain_reference
from .dtype_problems import EVERY_FLOAT, NARROW, NARROW_FLOATS

IDENTITY = "def reference(x, *, N):\n    return x\n"


def make_problem(
    source: str = IDENTITY,
    dtype: Any = "float32",
    fill: Fill | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    outputs: tuple[str, ...] = ("y",),
    size: int = 33,
    scale: float = 1.0,
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
        cases=(Case(name="main", dimensions={"N": size}, scale=scale),),
        flops="N",
        bytes="N",
        tolerance=Tolerance(rtol=rtol, atol=atol),
        oracle_source=source,
        seed_source="",
    )


def draw(problem: Problem, seed: int = 0) -> tuple[KnownAnswer, NDArray[np.uint8]]:
    """A answer, and the memory after a perfect kernel ran on it."""
    rng = np.random.default_rng(seed)
    answer = KnownAnswer.draw(problem, problem.cases[0], plain_reference(problem), rng)
    slot = answer.image.content.copy()
    for name in answer.bounds:
        array(answer, slot, name)[:] = answer.bounds[name].low
    return answer, slot


def array(of: KnownAnswer | Image, slot: NDArray[np.uint8], name: str) -> NDArray[Any]:
    image = of.image if isinstance(of, KnownAnswer) else of
    index = [each.name for each in image.arguments].index(name)
    start, length = image.layout.offsets[index], image.layout.lengths[index]
    return slot[start : start + length].view(dtype_of(image.arguments[index].dtype).stored)


def refused(answer: KnownAnswer, slot: NDArray[np.uint8]) -> Failure:
    failure = answer.check(slot)
    assert failure is not None
    return failure


def test_right_output_is_accepted_and_the_untouched_image_is_not() -> None:
    answer, slot = draw(make_problem())
    assert answer.check(slot) is None
    failure = refused(answer, answer.image.content)
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "33 of 33" in failure.message


def special_answer(
    special: Special, source: str = IDENTITY, *, atol: float = 1e-4, size: int = 1000
) -> tuple[KnownAnswer, NDArray[np.uint8]]:
    """The answer to one case with special values, and the memory after a right kernel."""
    problem = make_problem(source, rtol=1e-4, atol=atol)
    case = Case(name="special", dimensions={"N": size}, special={"x": special})
    answer = KnownAnswer.draw(problem, case, plain_reference(problem), np.random.default_rng(0))
    slot = answer.image.content.copy()
    array(answer, slot, "y")[:] = answer.exact["y"]
    return answer, slot


def test_nan_must_be_kept_and_must_not_spread() -> None:
    answer, slot = special_answer("nan")
    honest = answer.errors(slot)
    assert answer.check(slot, honest) is None
    y = array(answer, slot, "y")
    y[np.isnan(y)] = 0.0
    failure = refused(answer, slot)
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "case special (inputs hold NaN): y[" in failure.message
    y[:] = np.nan
    assert "elements are wrong" in refused(answer, slot).message


@pytest.mark.parametrize("other", [np.finfo(np.float32).max, np.nan, 0.0, -np.inf])
def test_infinity_must_be_kept_with_its_sign(other: float) -> None:
    answer, slot = special_answer("inf", "def reference(x, *, N):\n    return abs(x)\n")
    assert answer.check(slot, answer.errors(slot)) is None
    y = array(answer, slot, "y")
    y[np.isinf(y)] = other
    assert "(inputs hold infinity)" in refused(answer, slot).message


def test_rows_beside_special_values_are_held_to_their_precision() -> None:
    answer, slot = special_answer("inf")
    honest = answer.errors(slot)
    y = array(answer, slot, "y")
    y *= np.float32(1 + 8e-5)  # within the tolerance
    failure = answer.check(slot, honest)
    assert failure is not None
    assert "less precise" in failure.message


@pytest.mark.parametrize("name", ["conv2d", "layernorm", "matmul", "stencil"])
def test_bundled_problems_with_special_values_tell_right_from_wrong(name: str) -> None:
    problem = load_problem(name)
    rng = np.random.default_rng(0)
    telling: dict[str, int] = {}
    for case in (case for _ in range(8) for case in hidden_cases(problem, 0, 1 << 22, rng)):
        answer = KnownAnswer.draw(problem, case, plain_reference(problem), rng)
        (exact,) = answer.exact.values()
        finite = np.isfinite(exact)
        if "denormal" in case.special.values():
            found = 0 < np.median(np.abs(exact)) < np.finfo(np.float32).tiny
        else:
            found = 0 < np.count_nonzero(finite) < exact.size
        telling[case.name] = telling.get(case.name, 0) + found
    tells = {name for name, count in telling.items() if count >= 7}
    stated = {kind for argument in problem.arguments for kind in argument.special}
    assert len(tells) >= len(stated)


@pytest.mark.parametrize("atol", [1e-4, 0.0])
def test_a_kernel_that_flushes_denormals_is_found(atol: float) -> None:
    answer, slot = special_answer(
        "denormal", "def reference(x, *, N):\n    return 0.5 * x\n", atol=atol
    )
    honest = answer.errors(slot)
    y = array(answer, slot, "y")
    unit = np.finfo(np.float32).smallest_subnormal
    y[::2] += 4 * unit  # rounding is absolute among denormals
    y[1::2] -= 4 * unit
    assert answer.check(slot, honest) is None
    half = y.copy()
    half[: half.size // 2] = 0.0
    for flushed in (np.zeros_like(y), half):
        y[:] = flushed
        assert "(inputs hold denormals)" in refused(answer, slot).message


def test_denormals_that_no_result_depends_on_leave_the_tolerance_as_it_is() -> None:
    answer, slot = special_answer("denormal", "def reference(x, *, N):\n    return 1.0 + x\n")
    assert answer.tolerance.atol == 1e-4
    assert answer.check(slot, answer.errors(slot)) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_one_unwritten_element_is_found(dtype: str) -> None:
    fill = Fill(kind="integers", low=-5, high=6)
    answer, slot = draw(make_problem(dtype=dtype, fill=fill))
    assert answer.check(slot) is None
    array(answer, slot, "y")[-1] = array(answer, answer.image.content, "y")[-1]
    failure = refused(answer, slot)
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "y[32]" in failure.message
    assert "1 of 33" in failure.message


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_tolerance_is_absolute_plus_relative_for_each_element(value: float, error: float) -> None:
    source = f"import numpy as np\ndef reference(x, *, N):\n    return np.full(N, {value!r})\n"
    problem = make_problem(source, dtype="float64", rtol=1e-2, atol=0.5)
    answer, slot = draw(problem)
    array(answer, slot, "y")[:] = value
    assert answer.check(slot) is None
    array(answer, slot, "y")[4] = value + error
    allowed = 0.5 + 1e-2 * abs(value)
    if abs(error) < allowed * (1 - 1e-9) - 1e-9:
        assert answer.check(slot) is None
    elif abs(error) > allowed * (1 + 1e-9) + 1e-9:
        assert refused(answer, slot).kind is FailureKind.WRONG_RESULT


def test_rounding_the_oracle_to_single_precision_is_never_an_error() -> None:
    source = "def reference(x, *, N):\n    return x.astype('float64') / 3\n"
    answer, slot = draw(make_problem(source))
    array(answer, slot, "y")[:] = array(answer, slot, "x").astype(np.float64) / 3
    assert answer.check(slot) is None


def test_nan_and_infinity_must_be_where_the_oracle_has_them() -> None:
    source = (
        "import numpy as np\n"
        "def reference(x, *, N):\n"
        "    y = x.astype(np.float64); y[1] = np.nan; y[2] = np.inf; y[3] = -np.inf\n"
        "    return y\n"
    )
    answer, slot = draw(make_problem(source, rtol=1e-3, atol=1e-3))
    y = array(answer, slot, "y")
    y[1] = np.float32("nan")
    assert answer.check(slot) is None
    for index, wrong in ((0, np.nan), (1, 0.0), (2, 1e38), (2, np.nan), (3, np.inf)):
        right = y[index]
        y[index] = wrong
        assert f"y[{index}]" in refused(answer, slot).message
        y[index] = right
    y[1] = array(answer, answer.image.content, "y")[
        1
    ]  # the poison is a NaN too, but nobody wrote it
    assert "y[1]" in refused(answer, slot).message


def test_changed_input_is_cheating_and_a_damaged_guard_is_wrong() -> None:
    answer, slot = draw(make_problem(outputs=("y", "z"), source=IDENTITY.replace("x\n", "x, x\n")))
    assert answer.check(slot) is None
    array(answer, slot, "x")[7] += 1
    failure = refused(answer, slot)
    assert failure.kind is FailureKind.CHEATING
    assert "input x" in failure.message

    layout = answer.image.layout
    ends = [offset + length for offset, length in zip(layout.offsets, layout.lengths, strict=True)]
    for position, words in (
        (0, "between the start and x"),
        (ends[0], "between x and y"),
        (layout.offsets[2] - 1, "between y and z"),
        (ends[2], "past the end of z"),
        (layout.stride - 1, "past the end of z"),
    ):
        _, slot = draw(make_problem(outputs=("y", "z"), source=IDENTITY.replace("x\n", "x, x\n")))
        slot[position] ^= 1
        failure = refused(answer, slot)
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


def test_integer_output_needs_a_finite_oracle() -> None:
    source = "import numpy as np\ndef reference(x, *, N):\n    return np.full(N, np.nan)\n"
    with pytest.raises(ProblemError, match="NaN or infinity"):
        draw(make_problem(source, dtype="int32", fill=Fill(kind="integers", high=9)))


def test_other_seeds_give_other_inputs() -> None:
    problem = make_problem()
    first, again, other = (draw(problem, seed)[0].image.content for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


# ------------------------------------------------------------------------- the error budget

THIRD = "def reference(x, *, N):\n    return x.astype('float64') / 3\n"


def answered(answer: KnownAnswer, values: NDArray[Any]) -> NDArray[np.uint8]:
    slot = answer.image.content.copy()
    array(answer, slot, "y")[:] = values
    return slot


def third(rtol: float, seed: int, size: int = 4096, scale: float = 1.0) -> KnownAnswer:
    return draw(make_problem(THIRD, rtol=rtol, size=size, scale=scale), seed)[0]


def noisy(answer: KnownAnswer, relative: float, seed: int) -> NDArray[np.uint8]:
    """The exact answer with so much relative error an element."""
    exact = answer.exact["y"]
    noise = np.random.default_rng(seed).standard_normal(exact.size)
    return answered(answer, exact * (1 + relative * noise))


@given(st.integers(0, 2**32 - 1), st.floats(1e-8, 1e-5), st.floats(0.0, 1.8))
def test_as_much_error_as_the_reference_has_is_accepted(
    seed: int, relative: float, factor: float
) -> None:
    answer = third(1e-2, seed)
    honest = answer.errors(noisy(answer, relative, seed + 1))
    assert answer.check(noisy(answer, factor * relative, seed + 2), honest) is None


@given(st.integers(0, 2**32 - 1))
def test_a_lower_precision_is_found_although_every_element_is_within_the_tolerance(
    seed: int,
) -> None:
    answer = draw(make_problem(THIRD, rtol=5e-3, atol=1e-6, size=4096), seed)[0]
    exact = answer.exact["y"].astype(np.float32)
    honest = answer.errors(answered(answer, exact))
    half = answered(answer, exact.astype(np.float16))
    short = answered(answer, (exact.view(np.uint32) & 0xFFFFE000).view(np.float32))
    for low in (half, short):
        assert answer.check(low) is None
        failure = answer.check(low, honest)
        assert failure is not None
        assert failure.kind is FailureKind.WRONG_RESULT
        assert "less precise than the reference" in failure.message
    assert answer.check(answered(answer, np.nextafter(exact, np.float32(9))), honest) is None


def test_a_reference_of_low_precision_may_be_matched() -> None:
    answer = third(5e-3, 1)
    half = answered(answer, answer.exact["y"].astype(np.float16))
    assert answer.check(half, answer.errors(half)) is None


def test_few_elements_have_no_mean_to_hold_them_to() -> None:
    answer = third(5e-3, 1, size=255)
    half = answered(answer, answer.exact["y"].astype(np.float16))
    assert (
        answer.check(half, answer.errors(answered(answer, answer.exact["y"].astype(np.float32))))
        is None
    )


def test_errors_are_measured_against_the_oracle() -> None:
    answer = third(1e-2, 3, size=400)
    exact = answer.exact["y"]
    off = exact.astype(np.float32)
    off[7] += 0.5
    error = answer.errors(answered(answer, off))["y"]
    assert error.worst == pytest.approx(0.5, rel=1e-3)
    tolerance = answer.tolerance.atol + answer.tolerance.rtol * abs(exact[7])
    assert error.rms == pytest.approx(0.5 / tolerance / 20, rel=1e-3)
    for bad in (np.nan, np.inf):
        off[7] = bad
        assert answer.errors(answered(answer, off))["y"] == OutputError(
            math.inf, math.inf, math.inf
        )
    unwritten = answer.errors(answer.image.content)["y"]
    assert unwritten == OutputError(math.inf, math.inf, math.inf)


def test_one_large_element_does_not_decide_on_the_budget() -> None:
    """It would be the reference's luck with that element, and no measure for other inputs."""
    answer = third(1e-4, 3, size=400)
    exact = answer.exact["y"]
    exact[7] = 1e4
    off = (exact * (1 + 1e-5)).astype(np.float32)
    error = answer.errors(answered(answer, off))["y"]
    assert error.worst == pytest.approx(0.1, rel=1e-2)
    assert error.rms == pytest.approx(0.1, rel=0.05)


def test_sums_in_another_order_are_as_good_at_every_magnitude() -> None:
    """An element that cancels to nearly nothing must not decide: one in fifty failed by it."""
    problem = load_problem("matmul")
    case = Case(name="c", dimensions={"M": 8, "N": 83, "K": 92}, timed=False, scale=16.0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        answer = KnownAnswer.draw(problem, case, plain_reference(problem), rng)
        a, b = answer.image.arrays(answer.image.content, "input")
        left, right = a.reshape(8, 92).T, b.reshape(92, 83)
        products = left[:, :, None] * right[:, None, :]
        one_by_one = np.add.accumulate(products, axis=0, dtype=np.float32)[-1]
        by_fours = products.reshape(23, 4, 8, 83)
        pairs = (by_fours[:, 0] + by_fours[:, 1]) + (by_fours[:, 2] + by_fours[:, 3])
        another = np.add.accumulate(pairs, axis=0, dtype=np.float32)[-1]
        slots = [answer.image.content.copy() for _ in range(2)]
        for slot, values in zip(slots, (one_by_one, another), strict=True):
            (output,) = answer.image.arrays(slot, "output")
            output[:] = values.reshape(-1)
        assert answer.check(slots[1], answer.errors(slots[0])) is None


def test_a_huge_error_is_an_error_not_a_warning() -> None:
    problem = make_problem(THIRD, dtype="float64", rtol=1e-2, size=400)
    answer, slot = draw(problem)
    array(answer, slot, "y")[3] = 1e300
    failure = answer.check(slot, {"y": OutputError(1e-9, 1e-9, 1e-9)})
    assert failure is not None
    assert "y[3]" in failure.message


def test_integers_have_no_error_budget() -> None:
    fill = Fill(kind="integers", low=0, high=9)
    answer, slot = draw(make_problem(dtype="int32", fill=fill, size=400))
    assert answer.errors(slot) == {}
    assert answer.check(slot, {}) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from([1 / 16, 16.0]))
def test_other_magnitudes_are_allowed_what_the_reference_needs_there(
    seed: int, scale: float
) -> None:
    """The tolerance was stated for the usual magnitudes; elsewhere the reference is the measure."""
    answer = third(0.0, seed, size=100, scale=scale)
    reference = noisy(answer, 1e-5, seed + 1)
    honest = answer.errors(reference)
    assert answer.check(reference) is not None
    assert answer.check(reference, honest) is None
    off = array(answer, reference, "y").copy()
    off[11] = answer.exact["y"][11] + 3.5 * honest["y"].worst
    assert answer.check(answered(answer, off), honest) is None
    off[11] = answer.exact["y"][11] + 4.5 * honest["y"].worst
    failure = answer.check(answered(answer, off), honest)
    assert failure is not None
    assert "y[11]" in failure.message


def test_the_usual_magnitudes_are_not_widened() -> None:
    answer = third(0.0, 1, size=100)
    reference = noisy(answer, 1e-5, 2)
    assert answer.check(reference, answer.errors(reference)) is not None


# ------------------------------------------------------------- against the trusted reference


def trusted(
    dtype: str, rtol: float, atol: float, seed: int, size: int = 33
) -> tuple[Image, Tolerance, NDArray[np.uint8]]:
    """An image and what the reference made of it: outputs of all magnitudes."""
    fill = Fill(kind="integers", low=-5, high=6)
    problem = make_problem(dtype=dtype, fill=fill, outputs=("y", "z"), size=size)
    rng = np.random.default_rng(seed)
    image = Image.blank(problem, problem.cases[0], rng)
    array(image, image.content, "x")[:] = rng.integers(-5, 6, size)
    slot = image.content.copy()
    for name in ("y", "z"):
        values = rng.standard_normal(size) * 10.0 ** rng.integers(0, 6, size)
        array(image, slot, name)[:] = values.astype(dtype)
    return image, Tolerance(rtol=rtol, atol=atol), slot


FLOATS = st.sampled_from(["float32", "float64"])


@given(FLOATS, st.floats(1e-5, 1e-1), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_a_difference_of_twice_the_tolerance_is_borne(
    dtype: str, rtol: float, atol: float, seed: int
) -> None:
    image, tolerance, right = trusted(dtype, rtol, atol, seed)
    assert differences(image, tolerance, {}, right, right) is None
    slot, rng = right.copy(), np.random.default_rng(seed)
    for name in ("y", "z"):
        theirs = array(image, right, name).astype(np.float64)
        share = rng.uniform(-1.99, 1.99, theirs.size)
        array(image, slot, name)[:] = theirs + share * (atol + rtol * np.abs(theirs))
    assert differences(image, tolerance, {}, slot, right) is None


@given(
    st.sampled_from(["float32", "float64", "int32", "int64"]),
    st.sampled_from(["y", "z"]),
    st.integers(0, 32),
    st.floats(2.02, 1e6),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_one_wrong_element_is_found(
    dtype: str, name: str, index: int, times: float, up: bool, seed: int
) -> None:
    image, tolerance, right = trusted(dtype, 1e-3, 1.0, seed)
    slot = right.copy()
    value = float(array(image, right, name)[index])
    step = times * (1.0 + 1e-3 * abs(value)) + (1.0 if dtype.startswith("int") else 0.0)
    array(image, slot, name)[index] = np.clip(value + (step if up else -step), -2e9, 2e9)
    failure = differences(image, tolerance, {}, slot, right)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT
    assert f"{name}[{index}]" in failure.message
    assert "1 of 33" in failure.message


@given(FLOATS, st.integers(0, 32), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_no_number_must_be_so_in_both(dtype: str, index: int, special: float) -> None:
    image, tolerance, right = trusted(dtype, 1e-2, 1.0, index)
    wrong = right.copy()
    array(image, wrong, "y")[index] = special
    for slot, reference in ((wrong, right), (right, wrong)):
        failure = differences(image, tolerance, {}, slot, reference)
        assert failure is not None
        assert f"y[{index}]" in failure.message
    assert differences(image, tolerance, {}, wrong, wrong) is None
    for other in {np.inf, -np.inf} - {special}:
        slot = wrong.copy()
        array(image, slot, "y")[index] = other
        assert differences(image, tolerance, {}, slot, wrong) is not None


@given(FLOATS, st.integers(0, 32))
def test_the_poison_is_never_right(dtype: str, index: int) -> None:
    """Not even where the reference computes a NaN."""
    image, tolerance, right = trusted(dtype, 1e-2, 1.0, index)
    for reference_says in (1.0, np.nan):
        array(image, right, "y")[index] = reference_says
        slot = right.copy()
        array(image, slot, "y")[index] = array(image, image.content, "y")[index]
        failure = differences(image, tolerance, {}, slot, right)
        assert failure is not None
        assert f"y[{index}]" in failure.message


def test_the_first_wrong_elements_are_told_with_the_case() -> None:
    """What a person or a model needs to find the cause."""
    answer, slot = draw(make_problem())
    expected = answer.exact["y"]
    output = array(answer, slot, "y")
    output[:] = expected
    output[[5, 7, 11, 12]] += 100.0
    told = refused(answer, slot).message.splitlines()
    assert re.fullmatch(
        rf"case \w+: y\[5\] is {output[5]}, expected \S+ to \S+; 4 of 33 elements are wrong",
        told[0],
    )
    assert [line.partition(" is ")[0] for line in told[1:-1]] == ["y[7]", "y[11]"]
    case = answer.image.case
    assert told[-1] == f"case {case.name} has N=33"


def test_a_wrong_element_is_found_wherever_it_lies() -> None:
    """The comparison works in pieces."""
    size = (1 << 16) + 77
    image, tolerance, right = trusted("float32", 1e-3, 0.0, 1, size)
    for index in (0, (1 << 15) - 1, 1 << 15, size - 1):
        slot = right.copy()
        array(image, slot, "z")[index] *= 2
        failure = differences(image, tolerance, {}, slot, right)
        assert failure is not None
        assert f"z[{index}]" in failure.message


@given(st.data())
def test_what_is_written_apart_from_the_outputs_is_found(data: st.DataObject) -> None:
    image, tolerance, right = trusted("float32", 1e-2, 1.0, 5)
    spans = {
        argument.name: range(offset, offset + length) for argument, offset, length in image._spans()
    }
    outputs = {*spans["y"], *spans["z"]}
    elsewhere = sorted({*range(image.layout.stride)} - outputs)
    at = data.draw(st.sampled_from(elsewhere))
    slot = right.copy()
    slot[at] ^= data.draw(st.integers(1, 255))
    failure = differences(image, tolerance, {}, slot, right)
    assert failure is not None
    if at in spans["x"]:
        assert failure.kind is FailureKind.CHEATING
        assert "changed its input x" in failure.message
    else:
        assert failure.kind is FailureKind.WRONG_RESULT
        assert "wrote outside" in failure.message


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_integers_differ_without_wrapping_around(low: int, high: int) -> None:
    image, _, right = trusted("int32", 0.0, 0.0, 1)
    tolerance = Tolerance(rtol=0.0, atol=2000.0)
    bounds = np.iinfo(np.int32)
    array(image, right, "y")[4] = bounds.min + abs(low)
    slot = right.copy()
    assert differences(image, tolerance, {}, slot, right) is None
    array(image, slot, "y")[4] = bounds.max - abs(high)
    assert differences(image, tolerance, {}, slot, right) is not None


# ------------------------------------------------------------------------------------- arenas


@pytest.mark.parametrize("name", bundled_problems())
def test_an_arena_has_room_for_two_calls_of_any_case(name: str) -> None:
    problem = load_problem(name)
    arena = Arena.of(problem)
    for case in problem.cases:
        stride = arena.layouts[case.name].stride
        assert arena.most_calls(case.name) >= 1
        assert (arena.most_calls(case.name) + 1) * stride <= arena.size
        named = zip(problem.dimensions, arena.extents(case.name), strict=True)
        assert dict(named) == dict(case.dimensions)
    giant = Case(name="giant", dimensions=dict.fromkeys(problem.dimensions, 4096), timed=False)
    tiny = Case(name="small", dimensions=dict.fromkeys(problem.dimensions, 3), timed=False)
    wider = Arena.of(problem, [giant, tiny])
    assert wider.size == arena.size  # so that one process of the reference serves them all
    assert set(wider.cases) - set(arena.cases) == {"small"}


# --------------------------------------------------------------------------------------- lint


@pytest.mark.parametrize("name", bundled_problems("cpp"))
def test_bundled_problems_can_tell_right_from_wrong(name: str) -> None:
    problem = load_problem(name)
    lint(problem, plain_reference(problem), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("np.zeros(N)", "a kernel that ignores its inputs would be right"),
        ("np.full(N, np.nan)", "holds no finite number"),
        ("np.full(N, np.inf)", "holds no finite number"),
        ("np.where(np.arange(N) < 3, x, 1.0)", "only 0.5% of y changes"),
        ("1.0 + 1e-6 * x", "only 0.0% of y changes"),
        ("np.full(N, x.mean())", "only 0.0% of y changes"),
    ],
)
def test_a_problem_that_a_constant_solves_is_refused(answer: str, complaint: str) -> None:
    source = f"import numpy as np\ndef reference(x, *, N):\n    return {answer}\n"
    problem = make_problem(source, rtol=1e-2, atol=0.3, size=400)
    with pytest.raises(ProblemError, match=complaint):
        lint(problem, plain_reference(problem), np.random.default_rng(0))


def test_a_problem_is_refused_for_a_single_case_that_a_constant_solves() -> None:
    """A kernel may go by the shape: what it does in the other cases does not matter then."""
    source = "import numpy as np\ndef reference(x, *, N):\n    return x if N < {} else x * 0\n"
    small = Case(name="small", dimensions={"N": 40}, timed=False)
    for bound, refused in ((1000, False), (100, True)):
        plain = make_problem(source.format(bound), rtol=1e-4, size=400)
        problem = plain.model_copy(update={"cases": (*plain.cases, small)})
        with pytest.raises(ProblemError, match="case 'main'") if refused else nullcontext():
            lint(problem, plain_reference(problem), np.random.default_rng(0))


def test_cases_too_small_to_tell_are_not_held_against_a_problem() -> None:
    source = "def reference(x, *, N):\n    return x if N > 1 else x * 0\n"
    plain = make_problem(source, rtol=1e-4)
    one = Case(name="one", dimensions={"N": 1}, timed=False)
    problem = plain.model_copy(update={"cases": (*plain.cases, one)})
    lint(problem, plain_reference(problem), np.random.default_rng(0))


def test_an_input_that_is_drawn_the_same_in_some_cases_is_held_against_none() -> None:
    """GPU MODE's masks are all ones in some cases; kernels read them for the others."""
    plain = make_problem("def reference(x, w, *, N):\n    return x * w\n", rtol=1e-4)
    weight = Argument(
        name="w", role="input", dtype="float32", shape=("N",), fill=Fill(kind="drawn")
    )
    x, y = plain.arguments
    other = Case(name="other", dimensions={"N": 40}, timed=False)

    def inputs(problem: Problem, case: Case, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        (size,) = case.dimensions.values()
        drawn = rng.random(size) if case.name == "other" else np.ones(size)
        return {"x": rng.standard_normal(size), "w": drawn}

    for cases, refused in (((*plain.cases, other), False), (plain.cases, True)):
        problem = plain.model_copy(update={"arguments": (x, weight, y), "cases": cases})
        with pytest.raises(ProblemError, match="w is the same") if refused else nullcontext():
            lint(problem, plain_reference(problem), np.random.default_rng(0), inputs)


@pytest.mark.parametrize("elements", [16, 76, 77, 20_000])
def test_the_problem_that_overhead_is_measured_on_is_sound_on_machines_of_any_speed(
    elements: int,
) -> None:
    problem = overhead.arithmetic(elements)
    lint(problem, plain_reference(problem), np.random.default_rng(0))


def test_an_input_that_changes_nothing_is_refused() -> None:
    def two_inputs(answer: str) -> Problem:
        plain = make_problem(f"def reference(x, w, *, N):\n    return {answer}\n", rtol=1e-4)
        weight = Argument(name="w", role="input", dtype="float32", shape=("1",))
        x, y = plain.arguments
        return plain.model_copy(update={"arguments": (x, weight, y)})

    sound = two_inputs("x + w")
    lint(sound, plain_reference(sound), np.random.default_rng(0))
    for answer in ("x", "x + 0 * w", "x + 1e-9 * w"):
        problem = two_inputs(answer)
        with pytest.raises(ProblemError, match="the input w changes nothing"):
            lint(problem, plain_reference(problem), np.random.default_rng(0))


def test_timed_outputs_have_a_budget_too() -> None:
    """Within the tolerance, element by element, and still a lower precision."""
    answer = third(5e-3, 1, size=4000)
    exact = answer.exact["y"]
    honest = answer.errors(answered(answer, exact.astype(np.float32)))
    right = answered(answer, exact.astype(np.float32))
    half = answered(answer, exact.astype(np.float16))
    assert differences(answer.image, answer.tolerance, honest, right, right) is None
    failure = differences(answer.image, answer.tolerance, honest, half, right)
    assert failure is not None
    assert "less precise" in failure.message


def test_a_guard_written_to_another_shows() -> None:
    """Guards are NaNs, and no two of them are the same."""
    answer, slot = draw(make_problem(THIRD, size=400))
    end = answer.image.layout.offsets[1] + answer.image.layout.lengths[1]
    slot[end : end + 4] = slot[:4]
    failure = answer.check(slot)
    assert failure is not None
    assert "past the end" in failure.message
    guards = answer.image.content[: answer.image.layout.offsets[0]]
    assert np.isnan(guards.view(np.float32)).all()
    assert np.isnan(guards.view(np.float64)).all()


# ------------------------------------------------------------------------------- narrow types


def problem_in(name: Name, source: str = IDENTITY, **facts: Any) -> Problem:
    fill = Fill() if dtype_of(name).is_float else Fill(kind="integers", low=0, high=2)
    return make_problem(source, dtype=name, fill=facts.pop("fill", fill), **facts)


def rounded(name: Name, exact: NDArray[Any]) -> NDArray[Any]:
    """What a kernel writes that calculates precisely."""
    return dtype_of(name).rounded(exact).astype(dtype_of(name).stored)


def beside(array: NDArray[Any], units: int) -> NDArray[Any]:
    """Numbers that are so many units further from zero."""
    bits = array.view(f"i{array.itemsize}")
    moved: NDArray[Any] = bits + bits.dtype.type(units)
    return moved.view(array.dtype)


@given(st.sampled_from(NARROW), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-3, 0.1]))
def test_narrow_outputs_are_right_if_they_are_rounded_right(
    name: Name, seed: int, rtol: float
) -> None:
    is_float = dtype_of(name).is_float
    source = (
        IDENTITY.replace("return x", "return x.astype('float64') / 3") if is_float else IDENTITY
    )
    answer, slot = draw(problem_in(name, source, rtol=rtol), seed)
    right = rounded(name, answer.exact["y"])
    output = array(answer, slot, "y")
    output[:] = right
    assert answer.check(slot, answer.errors(slot)) is None
    assert differences(answer.image, answer.tolerance, answer.errors(slot), slot, slot) is None

    place = int(np.argmax(np.abs(answer.exact["y"])))
    above = answer.bounds["y"].high[place : place + 1].astype(output.dtype)
    near = beside(above, -1 if is_float and above[0] < 0 else 1)[0]
    far = -right[place] if is_float else near
    unwritten = array(answer, answer.image.content, "y")[place]
    for wrong in (near, far, unwritten):
        if wrong == right[place]:  # a random integer is right by chance
            continue
        bad = slot.copy()
        array(answer, bad, "y")[place] = wrong
        assert f"y[{place}]" in refused(answer, bad).message
        failure = differences(answer.image, answer.tolerance, {}, bad, slot)
        assert (failure is not None) or (is_float and wrong == near)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_outputs_that_nobody_wrote_are_wrong(name: Name) -> None:
    answer, slot = draw(problem_in(name, size=400))
    failure = refused(answer, answer.image.content)
    assert failure.kind is FailureKind.WRONG_RESULT
    y = array(answer, slot, "y")
    y[200:] = array(answer, answer.image.content, "y")[200:]
    assert "elements are wrong" in refused(answer, slot).message


def test_a_bool_is_0_or_1() -> None:
    answer, slot = draw(problem_in("bool"))
    right = slot.copy()
    assert array(answer, answer.image.content, "y").min() >= 2
    array(answer, slot, "y")[:] *= 2
    assert "is 2, expected 1 to 1" in refused(answer, slot).message
    assert differences(answer.image, answer.tolerance, {}, slot, right) is not None


@pytest.mark.parametrize("name", ["int8", "uint8", "int16"])
def test_the_least_and_the_largest_integer_can_be_right(name: Name) -> None:
    kind = dtype_of(name)
    source = (
        "import numpy as np\ndef reference(x, *, N):\n"
        f"    return np.where(np.arange(N) % 2, {kind.largest}, {kind.lowest})\n"
    )
    answer, slot = draw(problem_in(name, source))
    assert set(array(answer, slot, "y").tolist()) == {int(kind.lowest), int(kind.largest)}
    assert answer.check(slot) is None


@pytest.mark.parametrize("name", EVERY_FLOAT)
def test_reading_a_guard_shows_in_every_type(name: Name) -> None:
    answer, _ = draw(problem_in(name, size=5000))
    guard = answer.image.content[: answer.image.layout.offsets[0]]
    for other in EVERY_FLOAT:
        if dtype_of(other).bytes >= min(dtype_of(name).bytes, 4):
            assert np.isnan(guard.view(dtype_of(other).numpy)).all()
    assert len(np.unique(guard)) > 1


@pytest.mark.parametrize("name", NARROW_FLOATS)
def test_what_is_too_large_for_a_type(name: Name) -> None:
    """It is infinity; of a float8 also the largest number; and NaN where there is no infinity."""
    kind = dtype_of(name)
    source = f"def reference(x, *, N):\n    return x.astype('float64') * {kind.largest}\n"
    answer, slot = draw(problem_in(name, source, size=1000, rtol=0.1))
    exact = answer.exact["y"]
    output = array(answer, slot, "y")
    largest, numbers = kind.largest, kind.rounded(exact)
    ways = {"inf": numbers.copy(), "largest": np.clip(numbers, -largest, largest)}
    ways["nan"] = np.where(np.isinf(numbers), np.float32(np.nan), numbers)
    right = {"inf": kind.has_infinity, "largest": kind.saturates, "nan": not kind.has_infinity}
    slots = {}
    for way, values in ways.items():
        output[:] = values.astype(kind.numpy)
        if right[way]:
            errors = answer.errors(slot)
            assert math.isfinite(errors["y"].rms)
            assert answer.check(slot, errors) is None
            slots[way] = slot.copy()
        elif way != "inf":  # which e4m3fn does not hold
            assert answer.check(slot) is not None
    for one in slots.values():
        for other in slots.values():
            assert differences(answer.image, answer.tolerance, {}, one, other) is None


@pytest.mark.parametrize("name", NARROW_FLOATS)
@pytest.mark.parametrize("scale", [1 / 16, 1.0, 16.0])
def test_a_kernel_that_rounds_between_steps_is_less_precise(name: Name, scale: float) -> None:
    """An honest kernel rounds once, from float32."""
    source = "def reference(x, *, N):\n    return x.astype('float64') * 1.7 / 3 + 0.01\n"
    rtol = 8 * dtype_of(name).eps
    answer, slot = draw(problem_in(name, source, size=4000, scale=scale, rtol=rtol, atol=1e-3))
    x = array(answer, answer.image.content, "x").astype(np.float32)
    output, stored = array(answer, slot, "y"), dtype_of(name).numpy
    output[:] = (x * np.float32(1.7) / np.float32(3) + np.float32(0.01)).astype(stored)
    honest = answer.errors(slot)
    assert answer.check(slot, honest) is None
    output[:] = (output.astype(np.float32) * np.float32(1 + 2.5 * dtype_of(name).eps)).astype(
        stored
    )
    assert answer.check(slot) is None or scale != 1.0
    assert answer.check(slot, honest) is not None


def test_an_output_that_a_narrow_type_rounds_away_is_refused() -> None:
    source = "def reference(x, *, N):\n    return 1.0 + 1e-4 * x\n"
    problem = problem_in("float8_e4m3fn", source, size=64)
    with pytest.raises(ProblemError, match="would be right"):
        lint(problem, plain_reference(problem), np.random.default_rng(0))
