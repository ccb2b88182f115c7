"""search, resume, ls and show: choosing the backend, failures, mistakes, and what is printed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast import Gate, Tuner
from kernelcast.cli import main
from kernelcast.errors import StoreError
from kernelcast.events import BudgetChanged
from kernelcast.store import Store
from kernelcast.testing import example_history
from kernelcast.types import Budget
from tests.backends.gpu_problems import KERNELS

HOLDER = """
import sys, time
from kernelcast.store import Store
with Store.open(sys.argv[1]) as store:
    store.open_run(sys.argv[2]).hold()
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def scaffold(name: str = "mine") -> Path:
    assert invoke("init", name).exit_code == 0
    return Path(name)


# ----------------------------------------------------------------------- backend and config


VECTOR_ADD = """
name = "vector_add"
family = "map"
summary = "out = x + y"
entry = "ENTRY"
language = "LANGUAGE"
dimensions = ["N"]
arguments = [
    { name = "x", role = "input", dtype = "float32", shape = ["N"] },
    { name = "y", role = "input", dtype = "float32", shape = ["N"] },
    { name = "out", role = "output", dtype = "float32", shape = ["N"] },
]
cases.main = { dimensions = { N = 65536 } }
cases.ragged = { timed = false, dimensions = { N = 77 } }
work = { flops = "N", bytes = "12*N" }
tolerance = { rtol = 1e-5, atol = 1e-6 }
"""


def write_vector_add(folder: Path, language: str) -> Path:
    suffix = {"cuda": "cu", "triton": "py", "opencl": "cl"}[language]
    source = (KERNELS / f"vector_add.{suffix}").read_text()
    entry = "compute" if language == "opencl" else "kernel"
    folder.mkdir()
    stated = VECTOR_ADD.replace("LANGUAGE", language).replace("ENTRY", entry)
    (folder / "problem.toml").write_text(stated)
    (folder / "reference.py").write_text("def reference(x, y, *, N):\n    return x + y\n")
    (folder / f"seed.{suffix}").write_text(source)
    if language == "opencl":
        (folder / "template.cl").write_text(source.replace("#define ITEMS 64\n", ""))
        (folder / "template.toml").write_text("[parameters]\nITEMS = [16, 32, 64, 128]\n")
    return folder


def record_run(store: Store, name: str) -> None:
    store.create_run(name).append(*example_history())


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_a_gpu_problem_is_refused_for_want_of_a_gpu_before_a_run_exists(language: str) -> None:
    folder = write_vector_add(Path("gpu"), language)
    result = invoke("search", str(folder), "-n", "2")
    assert result.exit_code == 1
    assert "there is no CUDA device here" in result.output
    assert "nvidia-smi" in result.output
    assert json.loads(invoke("ls", "--json").stdout) == []


