"""C++ kernels on the CPU: the compiler, its evidence, and the process that runs a kernel.

A kernel is a shared library with the problem's entry as an exported C symbol. The compiler and the
kernel are confined by `_sandbox`; `_backend` measures.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from kernelcast.backends._arena import Arena
from kernelcast.backends._backend import Build, MeasuringBackend
from kernelcast.backends._child import Child
from kernelcast.backends._inspect import foreign_imports
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._toolchain import native_mix, run_tool
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import SetupError
from kernelcast.types import Case, Device, Failure, Language, Problem, content_hash

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")

_MEMORY_BYTES = 4 << 30
# Functions that no kernel needs. A kernel that calls one without importing it dies in the sandbox.
_FOREIGN = frozenset(Path(__file__).with_name("foreign_symbols.txt").read_text().split())
_PYTHON = re.compile(r"_?Py[A-Z_]")  # the worker's own interpreter


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
            CppChild,
            self._sandbox,
            self._directory,
            threads=chosen.cores,
            cpu_s=math.ceil(device_cap_s) * chosen.cores,
        )
        self._ahead = _Ahead(start)
        weakref.finalize(self, self._ahead.close)

    def close(self) -> None:
        """Remove what was built and started; also done at exit."""
        self._ahead.close()
        super().close()

    def _compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Path]:
        """Compile one library for all cases."""
        (folder / "kernel.cpp").write_text(source, encoding="utf-8")
        library = folder / "kernel.so"
        command = [*self._command, "-Wl,-z,defs", "kernel.cpp", "-o", library.name]
        if problem.arguments:  # without them the problem states no entry
            command.append(f"-Wl,--require-defined={problem.entry}")
        run = run_tool(self._sandbox, command, folder, self._compile_timeout_s)
        if failure := run.failure or foreign_imports(library, _is_foreign):
            return Build(self._evidence(problem, run, failure=failure))
        code = native_mix(self._sandbox, library, folder)
        return Build(self._evidence(problem, run, code=code), library)

    def _start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        child = self._ahead.take(arena)
        child.give(next(iter(programs.values())))
        return child

    def _start_ahead(self, problem: Problem) -> None:
        self._ahead.start(Arena.of(problem))


class _Ahead:
    """Two confined processes without a kernel, started when a measurement has ended.

    Starting one takes 20 ms, as long as twenty calls of many kernels.
    """

    def __init__(self, start: Callable[[Arena], CppChild]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kernelcast-ahead")
        self._waiting: list[Future[CppChild]] = []

    def start(self, arena: Arena) -> None:
        """Start two processes for this problem in the background."""
        with self._lock:
            self._discard(but=arena.problem)
            while len(self._waiting) < 2:
                self._waiting.append(self._thread.submit(self._start, arena))

    def take(self, arena: Arena) -> CppChild:
        """A waiting process of this problem, or a new one."""
        with self._lock:
            self._discard(but=arena.problem)
            waiting = self._waiting.pop().result() if self._waiting else None
        if waiting is None:
            return self._start(arena)
        waiting.arena = arena  # of the same size, with other hidden cases
        return waiting

    def close(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._discard()
            self._thread.shutdown()

    def _discard(self, but: Problem | None = None) -> None:
        futures, self._waiting = self._waiting, []
        for future in futures:
            if future.exception() is not None:
                continue  # `take` starts one, and raises the error
            child = future.result()
            if but is not None and child.alive and child.arena.problem.id == but.id:
                self._waiting.append(future)
            else:
                child.close()


class CppChild(Child):
    """A process that loads the library that `give` names.

    It sees only a folder of its own beneath `directory`, with that library.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        directory: Path,
        arena: Arena,
        *,
        threads: int,
        cpu_s: int,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        problem = arena.problem
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        self._folder = Path(tempfile.mkdtemp(dir=directory))
        sandbox.own(self._folder)
        super().__init__(
            sandbox,
            "_worker.main",
            [str(self._folder / "kernel.so"), problem.entry, str(arrays), str(dimensions)],
            Grant("measure", (self._folder,), (), memory_bytes + arena.size, cpu_s),
            self._folder,
            words=3 + arrays + dimensions,
            arena=arena,
            # Idle OpenMP threads that spin would slow the other half of an interleaved pair.
            OMP_NUM_THREADS=str(threads),
            OMP_WAIT_POLICY="passive",
        )

    def give(self, library: Path) -> None:
        """Copy the library to where the process will load it."""
        shutil.copyfile(library, self._folder / "kernel.so")

    def load(self, timeout_s: float) -> Failure | None:
        """Signal the process that its library is there, and wait until it is loaded."""
        with suppress(BrokenPipeError):
            os.write(self._request_fd, b"\0")
        return super().load(timeout_s)

    def close(self) -> None:
        """End it, and remove its folder."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of one request, a call on each slot."""
        # A child that slept answers late; a stub call wakes it before the clock starts, on the
        # core on which the other child is timed too. The call itself may use all of them.
        self.place([self.core])
        awake = self.idle(case, 1, timeout_s)
        if isinstance(awake, Failure):
            return awake
        self.place(self.cores)
        return self.call(self._words(case, calls, base, stub=False), timeout_s)

    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Seconds of a request that calls a stub instead of the kernel."""
        return self.call(self._words(case, calls, 0, stub=True), timeout_s, working=False)

    def _words(self, case: str, calls: int, base: int, *, stub: bool) -> list[int]:
        layout = self.arena.layouts[case]
        offsets = [base + offset for offset in layout.offsets]
        return [stub, calls, layout.stride, *offsets, *self.arena.extents(case)]


def _is_foreign(symbol: str) -> bool:
    return symbol in _FOREIGN or _PYTHON.match(symbol) is not None
