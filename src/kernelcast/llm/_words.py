"""Texts that describe problems, devices, evidence and history to a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kernelcast.dtypes import dtype_of
from kernelcast.errors import SetupError
from kernelcast.expression import evaluate
from kernelcast.languages import element_type
from kernelcast.types import (
    Argument,
    Attempt,
    Case,
    Device,
    Emulated,
    Evidence,
    Launched,
    Module,
    Operators,
    Problem,
    Rehearsal,
)

_LONGEST_OUTCOME = 200
_MOST_EMULATED = 1  # cases that are described
_MOST_LAUNCHES = 8
_PLAIN_BYTES = 4  # of elements whose type every language calls nearly the same


def problem_text(problem: Problem) -> str:
    """Describe a problem: the computation, the signature's arrays, the timed cases.

    In the signature of every language, the dimensions follow the arrays. A module takes what the
    problem states.
    """
    arrays = [
        f"- {array.name}: {array.role}, {array.dtype}[{', '.join(array.shape)}]"
        f"{_as_stored(array, problem)}"
        for array in problem.arguments
    ]
    cases = []
    for case in problem.timed_cases:
        dimensions = ", ".join(f"{name}={size}" for name, size in case.dimensions.items())
        shapes = ", ".join(
            f"{array.name}{list(array.extent(case.dimensions))}" for array in problem.arguments
        )
        cases.append(f"- {case.name}: {dimensions}: {shapes}{_work_text(problem, case)}")
    signature = [
        f"Function `{problem.entry}`, {problem.language}. Arrays in order:",
        *arrays,
        f"then the dimensions {', '.join(problem.dimensions)}.",
    ]
    if problem.module is not None:
        signature = [_module_text(problem.entry, problem.module), *arrays]
    return "\n".join(
        [
            f"{problem.name}: {problem.summary}",
            *signature,
            "Timed cases:",
            *cases,
        ]
    )


def _work_text(problem: Problem, case: Case) -> str:
    """The numbers of one case. A work of 0 means unknown, and a model would take it for a fact."""
    counts = {"FLOP": problem.flops, "B": problem.bytes}
    known = [
        f"{_scaled(work)}{unit}"
        for unit, count in counts.items()
        if count.strip() and (work := evaluate(count, case.dimensions)) > 0
    ]
    return f"; at least {', '.join(known)}" if known else ""


def _scaled(number: float) -> str:
    """Three digits with the prefix of a unit, such as `1.05 M`."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "


def _module_text(entry: str, module: Module) -> str:
    """How the Python of a problem is called."""
    called = f"called with ({module.call or 'all inputs'})"
    returns = f"returns {module.returns}" if module.returns else "returns the other outputs"
    if module.init is None:
        return f"Function `{entry}`, PyTorch, {called}, {returns}. Arrays are tensors:"
    made = f"made once by {entry}({module.init})"
    return f"Class `{entry}`, PyTorch, {made}; its forward is {called}, {returns}. Tensors:"


def _as_stored(array: Argument, problem: Problem) -> str:
    """What the language calls the elements, where that is not plain from the type."""
    if dtype_of(array.dtype).bytes >= _PLAIN_BYTES:
        return ""
    with suppress(SetupError):
        return f", elements are {element_type(problem.language, array.dtype)}"
    return ""


def device_text(device: Device) -> str:
    """Describe a device, and what a kernel may use of it, as far as it is known."""
    peaks = ", ".join(
        f"{_scaled(flops)}FLOP/s {dtype}" for dtype, flops in device.peak_flops.items()
    )
    capability = re.fullmatch(r"sm_(\d+)(\d)[af]?", device.target)
    clock = f" at {device.clock_hz / 1e9:.3g} GHz" * bool(device.clock_hz)
    figures = [
        f"compute capability {capability[1]}.{capability[2]}" if capability else device.target,
        f"{device.cores} {_core(device)}{clock}" * bool(device.cores),
        f"peak {peaks}" * bool(peaks),
        f"memory {_scaled(device.bandwidth_bytes_s)}B/s" * bool(device.bandwidth_bytes_s),
        f"{device.cache_bytes / 2**20:g} MB of L2 cache" * bool(device.cache_bytes),
        f"warps of {device.warp} threads" * bool(device.warp),
    ]
    per_core = [
        f"{device.registers_per_core} registers" * bool(device.registers_per_core),
        f"{device.shared_bytes_per_core >> 10} KB of shared memory"
        * bool(device.shared_bytes_per_core),
        f"{device.threads_per_core} threads" * bool(device.threads_per_core),
        f"{device.blocks_per_core} blocks" * bool(device.blocks_per_core),
    ]
    known = ", ".join(filter(None, figures))
    lines = [f"{device.name}: {known or 'its figures are not known'}"]
    if any(per_core):
        core = _core(device).removesuffix("s")
        lines.append(f"Each {core} has {', '.join(filter(None, per_core))}.")
    if device.shared_bytes_per_block:
        most = device.shared_bytes_per_block >> 10
        lines.append(f"A block uses {most} KB of shared memory at most.")
    if device.kind == "cpu" and device.source:
        lines.append(f"Where these figures come from: {device.source}.")
    return "\n".join(lines)


