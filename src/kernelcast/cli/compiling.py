"""What compiling tells of the kernels that `forecast` and `rank` are asked about."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from rich.progress import track

from kernelcast import plugins
from kernelcast.cli.common import ERR
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.protocols import Backend
from kernelcast.types import Device, Evidence, Kernel, Language, Problem, Query


@dataclass(frozen=True)
class Compiled:
    """Evidence by kernel id, none where nothing could be compiled; `note` says what was done."""

    evidence: Mapping[str, Evidence]
    note: str

    def inform(self, query: Query) -> Query:
        """The query with what compiling told of both kernels."""
        evidence, of_anchor = (
            self.evidence.get(kernel.id) for kernel in (query.candidate, query.anchor)
        )
        return query.model_copy(update={"evidence": evidence, "anchor_evidence": of_anchor})


def target_device(name: str | None, language: Language) -> Device:
    """The device that is named, else this CPU, if kernels of the language run on it."""
    if name is not None:
        return find_device(name)
    if language not in ("cpp", "opencl"):
        raise SetupError(
            f"{language} kernels do not run on this CPU: name a GPU with --device, "
            "e.g. --device H100-SXM5"
        )
    return detect_cpu()


def compile_kernels(
    problem: Problem, device: Device, reference: Kernel, kernels: Sequence[Kernel], *, quiet: bool
) -> Compiled:
    """Compile the reference and the written kernels for the device; nothing is run."""
    written = [kernel for kernel in kernels if kernel.source and kernel.parameters is None]
    if not written:
        return Compiled({}, "not compiled: these are configurations, not written kernels")
    spec = _compiler(reference.language, device)
    if spec is None:
        told = f"not compiled: there is no compiler of {reference.language} for {device.name} here"
        return Compiled({}, told)
    try:
        with closing(plugins.build("backend", spec)) as backend:
            of_reference = backend.inspect(problem, reference)
            # A reference is known to work: if it does not compile, this is not its toolchain.
            if of_reference.failure is not None:
                why = f"the reference does not compile here ({of_reference.failure.headline})"
                fix = "" if problem.arguments else "; give the --problem that they solve"
                return Compiled({}, f"not compiled: {why}{fix}")
            found = _inspect(backend, problem, written, quiet=quiet)
    except SetupError as error:
        return Compiled({}, f"not compiled: {error}")
    good = sum(each.failure is None for each in found.values())
    note = f"{good} of {len(found)} kernels compile with {of_reference.toolchain}"
    return Compiled({reference.id: of_reference, **found}, note)


def _inspect(
    backend: Backend, problem: Problem, kernels: Sequence[Kernel], *, quiet: bool
) -> dict[str, Evidence]:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = pool.map(lambda kernel: backend.inspect(problem, kernel), kernels)
        hidden = quiet or not ERR.is_terminal
        watched = track(
            answers, "compiling", len(kernels), console=ERR, transient=True, disable=hidden
        )
        return {kernel.id: found for kernel, found in zip(kernels, watched, strict=True)}


def _compiler(language: Language, device: Device) -> ComponentSpec | None:
    """The backend that compiles this language for this device."""
    if language in ("cpp", "opencl") and device.kind == "cpu":
        return ComponentSpec(name=language)
    if language == "triton" and device.target:
        return ComponentSpec(name="triton", options={"device": device.name})
    if language == "cuda" and device.target.startswith("sm_"):
        return ComponentSpec(name="cuda", options={"device": device.name})
    return None
