"""Triton kernels: compiled ahead of time for NVIDIA and AMD targets, interpreted for correctness.

A kernel is a Python module with a `@triton.jit` function of the problem's name, which takes the
arrays in the order of the signature, then the dimensions, then its constants, and a literal that
says how it is launched:

    LAUNCH = {"grid": ["(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 1024}, "num_warps": 4}

Extents are integer expressions over dimensions and constants. The module is imported in a child
only. For NVIDIA the child's PTX is assembled here and launched like CUDA C++, so that the evidence
is of the code that is launched. For AMD there is evidence and no launch.
"""

from __future__ import annotations

import ast
import contextlib
import json
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

from kernelcast.backends._arena import shared_memory
from kernelcast.backends._cuda_device import Program
from kernelcast.backends._emulation import package_folder, small_cases
from kernelcast.backends._gpu import GpuBackend
from kernelcast.backends._inspect import amdgcn_mix, parameter_widths, read_amdgcn, read_ptxas
from kernelcast.backends._launch import Launch
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import ToolRun, run_tool, triton_tools
from kernelcast.backends._verify import KnownAnswer
from kernelcast.backends.base import Build, too_long
from kernelcast.dtypes import dtype_of
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import NoDevice, SetupError
from kernelcast.languages import element_type
from kernelcast.types import Case, Device, Failure, FailureKind, Kernel, Language, Problem

_WORKER = Path(__file__).with_name("_triton_worker.py")
_NVIDIA_OPTIONS = ("num_warps", "num_stages", "maxnreg")
_AMD_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
_OPTIONS = {*_NVIDIA_OPTIONS, *_AMD_OPTIONS}
_MOST_CONSTANTS = 256
_MOST_NAME = 1_000  # characters, also of a constant that is text
_CONSTANT_BITS = 64
_FIRST_WITH_E4M3FN = 89


@dataclass(frozen=True)
class _Code:
    """Triton's output as the child reports it; it is believed only as far as it does no harm."""

    name: str
    text: str
    shared: int
    warps: int
    scratch: int
    blocks_a_cluster: int


