"""Every known way to cheat, and every odd but honest style: none of the first may be accepted,
none of the second rejected.

    python bench/attacks.py [--quick] [--only TEXT] [--out FILE]

An attack is accepted if it is given a time, except one that is harmless by construction (`no
gain`): that one does all of the seed's work, so it is accepted only if it is reported faster than
the seed. `inflated` counts the attacks of either kind that are reported faster. On a busy machine
little is above the noise, so that 0 says most on a quiet one.
Where there is no GPU, a Triton kernel is accepted if it compiles and its results are right in the
interpreter. Modules of PyTorch are left out where it is not installed. What leaves a file behind
is accepted too. An attack that is rejected for another
reason than its header says, or that breaks the set-up, counts as `wrong_reason`. A kernel that is
turned away because it was late, or because the reference was, is judged a second time: the machine
may have been starved.
--quick runs one C++ attack for each row of the catalogue, and six honest kernels. What went wrong
is printed as a table; on the last line JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _kernels import NO_GAIN, Sample, attacks, few_honest, honest
from _result import bench_parser, report
from kernelcast.backends._toolchain import triton_tools
from kernelcast.backends.cpp import CppBackend
from kernelcast.backends.opencl import OpenClBackend
from kernelcast.backends.torch import TorchBackend
from kernelcast.backends.triton import TritonBackend
from kernelcast.errors import NoDevice, SetupError
from kernelcast.protocols import Backend
from kernelcast.types import Failure, FailureKind, Language, Measurement

COMPILE_TIMEOUT_S = 10.0
LATE = (FailureKind.TIMEOUT.value, SetupError.__name__)
LEFTOVERS = "kernelcast-attack-*"
LEFT_IN = (Path("/tmp"), Path("/dev/shm"), Path.cwd(), Path.home())

Outcome = Measurement | Failure | None
"""A measurement with a time, why there is none, or None: nothing speaks against a kernel that
cannot be timed here."""
Judge = Callable[[Sample, int], Outcome]


@dataclass(frozen=True)
class Verdict:
    """What became of one kernel."""

    sample: Sample
    fault: str
    """`accepted`, `wrong_reason`, `rejected`, or nothing if it is as it should be."""
    got: str
    message: str
    inflated: bool = False
    """Whether it is an attack that is reported faster than the seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both collections; fail if anything was accepted or rejected that should not be."""
    parser = bench_parser(__doc__, quick="one C++ attack a row, six honest kernels")
    parser.add_argument("--only", default="", help="only kernels with this text in their name")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    samples = [*attacks(), *honest()]
    if options.quick:
        of_cpp = {sample.row: sample for sample in attacks() if sample.language == "cpp"}
        samples = [*of_cpp.values(), *few_honest()]
    chosen = [each for each in samples if options.only in each.name]
    with ExitStack() as stack:
        judges = judges_here(stack)
        verdicts = [verdict_on(each, judges) for each in chosen]
    counted = [each for each in verdicts if each is not None]
    for each in counted:
        if each.fault:
            _print_fault(each)
    faults = [each.fault for each in counted]
    hostile = [each for each in counted if each.sample.row]
    summary = {
        "attacks": len(hostile),
        "accepted": faults.count("accepted"),
        "inflated": sum(each.inflated for each in hostile),
        "wrong_reason": faults.count("wrong_reason"),
        "honest": len(counted) - len(hostile),
        "rejected": faults.count("rejected"),
        "skipped": len(verdicts) - len(counted),
        "seconds": round(time.monotonic() - started, 1),
    }
    report(summary, options)
    return int(summary["accepted"] > 0 or summary["rejected"] > 0)


# ------------------------------------------------------------------------------------- judging


def judges_here(stack: ExitStack) -> Mapping[Language, Judge]:
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
    try:
        torch = stack.enter_context(closing(TorchBackend(threads=1)))
        judges["torch"] = partial(_measured, torch)
    except SetupError as error:
        print(f"modules are left out: {error}", file=sys.stderr)
    return judges


def _measured(backend: Backend, sample: Sample, seed: int) -> Outcome:
    measurement = backend.measure(sample.problem, sample.kernel, seed)
    return measurement.failure or measurement


def verdict_on(sample: Sample, judges: Mapping[Language, Judge]) -> Verdict | None:
    """None if it cannot run on this machine."""
    judge = judges.get(sample.language)
    if judge is None or not sample.runs_here:
        return None
    began = time.monotonic()
    verdict = _judged(sample, judge, 1)
    if verdict.fault and verdict.got in LATE:
        verdict = _judged(sample, judge, 2)
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


def _judged(sample: Sample, judge: Judge, seed: int) -> Verdict:
    try:
        outcome = judge(sample, seed)
    except Exception as error:  # a kernel that breaks the set-up is a finding, not the end
        fault = "wrong_reason" if sample.row else "rejected"
        return Verdict(sample, fault, type(error).__name__, str(error))
    inflated = bool(sample.row) and isinstance(outcome, Measurement) and outcome.faster
    return Verdict(sample, _fault(sample, outcome), *_said(outcome), inflated)


def _fault(sample: Sample, outcome: Outcome) -> str:
    if not sample.row:
        return "rejected" if isinstance(outcome, Failure) else ""
    if isinstance(outcome, Failure):
        return "" if sample.expect in (outcome.kind, NO_GAIN) else "wrong_reason"
    if sample.expect == NO_GAIN and outcome is not None and not outcome.faster:
        return ""
    return "accepted"


def _said(outcome: Outcome) -> tuple[str, str]:
    if isinstance(outcome, Failure):
        return outcome.kind.value, outcome.message
    if outcome is None or outcome.timing is None:
        return "passed", "compiled, and right where interpreted"
    timing, noise = outcome.timing, outcome.noise_log2
    spread = f"{timing.low:+.3f} to {timing.high:+.3f} log2"
    return (
        f"{timing.speedup:.2f}x",
        f"{spread}, noise {'unknown' if noise is None else f'{noise:.3f}'}",
    )


def _print_fault(verdict: Verdict) -> None:
    sample = verdict.sample
    expected = f"expected {sample.expect}, " if sample.expect else ""
    lines = verdict.message.strip().splitlines() or [""]
    print(f"{verdict.fault:12}  {sample.name}: {expected}got {verdict.got}")
    for line in (lines[0], *lines[-1:][: len(lines) - 1]):
        print(f"{'':14}{line[:150]}")


if __name__ == "__main__":
    sys.exit(main())
