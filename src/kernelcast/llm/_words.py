"""How facts are put to a model, the same way by every part that asks one."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcast.types import Attempt, Device, Evidence, Problem

_LONGEST_OUTCOME = 120


def problem_text(problem: Problem) -> str:
    """A problem as models are told it: what is computed, the signature's arrays, each timed case.

    Dimensions follow the arrays in the signature of every language.
    """
    arrays = [
        f"- {each.name}: {each.role}, {each.dtype}[{', '.join(each.shape)}]"
        for each in problem.arguments
    ]
    cases = []
    for case in problem.timed_cases:
        dimensions = ", ".join(f"{name}={size}" for name, size in case.dimensions.items())
        shapes = ", ".join(
            f"{each.name}{list(each.extent(case.dimensions))}" for each in problem.arguments
        )
        cases.append(f"- {case.name}: {dimensions}: {shapes}")
    # Where nobody stated the work it is 0, which would be taken for a fact.
    figures = {"flops": problem.flops, "bytes": problem.bytes}
    stated = [f"{figure} {unit}" for unit, figure in figures.items() if figure.strip("0. ")]
    work = f"Work: {', '.join(stated)}. " if stated else ""
    return "\n".join(
        [
            f"{problem.name}: {problem.summary}",
            f"Function `{problem.entry}`, {problem.language}. Arrays in order:",
            *arrays,
            f"then the dimensions {', '.join(problem.dimensions)}.",
            f"{work}Timed cases:",
            *cases,
        ]
    )


def device_text(device: Device) -> str:
    """A device as models are told it."""
    peaks = ", ".join(
        f"{flops / 1e9:.4g} GFLOP/s {dtype}" for dtype, flops in device.peak_flops.items()
    )
    return (
        f"{device.name} ({device.kind}), {device.cores} cores at {device.clock_hz / 1e9:.3g} GHz, "
        f"peak {peaks or 'unknown'}, memory {device.bandwidth_bytes_s / 1e9:.4g} GB/s"
    )


def evidence_text(evidence: Evidence | None) -> str:
    """What compiling alone tells of a kernel, as models are told it; a line, never empty."""
    if evidence is None:
        return "Compiled: not known."
    if evidence.failure is not None:
        return f"Compiled: no ({evidence.failure.kind.value})."
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
    if evidence.roofline_s is not None:
        facts.append(f"at least {evidence.roofline_s * 1e3:.3g} ms by the device's peaks")
    counts = ", ".join(f"{name} {count}" for name, count in evidence.instructions.items() if count)
    told = "; ".join(facts) or "nothing more is known"
    return f"Compiled: {told}." + (f" Instructions: {counts}." if counts else "")


def history_text(history: Sequence[Attempt]) -> str:
    """What was tried and what came of it, as models are told it: a line each, the latest last."""
    return "\n".join(
        f"- {_effect_text(each)}; {', '.join(each.claim.moves) or 'no moves named'}: "
        f"{_one_line(each.claim.idea) or 'not said'}"
        for each in history
    )


def _effect_text(attempt: Attempt) -> str:
    if attempt.log2_change is None:
        return _one_line(attempt.outcome)[:_LONGEST_OUTCOME]
    basis = "measured" if attempt.measured else "forecast"
    return f"{2.0**attempt.log2_change:.3g}x as fast ({basis})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