@dataclass(frozen=True)
class _Module:
    """A kernel's module: its launch, with the constants, and the compiler's options."""

    launch: Launch
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
        emulates: bool = True,
    ) -> None:
        tools = triton_tools()
        if tools is None:
            raise SetupError("Triton is not installed: pip install 'kernelcast[triton]'")
        super().__init__(
            target,
            device,
            f"triton {version('triton')}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
            emulates=emulates,
        )
        # The child is a bare interpreter, which sees no other packages.
        self._paths = tuple({package_folder(name) for name in ("triton", "numpy", "ml_dtypes")})
        self._is_nvidia = self.target.startswith("sm_")
        self._architecture = int(re.sub(r"\D", "", self.target)) if self._is_nvidia else 0
        name = "ptxas-blackwell" if self._architecture >= 90 else "ptxas"
        self._assembler = (tools / name).resolve()

    def require_device(self) -> None:
        """Raise `NoDevice` without an NVIDIA GPU of this target."""
        if not self._is_nvidia:
            raise NoDevice(
                f"launching on {self.device.name} ({self.target}) is not written yet: "
                "for AMD there is compile-only evidence (`inspect`)"
            )
        super().require_device()

    # --------------------------------------------------------------------------- compiling

    def specialised(self, problem: Problem, case: Case | None) -> str:
        """Triton compiles again for other divisibilities and for large integers."""
        return json.dumps(_specialisation(problem, case))

    def compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        """Interpret the launch on this case, and compile the kernel that it launches.

        Raises:
            SetupError: The target lacks a data type of the problem.
        """
        self._require_types(problem)
        module = _read_module(source, problem)
        if isinstance(module, Failure):
            return Build(self.evidence(problem, ToolRun(0, "", 0.0), failure=module))
        known = _NVIDIA_OPTIONS if self._is_nvidia else _AMD_OPTIONS
        job = {
            **_job(problem, module),
            **_specialisation(problem, case),
            "target": ("cuda", self._architecture, 32)
            if self._is_nvidia
            else ("hip", self.target, self.device.warp),
            "options": {name: module.options[name] for name in known if name in module.options},
        }
        run = self._work("compile", source, job, folder)
        code = _read_code(folder) if run.status == 0 else None
        if not isinstance(code, _Code):
            failure = code or replace(run, output=_last_lines(run.output)).failure
            return Build(self.evidence(problem, run, failure=failure))
        threads = code.warps * self.device.warp
        if not self._is_nvidia:
            resources, mix = read_amdgcn(code.text), (0, amdgcn_mix(code.text))
        else:
            assembled = self._assemble(code.text, folder)
            resources = read_ptxas(assembled.output).get(code.name)
            if assembled.failure or resources is None:
                return Build(self.evidence(problem, run, failure=assembled.failure))
            mix = self._mix(folder, code.text)
        if resources:  # all of Triton's shared memory is dynamic, and unknown to the assembler
            resources = replace(resources, shared_bytes=code.shared)
        evidence = self.evidence(problem, run, resources=resources, code=mix, block_threads=threads)
        if not self._is_nvidia or code.scratch or code.blocks_a_cluster != 1:
            return Build(evidence)
        launch = replace(module.launch, block=(str(threads),), shared=str(code.shared))
        widths = parameter_widths(code.text).get(code.name, ())
        return Build(evidence, Program(folder / "kernel.cubin", code.name, widths, launch))

    def _require_types(self, problem: Problem) -> None:
        """Raise `SetupError` if Triton has not all of the problem's types on an NVIDIA target."""
        has_e4m3fn = any(argument.dtype == "float8_e4m3fn" for argument in problem.arguments)
        if has_e4m3fn and self._is_nvidia and self._architecture < _FIRST_WITH_E4M3FN:
            raise SetupError(
                f"{problem.name} has arrays of float8_e4m3fn, which Triton has from "
                f"sm_{_FIRST_WITH_E4M3FN} on, not on {self.target}: name a newer device, or use "
                "float8_e5m2 or float16"
            )

    def _assemble(self, ptx: str, folder: Path) -> ToolRun:
        """Assemble kernel.ptx to kernel.cubin with Triton's own assembler and flags."""
        exact = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
        options = ("-lineinfo", "-v", "--regAllocOptLevel=2")
        name = f"--gpu-name={exact[1] if exact else self.target}"
        command = (self._assembler, *options, name, "kernel.ptx", "-o", "kernel.cubin")
        return self._run(command, folder)

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
            self.sandbox,
            [os.path.realpath(sys.executable), "-I", "-S", "-W", "ignore", _WORKER, task],
            folder,
            self.compile_timeout_s,
            readable=(*self._paths, _WORKER.parent),
            pass_fds=fds,
            environment={
                "TRITON_CACHE_DIR": str(folder / "cache"),
                "TRITON_DEFAULT_FP_FUSION": "1",
                **environment,
            },
        )

    # -------------------------------------------------------------------------- interpreting

    def verify(self, problem: Problem, kernel: Kernel, seed: int) -> Failure | None:
        """Run the problem's small cases in Triton's interpreter, and as compiled code.

        The interpreter finds wrong results and writes outside of arrays. For NVIDIA, the emulated
        code shows races, and errors of the target's own arithmetic (tensor cores round inputs).

        Returns:
            The failure, or None. That of the compiled code comes first: it names a line. What the
            interpreter cannot run is a crash, in its own words.

        Raises:
            SetupError: The problem has no case that is small enough.
        """
        module = _read_module(kernel.source, problem)
        if isinstance(module, Failure):
            return module
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        expected = self._oracles.of(problem)
        interpreted = None
        for case in small_cases(problem, module.launch):
            answer = KnownAnswer.draw(problem, case, expected, rng)
            interpreted = self._interpret(problem, kernel.source, module, answer)
            if interpreted:
                break
        if self._is_nvidia:
            with contextlib.suppress(NotEmulated):
                compiled = super().verify(problem, kernel, seed)
                if compiled and not (interpreted and compiled.kind is FailureKind.COMPILE_ERROR):
                    return compiled
        return interpreted

    def _interpret(
        self, problem: Problem, source: str, module: _Module, answer: KnownAnswer
    ) -> Failure | None:
        image = answer.image
        memory_fd, slot = shared_memory(image.layout.stride)
        try:
            slot[:] = image.content
            job = {
                **_job(problem, module),
                "dimensions": [image.case.dimensions[name] for name in problem.dimensions],
                "grid": module.launch.grid_extent(image.case.dimensions),
                "offsets": image.layout.offsets,
                "lengths": image.layout.lengths,
                "memory_fd": memory_fd,
            }
            folder = Path(tempfile.mkdtemp(dir=self.directory))
            run = self._work("interpret", source, job, folder, memory_fd, TRITON_INTERPRET="1")
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(memory_fd)
        if run.status is None:
            message = f"not interpreted within {self.compile_timeout_s:g} s"
            return Failure(kind=FailureKind.TIMEOUT, message=message)
        if run.status:
            message = _last_lines(run.output) or f"the interpreter ended with status {run.status}"
            return Failure(kind=FailureKind.CRASH, message=message)
        return answer.check(slot)


def _read_code(folder: Path) -> _Code | Failure:
    """The code that the child wrote; the child ran the kernel's Python, so it may be anything."""
    try:
        facts = json.loads((folder / "kernel.json").read_text())
        code = next(path for path in folder.glob("kernel.*") if path.suffix in (".ptx", ".amdgcn"))
        numbers = (facts[key] for key in ("shared", "warps", "scratch", "blocks_a_cluster"))
        return _Code(str(facts["name"]), code.read_text(), *map(int, numbers))
    except (OSError, ValueError, TypeError, KeyError, StopIteration):
        return _compile_error("importing it ended with status 0 and no code")