def _core(device: Device) -> str:
    if device.target.startswith("sm_"):
        return "SMs"
    return "CUs" if device.target.startswith("gfx") else "cores"


def quoted_text(text: str) -> str:
    """Return a stranger's text as data: a bar before each line, and nothing that is not visible."""
    lines = (
        "".join(letter if letter.isprintable() else " " for letter in line)
        for line in text.splitlines()
    )
    return "\n".join(f"| {line}" for line in lines)


def evidence_text(evidence: Evidence | None) -> str:
    """Describe the evidence: a line from compiling, and some lines for each emulated case."""
    if evidence is None:
        return "Compiled: not known."
    if evidence.failure is not None:
        kind = evidence.failure.kind.value
        if not evidence.compiles:
            return f"Compiled: no ({kind})."
        return f"Compiled: yes, but the kernel {evidence.verdict} ({kind})."
    if evidence.rehearsal is not None:
        return f"Not compiled, as the device is not here. It {rehearsal_text(evidence.rehearsal)}"
    facts = [
        f"{value:g} {name}"
        for name, value in (
            ("registers a thread", evidence.registers),
            ("bytes spilled", evidence.spill_bytes),
            ("bytes of shared memory a block", evidence.shared_bytes),
            ("bytes of stack", evidence.stack_bytes),
            ("threads a block", evidence.block_threads),
            ("occupancy", evidence.occupancy),
            ("bytes of code", evidence.code_bytes or None),
        )
        if value is not None
    ]
    if evidence.launched is not None:
        facts.append(_launched_text(evidence.launched))
    if evidence.roofline_s is not None:
        facts.append(f"at least {evidence.roofline_s * 1e3:.3g} ms by the device's peaks")
    counts = ", ".join(f"{name} {count}" for name, count in evidence.instructions.items() if count)
    summary = "; ".join(facts) or "nothing more is known"
    compiled = f"Compiled: {summary}." + (f" Instructions: {counts}." if counts else "")
    return "\n".join([compiled, *map(_emulated_text, evidence.emulated[:_MOST_EMULATED])])


def rehearsal_text(rehearsal: Rehearsal) -> str:
    """What a module showed on the CPU, in some lines, without a word of its author."""
    if rehearsal.failure is not None:
        kind = rehearsal.failure.kind.replace("_", " ")
        how = "read" if rehearsal.stage == "reading" else "run on small cases on a CPU"
        verdict = f"seems to fail when it is {how} ({kind}); such a verdict may be wrong."
    elif rehearsal.undecided:
        verdict = "was read on a CPU; whether it is right is not decided."
    elif rehearsal.stage == "reading":
        verdict = "was read on a CPU, and nothing wrong was seen; it was not run."
    else:
        verdict = "ran on small cases on a CPU, and its results were right."
    lines = [verdict]
    if rehearsal.operators is not None:
        lines.append(_operators_text(rehearsal.operators))
    lines += [
        f"- launch {number}, made {launch.count} times: {_launched_text(launch)}"
        for number, launch in enumerate(rehearsal.launches[:_MOST_LAUNCHES], 1)
    ]
    return "\n".join(lines)


def _launched_text(launch: Launched) -> str:
    shared = f", {launch.shared_bytes} bytes of dynamic shared memory" * bool(launch.shared_bytes)
    return f"grid {launch.grid}, block {launch.block}{shared}"


def _operators_text(operators: Operators) -> str:
    def named(counts: Mapping[str, int]) -> str:
        return ", ".join(
            name if count == 1 else f"{name} x{count}" for name, count in counts.items()
        )

    parts = [
        f"replaces {named(operators.replaced) or 'no operator of the reference'}",
        f"calls {sum(operators.own.values())} functions of its extensions",
        f"leaves {named(operators.left) or 'nothing'} to PyTorch",
    ]
    text = f"- {'; '.join(parts)}"
    if operators.moved_bytes and operators.reference_moved_bytes:
        moved, before = operators.moved_bytes / 1e6, operators.reference_moved_bytes / 1e6
        text += f"; one by one these move {moved:.4g} MB, the reference's operators {before:.4g} MB"
    return text


def _emulated_text(estimate: Emulated) -> str:
    low, high = (time_s * 1e3 for time_s in estimate.interval_s)
    return "\n".join(
        [
            f"Emulated on a CPU, not measured, case {estimate.case}: about "
            f"{estimate.runtime_s * 1e3:.3g} ms (four of five such kernels: {low:.3g} to "
            f"{high:.3g} ms).",
            *(f"- {name}: {fact}" for name, fact in estimate.facts()),
        ]
    )


def history_text(history: Sequence[Attempt]) -> str:
    """Describe earlier attempts and their outcomes, one line per attempt, the latest last."""
    return "\n".join(
        f"- {_effect_text(attempt)}; {', '.join(attempt.claim.moves) or 'no moves named'}: "
        f"{_one_line(attempt.claim.idea) or 'not said'}"
        for attempt in history
    )


def _effect_text(attempt: Attempt) -> str:
    if attempt.log2_change is None:
        return _one_line(attempt.outcome)[:_LONGEST_OUTCOME]
    basis = "measured" if attempt.measured else "forecast"
    return f"{2.0**attempt.log2_change:.3g}x as fast ({basis})"


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
