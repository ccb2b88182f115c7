"""OpenCL C kernels: on the CPU at hand through PoCL, or on any device with an OpenCL driver.

A kernel is a source with a `__kernel` function of the problem's name, which takes the arrays in
the order of the signature as `__global` pointers and then the dimensions as `long` (or `int`), and
a line that states the launch: the number of all work-items, and of those in one group.

    #pragma kernelcast global((N + 255) / 256 * 256) local(256)

Extents are integer expressions over the dimensions and the source's own `#define`d numbers. The
compiler and the process that launches (`_opencl_worker`) are confined; the parent never loads an
OpenCL library. On a CPU the kernel is native code in the launching process. It is held to the
standard (no assembly, nothing of the system's libraries), and the process is sealed. With PoCL, the
native code itself is inspected.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inspect import (
    foreign_imports,
    object_mix,
    ptx_mix,
    strange_instruction,
    strange_part,
)
from kernelcast.backends._launch import (
    Launch,
    device_flush_bytes,
    driver_grant,
    no_launch,
    read_launch,
)
from kernelcast.backends._opencl_device import (
    INSTALL,
    READABLE,
    OpenClCpuChild,
    OpenClDeviceChild,
    choose_device,
)
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._stub import stub
from kernelcast.backends._toolchain import NO_OBJDUMP, ToolRun, run_tool, whole_listing
from kernelcast.backends.base import Build, MeasuringBackend
from kernelcast.devices import find_device
from kernelcast.errors import NoDevice, ProblemError, SetupError
from kernelcast.types import Case, Device, Failure, FailureKind, Language, Problem, content_hash

FLAGS = ("-cl-std=CL1.2",)

_GPU_NODES = ("nvidia*", "dri/*", "kfd")
_MEMORY_BYTES = 4 << 30
_NOTHING = "__kernel void nothing(void) {}\n"
_GLOBAL, _LOCAL, _CONSTANT, _PRIVATE = range(0x119B, 0x119F)
_SPACES = {_GLOBAL: "__global ", _LOCAL: "__local ", _CONSTANT: "__constant "}
_WIDTHS = {"long": 8, "ulong": 8, "int": 4, "uint": 4}
# The compiler sees these words as macros, so that a source with one does not compile. A source that
# undefines them is judged by its code.
_ASSEMBLY = ("asm", "__asm", "__asm__")
_OBLIGATORY = ("-cl-kernel-arg-info", *(f"-D{word}=no_assembly_in_opencl" for word in _ASSEMBLY))
# What PoCL's own code generator asks of the C library.
_HARMLESS_IMPORTS = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp", "snprintf"})
# What PoCL calls the source in its messages.
_POCL_COPY = re.compile(r"\S*/tempfile_\w+\.cl")
_SMALL_GRID = 65_535
_MOST_ITEMS = 2**32 - 1  # in each direction


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
        except ProblemError as error:
            return no_launch(str(error))
        if min(*items, *group) < 1 or max(items) > _MOST_ITEMS:
            return no_launch(f"case {case.name}: global {items}, local {group}")
        if math.prod(group) > most_items:
            return no_launch(f"{math.prod(group)} work-items a group; {most_items} is the most")
        if any(whole % part for whole, part in zip(items, group, strict=True)):
            return no_launch(
                f"case {case.name}: global {items} is no multiple of local {group}; round it up"
            )
    return None


def _foreign_parts(library: Path) -> Failure | None:
    """A failure if native code imports more than functions that move memory, or is no kernel's."""
    if fault := foreign_imports(library, lambda name: name not in _HARMLESS_IMPORTS):
        return fault
    return _no_opencl(part) if (part := strange_part(library.read_bytes())) else None


