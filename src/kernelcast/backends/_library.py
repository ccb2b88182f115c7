"""Kernels that are shared libraries: what they may import, and the process that runs one.

The problem's entry is an exported C symbol, whatever language the library was compiled from.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inspect import foreign_imports
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.backends._stub import MOST_ARGUMENTS, stub
from kernelcast.errors import ProblemError
from kernelcast.types import Failure

_MEMORY_BYTES = 4 << 30
# Functions that no kernel needs. A kernel that calls one without importing it dies in the sandbox.
_FOREIGN = frozenset(Path(__file__).with_name("foreign_symbols.txt").read_text().split())
_PYTHON = re.compile(r"_?Py[A-Z_]")  # the worker's own interpreter


def library_fault(library: Path) -> Failure | None:
    """Why not to load a library: it is too large, or imports what no kernel needs."""
    return foreign_imports(library, _is_foreign)


def _is_foreign(symbol: str) -> bool:
    return symbol in _FOREIGN or _PYTHON.match(symbol) is not None


class LibraryChild(Child):
    """A process that loads the library that `give` names, and calls the problem's entry in it.

    It sees only a folder of its own beneath `directory`, with that library, the stub and the seal.
    """

    sealed_by_linker = True

    def __init__(
        self,
        sandbox: Sandbox,
        directory: Path,
        arena: Arena,
        *,
        threads: int,
        cpu_s: int,
        compiler: str | None = None,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        problem = arena.problem
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        if arrays + dimensions > MOST_ARGUMENTS:
            raise ProblemError(f"{problem.name} takes more than {MOST_ARGUMENTS} arguments")
        self._folder = Path(tempfile.mkdtemp(dir=directory))
        sandbox.own(self._folder)
        native = str(shutil.copyfile(stub(compiler), self._folder / "stub.so"))
        super().__init__(
            sandbox,
            "_worker.main",
            [native, str(self._folder / "kernel.so"), problem.entry, str(arrays), str(dimensions)],
            Grant("measure", (self._folder,), (), memory_bytes + arena.size, cpu_s),
            self._folder,
            words=3 + arrays + dimensions,
            arena=arena,
            environment={
                # Idle OpenMP threads that spin would slow the other half of an interleaved pair.
                "OMP_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "passive",
                "LD_AUDIT": native,
            },
        )

    def give(self, library: Path) -> None:
        """Copy the library to where the process will load it."""
        shutil.copyfile(library, self._folder / "kernel.so")

    def close(self) -> None:
        """End it, and remove its folder."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)
