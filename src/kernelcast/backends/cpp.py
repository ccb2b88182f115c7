"""C++ kernels on the CPU: the compiler, what its output says, and the process that runs it.

A kernel is a shared library with the problem's entry as an exported C symbol. All that runs
foreign code, the compiler too, is confined by `_sandbox`; measuring is `_backend`'s.
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
from kernelcast.backends._inspect import OBJDUMP_OPTIONS, foreign_imports, object_mix
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._toolchain import DISASSEMBLY_TIMEOUT_S, run_tool
from kernelcast.devices import detect_cpu, find_device, roofline_s
from kernelcast.errors import SetupError
from kernelcast.types import (
    Case,
    Device,
    Evidence,
    Failure,
    Language,
    Problem,
    content_hash,
)

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")

_MEMORY_BYTES = 4 << 30


class CppBackend(MeasuringBackend[Path]):
    """Measures C++ kernels on this machine's CPU.

    Inputs are written by another process just before each call, so that they lie in no cache of
    the kernel's own core; with `flush_bytes` (twice the last-level cache, say) the parent streams
    through so much memory before each request that they lie in none.
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
        found = shutil.which(compiler)
        if found is None:
            raise SetupError(
                f"the C++ compiler {compiler!r} was not found: "
                "install it (apt-get install g++) or name another one with `compiler`"
            )
        version = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        flags_hash = content_hash("\0".join(flags))[:8]
        super().__init__(
            _cpu(device),
            f"{version.partition(chr(10))[0]}, flags {flags_hash}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            build_dir=build_dir,
            flush_bytes=flush_bytes,
        )
        self._command = (found, *flags)
        # Not a method: who waits to be collected must not be held by what is to be closed then.
        self._ahead = _Ahead(
            partial(
                CppChild,
                self._sandbox,
                self._directory,
                threads=self.device.cores,
                cpu_s=math.ceil(device_cap_s) * self.device.cores,
            )
        )
        weakref.finalize(self, self._ahead.close)

    def close(self) -> None:
        """Remove what was built and started; also done at exit."""
        self._ahead.close()
        super().close()

    def _compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Path]:
        """One library for all cases; size and mix of its code, and what it wants of others."""
        (folder / "kernel.cpp").write_text(source, encoding="utf-8")
        linker = ["-Wl,-z,defs"]
        if problem.arguments:  # else the problem is unstated, and so is its entry
            linker.append(f"-Wl,--require-defined={problem.entry}")
        command = [*self._command, *linker, "kernel.cpp", "-o", "kernel.so"]
        run = run_tool(self._sandbox, command, folder, self._compile_timeout_s)
        if failure := run.failure or foreign_imports(folder / "kernel.so", _is_foreign):
            return Build(self._evidence(run.seconds, failure))
        code_bytes, instructions = self._mix(folder)
        evidence = self._evidence(run.seconds).model_copy(
            update={
                "code_bytes": code_bytes,
                "instructions": instructions,
                "roofline_s": roofline_s(problem, self.device),
            }
        )
        return Build(evidence, folder / "kernel.so")

    def _evidence(self, compile_s: float, failure: Failure | None = None) -> Evidence:
        return Evidence(
            kernel_id="", toolchain=self.toolchain, failure=failure, compile_s=compile_s
        )

    def _mix(self, folder: Path) -> tuple[int, dict[str, int]]:
        """Size and instruction mix of the library; nothing without objdump."""
        objdump = shutil.which("objdump")
        if objdump is None:
            return 0, {}
        command = [objdump, *OBJDUMP_OPTIONS, "kernel.so"]
        listing = run_tool(self._sandbox, command, folder, DISASSEMBLY_TIMEOUT_S)
        return (0, {}) if listing.failure else object_mix(listing.output)

    def _start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        child = self._ahead.take(arena)
        child.give(next(iter(programs.values())))
        return child

    def _start_ahead(self, problem: Problem) -> None:
        self._ahead.start(Arena.of(problem))