def _no_opencl(part: str) -> Failure:
    message = f"what no compiler makes of OpenCL C is in its native code: {part}"
    return Failure(kind=FailureKind.CHEATING, message=message)


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
        SetupError: PoCL's code cannot be inspected, because objdump is not installed.
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
        facts = self._facts = choose_device(platform, index, launching)
        if facts.is_pocl and not shutil.which("objdump"):
            raise SetupError(NO_OBJDUMP)
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
            self.sandbox = launching
            self.level = self.level if launching.mechanisms else "S0"
        if facts.is_cpu and not facts.shares_memory:
            raise NoDevice(
                f"{facts.platform_name} does not share the memory of its process with kernels: "
                f"install PoCL ({INSTALL})"
            )
        self._options = " ".join((*flags, *_OBLIGATORY))
        self._nothing: Path | None = None
        self._sound: set[Path] = set()  # libraries

    def compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        """Compile one binary, with the native code that PoCL launches on this case."""
        run = ToolRun(0, "", 0.0)

        def failed(failure: Failure) -> Build[Program]:
            return Build(self.evidence(problem, run, failure=failure))

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
        if fault := self._fault(problem, launch, facts):
            return failed(fault)
        listings = self._listings(folder)
        if isinstance(listings, Failure):
            return failed(listings)
        widths = tuple(_WIDTHS[kind] for _, kind in facts.arguments[len(problem.arguments) :])
        program = Program(folder, problem.entry, widths, launch)
        evidence = self.evidence(
            problem,
            run,
            code=self._mix(program, variants, listings),
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
            self.sandbox,
            [str(self._facts.platform), str(self._facts.index), entry, self._options],
            folder,
            self.compile_timeout_s,
            task="_opencl_worker.compile_source",
            readable=READABLE,
            pass_fds=(),
            environment={
                "POCL_BINARY_SPECIALIZE_WG": ",".join(variants),
                **self._environment(folder),
            },
        )

    def _environment(self, folder: Path) -> dict[str, str]:
        threads = str(self.device.cores)
        return {
            "POCL_CACHE_DIR": str(folder / "cache"),
            "POCL_MAX_PTHREAD_COUNT": threads,  # PoCL 3 to 5
            "POCL_CPU_MAX_CU_COUNT": threads,  # and later
        }

    def _listings(self, folder: Path) -> dict[Path, str] | Failure:
        """The native code that PoCL has made since it was last found sound, or what is wrong."""
        listings = {}
        for library in sorted({*(folder / "cache").rglob("*.so")} - self._sound):
            listing = _foreign_parts(library) or whole_listing(self.sandbox, library, folder)
            if isinstance(listing, Failure):
                return listing
            if instruction := strange_instruction(listing):
                return _no_opencl(instruction)
            listings[library] = listing
        self._sound |= listings.keys()
        return listings

    def _mix(
        self, program: Program, variants: Sequence[str], listings: Mapping[Path, str]
    ) -> tuple[int, dict[str, int]]:
        """The mix of the native code that is launched, or of PTX; empty without either."""
        if not self._facts.is_pocl:
            binary = (program.folder / "kernel.bin").read_bytes()
            return 0, ptx_mix(binary.decode(errors="replace")) if b".entry" in binary else {}
        library = next(program.cache.glob(f"*/*/{program.entry}/{variants[0]}/*.so"), None)
        if library is None:
            return 0, {}
        return object_mix(listings[library], f"_pocl_kernel_{program.entry}_workgroup")

    def programs(
        self, problem: Problem, cases: Sequence[Case], source: str
    ) -> dict[str, Program] | Failure:
        """The programs by case, with all the code that launching them takes."""
        programs = super().programs(problem, cases, source)
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
                if run.failure:
                    return run.failure
        listings = self._listings(program.folder)
        return listings if isinstance(listings, Failure) else programs

    def start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        """Start a process that launches the kernel, on the CPU or on another device."""
        program = next(iter(programs.values()))
        arrays, dimensions = len(arena.problem.arguments), len(arena.problem.dimensions)
        to_load = {
            "platform": self._facts.platform,
            "index": self._facts.index,
            "widths": program.widths,
        }
        readable = (*READABLE, program.folder)
        environment = self._environment(program.folder)
        if self._facts.is_cpu:
            idle = self._copy_nothing(program)
            native = shutil.copyfile(stub(), program.folder / "stub.so")
            kernels = [(str(program.folder / "kernel.bin"), program.entry), (str(idle), "nothing")]
            memory_bytes = _MEMORY_BYTES + arena.size
            cpu_s = math.ceil(self.device_cap_s) * self.device.cores
            return OpenClCpuChild(
                program.launch,
                self.device.cores,
                self.sandbox,
                "_opencl_worker.serve_on_cpu",
                [str(native), json.dumps({**to_load, "kernels": kernels}), str(arrays)],
                Grant("measure", readable, (), memory_bytes, cpu_s, loads=True),
                program.folder,
                words=3 + arrays + dimensions + 6,
                arena=arena,
                environment=environment,
            )
        to_load |= {
            "binary": str(program.folder / "kernel.bin"),
            "entry": program.entry,
            "flush_bytes": device_flush_bytes(self.device),
        }
        return OpenClDeviceChild(
            program.launch,
            self.sandbox,
            "_opencl_worker.serve_device",
            [json.dumps(to_load), str(arrays)],
            driver_grant("measure", *readable),
            program.folder,
            words=4 + arrays + dimensions + 6,
            arena=arena,
            environment=environment,
        )

    def _copy_nothing(self, program: Program) -> Path:
        """Put the kernel that does nothing, with its code, into a program's folder."""
        if self._nothing is None:
            folder = Path(tempfile.mkdtemp(dir=self.directory))
            (folder / "kernel.cl").write_text(_NOTHING, encoding="utf-8")
            run = self._work("nothing", folder, ["1-1-1-goffs0-smallgrid"])
            if run.failure:
                raise SetupError(f"OpenCL does not compile an empty kernel: {run.failure.message}")
            self._nothing = folder
        copy = program.folder / "nothing.bin"
        if not copy.exists():
            shutil.copytree(self._nothing / "cache", program.cache, dirs_exist_ok=True)
            shutil.copyfile(self._nothing / "kernel.bin", copy)
        return copy
