"""Which instructions of a compiled kernel are known, as the bench finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.gpu_problems import KERNELS, need_nvcc
from tests.hooks import DATA

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")

import emulator_share

needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder",
)
_STOPS = """
__global__ void stops(float* x) {
    if (x[threadIdx.x] < 0.0f) asm volatile("brkpt;");
    x[threadIdx.x] *= 2.0f;
}
"""


@pytest.mark.slow
def test_a_known_kernel_decodes(tmp_path: Path) -> None:
    need_nvcc()
    source = (KERNELS / "softmax.cu").read_text()
    assert emulator_share.judge(source, tmp_path) == emulator_share.Judged(entries=1)
    (kept,) = tmp_path.iterdir()
    assert ".entry" in kept.read_text()


@pytest.mark.slow
def test_an_unknown_instruction_is_named(tmp_path: Path) -> None:
    need_nvcc()
    outcome = emulator_share.judge(_STOPS, tmp_path)
    assert outcome is not None
    ((name, message),) = outcome.unknown
    assert name == "brkpt"
    assert "brkpt" in message
    others = [emulator_share.Judged(entries=3), emulator_share.Judged(entries=0)]
    assert emulator_share.summary([outcome, *others], 5) == {
        "kernels": 2,
        "compiled_of": 5,
        "without_entry": 1,
        "entries": 4,
        "share": 0.5,
        "unknown": {"brkpt": 1},
    }


@pytest.mark.slow
def test_what_does_not_compile_is_not_judged(tmp_path: Path) -> None:
    need_nvcc()
    assert emulator_share.judge("__global__ void broken( {", tmp_path) is None


@pytest.mark.slow
def test_a_template_that_nothing_instantiates_has_no_entry(tmp_path: Path) -> None:
    need_nvcc()
    source = "template <typename T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }"
    assert emulator_share.judge(source, tmp_path) == emulator_share.Judged(entries=0)


@needs_data
def test_the_recorded_kernels_are_distinct_and_in_one_order() -> None:
    texts = emulator_share.device_code()
    assert len(texts) == len(set(texts)) > 1000
    assert texts == emulator_share.device_code()
