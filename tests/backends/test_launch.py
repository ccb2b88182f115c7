"""Launches that a kernel states: read from text that is not trusted, without its working."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.backends import _launch
from kernelcast.backends._launch import Launch, read_launch
from kernelcast.expression import MOST_BITS, MOST_CHARACTERS
from kernelcast.types import Case, FailureKind

CASES = [Case(name="main", dimensions={"N": 77})]
PRAGMA = "#pragma kernelcast grid(N) block({})\n"


def read(source: str) -> Launch:
    launch = read_launch(source)
    assert launch is not None
    return launch


def refused(source: str) -> str:
    fault = read(source).fault(CASES)
    assert fault is not None
    assert fault.kind is FailureKind.COMPILE_ERROR
    assert len(fault.message) < 3 * MOST_CHARACTERS
    return fault.message


def test_only_what_the_launch_reaches_is_worked_out() -> None:
    source = "#define A 64\n#define B A / 2\n#define C 7\n#define D C * C\n" + PRAGMA.format("B")
    launch = read(source)
    assert dict(launch.constants) == {"A": 64, "B": 32}
    assert launch.block_extent({"N": 1}) == (32, 1, 1)


def test_the_last_of_several_definitions_counts_and_comments_do_not() -> None:
    source = "#define A 1\n#define A 2 // two\n#define B A /* one */ + 1\n#define B no number(\n"
    assert dict(read(source + PRAGMA.format("B")).constants) == {"A": 2, "B": 3}


@pytest.mark.parametrize(
    ("defines", "block"),
    [
        ("#define A0 65536\n" + "".join(f"#define A{n + 1} A{n}*A{n}\n" for n in range(99)), "A99"),
        ("#define A '%1999999999d' % 1\n", "A"),
        ("#define A 'a' * 1000000000\n", "A"),
        (f"#define A {'9' * MOST_CHARACTERS}\n", "A"),
        (f"#define A {'(' * 900}1{')' * 900}\n", "A"),
        ("#define A A\n", "A"),
        ("#define A B\n#define B A\n", "A"),
    ],
)
def test_a_constant_that_is_too_large_is_none(defines: str, block: str) -> None:
    launch = read(defines + PRAGMA.format(block))
    assert all(int(value).bit_length() <= MOST_BITS for _, value in launch.constants)
    assert f"unknown name '{block}'" in refused(defines + PRAGMA.format(block))


def test_few_of_many_macros_are_worked_out() -> None:
    many = "#define A0 64\n" + "".join(f"#define A{n + 1} A{n}\n" for n in range(5_000))
    assert len(read(many + PRAGMA.format("A5000")).constants) <= _launch._MOST_DEFINES
    assert "unknown name 'A5000'" in refused(many + PRAGMA.format("A5000"))
    assert read(many + PRAGMA.format("A9")).block_extent({}) == (64, 1, 1)
    again = "".join(f"#define A {n}\n" for n in range(5_000))
    assert len(read(again + PRAGMA.format("A")).constants) == 1


def test_a_line_that_is_too_long_states_no_launch() -> None:
    assert read_launch(PRAGMA.format("1" + " " * MOST_CHARACTERS)) is None
    assert read_launch("#pragma kernelcast " + "grid(" * 100_000) is None


@pytest.mark.parametrize(
    "extent",
    [
        "'12'",
        "N * 1e30",
        "2 ** 9",
        "N / (N - 77)",
        "1" + "0" * 30,
        "(" * 90 + "N" + ")" * 90,
        "1e999",
    ],
)
def test_extents_that_are_no_extents_fail_the_kernel(extent: str) -> None:
    refused(f"#pragma kernelcast grid({extent}) block(1)\n")
    refused(f"#pragma kernelcast grid(1) block({extent})\n")
    refused(f"#pragma kernelcast grid(1) block(1) shared({extent})\n")


PIECES = (
    *("#define A ", "#pragma kernelcast ", "grid(", "block(", "shared(", ")", "N", "A", "9" * 50),
    *("*", "/*", "*/", "//", "'", '"', "%", "\n", "\\\n", "(", ",", " ", "#", "\ud800"),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=80).map("".join))
def test_any_text_is_a_launch_a_failure_or_nothing(source: str) -> None:
    launch = read_launch(source)
    if launch is None:
        return
    fault = launch.fault(CASES)
    if fault is None:
        assert max(launch.grid_extent({"N": 77})) < 2**31
        assert launch.shared_bytes({"N": 77}) < 2**31
    else:
        assert fault.kind is FailureKind.COMPILE_ERROR
