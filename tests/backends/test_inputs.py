"""Inputs: of the stated distribution however fast they are made, and never twice the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from kernelcast.backends._arena import Arena, Layout
from kernelcast.backends._inputs import FreshInputs, hidden_cases, make_inputs, sample_inputs
from kernelcast.dtypes import dtype_of
from kernelcast.expression import evaluate
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import Argument, Case, Fill, Hidden, Problem, Special, Tolerance

from .dtype_problems import NARROW, NARROW_FLOATS

SIZE = 50_000  # longer than the pieces that mixing works in
UNLIKELY = 1e-6


def problem_of(
    dtype: Any = "float32", fill: Fill | None = None, hidden: Hidden | None = None
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
            Argument(name="w", role="input", dtype="float32", shape=("N", "2")),
            Argument(name="y", role="output", dtype=dtype, shape=("N",)),
        ),
        cases=(
            Case(name="large", dimensions={"N": SIZE}),
            Case(name="small", dimensions={"N": 7}, timed=False),
        ),
        flops="N",
        bytes="N",
        tolerance=Tolerance(rtol=0.0, atol=0.0),
        oracle_source="",
        seed_source="",
        hidden=hidden,
    )


def case_of(size: int = SIZE, scale: float = 1.0) -> Case:
    return Case(name="main", dimensions={"N": size}, scale=scale)


def fresh(problem: Problem, case: Case, count: int, seed: int = 0) -> list[NDArray[Any]]:
    """The first input's content, so many times anew."""
    rng = np.random.default_rng(seed)
    source = FreshInputs(problem, case, rng)
    size = case.dimensions["N"]
    found = []
    for _ in range(count):
        x = np.empty(size, dtype_of(problem.arguments[0].dtype).stored)
        arrays = [x, np.empty(2 * size, "float32")]
        source.fill(arrays, rng)
        found.append(arrays[0])
    return found


def drawn(problem: Problem, case: Case, seed: int = 0) -> NDArray[Any]:
    array: NDArray[Any] = make_inputs(problem, case, np.random.default_rng(seed))["x"]
    return array


CONTINUOUS = [
    ("float32", Fill(), stats.norm()),
    ("float64", Fill(mean=2.0, std=3.0), stats.norm(2.0, 3.0)),
    ("float32", Fill(mean=-100.0, std=0.5), stats.norm(-100.0, 0.5)),
    ("float32", Fill(kind="uniform"), stats.uniform()),
    ("float64", Fill(kind="uniform", low=-1.0, high=3.0), stats.uniform(-1.0, 4.0)),
]
DISCRETE = [
    ("int32", 0, 10),
    ("int64", -7, 8),
    ("int32", 3, 5),
    ("float32", 0, 5),
    ("int32", -(2**31), 2**31 - 1),
    ("int32", 0, 2**31 - 1),
    ("int64", -(2**40), 2**40),
]


INTEGERS = Fill(kind="integers", low=-3, high=4)


@pytest.mark.parametrize(("dtype", "fill", "distribution"), CONTINUOUS)
def test_both_ways_keep_a_continuous_distribution(
    dtype: str, fill: Fill, distribution: Any
) -> None:
    problem, case = problem_of(dtype, fill), case_of()
    for values in (drawn(problem, case), *fresh(problem, case, 3)):
        assert values.dtype == dtype
        assert stats.kstest(values, distribution.cdf).pvalue > UNLIKELY
        assert values.mean() == pytest.approx(distribution.mean(), abs=0.05 * distribution.std())
        assert values.std() == pytest.approx(distribution.std(), rel=0.05)
        if fill.kind == "uniform":
            assert distribution.support()[0] <= values.min()
            assert values.max() <= distribution.support()[1]


@pytest.mark.parametrize(("dtype", "low", "high"), DISCRETE)
def test_both_ways_keep_whole_numbers_and_their_bounds(dtype: str, low: int, high: int) -> None:
    problem = problem_of(dtype, Fill(kind="integers", low=str(low), high=str(high)))
    case = case_of()
    for values in (drawn(problem, case), *fresh(problem, case, 3)):
        assert values.dtype == dtype
        assert low <= int(values.min())
        assert int(values.max()) < high
        assert np.array_equal(values, np.floor(values))
        if high - low <= 100:
            counts = np.bincount(values.astype(np.int64) - low, minlength=high - low)
            assert stats.chisquare(counts).pvalue > UNLIKELY
        else:
            uniform = stats.uniform(low, high - low)
            assert stats.kstest(values.astype(np.float64), uniform.cdf).pvalue > UNLIKELY


