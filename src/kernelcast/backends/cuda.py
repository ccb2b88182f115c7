"""CUDA C++ kernels: nvcc to a cubin, evidence from what the compiler reports and from SASS.

A kernel is a source with a `__global__` function of the problem's name, which takes the arrays in
the order of the signature and then the dimensions, and a line that says how it is launched:

    #pragma kernelcast grid((N + 255) / 256) block(256) shared(0)

Extents are integer expressions over the dimensions and the source's own `#define`d numbers. Host
code in the source is compiled and never run. A PyTorch module that hands CUDA text to
`load_inline` (as KernelBench's do) can be inspected, not measured.
"""

from __future__ import annotations

import ast
import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kernelcast.backends._backend import Build
from kernelcast.backends._driver import Launch, Program
from kernelcast.backends._gpu import GpuBackend, choose_target
from kernelcast.backends._inspect import (
    largest,
    launch_bounds,
    parameter_widths,
    ptx_mix,
    read_ptxas,
    sass_mix,
)
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import DISASSEMBLY_TIMEOUT_S, ToolRun, find_cuda_tool
from kernelcast.errors import ProblemError, SetupError
from kernelcast.expression import evaluate
from kernelcast.types import Case, Device, Failure, FailureKind, Language, Problem, content_hash

FLAGS = ("-std=c++17", "-O3")


class CudaBackend(GpuBackend):
    """Compiles CUDA C++ for one target (sm_80, sm_90, ...) and measures it on a GPU of that kind.

    Without such a GPU, `inspect` works and `measure` raises `NoDevice` for what compiles.
    """

    name = "cuda"
    languages: tuple[Language, ...] = ("cuda", "python")

    def __init__(
        self,
        target: str | None = None,
        device: Device | str | None = None,
        flags: Sequence[str] = FLAGS,
        compile_timeout_s: float = 60.0,
        device_cap_s: float = 20.0,
        require: Level | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        target, chosen = choose_target(target, device)
        nvcc = find_cuda_tool("nvcc")
        if nvcc is None:
            raise SetupError(
                "the CUDA compiler nvcc was not found: install NVIDIA's CUDA toolkit (apt-get "
                "install nvidia-cuda-toolkit, or NVIDIA's own packages), and put its bin folder "
                "on the PATH or its root into CUDA_HOME"
            )
        self._command: tuple[str | Path, ...] = (
            nvcc,
            *flags,
            f"-arch={target}",
            "-cubin",
            "-Xptxas",
            "-v",
        )
        self._disassembler = find_cuda_tool("nvdisasm")
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        version = re.search(r"\bV[\d.]+", said)
        toolchain = (
            f"nvcc {version[0] if version else '?'}, flags {content_hash(chr(0).join(flags))[:8]}"
        )
        super().__init__(
            target,
            chosen,
            toolchain,
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
        )

    def _compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        stated = problem.language == "cuda" and bool(problem.arguments)
        text = source if problem.language == "cuda" else extract_cuda(source)
        if text is None:
            return Build(self._evidence(problem, ToolRun(0, "", 0.0)))
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        run = self._run([*self._command, "--keep", "kernel.cu", "-o", "kernel.cubin"], folder)
        if run.failure:
            # What was taken out of a PyTorch module may need more than was taken out.
            failure = run.failure if problem.language == "cuda" else None
            return Build(self._evidence(problem, run, failure=failure))
        ptx = (folder / "kernel.ptx").read_text(encoding="utf-8")
        resources = read_ptxas(run.output)
        entry = _find_entry(problem.entry, list(resources))
        launch = read_launch(text)
        if stated and (fault := _fault(problem, launch, entry, ptx)):
            return Build(self._evidence(problem, run, failure=fault))
        used = largest([resources[entry]] if entry else resources.values())
        bounds = launch_bounds(ptx)
        block_threads = bounds.get(entry) if entry else max(bounds.values(), default=None)
        if stated and launch and case and used:
            block_threads = math.prod(launch.block_extent(case.dimensions))
            dynamic = launch.shared_bytes(case.dimensions)
            used = replace(used, shared_bytes=used.shared_bytes + dynamic)
        return Build(
            self._evidence(
                problem,
                run,
                resources=used,
                code=self._mix(folder, ptx, entry),
                block_threads=block_threads,
                launches=1 if entry else len(resources) or None,
            ),
            Program(folder / "kernel.cubin", entry, parameter_widths(ptx)[entry], launch)
            if stated and entry and launch
            else None,
        )

    def _mix(self, folder: Path, ptx: str, entry: str | None) -> tuple[int, dict[str, int]]:
        """From SASS; where there is no disassembler, from PTX."""
        if self._disassembler is None:
            return 0, ptx_mix(ptx)
        command = (self._disassembler, "-c", "-ndf", "kernel.cubin")
        listing = self._run(command, folder, DISASSEMBLY_TIMEOUT_S)
        return (0, ptx_mix(ptx)) if listing.failure else sass_mix(listing.output, entry)


def _find_entry(wanted: str, known: Sequence[str]) -> str | None:
    """The entry as the compiler names it: `extern "C"`, or the one C++ function of that name."""
    mangled = [name for name in known if name.startswith(f"_Z{len(wanted)}{wanted}")]
    if wanted in known:
        return wanted
    return mangled[0] if len(mangled) == 1 else None


def _fault(problem: Problem, launch: Launch | None, entry: str | None, ptx: str) -> Failure | None:
    """Why a source that compiles is still no kernel of this problem."""

    def failure(message: str) -> Failure:
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message)

    if entry is None:
        return failure(f"there is no __global__ function {problem.entry!r}")
    arrays, dimensions = len(problem.arguments), len(problem.dimensions)
    widths = parameter_widths(ptx)[entry]
    fits = len(widths) == arrays + dimensions and set(widths[:arrays]) <= {8}
    if not fits or not set(widths) <= {4, 8}:
        return failure(
            f"{problem.entry} takes parameters of {widths} bytes; it is handed {arrays} pointers "
            f"and {dimensions} integers of 4 or 8"
        )
    if launch is None:
        return failure("no line says how it is launched: #pragma kernelcast grid(...) block(...)")
    return launch.fault(problem)


