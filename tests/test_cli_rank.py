"""`kernelcast rank` and `kernelcast train trees` as a user types them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.backends._toolchain import ToolRun
from kernelcast.backends.cpp import CppBackend
from kernelcast.cli import main
from kernelcast.problems import load_problem
from tests.backends.gpu_problems import need_nvcc
from tests.forecasters.test_llm import letters
from tests.model_server import Reply, ScriptedServer
from tests.test_cli_data import cache
from tests.test_dataset_recordings import row

pytestmark = pytest.mark.measures

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def told(*arguments: str) -> Any:
    result = invoke("rank", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder() -> None:
    Path("k").mkdir()
    seed = load_problem("softmax").seed_source
    Path("k/reference.cpp").write_text(seed)
    Path("k/copy.cpp").write_text(f"// the same\n{seed}")
    Path("k/doubled.cpp").write_text(seed.replace("float", "double"))
    Path("k/notes.txt").write_text("not a kernel")


def test_a_folder_is_ranked_against_its_reference_without_copies() -> None:
    folder()
    found = told("k")
    assert found["kernels"] == 1
    assert found["forecaster"] == "trees"
    (only,) = found["order"]
    assert only["kernel"] == "doubled.cpp"
    assert only["chance_fastest"] == 1.0
    shown = invoke("rank", "k").stdout
    assert "forecast by trees, not measured" in shown
    assert "measure the first 1" in shown


CUDA = """extern "C" __global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2.0f;
}
"""


def cuda_folder() -> None:
    Path("k").mkdir()
    Path("k/naive.cu").write_text(CUDA)
    renamed = CUDA.replace("float* x", "float* values").replace(" x[", " values[")
    Path("k/renamed.cu").write_text(f"// mine\n{renamed}")
    Path("k/dead.cu").write_text(f"{CUDA}static int unused() {{ return 1; }}\n")
    Path("k/added.cu").write_text(CUDA.replace("x[i] *= 2.0f", "x[i] += x[i]"))
    Path("k/broken.cu").write_text(CUDA.replace("int i", "floot i"))
    Path("k/other.cpp").write_text("int other;\n")


def test_a_folder_is_compiled_and_what_does_not_compile_is_last_and_not_advised() -> None:
    need_nvcc()
    cuda_folder()
    at = ("k", "--reference", "k/naive.cu", "--device", "H100-SXM5")
    found = told(*at, "--share", "1.0")
    assert [each["kernel"] for each in found["order"]] == ["added.cu", "dead.cu", "broken.cu"]
    _, tie, broken = found["order"]
    assert (tie["median_speedup"], tie["chance_fastest"], tie["p_ok"]) == (1.0, 0.0, 1.0)
    assert (broken["p_ok"], broken["chance_fastest"], broken["median_speedup"]) == (0.0, 0.0, None)
    assert 'error: identifier "floot" is undefined' in broken["why"]
    assert found["cut"]["count"] == 1
    assert found["compiled"].startswith("2 of 3 kernels compile with nvcc")
    assert found["left_out"] == [
        "other.cpp is cpp, the reference is cuda",
        "renamed.cu is the same kernel as naive.cu",
    ]
    assert found["unlike_any_known"] == 1
    shown = invoke("rank", *at)
    assert "Nothing like this was measured" in shown.stdout
    blind = told(*at, "--no-compile")
    assert "--no-compile" in blind["compiled"]
    assert all(each["p_ok"] > 0.0 for each in blind["order"])


def test_a_folder_of_which_nothing_compiles_advises_no_measurement() -> None:
    folder()
    Path("k/doubled.cpp").write_text("floot m;\n")
    found = told("k")
    assert found["cut"]["count"] == 0
    assert "'floot' does not name a type" in found["order"][0]["why"]
    measured = invoke("rank", "k", "--problem", "softmax", "--measure")
    assert measured.exit_code == 1
    assert "no kernel of the pool is worth it" in measured.stderr


def test_a_missing_compiler_is_told_and_the_pool_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    folder()
    monkeypatch.setenv("PATH", "/nowhere")
    found = told("k")
    assert "apt-get install g++" in found["compiled"]
    assert found["order"][0]["p_ok"] > 0.0


def test_configurations_are_not_compiled() -> None:
    t1 = {
        "KernelSpecification": {"KernelName": "add"},
        "ConfigurationSpace": {"TuningParameters": [{"Name": "block", "Values": [1, 2]}]},
    }
    Path("t1.json").write_text(json.dumps(t1))
    found = told("t1.json", "--device", "A100-PCIE-40GB")
    assert "these are configurations" in found["compiled"]
    assert found["unlike_any_known"] == 2


@pytest.mark.parametrize("columns", ["80", "120"])
def test_names_of_kernels_are_shown_whole(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    folder()
    Path("k/doubled.cpp").rename("k/a_kernel_with_a_longer_name.cpp")
    shown = invoke("rank", "k").stdout
    assert "a_kernel_with_a_longer_name.cpp" in shown
    assert "P(fastest): chance to be the fastest of the pool" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("empty",), "holds no kernel files"),
        (("k", "--reference", "k/none.cu"), "does not exist"),
        (("k", "--reference", "k/naive.cu"), "name a GPU with --device"),
        (("k", "--reference", "k/naive.cu", "--device", "Abacus"), "unknown device 'Abacus'"),
        (("k", "--share", "-0.5"), "--share"),
        (("k", "--miss", "2"), "--miss"),
        (("k", "--share", "0.5", "--miss", "0.1"), "give one of them"),
        (("k", "--top", "-1"), "--top"),
        (("k", "--measure", "-n", "-3"), "--measurements"),
        (("k", "-n", "3"), "give --measure"),
        (("binary", "--device", "H100"), "cannot be read as source text"),
        (("nowhere",), "neither a folder nor a bundled problem"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], words: str) -> None:
    cuda_folder()
    Path("empty").mkdir()
    Path("binary").mkdir()
    Path("binary/reference.cu").write_text(CUDA)
    Path("binary/a.cu").write_bytes(b"\x7fELF\xd0\xff")
    result = invoke("rank", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr.replace("\n", " ")


def test_a_model_ranks_and_is_asked_as_told() -> None:
    folder()
    with ScriptedServer(letters({"M": 1.0}), Reply("no")) as server:
        at = ("k", "--base-url", server.base_url, "--model", "m", "--reference-ms", "1")
        found = told(*at, "--ask", "direct")
        told(*at, "--samples", "2", "--bins", "paper", "--set", "forecaster.max_output_tokens=77")
        wrong = invoke("rank", *at, "--set", "nonsense")
    assert found["forecaster"] == "llm"
    assert found["order"][0]["median_speedup"] > 4.0
    direct, *reasoned = server.requests
    assert direct["max_tokens"] == 1
    assert [each["max_tokens"] for each in reasoned] == [77, 77]
    assert [each["temperature"] for each in reasoned] == [1.0, 1.0]
    bins = [
        "tie" in each["response_format"]["json_schema"]["schema"]["properties"] for each in reasoned
    ]
    assert bins == [False, False]
    assert wrong.exit_code == 1
    assert "--set takes KEY=VALUE" in wrong.stderr


def test_a_folder_without_a_reference_is_told() -> None:
    Path("k").mkdir()
    Path("k/a.cpp").write_text("int a;")
    result = invoke("rank", "k")
    assert result.exit_code == 1
    assert "--reference or --problem" in result.stderr


def test_rows_of_other_devices_rank_a_device_that_was_never_measured() -> None:
    rows = [
        row(number, device=device, runtime_s=time_s, row_id=f"{device}{number}")
        for device in ("NVIDIA one", "NVIDIA two")
        for number, time_s in enumerate((4e-3, 1e-3, 2e-3, 8e-3, 3e-3), 1)
    ]
    dataset.write_rows(Path("rows.parquet"), dataset.to_table(rows))
    found = told("rows.parquet", "--device", "NVIDIA three", "--share", "0.4")
    assert found["cut"]["count"] == 2
    order = [each["kernel"] for each in found["order"]]
    assert order[:2] == ["A=2", "A=3"]
    assert found["order"][0]["why"].startswith("top 20.0% on NVIDIA")
    whole = told("rows.parquet", "--device", "NVIDIA three", "--share", "1.0")
    assert whole["cut"]["count"] == 5
    (reference,) = (each for each in whole["order"] if each["why"] == "the reference itself")
    assert reference["median_speedup"] == 1.0
    as_csv = list(
        csv.DictReader(invoke("rank", "rows.parquet", "--device", "x", "--csv").stdout.splitlines())
    )
    assert [each["kernel"] for each in as_csv][:2] == ["A=2", "A=3"]
    known = invoke("rank", "rows.parquet", "--device", "NVIDIA one")
    assert known.exit_code == 1
    assert "all 5 kernels" in known.stderr


def test_a_tuner_cache_teaches_and_the_rest_of_its_space_is_ranked() -> None:
    name = cache("add", "A100")
    content = json.loads(Path(name).read_text())
    content["tune_params"] = {"block": [1, 2, 3, 4, 5, 6, 7, 8]}
    Path(name).write_text(json.dumps(content))
    found = told(name, "--restrict", "block < 8")
    assert (found["known"], found["kernels"], found["device"]) == (4, 3, "A100")
    t1 = {
        "KernelSpecification": {"KernelName": "add"},
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "block", "Type": "int", "Values": "[1, 2, 4]"}],
            "Conditions": [{"Expression": "block > 1", "Parameters": ["block"]}],
        },
    }
    Path("t1.json").write_text(json.dumps(t1))
    assert told("t1.json", "--device", "A100")["kernels"] == 2


def test_a_file_that_is_no_space_is_told() -> None:
    Path("x.json").write_text("{}")
    result = invoke("rank", "x.json")
    assert result.exit_code == 1
    assert "neither a Kernel Tuner cache nor a T1 specification" in result.stderr


def test_what_cannot_be_measured_is_told() -> None:
    folder()
    result = invoke("rank", "k", "--measure")
    assert result.exit_code == 1
    assert "give --problem" in result.stderr


@pytest.mark.slow
def test_a_ranked_folder_is_measured() -> None:
    folder()
    found = told("k", "--problem", "softmax", "--measure", "--store", "runs.db")
    measured = found["measured"]
    assert measured["measured"] + measured["dropped"] + measured["trusted"] == 1


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled from now on, with a cache for `rank`."""
    sources: list[str] = []
    really = CppBackend.compile

    def counted(self: CppBackend, problem: Any, case: Any, source: str, build: Path) -> Any:
        sources.append(source)
        return really(self, problem, case, source, build)

    monkeypatch.setattr(CppBackend, "compile", counted)
    monkeypatch.setenv("KERNELCAST_CACHE", str(tmp_path / "cache"))
    return sources


