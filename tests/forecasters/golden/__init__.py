"""The forecaster's prompts, word for word, so that no change of a prompt goes unseen.

`python -m tests.forecasters.golden` writes the files anew; read the difference before you keep it.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from kernelcast.canonical import kernel_id
from kernelcast.devices import find_device
from kernelcast.forecasters.llm import LlmForecaster, Way
from kernelcast.testing import make_estimate
from kernelcast.types import Argument, Case, Evidence, Kernel, Problem, Query, Tolerance

FOLDER = Path(__file__).parent
ANCHOR = """// Row sums, one block a row.
#pragma kernelcast grid(ROWS) block(256)
extern "C" __global__ void row_sum(const float* x, float* y, long long ROWS, long long COLUMNS) {
    __shared__ float partial[256];
    float sum = 0.0f;
    const float* row = x + blockIdx.x * COLUMNS;
    for (long long column = threadIdx.x; column < COLUMNS; column += blockDim.x) {
        sum += row[column];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            partial[threadIdx.x] += partial[threadIdx.x + step];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        y[blockIdx.x] = partial[0];
    }
}
"""
CANDIDATE = ANCHOR.replace("long long column", "int column").replace("one block", "faster! a block")


def query() -> Query:
    """One edit of a CUDA kernel, with what compiling and emulating tell of both."""
    problem = Problem(
        name="row_sum",
        family="reduction",
        summary="y[i] is the sum of row i of x",
        language="cuda",
        entry="row_sum",
        dimensions=("ROWS", "COLUMNS"),
        arguments=(
            Argument(name="x", role="input", dtype="float32", shape=("ROWS", "COLUMNS")),
            Argument(name="y", role="output", dtype="float32", shape=("ROWS",)),
        ),
        cases=(
            Case(name="wide", dimensions={"ROWS": 512, "COLUMNS": 65536}),
            Case(name="odd", dimensions={"ROWS": 3, "COLUMNS": 1001}, timed=False),
        ),
        flops="ROWS * COLUMNS",
        bytes="4 * ROWS * (COLUMNS + 1)",
        tolerance=Tolerance(rtol=1e-4, atol=1e-4),
        oracle_source="",
        seed_source=ANCHOR,
    )
    anchor, candidate = (
        Kernel(id=kernel_id(source, "cuda"), language="cuda", source=source)
        for source in (ANCHOR, CANDIDATE)
    )
    compiled = Evidence(
        kernel_id=anchor.id,
        toolchain="nvcc",
        target="sm_90",
        code_bytes=1536,
        instructions={"memory": 9, "integer": 42},
        registers=24,
        spill_bytes=0,
        shared_bytes=1024,
        block_threads=256,
        occupancy=1.0,
        roofline_s=4.006e-5,
        emulated=(make_estimate(5.9e-5, "wide"),),
    )
    fewer = {
        "kernel_id": candidate.id,
        "registers": 20,
        "instructions": {"memory": 9},
        "emulated": (make_estimate(5.4e-5, "wide"),),
    }
    return Query(
        problem=problem,
        device=find_device("H100-SXM5"),
        candidate=candidate,
        anchor=anchor,
        anchor_log2_speedup=1.0,
        anchor_runtime_s=6.25e-5,
        evidence=compiled.model_copy(update=fewer),
        anchor_evidence=compiled,
    )


def prompts() -> dict[str, str]:
    """What is sent today, by the name of the file that says what it should be."""
    found = {}
    for way in get_args(Way):
        asked = LlmForecaster(ask=way, base_url="http://127.0.0.1:1/v1", model="m")
        for message in asked.requests(query())[0].messages:
            found[f"{way}.{message['role']}.txt"] = f"{message['content']}\n"
    return found
