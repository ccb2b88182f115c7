"""Samples of a KernelBench run, and results of ours in its form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import dataset
from kernelcast.dataset.runs import runtime_std_s
from kernelcast.devices import detect_cpu
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.types import CaseTiming, Device, Failure, FailureKind, Measurement, Timing

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")

IMPORTED = Path(__file__).parent / "modules" / "imported"
PROBLEM = load_problem(IMPORTED / "softmax")
CPU = detect_cpu()
GPU = Device(
    name="NVIDIA L40S",
    kind="gpu",
    cores=142,
    clock_hz=0.0,
    peak_flops={},
    bandwidth_bytes_s=0.0,
    source="a test",
)


def measurement(outcome: Timing | Failure, device: Device = CPU) -> Measurement:
    return Measurement(
        kernel_id="k",
        problem_id=PROBLEM.id,
        device_id=device.id,
        toolchain="torch",
        timing=outcome if isinstance(outcome, Timing) else None,
        failure=outcome if isinstance(outcome, Failure) else None,
        noise_log2=0.02,
        device_s=1.0,
    )


def timing(log2_speedup: float, *, runtime_s: float = 1e-3, spread: float = 0.1) -> Timing:
    """A timing of three rounds, in which the candidate is 1 ms."""
    reference_s = runtime_s * 2.0**log2_speedup
    ratios = (log2_speedup - spread, log2_speedup, log2_speedup + 2 * spread)
    case = CaseTiming(
        case="main", log2_ratios=ratios, runtime_s=runtime_s, reference_runtime_s=reference_s
    )
    return Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - spread,
        high=log2_speedup + spread,
        resolved=True,
        runtime_s=runtime_s,
        reference_runtime_s=reference_s,
        cases=(case,),
    )


def entry(outcome: Timing | Failure, sample: int = 0, device: Device = CPU) -> dict[str, Any]:
    return dataset.result_entry(sample, measurement(outcome, device), PROBLEM, device)


# --------------------------------------------------------------------------------------- results

failures = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    message=st.text() | st.sampled_from(["timed out after 5 s", "CUDA error", "Output mismatch"]),
)
timings = st.builds(
    timing,
    st.floats(-8, 8),
    runtime_s=st.floats(1e-7, 100.0),
    spread=st.floats(0.0, 1.0),
)


@settings(max_examples=60, deadline=None)
@given(outcome=failures | timings, sample=st.integers(0, 999), device=st.sampled_from([CPU, GPU]))
def test_a_result_is_read_back_as_what_was_measured(
    outcome: Timing | Failure, sample: int, device: Device
) -> None:
    with TemporaryDirectory() as place:
        run = Path(place)
        (run / f"level_1_problem_23_sample_{sample}_kernel.py").write_text("import torch\n")
        results = {(23, sample): entry(outcome, sample, device)}
        dataset.write_results(run / "eval_results.json", results)
        assert dataset.read_results(run / "eval_results.json", device) == results
        (row,) = dataset.to_rows(dataset.import_kernelbench(run))
    assert (row.device, row.step, row.problem) == (device.id, sample, "kb/level1/23")
    if isinstance(outcome, Failure):
        assert (row.status, row.status_detail) == (outcome.kind, outcome.message)
        assert row.runtime_s is row.log2_speedup is row.samples is None
        return
    assert (row.status, row.samples, row.log2_speedup) == ("ok", 3, outcome.log2_speedup)
    found = [row.runtime_s, row.reference_runtime_s, row.runtime_std_s]
    wanted = [outcome.runtime_s, outcome.reference_runtime_s, runtime_std_s(outcome)]
    assert found == pytest.approx(wanted)


def test_a_result_has_kernelbenchs_keys_and_milliseconds() -> None:
    ours = entry(timing(1.0, runtime_s=2e-3), 4, GPU)
    place = {"hardware": "NVIDIA L40S x142", "device": "cuda:0"}
    stats = ours["runtime_stats"]
    assert {key: ours[key] for key in ("sample_id", "compiled", "correctness", "runtime")} == {
        "sample_id": 4,
        "compiled": True,
        "correctness": True,
        "runtime": 2.0,
    }
    assert ours["metadata"].items() >= place.items()
    assert stats.items() >= {"mean": 2.0, "num_trials": 3, **place}.items()
    assert stats["min"] == pytest.approx(2.0 * 2**-0.2)
    assert stats["max"] == pytest.approx(2.0 * 2**0.1)
    assert ours["metadata"]["kernelcast"]["cases"] == {"main": {"batch_size": 256, "dim": 2048}}
    wrong = entry(Failure(kind=FailureKind.WRONG_RESULT, message="mismatch at [0]"))
    assert (wrong["compiled"], wrong["correctness"], wrong["runtime"]) == (True, False, -1.0)
    assert wrong["metadata"]["correctness_issue"] == "mismatch at [0]"
    broken = entry(Failure(kind=FailureKind.COMPILE_ERROR, message="no ModelNew"))
    assert (broken["compiled"], broken["correctness"]) == (False, False)
    assert broken["metadata"]["compilation_error"] == "no ModelNew"


def test_results_that_are_not_ours_are_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "eval_results.json"
    assert dataset.read_results(file, CPU) == {}
    dataset.write_results(file, {(2, 0): entry(timing(0.0)), (1, 1): entry(timing(1.0), 1)})
    assert list(json.loads(file.read_text())) == ["1", "2"]
    with pytest.raises(SetupError, match="did not measure on NVIDIA L40S"):
        dataset.read_results(file, GPU)
    theirs = entry(timing(0.0))
    del theirs["metadata"]["kernelcast"]
    dataset.write_results(file, {(1, 0): theirs})
    with pytest.raises(SetupError, match=r"\(1, 0\): name another file"):
        dataset.read_results(file, CPU)


def test_fast_p_is_kernelbenchs_and_counts_the_fastest_right_sample() -> None:
    wrong = Failure(kind=FailureKind.WRONG_RESULT, message="")
    results = {
        (1, 0): entry(timing(0.5)),  # 1.41x
        (1, 1): entry(timing(-1.0), 1),
        (2, 0): entry(wrong),
        (3, 0): entry(timing(-0.5)),  # 0.71x
        (4, 0): entry(Failure(kind=FailureKind.COMPILE_ERROR, message="")),
        (9, 0): entry(timing(4.0)),  # a problem of another run
    }
    score = dataset.RunScore.of(results, {1, 2, 3, 4, 5})
    assert score.fast_p == {0.0: 0.4, 0.5: 0.4, 0.8: 0.2, 1.0: 0.2, 1.5: 0.0, 2.0: 0.0}
    assert (score.problems, score.measured, score.compiled, score.right) == (5, 5, 4, 3)
    assert score.proven == 0.2
    assert set(dataset.RunScore.of({}, set()).fast_p.values()) == {0.0}


# --------------------------------------------------------------------------------------- samples


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Samples of problems 1 and 2, of which 1 is imported."""
    seed = PROBLEM.seed_source
    texts = {
        (1, 0): seed.replace("softmax(x", "log_softmax(x"),
        (1, 1): seed,
        (1, 2): "# once more\n" + seed.replace("softmax(x", "log_softmax(x"),
        (2, 0): seed,
    }
    (tmp_path / "run").mkdir()
    for (number, sample), text in texts.items():
        name = f"level_1_problem_{number}_sample_{sample}_kernel.py"
        (tmp_path / "run" / name).write_text(text)
    shutil.copytree(IMPORTED / "softmax", tmp_path / "problems" / "1_Softmax")
    return tmp_path / "run"