@pytest.mark.measures
def test_an_opencl_problem_is_searched_with_the_opencl_backend() -> None:
    folder = write_vector_add(Path("cl"), "opencl")
    result = invoke("search", str(folder), "-n", "1", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["measured"] == 1
    assert Path(json.loads(result.stdout)["best"]["file"]).suffix == ".cl"
    with Store.open(".kernelcast/store.db") as store:
        run = store.open_run(store.find_run("latest"))
        assert run.state.started is not None
        assert run.state.started.spec.components["backend"].name == "opencl"


def test_another_backend_can_be_named_and_must_fit() -> None:
    result = invoke("search", "softmax", "-n", "1", "--backend", "opencl")
    assert result.exit_code == 1
    assert "softmax is a cpp problem; the opencl backend takes opencl" in result.output
    assert "--backend" in result.output
    result = invoke("search", "softmax", "-n", "1", "--device", "H100-SXM5")
    assert result.exit_code == 1
    assert "CPU" in result.output


@pytest.mark.measures
def test_the_file_that_init_writes_is_read_and_options_override_it(tmp_path: Path) -> None:
    folder = scaffold()
    config = folder / "search.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 7") + "[farm]\nslots = 1\n")
    os.chdir("/")
    store = str(tmp_path / "s.db")
    result = invoke(
        "search", "--config", str(tmp_path / config), "-n", "1", "--pool", "4", "--store", store,
        "--policy", "top_k", "--set", "policy.k=2", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    with Store.open(store) as opened:
        started = opened.open_run(opened.find_run("mine")).state.started
    assert started is not None
    assert started.problem.name == "mine"
    assert started.spec.seed == 7
    assert started.spec.components["policy"].name == "top_k"
    assert started.spec.components["policy"].options == {"pool_size": 4, "k": 2}
    assert started.spec.components["forecaster"].name == "trees"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("problem = ", "cannot be read"),
        ('problem = "softmax"\npolicies = 1\n', "unknown keys ['policies']"),
        ('problem = "softmax"\npolicy = "topk"\n', "no policy is called 'topk'"),
        ('problem = "softmax"\n[policy]\nsize = 4\n', "unknown policy.size; known: policy."),
        ('problem = "softmax"\n[policy]\npool_size = "4"\n', "policy.pool_size is a value of type"),
        ('problem = "softmax"\n[budget]\nhours = 4\n', "a budget has the caps candidates"),
        ('problem = "softmax"\nseed = "x"\n', "seed: Input should be a valid integer"),
        ("problem = 1\n", "problem is a text"),
        ('problem = "nowhere"\n', "neither a folder nor a bundled problem"),
        ("seed = 1\n", "name a problem"),
        ('problem = "softmax"\n[budget]\nmeasurements = -1\n', "greater than or equal to 0"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(text: str, words: str) -> None:
    Path("search.toml").write_text(text)
    result = invoke("search", "--config", "search.toml")
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nonsense", "--set takes KEY=VALUE"),
        ("nonsense=1", "unknown keys ['nonsense']; known: ['backend', 'budget'"),
        ("policy.nonsense=1", "unknown policy.nonsense; known: policy.audit_share"),
        ("policy.audit_share=much", "policy.audit_share is a value of type float, not 'much'"),
        ("budget.measurements=-1", "a cap must be a number from 0 on"),
        ("seed.x=1", "seed: Input should be a valid integer"),
        ("problem.x=1", "problem is stated as a value already"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(setting: str, words: str) -> None:
    result = invoke("search", "softmax", "--set", setting)
    assert result.exit_code == 1
    assert words in result.output
    assert not Path(".kernelcast").exists()


def test_a_problem_and_a_file_exclude_each_other() -> None:
    config = str(scaffold() / "search.toml")
    for arguments in ((), ("softmax", "--config", config)):
        result = invoke("search", *arguments)
        assert result.exit_code == 1
        assert "name a problem" in result.output


# --------------------------------------------------------------------------------- failures


@pytest.mark.measures
def test_a_search_in_which_the_first_measurements_fail_alike_stops_and_says_why() -> None:
    folder = scaffold()
    template = folder / "template.cpp"
    template.write_text(template.read_text() + "\nthis is not C++;\n")
    result = invoke("search", "mine", "-n", "12")
    assert result.exit_code == 1
    assert "stopped: the first 8 measurements failed alike" in result.output
    assert "all 8 measurements failed; the first (compile_error)" in result.output
    assert "error: " in result.output
    shown = json.loads(invoke("show", "latest", "--json").stdout)
    assert shown["measured"] == 8
    assert "not C++" in shown["first_failures"]["compile_error"]["message"]
    assert "8 x compile error, first: " in invoke("show", "latest").output
    kernel = shown["first_failures"]["compile_error"]["kernel_id"]
    told = invoke("show", "latest", "--kernel", kernel[:10]).output
    for words in ("parameters", "forecast", "measure: ", "compile error, on ", "this is not C++"):
        assert words in told
    facts = json.loads(invoke("show", "latest", "--kernel", kernel, "--json").stdout)
    assert facts["measurements"][0]["failure"]["kind"] == "compile_error"
    assert facts["source"].endswith("this is not C++;\n")


def test_a_run_whose_seed_kernel_is_broken_has_ended() -> None:
    folder = scaffold()
    (folder / "seed.cpp").write_text('extern "C" void kernel( {}\n')
    result = invoke("search", "mine", "-n", "2")
    assert result.exit_code == 1
    assert "seed kernel" in result.output
    (row,) = json.loads(invoke("ls", "--json").stdout)
    assert row["ended"].startswith("stopped: the seed kernel of problem 'mine' fails")
    assert "unfinished" not in invoke("ls").output


# ----------------------------------------------------------------------- names, holders, lists


def test_runs_are_found_by_prefix_and_as_the_latest() -> None:
    with Store.open("s.db") as store:
        for name in ("alpha-1", "alpha-2", "beta"):
            record_run(store, name)
        assert store.find_run("latest") == "beta"
        assert store.find_run("b") == "beta"
        assert store.find_run("alpha-1") == "alpha-1"
        with pytest.raises(StoreError, match="may be alpha-1 or alpha-2: write more"):
            store.find_run("alpha")
        with pytest.raises(StoreError, match="no run 'gamma' in this store; the latest: alpha-1"):
            store.find_run("gamma")
    assert "Run beta" in invoke("show", "bet", "--store", "s.db").output
    listed = invoke("ls", "--store", "s.db").output
    for words in ("problem", "best", "measured", "device s", "state", "unfinished"):
        assert words in listed


def test_a_run_that_is_running_says_which_process_holds_it(location: str) -> None:
    with Store.open(location) as store:
        record_run(store, "busy")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, location, "busy"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        result = invoke("resume", "busy", "--store", location)
        assert result.exit_code == 1
        where = f" on {socket.gethostname()}" if "://" in location else ""
        message = f"run 'busy' is running: process {holder.pid}{where} holds it"
        assert message in " ".join(result.output.split())
        listed = invoke("ls", "--store", location).output
        assert f"running (process {holder.pid}{where})" in " ".join(listed.split())
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    # A killed process holds nothing.
    with Store.open(location) as store:
        run = store.open_run("busy")
        while run.holder() is not None:
            time.sleep(0.01)  # until the server sees that the process is gone
        run.hold()
        run.append([BudgetChanged(budget=Budget(measurements=1))])
        run.release()


def test_tunings_are_listed_and_shown_and_not_resumed() -> None:
    tuner = Tuner([{"block": 32}, {"block": 64}], device="H100", store="runs.db", kernel="gemm")
    (listed,) = json.loads(invoke("ls", "--store", "runs.db", "--json").stdout)
    assert (listed["problem"], listed["best"], listed["measured"]) == ("gemm", None, 0)
    tuner.report({"block": 64}, seconds=2e-3, cost_s=1.5)
    tuner.report({"block": 32}, failed=True)
    assert "2 ms" in invoke("ls", "--store", "runs.db").stdout
    shown = json.loads(invoke("show", "latest", "--store", "runs.db", "--json").stdout)
    assert shown["best"] == {"parameters": {"block": 64}, "seconds": 2e-3}
    assert shown["spent"] == {"device_s": 1.5}
    assert "block=64" in invoke("show", "tune-gemm", "--store", "runs.db").stdout
    refused = invoke("resume", "latest", "--store", "runs.db")
    assert refused.exit_code == 1
    assert "is a tuner's" in refused.stderr
    refused = invoke("data", "export", "latest", "--store", "runs.db", "--out", "rows.parquet")
    assert refused.exit_code == 1
    assert "Tuner(store=...).outcomes" in refused.stderr


def test_gates_are_listed_and_shown_and_not_resumed() -> None:
    gate = Gate(language="cpp", device="H100", store="runs.db", task="softmax")
    assert gate.ask("int slow;").measure
    (listed,) = json.loads(invoke("ls", "--store", "runs.db", "--json").stdout)
    assert (listed["problem"], listed["best"], listed["asked"]) == ("softmax", None, 1)
    assert invoke("show", "latest", "--store", "runs.db", "--source").exit_code == 1
    gate.tell("int slow;", seconds=4e-3, cost_s=1.5)
    gate.tell("int fast;", seconds=2e-3)
    gate.tell("int wrong;", failure="wrong_result")
    assert "2 ms" in invoke("ls", "--store", "runs.db").stdout
    shown = json.loads(invoke("show", "latest", "--store", "runs.db", "--json").stdout)
    assert shown["best"]["seconds"] == 2e-3
    assert (shown["measured"], shown["failed"], shown["not_measured"]) == (3, 1, 0)
    assert shown["spent"] == {"device_s": 1.5}
    assert invoke("show", "gate-softmax", "--store", "runs.db", "--source").stdout == "int fast;"
    refused = invoke("resume", "latest", "--store", "runs.db")
    assert "make the `Gate` again" in " ".join(refused.stderr.split())
    refused = invoke("data", "export", "latest", "--store", "runs.db", "--out", "rows.parquet")
    assert "Gate(store=...).outcomes" in refused.stderr


def test_looking_at_runs_makes_no_store() -> None:
    for command in (["ls"], ["show", "latest"], ["resume", "latest"]):
        result = invoke(*command, "--store", "nowhere/runs.db")
        assert result.exit_code == 1
        assert "there is no store at nowhere/runs.db" in result.output
    assert not Path("nowhere").exists()
    assert invoke("ls").exit_code == 0
    assert not Path(".kernelcast").exists()


# --------------------------------------------------------------------------------- mistakes


def test_what_could_not_be_written_at_the_end_is_refused_at_the_beginning() -> None:
    result = invoke("search", "softmax", "-n", "1", "--out", "missing/best.cpp")
    assert result.exit_code == 1
    assert "mkdir -p missing" in result.output
    assert not Path(".kernelcast").exists()
    Path("file").touch()
    result = invoke("search", "softmax", "-n", "1", "--store", "file/store.db")
    assert result.exit_code == 1
    assert "name another store with --store" in result.output
    Path("text.db").write_text("this is no database, and long enough to be taken for one\n" * 20)
    result = invoke("search", "softmax", "-n", "1", "--store", "text.db")
    assert result.exit_code == 1
    assert "is not a kernelcast store" in result.output
    result = invoke("search", "softmax", "-n", "1", "--store", "nosuchdb://host/x")
    assert result.exit_code == 1
    assert "name a file, or a database URL" in result.output


@pytest.mark.parametrize("option", ["-n", "--device-seconds", "--candidates", "--forecast-usd"])
def test_caps_are_not_negative(option: str) -> None:
    result = invoke("search", "softmax", option, "-3")
    assert result.exit_code == 2
    assert "x>=0" in result.output


def test_a_cap_that_is_no_number_is_refused() -> None:
    result = invoke("search", "softmax", "--device-seconds", "nan")
    assert result.exit_code == 1
    assert "a cap must be a number from 0 on" in result.output


def test_no_measurements_are_nothing_to_do() -> None:
    result = invoke("search", "softmax", "-n", "0")
    assert result.exit_code == 0
    assert "Nothing to do" in result.output
    assert not Path(".kernelcast").exists()


@pytest.mark.measures
def test_what_earlier_runs_measured_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_STORE", "mine.db")
    scaffold()
    first = ("search", "mine", "--policy", "measure_all", "--pool", "4", "--json")
    assert json.loads(invoke(*first, "-n", "2").stdout)["measured"] == 2
    second = json.loads(invoke(*first, "-n", "1").stdout)
    assert second["measured"] == 1
    assert second["reused"] == 2
    assert "1 kernels (0 audits), 2 more known from earlier runs" in invoke("show", "latest").output
    again = invoke("resume", "latest", "-n", "1")
    assert again.exit_code == 0
    assert "has made 1 of 1 measurements. Raise the total" in again.output
