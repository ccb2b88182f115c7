"""Which pipe of the hardware an instruction of PTX goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernelcast.emulator.ptx import SIZES, Instruction

Kind = Literal[
    "free", "integer", "multiply", "wide", "divide", "divide_integer", "float", "special", "double",
    "convert", "convert_double", "matrix", "shuffle", "control", "barrier", "load_shared",
    "store_shared", "load_global", "store_global", "load_local", "store_local", "load_constant",
    "atomic",
]  # fmt: skip
"""The pipe that an instruction of PTX goes through; several of the machine may be made of one."""

_SPECIAL = frozenset({"sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh"})
ACCESSES = frozenset({"ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wmma"})
"""Opcodes of what uses memory; of `wmma`, the product does not."""


def kind_of(instruction: Instruction) -> Kind:
    """Return the pipe that an instruction goes through."""
    opcode, modifiers = instruction.opcode, {*instruction.modifiers}
    types = instruction.types
    kind = types[-1] if types else ""
    is_float = kind in ("f32", "f16", "bf16", "f16x2", "bf16x2", "f64")
    if opcode in ACCESSES and not (opcode == "wmma" and "mma" in modifiers):
        return _kind_of_access(instruction)
    if opcode in ("bar", "barrier"):
        return "control" if "warp" in modifiers else "barrier"
    if opcode in ("bra", "brx", "ret", "exit", "call", "trap"):
        return "control"
    if opcode in ("mma", "wmma"):
        return "matrix"
    if opcode in ("shfl", "vote", "match", "redux", "activemask", "elect"):
        return "shuffle"
    if opcode in ("mov", "cvta", "membar", "fence", "prefetch", "discard", "nanosleep"):
        return "free"
    if opcode == "cvt":
        return _kind_of_conversion(types)
    if opcode in _SPECIAL:
        return "double" if kind == "f64" else "special"
    if opcode in ("div", "rem"):
        return "double" if kind == "f64" else "divide" if is_float else "divide_integer"
    if kind == "f64":
        return "double"
    if is_float and opcode in ("add", "sub", "mul", "fma", "mad"):
        return "float"
    if opcode in ("mul", "mad", "mul24", "mad24", "dp4a", "dp2a", "madc"):
        return "multiply"
    if SIZES.get(kind, 4) == 8 and opcode not in ("selp", "setp"):
        return "wide"
    return "integer"


def _kind_of_conversion(types: Sequence[str]) -> Kind:
    if "f64" in types:
        return "convert_double"
    if all(kind[0] in "usb" and not kind.startswith("bf") for kind in types):
        return "free" if types[0].startswith(("u", "b")) else "integer"
    return "convert"


def _kind_of_access(instruction: Instruction) -> Kind:
    opcode, modifiers = instruction.opcode, {*instruction.modifiers}
    if opcode in ("atom", "red"):
        return "atomic"
    if opcode == "cp":
        return "load_global" if "shared" in modifiers or "shared::cta" in modifiers else "free"
    if "param" in modifiers:
        return "free"
    stores = opcode in ("st", "stmatrix") or "store" in modifiers
    if opcode in ("ldmatrix", "stmatrix") or modifiers & {"shared", "shared::cta"}:
        return "store_shared" if stores else "load_shared"
    if "local" in modifiers:
        return "store_local" if stores else "load_local"
    if "const" in modifiers:
        return "load_constant"
    return "store_global" if stores else "load_global"
