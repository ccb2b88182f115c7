"""Rows as recordings; the backend and the proposer themselves are tested beside their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelcast import dataset, plugins
from kernelcast.backends.replay import Recorded, ReplayBackend, space_problem
from kernelcast.canonical import kernel_id
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.testing import make_request
from kernelcast.types import Failure, FailureKind, Kernel

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


def row(number: int, **values: Any) -> dataset.Row:
    usual: dict[str, Any] = {
        "row_id": str(number),
        "problem": "p",
        "family": "f",
        "language": "cuda",
        "backend": "cuda",
        "device": "g",
        "template": "int t;\n",
        "candidate_id": f"kernel {number}",
        "candidate_parameters": f'{{"A":{number}}}',
        "reference_parameters": '{"A":1}',
        "runtime_s": 4e-3,
        "reference_runtime_s": 4e-3,
        "log2_speedup": 0.0,
        "status": "ok",
        "samples": 4,
        "runtime_std_s": 2e-4,
        "compile_s": 0.1,
        "source": "a campaign",
        "licence": "MIT",
    }
    return dataset.Row(**(usual | values))


UNTIMED = {"runtime_s": None, "log2_speedup": None, "samples": None, "runtime_std_s": None}
SPACE = [
    row(1),
    row(2, runtime_s=2e-3, log2_speedup=1.0, compile_s=None, benchmark_s=0.5),
    row(3, status=FailureKind.CRASH, compile_s=None, **UNTIMED),
    row(4, device="another"),
]
FAST, WRONG = "def f():\n    return 1\n", "def f():\n    return 2\n"
REFERENCE = "def f():\n    return 0\n"


def text(number: int, source: str, **values: Any) -> dataset.Row:
    usual: dict[str, Any] = {
        "row_id": f"text {number}",
        "problem": "q",
        "language": "triton",
        "template": None,
        "candidate_parameters": None,
        "reference_parameters": None,
        "candidate_id": kernel_id(source, "triton"),
        "candidate_source": source,
        "reference_id": kernel_id(REFERENCE, "triton"),
        "reference_source": REFERENCE,
        "compile_s": None,
    }
    return row(number, **(usual | values))


TEXTS = [
    text(1, FAST, reference_runtime_s=4e-3, runtime_s=2e-3, log2_speedup=1.0),
    # The same kernel again while the whole machine was slower: the speedup is what counts.
    text(2, FAST, reference_runtime_s=8e-3, runtime_s=4e-3, log2_speedup=1.0),
    text(3, WRONG, status=FailureKind.WRONG_RESULT, status_detail="off by one", **UNTIMED),
]


def test_a_tuned_space_is_recorded_by_configuration() -> None:
    found = dataset.recording(dataset.to_table(SPACE), "p", "g")
    assert found.source == "int t;\n"
    assert found.device.kind == "replay"
    assert found.device.name == "g"
    assert found.entries == {
        '{"A":1}': Recorded(4e-3, None, 1e-4, compile_s=0.1),
        '{"A":2}': Recorded(2e-3, None, 1e-4, benchmark_s=0.5),
        '{"A":3}': Recorded(failure=Failure(kind=FailureKind.CRASH, message="recorded as crash")),
    }


def test_texts_are_recorded_by_their_speedup() -> None:
    found = dataset.recording(dataset.to_table(TEXTS), "q", "g")
    backend, problem = ReplayBackend(found), space_problem(found)

    def measure(source: str) -> Any:
        key = kernel_id(source, "triton")
        return backend.measure(problem, Kernel(id=key, language="triton", source=source), 0)

    assert measure(FAST).timing.speedup == 2.0
    assert measure(problem.seed_source).timing.speedup == 1.0
    assert measure(WRONG).failure == Failure(kind=FailureKind.WRONG_RESULT, message="off by one")


def test_backend_and_pool_are_built_from_one_file_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    dataset.write_rows(path, [*SPACE, *TEXTS])
    options = {"path": str(path), "problem": "p", "device": "g"}
    backend = plugins.build("backend", ComponentSpec(name="replay", options=options))
    pool = plugins.build("proposer", ComponentSpec(name="pool", options=options))
    problem = space_problem(dataset.recording(dataset.read_rows(path), "p", "g"))
    kernels = pool.propose(make_request(9, problem=problem)).kernels
    assert {kernel.parameters["A"] for kernel in kernels} == {1, 2, 3}
    for kernel in kernels:
        assert backend.measure(problem, kernel, 0).kernel_id == kernel.id
    with pytest.raises(SetupError, match="recorded as texts"):
        dataset.open_pool(str(path), "q", "g")


def test_what_cannot_be_replayed_is_said() -> None:
    with pytest.raises(SetupError, match="no rows of 'nothing' on 'g'"):
        dataset.recording(dataset.to_table(SPACE), "nothing", "g")
    nameless = [row(1, reference_parameters=None)]
    with pytest.raises(SetupError, match="no reference configuration"):
        dataset.recording(dataset.to_table(nameless), "p", "g")
    untimed = [text(1, WRONG, status="wrong_result", reference_runtime_s=None, **UNTIMED)]
    with pytest.raises(SetupError, match="timed beside a known reference"):
        dataset.recording(dataset.to_table(untimed), "q", "g")
