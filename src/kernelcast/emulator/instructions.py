"""Makes a step of any instruction that the emulator knows."""

from __future__ import annotations

from kernelcast.emulator import access, arithmetic, bits, matrices, warps
from kernelcast.emulator.decoding import Decode
from kernelcast.emulator.lanes import Step
from kernelcast.emulator.machine import Machine
from kernelcast.emulator.ptx import Function, Instruction

__all__ = ["access", "arithmetic", "bits", "decode", "matrices", "warps"]


def decode(instruction: Instruction, function: Function, machine: Machine) -> Step:
    """Return the step of an instruction.

    Raises:
        NotEmulated: The instruction, a modifier or an operand of it is not known.
    """
    d = Decode(instruction, function, machine)
    builder = arithmetic.BUILDERS.get(instruction.opcode)
    if builder is None:
        raise d.unknown()
    return builder(d)
