"""Cost of trust: a sandboxed, verified measurement beside a bare loop with as many calls.

Run: python bench/overhead.py [--quick] [--out FILE]
A measurement starts a confined process, verifies on stated and hidden cases, gives every timed
call new inputs and compares every output. The bare loop loads the same two libraries into this
process and makes the same calls, in the same batches, on one set of inputs and without checks. Both
are repeated alternately. The number of calls of a measurement depends on noise, so each measurement
is divided by its own bare loop, and the median of these ratios is reported. Compiling, and what a
backend learns of a problem once (known answers, the noise floor), come before. The two processes of
a measurement are started when the one before has ended; in a search, something is compiled
meanwhile, for which a pause stands here. `ratio_from_nothing` is the ratio of measurements that
start them themselves.

The arm of PyTorch counts the same for a module that is called on one thread: the bare loop imports
PyTorch once, and builds and calls the module in this process. The pause is longer there, as
importing PyTorch is, which is also part of what is compiled meanwhile. `device_ratio` is the ratio
of the seconds for which a measurement held the device. The last line is one JSON object.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from _result import bench_parser, report
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inputs import make_inputs
from kernelcast.backends._library import LibraryChild
from kernelcast.backends._torch_child import TorchChild
from kernelcast.backends.cpp import CppBackend
from kernelcast.backends.torch import TorchBackend
from kernelcast.canonical import as_kernel
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.types import Argument, Case, Effort, Hidden, Module, Problem, Tolerance

# Arithmetic alone, so that a call takes as long as wanted: K steps on each of N elements, after
# which an element still depends on its input.
PASS = """
    for (int64_t i = 0; i < {end}; ++i) {{
        float value = x[i];
        for (int64_t k = 0; k < K; ++k) value = __builtin_sqrtf(value * value + 0.01f);
        y[i] = value;
    }}
"""
SEED = f"""
#include <cstdint>
extern "C" void kernel(const float* x, float* y, int64_t N, int64_t K) {{{PASS.format(end="N")}}}
"""
ORACLE = """
import numpy as np


def reference(x, *, N, K):
    value = x.astype(np.float64)
    for _ in range(K):
        value = np.sqrt(value * value + 0.01)
    return value
"""
MODULE = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        for _ in range(self.steps):
            x = torch.sqrt(x * x + 0.01)
        return x
"""
ELEMENTS, MODULE_ELEMENTS = 1024, 1 << 17
PAUSE_S, MODULE_PAUSE_S = 0.1, 6.0
STEPS = 32
EFFORTS: tuple[Effort, ...] = ("screening", "normal")


def arithmetic(elements: int) -> Problem:
    """A problem of few bytes whose kernel's time grows with its elements."""
    return Problem(
        name=f"arithmetic-{elements}",
        family="map",
        summary="a few steps of a map on each element",
        language="cpp",
        entry="kernel",
        dimensions=("N", "K"),
        arguments=(
            Argument(name="x", role="input", dtype="float32", shape=("N",)),
            Argument(name="y", role="output", dtype="float32", shape=("N",)),
        ),
        cases=(
            Case(name="main", dimensions={"N": elements, "K": STEPS}),
            Case(name="ragged", dimensions={"N": 77, "K": 3}, timed=False),
        ),
        flops="4*N*K",
        bytes="8*N",
        tolerance=Tolerance(rtol=1e-4, atol=1e-5),
        oracle_source=ORACLE,
        seed_source=SEED,
        hidden=Hidden(dimensions={"N": (1, 2000), "K": (1, STEPS)}),
    )


def arithmetic_module(elements: int) -> Problem:
    """The same problem for PyTorch."""
    return arithmetic(elements).model_copy(
        update={
            "language": "torch",
            "entry": "ModelNew",
            "module": Module(init="K", call="x", returns="y"),
            "oracle_source": MODULE.replace("ModelNew", "Model"),
            "seed_source": MODULE,
        }
    )


