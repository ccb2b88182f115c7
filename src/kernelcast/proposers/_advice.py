"""What usually helps a kernel: lines of `playbooks/*.toml`, chosen by the signs of a request.

A sign is a fact about the parent that times, evidence, problem and source show. A playbook is a
file for a language, or for a language on a kind of device: it has a line for each sign that it
answers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from kernelcast.devices import roofline_s
from kernelcast.expression import evaluate
from kernelcast.types import Evidence, ProposalRequest

SIGNS = (
    *("eager", "many_operators", "spills", "uncoalesced", "bank_conflicts", "one_thread"),
    *("scalar", "near_roofline", "small", "low_occupancy", "idle_lanes", "uneven"),
    *("issue_bound", "latency_bound", "far_from_roofline", "memory_bound", "compute_bound"),
)
"""All signs, the most telling first."""

_MOST_LINES = 4
_SMALL_S: Mapping[str, float] = {"gpu": 20e-6, "cpu": 100e-6}
_UNEVEN_LOG2 = 1.0
_NEAR = 1.5
_FAR = 4.0
_MOST_OPERATORS = 3
_LOW_OCCUPANCY = 0.5
_LOW_USE = 0.7  # of the bytes that global memory moves
_CONFLICTS = 1.2
_FEW_LANES = 0.8
_FEW_VECTORS = 0.1  # of all instructions
# What an emulated kernel is bound by, in the words of the emulator.
_BOUNDS: Mapping[str, str] = {
    **dict.fromkeys(("memory", "L2 cache"), "memory_bound"),
    **dict.fromkeys(("float", "double", "special", "matrix"), "compute_bound"),
    **dict.fromkeys(("issue", "integer", "instruction fetch"), "issue_bound"),
    "waiting": "latency_bound",
}
_THREADS = re.compile(r"\bomp\s+parallel\b|\bparallel_for\b|\bstd::(?:jthread|thread|async)\b")
_OWN_KERNEL = re.compile(r"\bload_inline\b|\btriton\b|\btorch\.compile\b|\bcpp_extension\b")


def advice(request: ProposalRequest) -> list[str]:
    """Return the lines of the playbook for the most telling signs."""
    playbook = _playbook(request.problem.language, request.device.kind)
    found = signs(request)
    return [playbook[sign] for sign in SIGNS if sign in found and sign in playbook][:_MOST_LINES]


def signs(request: ProposalRequest) -> set[str]:
    """Return the signs that the parent of a request shows."""
    problem, device, source = request.problem, request.device, request.parent.source
    evidence = request.parent_evidence
    found = _signs_of_times(request)
    if evidence is not None and evidence.failure is None:
        found |= _signs_of_evidence(evidence)
    if evidence is not None and evidence.emulated:
        slowest = max(evidence.emulated, key=lambda case: case.runtime_s)
        found |= {_BOUNDS[slowest.bound_by]} if slowest.bound_by in _BOUNDS else set()
    else:
        found |= _signs_of_work(request)
    if problem.language == "torch" and not _OWN_KERNEL.search(source):
        found.add("eager")
    if device.kind == "cpu" and device.cores > 1 and _is_serial(problem.language, source):
        found.add("one_thread")
    return found


def _is_serial(language: str, source: str) -> bool:
    """Whether C++ starts no threads; PyTorch's at::parallel_for starts none without -fopenmp."""
    if language == "torch":
        return "load_inline" in source and "-fopenmp" not in source
    return language == "cpp" and not _THREADS.search(source)


def _signs_of_times(request: ProposalRequest) -> set[str]:
    found: set[str] = set()
    slowest_s = max((case.runtime_s for case in request.parent_cases), default=None)
    if slowest_s is not None and slowest_s < _SMALL_S.get(request.device.kind, 0.0):
        found.add("small")
    speeds = [case.log2_speedup for case in request.parent_cases]
    if speeds and max(speeds) - min(speeds) >= _UNEVEN_LOG2:
        found.add("uneven")
    least_s = roofline_s(request.problem, request.device)
    if least_s is not None and request.parent_runtime_s <= _NEAR * least_s:
        found.add("near_roofline")
    if least_s is not None and request.parent_runtime_s >= _FAR * least_s:
        found.add("far_from_roofline")
    return found


def _signs_of_work(request: ProposalRequest) -> set[str]:
    """Whether bytes or arithmetic take longer at the device's peaks, over the timed cases."""
    problem, device = request.problem, request.device
    peak = device.peak_flops.get("float32") or max(device.peak_flops.values(), default=0.0)
    if not peak or not device.bandwidth_bytes_s:
        return set()
    flops, moved = (
        sum(evaluate(count, case.dimensions) for case in problem.timed_cases)
        for count in (problem.flops, problem.bytes)
    )
    if flops <= 0 or moved <= 0:
        return set()
    is_moving = moved / device.bandwidth_bytes_s > flops / peak
    return {"memory_bound" if is_moving else "compute_bound"}


def _signs_of_evidence(evidence: Evidence) -> set[str]:
    emulated = evidence.emulated
    occupancies = [case.occupancy for case in emulated] or [evidence.occupancy or 1.0]
    mix = evidence.instructions
    shown = {
        "spills": bool(evidence.spill_bytes),
        "many_operators": _steps(evidence) > _MOST_OPERATORS,
        "low_occupancy": min(occupancies) < _LOW_OCCUPANCY,
        "uncoalesced": any((case.used_bytes or 1.0) < _LOW_USE for case in emulated),
        "bank_conflicts": any((case.bank_conflicts or 1.0) > _CONFLICTS for case in emulated),
        "idle_lanes": any(case.lane_efficiency < _FEW_LANES for case in emulated),
        "scalar": "vector" in mix and mix["vector"] < _FEW_VECTORS * mix.get("total", 0),
    }
    return {sign for sign, is_shown in shown.items() if is_shown}


def _steps(evidence: Evidence) -> int:
    """The launches of a call and the operators of PyTorch beside them, as far as known."""
    rehearsal = evidence.rehearsal
    noted = sum(launch.count for launch in rehearsal.launches) if rehearsal else 0
    left = rehearsal.operators.left.values() if rehearsal and rehearsal.operators else ()
    return max(evidence.launches or 0, noted) + sum(left)


def form(language: str, kind: str) -> str:
    """Return how a kernel is written, with an example; empty for an unknown language."""
    return _text("forms", "md", language, kind)


@cache
def _playbook(language: str, kind: str) -> dict[str, str]:
    return tomllib.loads(_text("playbooks", "toml", language, kind))


@cache
def _text(folder: str, ending: str, language: str, kind: str) -> str:
    """The file of a language on a kind of device, or of the language; empty without either."""
    files = resources.files("kernelcast.proposers") / folder
    for name in (f"{language}_{kind}", language):
        file = files / f"{name}.{ending}"
        if file.is_file():
            return file.read_text(encoding="utf-8").strip()
    return ""
