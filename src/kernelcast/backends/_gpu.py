"""What the backends of GPU languages share: the driver's process, evidence, and the target.

A language's backend only compiles: source to a `Build`, which is evidence and, where the kernel
can be launched, a `Program` for the driver (`_driver`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelcast.backends._arena import Arena
from kernelcast.backends._backend import MeasuringBackend
from kernelcast.backends._child import Child
from kernelcast.backends._driver import CudaChild, Program, launching_sandbox, require_device
from kernelcast.backends._inspect import Resources, occupancy
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import ToolRun, run_tool
from kernelcast.devices import catalogue, find_device
from kernelcast.errors import SetupError
from kernelcast.types import Device, Evidence, Failure, Problem

_DEFAULT_TARGET = "sm_90"


class GpuBackend(MeasuringBackend[Program]):
    """A backend up to the compiler: the launch is the driver's.

    `device` is what times and occupancy are true on, and `target` what is compiled for; see
    `choose_target`. The launching process is confined as well, and of all devices sees those of
    NVIDIA's driver alone; with `allow_unsafe` it is not, should the driver not work there.
    """

    def __init__(
        self,
        target: str,
        device: Device,
        toolchain: str,
        compile_timeout_s: float,
        device_cap_s: float,
        require: Level | None,
        *,
        allow_unsafe: bool,
    ) -> None:
        super().__init__(
            device,
            f"{toolchain}, {target}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
        )
        self.target = target
        self._launching = launching_sandbox(self._sandbox, allow_unsafe=allow_unsafe)
        self.level = self.level if self._launching.mechanisms else "S0"
        self._device_is_here = False

    def _require_device(self) -> None:
        if not self._device_is_here:
            require_device(self._launching, self.target, self.device)
            self._device_is_here = True

    def _start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        return CudaChild(self._launching, programs, arena, self.device)

    def _run(
        self, command: Sequence[str | Path], folder: Path, timeout_s: float | None = None
    ) -> ToolRun:
        """Run a compiler or disassembler, confined."""
        return run_tool(self._sandbox, command, folder, timeout_s or self._compile_timeout_s)

    def _evidence(
        self,
        problem: Problem,
        run: ToolRun,
        *,
        failure: Failure | None = None,
        code: tuple[int, Mapping[str, int]] = (0, {}),
        resources: Resources | None = None,
        **facts: Any,
    ) -> Evidence:
        """Evidence without a kernel id; occupancy only for a stated size of block."""
        if resources is not None:
            facts["registers"] = resources.registers
            facts["spill_bytes"] = resources.spill_bytes
            facts["shared_bytes"] = resources.shared_bytes
            facts["stack_bytes"] = resources.stack_bytes
            if block_threads := facts.get("block_threads"):
                taken_of_core = (resources.registers, resources.shared_bytes, block_threads)
                facts["occupancy"] = occupancy(self.device, *taken_of_core)
        facts["target"] = self.target
        return super()._evidence(problem, run, failure=failure, code=code, **facts)


def choose_target(target: str | None, device: Device | str | None) -> tuple[str, Device]:
    """What to compile for, and what for: the device's own target, or a device of this target.

    Of the catalogue's devices of one target, the first is taken; with neither, an H100.
    """
    if device is not None:
        chosen = find_device(device) if isinstance(device, str) else device
        return target or chosen.target, chosen
    target = target or _DEFAULT_TARGET
    wanted = re.sub(r"^(sm_\d+)[af]$", r"\1", target)
    found = next((each for each in catalogue().values() if each.target == wanted), None)
    if found is None:
        known = sorted({each.target for each in catalogue().values()})
        raise SetupError(
            f"no known device is built for {target!r}; name one with `device`, or a target of: "
            f"{', '.join(known)}"
        )
    return target, found
