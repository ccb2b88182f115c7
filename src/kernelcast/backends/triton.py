"""Triton kernels: compiled ahead of time for NVIDIA and AMD targets, interpreted for correctness.

A kernel is a Python module with a `@triton.jit` function of the problem's name, which takes the
arrays in the order of the signature, then the dimensions, then its constants, and a literal that
says how it is launched:

    LAUNCH = {"grid": ["(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 1024}, "num_warps": 4}

Extents are integer expressions over dimensions and constants. The module is imported in a child
only. For NVIDIA the child's PTX is assembled here, so that what is reported is what is launched,
and launched by the same driver protocol as CUDA C++; for AMD there is evidence and no launch.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import mmap
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.backends._backend import Build
from kernelcast.backends._driver import Launch, Program
from kernelcast.backends._gpu import GpuBackend, choose_target
from kernelcast.backends._inspect import (
    amdgcn_mix,
    parameter_widths,
    ptx_mix,
    read_amdgcn,
    read_ptxas,
    sass_mix,
)
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool, run_tool, triton_tools
from kernelcast.backends._verify import KnownAnswer, oracle
from kernelcast.errors import NoDevice, SetupError
from kernelcast.types import (
    Case,
    Device,
    Effort,
    Failure,
    FailureKind,
    Kernel,
    Language,
    Measurement,
    Problem,
)

_WORKER = Path(__file__).with_name("_triton_worker.py")
_TOOL_TIMEOUT_S = 60.0
_SMALL_BYTES = 1 << 20
_MOST_PROGRAMS = 4096
_NVIDIA_OPTIONS = ("num_warps", "num_stages", "maxnreg")
_AMD_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
_OPTIONS = (*_NVIDIA_OPTIONS, *_AMD_OPTIONS[2:])


@dataclass(frozen=True)
class _Told:
    """What the child says of the code it made; believed only as far as it can do no harm."""

    name: str
    code: str
    shared: int
    warps: int
    scratch: int
    blocks_a_cluster: int


@dataclass(frozen=True)
class _Stated:
    """What a module's LAUNCH says: the grid over constants, and the compiler's options."""

    launch: Launch
    constants: Mapping[str, int | float | str]
    options: Mapping[str, int]


class TritonBackend(GpuBackend):
    """Compiles Triton kernels for one target (sm_80, ..., gfx942); measures on an NVIDIA GPU.

    Without one, `inspect` works, `verify` runs small cases in Triton's interpreter, and `measure`
    raises `NoDevice` for what compiles.
    """

    name = "triton"
    languages: tuple[Language, ...] = ("triton",)

    def __init__(
        self,
        target: str | None = None,
        device: Device | str | None = None,
        compile_timeout_s: float = 120.0,
        device_cap_s: float = 20.0,
        require: Level | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        target, chosen = choose_target(target, device)
        tools = triton_tools()
        if tools is None:
            raise SetupError("Triton is not installed: pip install 'kernelcast[triton]'")
        # The child is a bare interpreter: it sees the packages that it needs and no others.
        self._paths = tuple({_package_folder(name) for name in ("triton", "numpy")})
        self._is_nvidia = target.startswith("sm_")
        if self._is_nvidia:
            recent = int(re.sub(r"\D", "", target)) >= 90
            self._assembler = tools / ("ptxas-blackwell" if recent else "ptxas")
            self._disassembler = find_cuda_tool("nvdisasm")
        toolchain = f"triton {version('triton')}"
        super().__init__(
            target,
            chosen,
            toolchain,
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
        )

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Verify and time against the seed kernel; `NoDevice` where nothing can be launched."""
        if self.inspect(problem, kernel).failure is None:
            self._require_device()
        return super().measure(problem, kernel, seed, effort)

    def _require_device(self) -> None:
        if not self._is_nvidia:
            raise NoDevice(
                f"launching on {self.device.name} ({self.target}) is not written yet: "
                "for AMD there is compile-only evidence (`inspect`)"
            )
        super()._require_device()

    # --------------------------------------------------------------------------- compiling

    def _specialised(self, problem: Problem, case: Case | None) -> str:
        """Triton compiles anew for other divisibilities and for large integers."""
        return json.dumps(_specialisation(problem, case))

    def _compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        stated = _read_launch(source)
        if isinstance(stated, Failure):
            return Build(self._evidence(problem, ToolRun(0, "", 0.0), failure=stated))
        if fault := stated.launch.fault(problem):
            return Build(self._evidence(problem, ToolRun(0, "", 0.0), failure=fault))
        job = {
            **_job(problem, stated),
            **_specialisation(problem, case),
            "target": self._triton_target(),
            "options": {
                name: value
                for name, value in stated.options.items()
                if name in (_NVIDIA_OPTIONS if self._is_nvidia else _AMD_OPTIONS)
            },
        }
        run = self._work("compile", source, job, folder)
        if run.failure:
            said = replace(run, output=_last_words(run.output))
            return Build(self._evidence(problem, run, failure=said.failure))
        told = _read_told(folder)
        if isinstance(told, Failure):
            return Build(self._evidence(problem, run, failure=told))
        if self._is_nvidia:
            return self._assemble(problem, stated.launch, told, run, folder)
        resources = read_amdgcn(told.code)
        return Build(
            self._evidence(
                problem,
                run,
                resources=replace(resources, shared_bytes=told.shared) if resources else None,
                code=(0, amdgcn_mix(told.code)),
                block_threads=told.warps * self.device.warp,
            )
        )

    def _assemble(
        self, problem: Problem, launch: Launch, told: _Told, run: ToolRun, folder: Path
    ) -> Build[Program]:
        """PTX to cubin by Triton's own assembler and flags, and what it says of the result."""
        ptx = told.code
        exact = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
        target = exact[1] if exact else self.target
        assembled = self._run(
            [
                *(self._assembler, "-lineinfo", "-v", "--regAllocOptLevel=2"),
                *(f"--gpu-name={target}", "kernel.ptx", "-o", "kernel.cubin"),
            ],
            folder,
            _TOOL_TIMEOUT_S,
        )
        resources = read_ptxas(assembled.output).get(told.name)
        if assembled.failure or resources is None:
            return Build(self._evidence(problem, run, failure=assembled.failure))
        threads = told.warps * self.device.warp
        return Build(
            self._evidence(
                problem,
                run,
                # All of Triton's shared memory is dynamic, and so unknown to the assembler.
                resources=replace(resources, shared_bytes=told.shared),
                code=self._mix(folder, ptx),
                block_threads=threads,
            ),
            Program(
                folder / "kernel.cubin",
                told.name,
                parameter_widths(ptx).get(told.name, ()),
                replace(launch, block=(str(threads),), shared=str(told.shared)),
            )
            if not told.scratch and told.blocks_a_cluster == 1
            else None,
        )

    def _mix(self, folder: Path, ptx: str) -> tuple[int, dict[str, int]]:
        if self._disassembler is None:
            return 0, ptx_mix(ptx)
        command = (self._disassembler, "-c", "-ndf", "kernel.cubin")
        listing = self._run(command, folder, _TOOL_TIMEOUT_S)
        return (0, ptx_mix(ptx)) if listing.failure else sass_mix(listing.output)

    def _triton_target(self) -> tuple[str, int | str, int]:
        if self._is_nvidia:
            return "cuda", int(re.sub(r"\D", "", self.target)), 32
        return "hip", self.target, self.device.warp

    def _work(
        self,
        task: str,
        source: str,
        job: Mapping[str, Any],
        folder: Path,
        *fds: int,
        **environment: str,
    ) -> ToolRun:
        (folder / "kernel.py").write_text(source, encoding="utf-8")
        (folder / "job.json").write_text(json.dumps({**job, "paths": list(map(str, self._paths))}))
        return run_tool(
            self._sandbox,
            [sys.executable, "-I", "-S", "-W", "ignore", _WORKER, task],
            folder,
            self._compile_timeout_s,
            readable=(*self._paths, _WORKER.parent),
            pass_fds=fds,
            TRITON_CACHE_DIR=str(folder / "cache"),
            TRITON_DEFAULT_FP_FUSION="1",
            **environment,
        )

    # -------------------------------------------------------------------------- interpreting

    def verify(self, problem: Problem, kernel: Kernel, seed: int) -> Failure | None:
        """Run the problem's small cases in Triton's interpreter, and compare with the oracle.

        This finds wrong results and writes outside of arrays; races and the target's own
        arithmetic (tensor cores round inputs) it cannot find. What the interpreter itself cannot
        run is a crash, in its words.
        """
        stated = _read_launch(kernel.source)
        if isinstance(stated, Failure):
            return stated
        if fault := stated.launch.fault(problem):
            return fault
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        expected = oracle(problem)
        small = [case for case in problem.cases if _is_small(problem, case, stated.launch)]
        if not small:
            raise SetupError(
                f"{problem.name} has no case of at most {_SMALL_BYTES >> 20} MB and "
                f"{_MOST_PROGRAMS} programs to interpret: add a small one with timed = false"
            )
        for case in small:
            answer = KnownAnswer.draw(problem, case, expected, rng)
            if failure := self._interpret(problem, kernel.source, stated, answer):
                return failure
        return None

    def _interpret(
        self, problem: Problem, source: str, stated: _Stated, answer: KnownAnswer
    ) -> Failure | None:
        memory_fd = os.memfd_create("kernelcast")
        try:
            image = answer.image
            os.ftruncate(memory_fd, image.layout.stride)
            slot = np.frombuffer(mmap.mmap(memory_fd, image.layout.stride), dtype=np.uint8)
            slot[:] = image.content
            job = {
                **_job(problem, stated),
                "dimensions": [image.case.dimensions[name] for name in problem.dimensions],
                "grid": stated.launch.grid_extent(image.case.dimensions),
                "offsets": image.layout.offsets,
                "lengths": image.layout.lengths,
                "memory_fd": memory_fd,
            }
            folder = Path(tempfile.mkdtemp(dir=self._directory))
            run = self._work("interpret", source, job, folder, memory_fd, TRITON_INTERPRET="1")
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(memory_fd)
        if run.status is None:
            message = f"not interpreted within {self._compile_timeout_s:g} s"
            return Failure(kind=FailureKind.TIMEOUT, message=message)
        if run.status:
            return Failure(kind=FailureKind.CRASH, message=_last_words(run.output))
        return answer.check(slot)