def _cpu(device: Device | str | None) -> Device:
    """The CPU that is meant; C++ kernels run on no other device."""
    chosen = find_device(device) if isinstance(device, str) else device or detect_cpu()
    if chosen.kind != "cpu":
        raise SetupError(f"C++ kernels run on the CPU, not on {chosen.name}: leave out --device")
    return chosen


class _Ahead:
    """Two confined processes without a kernel, started when a measurement has ended.

    To start one takes 20 ms, as long as twenty calls of many kernels, and would be waited for.
    """

    def __init__(self, start: Callable[[Arena], CppChild]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kernelcast-ahead")
        self._waiting: list[Future[CppChild]] = []

    def start(self, arena: Arena) -> None:
        """Start what the next measurement of this problem needs, in the background."""
        with self._lock:
            self._discard(but=arena.problem)
            while len(self._waiting) < 2:
                self._waiting.append(self._thread.submit(self._start, arena))

    def take(self, arena: Arena) -> CppChild:
        """One of those, if it is of this problem; else a new one."""
        with self._lock:
            self._discard(but=arena.problem)
            waiting = self._waiting.pop().result() if self._waiting else None
        if waiting is None:
            return self._start(arena)
        waiting.arena = arena  # of the same size, with other hidden cases
        return waiting

    def close(self) -> None:
        """End them all; no more are started."""
        with self._lock:
            self._discard()
            self._thread.shutdown()

    def _discard(self, but: Problem | None = None) -> None:
        futures, self._waiting = self._waiting, []
        for future in futures:
            if future.exception() is not None:
                continue  # who needs one starts it, and is told why that does not work
            child = future.result()
            if but is not None and child.alive and child.arena.problem.id == but.id:
                self._waiting.append(future)
            else:
                child.close()


class CppChild(Child):
    """A process that has loaded a library, or will once it is given one.

    It sees a folder of its own beneath `directory`, with that library and nothing else.
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
        """What to load."""
        shutil.copyfile(library, self._folder / "kernel.so")

    def load(self, timeout_s: float) -> Failure | None:
        """Tell the process that its library is there, and wait until it is loaded."""
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


# ------------------------------------------------------------------------------------ evidence

# What a kernel has no use for; asked for without a library, the sealed process dies of it.
_NOT_FOR_KERNELS = """
    dlopen dlmopen dlsym dlvsym dladdr dlinfo dl_iterate_phdr syscall system popen
    execl execle execlp execv execve execvp execvpe fexecve posix_spawn posix_spawnp
    fork vfork _Fork clone daemon ptrace process_vm_readv process_vm_writev kill tgkill killpg
    socket socketpair connect bind listen accept send sendto sendmsg recv recvfrom recvmsg
    getaddrinfo gethostbyname open open64 openat openat64 creat fopen fopen64 freopen opendir
    tmpfile tmpfile64 mkstemp unlink unlinkat remove rename mkdir rmdir chmod chown symlink link
    truncate ftruncate memfd_create shm_open mprotect pkey_mprotect setrlimit personality
    setns unshare mount chroot setuid setgid getenv secure_getenv setenv putenv environ __environ
    sched_setscheduler setpriority nice pthread_setschedparam dup dup2 dup3 pipe pipe2
    _ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode
    _ZNSt14basic_ifstreamIcSt11char_traitsIcEEC1EPKcSt13_Ios_Openmode
    _ZNSt14basic_ofstreamIcSt11char_traitsIcEEC1EPKcSt13_Ios_Openmode
"""
_FOREIGN = frozenset(_NOT_FOR_KERNELS.split())
_PYTHON = re.compile(r"_?Py[A-Z_]")  # the worker's own interpreter


def _is_foreign(symbol: str) -> bool:
    return symbol in _FOREIGN or _PYTHON.match(symbol) is not None
