"""The child that emulates a kernel: it runs PTX on the arrays of the memory that it inherits.

The parent leaves `job.json` and `kernel.ptx` in the working folder. PTX is text that a stranger's
source led to, so it is read here and never in the parent. Each order of the warps has a slot of the
memory. Status 0 and a line of JSON mean that the kernel ran in all of them: the line lists its
faults. Status 2 and a message mean that it has something that is not emulated. The job says where
packages are, so they are imported late.
"""

import importlib
import json
import mmap
import sys
from pathlib import Path
from typing import Any

NOT_EMULATED = 2


def compute(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the whole grid in each order, on the arrays of its slot; return the faults."""
    np = importlib.import_module("numpy")
    ptx, machines, memory, instructions = (
        importlib.import_module(f"kernelcast.emulator.{name}")
        for name in ("ptx", "machine", "memory", "instructions")
    )
    module = ptx.read_ptx(Path("kernel.ptx").read_text(encoding="utf-8"))
    entry = module.entry(job["entry"])
    content = np.frombuffer(mmap.mmap(job["memory_fd"], 0), dtype=np.uint8)
    faults: list[dict[str, Any]] = []
    for slot, order in zip(content.reshape(len(job["orders"]), -1), job["orders"], strict=True):
        pieces = zip(job["offsets"], job["lengths"], strict=True)
        arrays = [slot[offset : offset + length] for offset, length in pieces]
        arena = memory.Arena(arrays)
        numbers = [*arena.addresses, *job["dimensions"]]
        numbers += [0] * (len(entry.parameters) - len(numbers))  # scratch that it does not use
        launch = machines.Launch(tuple(job["grid"]), tuple(job["block"]), numbers, job["shared"])
        machine = machines.Machine(
            module, entry, launch, arena, instructions.decode, order=order, steps=job["steps"]
        )
        machine.run()
        for index, array in enumerate(arrays):
            array[:] = arena.array(index)
        faults += [vars(fault) for fault in machine.faults]
    return faults


if __name__ == "__main__":
    job = json.loads(Path("job.json").read_text())
    sys.path[:0] = job["paths"]
    unknown = importlib.import_module("kernelcast.emulator.ptx").NotEmulated
    try:
        sys.stdout.write(json.dumps(compute(job)))
    except unknown as error:
        sys.stdout.write(str(error))
        raise SystemExit(NOT_EMULATED) from None
