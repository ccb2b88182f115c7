"""A tiny problem whose seed takes about a millisecond, and one backend for a whole file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from kernelcast.backends._inputs import Array
from kernelcast.backends._verify import Reference
from kernelcast.backends.cpp import CppBackend
from kernelcast.devices import detect_cpu
from kernelcast.dtypes import shown
from kernelcast.types import Argument, Case, Problem, Tolerance

SEED = """
#include <cstdint>
extern "C" void kernel(const float* x, const float* w, float* out, int64_t N, int64_t K) {
    for (int64_t i = 0; i < N; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < K; ++k) sum += x[i + k] * w[k];
        out[i] = sum;
    }
}
"""
REFERENCE = """
import numpy as np


def reference(x, w, *, N, K):
    return np.convolve(x.astype(np.float64), w[::-1].astype(np.float64), mode="valid")
"""


def make_problem(seed_source: str = SEED, **dimensions: int) -> Problem:
    return Problem(
        name="filter",
        family="convolution",
        summary="a short filter over a long signal",
        language="cpp",
        entry="kernel",
        dimensions=("N", "K"),
        arguments=(
            Argument(name="x", role="input", dtype="float32", shape=("N + K - 1",)),
            Argument(name="w", role="input", dtype="float32", shape=("K",)),
            Argument(name="out", role="output", dtype="float32", shape=("N",)),
        ),
        cases=(
            Case(name="main", dimensions={"N": 40_000, "K": 32} | dimensions),
            Case(name="ragged", dimensions={"N": 77, "K": 5}, timed=False),
        ),
        flops="2*N*K",
        bytes="4*(2*N + 2*K)",
        tolerance=Tolerance(rtol=1e-4, atol=1e-4),
        oracle_source=REFERENCE,
        seed_source=seed_source,
    )


def plain_reference(problem: Problem) -> Reference:
    """The problem's reference.py in this process, for tests that are not about the oracle.

    The text is the test's own, and a process for each of many examples would take minutes.
    """
    namespace: dict[str, Any] = {}
    exec(problem.oracle_source, namespace)

    def reference(inputs: Mapping[str, Array], case: Case) -> tuple[Array, ...]:
        # NaN and infinity are meant where a case has special values.
        with np.errstate(all="ignore" if case.special else None):
            given = (array.astype(shown(array.dtype)) for array in inputs.values())
            answer = namespace["reference"](*given, **case.dimensions)
        arrays = answer if isinstance(answer, tuple) else (answer,)
        return tuple(np.asarray(array, dtype=np.float64) for array in arrays)

    return reference


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="module")
def backend() -> Iterator[CppBackend]:
    backend = CppBackend(detect_cpu())
    yield backend
    backend.close()
