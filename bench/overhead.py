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
start them themselves. The last line is one JSON object.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from _result import bench_parser, report
from kernelcast.backends._arena import Arena
from kernelcast.backends._inputs import make_inputs
from kernelcast.backends._library import LibraryChild
from kernelcast.backends.cpp import CppBackend
from kernelcast.problems import load_problem
from kernelcast.testing import make_kernel
from kernelcast.types import Argument, Case, Effort, Hidden, Problem, Tolerance

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
ELEMENTS = 1024
PAUSE_S = 0.1
STEPS = 32


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


def compared(
    backend: CppBackend, problem: Problem, source: str, effort: Effort, repeats: int
) -> dict[str, Any]:
    """Run both alternately; medians of their wall seconds and of the ratios of the two."""
    kernel = make_kernel(source)
    built = backend.programs(problem, problem.cases, source)
    assert isinstance(built, dict)
    bare = Bare(problem, built[problem.cases[0].name])
    backend.measure(problem, kernel, seed=0, effort=effort)  # learns what is kept
    runtimes_s: list[float] = []
    calls: list[tuple[Arena, str, int]] = []

    def pair(seed: int, *, ahead: bool) -> tuple[float, float]:
        """Wall seconds of a measurement, and of the same calls in the bare loop."""
        if not ahead:
            backend._ahead._discard()
        time.sleep(PAUSE_S)
        calls.clear()
        with recorded(lambda child, case, count: calls.append((child.arena, case, count))):
            started = time.perf_counter()
            measurement = backend.measure(problem, kernel, seed, effort)
            measured_s = time.perf_counter() - started
        assert measurement.timing is not None, measurement.failure
        runtimes_s.append(measurement.timing.runtime_s)
        time.sleep(PAUSE_S)
        started = time.perf_counter()
        for arena, case, count in calls:
            bare.call(arena, case, count)
        return measured_s, time.perf_counter() - started

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
        "measured_s": measured_s,
        "bare_s": bare_s,
        "ratio": ratio,
        "ratio_from_nothing": ratio_from_nothing,
    }


class recorded:  # noqa: N801  (reads as a statement)
    """Report every request that runs a kernel within a `with` statement."""

    def __init__(self, note: Callable[[LibraryChild, str, int], None]) -> None:
        self._note = note

    def __enter__(self) -> None:
        self._run = plain = LibraryChild.run
        note = self._note

        def run(child: LibraryChild, case: str, calls: int, base: int, timeout_s: float) -> Any:
            note(child, case, calls)
            return plain(child, case, calls, base, timeout_s)

        LibraryChild.run = run  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        LibraryChild.run = self._run  # type: ignore[method-assign]


def main() -> None:
    """Print the ratios by length of kernel and by problem."""
    options = bench_parser(__doc__, quick="3 repeats instead of 9").parse_args()
    repeats = 3 if options.quick else 9
    backend = CppBackend()
    rows = {}
    unit_s = None
    arms: list[tuple[str, Problem, str]] = []
    for name, target_s in (("10 us", 1e-5), ("100 us", 1e-4), ("1 ms", 1e-3), ("10 ms", 1e-2)):
        if unit_s is None:
            unit_s = compared(backend, arithmetic(ELEMENTS), SEED, "screening", 1)["kernel_s"]
        elements = max(16, round(ELEMENTS * target_s / unit_s))
        arms.append((name, arithmetic(elements), SEED))
    for name in () if options.quick else ("matmul", "conv2d", "stencil", "softmax", "layernorm"):
        problem = load_problem(name)
        arms.append((name, problem, problem.seed_source))
    for name, problem, source in arms:
        efforts: tuple[Effort, ...] = ("screening", "normal")
        for effort in efforts:
            row = compared(backend, problem, source, effort, repeats)
            rows[f"{name}, {effort}"] = row
            print(
                f"{name:10} {effort:10} kernel {row['kernel_s'] * 1e3:8.3f} ms, "
                f"{row['calls']:6} calls, measured {row['measured_s']:.3f} s, bare "
                f"{row['bare_s']:.3f} s, {row['ratio']:.2f}x, from nothing "
                f"{row['ratio_from_nothing']:.2f}x",
                flush=True,
            )
    backend.close()
    long = [row["ratio"] for row in rows.values() if row["kernel_s"] >= 0.9e-3]
    result = {
        "ratio_at_10us": rows["10 us, normal"]["ratio"],
        "ratio_at_100us": rows["100 us, normal"]["ratio"],
        "ratio_at_1ms": rows["1 ms, normal"]["ratio"],
        "ratio_at_10ms": rows["10 ms, normal"]["ratio"],
        "worst_from_1ms": max(long),
        "sandbox": backend.level,
        "rows": rows,
    }
    report(result, options)


if __name__ == "__main__":
    main()
