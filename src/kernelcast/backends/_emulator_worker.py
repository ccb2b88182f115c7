"""The child that emulates a kernel: it runs PTX on the arrays of the memory that it inherits.

The parent leaves `job.json` and `kernel.ptx` in the working folder. PTX is text that a stranger's
source led to, so it is read here and never in the parent. The task is to compute, where each run
has a slot of the memory and the faults are answered, or to count, where the memory
holds samples of arrays and counts are answered, or to decode, where nothing runs and the unknown
instructions are answered. Status 0 and a line of JSON are the answer. Status 2 and a message mean
that the kernel has something that is not emulated. The job says where packages are, so they are
imported late.
"""

import dataclasses
import importlib
import itertools
import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

NOT_EMULATED = 2


def compute(job: dict[str, Any]) -> dict[str, Any]:
    """Run the whole grid on the arrays of each slot; return the faults, and notes of each run."""
    machines, memory, instructions = _modules("machine", "memory", "instructions")
    module = _read_ptx()
    entry, content = module.entry(job["entry"]), _content(job)
    faults: list[dict[str, Any]] = []
    unwritten: list[list[dict[str, Any]]] = []
    slots = content.reshape(len(job["runs"]), -1)
    for slot, (order, poison) in zip(slots, job["runs"], strict=True):
        pieces = zip(job["offsets"], job["lengths"], strict=True)
        arrays = [slot[offset : offset + length] for offset, length in pieces]
        arena = memory.Arena(arrays, job["names"])
        launch = _launch(job, entry, [*arena.addresses, *job["dimensions"]])
        machine = machines.Machine(
            module,
            entry,
            launch,
            arena,
            instructions.decode,
            order=order,
            steps=job["steps"],
            poison=poison,
        )
        machine.run()
        for index, array in enumerate(arrays):
            array[:] = arena.array(index)
        faults += [vars(fault) for fault in machine.faults]
        unwritten.append([vars(fault) for fault in machine.unwritten])
    return {"faults": faults, "unwritten": unwritten, "cpu_s": time.process_time()}


def count(job: dict[str, Any]) -> dict[str, Any]:
    """Count what a block in the middle does, and the last ones by x, y and z."""
    memory, counting = _modules("memory", "counting")
    module = _read_ptx()
    entry, content = module.entry(job["entry"]), _content(job)
    ends = itertools.accumulate(job["samples"])
    samples = [content[end - size : end] for end, size in zip(ends, job["samples"], strict=True)]
    sizes = [size for size in job["sizes"] if size is not None]
    module = module.with_data(
        {
            name: sample.tobytes()
            for name, sample in zip(job["variables"], samples[len(sizes) :], strict=True)
        }
    )
    answers = []
    for block, _ in counting.blocks_to_count(job["grid"]):
        arena = memory.SampledArena(sizes, samples[: len(sizes)])
        addresses = iter(arena.addresses)
        pairs = zip(job["sizes"], job["numbers"], strict=True)
        numbers = [number if size is None else next(addresses) for size, number in pairs]
        launch = _launch(job, entry, numbers)
        counts = counting.count(module, entry, launch, arena, block, job["steps"])
        answers.append(dataclasses.asdict(counts))
    return {"counts": answers, "cpu_s": time.process_time()}


def decode(_job: dict[str, Any]) -> dict[str, Any]:
    """Make all entries ready to run, and say which instructions are not known."""
    (known,) = _modules("known")
    module = _read_ptx()
    entries = [function for function in module.functions.values() if function.is_entry]
    return {"entries": len(entries), "unknown": known.unknown_instructions(module)}


def _modules(*names: str) -> list[Any]:
    return [importlib.import_module(f"kernelcast.emulator.{name}") for name in names]


def _read_ptx() -> Any:
    (ptx,) = _modules("ptx")
    return ptx.read_ptx(Path("kernel.ptx").read_text(encoding="utf-8"))


def _content(job: dict[str, Any]) -> Any:
    """Return the bytes of the memory that the parent handed over."""
    np = importlib.import_module("numpy")
    return np.frombuffer(mmap.mmap(job["memory_fd"], 0), dtype=np.uint8)


def _launch(job: dict[str, Any], entry: Any, numbers: list[int]) -> Any:
    (machine,) = _modules("machine")
    unused = [0] * (len(entry.parameters) - len(numbers))  # scratch that the code does not use
    extents = tuple(job["grid"]), tuple(job["block"])
    return machine.Launch(*extents, [*numbers, *unused], job["shared"])


TASKS = {"compute": compute, "count": count, "decode": decode}

if __name__ == "__main__":
    job = json.loads(Path("job.json").read_text())
    sys.path[:0] = job["paths"]
    unknown = importlib.import_module("kernelcast.emulator.ptx").NotEmulated
    try:
        sys.stdout.write(json.dumps(TASKS[job["task"]](job)))
    except unknown as error:
        sys.stdout.write(str(error))
        raise SystemExit(NOT_EMULATED) from None