@pytest.mark.parametrize(("dtype", "fill", "distribution"), CONTINUOUS)
def test_one_element_has_the_distribution_from_call_to_call(
    dtype: str, fill: Fill, distribution: Any
) -> None:
    calls = fresh(problem_of(dtype, fill), case_of(64), 2000)
    for index in (0, 63):
        values = [float(each[index]) for each in calls]
        assert stats.kstest(values, distribution.cdf).pvalue > UNLIKELY


def test_neighbouring_elements_and_calls_have_nothing_to_do_with_each_other() -> None:
    calls = np.stack(fresh(problem_of(), case_of(), 20)).astype(np.float64)
    bound = 6 / math.sqrt(SIZE)
    for one, other in (
        (calls[0][1:], calls[0][:-1]),
        *((calls[index], calls[index + 1]) for index in range(19) if index % 2),
    ):
        # Two windows of one pool may be mixed in both calls, but lie at the same place by chance
        # of 1 in 16,384 only.
        assert abs(np.corrcoef(one, other)[0, 1]) < bound


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(dtype, fill) for dtype, fill, _ in CONTINUOUS]
    + [("int32", Fill(kind="integers", low=0, high=2)), ("int64", Fill(kind="integers", high=99))],
)
def test_no_content_comes_twice(dtype: str, fill: Fill) -> None:
    calls = fresh(problem_of(dtype, fill), case_of(256), 3000)
    assert len({each.tobytes() for each in calls}) == len(calls)


def test_every_input_is_filled_and_another_seed_gives_others() -> None:
    problem, case = problem_of(), case_of(100)
    contents = set()
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        arrays = [np.full(100, np.nan, "float32"), np.full(200, np.nan, "float32")]
        FreshInputs(problem, case, rng).fill(arrays, rng)
        assert all(np.isfinite(each).all() for each in arrays)
        contents.add(arrays[0].tobytes() + arrays[1].tobytes())
    assert len(contents) == 2


@given(
    st.sampled_from(["float32", "float64"]),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
    st.sampled_from([1 / 16, 1.0, 16.0]),
    st.integers(1, 300),
)
def test_uniform_bounds_hold_at_every_scale(
    dtype: str, low: float, span: float, scale: float, size: int
) -> None:
    """Rounding to the array's type may reach the upper bound, never pass it."""
    problem = problem_of(dtype, Fill(kind="uniform", low=low, high=low + span))
    case = case_of(size, scale)
    bounds = np.array([low * scale, (low + span) * scale], dtype)
    ulp = np.spacing(np.abs(bounds).max())
    for values in (drawn(problem, case), *fresh(problem, case, 2)):
        assert (values >= bounds[0] - ulp).all()
        assert (values <= bounds[1] + ulp).all()


def test_a_scale_is_for_floating_point_only() -> None:
    normal, large = (
        drawn(problem_of("float64", Fill(mean=2.0)), case_of(scale=scale)) for scale in (1.0, 16.0)
    )
    assert np.allclose(large, 16.0 * normal)
    for values in fresh(problem_of("float64", Fill(mean=2.0)), case_of(scale=1 / 16), 2):
        assert values.mean() == pytest.approx(2 / 16, rel=0.05)
        assert values.std() == pytest.approx(1 / 16, rel=0.05)
    # Whole numbers count or index something, whatever they are stored in.
    for dtype in ("int32", "int64", "float32"):
        problem = problem_of(dtype, Fill(kind="integers", low=0, high=9))
        for scale in (1 / 16, 16.0):
            case = case_of(scale=scale)
            for values in (drawn(problem, case), *fresh(problem, case, 1)):
                assert set(values.tolist()) == set(range(9))


def test_bounds_may_depend_on_the_dimensions() -> None:
    problem = problem_of("int32", Fill(kind="integers", low=0, high="N // 1000"))
    case = case_of(10_000)
    for values in (drawn(problem, case), *fresh(problem, case, 1)):
        assert set(values.tolist()) == set(range(10))


