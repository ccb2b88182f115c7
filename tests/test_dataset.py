"""Rows keep what they are given, importers read what others wrote, splits do not leak.

python -m tests.test_dataset      writes the schema's table in docs/reference/rows.md anew
"""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import dataset, read_times
from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.canonical import canonical_parameters
from kernelcast.dataset import Row, Rows
from kernelcast.dataset.rows import STATUSES
from kernelcast.dataset.tuning import cache_rows
from kernelcast.errors import MissingExtra, SetupError
from kernelcast.events import Measured
from kernelcast.store import Store
from kernelcast.testing import example_history
from kernelcast.types import FailureKind
from tests.hooks import DATA

pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")
pq = importlib.import_module("pyarrow.parquet")

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "rows.md"
MARKS = ("<!-- schema: generated -->\n\n", "\n<!-- end of schema -->\n")
A4000 = "NVIDIA RTX A4000"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder",
)


def row(number: int = 0, **changes: Any) -> Row:
    stated: dict[str, Any] = {
        "row_id": f"r{number}",
        "problem": "p",
        "family": "f",
        "language": "cuda",
        "backend": "cuda",
        "device": "d",
        "candidate_id": f"k{number}",
        "runtime_s": 0.5,
        "reference_runtime_s": 1.0,
        "log2_speedup": 1.0,
        "status": "ok",
        "source": "s",
        "licence": "MIT",
    }
    return Row(**(stated | changes))


def failed(number: int, kind: FailureKind) -> Row:
    return row(number, status=kind, runtime_s=None, log2_speedup=None)


# ------------------------------------------------------------------------------------- schema


def schema_table() -> str:
    lines = ["| column | type | null | meaning |", "|---|---|---|---|"]
    for field in dataset.schema():
        kind = (
            "text"
            if "string" in str(field.type)
            else {"double": "float64"}.get(str(field.type), str(field.type))
        )
        meaning = Row.model_fields[field.name].description
        lines.append(
            f"| `{field.name}` | {kind} | {'yes' if field.nullable else 'no'} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


def page_with(table: str) -> str:
    before, rest = REFERENCE.read_text().split(MARKS[0])
    return before + MARKS[0] + table + MARKS[1] + rest.split(MARKS[1])[1]


def test_the_page_on_rows_is_what_the_schema_says() -> None:
    assert REFERENCE.read_text() == page_with(schema_table()), "run: python -m tests.test_dataset"


def test_the_schema_is_the_record() -> None:
    assert dataset.schema().names == list(Row.model_fields)
    required = {field.name for field in dataset.schema() if not field.nullable}
    assert required == {name for name, field in Row.model_fields.items() if field.is_required()}


TEXT = st.text(max_size=20)
MAYBE_TEXT = st.none() | TEXT
SECONDS = st.floats(min_value=1e-9, max_value=1e3)


@st.composite
def some_rows(draw: st.DrawFn) -> list[Row]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        status = draw(st.sampled_from(STATUSES))
        timed = status in ("ok", "reference")
        values: dict[str, Any] = {"row_id": f"{number}-{draw(TEXT)}", "status": status}
        for name, field in Row.model_fields.items():
            kinds = get_args(field.annotation) or (field.annotation,)
            if name in values:
                continue
            if name in ("runtime_s", "log2_speedup") and not timed:
                values[name] = None
            elif str in kinds:
                values[name] = draw(MAYBE_TEXT if type(None) in kinds else TEXT)
            elif int in kinds:
                values[name] = draw(st.none() | st.integers(0, 2**40))
            else:
                values[name] = draw(st.none() | SECONDS)
        found.append(Row(**values))
    return found


@settings(max_examples=25, deadline=None)
@given(some_rows())
def test_rows_come_back_from_a_file_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "deep" / "rows.parquet"
    dataset.write_rows(path, rows)
    table = dataset.read_rows(path)
    assert list(dataset.to_rows(table)) == rows
    assert table.schema == dataset.schema()
    some = dataset.read_rows(path, columns=["problem", "status"], filters=[("status", "=", "ok")])
    assert some.column_names == ["problem", "status"]
    assert some["problem"].to_pylist() == [each.problem for each in rows if each.status == "ok"]
    assert [each.name for each in path.parent.iterdir()] == ["rows.parquet"]


def broken(change: Callable[[Rows], Rows]) -> Rows:
    return change(dataset.to_table([row(0), failed(1, FailureKind.TIMEOUT)]))


def with_column(table: Rows, name: str, values: list[Any]) -> Rows:
    place = table.column_names.index(name)
    field = table.schema.field(name)
    array = pa.array(values, pa.string() if "string" in str(field.type) else field.type)
    return table.set_column(place, field, array.cast(field.type))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: with_column(t, "row_id", ["same", "same"]), "1 row ids are there twice"),
        (lambda t: with_column(t, "runtime_s", [0.5, 0.5]), "a failed kernel has a runtime_s"),
        (lambda t: with_column(t, "log2_speedup", [1.0, 0.0]), "a failed kernel has a log2"),
        (lambda t: with_column(t, "runtime_s", [-1.0, None]), "must be positive and finite"),
        (lambda t: with_column(t, "runtime_s", [math.inf, None]), "must be positive and finite"),
        (lambda t: with_column(t, "log2_speedup", [math.nan, None]), "must be finite"),
        (lambda t: with_column(t, "status", ["ok", "exploded"]), "unknown status"),
        (lambda t: with_column(t, "device", [None, "d"]), "column 'device' has nulls"),
        (lambda t: t.drop_columns(["licence"]), "these are not rows"),
    ],
)
def test_a_table_that_breaks_its_promise_is_not_written(
    tmp_path: Path, change: Callable[[Rows], Rows], complaint: str
) -> None:
    with pytest.raises(SetupError, match=complaint):
        dataset.write_rows(tmp_path / "rows.parquet", broken(change))
    assert not list(tmp_path.iterdir())


