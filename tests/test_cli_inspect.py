"""`kernelcast inspect`: what a kernel does on a GPU, told where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli import main
from tests.backends.gpu_problems import edited, need_nvcc

pytestmark = pytest.mark.slow

BY_WARPS = """#pragma kernelcast grid((R + 3) / 4) block(32, 4)
extern "C" __global__ void kernel(const float* x, float* y, long R, long C) {
    long row = blockIdx.x * 4L + threadIdx.y;
    if (row >= R) return;
    const float* in = x + row * C;
    float most = -1e30f, sum = 0.f;
    for (long j = threadIdx.x; j < C; j += 32) most = fmaxf(most, in[j]);
    for (int o = 16; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    for (long j = threadIdx.x; j < C; j += 32) sum += expf(in[j] - most);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    for (long j = threadIdx.x; j < C; j += 32) y[row * C + j] = expf(in[j] - most) / sum;
}
"""
BY_THREADS = """#pragma kernelcast grid((R + 127) / 128) block(128)
extern "C" __global__ void kernel(const float* x, float* y, long R, long C) {
    long row = blockIdx.x * 128L + threadIdx.x;
    if (row >= R) return;
    float most = -1e30f, sum = 0.f;
    for (long j = 0; j < C; j++) most = fmaxf(most, x[row * C + j]);
    for (long j = 0; j < C; j++) sum += expf(x[row * C + j] - most);
    for (long j = 0; j < C; j++) y[row * C + j] = expf(x[row * C + j] - most) / sum;
}
"""


def inspect(folder: Path, source: str, *options: str, name: str = "softmax.cu") -> Result:
    need_nvcc()
    (folder / name).write_text(source)
    command = ["inspect", str(folder / name), "--problem", "softmax", "--device", "RTX-3090"]
    return CliRunner().invoke(main, [*command, *options], env={"COLUMNS": "100"})


def facts(folder: Path, source: str) -> dict[str, Any]:
    result = inspect(folder, source, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_coalesced_and_strided_kernels_are_told_apart(tmp_path: Path) -> None:
    good, bad = facts(tmp_path, BY_WARPS), facts(tmp_path, BY_THREADS)
    assert good["failure"] is bad["failure"] is None
    (main_good, _), (main_bad, _) = good["cases"], bad["cases"]
    assert main_bad["runtime_s"] > 5.0 * main_good["runtime_s"]
    assert main_good["sectors_per_request"] == pytest.approx(4.0)
    assert main_bad["sectors_per_request"] == pytest.approx(32.0)
    assert main_good["used_bytes"] == 1.0
    assert main_bad["used_bytes"] == pytest.approx(1 / 8)
    assert main_good["bound_by"] == "memory"
    assert main_bad["bound_by"] == "memory pipe"
    assert main_bad["lines"][0][0] == 8
    assert main_good["exact"]


def test_a_person_reads_the_estimate_and_that_it_is_one(tmp_path: Path) -> None:
    shown = inspect(tmp_path, BY_WARPS).stdout
    assert "softmax.cu for RTX-3090: estimated, not measured" in shown
    assert "right on the small cases" in shown
    for words in ("case main: about", "bound by", "sectors a request", "occupancy", "line 11"):
        assert words in shown


def test_what_is_wrong_is_said_with_its_line(tmp_path: Path) -> None:
    shown = inspect(tmp_path, edited(BY_THREADS, "row >= R", "row > R")).stdout
    assert "wrong (crash): it reaches outside of its memory: line 6" in " ".join(shown.split())


def test_what_cannot_be_emulated_still_has_a_verdict_of_the_compiler(tmp_path: Path) -> None:
    strange = edited(BY_THREADS, "    float most", '    asm volatile("brkpt;");\n    float most')
    shown = inspect(tmp_path, strange).stdout
    assert "not checked" in shown
    assert "not emulated: brkpt" in shown
    broken = inspect(tmp_path, "nonsense")
    assert broken.exit_code == 1
    assert "softmax.cu does not compile" in broken.stderr


def test_other_devices_and_languages_are_refused_with_a_reason(tmp_path: Path) -> None:
    elsewhere = inspect(tmp_path, BY_WARPS, "--device", "MI300X")
    assert "only CUDA and Triton kernels for NVIDIA GPUs are emulated" in elsewhere.stderr
    other = inspect(tmp_path, "void kernel() {}", name="softmax.cpp")
    assert "name a .cu file or a Triton module" in " ".join(other.stderr.split())