def test_shapes_are_those_of_the_case() -> None:
    inputs = make_inputs(problem_of(), case_of(5), np.random.default_rng(0))
    assert {name: array.shape for name, array in inputs.items()} == {"x": (5,), "w": (5, 2)}
    assert all(array.flags.c_contiguous for array in inputs.values())


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
@pytest.mark.parametrize(
    "fill",
    [Fill(), Fill(mean=3.0, std=0.5), Fill(kind="uniform", low=-1, high=3), INTEGERS],
    ids=["normal", "shifted", "uniform", "integers"],
)
def test_narrow_numbers_are_drawn_and_mixed_alike(dtype: Any, fill: Fill) -> None:
    """Each value comes as often as float64 of the same distribution rounds to it."""
    kind, case = dtype_of(dtype), case_of()
    exact = drawn(problem_of("float64", fill), case, seed=7)
    for values in (drawn(problem_of(dtype, fill), case), *fresh(problem_of(dtype, fill), case, 3)):
        assert values.dtype == kind.numpy
        both = [values.astype(np.float64), kind.rounded(exact).astype(np.float64)]
        edges = np.unique(np.quantile(np.concatenate(both), np.linspace(0, 1, 12)))
        counts = [np.bincount(np.searchsorted(edges, each), minlength=13) for each in both]
        table = np.stack([counts[0], counts[1]])[:, np.sum(counts, axis=0) > 0]
        assert stats.chi2_contingency(table).pvalue > UNLIKELY


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_content_never_comes_twice(dtype: Any) -> None:
    is_float = dtype_of(dtype).is_float
    fill = Fill() if is_float else Fill(kind="integers", low=0, high=2)
    problem, case = problem_of(dtype, fill), case_of(256)
    calls = fresh(problem, case, 1000)
    assert len({each.tobytes() for each in calls}) == len(calls)
    if not is_float:
        for values in (drawn(problem, case_of()), *fresh(problem, case_of(), 2)):
            assert np.bincount(values).tolist() == pytest.approx([SIZE / 2] * 2, rel=0.05)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_inputs_that_are_too_large_for_a_type_are_its_largest(dtype: Any) -> None:
    problem = problem_of(dtype, Fill(std=float(dtype_of(dtype).largest) / 8))
    case = case_of(1000, scale=16.0)
    for values in (drawn(problem, case), *fresh(problem, case, 2)):
        numbers = values.astype(np.float64)
        assert np.isfinite(numbers).all()
        assert np.abs(numbers).max() == dtype_of(dtype).largest


# --------------------------------------------------------------------------------- hidden cases


@settings(max_examples=20)
@given(st.sampled_from(bundled_problems()), st.integers(0, 2**32 - 1))
def test_hidden_cases_of_bundled_problems_are_legal(name: str, seed: int) -> None:
    problem = load_problem(name)
    assert problem.hidden is not None
    largest = Arena.of(problem).size
    cases = hidden_cases(problem, 8, largest, np.random.default_rng(seed))
    assert len({case.name for case in cases}) == len(cases) >= 8
    assert not {case.name for case in cases} & {case.name for case in problem.cases}
    is_drawn = problem.module is not None and problem.module.draw
    scales = (1.0,) if is_drawn else (1.0, 1 / 16, 16.0)
    for index, case in enumerate(cases):
        assert not case.timed
        assert case.scale == (scales[index % len(scales)] if index < 8 else 1.0)
        assert bool(case.special) == (index >= 8)
        assert set(case.dimensions) == set(problem.dimensions)
        for dimension, (low, high) in problem.hidden.dimensions.items():
            assert low <= case.dimensions[dimension] <= high
        assert all(evaluate(each, case.dimensions) for each in problem.hidden.constraints)
    arena = Arena.of(problem, cases)
    assert {case.name for case in cases} < set(arena.cases)  # none was too large
    assert arena.size == largest


def test_both_bounds_are_reached_and_small_sizes_are_as_common_as_large_ones() -> None:
    problem = problem_of(hidden=Hidden(dimensions={"N": (1, 255)}))
    cases = hidden_cases(problem, 3000, 1 << 30, np.random.default_rng(0))
    sizes = np.array([case.dimensions["N"] for case in cases if case.scale == 1.0])
    assert (sizes.min(), sizes.max()) == (1, 255)
    assert np.mean(sizes < 16) == pytest.approx(0.5, abs=0.05)
    assert np.mean(sizes % 2) > 0.3


def test_constraints_and_the_size_are_kept() -> None:
    hidden = Hidden(dimensions={"N": (1, 4096)}, constraints=("N % 3 == 1",))
    problem = problem_of(hidden=hidden)
    for case in hidden_cases(problem, 100, 10_000, np.random.default_rng(0)):
        assert case.dimensions["N"] % 3 == 1
        assert sum(Layout.of(problem, case).lengths) <= 10_000