# ----------------------------------------------------------------------------------- the source

_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+kernelcast\b(.*)$", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+)$", re.MULTILINE)
_CLAUSE = re.compile(r"\s*(\w+)\s*\(")
_COMMENT = re.compile(r"//.*|/\*.*?\*/")


def read_launch(source: str, grid: str = "grid", block: str = "block") -> Launch | None:
    """The launch that the source's `#pragma kernelcast` states in these clauses, or None."""
    clauses, constants = _read_pragma(source)
    if grid not in clauses or block not in clauses:
        return None
    return Launch(
        grid=clauses[grid],
        block=clauses[block],
        shared=clauses.get("shared", ("0",))[0],
        constants=tuple(constants.items()),
    )


def _read_pragma(source: str) -> tuple[dict[str, tuple[str, ...]], dict[str, int | float | str]]:
    """The clauses of the source's first `#pragma kernelcast`, and its `#define`d numbers."""
    pragma = _PRAGMA.search(source)
    clauses = dict(_clauses(_COMMENT.sub("", pragma[1]))) if pragma else {}
    constants: dict[str, int | float | str] = {}
    for name, text in _DEFINE.findall(source):
        try:
            value = evaluate(_COMMENT.sub("", text).strip().replace("/", "//"), constants)
        except (ProblemError, ArithmeticError, TypeError):
            continue
        if isinstance(value, int):
            constants[name] = value
    return clauses, constants


def _clauses(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each `name(extent, ...)` with its extents."""
    while found := _CLAUSE.match(text):
        depth, parts, end = 1, [""], found.end()
        while depth and end < len(text):
            character = text[end]
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "," and depth == 1:
                parts.append("")
            elif depth:
                parts[-1] += character
            end += 1
        yield found[1], tuple(part.strip() for part in parts)
        text = text[end:]


# What of a PyTorch extension is no device code, and needs PyTorch's headers.
_TORCH_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/.*$", re.MULTILINE
)
_TORCH = re.compile(r"\b(?:torch|at|c10|pybind11|py)::|\b(?:PYBIND11_|TORCH_|AT_|C10_)\w+")
_DEVICE = re.compile(r"\b__(?:global|device|constant)__\b")
_C_PIECE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^[ \t]*#(?:\\\n|[^\n])*|[{};()]',
    re.DOTALL | re.MULTILINE,
)


def extract_cuda(source: str) -> str | None:
    """The device code that a Python module hands to `load_inline(cuda_sources=...)`, or None.

    Host functions and includes that need PyTorch's headers are left out, so that nvcc compiles
    what is left without them.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    strings: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and (text := _text(node.value, strings)) is not None:
            strings |= {each.id: text for each in node.targets if isinstance(each, ast.Name)}
    found = [
        text
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and _called(node) == "load_inline"
        for given in (_cuda_sources(node),)
        if given is not None and (text := _text(given, strings)) is not None
    ]
    return _device_code("\n".join(found)) if found else None


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _cuda_sources(call: ast.Call) -> ast.expr | None:
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    third = call.args[2] if len(call.args) > 2 else None
    return by_name.get("cuda_sources", third)


def _text(node: ast.expr, strings: dict[str, str]) -> str | None:
    """The value of an expression of string literals, known names, +, lists and `.strip()`."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return strings.get(name)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            parts = [_text(each, strings) for each in elements]
            return None if not parts or None in parts else "\n".join(filter(None, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _text(left, strings), _text(right, strings)
            return None if one is None or other is None else one + other
        case ast.Call(func=ast.Attribute(value=value, attr="strip"), args=[]):
            return _text(value, strings)
        case _:
            return None


def _device_code(text: str) -> str:
    """The text without includes of PyTorch and without host functions that use it."""
    kept = []
    for chunk in _top_level(_TORCH_INCLUDE.sub("", text)):
        if _DEVICE.search(chunk) or not _TORCH.search(chunk):
            kept.append(chunk)
    return "".join(kept)


def _top_level(text: str) -> Iterator[str]:
    """The pieces of a C++ source: directives, and what ends in a `;` or `}` outside of brackets."""
    depth, start = 0, 0
    for piece in _C_PIECE.finditer(text):
        match piece[0]:
            case "{" | "(":
                depth += 1
            case "}" | ")":
                depth = max(0, depth - 1)
        directive = piece[0].lstrip().startswith("#")
        if depth == 0 and (piece[0] in ";}" or directive):
            if directive and text[start : piece.start()].strip():
                continue
            yield text[start : piece.end()]
            start = piece.end()
    yield text[start:]
