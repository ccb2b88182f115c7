"""Write docs/reference/prompts.md: five prompts of the language-model forecaster, as it sends them.

    python tools/prompts_page.py           # write the page
    python tools/prompts_page.py --check   # exit with 1 if it differs from what is sent

Evidence and times are made up, so that the page is the same on every machine; all else goes the way
of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kernelcast.canonical import as_kernel
from kernelcast.dataset import Row, recorded_trials, to_table
from kernelcast.devices import find_device
from kernelcast.forecasters._prompts import Prompts
from kernelcast.problems import load_problem
from kernelcast.types import (
    Argument,
    Case,
    CaseSpeed,
    Device,
    Evidence,
    Kernel,
    Launched,
    Measurement,
    Observation,
    Operators,
    Problem,
    Query,
    Rehearsal,
    Timing,
    Tolerance,
    content_hash,
)

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "prompts.md"
CPU = Device(
    name="Xeon with AVX-512",
    kind="cpu",
    cores=2,
    clock_hz=2.5e9,
    peak_flops={"float32": 3.2e11, "float64": 1.6e11},
    bandwidth_bytes_s=2e10,
    source="detected; peaks assume AVX-512 with two FMA units on 2 cores",
)
TRITON = '''import triton
import triton.language as tl

@triton.jit
def row_scale(x_ptr, scale_ptr, out_ptr, ROWS, COLUMNS, BLOCK: tl.constexpr):
    """One program a row."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    values = tl.load(x_ptr + row * COLUMNS + columns, mask=mask)
    scale = tl.load(scale_ptr + row)
    tl.store(out_ptr + row * COLUMNS + columns, values * scale, mask=mask)
'''
REFERENCE = '''import torch
import torch.nn as nn

class Model(nn.Module):
    """Softmax over rows."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.softmax(x * 0.125, dim=1)

batch_size = 4096
columns = 2048

def get_inputs():
    return [torch.rand(batch_size, columns)]

def get_init_inputs():
    return []
'''
MODULE = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
__global__ void softmax_rows(const float* x, float* y, int columns) {
    __shared__ float partial[256];
    const float* row = x + (long long)blockIdx.x * columns;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 256) sum += __expf(row[i] * 0.125f);
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < columns; i += 256)
        y[(long long)blockIdx.x * columns + i] = __expf(row[i] * 0.125f) / partial[0];
}
torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    softmax_rows<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
"""
extension = load_inline("rows", cpp_sources="torch::Tensor softmax(torch::Tensor x);",
                        cuda_sources=source, functions=["softmax"])

class ModelNew(nn.Module):
    def forward(self, x):
        return extension.softmax(x)
