"""The command that says what a kernel does on a GPU, without one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from kernelcast.backends._gpu import GpuBackend
from kernelcast.canonical import read_kernel
from kernelcast.cli.common import ERR, EXISTING_FILE, OUT, json_option, option
from kernelcast.devices import find_device
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.plugins import build
from kernelcast.problems import load_problem
from kernelcast.report.tables import Report, listing
from kernelcast.types import Emulated, Evidence, Kernel, Problem

_LONGEST_LINE = 60


@click.command()
@click.argument("kernel", type=EXISTING_FILE)
@option(
    "--problem", "Problem that it solves (bundled name or folder): arrays and sizes.", required=True
)
@option("--device", "GPU to estimate for, e.g. RTX-3090.", default="A100-SXM4-80GB")
@json_option
def inspect(kernel: Path, problem: str, device: str, as_json: bool) -> None:
    """Say what KERNEL (a .cu or Triton file) does on a GPU, without one.

    \b
    Example:
      kernelcast inspect softmax.cu --problem my_softmax/ --device RTX-3090

    The kernel is compiled for the device, and its PTX runs on this CPU. The small cases of the
    problem show whether it is right: wrong results, accesses outside of arrays, races, barriers
    that not all threads reach. For each timed case, some blocks are counted: what bounds the time,
    sectors a request of global memory, bank conflicts, occupancy, the costliest lines. The time is
    an estimate from these counts, never a measurement: docs/explanation/emulator.md says how far
    off it is.
    """
    source = read_kernel(kernel)
    target = find_device(device)
    solved = load_problem(problem, device="gpu")
    if source.language not in ("cuda", "triton") or not target.target.startswith("sm_"):
        raise SetupError(
            f"{kernel.name} for {target.name}: only CUDA and Triton kernels for NVIDIA GPUs are "
            "emulated; name a .cu file or a Triton module, and a GPU such as RTX-3090"
        )
    solved = solved.model_copy(update={"language": source.language})
    spec = ComponentSpec(name=source.language, options={"device": target.name})
    with closing(build("backend", spec)) as backend, ERR.status("compiling and emulating"):
        report = _report(backend, solved, source, kernel.name)
    report.show(OUT, as_json=as_json)


def _report(backend: GpuBackend, problem: Problem, kernel: Kernel, name: str) -> Report:
    evidence = backend.inspect(problem, kernel)
    failure, estimates = evidence.failure, evidence.emulated
    if failure is not None and not evidence.compiles:
        raise SetupError(f"{name} {evidence.verdict}: {failure.message}")
    facts = {
        "kernel": name,
        "device": backend.device.name,
        "failure": failure.model_dump(mode="json") if failure else None,
        "not_checked": evidence.unchecked,
        "not_emulated": evidence.not_emulated,
        "registers": evidence.registers,
        "shared_bytes": evidence.shared_bytes,
        "spill_bytes": evidence.spill_bytes,
        "cases": [estimate.model_dump(mode="json") for estimate in estimates],
    }
    source = kernel.source.splitlines()
    parts: list[Table | Text] = [
        Text(f"{name} for {backend.device.name}: estimated, not measured", style="bold"),
        Text(_verdict(evidence), style="red" if failure else ""),
    ]
    for estimate in estimates:
        parts.append(_details(estimate, evidence, source))
    if evidence.not_emulated:
        parts.append(Text(f"no estimate; not emulated: {evidence.not_emulated}", style="yellow"))
    return Report(facts, parts)


def _verdict(evidence: Evidence) -> str:
    if evidence.failure:
        return f"wrong ({evidence.failure.kind}): {evidence.failure.message}"
    if evidence.unchecked:
        return f"not checked: {evidence.unchecked}"
    return "right on the small cases, as emulated"


def _headline(estimate: Emulated) -> str:
    time, low, high = map(_time, (estimate.runtime_s, *estimate.interval_s))
    return f"case {estimate.case}: about {time}; four of five kernels lie in {low} to {high}"


def _details(estimate: Emulated, evidence: Evidence, source: list[str]) -> Table:
    held = f"{evidence.registers} a thread, {evidence.shared_bytes:,} shared bytes a block"
    rows = [*estimate.facts(), ("registers", held)]
    if evidence.spill_bytes:
        rows.append(("spilled", f"{evidence.spill_bytes:,} bytes a thread"))
    for number, share in estimate.lines:
        text = source[number - 1].strip() if number <= len(source) else ""
        rows.append((f"line {number}", f"{share:.0%}  {text[:_LONGEST_LINE]}"))
    return listing(_headline(estimate), rows)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
