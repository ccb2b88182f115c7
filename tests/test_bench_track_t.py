"""The arms of `bench/track_t.py` that need no measured data."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")

import track_t
from _data import Configuration, Space
from kernelcast.canonical import canonical_parameters


def space(problem: str, gpu: str, scale: float = 1.0) -> Space:
    """A made-up space in which the largest blocks with the largest tiles fail."""
    configurations: tuple[Configuration, ...] = tuple(
        {"block": block, "tile": tile} for block in (16, 32, 64, 128, 256) for tile in (1, 2, 4, 8)
    )
    times = [
        np.inf
        if int(c["block"]) * int(c["tile"]) > 1024
        else scale * (1 + abs(np.log2(int(c["block"])) - 6) + 0.3 * abs(int(c["tile"]) - 4))
        for c in configurations
    ]
    return Space(
        problem=problem,
        family=problem,
        gpu=gpu,
        vendor="nvidia",
        parameters=("block", "tile"),
        configurations=configurations,
        keys=tuple(map(canonical_parameters, configurations)),
        runtime_ms=np.array(times),
        device_s=None,
    )


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> tuple[Space, ...]:
    made = (
        space("hub/conv", "NVIDIA A100"),
        space("hub/conv", "NVIDIA H100", 0.5),
        space("hub/gemm", "NVIDIA A100", 3.0),
    )
    monkeypatch.setattr(track_t, "spaces", lambda: made)
    return made


def test_hostile_times_are_the_right_ones_at_the_wrong_configurations(
    spaces: tuple[Space, ...],
) -> None:
    target = spaces[0]
    (right,) = track_t.known_times(target, "full", 0).values()
    (permuted,) = track_t.known_times(target, "hostile_permuted", 0).values()
    (turned,) = track_t.known_times(target, "hostile_reversed", 0).values()
    (foreign,) = track_t.known_times(target, "hostile_kernel", 0).values()
    for wrong in (permuted, turned):
        assert wrong != right
        assert sorted(map(str, wrong.values())) == sorted(map(str, right.values()))
    timed = [key for key, seconds in right.items() if seconds is not None]
    fastest = min(timed, key=lambda key: right[key] or np.inf)
    assert turned[fastest] == max(turned[key] or 0.0 for key in timed)
    assert {seconds for seconds in foreign.values() if seconds} <= {
        ms * 1e-3 for ms in spaces[2].runtime_ms.tolist()
    }


def test_a_run_is_judged_by_what_it_did_not_measure(spaces: tuple[Space, ...]) -> None:
    run = track_t.searched(spaces[0], 0, 12, judged_at=(6, 12))
    assert len(set(run["indices"])) == 12
    assert set(run["judged"]) == {"6", "12"}
    for judged in run["judged"].values():
        assert 0 <= judged["coverage"] <= 1
        assert 0 <= judged["auroc_failure"] <= 1
    assert run["suggest_s"] > 0


def test_what_hostile_times_cost_is_counted_against_cold() -> None:
    curves = {
        "cold": {"one": np.array([0.5, 0.8]), "two": np.array([0.9, 1.0])},
        "hostile_permuted": {"one": np.array([0.4, 0.8]), "two": np.array([0.9, 0.9])},
        "hostile_reversed": {"two": np.array([0.8, 1.0])},
    }
    result = track_t._against_cold(curves, (1, 2))
    assert result["mean"]["permuted"] == {"1": -0.05, "2": -0.05}
    assert result["worst"]["permuted"] == {"1": -0.1, "2": -0.1}
    assert result["least_mean"] == {"1": -0.1, "2": -0.05}
    assert result["least_worst"] == {"1": -0.1, "2": -0.1}


def test_the_adapter_measures_in_kernel_tuner_what_it_is_told_is_fast(
    spaces: tuple[Space, ...],
) -> None:
    pytest.importorskip("kernel_tuner", reason="needs the dependency group bench")
    import _kernel_tuner

    known = track_t.known_times(spaces[0], "full", 0)
    chosen = _kernel_tuner.run(spaces[0], _kernel_tuner.ADAPTER, 0, 12, known)
    assert len(set(chosen)) == 12
    assert chosen[0] == int(spaces[0].runtime_ms.argmin())


@pytest.mark.parametrize("arm", track_t.OPTUNA)
def test_optuna_measures_configurations_of_the_space_once(
    spaces: tuple[Space, ...], arm: str
) -> None:
    pytest.importorskip("optuna", reason="needs the dependency group bench")
    pytest.importorskip("torch", reason="Optuna's GP sampler needs it")
    chosen = track_t.run(spaces[0], arm, 0, 12)  # the GP sampler draws the first ten
    assert len(set(chosen)) == 12
    assert max(chosen) < len(spaces[0].keys)


def test_the_adapter_measures_in_optuna_what_it_is_told_is_fast(spaces: tuple[Space, ...]) -> None:
    pytest.importorskip("optuna", reason="needs the dependency group bench")
    import _by_optuna

    known = track_t.known_times(spaces[0], "full", 0)
    chosen = _by_optuna.run(spaces[0], 0, 12, known)
    assert len(set(chosen)) == 12
    assert chosen[0] == int(spaces[0].runtime_ms.argmin())
