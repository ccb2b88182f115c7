"""Small programs of PTX for tests: an instruction applied to each element of some arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelcast.emulator.decoding import numpy_type
from kernelcast.emulator.instructions import decode
from kernelcast.emulator.machine import Extent, Launch, Machine, Order
from kernelcast.emulator.memory import POISON, Arena
from kernelcast.emulator.ptx import SIZES, read_ptx

Array = npt.NDArray[Any]
REGISTERS = """
    .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %d<40>;
"""
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def entry(body: str, parameters: int, before: str = "", head: str = "") -> str:
    """The text of a kernel `k` that takes so many 64-bit parameters p0, p1..."""
    listed = ", ".join(f".param .u64 p{index}" for index in range(parameters))
    return f"{HEAD}{before}\n.visible .entry k({listed}){head}\n{{{REGISTERS}{body}\nret;\n}}\n"


def run(
    text: str,
    arrays: Sequence[Array],
    *,
    grid: Extent = (1, 1, 1),
    block: Extent = (32, 1, 1),
    numbers: Sequence[int] = (),
    shared_bytes: int = 0,
    order: Order = "together",
    steps: int = 1_000_000,
    poison: int = POISON,
) -> Machine:
    """Run a kernel whose first parameters are the addresses of arrays, and then numbers."""
    arena = Arena([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    module = read_ptx(text)
    launch = Launch(grid, block, [*arena.addresses, *numbers], shared_bytes)
    options: dict[str, Any] = {"order": order, "steps": steps, "poison": poison}
    machine = Machine(module, module.entry(), launch, arena, decode, **options)
    machine.run()
    return machine


def result(machine: Machine, index: int, like: Array) -> Array:
    """What an array of a kernel that has run holds."""
    return machine.arena.array(index).view(like.dtype).reshape(like.shape)


_REGISTER = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}


def applied(
    instructions: str, kinds: Sequence[str], kind: str, *values: Sequence[Any] | Array
) -> Array:
    """Apply instructions to registers a, b, c..., which hold the values, for a result z.

    Args:
        instructions: PTX with the names {a}, {b}, {c}, {d} and {z} in it.
        kinds: Types of the values.
        kind: Type of the result.
        values: Values of each operand, one for each lane.
    """
    arrays = [
        np.asarray(value, numpy_type(given)) for value, given in zip(values, kinds, strict=True)
    ]
    count = len(arrays[0])
    output = np.zeros(count, numpy_type(kind))
    names = {}
    lines = ["mov.u32 %r30, %tid.x;", "cvt.u64.u32 %d30, %r30;"]
    for index, given in enumerate([*kinds, kind]):
        size = SIZES[given]
        names["abcd"[index] if index < len(kinds) else "z"] = f"{_REGISTER[size]}{index}"
        lines.append(f"ld.param.u64 %d31, [p{index}];")
        lines.append(f"mad.lo.u64 %d{32 + index}, %d30, {size}, %d31;")
    for index, given in enumerate(kinds):
        lines.append(f"ld.global.b{8 * SIZES[given]} {names['abcd'[index]]}, [%d{32 + index}];")
    lines.append(instructions.format(**names))
    lines.append(f"st.global.b{8 * SIZES[kind]} [%d{32 + len(kinds)}], {names['z']};")
    machine = run(entry("\n".join(lines), len(kinds) + 1), [*arrays, output], block=(count, 1, 1))
    assert not machine.faults
    return result(machine, len(kinds), output)