'''
TEMPLATE = """__global__ void scale_rows(const float* x, float* y, int rows, int columns) {
    int column = blockIdx.x * block_size_x * tile_size_x + threadIdx.x;
    int row = blockIdx.y * block_size_y + threadIdx.y;
    for (int tile = 0; tile < tile_size_x; ++tile) {
        if (column + tile * block_size_x < columns && row < rows) {
            y[row * columns + column + tile * block_size_x] =
                2.0f * x[row * columns + column + tile * block_size_x];
        }
    }
}
"""


def page() -> str:
    """The page's text."""
    sections = [
        """# Prompts

What `--forecaster llm` sends, written by `python tools/prompts_page.py` from the code that a run
uses. Sources are [canonical](../explanation/canonical.md): no word of a kernel's author is left.
Measured and compiled figures on this page are made up.
""",
        _section("System prompt of `--ask reasoned`", Prompts("reasoned"), bundled()),
        _section("System prompt of `--ask direct`", Prompts("direct"), bundled()),
        _section("System prompt of `--ask digits`", Prompts("digits"), bundled()),
    ]
    for title, query, measured in (
        ("A bundled C++ problem", bundled(), ()),
        ("An imported CUDA module, recorded on an RTX 4090", imported(), ()),
        ("A Triton kernel", triton(), ()),
        ("A tuner's configuration, recorded on an RTX A4000", configuration(), ()),
        ("After 20 measurements", *measured_often()),
    ):
        ((_, user),) = Prompts().of(query, measured)
        sections.append(f"## {title}\n\n````text\n{user['content']}\n````\n")
    return "\n".join(sections)


def _section(title: str, prompts: Prompts, query: Query) -> str:
    ((system, _),) = prompts.of(query)
    return f"## {title}\n\n````text\n{system['content']}\n````\n"


def bundled() -> Query:
    """A loop order that vectorises, against the seed."""
    problem = load_problem("matmul")
    anchor = as_kernel(problem.seed_source, "cpp")
    source = problem.seed_source.replace("for (", "#pragma GCC ivdep\n    for (", 1)
    compiled = Evidence(
        kernel_id=anchor.id,
        toolchain="g++ 12",
        code_bytes=432,
        instructions={"total": 96, "vector": 0, "scalar": 18, "memory": 31, "branch": 9},
        roofline_s=8.4e-4,
    )
    wider = {"code_bytes": 512, "instructions": {"total": 118, "vector": 12, "memory": 28}}
    cases = tuple(
        CaseSpeed(case=case.name, runtime_s=2.1e-2 / number, log2_speedup=0.0)
        for number, case in enumerate(problem.timed_cases, 1)
    )
    return Query(
        problem=problem,
        device=CPU,
        candidate=as_kernel(source, "cpp"),
        anchor=anchor,
        anchor_log2_speedup=0.0,
        anchor_runtime_s=2.1e-2,
        anchor_cases=cases,
        evidence=compiled.model_copy(update=wider),
        anchor_evidence=compiled,
    )


def imported() -> Query:
    """A row of KernelBench, and what rehearsing the module on a CPU tells."""
    row = _row(
        problem="kernelbench/level1/23_Softmax",
        language="torch",
        device="NVIDIA GeForce RTX 4090",
        candidate_source=MODULE,
        candidate_id=as_kernel(MODULE, "torch").id,
        reference_source=REFERENCE,
        reference_id=as_kernel(REFERENCE, "python").id,
        details=json.dumps({"ms": [0.062], "ref_ms": [0.071]}),
    )
    (search,) = recorded_trials(to_table([row]))
    rehearsal = Rehearsal(
        stage="running",
        launches=(Launched(kernel="softmax_rows", grid=(4096, 1, 1), block=(256, 1, 1)),),
        operators=Operators(
            replaced={"mul": 1, "softmax": 1},
            own={"softmax": 1},
            moved_bytes=67_108_864,
            reference_moved_bytes=134_217_728,
        ),
    )
    evidence = Evidence(kernel_id="", toolchain="rehearsed", rehearsal=rehearsal)
    return search.trials[0].query.model_copy(update={"evidence": evidence})


def triton() -> Query:
    """Fewer columns a program, against one program a row."""
    problem = Problem(
        name="row_scale",
        family="elementwise",
        summary="out[i, j] = x[i, j] * scale[i]",
        language="triton",
        entry="row_scale",
        dimensions=("ROWS", "COLUMNS"),
        arguments=(
            Argument(name="x", role="input", dtype="float32", shape=("ROWS", "COLUMNS")),
            Argument(name="scale", role="input", dtype="float32", shape=("ROWS",)),
            Argument(name="out", role="output", dtype="float32", shape=("ROWS", "COLUMNS")),
        ),
        cases=(
            Case(name="wide", dimensions={"ROWS": 4096, "COLUMNS": 8192}),
            Case(name="tall", dimensions={"ROWS": 65536, "COLUMNS": 512}),
        ),
        flops="ROWS * COLUMNS",
        bytes="8 * ROWS * COLUMNS + 4 * ROWS",
        tolerance=Tolerance(rtol=1e-5, atol=1e-6),
        oracle_source="def row_scale(x, scale):\n    return x * scale[:, None]\n",
        seed_source=TRITON,
    )
    source = TRITON.replace(
        "tl.load(scale_ptr + row)", 'tl.load(scale_ptr + row, eviction_policy="evict_last")'
    )
    anchor = as_kernel(TRITON, "triton")
    compiled = Evidence(
        kernel_id=anchor.id,
        toolchain="triton 3.9, sm_90",
        target="sm_90",
        registers=22,
        spill_bytes=0,
        shared_bytes=0,
        block_threads=128,
        occupancy=1.0,
        launched=Launched(kernel="row_scale", grid=(4096, 1, 1), block=(128, 1, 1)),
        roofline_s=8.0e-5,
    )
    return Query(
        problem=problem,
        device=find_device("H100-SXM5"),
        candidate=as_kernel(source, "triton"),
        anchor=anchor,
        anchor_log2_speedup=0.3,
        anchor_runtime_s=1.02e-4,
        evidence=compiled,
        anchor_evidence=compiled,
    )


def configuration() -> Query:
    """A row of a tuner's cache, against the space's reference configuration."""
    values = {"block_size_x": 32, "block_size_y": 4, "tile_size_x": 2}
    changed = values | {"block_size_x": 64, "tile_size_x": 4}
    row = _row(
        problem="tuned/scale_rows",
        language="cuda",
        device="NVIDIA RTX A4000",
        template=TEMPLATE,
        candidate_parameters=json.dumps(changed),
        candidate_id=content_hash("changed"),
        reference_parameters=json.dumps(values),
        reference_id=content_hash("values"),
    )
    (search,) = recorded_trials(to_table([row]))
    return search.trials[0].query


def measured_often() -> tuple[Query, list[Observation]]:
    """A configuration of a bundled template, when 20 others were measured."""
    problem = load_problem("matmul")
    kernels = list(_rendered(problem, 22))
    anchor, candidate = kernels[5], kernels[21]
    measured = [
        _observed(problem, kernel, 0.2 * (number % 7) - 0.3)
        for number, kernel in enumerate(kernels[:21])
    ]
    query = Query(
        problem=problem,
        device=CPU,
        candidate=candidate,
        anchor=anchor,
        anchor_log2_speedup=0.7,
        anchor_runtime_s=1.29e-2,
    )
    return query, measured


def _rendered(problem: Problem, count: int) -> Iterator[Kernel]:
    template = problem.template
    assert template is not None
    for values in islice(template.configurations(), 0, 7 * count, 7):
        source = template.render(values)
        yield as_kernel(source, problem.language).model_copy(update={"parameters": values})


def _observed(problem: Problem, kernel: Kernel, log2_speedup: float) -> Observation:
    timing = Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup,
        high=log2_speedup,
        resolved=True,
        runtime_s=2.1e-2 / 2.0**log2_speedup,
        reference_runtime_s=2.1e-2,
        cases=(),
    )
    measurement = Measurement(
        kernel_id=kernel.id,
        problem_id=problem.id,
        device_id=CPU.id,
        toolchain="g++ 12",
        timing=timing,
        device_s=0.1,
    )
    return Observation(kernel=kernel, measurement=measurement)


def _row(**columns: object) -> Row:
    made = {
        "row_id": "one",
        "family": "made",
        "backend": "cuda",
        "runtime_s": 6.2e-5,
        "reference_runtime_s": 7.1e-5,
        "log2_speedup": 0.195,
        "status": "ok",
        "source": "this page",
        "licence": "Apache-2.0",
    }
    return Row.model_validate({**made, **columns})


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif text != PAGE.read_text(encoding="utf-8"):
        sys.exit(f"{PAGE} is not what is sent: run python tools/prompts_page.py")


if __name__ == "__main__":
    main()
