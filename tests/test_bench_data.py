"""What the benches build on: the measured data, and Kernel Tuner's strategies on it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")

import _data  # noqa: E402 - benches are scripts: pytest has their folder on its path
from _data import Space, aligned, siblings_of, tuner_spaces  # noqa: E402

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def spaces() -> dict[str, Space]:
    try:
        return {space.label: space for space in tuner_spaces()}
    except SystemExit:
        pytest.skip("The measured data is missing")


def test_without_the_data_its_sources_and_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELCAST_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as exit_:
        tuner_spaces()
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'nowhere'} is not there" in message
    assert "not part of this repository" in message
    assert "AutoTuningAssociation/benchmark_hub" in message
    assert "kernelcast data import kernel-tuner" in message
    assert (ROOT / "docs/how-to/measured-data.md").is_file()
    assert "docs/how-to/measured-data.md" in message

    monkeypatch.setenv("KERNELCAST_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        _data.read_columns("tuner_costs", ["gpu"])
    assert "tuner_costs.parquet is not there" in capsys.readouterr().err


def test_a_space_is_made_of_rows_by_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(name: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        table = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")

    measured = ["problem", "gpu", "params", "candidate_ms", "status"]
    here, there = ("hub/gemm(4x4)", "NVIDIA A100-PCIE-40GB"), ("hub/gemm(4x4)", "AMD Instinct MI50")
    rows: list[tuple[Any, ...]] = [
        (*here, '{"b": 10, "a": 1, "same": 7}', 3.0, "ok"),
        (*here, '{"a": 1, "b": 9, "same": 7}', 5.0, "ok"),
        (*here, '{"a": 1.0, "b": 9, "same": 7}', 7.0, "ok"),  # the same once more
        (*here, '{"a": 2, "b": 9, "same": 7}', None, "compile_error"),
        (*there, '{"a": 2, "b": 9, "same": 7}', 2.0, "ok"),
        (*there, '{"a": 1, "b": 10, "same": 7}', 4.0, "ok"),
    ]
    write("tuner_benchmark_hub", measured, rows)
    write("tuner_kernel_tuner_paper", measured, [("fjw/other", here[1], '{"a": 1}', 1.0, "ok")])
    costs = [(*here, '{"same": 7, "b": 10, "a": 1}', 1500.0, 500.0)]
    write("tuner_costs", ["problem", "gpu", "params", "compile_ms", "benchmark_ms"], costs)
    monkeypatch.setenv("KERNELCAST_DATA", str(tmp_path))

    amd, nvidia = tuner_spaces(least_rows=2)  # the third has one row

    assert (nvidia.label, nvidia.family, nvidia.vendor) == ("gemm@A100", "tuned/gemm", "nvidia")
    assert (amd.label, amd.vendor, amd.device_s) == ("gemm@MI50", "amd", None)
    assert nvidia.parameters == ("a", "b")
    assert [(each["a"], each["b"]) for each in nvidia.configurations] == [(1, 9), (1, 10), (2, 9)]
    assert nvidia.runtime_ms.tolist() == [6.0, 3.0, np.inf]
    assert nvidia.best_ms == 3.0
    np.testing.assert_array_equal(nvidia.device_s, [np.nan, 2.0, np.nan])
    assert siblings_of(nvidia, [amd, nvidia]) == [amd]
    np.testing.assert_array_equal(aligned(nvidia, amd), [np.nan, 4.0, 2.0])
    assert nvidia.fingerprint != amd.fingerprint
    slower = dataclasses.replace(nvidia, runtime_ms=nvidia.runtime_ms * 2)
    assert slower.fingerprint != nvidia.fingerprint


def test_the_spaces_are_those_that_were_published(spaces: dict[str, Space]) -> None:
    assert len(spaces) == 33, "a label stands for two spaces, or a space is missing"
    gemm = spaces["gemm@RTX 3090"]
    assert len(gemm.configurations) == len(set(gemm.keys)) == 17_956
    assert gemm.best_ms == pytest.approx(5.65784)
    assert len(gemm.parameters) == 10
    convolution = spaces["convolution@RTX 3090"]
    assert np.isinf(convolution.runtime_ms).sum() == 1_548
    assert convolution.device_s is None
    costed = [space for space in spaces.values() if space.device_s is not None]
    assert len(costed) == 14
    assert len({space.gpu for space in costed}) == 7
    assert not any(np.isnan(space.device_s).any() for space in costed if space.device_s is not None)
    everything = list(spaces.values())
    assert siblings_of(spaces["hotspot_milo_random@A100"], everything) == []
    assert len(siblings_of(spaces["dedispersion_milo@A100"], everything)) == 5


def test_times_on_another_gpu_are_found_by_configuration(spaces: dict[str, Space]) -> None:
    space, sibling = spaces["gemm@RTX 3090"], spaces["gemm@RTX 3060"]
    times = aligned(space, sibling)
    assert np.isfinite(times).sum() == 10_000
    assert np.isnan(times).sum() == 7_956
    rows = _data.read_columns("tuner_benchmark_hub", ("gpu", "problem", "params", "candidate_ms"))
    published = {
        frozenset(json.loads(params).items()): ms
        for gpu, problem, params, ms in zip(*rows.values(), strict=True)
        if problem == sibling.problem and gpu == sibling.gpu
    }
    for index in np.flatnonzero(np.isfinite(times))[::997]:
        assert times[index] == published[frozenset(space.configurations[index].items())]


SMALL = "convolution_milo_small@RTX A4000"


@pytest.fixture
def kernel_tuner() -> Any:
    return pytest.importorskip("kernel_tuner", reason="needs pip install kernel-tuner")


def test_the_restriction_admits_exactly_what_was_measured(
    kernel_tuner: Any, spaces: dict[str, Space], tmp_path: Path
) -> None:
    from kernel_tuner.searchspace import Searchspace

    import _kernel_tuner

    space = spaces[SMALL]
    _kernel_tuner.write_cache(space, tmp_path / "cache.json")
    cache = json.loads((tmp_path / "cache.json").read_text())
    solved = Searchspace(cache["tune_params"], [_kernel_tuner.restriction(space)], 10**9)
    combinations = np.prod([len(values) for values in cache["tune_params"].values()])
    assert combinations > len(space.configurations)
    assert sorted(solved.list) == [
        tuple(each[name] for name in space.parameters) for each in space.configurations
    ]


@pytest.mark.parametrize(
    ("strategy", "budget"),
    [
        ("adaptive_tabu_greywolf", 40),
        ("diff_evo", 40),
        ("bayes_opt", 20),  # what follows its first sample differs by the last bit of a sum
    ],
)
def test_a_run_is_what_tune_kernel_does(
    kernel_tuner: Any, spaces: dict[str, Space], strategy: str, budget: int, tmp_path: Path
) -> None:
    import _kernel_tuner

    space = spaces[SMALL]
    first = _kernel_tuner.run(space, strategy, seed=3, budget=budget)
    _kernel_tuner.write_cache(space, tmp_path / "cache.json")
    with _kernel_tuner.seeded(space, 3):
        results, _ = kernel_tuner.tune_kernel(
            space.label,
            "",
            (1,),
            [],
            json.loads((tmp_path / "cache.json").read_text())["tune_params"],
            restrictions=[_kernel_tuner.restriction(space)],
            strategy=strategy,
            strategy_options={"max_fevals": budget},
            cache=str(tmp_path / "cache.json"),
            simulation_mode=True,
            lang="C",
        )
    assert first == _kernel_tuner.in_order(space, results)
    assert len(first) == len(set(first)) == budget
    assert first == _kernel_tuner.run(space, strategy, seed=3, budget=budget)
    assert first != _kernel_tuner.run(space, strategy, seed=4, budget=budget)


def test_recorded_runs_are_of_this_space_and_version(
    kernel_tuner: Any, spaces: dict[str, Space], tmp_path: Path
) -> None:
    import _kernel_tuner

    space = spaces[SMALL]
    run = _kernel_tuner.run_of(space, "pso", 0, 200)
    line = json.dumps({**run._asdict(), "indices": [4, 2]})
    (tmp_path / "runs.jsonl").write_text(f"{line}\n{line[:40]}")
    found = _kernel_tuner.recorded(tmp_path / "runs.jsonl")
    assert found == {run: [4, 2]}
    changed = dataclasses.replace(space, runtime_ms=space.runtime_ms * 2)
    assert _kernel_tuner.run_of(changed, "pso", 0, 200) not in found
    assert run._replace(version="0") not in found
    assert _kernel_tuner.recorded(tmp_path / "none.jsonl") == {}