def test_files_that_hold_no_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(SetupError, match="cannot be read as Parquet"):
        dataset.read_rows(tmp_path / "text.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SetupError, match="kernelcast data import"):
        dataset.read_rows(tmp_path / "other.parquet")


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'kernelcast\[data\]'"):
        dataset.schema()


def test_a_template_shared_by_many_rows_is_stored_once(tmp_path: Path) -> None:
    text = "".join(random.Random(0).choices("abcdef", k=200_000))
    rows = [row(number, template=text) for number in range(1_000)]
    dataset.write_rows(tmp_path / "rows.parquet", rows)
    assert (tmp_path / "rows.parquet").stat().st_size < 400_000
    assert dataset.read_rows(tmp_path / "rows.parquet").nbytes < 2_000_000


def test_a_part_of_a_table_is_written_and_described_without_the_rest(tmp_path: Path) -> None:
    rows = [
        row(number, problem=f"p{number}", candidate_source=f"text {number}") for number in (1, 2)
    ]
    part = dataset.to_table(rows).slice(1)
    assert dataset.describe(part)["problems"] == 1
    dataset.write_rows(tmp_path / "part.parquet", part)
    found = dataset.read_rows(tmp_path / "part.parquet")
    assert found["candidate_source"].combine_chunks().dictionary.to_pylist() == ["text 2"]
    split = dataset.split_by(dataset.to_table(rows), "problem", held_out=["p1"])[0]
    assert split.train["candidate_source"].combine_chunks().dictionary.to_pylist() == ["text 2"]
    with pytest.raises(SetupError, match="only 1 groups"):
        dataset.split_by(part, "problem", folds=2)


def test_row_groups_with_dictionaries_of_their_own_are_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset.rows, "_ROW_GROUP", 2)
    rows = [row(number, problem=f"p{number // 2}", device=f"d{number}") for number in range(7)]
    dataset.write_rows(tmp_path / "rows.parquet", rows)
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 4
    table = dataset.read_rows(tmp_path / "rows.parquet")
    assert list(dataset.to_rows(table)) == rows
    assert dataset.describe(table)["problems"] == 4
    assert len(dataset.split_by(table, "device", folds=7)) == 7


def test_labels_are_made_from_the_speedup() -> None:
    speedups = [0.2, 0.98, 1.2, 9.0]
    rows = [row(i, log2_speedup=math.log2(each)) for i, each in enumerate(speedups)]
    table = dataset.to_table([*rows, failed(9, FailureKind.CRASH)])
    for bins in (DEFAULT_BINS, PAPER_BINS):
        expected = [*(bins.index(each) for each in speedups), -1]
        assert dataset.labels(table, bins).tolist() == expected


# --------------------------------------------------------------------------------------- keys


@given(st.dictionaries(TEXT, st.integers(-(2**40), 2**40) | TEXT, max_size=6), st.randoms())
def test_parameters_have_one_text_whatever_their_order(
    parameters: dict[str, Any], shuffler: random.Random
) -> None:
    items = list(parameters.items())
    shuffler.shuffle(items)
    as_floats = {
        name: float(value) if isinstance(value, int) and shuffler.random() < 0.5 else value
        for name, value in items
    }
    text = canonical_parameters(parameters)
    assert canonical_parameters(as_floats) == text
    assert json.loads(text) == parameters


@pytest.mark.parametrize(
    ("names", "group", "family"),
    [
        (
            ["kb0/level1/23", "kb0.1/level1/23_Softmax", "kbA800/level1/level1_23"],
            "kernelbench/level1/23",
            "kernelbench/level1",
        ),
        (
            [
                "hub/convolution",
                "hub/convolution_milo(4096x4096,15x15)",
                "hub/convolution_milo_small(4096x4096)",
                "hub/KTT_convolution",
                "fjw/convolution(4096)",
                "convolution_kernel|convolution/variable_clock_size-4096/observers",
            ],
            "tuned/convolution",
            "tuned/convolution",
        ),
        (["hub/gemm", "fjw/gemm_milo_random(4096x4096)", "Xgemm|gemm_opencl"], "tuned/gemm", None),
        (["fjw/hotspot_milo_random(4096x4096):A4000"], "tuned/hotspot", "tuned/hotspot"),
        (["tuned/vector_add(1000)"], "tuned/vector_add", "tuned/vector_add"),
        (["kbx/Adam#0", "kbx/Adam#12"], "kbx/Adam", "kbx"),
        (["sol/L1__071_kv_cache_update"], "sol/L1__071_kv_cache_update", "sol/L1"),
        (["hgemm/F32F16F16F32/64_64_64", "hgemm/F16F16F16F16/1_2_3"], "hgemm", "hgemm"),
        (["softmax"], "softmax", "softmax"),
    ],
)
def test_one_operation_is_one_group_under_all_its_names(
    names: list[str], group: str, family: str | None
) -> None:
    assert {dataset.problem_group(name) for name in names} == {group}
    assert dataset.problem_group(group) == group
    assert {dataset.problem_family(name) for name in names} == {family or group}


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["NVIDIA A100", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-80GB", "A100"], "A100"),
        (["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 SXM"], "H100"),
        (["NVIDIA L40S"], "L40S"),
        (["NVIDIA L40"], "L40"),
        (["NVIDIA GeForce RTX 2080 Ti"], "RTX 2080 Ti"),
        (["AMD Instinct MI250X"], "MI250X"),
        (["Some CPU @ 2.00GHz x2"], "Some CPU @ 2.00GHz"),
    ],
)
def test_one_model_is_one_group_whatever_its_board(names: list[str], group: str) -> None:
    assert {dataset.device_group(name) for name in names} == {group}


