"""Unknown instructions are named without running them, jumps, barriers and calls included."""

from __future__ import annotations

import pytest

from kernelcast.emulator.known import unknown_instructions
from kernelcast.emulator.ptx import read_ptx
from tests.emulator.programs import HEAD, REGISTERS, entry


def unknown(body: str, before: str = "") -> list[str]:
    """The opcodes with modifiers that are not known in an entry."""
    return [name for name, _ in unknown_instructions(read_ptx(entry(body, 1, before)))]


def function(name: str, body: str) -> str:
    """The text of a function that can be called."""
    return f".visible .func {name}()\n{{{REGISTERS}{body}\nret;\n}}\n"


def test_all_unknown_instructions_are_named_once() -> None:
    body = "brkpt; add.u32 %r1, %r2, 3; brkpt; wgmma.fence.sync.aligned; bar.sync 0;"
    assert unknown(body) == ["brkpt", "wgmma.fence.sync.aligned"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("bar.sync 0;", []),
        ("bar.sync 1, 64;", []),
        ("barrier.sync.aligned 0;", []),
        ("bar.sync %r1;", ["bar.sync"]),
        ("bar.arrive 0, 64;", ["bar.arrive"]),
        ("bar.red.popc.u32 %r1, 0, %p1;", ["bar.red.popc.u32"]),
        ("call (%d1), %d2, (%d3);", ["call"]),
        ("call.uni away, ();", ["call.uni"]),
        ("trap; exit;", []),
    ],
)
def test_what_ends_a_block_is_read_before_it_is_run(body: str, names: list[str]) -> None:
    assert unknown(body) == names


def test_what_is_called_is_read_too() -> None:
    inner = function("inner", "brkpt;")
    outer = function("outer", "call.uni inner, (); bar.sync 0;")
    alone = function("alone", "wgmma.fence.sync.aligned;")
    assert sorted(unknown("call.uni outer, ();", inner + outer + alone)) == ["bar.sync", "brkpt"]


def test_every_entry_is_read() -> None:
    second = f".visible .entry second()\n{{{REGISTERS} brkpt;\nret;\n}}\n"
    text = entry("ret;", 1) + second
    assert text.startswith(HEAD)
    assert [name for name, _ in unknown_instructions(read_ptx(text))] == ["brkpt"]