def test_a_folder_is_compiled_once(compiled: list[str]) -> None:
    folder()
    Path("k/broken.cpp").write_text("no kernel")
    first = told("k")
    assert len(compiled) == 3
    assert told("k") == first
    assert len(compiled) == 3
    assert "1 of 2 kernels compile" in first["compiled"]


def test_a_changed_text_or_compiler_is_compiled_anew(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder()
    told("k")
    compiled.clear()
    changed = Path("k/doubled.cpp").read_text().replace("/ sum", "* (1 / sum)")
    Path("k/doubled.cpp").write_text(changed)
    told("k")
    assert compiled == [changed]
    compiled.clear()
    basis = CppBackend._evidence_basis
    monkeypatch.setattr(CppBackend, "_evidence_basis", lambda self: f"{basis(self)} 2")
    told("k")
    assert len(compiled) == 2


def test_a_failure_of_the_installation_is_not_kept(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder()
    with monkeypatch.context() as broken:
        broken.setattr(
            "kernelcast.backends.cpp.run_tool", lambda *_: ToolRun(1, "cc1plus: not found", 0.1)
        )
        assert "the reference does not compile here" in told("k")["compiled"]
    assert "1 of 1 kernels compile" in told("k")["compiled"]
    Path("k/new.cpp").write_text(Path("k/doubled.cpp").read_text().replace("1", "2"))
    with monkeypatch.context() as broken:
        broken.setattr(
            "kernelcast.backends.cpp.run_tool", lambda *_: ToolRun(1, "cc1plus: not found", 0.1)
        )
        assert "does not compile what it did before: cc1plus" in told("k")["compiled"]
    assert "2 of 2 kernels compile" in told("k")["compiled"]


def test_no_compiler_is_said_again_each_time(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder()
    told("k")
    monkeypatch.setattr("kernelcast.backends.cpp.shutil.which", lambda _: None)
    assert "was not found" in told("k")["compiled"]
    assert len(compiled) == 2