# -------------------------------------------------------------------------------- auto-tuners


def cache_entry(x: int, time: Any, **more: Any) -> dict[str, Any]:
    return {"block": x, "time": time, "compile_time": 900.0, "benchmark_time": 100.0} | more


def tuner_cache(path: Path, entries: list[dict[str, Any]], tail: str = "}}") -> Path:
    head = {
        "device_name": "NVIDIA RTX A4000",
        "kernel_name": "vector_add",
        "problem_size": [4096, 32],
        "tune_params_keys": ["block"],
        "tune_params": {"block": [1, 2]},
        "objective": "time",
    }
    lines = [f'"{number}": {json.dumps(entry)}' for number, entry in enumerate(entries)]
    text = json.dumps(head)[:-1] + ', "cache": {' + ",\n".join(lines)
    path.write_text(text + tail)
    return path


ENTRIES = [
    cache_entry(1, 4.0, times=[3.0, 4.0, 5.0]),
    cache_entry(2, 2.0),
    cache_entry(3, 1.0),
    cache_entry(4, "CompilationFailedConfig"),
    cache_entry(5, "RuntimeFailedConfig"),
    cache_entry(6, "InvalidConfig"),
    cache_entry(7, 1e20),
]


@pytest.mark.parametrize("tail", ["}}", "", ",\n"], ids=["closed", "open", "open with comma"])
def test_a_kernel_tuner_cache_is_imported_finished_or_not(tmp_path: Path, tail: str) -> None:
    path = tuner_cache(tmp_path / "cache.json", ENTRIES, tail)
    table = dataset.import_kernel_tuner_cache(path, template="int x;", licence="MIT")
    dataset.check_rows(table)
    rows = list(dataset.to_rows(table))
    assert [each.runtime_s for each in rows[:3]] == pytest.approx([0.004, 0.002, 0.001])
    assert [each.log2_speedup for each in rows] == [-1.0, 0.0, 1.0, None, None, None, None]
    assert [each.status for each in rows[3:]] == [
        "compile_error",
        "crash",
        "compile_error",
        "crash",
    ]
    assert {each.reference_parameters for each in rows} == {'{"block":2}'}
    assert rows[1].candidate_id == rows[0].reference_id
    assert [rows[0].samples, rows[0].runtime_std_s] == pytest.approx([3, 0.001])
    assert [rows[0].compile_s, rows[0].benchmark_s] == pytest.approx([0.9, 0.1])
    assert (rows[0].problem, rows[0].device) == ("tuned/vector_add(4096x32)", "NVIDIA RTX A4000")
    assert rows[0].template == "int x;"


def test_the_order_of_a_cache_changes_nothing_but_the_order(tmp_path: Path) -> None:
    tables = [
        dataset.import_kernel_tuner_cache(tuner_cache(tmp_path / "cache.json", entries))
        for entries in (ENTRIES, ENTRIES[::-1])
    ]
    forwards, backwards = ({each.row_id: each for each in dataset.to_rows(t)} for t in tables)
    assert forwards == backwards


def test_a_broken_cache_is_refused(tmp_path: Path) -> None:
    twice = tuner_cache(tmp_path / "twice.json", [cache_entry(1, 1.0), cache_entry(1, 2.0)])
    with pytest.raises(SetupError, match="holds a configuration twice"):
        dataset.import_kernel_tuner_cache(twice)
    lacking = tuner_cache(tmp_path / "lacking.json", [{"block": 1}])
    with pytest.raises(SetupError, match="is not a Kernel Tuner cache: it lacks 'time'"):
        dataset.import_kernel_tuner_cache(lacking)
    ambiguous = published_cache(tmp_path / "ambiguous.json", {"16,row,major,1": {"time": 1.0}})
    with pytest.raises(SetupError, match="lacks 'MWG', and its key holds 4 values for 3"):
        dataset.import_kernel_tuner_cache(ambiguous)
    (tmp_path / "text.json").write_text("no")
    with pytest.raises(SetupError, match="cannot be read as JSON"):
        dataset.import_kernel_tuner_cache(tmp_path / "text.json")
    with pytest.raises(SetupError, match="no language 'fortran'"):
        dataset.import_kernel_tuner_cache(
            tuner_cache(tmp_path / "c.json", ENTRIES), language="fortran"
        )


