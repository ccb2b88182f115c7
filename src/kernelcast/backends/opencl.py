"""OpenCL C kernels: on the CPU at hand through PoCL, or on any device with an OpenCL driver.

A kernel is a source with a `__kernel` function of the problem's name, which takes the arrays in
the order of the signature as `__global` pointers and then the dimensions as `long` (or `int`), and
a line that says how it is launched: all work-items, and those of one group.

    #pragma kernelcast global((N + 255) / 256 * 256) local(256)

Extents are integer expressions over the dimensions and the source's own `#define`d numbers. The
compiler and the process that launches (`_opencl_worker`) are confined; the parent never loads an
OpenCL library. On a CPU the kernel is native code in the launching process, so it is held to what
the standard allows (no assembly, nothing of the system's libraries), and the process is sealed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelcast.backends import _opencl_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._backend import Build, MeasuringBackend
from kernelcast.backends._child import Child
from kernelcast.backends._driver import (
    Launch,
    LaunchingChild,
    device_flush_bytes,
    driver_grant,
    no_launch,
)
from kernelcast.backends._inspect import OBJDUMP_OPTIONS, foreign_imports, object_mix, ptx_mix
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._toolchain import DISASSEMBLY_TIMEOUT_S, ToolRun, run_task, run_tool
from kernelcast.backends.cuda import read_pragma
from kernelcast.devices import detect_cpu, find_device, roofline_s
from kernelcast.errors import NoDevice, ProblemError
from kernelcast.types import (
    Case,
    Device,
    Evidence,
    Failure,
    FailureKind,
    Language,
    Problem,
    content_hash,
)

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


# ----------------------------------------------------------------------------------- the device


@dataclass(frozen=True)
class Found:
    """What an OpenCL library says of one of its devices."""

    platform: int
    index: int
    platform_name: str
    platform_version: str
    name: str
    driver: str
    is_cpu: bool
    units: int
    clock_mhz: int
    most_items: int
    cache_bytes: int
    local_bytes: int

    @property
    def is_pocl(self) -> bool:
        """Whether this is PoCL, whose cache of compiled code is prepared and read here."""
        return self.platform_name == "Portable Computing Language"

    def as_device(self) -> Device:
        """The CPU as it is detected anywhere; of a GPU, OpenCL does not tell the peaks."""
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


def opencl_devices(sandbox: Sandbox) -> list[Found]:
    """All OpenCL devices here, asked for in a confined child; none without a library."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        folder = Path(name) / "probe"
        folder.mkdir()
        sandbox.own(folder)
        grant = driver_grant("compile", *_READABLE, writable=(folder,))
        process = sandbox.start(
            "_opencl_worker.probe",
            [],
            grant,
            folder,
            environment={"POCL_CACHE_DIR": str(folder)},
            output=output,
        )
        process.ended_within(_PROBE_TIMEOUT_S)
        if process.end():
            return []
        output.seek(0)
        # The library may have said something before.
        answer = output.read(1 << 20).decode(errors="replace").strip().rpartition("\n")[2]
    return [Found(**each) for each in json.loads(answer)]


def _choose(platform: int, index: int, sandbox: Sandbox) -> Found:
    found = opencl_devices(sandbox)
    if not found and sandbox.mechanisms and opencl_devices(Sandbox(frozenset())):
        raise NoDevice(
            "OpenCL does not work inside the sandbox here: for kernels you trust, --allow-unsafe"
        )
    if not found:
        raise NoDevice(
            f"there is no OpenCL device here: {INSTALL} brings the library and one for the CPU, a "
            "GPU's driver one for the GPU; `clinfo -l` lists them"
        )
    chosen = [each for each in found if (each.platform, each.index) == (platform, index)]
    if not chosen:
        known = ", ".join(
            f"platform={each.platform} index={each.index} {each.name}" for each in found
        )
        raise NoDevice(f"there is no OpenCL device {index} of platform {platform}; known: {known}")
    return chosen[0]


def _gpu_nodes() -> tuple[str, ...]:
    found = (path for pattern in _GPU_NODES for path in Path("/dev").glob(pattern))
    return tuple(str(path) for path in found if path.is_char_device())


# ----------------------------------------------------------------------------------- the kernel


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


