"""PyTorch's C++ headers, made short: half a minute of each build is reading them.

`torch/extension.h` includes PyTorch's whole C++ front end. Nearly every extension needs tensors and
pybind11 alone, so that a shorter header stands in for it, which is compiled ahead once for each set
of options that changes it. It is kept in the user's cache, 0.5 GB a set, six sets at most.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from kernelcast.cache import user_folder
from kernelcast.types import content_hash

_HERE = Path(__file__).with_name("headers")
_SHORT = _HERE / "torch" / "extension.h"
CUDA = _HERE / "cuda"
_BEYOND = re.compile(r"torch::(?:nn|optim|data|jit|serialize)\b|torch/(?:all|nn|torch|script)\b")
_LEVEL = re.compile(r"-O(fast|[0-3sg])")
_OPTIONS = ("-march=native", "-ffast-math", "-fopenmp")
_UNKNOWN = re.compile(
    r"[\"']-(?:m(?!arch=native)|f(?!fast-math|openmp|PIC|unroll)|D|U|std=)[\w=+-]+"
)
_MOST_SETS = 6
_TIMEOUT_S = 600.0
_lock = threading.Lock()


def torch_headers(source: str) -> Path | None:
    """A folder with the short header, compiled ahead if that serves a source; else None.

    The options are guessed from the source's text: a wrong guess costs time and nothing else, as
    the compiler then reads the header itself.
    """
    if "cpp_extension" not in source or _BEYOND.search(source):
        return None
    options = _options(source)
    return _HERE if options is None else _compiled_ahead(options)


def cuda_headers(source: str) -> list[Path]:
    """Folders of headers for CUDA text on the CPU, with PyTorch's; the first may be compiled ahead.

    The text is compiled with -O1.
    """
    return [CUDA] if _BEYOND.search(source) else [_compiled_ahead(("-O2",)), CUDA, _HERE]


def _compiled_ahead(options: tuple[str, ...]) -> Path:
    """A folder with the short header, compiled for these options if that can be."""
    kept = user_folder()
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if kept is None or compiler is None:
        return _HERE
    facts = Path(compiler).resolve().stat()
    basis = "\0".join((*options, _SHORT.read_text(), str(_torch()), f"{facts.st_mtime_ns}"))
    folder = kept / "torch-headers" / content_hash(basis)[:16]
    with _lock:
        if not (folder / "torch" / "extension.h.gch").exists():
            _compile(compiler, options, folder)
        with suppress(OSError):
            os.utime(folder)
    return folder if (folder / "torch" / "extension.h.gch").exists() else _HERE


def _options(source: str) -> tuple[str, ...] | None:
    """The options of a source that a header is compiled under; None if there are others."""
    if _UNKNOWN.search(source):
        return None
    level = _LEVEL.search(source)
    options = [option for option in _OPTIONS if option in source]
    if level is not None and level[1] != "0":
        options.insert(0, "-Ofast" if level[1] == "fast" else "-O2")
    return tuple(options)


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _compile(compiler: str, options: tuple[str, ...], folder: Path) -> None:
    """Compile the header, of our own text alone; leave nothing behind if that fails."""
    torch = _torch()
    include = [torch / "include", torch / "include/torch/csrc/api/include"]
    paths = [*include, Path(sysconfig.get_paths()["include"])]
    command = [
        *(compiler, *options, "-fPIC", "-std=c++20", "-DTORCH_API_INCLUDE_EXTENSION_H"),
        *(part for path in paths for part in ("-isystem", str(path))),
        *("-x", "c++-header", str(_SHORT), "-w", "-o"),
    ]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            made = Path(name) / "torch" / "extension.h.gch"
            made.parent.mkdir()
            shutil.copyfile(_SHORT, made.with_suffix(""))
            subprocess.run(
                [*command, str(made)], check=True, capture_output=True, timeout=_TIMEOUT_S
            )
            Path(name).chmod(0o755)
            Path(name).rename(folder)
            Path(name).mkdir()  # for its removal
        sets = sorted(folder.parent.iterdir(), key=lambda kept: kept.stat().st_mtime)
        for old in sets[:-_MOST_SETS]:
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, subprocess.SubprocessError):
        return
