"""How an instruction reads its operands and writes its result.

An instruction that has a modifier which its reader did not ask for is not emulated: ignoring one
would give a wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.emulator.lanes import Group, Step, Value, raw_type
from kernelcast.emulator.machine import Machine
from kernelcast.emulator.memory import Mask
from kernelcast.emulator.ptx import SIZES, Function, Instruction, NotEmulated, read_number

Read = Callable[[Group], Value]
Write = Callable[[Group, Value, Mask | None], None]

KINDS = {
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
    "s8": "i1",
    "s16": "i2",
    "s32": "i4",
    "s64": "i8",
}
"""NumPy's names of the types that are no plain bits."""


def numpy_type(kind: str) -> str:
    """Return NumPy's name of a type; what NumPy has no type for is bits."""
    if kind == "pred":
        return "?"
    return KINDS.get(kind, raw_type(SIZES[kind]))


@dataclass(frozen=True)
class Address:
    """An operand such as `[%rd1+16]`: a register or a symbol, and an offset."""

    read: Read
    offset: int


def names_in(text: str) -> list[str]:
    """Return the names of an operand such as `{%r1, %r2}`, or the one name."""
    return [name.strip() for name in text.strip("{} ").split(",")]


@dataclass(frozen=True)
class Decode:
    """An instruction that is being made ready to run."""

    instruction: Instruction
    function: Function
    machine: Machine

    @property
    def operands(self) -> Sequence[str]:
        """The texts of its operands."""
        return self.instruction.operands

    @property
    def kind(self) -> str:
        """The last of the instruction's types."""
        types = self.instruction.types
        if not types:
            raise self.unknown()
        return types[-1]

    def unknown(self, what: str = "") -> NotEmulated:
        """Return the error that names the instruction."""
        return NotEmulated(f"{what}{': ' if what else ''}{self.instruction.text}")

    def has(self, modifier: str) -> bool:
        """Whether the instruction has a modifier."""
        return modifier in self.instruction.modifiers

    def one_of(self, *modifiers: str) -> str:
        """Return the first of these modifiers that it has, or ""."""
        return next((name for name in modifiers if name in self.instruction.modifiers), "")

    def only(self, modifiers: Collection[str] | str = "", kinds: str = "") -> None:
        """Refuse other modifiers, and other types than these.

        Raises:
            NotEmulated: There is another one.
        """
        allowed = {*modifiers.split()} if isinstance(modifiers, str) else {*modifiers}
        types = kinds.split()
        for name in self.instruction.modifiers:
            if name not in allowed and (name not in SIZES or (types and name not in types)):
                raise self.unknown()

    def read(self, text: str, kind: str) -> Read:
        """Return what reads an operand as a value of a type."""
        wanted, size = numpy_type(kind), SIZES[kind]
        if text.startswith("!") and kind == "pred":
            positive = self.read(text[1:].strip(), kind)
            return lambda group: ~positive(group)
        if text.startswith("-") and text[1:2] == "%":
            raise self.unknown()
        if text in self.function.registers:
            return self._register(text, kind)
        if text in self._special():
            raw = raw_type(size)
            return lambda group: group.special[text].astype(raw).view(wanted)
        if (address := self.symbol(text)) is not None:
            return address
        bits = read_number(text)
        if bits is None:
            raise self.unknown()
        if kind == "pred":
            constant = np.full((), bool(bits))
        else:
            constant = np.full((), bits % (1 << 8 * size), raw_type(size)).view(wanted)
        return lambda _: constant

    def _register(self, name: str, kind: str) -> Read:
        own = self.function.registers[name]
        wanted, size, width = numpy_type(kind), SIZES[kind], SIZES[own]
        if (own == "pred") != (kind == "pred") or width < size:
            raise self.unknown()
        if width == size:
            return lambda group: group.now.registers[name].view(wanted)
        raw = raw_type(size)
        return lambda group: group.now.registers[name].astype(raw).view(wanted)

    def _special(self) -> Collection[str]:
        axes = [f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"]
        masks = [f"%lanemask_{name}" for name in ("eq", "lt", "le", "gt", "ge")]
        return {*axes, *masks, "%laneid", "%warpid", "WARP_SZ"}

    def symbol(self, name: str) -> Read | None:
        """Return what reads the address of a variable in its own space, or None."""
        layout = self.machine.layout
        if name in layout.shared or name in layout.arena:
            place = np.full((), layout.shared.get(name, layout.arena.get(name, 0)), np.uint64)
            return lambda _: place
        frame = self.machine.decoded(self.function.name).frame
        if name in frame:
            offset = frame[name]
            return lambda group: np.full((), group.now.base + offset, np.uint64)
        return None

    def write(self, text: str) -> Write:
        """Return what writes a register; a narrower value is extended."""
        if text == "_":
            return lambda _group, _value, _mask: None
        if text not in self.function.registers:
            raise self.unknown()
        kind = self.function.registers[text]
        if kind == "pred":

            def write(group: Group, value: Value, mask: Mask | None) -> None:
                registers = group.now.registers
                registers[text] = value if mask is None else np.where(mask, value, registers[text])

            return write
        width = SIZES[kind]
        raw, signed = raw_type(width), f"i{width}"

        def write_bits(group: Group, value: Value, mask: Mask | None) -> None:
            size = value.dtype.itemsize
            if size > width:
                bits = value.astype(raw)
            elif size < width:
                is_signed = value.dtype.kind == "i"
                bits = value.astype(signed) if is_signed else value.view(f"u{size}").astype(raw)
                bits = bits.view(raw)
            else:
                bits = value.view(raw)
            registers = group.now.registers
            registers[text] = bits if mask is None else np.where(mask, bits, registers[text])

        return write_bits

    def mapped(self, compute: Callable[..., Value], *kinds: str, first: int = 1) -> Step:
        """Return a step that writes what a function makes of the operands from `first` on."""
        texts = self.operands[first : first + len(kinds)]
        if len(texts) < len(kinds):
            raise self.unknown()
        sources = [self.read(text, kind) for text, kind in zip(texts, kinds, strict=True)]
        write = self.write(self.operands[0])
        if len(sources) == 1:
            (only,) = sources
            return lambda group, mask: write(group, compute(only(group)), mask)
        if len(sources) == 2:
            one, two = sources
            return lambda group, mask: write(group, compute(one(group), two(group)), mask)
        return lambda group, mask: write(
            group, compute(*[source(group) for source in sources]), mask
        )