def test_samples_are_read_by_problem_and_copies_are_one_kernel(run: Path, tmp_path: Path) -> None:
    assert dataset.is_kernelbench_run(run)
    assert not dataset.is_kernelbench_run(tmp_path)
    (run / "level_1_problem_1_sample_3_kernel.py").write_bytes(b"\x7fELF\xd0\xff")
    (samples,), left_out = dataset.read_samples(run, tmp_path / "problems")
    assert left_out == ["samples of problems without a folder: 2"]
    assert (samples.number, samples.count) == (1, 3)
    (kernel,) = samples.pool.kernels
    assert kernel.language == "torch"
    assert samples.pool.labels == ("level_1_problem_1_sample_0_kernel.py",)
    assert samples.by_kernel == {kernel.id: (0, 2), samples.pool.reference.id: (1,)}
    binary, *copies = samples.pool.left_out
    assert "sample 3" in binary
    assert copies == [
        "sample 2: the same kernel as sample 0",
        "sample 1: the same kernel as the reference",
    ]
    (alone,), _ = dataset.read_samples(run, tmp_path / "problems" / "1_Softmax")
    assert alone.by_kernel == samples.by_kernel


def test_problems_that_do_not_belong_to_a_run_are_refused(run: Path, tmp_path: Path) -> None:
    problems = tmp_path / "problems"
    with pytest.raises(SetupError, match="holds no imported problem"):
        dataset.read_samples(run, IMPORTED)
    shutil.copytree(problems / "1_Softmax", problems / "1_Other")
    with pytest.raises(SetupError, match="are both problem 1"):
        dataset.read_samples(run, problems)
    shutil.rmtree(problems / "1_Other")
    toml = problems / "1_Softmax" / "problem.toml"
    toml.write_text(toml.read_text().replace('"kernelbench"', '"kernelbench_level2"'))
    with pytest.raises(SetupError, match=r"is of level 2, .* are of level 1"):
        dataset.read_samples(run, problems)
    (problems / "1_Softmax").rename(problems / "3_Softmax")
    with pytest.raises(SetupError, match=r"has no folder 1_\.\.\."):
        dataset.read_samples(run, problems)
    (run / "level_2_problem_7_sample_0_kernel.py").touch()
    with pytest.raises(SetupError, match="mixes levels"):
        dataset.read_samples(run, problems)