@pytest.mark.parametrize(
    "hidden",
    [
        None,
        Hidden(dimensions={"N": (1, 100)}, constraints=("N > 100",)),
        Hidden(dimensions={"N": (10**6, 10**7)}),
    ],
    ids=["unstated", "impossible", "too large"],
)
def test_without_legal_shapes_the_smallest_listed_one_is_tried(hidden: Hidden | None) -> None:
    problem = problem_of(hidden=hidden)
    cases = hidden_cases(problem, 4, 1 << 20, np.random.default_rng(0))
    assert [dict(case.dimensions) for case in cases] == [{"N": 7}] * 4
    assert [case.scale for case in cases] == [1.0, 1 / 16, 16.0, 1.0]


def test_hidden_cases_are_drawn_anew_for_every_measurement() -> None:
    problem = load_problem("matmul")
    rng = np.random.default_rng(0)
    first, second = (hidden_cases(problem, 4, 1 << 24, rng) for _ in range(2))
    assert first != second


# ------------------------------------------------------------------------------- special values


def special_of(x: tuple[Special, ...], w: tuple[Special, ...] = ()) -> list[Case]:
    problem = with_special(problem_of(), x=x, w=w)
    return hidden_cases(problem, 0, 1 << 20, np.random.default_rng(0))


def with_special(problem: Problem, **special: tuple[Special, ...]) -> Problem:
    arguments = tuple(
        argument.model_copy(update={"special": special.get(argument.name, ())})
        for argument in problem.arguments
    )
    return problem.model_copy(update={"arguments": arguments})


def test_each_kind_of_special_value_that_is_stated_has_its_case() -> None:
    assert special_of(()) == []
    (case,) = special_of(("nan",))
    assert (case.special, case.timed, case.scale) == ({"x": "nan"}, False, 1.0)
    held = [case.special for case in special_of(("inf", "denormal"), ("nan", "inf"))]
    assert held == [{"x": "denormal"}, {"x": "inf", "w": "inf"}, {"w": "nan"}]


def test_denormals_come_in_all_arrays_and_in_one_alone() -> None:
    together, alone = special_of(("denormal",), ("denormal",))
    assert together.special == {"x": "denormal", "w": "denormal"}
    assert len(alone.special) == 1


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_denormal_inputs_of_narrow_types_are_below_the_normal_numbers(dtype: Any) -> None:
    kind = dtype_of(dtype)
    case = case_of(1000).model_copy(update={"special": {"x": "denormal"}})
    values = np.abs(drawn(problem_of(dtype), case).astype(np.float64))
    assert values.max() == kind.largest_denormal
    assert len(np.unique(values)) > 3


@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float64"]), st.integers(1, 40))
def test_a_few_elements_are_special_and_the_others_are_ordinary(
    seed: int, dtype: str, size: int
) -> None:
    def drawn(special: Special) -> NDArray[Any]:
        case = case_of(size).model_copy(update={"special": {"x": special}})
        inputs = make_inputs(problem_of(dtype), case, np.random.default_rng(seed))
        assert np.isfinite(inputs["w"]).all()
        return inputs["x"]

    for array, is_special in ((x := drawn("nan"), np.isnan(x)), (x := drawn("inf"), np.isinf(x))):
        assert 1 <= np.count_nonzero(is_special) <= 3
        assert np.isfinite(array[~is_special]).all()
    denormal = drawn("denormal")
    largest = np.abs(denormal).max()
    assert largest == np.finfo(dtype).tiny / 16
    assert np.count_nonzero(denormal) == size


def test_both_signs_of_infinity_come() -> None:
    case = case_of().model_copy(update={"special": {"x": "inf"}})
    rng = np.random.default_rng(0)
    drawn = [make_inputs(problem_of(), case, rng)["x"] for _ in range(20)]
    found = np.concatenate([array[np.isinf(array)] for array in drawn])
    assert set(found) == {-np.inf, np.inf}


def test_samples_are_the_first_bytes_of_arrays_that_are_too_large() -> None:
    problem = load_problem("softmax")
    case = problem.timed_cases[0]
    (size, sample), (out_size, zeros) = sample_inputs(problem, case, 4096, np.random.default_rng(1))
    assert size == out_size == 4 * math.prod(case.dimensions.values())
    assert len(sample) == len(zeros) == 4096
    assert np.frombuffer(sample, np.float32).std() > 1.0
    assert not any(zeros)
