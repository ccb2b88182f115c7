"""What the reader of PTX makes of the forms that compilers emit."""

from __future__ import annotations

import pytest

from kernelcast.emulator.ptx import NotEmulated, read_number, read_ptx
from tests.emulator.programs import HEAD, entry


def test_a_function_is_read_with_its_parameters_and_limits() -> None:
    text = f"""{HEAD}
    .visible .entry _Z1kPKfi(
        .param .u64 .ptr .global .align 16 _Z1kPKfi_param_0,
        .param .align 8 .b8 _Z1kPKfi_param_1[24]
    )
    .reqntid 128, 1, 1
    .minnctapersm 2
    {{
        .reg .pred %p<3>;
        .reg .b32 %r<5>, %other;
        ret;
    }}
    """
    module = read_ptx(text)
    function = module.entry()
    assert module.target == "sm_80"
    assert function.name == "_Z1kPKfi"
    assert [(v.name[-7:], v.size, v.align) for v in function.parameters] == [
        ("param_0", 8, 8),
        ("param_1", 24, 8),
    ]
    assert function.threads == (128, 1, 1)
    assert function.registers["%p2"] == "pred"
    assert function.registers["%other"] == "b32"
    assert "%r5" not in function.registers


def test_variables_are_read_with_their_values() -> None:
    before = """
    .extern .shared .align 16 .b8 dynamic[];
    .global .align 1 .b8 text[5] = {104, 105, 0};
    .const .align 4 .f32 half = 0f3F000000;
    .visible .global .align 8 .u64 table[2][2];
    """
    variables = {v.name: v for v in read_ptx(entry("", 0, before)).variables}
    assert variables["dynamic"].size == 0
    assert variables["text"].data == b"hi\0"
    assert variables["text"].size == 5
    assert variables["half"].data == bytes.fromhex("0000003f")
    assert variables["table"].size == 32


def test_instructions_are_read_with_guards_operands_and_lines() -> None:
    body = """
    .loc 1 7 2
    @!%p1 ld.global.v2.f32 {%r1, %r2}, [%d1+-16]; // a comment; with a semicolon
    .loc 2 99 2, function_name $L__info_string0, inlined_at 1 12 4
    st.shared::cta.b32 [ %r1 + 0 ], %r2;
    .loc 1 0 2
    /* another */ bra.uni $end;
    $end:
    """
    blocks = read_ptx(entry(body, 0)).entry().blocks
    load, store, jump = blocks[0]
    assert (load.guard, load.negated, load.line) == ("%p1", True, 7)
    assert load.modifiers == ("global", "v2", "f32")
    assert load.operands == ("{%r1, %r2}", "[%d1+-16]")
    assert (store.modifiers, store.operands[0], store.line) == (
        ("shared::cta", "b32"),
        "[ %r1 + 0 ]",
        12,
    )
    assert jump.line == 12


def test_what_the_compiler_adds_where_a_block_begins_is_for_what_follows() -> None:
    body = """
    .loc 1 7 2
    mov.u32 %r1, %tid.x;
    $next:
    .loc 1 0 2
    ld.shared.u32 %r2, [%r1];
    .loc 1 9 2
    add.u32 %r2, %r2, %r1;
    .loc 1 0 2
    st.shared.u32 [%r1], %r2;
    """
    first, second, *_ = read_ptx(entry(body, 0)).entry().blocks
    assert [instruction.line for instruction in (*first, *second)][:4] == [7, 9, 9, 9]


def test_what_debuggers_read_is_left_out() -> None:
    text = (
        entry("ret;", 0)
        + """
    .file 1 "kernel.cu"
    .section .debug_str
    {
    $L__info_string0:
    .b8 95
    .b8 90
    }
    """
    )
    assert list(read_ptx(text).functions) == ["k"]


@pytest.mark.parametrize(
    ("text", "bits"),
    [("12", 12), ("-1", -1), ("0x1F", 31), ("017", 15), ("0f3F800000", 0x3F800000), ("7U", 7)],
)
def test_numbers(text: str, bits: int) -> None:
    assert read_number(text) == bits


def test_names_are_no_numbers() -> None:
    assert read_number("%r1") is None
    assert read_number("0f12") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "without a function"),
        ("hello world", "without a function"),
        (entry("bra $nowhere;", 0), "a label that is not there"),
        (entry(".reg .strange %x;", 0), "strange"),
        (entry(".surprise 3;", 0), "surprise"),
        (entry("", 0, ".global .align 8 .u64 p = generic(x);"), "initial value"),
    ],
)
def test_what_is_not_understood_is_named(text: str, words: str) -> None:
    with pytest.raises(NotEmulated, match=words):
        read_ptx(text)


def test_several_entries_must_be_told_apart() -> None:
    text = entry("", 0) + entry("", 0).replace(" k(", " other(").removeprefix(HEAD)
    module = read_ptx(text)
    assert module.entry("other").name == "other"
    with pytest.raises(NotEmulated, match="2 entries"):
        module.entry()
