"""C++ kernels on the CPU: the compiler and its evidence.

A kernel is a shared library with the problem's entry as an exported C symbol. The compiler and the
kernel are confined by `_sandbox`; `_library` runs the kernel, and `base` measures.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from kernelcast.backends._ahead import Ahead
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._library import LibraryChild, library_fault
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import native_mix, run_tool
from kernelcast.backends.base import Build, MeasuringBackend
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.types import Case, Device, Language, Problem, content_hash

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")


class CppBackend(MeasuringBackend[Path]):
    """Measures C++ kernels on this machine's CPU.

    Args:
        device: The CPU's description, a name or a `Device`; detected by default.
        compiler: The C++ compiler.
        flags: Options of the compiler.
        compile_timeout_s: Time limit of the compiler.
        device_cap_s: How long one measurement may hold the CPU.
        build_dir: Where builds are kept; the system's temporary folder by default.
        require: The least level of confinement.
        flush_bytes: Memory to stream through before each request, twice the last-level cache for
            example. Without it, another process writes the inputs just before each call, so that
            they lie in no cache of the kernel's own core.
        allow_unsafe: Measure without a sandbox.

    Raises:
        SetupError: The compiler is not installed, or the device is no CPU.
    """

    name = "cpp"
    languages: tuple[Language, ...] = ("cpp",)

    def __init__(
        self,
        device: Device | str | None = None,
        compiler: str = "g++",
        flags: Sequence[str] = FLAGS,
        compile_timeout_s: float = 30.0,
        device_cap_s: float = 10.0,
        build_dir: str | Path | None = None,
        require: Level | None = None,
        flush_bytes: int = 0,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        program = shutil.which(compiler)
        if program is None:
            raise SetupError(
                f"the C++ compiler {compiler!r} was not found: "
                "install it (apt-get install g++) or name another one with `compiler`"
            )
        version = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        flags_hash = content_hash("\0".join(flags))[:8]
        chosen = find_device(device) if isinstance(device, str) else device or detect_cpu()
        if chosen.kind != "cpu":
            raise SetupError(
                f"C++ kernels run on the CPU, not on {chosen.name}: leave out --device"
            )
        super().__init__(
            chosen,
            f"{version.partition(chr(10))[0]}, flags {flags_hash}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            build_dir=build_dir,
            flush_bytes=flush_bytes,
        )
        self._command = (program, *flags)
        # No method of this backend, which would keep it from being collected.
        start = partial(
            LibraryChild,
            self.sandbox,
            self.directory,
            threads=chosen.cores,
            compiler=program,
            cpu_s=math.ceil(device_cap_s) * chosen.cores,
        )
        self._ahead = Ahead(start)
        weakref.finalize(self, self._ahead.close)

    def close(self) -> None:
        """Remove what was built and started; also done at exit."""
        self._ahead.close()
        super().close()

    def compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Path]:
        """Compile one library for all cases."""
        (folder / "kernel.cpp").write_text(source, encoding="utf-8")
        library = folder / "kernel.so"
        command = [*self._command, "-Wl,-z,defs", "kernel.cpp", "-o", library.name]
        if problem.arguments:  # without them the problem states no entry
            command.append(f"-Wl,--require-defined={problem.entry}")
        run = run_tool(self.sandbox, command, folder, self.compile_timeout_s)
        if failure := run.failure or library_fault(library):
            return Build(self.evidence(problem, run, failure=failure))
        code = native_mix(self.sandbox, library, folder)
        return Build(self.evidence(problem, run, code=code), library)

    def start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        """Give the library to a process that waits for one."""
        child = self._ahead.take(arena)
        child.give(next(iter(programs.values())))
        return child

    def start_ahead(self, problem: Problem) -> None:
        """Start the two processes of the next measurement."""
        self._ahead.start(Arena.of(problem))