def published_cache(path: Path, entries: dict[str, Any], **head: Any) -> Path:
    """A cache as Kernel Tuner's authors publish them: the parameters are in the keys alone."""
    content = {
        "device_name": "NVIDIA RTX A4000",
        "kernel_name": "gemm",
        "problem_size": "4096",
        "tune_params_keys": ["MWG", "layout", "pad"],
        **head,
        "cache": entries,
    }
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


PUBLISHED = {
    "16,row,True": {"time": 4.0, "compile_time": 900.0},
    "32,row,False": {"time": "2.0"},
    "32,column,0.5": {"time": "InvalidConfig"},
    "64,column,1e-3": {"time": 1.0, "times": [0.9, 1.1]},
}


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"tune_params": {"MWG": [16, 32, 64], "layout": ["row", "column"], "pad": [True, 0.5]}},
        {"tune_params_keys": None, "tune_params": {"MWG": [], "layout": [], "pad": []}},
    ],
    ids=["names", "names and values", "values"],
)
def test_parameters_are_read_from_the_keys_of_a_published_cache(
    tmp_path: Path, head: dict[str, Any]
) -> None:
    table = dataset.import_kernel_tuner_cache(
        published_cache(tmp_path / "cache.json", PUBLISHED, **head)
    )
    dataset.check_rows(table)
    rows = list(dataset.to_rows(table))
    assert [json.loads(row.candidate_parameters or "") for row in rows] == [
        {"MWG": 16, "layout": "row", "pad": True},
        {"MWG": 32, "layout": "row", "pad": False},
        {"MWG": 32, "layout": "column", "pad": 0.5},
        {"MWG": 64, "layout": "column", "pad": 0.001},
    ]
    assert [row.status for row in rows] == ["ok", "ok", "compile_error", "ok"]
    assert [row.runtime_s for row in rows] == pytest.approx([0.004, 0.002, None, 0.001])


@given(
    st.lists(
        st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
        min_size=1,
        max_size=8,
        unique_by=lambda values: tuple(map(str, values)),
    ),
    st.booleans(),
)
def test_keys_state_what_was_joined_into_them(
    configurations: list[tuple[int, float, bool]], with_values: bool
) -> None:
    names = ("a", "b", "c")
    cache: dict[str, Any] = {
        "tune_params_keys": names,
        "cache": {",".join(map(str, values)): {"time": 1.0} for values in configurations},
    }
    if with_values:
        cache["tune_params"] = dict(zip(names, zip(*configurations, strict=True), strict=True))
    common = {"source_url": "file", "problem": "tuned/p", "language": "cuda", "device": "d"}
    wanted = [canonical_parameters(dict(zip(names, c, strict=True))) for c in configurations]
    if len(set(wanted)) == len(wanted):
        assert [row["candidate_parameters"] for row in cache_rows(cache, common)] == wanted


def test_times_of_other_devices_are_read_from_caches_and_rows(tmp_path: Path) -> None:
    slow = tuner_cache(tmp_path / "slow.json", ENTRIES)
    fast = tuner_cache(tmp_path / "fast.json", [cache_entry(1, 1.0)])
    rows = tmp_path / "rows.parquet"
    table = dataset.import_kernel_tuner_cache(slow, device="H100", licence="MIT")
    dataset.write_rows(rows, table)
    known = read_times([slow, str(fast), rows], ["block"], kernel="vector_add")
    assert list(known) == ["H100", "NVIDIA RTX A4000", "NVIDIA RTX A4000 (fast)"]
    assert known["H100"] == pytest.approx(known["NVIDIA RTX A4000"])
    assert known["NVIDIA RTX A4000 (fast)"] == {'{"block":1}': pytest.approx(0.001)}
    assert list(known["H100"].values())[-1] is None
    assert read_times([rows], ["block"]).keys() == {"H100"}
    assert read_times([rows], ["block"], kernel="gemm") == read_times([rows], ["tile"]) == {}
    with pytest.raises(SetupError, match=r"slow\.json tunes block, not tile"):
        read_times([slow], ["tile"])


def t4_result(
    x: int, value: float, invalidity: str = "correct", unit: str = "", correctness: int = 1
) -> dict[str, Any]:
    return {
        "configuration": {"block": x},
        "times": {"compilation_time": 600.0, "benchmark": 50.0, "runtimes": [1.0, 3.0]},
        "invalidity": invalidity,
        "correctness": correctness,
        "measurements": [{"name": "time", "value": value, "unit": unit}],
        "objectives": ["time"],
    }


