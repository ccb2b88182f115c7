"""Estimated times of works that are made up: what must be slower is, and nothing beats memory."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.devices import architecture, catalogue, find_device
from kernelcast.emulator.kinds import Kind
from kernelcast.emulator.model import Architecture, Work, estimate, stacked

DEVICE = find_device("RTX-3090")
WORK = Work(
    issued={"float": 4096.0, "integer": 1024.0, "load_global": 256.0, "store_global": 64.0},
    shared_waves=0.0,
    l1_cycles=1280.0,
    l1_lookups=320.0,
    loaded_sectors=1024.0,
    different_sectors=1024.0,
    written_sectors=256.0,
    chain_cycles=800.0,
    chain_shared=0.0,
    chain_global=4.0,
    phases=1.0,
    hot_bytes=2048.0,
    spill_bytes=0.0,
    stack_bytes=0.0,
    shared_bytes=0.0,
    threads=256.0,
    warps=8.0,
    blocks=10_000.0,
    resident=6.0,
    footprint_bytes=400e6,
)
GROWING = (
    "shared_waves", "l1_cycles", "l1_lookups", "written_sectors", "chain_cycles", "chain_shared",
    "chain_global", "phases", "hot_bytes", "spill_bytes", "blocks", "footprint_bytes",
)  # fmt: skip


def seconds(work: Work, target: str = "sm_86") -> float:
    constants = architecture(target)
    assert constants is not None
    rates = (DEVICE.cores, DEVICE.clock_hz, DEVICE.bandwidth_bytes_s)
    return float(estimate(work, Architecture(**constants), *rates).seconds)


@given(name=st.sampled_from(GROWING), factor=st.floats(1.0, 100.0), extra=st.floats(0.0, 1e6))
def test_more_work_never_takes_less(name: str, factor: float, extra: float) -> None:
    more = replace(WORK, **{name: getattr(WORK, name) * factor + extra})
    assert seconds(more) >= seconds(WORK) * (1.0 - 1e-9)


@given(kind=st.sampled_from(["float", "double", "special", "divide", "wide", "matrix", "shuffle"]))
def test_more_instructions_never_take_less(kind: Kind) -> None:
    more = replace(WORK, issued={**WORK.issued, kind: 1e5})
    assert seconds(more) > seconds(WORK)


def test_nothing_is_faster_than_its_memory_allows() -> None:
    least = WORK.footprint_bytes / DEVICE.bandwidth_bytes_s
    assert seconds(replace(WORK, blocks=1.0)) >= least


def test_time_grows_with_the_waves_of_blocks() -> None:
    idle = replace(WORK, footprint_bytes=0.0)
    one_wave = DEVICE.cores * WORK.resident
    whole = seconds(replace(idle, blocks=20.0 * one_wave))
    assert seconds(replace(idle, blocks=40.0 * one_wave)) == pytest.approx(2.0 * whole, rel=0.02)
    assert seconds(replace(idle, blocks=20.0 * one_wave + 1.0)) > whole


def test_more_blocks_at_once_hide_waiting() -> None:
    waiting = replace(WORK, chain_global=400.0, footprint_bytes=0.0)
    assert seconds(replace(waiting, resident=1.0)) > 2.0 * seconds(waiting)


def test_the_bound_is_what_takes_longest() -> None:
    constants = architecture("sm_86")
    assert constants is not None
    rates = (DEVICE.cores, DEVICE.clock_hz, DEVICE.bandwidth_bytes_s)

    def bound(**changed: Any) -> str:
        return estimate(replace(WORK, **changed), Architecture(**constants), *rates).bound

    assert bound(footprint_bytes=1e10) == "memory"
    assert bound(shared_waves=1e6) == "memory pipe"
    assert bound(written_sectors=1e6) == "L2 cache"
    assert bound(issued={"double": 1e6}) == "double"
    assert bound(issued={"matrix": 1e6}) == "matrix"
    assert bound(chain_global=1e5, resident=1.0) == "waiting"


def test_many_works_at_once_are_what_each_is_alone() -> None:
    works = [WORK, replace(WORK, blocks=7.0, issued={"double": 5.0}), replace(WORK, warps=3.0)]
    constants = architecture("sm_80")
    assert constants is not None
    rates = (DEVICE.cores, DEVICE.clock_hz, DEVICE.bandwidth_bytes_s)
    together = estimate(stacked(works), Architecture(**constants), *rates).seconds
    assert np.allclose(together, [seconds(work, "sm_80") for work in works])


def test_every_nvidia_gpu_of_the_catalogue_has_an_architecture() -> None:
    for device in catalogue().values():
        known = architecture(device.target)
        assert (known is not None) == device.target.startswith("sm_"), device.name
        if known is not None:
            assert asdict(Architecture(**known)).keys() == known.keys()
            assert 32.0 * known["float_rate"] * 2.0 * device.cores * device.clock_hz == (
                pytest.approx(device.peak_flops["float32"], rel=0.02)
            )