def _read_told(folder: Path) -> _Told | Failure:
    """The child ran the kernel's own Python, so its answer may be anything."""
    try:
        told = json.loads((folder / "kernel.json").read_text())
        code = next(path for path in folder.glob("kernel.*") if path.suffix in (".ptx", ".amdgcn"))
        numbers = (told[key] for key in ("shared", "warps", "scratch", "blocks_a_cluster"))
        return _Told(str(told["name"]), code.read_text(), *map(int, numbers))
    except (OSError, ValueError, TypeError, KeyError, StopIteration):
        return _unstated("importing it ended with status 0 and no code")


def _package_folder(name: str) -> Path:
    """The folder that a package is imported from, found without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SetupError(f"{name} is not installed: pip install 'kernelcast[triton]'")
    return Path(found.origin).resolve().parent.parent


def _job(problem: Problem, stated: _Stated) -> dict[str, Any]:
    return {
        "entry": problem.entry,
        "arguments": [each.dtype for each in problem.arguments],
        "dimensions": list(problem.dimensions),
        "constants": dict(stated.constants),
    }


def _specialisation(problem: Problem, case: Case | None) -> dict[str, Any]:
    """What Triton's launcher looks at in the integers it is handed (ones apart, which it folds)."""
    extents = [case.dimensions[name] for name in problem.dimensions] if case else []
    return {
        "integer": "i32" if max(extents, default=0) < 2**31 else "i64",
        "divisible": [index for index, extent in enumerate(extents) if extent % 16 == 0],
    }