def read_launch(source: str) -> Launch | None:
    """The launch that the source's `#pragma kernelcast` states; None without one."""
    clauses, constants = read_pragma(source)
    if "global" not in clauses or "local" not in clauses:
        return None
    return Launch(clauses["global"], clauses["local"], constants=tuple(constants.items()))


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


# The compiler sees these words as macros, so that no pasting of tokens makes one of them; and a
# source that writes one, be it to undefine it, is refused.
_ASSEMBLY = ("asm", "__asm", "__asm__")
_ASSEMBLY_WORD = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_OBLIGATORY = ("-cl-kernel-arg-info", *(f"-D{word}=no_assembly_in_opencl" for word in _ASSEMBLY))


def _writes_assembly(source: str) -> bool:
    return bool(_ASSEMBLY_WORD.search(_NOT_CODE.sub(" ", _SPLICE.sub("", source))))


# What PoCL's own code generator asks of the C library.
_HARMLESS_IMPORTS = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp", "snprintf"})


def _foreign_imports(cache: Path) -> Failure | None:
    """What native code wants of the process it is loaded into, beside memory."""
    for library in cache.rglob("*.so"):
        if fault := foreign_imports(library, lambda name: name not in _HARMLESS_IMPORTS):
            return fault
    return None


# What PoCL calls the source in its messages.
_POCL_COPY = re.compile(r"\S*/tempfile_\w+\.cl")
_SMALL_GRID = 65_535


def _pocl_variant(launch: Launch, case: Case) -> str:
    """PoCL's name for the code it makes for this size of group, and for small or large grids."""
    x, y, z = launch.block_extent(case.dimensions)
    small = max(launch.grid_extent(case.dimensions)) < _SMALL_GRID
    return f"{x}-{y}-{z}-goffs0{'-smallgrid' if small else ''}"


def _alike(launch: Launch, cases: Iterable[Case], first: Case) -> list[str]:
    """The variants of these cases that PoCL makes in one process with that of the first."""
    of_first = _pocl_variant(launch, first)
    others = {_pocl_variant(launch, case) for case in cases} - {of_first}
    return [of_first, *sorted(each for each in others if _is_small(each) is _is_small(of_first))]


def _is_small(variant: str) -> bool:
    return variant.endswith("-smallgrid")


@dataclass(frozen=True)
class _Told:
    """What the compiling child says of the entry."""

    arguments: tuple[tuple[int, str], ...]
    group: tuple[int, ...]
    local_bytes: int
    private_bytes: int

    @classmethod
    def read(cls, folder: Path) -> _Told:
        told: dict[str, Any] = json.loads((folder / "kernel.json").read_text())
        return cls(
            tuple((int(space), str(kind)) for space, kind in told["arguments"]),
            tuple(map(int, told["group"])),
            int(told["local_bytes"]),
            int(told["private_bytes"]),
        )


_GLOBAL, _CONSTANT, _PRIVATE = 0x119B, 0x119D, 0x119E
_SPACES = {_GLOBAL: "__global ", 0x119C: "__local ", _CONSTANT: "__constant "}
_WIDTHS = {"long": 8, "ulong": 8, "int": 4, "uint": 4}


def _signature_fault(problem: Problem, told: _Told) -> Failure | None:
    arrays, dimensions = len(problem.arguments), len(problem.dimensions)
    pointers, numbers = told.arguments[:arrays], told.arguments[arrays:]
    if (
        len(told.arguments) == arrays + dimensions
        and all(space in (_GLOBAL, _CONSTANT) for space, _ in pointers)
        and all(space == _PRIVATE and kind in _WIDTHS for space, kind in numbers)
    ):
        return None
    taken = ", ".join(f"{_SPACES.get(space, '')}{kind}" for space, kind in told.arguments)
    return Failure(
        kind=FailureKind.COMPILE_ERROR,
        message=f"{problem.entry} takes {taken}; it is handed {arrays} __global pointers and "
        f"{dimensions} integers (long)",
    )


# ---------------------------------------------------------------------------------- the backend