def test_t4_results_are_imported_with_their_kinds_and_units(tmp_path: Path) -> None:
    kinds = ["timeout", "compile", "constraints", "runtime", "correctness"]
    results = [
        t4_result(1, 2.0),
        t4_result(2, 4000.0, unit="us"),
        t4_result(3, 0.001, unit="seconds"),
        *(t4_result(10 + number, 9.0, kind) for number, kind in enumerate(kinds)),
        t4_result(20, 9.0, correctness=0),
    ]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    table = dataset.import_t4(path, problem="hub/gemm", device="NVIDIA A100")
    dataset.check_rows(table)
    rows = list(dataset.to_rows(table))
    assert [each.runtime_s for each in rows[:3]] == pytest.approx([0.002, 0.004, 0.001])
    assert [each.log2_speedup for each in rows[:3]] == pytest.approx([0.0, -1.0, 1.0])
    assert [each.status for each in rows[3:]] == [
        "timeout",
        "compile_error",
        "compile_error",
        "crash",
        "wrong_result",
        "wrong_result",
    ]
    assert rows[0].samples == 2
    assert rows[0].runtime_std_s == pytest.approx(math.sqrt(2.0) / 1000.0)
    assert rows[0].compile_s == pytest.approx(0.6)
    with pytest.raises(SetupError, match="--problem, --device"):
        dataset.import_t4(path, problem="hub/gemm")
    for bad, complaint in (
        ({"results": [t4_result(1, 2.0, unit="fortnights")]}, "times are in 'fortnights'"),
        ({"results": [t4_result(1, 2.0) | {"measurements": []}]}, "no measurement named 'time'"),
        ({"other": []}, "is not a T4 results file"),
    ):
        path.write_text(json.dumps(bad))
        with pytest.raises(SetupError, match=complaint):
            dataset.import_t4(path, problem="p", device="d")


# -------------------------------------------------------------------------------- KernelBench

HARDWARE = {"hardware": "NVIDIA L40S"}


def evaluation(sample: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "sample_id": sample,
        "compiled": True,
        "correctness": True,
        "metadata": HARDWARE,
        "runtime": 2.0,
        "runtime_stats": {"mean": 2.0, "std": 0.5, "num_trials": 100} | HARDWARE,
    } | changes


def kernelbench_run(folder: Path, results: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "eval_results.json").write_text(json.dumps(results))
    for number in (1, 2, 3, 4, 5, 6):
        for sample in (0, 1):
            (folder / f"level_1_problem_{number}_sample_{sample}_kernel.py").write_text(
                f"import torch\nSOURCE = '__global__ void k{number}{sample}'\n"
            )
    return folder


def wrong(**metadata: str) -> dict[str, Any]:
    return {"correctness": False, "runtime": -1.0, "metadata": HARDWARE | metadata}


def test_a_kernelbench_run_is_imported_by_problem_and_sample(tmp_path: Path) -> None:
    folder = kernelbench_run(
        tmp_path / "my_run",
        {
            "2": [evaluation(1, **wrong(runtime_error="CUDA error")), evaluation(0)],
            "1": [evaluation(0, ref_runtime=8.0)],
            "3": evaluation(0, compiled=False, **wrong(compilation_error="nvcc failed")),
            "4": [evaluation(0, **wrong(correctness_issue="Output mismatch"))],
            "5": [evaluation(0, compiled=False, **wrong(other_error="timed out after 5 minutes"))],
            "6": [evaluation(0, runtime=-1.0)],
        },
    )
    baseline = tmp_path / "baseline_time_torch.json"
    names = {f"{number}_Name.py": {"mean": 1.0, "std": 0.1} for number in range(1, 7)}
    baseline.write_text(json.dumps({"level1": names}))
    table = dataset.import_kernelbench(folder, baseline=baseline, licence="MIT")
    dataset.check_rows(table)
    rows = {each.row_id: each for each in dataset.to_rows(table)}
    right = rows["my_run/level1/2/0"]
    assert right.problem == "kb/level1/2_Name"
    assert [right.runtime_s, right.log2_speedup] == pytest.approx([0.002, -1.0])
    assert [right.samples, right.runtime_std_s] == pytest.approx([100, 0.0005])
    assert (right.device, right.backend, right.language) == ("NVIDIA L40S", "cuda", "python")
    assert right.candidate_source is not None
    assert "k20" in right.candidate_source
    assert rows["my_run/level1/1/0"].log2_speedup == pytest.approx(2.0), "its own reference time"
    statuses = {key.removeprefix("my_run/level1/"): each.status for key, each in rows.items()}
    assert statuses == {
        "2/1": "crash",
        "2/0": "ok",
        "1/0": "ok",
        "3/0": "compile_error",
        "4/0": "wrong_result",
        "5/0": "timeout",
        "6/0": "ok",
    }
    assert rows["my_run/level1/6/0"].runtime_s is None, "right, but not timed"
    assert len(dataset.import_kernelbench(folder / "eval_results.json")) == len(rows)


def test_kernelbench_results_without_kernel_time_or_device_are_refused(tmp_path: Path) -> None:
    folder = kernelbench_run(tmp_path / "run", {"9": [evaluation()]})
    with pytest.raises(SetupError, match=r"lacks the kernel files of 1 .* \(9, 0\)"):
        dataset.import_kernelbench(folder)
    kernelbench_run(folder, {"1": [evaluation(), evaluation()]})
    with pytest.raises(SetupError, match=r"two results of .* \(1, 0\)"):
        dataset.import_kernelbench(folder)
    kernelbench_run(folder, {"1": [evaluation(metadata={}, runtime_stats={})]})
    with pytest.raises(SetupError, match="--device"):
        dataset.import_kernelbench(folder)
    assert len(dataset.import_kernelbench(folder, device="L4")) == 1
    (tmp_path / "baseline.json").write_text('{"level1": {"2_Name.py": {"mean": 1.0}}}')
    with pytest.raises(SetupError, match="has no time of level 1, problem 1"):
        dataset.import_kernelbench(folder, device="L4", baseline=tmp_path / "baseline.json")
    (folder / "level_2_problem_1_sample_0_kernel.py").touch()
    with pytest.raises(SetupError, match="mixes levels"):
        dataset.import_kernelbench(folder, device="L4")


