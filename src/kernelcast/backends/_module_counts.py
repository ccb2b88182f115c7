"""What the kernels of a PyTorch module do on a GPU that is not here: each of its launches, counted.

nvcc compiles the device part of the module's CUDA text to PTX, without PyTorch's headers. The
launches come from a rehearsal on the CPU (`_rehearsal`), with geometry and arguments, and are
counted by the emulator. Arrays hold random numbers: counts that depend on content are estimates.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from kernelcast.backends._emulation import Array, count
from kernelcast.backends._inspect import Resources, parameter_widths, read_ptxas
from kernelcast.backends._rehearsal import Launch
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import find_cuda_tool, run_tool
from kernelcast.backends.cuda import FLAGS, extract_cuda
from kernelcast.devices import architecture
from kernelcast.emulator.model import Architecture
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.types import Device, Emulated, Evidence

_LIMIT_S = 60.0
_MOST_LAUNCHES = 12
_SAMPLE_NUMBERS = 1 << 14
_TEMPLATE = re.compile(r"([\w:]+)<(.*)>")
_FLOATS = {4: "<f", 8: "<d"}


@dataclass(frozen=True)
class _Compiled:
    ptx: str
    resources: dict[str, Resources]

    def entry(self, kernel: str) -> str:
        """The function that a launch names."""
        name = kernel.partition("<")[0].rpartition("::")[2].strip()
        entries = [
            entry for entry in self.resources if entry == name or f"{len(name)}{name}" in entry
        ]
        if len(entries) != 1:
            raise NotEmulated(f"{len(entries)} functions of the PTX may be {name}")
        return entries[0]


def emulated(
    sandbox: Sandbox,
    device: Device,
    source: str,
    launches: Sequence[Launch],
    case: str,
    folder: Path,
) -> Emulated:
    """Estimate the time of all launches of a module's call together.

    What is told beside the time is that of the launch which takes longest.

    Raises:
        NotEmulated: There is no nvcc, the text does not compile alone, or a launch has something
            that is not emulated.
    """
    constants = architecture(device.target)
    if constants is None:
        raise NotEmulated(f"{device.name}: the pipes of {device.target} are not known")
    if not launches:
        raise NotEmulated("what it launches in the timed case is not known")
    if len(launches) > _MOST_LAUNCHES:
        raise NotEmulated(f"it has more than {_MOST_LAUNCHES} different launches")
    compiled = _compiled(sandbox, device.target, source, launches, folder)
    rng = np.random.default_rng(0)
    parts: list[tuple[float, Emulated]] = []
    for launch in launches:
        entry = compiled.entry(launch.kernel)
        resources = compiled.resources[entry]
        shared_bytes = resources.shared_bytes + launch.shared_bytes
        facts = asdict(replace(resources, shared_bytes=shared_bytes))
        counted = count(
            sandbox,
            folder,
            compiled.ptx,
            entry,
            Evidence(kernel_id="", toolchain="", **facts),
            (launch.grid, launch.block, launch.shared_bytes),
            _arguments(launch, parameter_widths(compiled.ptx)[entry], rng),
            {},
            _LIMIT_S,
        )
        one = counted.summary(device, Architecture(**constants), case)
        parts.append((launch.count * one.runtime_s, one))
    _, longest = max(parts, key=lambda part: part[0])
    total = {
        "runtime_s": sum(runtime_s for runtime_s, _ in parts),
        "lines": (),  # of a text that is not the module's
        "exact": all(one.exact for _, one in parts),
        "cpu_s": sum(one.cpu_s for _, one in parts),
    }
    return longest.model_copy(update=total)


def _compiled(
    sandbox: Sandbox, target: str, source: str, launches: Sequence[Launch], folder: Path
) -> _Compiled:
    nvcc = find_cuda_tool("nvcc")
    if nvcc is None:
        raise NotEmulated("nvcc is not installed: pip install nvidia-cuda-nvcc, or CUDA's toolkit")
    text = extract_cuda(source)
    if text is None:
        raise NotEmulated("it has no CUDA text that can be compiled alone")
    # A template is compiled where it is used, which host code did that is left out.
    used = {each.kernel for each in launches if _TEMPLATE.fullmatch(each.kernel)}
    uses = [
        f"auto kc_used_{number} = &{re.sub(r'scalar_t', 'float', name)};"
        for number, name in enumerate(sorted(used))
    ]
    (folder / "module.cu").write_text("\n".join([text, *uses]), encoding="utf-8")
    options = (*FLAGS, f"-arch={target}", "-cubin", "-lineinfo", "-Xptxas", "-v", "--keep")
    command = (nvcc.resolve(), *options, "module.cu", "-o", "module.cubin")
    run = run_tool(sandbox, command, folder, _LIMIT_S)
    if run.failure is not None:
        raise NotEmulated(f"its CUDA text does not compile alone: {run.failure.headline}")
    ptx = (folder / "module.ptx").read_text(encoding="utf-8")
    return _Compiled(ptx, read_ptxas(run.output))


def _arguments(
    launch: Launch, widths: Sequence[int], rng: np.random.Generator
) -> list[Array | int]:
    """What a function is handed: arrays with random content, and the bits of numbers."""
    if len(widths) != len(launch.arguments):
        raise NotEmulated(f"{launch.kernel} takes {len(widths)} arguments")
    return [
        _argument(launch.kernel, kind, value, width, rng)
        for (kind, value), width in zip(launch.arguments, widths, strict=True)
    ]


def _argument(
    kernel: str, kind: str, value: str | int, width: int, rng: np.random.Generator
) -> Array | int:
    if isinstance(value, int):
        if kind != "pointer" or not value:
            raise NotEmulated(f"{kernel} is handed an array of unknown size, or a structure")
        sample = rng.random(_SAMPLE_NUMBERS, np.float32).tobytes()
        return Array(value, sample[:value])
    try:
        if kind in ("f32", "f64") and width in _FLOATS:
            return int.from_bytes(struct.pack(_FLOATS[width], float(value)), "little")
        if kind[:1] in ("s", "u") and width <= 8:  # also for a parameter of another width
            return int(value) % (1 << 8 * width)
    except (ValueError, OverflowError):
        pass
    raise NotEmulated(f"{kernel} is handed {kind} for a parameter of {width} bytes")
