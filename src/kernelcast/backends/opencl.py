"""OpenCL C kernels: on the CPU at hand through PoCL, or on any device with an OpenCL driver.

A kernel is a source with a `__kernel` function of the problem's name, which takes the arrays in
the order of the signature as `__global` pointers and then the dimensions as `long` (or `int`), and
a line that states the launch: the number of all work-items, and of those in one group.

    #pragma kernelcast global((N + 255) / 256 * 256) local(256)

Extents are integer expressions over the dimensions and the source's own `#define`d numbers. The
compiler and the process that launches (`_opencl_worker`) are confined; the parent never loads an
OpenCL library. On a CPU the kernel is native code in the launching process. It is held to the
standard (no assembly, nothing of the system's libraries), and the process is sealed.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kernelcast.backends import _opencl_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._backend import Build, MeasuringBackend
from kernelcast.backends._child import Child
from kernelcast.backends._inspect import foreign_imports, ptx_mix
from kernelcast.backends._launch import (
    Launch,
    LaunchingChild,
    device_flush_bytes,
    driver_grant,
    no_launch,
    read_launch,
)
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._toolchain import ToolRun, native_mix, run_tool
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import NoDevice, ProblemError
from kernelcast.types import Case, Device, Failure, FailureKind, Language, Problem, content_hash

FLAGS = ("-cl-std=CL1.2",)
INSTALL = "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"
"""How a machine without a GPU gets the library `libOpenCL.so.1` and a device."""

# What an OpenCL library reads beside the system's own folders; PoCL asks for processor and memory.
_READABLE = tuple(
    path for path in map(Path, ("/etc/OpenCL", "/proc/cpuinfo", "/proc/meminfo")) if path.exists()
)
_GPU_NODES = ("nvidia*", "dri/*", "kfd")
_PROBE_TIMEOUT_S = 30.0
_MEMORY_BYTES = 4 << 30
_IS_CPU = 2  # a bit of CL_DEVICE_TYPE
_GLOBAL, _LOCAL, _CONSTANT, _PRIVATE = range(0x119B, 0x119F)
_SPACES = {_GLOBAL: "__global ", _LOCAL: "__local ", _CONSTANT: "__constant "}
_WIDTHS = {"long": 8, "ulong": 8, "int": 4, "uint": 4}
_REFUSED_LAUNCHES = {
    -4: "no memory for it",
    -5: "out of resources",
    -54: "not with groups of this size",
    -55: "not with work-items of this extent",
    -63: "not with as many work-items",
}
# The compiler sees these words as macros, so that pasting tokens makes none of them. A source that
# writes one, if only to undefine it, is refused.
_ASSEMBLY = ("asm", "__asm", "__asm__")
_ASSEMBLY_WORD = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_OBLIGATORY = ("-cl-kernel-arg-info", *(f"-D{word}=no_assembly_in_opencl" for word in _ASSEMBLY))
# What PoCL's own code generator asks of the C library.
_HARMLESS_IMPORTS = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp", "snprintf"})
# What PoCL calls the source in its messages.
_POCL_COPY = re.compile(r"\S*/tempfile_\w+\.cl")
_SMALL_GRID = 65_535


@dataclass(frozen=True)
class DeviceFacts:
    """Facts of one device, from an OpenCL library; `kind` is CL_DEVICE_TYPE."""

    platform: int
    index: int
    platform_name: str
    platform_version: str
    name: str
    driver: str
    kind: int
    units: int
    clock_mhz: int
    most_items: int
    cache_bytes: int
    local_bytes: int

    @property
    def is_cpu(self) -> bool:
        """Whether kernels run on the CPU."""
        return bool(self.kind & _IS_CPU)

    @property
    def is_pocl(self) -> bool:
        """Whether this is PoCL, whose cache of compiled code is prepared and read here."""
        return self.platform_name == "Portable Computing Language"

    def as_device(self) -> Device:
        """The detected CPU, or a GPU without its peaks, which OpenCL does not know."""
        if self.is_cpu:
            cpu = detect_cpu()
            cores = min(cpu.cores, self.units)
            return cpu.model_copy(update={"name": self.name, "cores": cores})
        return Device(
            name=self.name,
            kind="gpu",
            cores=self.units,
            clock_hz=self.clock_mhz * 1e6,
            peak_flops={},
            bandwidth_bytes_s=0.0,
            source="OpenCL, which does not tell peaks: name the device for a roofline",
            cache_bytes=self.cache_bytes,
            shared_bytes_per_block=self.local_bytes,
        )


def opencl_devices(sandbox: Sandbox) -> list[DeviceFacts]:
    """All OpenCL devices here, asked for in a confined child; none without a library."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        folder = Path(name) / "probe"
        folder.mkdir()
        sandbox.own(folder)
        grant = driver_grant("compile", *_READABLE, writable=(folder,))
        environment = {"POCL_CACHE_DIR": str(folder)}
        process = sandbox.start(
            "_opencl_worker.probe", [], grant, folder, environment=environment, output=output
        )
        process.ended_within(_PROBE_TIMEOUT_S)
        if process.end():
            return []
        output.seek(0)
        # The library may have printed something before.
        answer = output.read(1 << 20).decode(errors="replace").strip().rpartition("\n")[2]
    return [DeviceFacts(**facts) for facts in json.loads(answer)]