class Bare:
    """Both libraries in this process, called on one set of inputs."""

    def __init__(self, problem: Problem, library: Path) -> None:
        self._problem = problem
        self._entry = getattr(ctypes.CDLL(str(library)), problem.entry)
        self._entry.argtypes = [ctypes.c_void_p] * len(problem.arguments)
        self._entry.argtypes += [ctypes.c_int64] * len(problem.dimensions)
        self._entry.restype = None
        self._arrays: dict[tuple[int, ...], list[Any]] = {}

    def call(self, arena: Arena, case: str, calls: int) -> None:
        """Call so often in a row, on one set of inputs of the case."""
        extents = arena.extents(case)
        key = tuple(extents)  # hidden cases of one name differ in shape
        if key not in self._arrays:
            self._arrays[key] = self._drawn(arena.cases[case])
        pointers = [array.ctypes.data for array in self._arrays[key]]
        for _ in range(calls):
            self._entry(*pointers, *extents)

    def _drawn(self, case: Case) -> list[Any]:
        inputs = make_inputs(self._problem, case, np.random.default_rng(1))
        return [
            inputs[argument.name]
            if argument.role == "input"
            else np.zeros(argument.extent(case.dimensions), argument.dtype)
            for argument in self._problem.arguments
        ]


class BareModule:
    """`MODULE` in this process, called on one thread and one set of inputs."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(1)
        self._space: dict[str, Any] = {}
        exec(problem.seed_source, self._space)
        self._ready: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def call(self, arena: Arena, case: str, calls: int) -> None:
        """Call so often in a row, on one set of inputs of the case."""
        key = tuple(arena.extents(case))
        if key not in self._ready:
            drawn = make_inputs(self._problem, arena.cases[case], np.random.default_rng(1))
            module = self._space[self._problem.entry](arena.cases[case].dimensions["K"])
            self._ready[key] = module, self._torch.from_numpy(drawn["x"])
        module, x = self._ready[key]
        with self._torch.no_grad():
            for _ in range(calls):
                module(x)

    def elements(self, target_s: float) -> int:
        """How many elements make a call take so long."""
        arena, case = Arena.of(self._problem), self._problem.cases[0]
        self.call(arena, case.name, 10)
        started = time.perf_counter()
        self.call(arena, case.name, 10)
        unit_s = (time.perf_counter() - started) / 10
        return round(case.dimensions["N"] * target_s / unit_s)


def compared(
    backend: CppBackend | TorchBackend, problem: Problem, source: str, effort: Effort, repeats: int
) -> dict[str, Any]:
    """Run both alternately; medians of their wall seconds and of the ratios of the two."""
    kernel = as_kernel(source, problem.language)
    built = backend.programs(problem, problem.cases, source)
    assert isinstance(built, dict)
    bare: Bare | BareModule
    child: type[Child]
    if isinstance(backend, TorchBackend):
        bare, child, pause_s = BareModule(problem), TorchChild, MODULE_PAUSE_S
    else:
        library = built[problem.cases[0].name]
        assert isinstance(library, Path)
        bare, child, pause_s = Bare(problem, library), LibraryChild, PAUSE_S
    backend.measure(problem, kernel, seed=0, effort=effort)  # learns what is kept
    runtimes_s: list[float] = []
    device_ratios: list[float] = []
    calls: list[tuple[Arena, str, int]] = []

    def pair(seed: int, *, ahead: bool) -> tuple[float, float]:
        """Wall seconds of a measurement, and of the same calls in the bare loop."""
        if not ahead:
            backend._ahead._discard()
        time.sleep(pause_s)
        calls.clear()
        with recorded(child, calls.append):
            started = time.perf_counter()
            measurement = backend.measure(problem, kernel, seed, effort)
            measured_s = time.perf_counter() - started
        assert measurement.timing is not None, measurement.failure
        runtimes_s.append(measurement.timing.runtime_s)
        time.sleep(pause_s)
        started = time.perf_counter()
        for arena, case, count in calls:
            bare.call(arena, case, count)
        bare_s = time.perf_counter() - started
        if ahead:
            device_ratios.append(measurement.device_s / bare_s)
        return measured_s, bare_s

    walls: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for repeat in range(repeats):
        for ahead in walls:
            walls[ahead].append(pair(repeat + 1, ahead=ahead))
    measured_s, bare_s = map(median, zip(*walls[True], strict=True))
    ratio, ratio_from_nothing = (
        median(measured / bare for measured, bare in walls[ahead]) for ahead in (True, False)
    )
    return {
        "kernel_s": median(runtimes_s),
        "calls": sum(count for _, _, count in calls),
        "device_ratio": median(device_ratios),
        "measured_s": measured_s,
        "bare_s": bare_s,
        "ratio": ratio,
        "ratio_from_nothing": ratio_from_nothing,
    }


class recorded:  # noqa: N801  (reads as a statement)
    """Report every request that runs a kernel within a `with` statement."""

    def __init__(
        self, child: type[Child], note: Callable[[tuple[Arena, str, int]], object]
    ) -> None:
        self._child, self._note = child, note
        self._run = child.run

    def __enter__(self) -> None:
        plain, note = self._run, self._note

        def run(child: Child, case: str, calls: int, base: int, timeout_s: float) -> Any:
            note((child.arena, case, calls))
            return plain(child, case, calls, base, timeout_s)

        self._child.run = run  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        self._child.run = self._run  # type: ignore[method-assign]


def main() -> None:
    """Print the ratios by length of kernel and by problem."""
    parser = bench_parser(__doc__, quick="3 repeats instead of 9")
    parser.add_argument("--only", choices=("cpp", "torch"), help="the arms of one language")
    options = parser.parse_args()
    repeats = 3 if options.quick else 9
    rows: dict[str, dict[str, dict[str, Any]]] = {"cpp": {}, "torch": {}}
    level = ""
    for language, arms_of in (("cpp", cpp_arms), ("torch", torch_arms)):
        if options.only not in (None, language):
            continue
        try:
            backend = CppBackend() if language == "cpp" else TorchBackend(threads=1)
        except SetupError as error:
            print(f"{language} is left out: {error}", file=sys.stderr)
            continue
        with closing(backend):
            level = backend.level
            for name, problem in arms_of(quick=options.quick):
                for effort in EFFORTS:
                    row = compared(backend, problem, problem.seed_source, effort, repeats)
                    rows[language][f"{name}, {effort}"] = row
                    print(_line(name, effort, row), flush=True)

    def ratio(language: str, name: str) -> float | None:
        row = rows[language].get(f"{name}, normal")
        return None if row is None else float(row["ratio"])

    long = [row["ratio"] for row in rows["cpp"].values() if row["kernel_s"] >= 0.9e-3]
    result = {
        "ratio_at_10us": ratio("cpp", "10 us"),
        "ratio_at_100us": ratio("cpp", "100 us"),
        "ratio_at_1ms": ratio("cpp", "1 ms"),
        "ratio_at_10ms": ratio("cpp", "10 ms"),
        "worst_from_1ms": max(long, default=None),
        "torch_10ms": ratio("torch", "torch 10 ms"),
        "sandbox": level,
        "rows": {**rows["cpp"], **rows["torch"]},
    }
    report(result, options)


def cpp_arms(*, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Loops of four lengths, and bundled problems."""
    with closing(CppBackend()) as backend:
        unit_s = compared(backend, arithmetic(ELEMENTS), SEED, "screening", 1)["kernel_s"]
    for name, target_s in (("10 us", 1e-5), ("100 us", 1e-4), ("1 ms", 1e-3), ("10 ms", 1e-2)):
        yield name, arithmetic(max(16, round(ELEMENTS * target_s / unit_s)))
    for name in () if quick else ("matmul", "conv2d", "stencil", "softmax", "layernorm"):
        yield name, load_problem(name)


def torch_arms(*, quick: bool) -> Iterator[tuple[str, Problem]]:
    """One module."""
    del quick
    elements = BareModule(arithmetic_module(MODULE_ELEMENTS)).elements(1e-2)
    yield "torch 10 ms", arithmetic_module(elements)


def _line(name: str, effort: Effort, row: dict[str, Any]) -> str:
    return (
        f"{name:11} {effort:10} kernel {row['kernel_s'] * 1e3:8.3f} ms, {row['calls']:6} calls, "
        f"measured {row['measured_s']:.3f} s, bare {row['bare_s']:.3f} s, {row['ratio']:.2f}x, "
        f"from nothing {row['ratio_from_nothing']:.2f}x"
    )


if __name__ == "__main__":
    main()
