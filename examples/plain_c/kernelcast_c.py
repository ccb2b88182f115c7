"""Plain C11 on the CPU: a language for kernelcast, and the backend that measures it."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kernelcast import Case, Problem, SetupError
from kernelcast.backends import (
    Arena,
    Build,
    Child,
    Level,
    LibraryChild,
    MeasuringBackend,
    detect_cpu,
    library_fault,
    native_mix,
    run_tool,
)
from kernelcast.languages import Dialect

C = Dialect(family="c", endings=(".c",), lists=("c",), on_cpu=True)
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-Wl,-z,defs")


class CBackend(MeasuringBackend[Path]):
    """Measures C kernels on this machine's CPU."""

    name = "c"
    languages = ("c",)

    def __init__(self, require: Level | None = None, *, allow_unsafe: bool = False) -> None:
        self._compiler = shutil.which("gcc") or ""
        if not self._compiler:
            raise SetupError("the C compiler gcc was not found: apt-get install gcc")
        answer = subprocess.check_output([self._compiler, "--version"], text=True)
        toolchain = f"{answer.splitlines()[0]}, {' '.join(FLAGS)}"
        super().__init__(detect_cpu(), toolchain, require=require, allow_unsafe=allow_unsafe)

    def compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Path]:
        """Compile one library for all cases."""
        (folder / "kernel.c").write_text(source, encoding="utf-8")
        library = folder / "kernel.so"
        command = [self._compiler, *FLAGS, "kernel.c", "-lm", "-o", library.name]
        run = run_tool(self.sandbox, command, folder, self.compile_timeout_s)
        if failure := run.failure or library_fault(library):
            return Build(self.evidence(problem, run, failure=failure))
        code = native_mix(self.sandbox, library, folder)
        return Build(self.evidence(problem, run, code=code), library)

    def start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        """Start a process that loads the library."""
        cores = self.device.cores
        cpu_s = math.ceil(self.device_cap_s) * cores
        child = LibraryChild(self.sandbox, self.directory, arena, threads=cores, cpu_s=cpu_s)
        child.give(next(iter(programs.values())))
        return child