def _is_small(problem: Problem, case: Case, launch: Launch) -> bool:
    x, y, z = launch.grid_extent(case.dimensions)
    sizes = (
        np.dtype(each.dtype).itemsize * int(np.prod(each.extent(case.dimensions), dtype=np.int64))
        for each in problem.arguments
    )
    return sum(sizes) <= _SMALL_BYTES and x * y * z <= _MOST_PROGRAMS


def _read_launch(source: str) -> _Stated | Failure:
    """The module's LAUNCH, read and not run."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _unstated(f"it is no Python: {error}")
    if failure := _suspect(module):
        return failure
    values = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "LAUNCH" for each in node.targets)
    ]
    if not values:
        return _unstated('no line says how it is launched: LAUNCH = {"grid": [...], ...}')
    try:
        stated = ast.literal_eval(values[-1])
        grid = tuple(map(str, stated["grid"]))
        constants = {str(name): value for name, value in stated.get("constants", {}).items()}
        options = {name: int(stated[name]) for name in _OPTIONS if name in stated}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return _unstated(f"LAUNCH is no literal with a grid: {error!r}")
    if unknown := set(stated) - {"grid", "constants", *_OPTIONS}:
        return _unstated(f"LAUNCH has unknown parts: {', '.join(sorted(map(str, unknown)))}")
    if any(not isinstance(value, int | float | str) for value in constants.values()):
        return _unstated("LAUNCH's constants are numbers and strings")
    # The number of threads is the compiler's business; one stands in until it has spoken.
    launch = Launch(grid, ("1",), constants=tuple(constants.items()))
    return _Stated(launch, constants, options)


# Interpreted, a kernel's body is Python, and a function can be reached by way of its module.
_OUT_OF_REACH = frozenset(
    {"breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "input"}
    | {"locals", "memoryview", "object", "open", "setattr", "super", "type", "vars"}
)
_OF_TRITON = frozenset({"jit", "language", "cdiv", "next_power_of_2"})
_NOT_OF_THE_LANGUAGE = frozenset({"core", "semantic", "standard", "target_info"})


def _suspect(module: ast.Module) -> Failure | None:
    """What the module would do besides declaring kernels.

    Importing it must run nothing of its own: else it could be one kernel for the compiler and
    another one for the interpreter, or write the compiler's answer itself.
    """
    strange: list[Any] = [node for node in module.body if not _declares(node)]
    for node in ast.walk(module):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if name.startswith("__") or (isinstance(node, ast.Name) and name in _OUT_OF_REACH):
            strange.append(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of_triton = node.value.id == "triton" and node.attr not in _OF_TRITON
            of_language = node.value.id == "tl" and node.attr in _NOT_OF_THE_LANGUAGE
            strange += [node] if of_triton or of_language else []
    if not strange:
        return None
    first = min(strange, key=lambda node: node.lineno)
    message = (
        f"line {first.lineno}: {ast.unparse(first).splitlines()[0][:80]}: a module holds imports "
        "of triton, constants and @triton.jit functions, and nothing else"
    )
    return Failure(kind=FailureKind.CHEATING, message=message)


def _declares(node: ast.stmt) -> bool:
    """Whether a statement of a module only gives something a name."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Import(names=names):
            return all(
                (each.name, each.asname) in {("triton", None), ("triton.language", "tl")}
                for each in names
            )
        case ast.ImportFrom(module="triton.language.extra" | "triton.language.extra.cuda"):
            return [each.name for each in node.names] == ["libdevice"]
        case ast.Assign(targets=[ast.Name()], value=value):
            constexpr = isinstance(value, ast.Call) and ast.unparse(value.func) == "tl.constexpr"
            return all(map(_is_literal, value.args if constexpr else [value]))  # type: ignore[attr-defined]
        case ast.FunctionDef(decorator_list=[decorator], args=arguments):
            defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
            return ast.unparse(decorator) == "triton.jit" and all(map(_is_literal, defaults))
    return False


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _unstated(message: str) -> Failure:
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def _last_words(output: str) -> str:
    """The end of a traceback: what was raised, and where in the kernel."""
    return "\n".join([line for line in output.splitlines() if line.strip()][-12:])
