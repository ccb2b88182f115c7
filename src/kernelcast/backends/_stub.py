"""The native stub (`_stub.c`): built once for a toolchain, and checked by its hash.

The library is kept in the user's cache under the hash of its own content, so that a damaged or
replaced file is built again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kernelcast.cache import user_folder
from kernelcast.errors import SetupError
from kernelcast.types import content_hash

MOST_ARGUMENTS, MOST_WORDS = 32, 64
"""What `_stub.c` has room for: arguments of a kernel, and words of a request."""
_SOURCE = Path(__file__).with_name("_stub.c")
_OPTIONS = (
    *("-x", "c", "-std=c11", "-O2", "-shared", "-fPIC"),
    *("-nostdlib", "-ffreestanding", "-fno-stack-protector"),
)
_COMPILERS = ("cc", "gcc", "clang", "g++")
_BUILD_TIMEOUT_S = 120


@cache
def stub(compiler: str | None = None) -> Path:
    """Return the library, which is built if the cache has none for this compiler.

    Raises:
        SetupError: There is no C compiler, or it does not compile the stub.
    """
    program = next(filter(None, map(shutil.which, (compiler,) if compiler else _COMPILERS)), None)
    if program is None:
        raise SetupError("no C compiler was found to build the measuring stub: apt-get install gcc")
    facts = Path(program).stat()
    toolchain = f"{os.path.realpath(program)}\0{facts.st_size}\0{facts.st_mtime_ns}"
    basis = "\0".join((_SOURCE.read_text(), *_OPTIONS, toolchain, platform.machine()))
    kept = user_folder()
    root = kept / "stub" if kept else Path(_session().name)
    folder = root / content_hash(basis)[:16]
    for library in folder.glob("*.so"):
        if library.stem == _digest(library):
            return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _built(program, folder)
    except OSError:  # a cache that cannot be written
        return _built(program, Path(_session().name))


@cache
def cpu_counter() -> Callable[[int, int, int], int]:
    """Return `count_cpu` of the library."""
    count: Any = ctypes.CDLL(str(stub())).count_cpu
    count.argtypes, count.restype = [ctypes.c_long] * 3, ctypes.c_longlong
    return count  # type: ignore[no-any-return]


def _built(program: str, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        library = Path(name) / "stub"
        command = [program, *_OPTIONS, str(_SOURCE), "-o", str(library)]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
            )
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", None) or str(error)
            raise SetupError(f"{program} does not compile the measuring stub: {said}") from error
        library.chmod(0o444)
        return library.replace(folder / f"{_digest(library)}.so")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


@cache
def _session() -> tempfile.TemporaryDirectory[str]:
    """A folder that lives as long as this process."""
    return tempfile.TemporaryDirectory(prefix="kernelcast-stub-")