def _choose(platform: int, index: int, sandbox: Sandbox) -> DeviceFacts:
    devices = opencl_devices(sandbox)
    if not devices and sandbox.mechanisms and opencl_devices(Sandbox(frozenset())):
        raise NoDevice(
            "OpenCL does not work inside the sandbox here: for kernels you trust, --allow-unsafe"
        )
    if not devices:
        raise NoDevice(
            f"there is no OpenCL device here: {INSTALL} brings the library and one for the CPU, a "
            "GPU's driver one for the GPU; `clinfo -l` lists them"
        )
    for device in devices:
        if (device.platform, device.index) == (platform, index):
            return device
    known = ", ".join(
        f"platform={device.platform} index={device.index} {device.name}" for device in devices
    )
    raise NoDevice(f"there is no OpenCL device {index} of platform {platform}; known: {known}")


@dataclass(frozen=True)
class Program:
    """A compiled kernel: its folder, bytes of each dimension's parameter, and its launch.

    The launch's grid is counted in work-items, as everywhere in OpenCL.
    """

    folder: Path
    entry: str
    widths: tuple[int, ...]
    launch: Launch

    @property
    def cache(self) -> Path:
        """Where PoCL keeps what it makes of the program."""
        return self.folder / "cache"


def _launch_fault(launch: Launch, cases: Iterable[Case], most_items: int) -> Failure | None:
    """Why it cannot be launched on one of these cases; None where it can."""
    for case in cases:
        try:
            items = launch.grid_extent(case.dimensions)
            group = launch.block_extent(case.dimensions)
        except (ProblemError, ArithmeticError, TypeError, ValueError) as error:
            return no_launch(str(error))
        if min(*items, *group) < 1:
            return no_launch(f"case {case.name}: global {items}, local {group}")
        if math.prod(group) > most_items:
            return no_launch(f"{math.prod(group)} work-items a group; {most_items} is the most")
        if any(whole % part for whole, part in zip(items, group, strict=True)):
            return no_launch(
                f"case {case.name}: global {items} is no multiple of local {group}; round it up"
            )
    return None


def _foreign_imports(cache: Path) -> Failure | None:
    """A failure if native code imports more than functions that move memory."""
    for library in cache.rglob("*.so"):
        if fault := foreign_imports(library, lambda name: name not in _HARMLESS_IMPORTS):
            return fault
    return None


def _pocl_variant(launch: Launch, case: Case) -> str:
    """PoCL's name for the code that it makes for this group size and for small or large grids."""
    x, y, z = launch.block_extent(case.dimensions)
    small = max(launch.grid_extent(case.dimensions)) < _SMALL_GRID
    return f"{x}-{y}-{z}-goffs0{'-smallgrid' if small else ''}"


