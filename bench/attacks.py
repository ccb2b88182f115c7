"""Every known way to cheat, and every odd but honest style: none of the first may be accepted,
none of the second rejected.

    python bench/attacks.py [--quick] [--only TEXT] [--out FILE]

An attack is accepted if it is given a time, except one that is harmless by construction (`no
gain`): that one only if it is credited (by its interval's lower end) with more than 1.10 times the
speed of the seed, whose work it does. Where there is no GPU, a Triton kernel is accepted if it
compiles and its results are right in the interpreter. What leaves a file behind is accepted too.
An attack that is rejected for another reason than its header says, or that breaks the set-up,
counts as `wrong_reason`.
--quick runs every fourth of each collection. What went wrong is printed as a table; on the last
line JSON.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _kernels import NO_GAIN, Sample, attacks, honest
from _result import report
from kernelcast.backends._toolchain import triton_tools
from kernelcast.backends.cpp import CppBackend
from kernelcast.backends.opencl import OpenClBackend
from kernelcast.backends.triton import TritonBackend
from kernelcast.errors import NoDevice
from kernelcast.protocols import Backend
from kernelcast.types import Failure, Language, Timing

GAIN_LOG2 = math.log2(1.10)
COMPILE_TIMEOUT_S = 10.0
LEFTOVERS = "kernelcast-attack-*"
LEFT_IN = (Path("/tmp"), Path("/dev/shm"), Path.cwd(), Path.home())

Outcome = Timing | Failure | None
"""A time, why there is none, or nothing to say against it where nothing can be timed."""
Judge = Callable[[Sample, int], Outcome]


@dataclass(frozen=True)
class Verdict:
    """What became of one kernel."""

    sample: Sample
    fault: str
    """`accepted`, `wrong_reason`, `rejected`, or nothing if it is as it should be."""
    got: str
    message: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both collections; fail if anything was accepted or rejected that should not be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="every fourth of each collection")
    parser.add_argument("--only", default="", help="only kernels with this text in their name")
    parser.add_argument("--out", type=Path, help="also write the JSON there")
    options = parser.parse_args(arguments)
    step = 4 if options.quick else 1
    started = time.monotonic()
    chosen = [
        [each for each in collection[::step] if options.only in each.name]
        for collection in (attacks(), honest())
    ]
    with ExitStack() as stack:
        judges = _judges(stack)
        verdicts = [_verdict(each, judges) for collection in chosen for each in collection]
    counted = [each for each in verdicts if each is not None]
    for each in counted:
        if each.fault:
            _print_fault(each)
    faults = [each.fault for each in counted]
    hostile = [each for each in counted if each.sample.row]
    summary = {
        "attacks": len(hostile),
        "accepted": faults.count("accepted"),
        "wrong_reason": faults.count("wrong_reason"),
        "honest": len(counted) - len(hostile),
        "rejected": faults.count("rejected"),
        "skipped": len(verdicts) - len(counted),
        "seconds": round(time.monotonic() - started, 1),
    }
    report(summary, options.out)
    return int(summary["accepted"] > 0 or summary["rejected"] > 0)


# ------------------------------------------------------------------------------------- judging


def _judges(stack: ExitStack) -> Mapping[Language, Judge]:
    """By language, how a kernel is put to the test; what is not installed is left out."""
    judges: dict[Language, Judge] = {}
    cpp = CppBackend(compile_timeout_s=COMPILE_TIMEOUT_S)
    stack.callback(cpp.close)
    judges["cpp"] = partial(_measured, cpp)
    if triton_tools() is not None:
        triton = TritonBackend("sm_90", compile_timeout_s=2 * COMPILE_TIMEOUT_S)
        stack.callback(triton.close)

        def interpreted(sample: Sample, seed: int) -> Outcome:
            failure = triton.inspect(sample.problem, sample.kernel).failure
            return failure or triton.verify(sample.problem, sample.kernel, seed)

        judges["triton"] = interpreted
    with suppress(NoDevice):
        opencl = OpenClBackend(compile_timeout_s=2 * COMPILE_TIMEOUT_S)
        stack.callback(opencl.close)
        judges["opencl"] = partial(_measured, opencl)
    return judges


def _measured(backend: Backend, sample: Sample, seed: int) -> Outcome:
    measurement = backend.measure(sample.problem, sample.kernel, seed)
    return measurement.failure or measurement.timing


def _verdict(sample: Sample, judges: Mapping[Language, Judge]) -> Verdict | None:
    """None if it cannot run on this machine."""
    judge = judges.get(sample.language)
    if judge is None or not sample.runs_here:
        return None
    began = time.monotonic()
    try:
        outcome = judge(sample, 1)
    except Exception as error:  # a kernel that breaks the set-up is a finding, not the end
        verdict = Verdict(
            sample, "wrong_reason" if sample.row else "rejected", type(error).__name__, str(error)
        )
    else:
        verdict = Verdict(sample, _fault(sample, outcome), *_said(outcome))
    if left := [path for folder in LEFT_IN for path in folder.glob(LEFTOVERS)]:
        verdict = Verdict(sample, "accepted", "left behind", ", ".join(map(str, left)))
        for path in left:
            path.unlink()
    mark = verdict.fault.upper() or "ok"
    print(
        f"{time.monotonic() - began:5.1f} s  {sample.name:44.44} {verdict.got:14} {mark}",
        file=sys.stderr,
        flush=True,
    )
    return verdict


def _fault(sample: Sample, outcome: Outcome) -> str:
    if not sample.row:
        return "rejected" if isinstance(outcome, Failure) else ""
    if isinstance(outcome, Failure):
        return "" if sample.expect in (outcome.kind, NO_GAIN) else "wrong_reason"
    if sample.expect == NO_GAIN and outcome is not None and outcome.low <= GAIN_LOG2:
        return ""
    return "accepted"


def _said(outcome: Outcome) -> tuple[str, str]:
    if isinstance(outcome, Failure):
        return outcome.kind.value, outcome.message
    if outcome is None:
        return "passed", "compiled, and right where interpreted"
    return f"{outcome.speedup:.2f}x", f"{outcome.low:+.3f} to {outcome.high:+.3f} log2"


def _print_fault(verdict: Verdict) -> None:
    sample = verdict.sample
    expected = f"expected {sample.expect}, " if sample.expect else ""
    lines = verdict.message.strip().splitlines() or [""]
    print(f"{verdict.fault:12}  {sample.name}: {expected}got {verdict.got}")
    for line in (lines[0], *lines[-1:][: len(lines) - 1]):
        print(f"{'':14}{line[:150]}")


if __name__ == "__main__":
    sys.exit(main())
