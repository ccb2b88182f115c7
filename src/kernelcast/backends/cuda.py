"""CUDA C++ kernels: nvcc to a cubin, evidence from what the compiler reports and from SASS.

A kernel is a source with a `__global__` function of the problem's name, which takes the arrays in
the order of the signature and then the dimensions, and a line that says how it is launched:

    #pragma kernelcast grid((N + 255) / 256) block(256) shared(0)

Extents are integer expressions over the dimensions and the source's own `#define`d numbers. Host
code in the source is compiled and never run. A PyTorch module that passes CUDA text to
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

from kernelcast.backends._cuda_device import Program
from kernelcast.backends._gpu import GpuBackend
from kernelcast.backends._inspect import largest, launch_bounds, parameter_widths, read_ptxas
from kernelcast.backends._launch import Launch, read_launch
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool
from kernelcast.backends.base import Build
from kernelcast.errors import SetupError
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
        emulates: bool = True,
    ) -> None:
        nvcc = find_cuda_tool("nvcc")
        if nvcc is None:
            raise SetupError(
                "the CUDA compiler nvcc was not found: install NVIDIA's CUDA toolkit (apt-get "
                "install nvidia-cuda-toolkit, or NVIDIA's own packages), and put its bin folder "
                "on the PATH or its root into CUDA_HOME"
            )
        text = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        version = re.search(r"\bV[\d.]+", text)
        flags_hash = content_hash("\0".join(flags))[:8]
        super().__init__(
            target,
            device,
            f"nvcc {version[0] if version else '?'}, flags {flags_hash}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            emulates=emulates,
        )
        self._nvcc = nvcc.resolve()
        target = f"-arch={self.target}"
        self._flags = (*flags, target, "-cubin", "-lineinfo", "-Xptxas", "-v", "--keep")

    def compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        """Compile one cubin; the launch on this case is part of the evidence."""
        is_cuda = problem.language == "cuda"
        text = source if is_cuda else extract_cuda(source)
        if text is None:
            return Build(self.evidence(problem, ToolRun(0, "", 0.0)))
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        run = self._run((self._nvcc, *self._flags, "kernel.cu", "-o", "kernel.cubin"), folder)
        if run.failure:
            # The text from a PyTorch module may need more than what was extracted.
            return Build(self.evidence(problem, run, failure=run.failure if is_cuda else None))
        ptx = (folder / "kernel.ptx").read_text(encoding="utf-8")
        functions = read_ptxas(run.output)
        entry = _find_entry(problem.entry, list(functions))
        resources = largest([functions[entry]] if entry else functions.values())
        bounds = launch_bounds(ptx)
        block_threads = bounds.get(entry) if entry else max(bounds.values(), default=None)
        program: Program | None = None
        launch = read_launch(text) if is_cuda else None
        if is_cuda and not problem.arguments and entry and launch:
            program = Program(folder / "kernel.cubin", entry, parameter_widths(ptx)[entry], launch)
        elif is_cuda and problem.arguments:
            outcome = _program(problem, entry, ptx, launch, folder)
            if isinstance(outcome, Failure):
                return Build(self.evidence(problem, run, failure=outcome))
            program = outcome
            if case and resources:
                block_threads = math.prod(program.launch.block_extent(case.dimensions))
                shared_bytes = program.launch.shared_bytes(case.dimensions)
                resources = replace(resources, shared_bytes=resources.shared_bytes + shared_bytes)
        evidence = self.evidence(
            problem,
            run,
            resources=resources,
            code=self._mix(folder, ptx, entry),
            block_threads=block_threads,
            launches=1 if entry else len(functions) or None,
        )
        return Build(evidence, program, folder / "kernel.ptx")


def _find_entry(name: str, functions: Sequence[str]) -> str | None:
    """The entry as the compiler names it: `extern "C"`, or the one C++ function of that name."""
    mangled = [function for function in functions if function.startswith(f"_Z{len(name)}{name}")]
    if name in functions:
        return name
    return mangled[0] if len(mangled) == 1 else None


def _program(
    problem: Problem, entry: str | None, ptx: str, launch: Launch | None, folder: Path
) -> Program | Failure:
    """The program of a source that compiles, or why it is no kernel of this problem."""

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
    return launch.fault(problem.cases) or Program(folder / "kernel.cubin", entry, widths, launch)


# ------------------------------------------------------------------------------ PyTorch extensions

# Text of an extension that needs PyTorch's headers.
_TORCH_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/.*$", re.MULTILINE
)
_TORCH = re.compile(r"\b(?:torch|at|c10|pybind11|py)::|\b(?:PYBIND11_|TORCH_|AT_|C10_)\w+")
_DEVICE = re.compile(r"\b__(?:global|device|constant)__\b")
_BLANK = re.compile(r"\s*")
_MOST_JOINED_CHARACTERS = 4 << 20
_C_PIECE = re.compile(
    # What is never closed reaches to the end, so that it is looked through once.
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\])*+(?:"|\\?\Z)|\'(?:\\.|[^\'\\])*+(?:\'|\\?\Z)'
    r"|^[ \t]*#(?:\\\n|[^\n])*|[{};()]",
    re.DOTALL | re.MULTILINE,
)


def extract_cuda(source: str) -> str | None:
    """The device code that a Python module passes to `load_inline(cuda_sources=...)`, or None.

    Host functions and includes that need PyTorch's headers are left out, so that nvcc compiles the
    rest without them.
    """
    strings = _Strings()
    try:
        module = ast.parse(source)
        for node in ast.walk(module):
            if isinstance(node, ast.Assign) and (text := strings.text(node.value)) is not None:
                names = (name.id for name in node.targets if isinstance(name, ast.Name))
                strings.known |= dict.fromkeys(names, text)
        texts = [strings.text(node) for node in _cuda_sources(module)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    code = _TORCH_INCLUDE.sub("", "\n".join(text for text in texts if text is not None))
    kept = (chunk for chunk in _chunks(code) if _DEVICE.search(chunk) or not _TORCH.search(chunk))
    return None if all(text is None for text in texts) else "".join(kept)


def _cuda_sources(module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id="load_inline") | ast.Attribute(attr="load_inline")):
                by_name = {keyword.arg: keyword.value for keyword in node.keywords}
                if "cuda_sources" in by_name:
                    yield by_name["cuda_sources"]
                elif len(node.args) > 2:
                    yield node.args[2]


class _Strings:
    """The strings of a module by name, and what may still be joined of them.

    `a = a + a` doubles a text with each line; joining ends when all of it is a few megabytes.
    """

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._left = _MOST_JOINED_CHARACTERS

    def text(self, node: ast.expr) -> str | None:
        """The value of an expression of string literals, known names, +, lists and `.strip()`."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Name(id=name):
                return self.known.get(name)
            case ast.List(elts=[_, *_] as elements) | ast.Tuple(elts=[_, *_] as elements):
                return self._joined("\n", elements)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined("", [left, right])
            case ast.Call(func=ast.Attribute(value=value, attr="strip"), args=[]):
                return self.text(value)
            case _:
                return None

    def _joined(self, between: str, nodes: Sequence[ast.expr]) -> str | None:
        parts = []
        for node in nodes:
            text = self.text(node)
            if text is None or len(text) > self._left:
                return None
            self._left -= len(text)
            parts.append(text)
        return between.join(filter(None, parts))


def _chunks(text: str) -> Iterator[str]:
    """The pieces of a C++ source: directives, and what ends in a `;` or `}` outside of brackets."""
    depth, start, begins = 0, 0, _BLANK.match(text).end()  # type: ignore[union-attr]
    for piece in _C_PIECE.finditer(text):
        if piece[0] in ("{", "("):
            depth += 1
        elif piece[0] in ("}", ")"):
            depth = max(0, depth - 1)
        is_directive = piece[0].lstrip().startswith("#")
        within_chunk = is_directive and begins < piece.start()
        if depth == 0 and (piece[0] in ";}" or is_directive) and not within_chunk:
            yield text[start : piece.end()]
            start = piece.end()
            begins = _BLANK.match(text, start).end()  # type: ignore[union-attr]
    yield text[start:]