def _is_small(variant: str) -> bool:
    return variant.endswith("-smallgrid")


class _KernelFacts(BaseModel):
    """Facts of the compiled entry, from the compiling child."""

    arguments: tuple[tuple[int, str], ...]
    group: tuple[int, int, int]
    local_bytes: int
    private_bytes: int


class OpenClBackend(MeasuringBackend[Program]):
    """Measures OpenCL C on one device, chosen by the numbers that `clinfo -l` gives.

    Args:
        platform: Number of the platform.
        index: Number of the device on its platform.
        device: The device's description, a name or a `Device`; detected by default. Its `cores`
            bound PoCL's threads.
        flags: Options of the compiler.
        compile_timeout_s: Time limit of the compiler.
        device_cap_s: How long one measurement may hold the device.
        build_dir: Where builds are kept; the system's temporary folder by default.
        require: The least level of confinement.
        flush_bytes: Memory to stream through before each request on a CPU.
        allow_unsafe: Measure without a sandbox. On a GPU, where the sandbox is untested, this
            leaves the launching process unconfined.

    Raises:
        NoDevice: There is no such device; the message says what to install.
    """

    name = "opencl"
    languages: tuple[Language, ...] = ("opencl",)

    def __init__(
        self,
        platform: int = 0,
        index: int = 0,
        device: Device | str | None = None,
        flags: Sequence[str] = FLAGS,
        compile_timeout_s: float = 60.0,
        device_cap_s: float = 10.0,
        build_dir: str | Path | None = None,
        require: Level | None = None,
        flush_bytes: int = 0,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        paths = (path for pattern in _GPU_NODES for path in Path("/dev").glob(pattern))
        nodes = tuple(str(path) for path in paths if path.is_char_device())
        launching = replace(detect_sandbox(), devices=nodes)
        if allow_unsafe:
            launching = Sandbox(frozenset())
        facts = self._facts = _choose(platform, index, launching)
        described = find_device(device) if isinstance(device, str) else device
        version = " ".join(facts.platform_version.split())
        flags_hash = content_hash("\0".join(flags))[:8]
        super().__init__(
            described or facts.as_device(),
            f"{version}, driver {facts.driver}, flags {flags_hash}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            build_dir=build_dir,
            flush_bytes=flush_bytes if facts.is_cpu else 0,
        )
        if not facts.is_cpu:
            self._sandbox = launching
            self.level = self.level if launching.mechanisms else "S0"
        self._options = " ".join((*flags, *_OBLIGATORY))

    def _compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        run = ToolRun(0, "", 0.0)

        def failed(failure: Failure) -> Build[Program]:
            return Build(self._evidence(problem, run, failure=failure))

        if _ASSEMBLY_WORD.search(_NOT_CODE.sub(" ", _SPLICE.sub("", source))):
            message = "assembly is no part of OpenCL C"
            return failed(Failure(kind=FailureKind.CHEATING, message=message))
        launch = read_launch(source, "global", "local")
        if launch is None:
            line = "#pragma kernelcast global(...) local(...)"
            return failed(no_launch(f"no line says how: {line}"))
        if fault := _launch_fault(launch, problem.cases, self._facts.most_items):
            return failed(fault)
        (folder / "kernel.cl").write_text(source, encoding="utf-8")
        variants = []
        if case:
            first = _pocl_variant(launch, case)
            # Those that PoCL makes in the same process.
            others = {_pocl_variant(launch, case) for case in problem.cases} - {first}
            alike = [name for name in others if _is_small(name) is _is_small(first)]
            variants = [first, *sorted(alike)]
        run = self._work(problem.entry, folder, variants)
        run = replace(run, output=_POCL_COPY.sub("kernel.cl", run.output))
        if run.failure:
            return failed(run.failure)
        try:
            facts = _KernelFacts.model_validate_json((folder / "kernel.json").read_bytes())
        except (OSError, ValueError):
            message = "the compiler ended without a result"
            return failed(Failure(kind=FailureKind.COMPILE_ERROR, message=message))
        if fault := self._fault(problem, launch, facts) or _foreign_imports(folder / "cache"):
            return failed(fault)
        widths = tuple(_WIDTHS[kind] for _, kind in facts.arguments[len(problem.arguments) :])
        program = Program(folder, problem.entry, widths, launch)
        evidence = self._evidence(
            problem,
            run,
            code=self._mix(program, variants),
            shared_bytes=facts.local_bytes,
            # PoCL reports 1024 for every kernel.
            stack_bytes=None if self._facts.is_pocl else facts.private_bytes,
            block_threads=math.prod(launch.block_extent(case.dimensions)) if case else None,
        )
        return Build(evidence, program)

    def _fault(self, problem: Problem, launch: Launch, facts: _KernelFacts) -> Failure | None:
        """Why a source that compiles is still no kernel of this problem on this device."""
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        pointers, numbers = facts.arguments[:arrays], facts.arguments[arrays:]
        if (
            len(facts.arguments) != arrays + dimensions
            or any(space not in (_GLOBAL, _CONSTANT) for space, _ in pointers)
            or any(space != _PRIVATE or kind not in _WIDTHS for space, kind in numbers)
        ):
            taken = ", ".join(f"{_SPACES.get(space, '')}{kind}" for space, kind in facts.arguments)
            message = (
                f"{problem.entry} takes {taken}; it is handed {arrays} __global pointers and "
                f"{dimensions} integers (long)"
            )
            return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        most = self._facts.local_bytes
        if facts.local_bytes > most:
            return no_launch(f"{facts.local_bytes} bytes of local memory; {most} is the most")
        groups = [launch.block_extent(case.dimensions) for case in problem.cases]
        if any(facts.group) and any(group != facts.group for group in groups):
            return no_launch(f"reqd_work_group_size is {facts.group}, and local {groups[0]}")
        return None

    def _work(self, entry: str, folder: Path, variants: Sequence[str]) -> ToolRun:
        """Compile kernel.cl; PoCL also makes and keeps native code for these variants."""
        return run_tool(
            self._sandbox,
            [str(self._facts.platform), str(self._facts.index), entry, self._options],
            folder,
            self._compile_timeout_s,
            task="_opencl_worker.compile_source",
            readable=_READABLE,
            pass_fds=(),
            POCL_BINARY_SPECIALIZE_WG=",".join(variants),
            **self._environment(folder),
        )

    def _environment(self, folder: Path) -> dict[str, str]:
        threads = str(self.device.cores)
        return {
            "POCL_CACHE_DIR": str(folder / "cache"),
            "POCL_MAX_PTHREAD_COUNT": threads,  # PoCL 3 to 5
            "POCL_CPU_MAX_CU_COUNT": threads,  # and later
        }

    def _mix(self, program: Program, variants: Sequence[str]) -> tuple[int, dict[str, int]]:
        """The mix of the native code that is launched, or of PTX; empty without either."""
        if not self._facts.is_pocl:
            binary = (program.folder / "kernel.bin").read_bytes()
            return 0, ptx_mix(binary.decode(errors="replace")) if b".entry" in binary else {}
        library = next(program.cache.glob(f"*/*/{program.entry}/{variants[0]}/*.so"), None)
        if library is None:
            return 0, {}
        function = f"_pocl_kernel_{program.entry}_workgroup"
        return native_mix(self._sandbox, library, program.folder, function)

    def _built(
        self, problem: Problem, cases: Sequence[Case], source: str
    ) -> dict[str, Program] | Failure:
        """The programs by case, with all the code that launching them takes."""
        programs = super()._built(problem, cases, source)
        if isinstance(programs, Failure):
            return programs
        program = next(iter(programs.values()))
        if fault := _launch_fault(program.launch, cases, self._facts.most_items):
            return fault
        if not self._facts.is_pocl:
            return programs
        # PoCL would make the missing code at the first launch, in the sealed process. It makes
        # code for small and for large grids in two processes.
        there = {path.name for path in program.cache.glob(f"*/*/{program.entry}/*")}
        missing = {_pocl_variant(program.launch, case) for case in cases} - there
        for small in (True, False):
            if variants := sorted(name for name in missing if _is_small(name) is small):
                run = self._work(program.entry, program.folder, variants)
                if fault := run.failure or _foreign_imports(program.cache):
                    return fault
        return programs

    def _start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        program = next(iter(programs.values()))
        readable = (*_READABLE, program.folder)
        threads, flush_bytes = 0, device_flush_bytes(self.device)
        grant = driver_grant("measure", *readable)
        if self._facts.is_cpu:
            threads, flush_bytes = self.device.cores, 0
            memory_bytes = _MEMORY_BYTES + 2 * arena.size
            cpu_s = math.ceil(self._device_cap_s) * threads
            grant = Grant("measure", readable, (), memory_bytes, cpu_s)
        to_load = {
            "platform": self._facts.platform,
            "index": self._facts.index,
            "binary": str(program.folder / "kernel.bin"),
            "entry": program.entry,
            "widths": program.widths,
            "flush_bytes": flush_bytes,
        }
        arrays, dimensions = len(arena.problem.arguments), len(arena.problem.dimensions)
        return OpenClChild(
            program.launch,
            threads,
            self._sandbox,
            "_opencl_worker.main",
            [json.dumps(to_load), str(arrays)],
            grant,
            program.folder,
            words=4 + arrays + dimensions + 6,
            arena=arena,
            **self._environment(program.folder),
        )


class OpenClChild(LaunchingChild):
    """A process that has loaded a program; each request copies in, launches, or copies out.

    With `threads`, the kernel runs in them on a CPU, and the process is sealed in time: PoCL opens
    a kernel's code at its first launch, and every case is launched once, to be verified, before
    one comes again to be timed.
    """

    def __init__(self, launch: Launch, threads: int, *process: Any, **options: Any) -> None:
        super().__init__(*process, **options)
        self._launches = dict.fromkeys(self.arena.cases, launch)
        self._threads = threads
        self.on_cpu = self._seals = threads > 0
        self._launched: set[str] = set()

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of the launches alone, a launch on each slot."""
        phases = [_opencl_worker.STAGE, _opencl_worker.RUN, _opencl_worker.FETCH]
        if self._threads and not self._launched:
            self._place_threads()
        if self._seals and case in self._launched:
            phases.insert(0, _opencl_worker.SEAL)
            self._seals = False
        self._launched.add(case)
        return self._ask(phases, _opencl_worker.RUN, case, calls, base, timeout_s)

    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Seconds of a request that launches nothing."""
        phases = [_opencl_worker.STAGE, _opencl_worker.IDLE]
        return self._ask(phases, _opencl_worker.IDLE, case, calls, 0, timeout_s)

    def _place_threads(self) -> None:
        """Let PoCL's threads run on the same cores in both processes of a comparison."""
        first = self.cores.index(self.core)
        chosen = [*self.cores[first:], *self.cores[:first]][: self._threads]
        for thread in Path(f"/proc/{self._worker_pid}/task").glob("*"):
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), chosen)

    def _refused(self, result: int) -> Failure:
        if result in _REFUSED_LAUNCHES:
            return no_launch(f"OpenCL refused it ({_REFUSED_LAUNCHES[result]})")
        return Failure(kind=FailureKind.CRASH, message=f"OpenCL error {result} on the device")

    def _ended(self, status: int) -> Failure:
        if status == _opencl_worker.LOAD_FAILED:
            return Failure(
                kind=FailureKind.COMPILE_ERROR, message="OpenCL does not load its own binary"
            )
        if status == _opencl_worker.NO_DEVICE:
            raise NoDevice("the OpenCL device went away: see `clinfo -l`")
        return super()._ended(status)
