"""The shared data becomes rows: joins by key, ids by canonical source, every file."""

from __future__ import annotations

import importlib
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcast import dataset
from kernelcast.canonical import kernel_id
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind
from tests.hooks import DATA

pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")
pq = importlib.import_module("pyarrow.parquet")

import shared_rows  # noqa: E402 - benches are scripts: pytest has their folder on its path
from shared_rows import import_shared  # noqa: E402

A4000 = "NVIDIA RTX A4000"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder",
)

SHARED: dict[str, Any] = {
    "source": "hub",
    "problem": "hub/gemm",
    "backend": "cuda",
    "gpu": "NVIDIA A100",
    "reference_code": None,
    "candidate_code": None,
    "params": None,
    "reference_ms": 4.0,
    "candidate_ms": 2.0,
    "speedup": 2.0,
    "status": "ok",
    "n_samples": 3,
    "std_ms": 0.1,
    "licence": "MIT",
    "source_url_path": "u",
    "status_detail": None,
    "model": None,
    "search_id": "s",
    "step": None,
    "parent_sha": None,
    "candidate_sha": "c",
    "reference_sha": "r",
}
SHARED_TYPES = [
    (
        name,
        pa.float64()
        if name.endswith("_ms") or name == "speedup"
        else pa.int64()
        if name in ("n_samples", "step")
        else pa.string(),
    )
    for name in SHARED
]


def shared_file(path: Path, *changes: dict[str, Any]) -> Path:
    rows = [SHARED | change for change in changes]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(SHARED_TYPES)), path)
    return path


def tuner_folder(folder: Path, costs: list[dict[str, Any]]) -> Path:
    detail = 'reference_params={"b":1,"a":1}'
    shared_file(
        folder / "tuner_benchmark_hub.parquet",
        *(
            {"params": json.dumps({"a": a, "b": b}), "candidate_ms": a + b, "status_detail": detail}
            for a, b in ((1, 1), (1, 2), (2, 1))
        ),
        {
            "params": '{"a":2,"b":2}',
            "status": "runtime_error",
            "candidate_ms": None,
            "speedup": None,
            "status_detail": detail,
        },
        {"params": '{"a":1,"b":1}', "gpu": "AMD Instinct MI50", "status_detail": detail},
    )
    shared_file(
        folder / "tuner_kernels.parquet",
        {"reference_code": "int gemm;", "gpu": "(none)", "status": "reference"}
        | dict.fromkeys(("reference_ms", "candidate_ms", "speedup", "n_samples", "std_ms")),
    )
    pq.write_table(pa.Table.from_pylist(costs), folder / "tuner_costs.parquet")
    return folder


COSTS = [
    {
        "problem": "hub/gemm",
        "gpu": "NVIDIA A100",
        "params": f'{{"b":{b},"a":{a}}}',
        "compile_ms": 1000.0 * a + b,
        "benchmark_ms": 10.0 * a + b,
    }
    for a in (1, 2)
    for b in (1, 2)
]


def test_tuned_kernels_get_template_and_costs_by_key(tmp_path: Path) -> None:
    for order in range(3):
        shuffled = random.Random(order).sample(COSTS, len(COSTS))
        folder = tuner_folder(tmp_path, shuffled)
        rows = list(dataset.to_rows(import_shared(folder / "tuner_benchmark_hub.parquet")))
        assert [each.candidate_parameters for each in rows[:4]] == [
            '{"a":1,"b":1}',
            '{"a":1,"b":2}',
            '{"a":2,"b":1}',
            '{"a":2,"b":2}',
        ]
        assert [each.compile_s for each in rows] == pytest.approx(
            [1.001, 1.002, 2.001, 2.002, None]
        )
        assert [each.benchmark_s for each in rows] == pytest.approx(
            [0.011, 0.012, 0.021, 0.022, None]
        )
    assert {each.template for each in rows} == {"int gemm;"}
    assert rows[0].runtime_s == pytest.approx(0.002)
    assert rows[1].log2_speedup == pytest.approx(math.log2(4.0 / 3.0))
    assert (rows[3].status, rows[3].runtime_s, rows[3].log2_speedup) == ("crash", None, None)
    assert rows[0].candidate_id == rows[4].candidate_id == rows[0].reference_id
    assert len({each.candidate_id for each in rows}) == 4
    assert len({each.search_id for each in rows}) == 2, "a search is of one device"
    everything = import_shared(tmp_path)
    assert Counter(everything["status"].to_pylist())["reference"] == 1
    dataset.check_rows(everything)


