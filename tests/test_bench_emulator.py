"""The launches of the recorded tuner kernels, and how estimates are judged."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.backends.gpu_problems import need_nvcc
from tests.emulator.test_model import WORK
from tests.hooks import DATA, gate_runs

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")

import emulator
from _tuned_kernels import GPUS, GROUPS, launched
from kernelcast.devices import architecture, find_device
from kernelcast.emulator.model import Architecture, Choices, stacked

needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder",
)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("group", gate_runs(1, ["gemm_A100", "pnpoly"]))
def test_a_recorded_configuration_is_compiled_and_counted(group: str) -> None:
    need_nvcc()
    (key,) = emulator.chosen(group, 1)
    target, devices = next(iter(emulator.targets(group).items()))
    line = emulator.count(emulator.Job(group, key, target))
    assert "error" not in line
    assert sorted(line["works"]) == devices
    rows = emulator.table([line])
    (ratio, *_) = rows.estimated_s(Choices()) / rows.recorded_s
    assert 1 / 4 < ratio < 4


@needs_data
def test_every_group_is_of_one_source_and_its_gpus_are_known() -> None:
    assert len({emulator.GROUP_KERNEL[group] for group in GROUPS}) >= 5
    for group, problems in GROUPS.items():
        sources = {launched(problem).kernel.template for problem in problems}
        assert len(sources) == 1, group
        spaces = emulator.spaces()[group]
        assert {space.gpu for space in spaces} <= set(GPUS)
        assert all(json.loads(key) for key in emulator.chosen(group, 3))
    used = {space.gpu for spaces in emulator.spaces().values() for space in spaces}
    assert used == set(GPUS)


def rows(recorded_s: list[float]) -> emulator.Table:
    count = len(recorded_s)
    constants = architecture("sm_86") or {}
    device = find_device("RTX-3090")
    works = [replace(WORK, footprint_bytes=0.0, blocks=1e4 * (1 + n)) for n in range(count)]
    return emulator.Table(
        np.array(["gemm"] * count),
        np.array(["gemm: made up"] * count),
        np.array(recorded_s),
        np.ones(count),
        stacked(works),
        Architecture(**{name: np.full(count, v) for name, v in constants.items()}),
        np.full(count, float(device.cores)),
        np.full(count, device.clock_hz),
        np.full(count, device.bandwidth_bytes_s),
    )


def test_scores_are_of_order_level_and_top() -> None:
    times = [float(n) for n in range(1, 41)]
    table = rows(times)
    right = emulator.scores(table, table.recorded_s)
    assert right["spearman_mean"] == pytest.approx(1.0)
    assert right["top10"] == 1.0
    assert right["median_ratio"] == 1.0
    backwards = emulator.scores(table, 4.0 * table.recorded_s[::-1])
    assert backwards["spearman_worst"] == pytest.approx(-1.0)
    assert backwards["top10"] == pytest.approx(1 / 31)
    assert backwards["top10_random"] > backwards["top10"]
    estimated = emulator.scores(table, table.estimated_s(Choices()))
    assert estimated["spearman_mean"] == pytest.approx(1.0)
