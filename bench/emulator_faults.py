"""Which planted faults does the emulator notice, and does it call right kernels wrong?

Right CUDA and Triton kernels (`_right_kernels.py`) and 40 kernels with one planted fault each
(`_planted_faults.py`) go through `verify`, as `kernelcast inspect` asks it. A fault is noticed by
the right check if the failure names what the fault was planted for: a race, an access outside of
memory, memory that nothing has written, a barrier that not all threads reach, the order of warps,
or a wrong result alone. A right kernel with a failure is a false alarm.

    python bench/emulator_faults.py [--quick] [--device NAME]

The 40 faults showed defects of the emulator, which were mended. `later` are faults that were
written after that; nothing was mended by them.

The quartiles of CPU seconds are those of right kernels: compiling on the clock, and computing all
small cases of a problem in both orders.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from _kernels import Sample
from _planted_faults import FAULTS, LATER_FAULTS, Check, PlantedFault
from _result import bench_parser, cannot_run, report, rounded
from _right_kernels import right_kernels
from kernelcast import plugins
from kernelcast.backends import _emulation
from kernelcast.backends._gpu import GpuBackend
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.types import Failure, FailureKind

DEVICE = "A100-PCIE-40GB"
_CHECKS: dict[str, Check] = {
    "out_of_bounds": "guard",
    "misaligned": "guard",
    "divergent_barrier": "barrier",
    "race": "race",
    "unwritten": "poison",
    "order": "order",
}
_QUICK_FAULTS: tuple[Check, ...] = ("race", "guard", "poison", "barrier", "order", "result")
_QUICK_KERNELS = (
    "seed: softmax",
    "cuda: vector_add",
    "cuda: transpose",
    "cuda: sums in the output",
    "triton: softmax",
    "fast: sums of all beginnings of a row",
)


@dataclass(frozen=True)
class Outcome:
    """What `verify` says of one kernel."""

    name: str
    noticed_by: Check | None
    message: str
    """The failure, or why the kernel is not emulated, or nothing."""
    is_emulated: bool
    compile_s: float
    cpu_s: float


def noticed_by(failure: Failure | None) -> Check | None:
    """Return the check that found a failure; None if none of the emulator's did."""
    if failure is None:
        return None
    for kind, check in _CHECKS.items():
        if failure.message.startswith(_emulation.WORDS[kind]):
            return check
    if "wrote outside" in failure.message:
        return "guard"
    return "result" if failure.kind is FailureKind.WRONG_RESULT else None


@cache
def backend(language: str, device: str) -> GpuBackend:
    """Return the backend of a language."""
    spec = ComponentSpec(name=language, options={"device": device})
    built: GpuBackend = plugins.build("backend", spec)
    return built


def judge(sample: Sample, device: str) -> Outcome:
    """Compile and verify one kernel."""
    asked = backend(sample.language, device)
    evidence = asked.inspect(sample.problem, sample.kernel)
    cpu_s = evidence.emulation_cpu_s - sum(estimate.cpu_s for estimate in evidence.emulated)
    failure, message, is_emulated = None, "", True
    try:
        failure = asked.verify(sample.problem, sample.kernel, seed=1)
        message = failure.message if failure else ""
    except NotEmulated as error:
        message, is_emulated = str(error), False
    check = noticed_by(failure)
    return Outcome(sample.name, check, message, is_emulated, evidence.compile_s, cpu_s)


def judged(samples: Sequence[Sample], device: str) -> list[Outcome]:
    """Judge kernels one after the other, and print what is said of each."""
    outcomes = []
    for sample in samples:
        outcome = judge(sample, device)
        said = f"{outcome.noticed_by or '-':8} {outcome.name:60} {outcome.cpu_s:6.2f} s"
        print(said, " ".join(outcome.message.split())[:200], flush=True)
        outcomes.append(outcome)
    return outcomes


def noticed(faults: Sequence[PlantedFault], found: Sequence[Outcome]) -> dict[str, Any]:
    """Count the faults that were noticed, by the right check or another; name the others."""
    pairs = list(zip(faults, found, strict=True))
    return {
        "faults": len(pairs),
        "noticed": sum(one.noticed_by is not None for one in found),
        "noticed_by_right_check": sum(one.noticed_by == fault.check for fault, one in pairs),
        "by_check": {
            check: {
                "faults": sum(fault.check == check for fault in faults),
                "noticed": sum(fault.check == check == one.noticed_by for fault, one in pairs),
            }
            for check in sorted({fault.check for fault in faults})
        },
        "otherwise": [
            {
                "fault": fault.name,
                "check": fault.check,
                "noticed_by": one.noticed_by,
                "said": one.message,
            }
            for fault, one in pairs
            if one.noticed_by != fault.check
        ],
    }


def alarms(right: Sequence[Outcome]) -> dict[str, Any]:
    """Count the right kernels that were called wrong or not emulated; name them."""
    wrong = [one for one in right if one.is_emulated and one.message]
    unknown = [one for one in right if not one.is_emulated]
    return {
        "right_kernels": len(right),
        "false_alarms": len(wrong),
        "not_emulated": len(unknown),
        "alarms": [{"kernel": one.name, "said": one.message} for one in (*wrong, *unknown)],
        "cpu_s": {
            "compile": _quartiles([one.compile_s for one in right]),
            "compute": _quartiles([one.cpu_s for one in right if one.is_emulated]),
        },
    }


def _quartiles(seconds: Sequence[float]) -> list[float]:
    return [float(value) for value in np.quantile(seconds, (0.25, 0.5, 0.75))]


def main() -> None:
    parser = bench_parser(__doc__, quick="a fault of each kind and six right kernels")
    parser.add_argument("--device", default=DEVICE, help="GPU of the catalogue to compile for")
    arguments = parser.parse_args()
    faults, later, right = list(FAULTS), list(LATER_FAULTS), list(right_kernels().values())
    if arguments.quick:
        first = {fault.check: fault for fault in reversed(FAULTS)}
        faults, later = [first[check] for check in _QUICK_FAULTS], []
        right = [right_kernels()[name] for name in _QUICK_KERNELS]
    try:
        for language in ("cuda", "triton"):
            backend(language, arguments.device)
    except SetupError as error:
        cannot_run(str(error))
    found, found_later, said = (
        judged(samples, arguments.device)
        for samples in ([one.sample for one in faults], [one.sample for one in later], right)
    )
    result = {
        **noticed(faults, found),
        "later": noticed(later, found_later),
        **alarms(said),
        "device": arguments.device,
    }
    report(rounded(result), arguments, "triton")


if __name__ == "__main__":
    main()