# ------------------------------------------------------------------------- the paper's files

TRITON = "import triton\n@triton.jit\ndef k(): return {}\n"


def pair(**changes: Any) -> dict[str, Any]:
    return {
        "source_search": "trimul__e1",
        "internal_experiment": "e1",
        "comparison_id": "cmp-1",
        "pack": "trimul",
        "anchor_code": TRITON.format(0),
        "candidate_code": TRITON.format(1),
        "hardware": "NVIDIA A100-SXM4-80GB",
        "aggregated_speedup": 1.2,
        "true_bin": 4,
        "source_id": "x",
    } | changes


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


EVAL_SET = [
    pair(),
    pair(candidate_code=TRITON.format(2), aggregated_speedup=0.5),
    pair(),
    pair(comparison_id="cmp-2", candidate_code=TRITON.format(3), aggregated_speedup=4.0),
]


def test_the_eval_set_gets_unique_keys_and_labels_of_our_own(tmp_path: Path) -> None:
    table = dataset.import_gpu_forecasters(parquet(tmp_path / "eval.parquet", EVAL_SET))
    dataset.check_rows(table)
    ids = table["row_id"].to_pylist()
    assert len(set(ids)) == 4
    assert all(key.startswith("eval-set/cmp-1#") for key in ids[:3])
    assert ids[2] == f"{ids[0]}.2", "an exact repeat is numbered"
    again = dataset.import_gpu_forecasters(parquet(tmp_path / "some.parquet", EVAL_SET[1:2]))
    assert again["row_id"].to_pylist() == [ids[1]], "a key does not depend on the other rows"
    expected = [PAPER_BINS.index(each["aggregated_speedup"]) for each in EVAL_SET]
    assert dataset.labels(table, PAPER_BINS).tolist() == expected
    published = EVAL_SET[0]["true_bin"] - 1
    assert expected[0] == published + 1, "the published bin of 1.2x is that of 0.71x to 1x"
    first = next(dataset.to_rows(table))
    assert (first.language, first.problem, first.parent_id) == ("triton", "trimul", None)
    assert first.log2_speedup == pytest.approx(math.log2(1.2))


def test_the_pool_and_the_discovery_pairs_are_imported(tmp_path: Path) -> None:
    pool = {k: v for k, v in pair().items() if k not in ("comparison_id", "true_bin")}
    pool |= {"row_id": "p1", "relative_bin": 0, "pair_type": "parent_edit"}
    table = dataset.import_gpu_forecasters(parquet(tmp_path / "pool.parquet", [pool]))
    found = next(dataset.to_rows(table))
    assert found.row_id.startswith("rl-training-pool/p1#")
    assert found.parent_id == found.reference_id
    discovery = {
        "source_search": "s",
        "internal_experiment": "e",
        "pair_id": "d1",
        "problem_id": "21_EfficientNet",
        "benchmark_family": "kernelbench_l3",
        "parent_code": TRITON.format(0),
        "child_code": TRITON.format(1),
        "g_speedup": 2.0,
        "true_bin": 0,
        "hardware": "H100",
        "parent_node_id": "a",
        "child_node_id": "b",
        "source_id": "x",
    }
    table = dataset.import_gpu_forecasters(parquet(tmp_path / "pairs.parquet", [discovery]))
    dataset.check_rows(table)
    found = next(dataset.to_rows(table))
    assert (found.log2_speedup, found.family) == (1.0, "kernelbench/level3")
    assert found.parent_id == found.reference_id
    assert dataset.problem_group(found.problem) == dataset.problem_group("kb0/level3/21")
    discovery |= {"problem_id": "resnet"}
    with pytest.raises(SetupError, match="cannot tell which KernelBench problem 'resnet' is"):
        dataset.import_gpu_forecasters(parquet(tmp_path / "pairs.parquet", [discovery]))


def event(index: int, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "event_index": index,
        "event_kind": kind,
        "payload": json.dumps(payload),
        "source_search": "trimul__e1",
        "internal_experiment": "e1",
    }


def outcome(kind: str, **more: Any) -> dict[str, Any]:
    return {"observation": {"feedback": {"kind": kind} | more}}


def asked(index: int, name: str, code: str) -> dict[str, Any]:
    request = {"request_id": name, "child_ulid": name, "parent_ulid": "root", "code": code}
    return event(index, "evaluation_requested", request)


def answered(index: int, name: str, evaluation: dict[str, Any]) -> dict[str, Any]:
    return event(index, "evaluation_completed", {"request_id": name, "evaluation": evaluation})


