"""Which instructions of a module are not emulated, told without running it.

A machine reads jumps, barriers and calls when they are run; here they are read before that.
"""

from __future__ import annotations

import math

from kernelcast.emulator.instructions import decode
from kernelcast.emulator.lanes import Step, check_control, no_step
from kernelcast.emulator.machine import Launch, Machine, is_control
from kernelcast.emulator.memory import Arena
from kernelcast.emulator.ptx import Function, Instruction, Module, NotEmulated

_THREADS = 256  # of a block, if the code states none


def unknown_instructions(module: Module) -> list[tuple[str, str]]:
    """Return what is not known of the entries and of the functions that they call.

    Returns:
        The opcode with modifiers and the error of each instruction, once.
    """
    unknown: dict[str, tuple[str, str]] = {}

    def note(instruction: Instruction, error: NotEmulated) -> None:
        name = ".".join((instruction.opcode, *instruction.modifiers))
        unknown.setdefault(str(error), (name, str(error)))

    def try_decode(instruction: Instruction, function: Function, machine: Machine) -> Step:
        try:
            return decode(instruction, function, machine)
        except NotEmulated as error:
            note(instruction, error)
            return no_step

    for entry in (function for function in module.functions.values() if function.is_entry):
        block = (math.prod(entry.threads) or 1, 1, 1) if entry.threads else (_THREADS, 1, 1)
        launch = Launch((1, 1, 1), block, [0] * len(entry.parameters))
        machine = Machine(module, entry, launch, Arena([]), try_decode)
        left, seen = [entry.name], {entry.name}
        while left:
            function = machine.decoded(left.pop()).function
            for instruction in (i for part in function.blocks for i in part if is_control(i)):
                try:
                    callee = check_control(instruction, function, module)
                except NotEmulated as error:
                    note(instruction, error)
                    continue
                if callee and callee not in seen:
                    seen.add(callee)
                    left.append(callee)
    return list(unknown.values())