def _job(problem: Problem, module: _Module) -> dict[str, Any]:
    return {
        "entry": problem.entry,
        "arguments": [element_type("triton", argument.dtype) for argument in problem.arguments],
        "widths": [dtype_of(argument.dtype).bytes for argument in problem.arguments],
        "dimensions": list(problem.dimensions),
        "constants": dict(module.launch.constants),
    }


def _specialisation(problem: Problem, case: Case | None) -> dict[str, Any]:
    """What Triton's launcher looks at in integers (except ones, which it folds)."""
    extents = [case.dimensions[name] for name in problem.dimensions] if case else []
    return {
        "integer": "i32" if max(extents, default=0) < 2**31 else "i64",
        "divisible": [index for index, extent in enumerate(extents) if extent % 16 == 0],
    }


# ---------------------------------------------------------------------------------- the source


def _read_module(source: str, problem: Problem) -> _Module | Failure:
    """Read the module's LAUNCH without running it."""
    if failure := too_long(source):
        return failure
    try:
        module = ast.parse(source)
        failure = _suspect(module)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _compile_error(f"it is no Python: {error}")
    if failure:
        return failure
    values = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "LAUNCH" for name in node.targets)
    ]
    if not values:
        return _compile_error('no line says how it is launched: LAUNCH = {"grid": [...], ...}')
    try:
        literal = ast.literal_eval(values[-1])
        grid = tuple(map(str, literal["grid"]))
        constants = {str(name): value for name, value in literal.get("constants", {}).items()}
        options = {name: int(literal[name]) for name in _OPTIONS if name in literal}
        unknown = sorted(map(repr, set(literal) - {"grid", "constants", *_OPTIONS}))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return _compile_error(f"LAUNCH is no literal with a grid: {error!r:.200}")
    if unknown:
        return _compile_error(f"LAUNCH has unknown parts: {', '.join(unknown):.200}")
    if len(constants) > _MOST_CONSTANTS or not all(map(_is_constant, constants.items())):
        return _compile_error("LAUNCH's constants are names for numbers of 64 bits and strings")
    if any(abs(value) >= 2**31 for value in options.values()):
        return _compile_error("LAUNCH's options are numbers of 32 bits")
    # The compiler decides on the number of threads; until then it is 1.
    launch = Launch(grid, ("1",), constants=tuple(constants.items()))
    return launch.fault(problem.cases) or _Module(launch, options)


def _is_constant(item: tuple[str, Any]) -> bool:
    name, value = item
    if not name.isidentifier() or len(name) > _MOST_NAME:
        return False
    if isinstance(value, int):
        return value.bit_length() <= _CONSTANT_BITS
    return isinstance(value, float | str) and len(str(value)) <= _MOST_NAME


# An interpreted kernel is Python, and a function can be reached by way of its module.
_FORBIDDEN = frozenset(
    {"breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "input"}
    | {"locals", "memoryview", "object", "open", "setattr", "super", "type", "vars"}
)
_OF_TRITON = frozenset({"jit", "language", "cdiv", "next_power_of_2"})
_NOT_OF_THE_LANGUAGE = frozenset({"core", "semantic", "standard", "target_info"})


def _suspect(module: ast.Module) -> Failure | None:
    """The failure of a module that does more than declare kernels.

    An import must run nothing of the module's own. Otherwise it could be one kernel for the
    compiler and another for the interpreter, or write the compiler's answer itself.
    """
    strange: list[Any] = [node for node in module.body if not _declares(node)]
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name):
                suspect = name.startswith("__") or name in _FORBIDDEN
            case ast.Attribute(value=ast.Name(id="triton"), attr=name):
                suspect = name not in _OF_TRITON
            case ast.Attribute(value=ast.Name(id="tl"), attr=name):
                suspect = name.startswith("__") or name in _NOT_OF_THE_LANGUAGE
            case _:
                suspect = getattr(node, "attr", "").startswith("__")
        strange += [node] if suspect else []
    if not strange:
        return None
    first = min(strange, key=lambda node: node.lineno)
    try:
        words = ast.unparse(first).splitlines()[0][:80]
    except (ValueError, RecursionError):  # huge, or very deep
        words = type(first).__name__
    message = (
        f"line {first.lineno}: {words}: a module holds imports "
        "of triton, constants and @triton.jit functions, and nothing else"
    )
    return Failure(kind=FailureKind.CHEATING, message=message)


def _declares(node: ast.stmt) -> bool:
    """Whether a statement of a module only gives something a name."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Import(names=names):
            allowed = {("triton", None), ("triton.language", "tl")}
            return {(alias.name, alias.asname) for alias in names} <= allowed
        case ast.ImportFrom(module="triton.language.extra" | "triton.language.extra.cuda"):
            return [alias.name for alias in node.names] == ["libdevice"]
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


def _compile_error(message: str) -> Failure:
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def _last_lines(output: str) -> str:
    """The end of a traceback: what was raised, and where in the kernel."""
    return "\n".join([line for line in output.splitlines() if line.strip()][-12:])