class OpenClBackend(MeasuringBackend[Program]):
    """Measures OpenCL C on one device, chosen by the numbers that `clinfo -l` gives.

    `device` describes it, if what is detected does not: by name, or as a `Device` of your own,
    whose `cores` bound PoCL's threads. On a GPU, which it has never run on, `allow_unsafe` leaves
    the launching process unconfined, should the driver not work in the sandbox.
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
        seeing = replace(detect_sandbox(), devices=_gpu_nodes())
        launching = Sandbox(frozenset()) if allow_unsafe else seeing
        self._found = _choose(platform, index, launching)
        described = find_device(device) if isinstance(device, str) else device
        version = " ".join(self._found.platform_version.split())
        flags_hash = content_hash("\0".join(flags))[:8]
        super().__init__(
            described or self._found.as_device(),
            f"{version}, driver {self._found.driver}, flags {flags_hash}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            build_dir=build_dir,
            flush_bytes=flush_bytes if self._found.is_cpu else 0,
        )
        if not self._found.is_cpu:
            self._sandbox = launching
            self.level = self.level if launching.mechanisms else "S0"
        self._options = " ".join((*flags, *_OBLIGATORY))

    # --------------------------------------------------------------------------- compiling

    def _compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        launch = read_launch(source)
        if _writes_assembly(source):
            said = "assembly is no part of OpenCL C"
            return self._failed(Failure(kind=FailureKind.CHEATING, message=said))
        if launch is None:
            line = "#pragma kernelcast global(...) local(...)"
            return self._failed(no_launch(f"no line says how: {line}"))
        if fault := _launch_fault(launch, problem.cases, self._found.most_items):
            return self._failed(fault)
        (folder / "kernel.cl").write_text(source, encoding="utf-8")
        variants = _alike(launch, problem.cases, case) if case else []
        run = self._work(problem.entry, folder, variants)
        if run.failure:
            renamed = replace(run, output=_POCL_COPY.sub("kernel.cl", run.output))
            return self._failed(renamed.failure or run.failure, run)
        try:
            told = _Told.read(folder)
        except (OSError, ValueError, TypeError, KeyError):
            silent = Failure(
                kind=FailureKind.COMPILE_ERROR, message="the compiler ended without a word"
            )
            return self._failed(silent, run)
        if fault := _signature_fault(problem, told) or self._group_fault(problem, launch, told):
            return self._failed(fault, run)
        if fault := _foreign_imports(folder / "cache"):
            return self._failed(fault, run)
        widths = tuple(_WIDTHS[kind] for _, kind in told.arguments[len(problem.arguments) :])
        program = Program(folder, problem.entry, widths, launch)
        code_bytes, instructions = self._mix(program, variants)
        evidence = Evidence(
            kernel_id="",
            toolchain=self.toolchain,
            compile_s=run.seconds,
            code_bytes=code_bytes,
            instructions=instructions,
            roofline_s=roofline_s(problem, self.device),
            shared_bytes=told.local_bytes,
            # PoCL says 1024 whatever the kernel.
            stack_bytes=None if self._found.is_pocl else told.private_bytes,
            block_threads=math.prod(launch.block_extent(case.dimensions)) if case else None,
        )
        return Build(evidence, program)

    def _failed(self, failure: Failure, run: ToolRun | None = None) -> Build[Program]:
        seconds = run.seconds if run else 0.0
        return Build(
            Evidence(kernel_id="", toolchain=self.toolchain, failure=failure, compile_s=seconds)
        )

    def _group_fault(self, problem: Problem, launch: Launch, told: _Told) -> Failure | None:
        """`reqd_work_group_size` must be what the launch says, and memory must suffice."""
        if told.local_bytes > self._found.local_bytes:
            most = self._found.local_bytes
            return no_launch(f"{told.local_bytes} bytes of local memory; {most} is the most")
        stated = [launch.block_extent(case.dimensions) for case in problem.cases]
        if any(told.group) and any(each != told.group for each in stated):
            return no_launch(f"reqd_work_group_size is {told.group}, and local {stated[0]}")
        return None

    def _work(self, entry: str, folder: Path, variants: Sequence[str]) -> ToolRun:
        """Compile kernel.cl; PoCL also to code for these sizes of groups, which it keeps."""
        return run_task(
            self._sandbox,
            "_opencl_worker.compile_source",
            [str(self._found.platform), str(self._found.index), entry, self._options],
            folder,
            self._compile_timeout_s,
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
        """From the native code that is launched, or from PTX; nothing where there is neither."""
        if not self._found.is_pocl:
            binary = (program.folder / "kernel.bin").read_bytes()
            return 0, ptx_mix(binary.decode(errors="replace")) if b".entry" in binary else {}
        objdump = shutil.which("objdump")
        library = next(program.cache.glob(f"*/*/{program.entry}/{variants[0]}/*.so"), None)
        if objdump is None or library is None:
            return 0, {}
        command = (objdump, *OBJDUMP_OPTIONS, library)
        listing = run_tool(self._sandbox, command, program.folder, DISASSEMBLY_TIMEOUT_S)
        if listing.failure:
            return 0, {}
        return object_mix(listing.output, f"_pocl_kernel_{program.entry}_workgroup")

    def _built(
        self, problem: Problem, cases: Sequence[Case], source: str
    ) -> dict[str, Program] | Failure:
        """The programs by case, with all the code that launching them takes."""
        programs = super()._built(problem, cases, source)
        if isinstance(programs, Failure):
            return programs
        program = next(iter(programs.values()))
        if fault := _launch_fault(program.launch, cases, self._found.most_items):
            return fault
        if self._found.is_pocl:
            return self._prepare(program, cases) or programs
        return programs

    def _prepare(self, program: Program, cases: Sequence[Case]) -> Failure | None:
        """Have PoCL make what it would otherwise make at the first launch, in the sealed process.

        For one size of group, it makes the code for small and for large grids in two processes.
        """
        there = {path.name for path in program.cache.glob(f"*/*/{program.entry}/*")}
        missing = {_pocl_variant(program.launch, case) for case in cases} - there
        for small in (True, False):
            variants = sorted(each for each in missing if _is_small(each) is small)
            if variants and (
                failure := self._work(program.entry, program.folder, variants).failure
            ):
                return failure
        return _foreign_imports(program.cache) if missing else None

    # --------------------------------------------------------------------------- launching

    def _start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        program = next(iter(programs.values()))
        is_cpu = self._found.is_cpu
        stated = {
            "platform": self._found.platform,
            "index": self._found.index,
            "binary": str(program.folder / "kernel.bin"),
            "entry": program.entry,
            "widths": program.widths,
            "flush_bytes": 0 if is_cpu else device_flush_bytes(self.device),
        }
        threads = self.device.cores if is_cpu else 0
        readable = (*_READABLE, program.folder)
        grant = driver_grant("measure", *readable)
        if is_cpu:
            memory_bytes = _MEMORY_BYTES + 2 * arena.size
            cpu_s = math.ceil(self._device_cap_s) * threads
            grant = Grant("measure", readable, (), memory_bytes, cpu_s)
        environment = self._environment(program.folder)
        return OpenClChild(
            self._sandbox, program, stated, grant, arena, threads=threads, **environment
        )


class OpenClChild(LaunchingChild):
    """A process that has loaded a program; each request copies in, launches, or copies out.

    With `threads`, the kernel runs in them, on a CPU: then the process is sealed in time. PoCL
    opens a kernel's code when it is first launched; every case is verified once before one comes
    again, to be timed, and by then all code is loaded.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        program: Program,
        stated: Mapping[str, Any],
        grant: Grant,
        arena: Arena,
        *,
        threads: int,
        **environment: str,
    ) -> None:
        problem = arena.problem
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        self._launches = dict.fromkeys(arena.cases, program.launch)
        self._threads = threads
        self.on_cpu = threads > 0
        self._seals = threads > 0
        self._launched: set[str] = set()
        super().__init__(
            sandbox,
            "_opencl_worker.main",
            [json.dumps(stated), str(arrays), str(dimensions)],
            grant,
            program.folder,
            words=4 + arrays + dimensions + 6,
            arena=arena,
            **environment,
        )

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
        at = self.cores.index(self.core)
        chosen = [*self.cores[at:], *self.cores[:at]][: self._threads]
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


_REFUSED_LAUNCHES = {
    -4: "no memory for it",
    -5: "out of resources",
    -54: "not with groups of this size",
    -55: "not with work-items of this extent",
    -63: "not with as many work-items",
}