@pytest.mark.parametrize(
    ("costs", "complaint"),
    [
        ([*COSTS, COSTS[0]], "is there twice in tuner_costs"),
        (COSTS[1:], "it lacks 1 keys"),
        ([*COSTS, COSTS[0] | {"params": '{"a":9,"b":9}'}], "1 of its keys are in no row"),
    ],
)
def test_a_join_that_misses_or_repeats_is_refused(
    tmp_path: Path, costs: list[dict[str, Any]], complaint: str
) -> None:
    folder = tuner_folder(tmp_path, costs)
    with pytest.raises(SetupError, match=complaint):
        import_shared(folder)


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path: Path) -> None:
    folder = tuner_folder(tmp_path, COSTS)
    with pytest.raises(SetupError, match=r"import tuner_benchmark_hub.parquet"):
        import_shared(folder / "tuner_costs.parquet")
    (folder / "tuner_costs.parquet").unlink()
    with pytest.raises(SetupError, match=r"needs tuner_costs.parquet beside it"):
        import_shared(folder)
    pq.write_table(pa.table({"x": [1]}), folder / "odd.parquet")
    with pytest.raises(SetupError, match="lacks the columns"):
        import_shared(folder / "odd.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError, match="holds no Parquet files"):
        import_shared(tmp_path / "empty")


def test_published_kernels_are_named_by_their_canonical_source(tmp_path: Path) -> None:
    module = "import torch\nx = 1\n"
    path = shared_file(
        tmp_path / "llm_any.parquet",
        {"candidate_code": module, "candidate_sha": "c1", "search_id": "campaign", "params": "{}"},
        {
            "candidate_code": "import torch\nx = 1  # faster\n",
            "candidate_sha": "c2",
            "parent_sha": "c1",
            "problem": "kb0/level1/1",
            "search_id": "campaign",
        },
        {"candidate_code": None, "candidate_sha": "c1", "search_id": "one"},
        {"candidate_code": None, "candidate_sha": "c9", "search_id": "one", "parent_sha": "c7"},
        {"candidate_code": "int x;", "candidate_sha": "c3", "search_id": None},
        {"status_detail": "timeout", "status": "runtime_error", "candidate_ms": None},
        {"status_detail": "reward_hack"},
    )
    rows = list(dataset.to_rows(import_shared(path)))
    dataset.check_rows(dataset.to_table(rows))
    name = kernel_id(module, "python")
    assert [each.candidate_id for each in rows[:4]] == [name, name, name, "sha:c9"]
    assert [each.parent_id for each in rows[:4]] == [None, name, None, "sha:c7"]
    assert [each.language for each in rows[:5]] == ["python", "python", "cuda", "cuda", "cuda"]
    assert [each.search_id for each in rows[:5]] == [
        "campaign@hub/gemm",
        "campaign@kb0/level1/1",
        "one",
        "one",
        None,
    ]
    assert rows[5].status == FailureKind.TIMEOUT
    assert (rows[6].status, rows[6].runtime_s) == (FailureKind.CHEATING, None)


@needs_data
def test_a_real_space_is_imported_with_every_cost_at_its_configuration(tmp_path: Path) -> None:
    space = "hub/convolution_milo(4096x4096,15x15)"
    names = ("tuner_benchmark_hub", "tuner_costs", "tuner_kernels")
    raw, costs, _ = (
        pq.read_table(DATA / f"{name}.parquet", filters=[("problem", "=", space)]) for name in names
    )
    pq.write_table(raw, tmp_path / "tuner_benchmark_hub.parquet")
    pq.write_table(costs, tmp_path / "tuner_costs.parquet")
    (tmp_path / "tuner_kernels.parquet").write_bytes((DATA / "tuner_kernels.parquet").read_bytes())
    table = import_shared(tmp_path / "tuner_benchmark_hub.parquet")
    dataset.check_rows(table)
    assert table.num_rows == costs.num_rows == 21_810
    published = raw["speedup"].to_numpy()
    ours = np.exp2(table["log2_speedup"].to_numpy())
    assert np.array_equal(np.isnan(published), np.isnan(ours))
    assert np.nanmax(np.abs(ours / published - 1.0)) < 1e-4
    key = ("device", "candidate_parameters", "compile_s")
    found = {
        (device, parameters): seconds
        for device, parameters, seconds in zip(*(table[n].to_pylist() for n in key), strict=True)
    }
    key = ("gpu", "params", "compile_ms")
    for device, parameters, ms in zip(*(costs[n].to_pylist() for n in key), strict=True):
        assert math.isclose(found[device, parameters], ms / 1000.0)
    split = dataset.split_by(table, "device", held_out=["A100"])[0]
    assert split.test.num_rows == 4_362


@needs_data
@pytest.mark.slow
def test_a_sample_of_the_whole_shared_folder_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of every file, by the command; all 372,000 of them take minutes."""
    expected = Counter[str]()
    for file in DATA.glob("*.parquet"):
        table = sampled(file)
        pq.write_table(table, tmp_path / file.name)
        if "status" in table.column_names:
            expected.update(table["status"].to_pylist())
    rows = tmp_path / "imported" / "rows.parquet"
    rows.parent.mkdir()
    monkeypatch.setattr("sys.argv", ["shared_rows.py", str(tmp_path), "--out", str(rows)])
    shared_rows.main()
    table = dataset.read_rows(rows)
    dataset.check_rows(table)
    found = Counter(table["status"].to_pylist())
    assert table.num_rows == expected.total() > 2500
    # Two kernels that their source calls reward hacks are published as ok.
    assert found["ok"] + found["cheating"] == expected["ok"]
    assert found["cheating"] == 2
    for by in dataset.SPLITS:
        dataset.split_by(table, by, folds=3)


def sampled(file: Path) -> Any:
    """Some fifteen rows of a file and all its reward hacks; of tuners two small spaces, whole."""
    if file.stem.startswith("tuner_") and file.stem != "tuner_kernels":
        small = [("problem", "=", "hub/convolution_milo_small(4096x4096)"), ("gpu", "=", A4000)]
        return pq.read_table(file, filters=[small, [("problem", "=", "ktt/coulomb3d")]])
    table = pq.read_table(file)
    chosen = set(range(0, table.num_rows, max(1, table.num_rows // 15)))
    if "status_detail" in table.column_names:
        details = table["status_detail"].to_pylist()
        chosen |= {n for n, detail in enumerate(details) if detail == "reward_hack"}
    return table.take(sorted(chosen))


@needs_data
@pytest.mark.slow
def test_one_problem_under_two_names_is_on_one_side_of_a_split(tmp_path: Path) -> None:
    """KernelBench's problems are called otherwise in another file."""
    files = [
        tmp_path / f"{name}.parquet" for name in ("ref_kernelbench_timings", "llm_kb_small_sets")
    ]
    for file in files:
        pq.write_table(pq.read_table(DATA / file.name)[::20], file)
    table = dataset.concatenate([import_shared(file) for file in files])
    assert table.num_rows == 665 + 60
    splits = dataset.split_by(table, "problem", folds=5)
    assert sum(split.test.num_rows for split in splits) == table.num_rows
    sizes = [split.test.num_rows for split in splits]
    assert max(sizes) < 1.1 * min(sizes)
    for split in splits:
        sides = (split.train["problem"].to_pylist(), split.test["problem"].to_pylist())
        train, test = ({name.split("/", 1)[1].split("_")[0] for name in side} for side in sides)
        assert not {name for name in train & test if name.split("/")[-1].isdigit()}


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "kernels"),
    [
        ("noise_repeats_a4000", 46_400, 59),
        ("ref_kernelbenchx_6gpu", 14_162, None),
        ("tuner_kernels", 13, 9),
    ],
)
def test_other_shared_files_are_imported(name: str, rows: int, kernels: int | None) -> None:
    table = import_shared(DATA / f"{name}.parquet")
    dataset.check_rows(table)
    assert table.num_rows == rows
    if kernels:
        assert len(set(table["candidate_id"].to_pylist())) == kernels