def test_search_events_are_joined_by_request(tmp_path: Path) -> None:
    cases = [
        {"speedup": 2.0, "runtime_ns": 1e6, "ref_runtime_ns": 2e6},
        {"speedup": 2.0, "runtime_ns": 4e6, "ref_runtime_ns": 8e6},
    ]
    success = outcome("success", aggregated_speedup=2.0, per_case_speedups=cases)
    start = outcome("success", aggregated_speedup=1.0, per_case_speedups=[])
    root = {"ulid": "root", "program_code": TRITON.format(0), "evaluation": start}
    events = [
        event(0, "search_initialized", {"root": root}),
        event(1, "step_started", {"step": 0}),
        asked(2, "a", TRITON.format(1)),
        asked(3, "b", TRITON.format(2)),
        asked(4, "c", TRITON.format(3)),
        answered(5, "b", outcome("incorrect", error_message="off by 1")),
        answered(6, "a", success),
        answered(7, "c", outcome("infrastructure_failure", reason="lost")),
    ]
    path = parquet(tmp_path / "e.parquet", events[::-1])
    with pytest.raises(SetupError, match="--device"):
        dataset.import_gpu_forecasters(path)
    table = dataset.import_gpu_forecasters(path, device="A100")
    dataset.check_rows(table)
    rows = list(dataset.to_rows(table))
    assert [each.status for each in rows] == ["ok", "wrong_result", "ok"]
    assert [each.step for each in rows] == [0, 1, 2]
    assert rows[1].status_detail == "off by 1"
    assert rows[2].candidate_source == TRITON.format(1)
    assert rows[2].parent_id == rows[0].candidate_id
    assert [rows[2].runtime_s, rows[2].log2_speedup] == pytest.approx([0.002, 1.0])
    twice = [events[2], events[2] | {"event_index": 9}]
    for bad, complaint in (
        (events[5:6], "was evaluated, never asked"),
        (twice, "request a is there twice"),
        ([event(0, "search_initialized", {})], "payload lacks 'root'"),
    ):
        with pytest.raises(SetupError, match=complaint):
            dataset.import_gpu_forecasters(parquet(tmp_path / "e.parquet", bad), device="A100")


def test_files_without_measured_kernels_are_refused(tmp_path: Path) -> None:
    forecasts = parquet(
        tmp_path / "p.parquet", [{"comparison_id": "x", "bin_probabilities": [0.5]}]
    )
    with pytest.raises(SetupError, match=r"not measured kernels: .* paper-predictions"):
        dataset.import_gpu_forecasters(forecasts)
    with pytest.raises(SetupError, match="is none of the released sets"):
        dataset.import_gpu_forecasters(parquet(tmp_path / "o.parquet", [{"n_steps": 1}]))


# ------------------------------------------------------------------------------------- export


def test_a_run_is_exported_with_everything_it_measured(tmp_path: Path) -> None:
    events, kernels = example_history()
    with Store.open(tmp_path / "store.db") as store:
        store.create_run("r").append(events, kernels)
        table = dataset.export_run(store.open_run("r"), licence="Apache-2.0")
    dataset.write_rows(tmp_path / "rows.parquet", table)
    rows = list(dataset.to_rows(dataset.read_rows(tmp_path / "rows.parquet")))
    measured = [each for each in events if isinstance(each, Measured)]
    del measured[-2]  # it was retracted, and the last one replaces it
    sources = {kernel.id: kernel for kernel in kernels}
    assert [each.candidate_id for each in rows] == [e.measurement.kernel_id for e in measured]
    assert [each.log2_speedup for each in rows] == [e.measurement.log2_speedup for e in measured]
    assert [each.status for each in rows] == ["reference", "ok", "ok", "ok"]
    for each in rows:
        kernel = sources[each.candidate_id]
        assert each.candidate_source == kernel.source
        if kernel.parameters is not None:
            assert each.candidate_parameters is not None
            assert json.loads(each.candidate_parameters) == kernel.parameters
    assert [each.parent_id for each in rows] == [None, *[kernels[0].id] * 3]
    assert {each.reference_id for each in rows} == {kernels[0].id}
    assert {each.licence for each in rows} == {"Apache-2.0"}
    assert [json.loads(each.details or "")["purpose"] for each in rows] == [
        "reference",
        "search",
        "search",
        "confirmation",
    ]
    assert rows[2].compile_s == 0.0
    assert all(each.samples and each.benchmark_s == 0.01 for each in rows)


# ------------------------------------------------------------------------------------- splits

NAMES = st.sampled_from(["kb0/level1/1", "kb0.1/level1/1_X", "kb0/level1/2", "a", "b(1)", "b(2)"])
DEVICES = st.sampled_from(["NVIDIA A100", "NVIDIA A100-PCIE-40GB", "H100", "MI50"])


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    count = draw(st.integers(1, 25))
    rows = []
    for number in range(count):
        problem, device = draw(NAMES), draw(DEVICES)
        rows.append(
            row(
                number,
                problem=problem,
                family=dataset.problem_family(problem),
                device=device,
                candidate_id=f"k{draw(st.integers(0, 40))}",
                search_id=draw(st.none() | st.just(f"s@{problem}@{device}")),
            )
        )
    return dataset.to_table(rows)


@settings(max_examples=80, deadline=None)
@given(tables(), st.sampled_from(dataset.SPLITS), st.integers(2, 3), st.integers(0, 3))
def test_folds_test_every_row_once_and_never_leak(
    table: Rows, by: str, folds: int, seed: int
) -> None:
    try:
        splits = dataset.split_by(table, by, folds=folds, seed=seed)
    except SetupError as error:
        if "groups that share nothing" not in str(error):
            raise
        return
    tested = [key for split in splits for key in split.test["row_id"].to_pylist()]
    assert sorted(tested) == sorted(table["row_id"].to_pylist())
    for split in splits:
        assert split.test.num_rows
        assert split.train.num_rows + split.test.num_rows == table.num_rows
        apart: dict[str, Callable[[str], str]] = {"device": dataset.device_group}
        if by != "device":
            apart = {"problem": dataset.problem_group, "candidate_id": str}
        for column, group in apart.items():
            train, test = (
                {group(each) for each in side[column].to_pylist()}
                for side in (split.train, split.test)
            )
            assert not train & test
    again = dataset.split_by(table, by, folds=folds, seed=seed)
    assert all(a.test.equals(b.test) for a, b in zip(splits, again, strict=True))


def test_a_fold_depends_on_the_seed() -> None:
    table = dataset.to_table([row(number, problem=f"p{number}") for number in range(40)])
    first, second = (dataset.split_by(table, "problem", folds=2, seed=seed)[0] for seed in (0, 1))
    assert not first.test.equals(second.test)


LEAKS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("problem", {"problem": "kb0/level1/1"}, {"problem": "kb0.1/level1/1_X"}, "1 problem groups"),
    ("problem", {"candidate_id": "k"}, {"candidate_id": "k", "problem": "q"}, "1 kernel groups"),
    ("problem", {"search_id": "s"}, {"search_id": "s", "problem": "q"}, "1 search groups"),
    ("family", {"family": "f"}, {"family": "f", "problem": "q"}, "1 family groups"),
    ("family", {"family": "f"}, {"family": "g"}, "1 problem groups"),
    ("device", {"device": "NVIDIA A100"}, {"device": "A100-PCIE-40GB"}, "1 device groups"),
    ("device", {"search_id": "s"}, {"search_id": "s", "device": "e"}, "1 search groups"),
]


@pytest.mark.parametrize(("by", "train", "test", "complaint"), LEAKS)
def test_what_is_on_both_sides_is_refused(
    by: str, train: dict[str, Any], test: dict[str, Any], complaint: str
) -> None:
    sides = (dataset.to_table([row(0, **train)]), dataset.to_table([row(1, **test)]))
    with pytest.raises(SetupError, match=complaint):
        dataset.check_leaks(*sides, by)


def test_one_kernel_on_two_devices_is_no_leak() -> None:
    sides = [dataset.to_table([row(0, device=name)]) for name in ("d", "e")]
    dataset.check_leaks(sides[0], sides[1], "device")


def test_named_groups_are_held_out_or_refused() -> None:
    table = dataset.to_table(
        [
            row(0, problem="kb0/level1/1", candidate_id="a"),
            row(1, problem="kb0.1/level1/1_X", candidate_id="b"),
            row(2, problem="q", candidate_id="c"),
            row(3, problem="r", candidate_id="c"),
            row(4, problem="t", candidate_id="e"),
        ]
    )
    split = dataset.split_by(table, "problem", held_out=["kb0/level1/1"])[0]
    assert split.test["row_id"].to_pylist() == ["r0", "r1"]
    with pytest.raises(SetupError, match="1 kernel groups are on both sides"):
        dataset.split_by(table, "problem", held_out=["q"])
    assert dataset.split_by(table, "problem", held_out=["q", "r"])[0].test.num_rows == 2
    with pytest.raises(SetupError, match="no problem 'zz' in these rows; there are"):
        dataset.split_by(table, "problem", held_out=["zz"])
    with pytest.raises(SetupError, match="only 3 groups that share nothing"):
        dataset.split_by(table, "problem", folds=4)
    with pytest.raises(SetupError, match="either into how many folds"):
        dataset.split_by(table, "problem")
    with pytest.raises(SetupError, match="not by 'luck'"):
        dataset.split_by(table, "luck", folds=2)


def test_a_table_is_described_by_its_counts() -> None:
    table = dataset.to_table(
        [
            row(0, search_id="s", licence="MIT"),
            row(1, search_id="s", licence="BSD", problem="kb0/level1/1"),
            row(2, search_id="t", licence="MIT", problem="kb0.1/level1/1_X"),
            failed(3, FailureKind.CHEATING),
        ]
    )
    facts = dataset.describe(table)
    assert (facts["rows"], facts["problems"], facts["searches"]) == (4, 2, 2)
    assert list(facts["by"]) == ["source", "family", "device", "status", "licence"]
    assert facts["by"]["status"] == {"ok": {"rows": 3, "ok": 3}, "cheating": {"rows": 1, "ok": 0}}
    assert facts["by"]["licence"] == {"MIT": {"rows": 3, "ok": 2}, "BSD": {"rows": 1, "ok": 1}}
    assert json.loads(json.dumps(facts)) == facts


if __name__ == "__main__":
    REFERENCE.write_text(page_with(schema_table()))
