"""The commands as a user types them, in process with click's runner; real compiles where named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli import main
from kernelcast.problems import load_problem
from tests.backends.gpu_problems import edited, need_nvcc
from tests.forecasters.test_llm import letters
from tests.model_server import Reply, ScriptedServer

pytestmark = pytest.mark.measures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_every_command_has_help_with_an_example() -> None:
    for name in main.commands:
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert f"kernelcast {name}" in result.output, f"{name} --help shows no example"


def test_a_scaffolded_problem_runs_is_shown_listed_and_resumed(tmp_path: Path) -> None:
    """`init`, then a real search with real compiles, then everything that reads it."""
    assert invoke("init", "mine").exit_code == 0
    assert (tmp_path / "mine" / "problem.toml").is_file()

    found = invoke("search", "mine", "-n", "2", "--pool", "4", "--name", "r", "--out", "best.cpp")
    assert found.exit_code == 0, found.output
    assert "best speedup" in found.output
    assert "kernel" in Path("best.cpp").read_text()

    shown = json.loads(invoke("show", "r", "--json").stdout)
    assert shown["measured"] == 2
    assert shown["ended"] == "budget spent: all measurements made"
    assert shown["best"]["speedup"] >= 1.0
    for_people = invoke("show", "r", "--figure", "best.png")
    assert "speedup  basis" in for_people.output
    assert Path("best.png").read_bytes().startswith(b"\x89PNG")
    assert invoke("show", "r", "--source").stdout == Path("best.cpp").read_text()

    assert "r" in invoke("ls").output
    assert json.loads(invoke("ls", "--json").stdout)[0]["run"] == "r"

    resumed = invoke("resume", "r", "-n", "3", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["measured"] == 3


def test_mistakes_end_in_one_line_that_names_the_fix() -> None:
    unknown = invoke("search", "no-such-problem")
    assert unknown.exit_code == 1
    assert "softmax" in unknown.output
    assert "Traceback" not in unknown.output
    assert "--base-url and --model" in invoke("search", "softmax", "--forecaster", "llm").output
    unpriced = invoke("search", "softmax", "--forecast-usd", "1")
    assert "--price-in and --price-out" in unpriced.output
    assert (
        "installed: conformal, measure_all"
        in invoke("search", "softmax", "--policy", "nope").output
    )
    assert "there is no store" in invoke("show", "nope").output


def test_ls_of_an_empty_store_says_how_to_begin() -> None:
    assert "kernelcast search" in invoke("ls").output
    assert json.loads(invoke("ls", "--json").stdout) == []


def test_forecast_without_a_model_is_the_trees_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('extern "C" void kernel() {}\n')
    (tmp_path / "b.cpp").write_text('extern "C" void kernel() { int x = 0; (void)x; }\n')
    shown = invoke("forecast", "a.cpp", "b.cpp", "--problem", "softmax", "--reference-ms", "5")
    assert "not a measurement" in shown.output
    assert "by trees trained on other kernels" in shown.output
    data = json.loads(invoke("forecast", "a.cpp", "b.cpp", "--device", "H100", "--json").stdout)
    assert sum(data["bins"].values()) == pytest.approx(1.0)
    assert data["forecaster"] == "trees"
    assert data["decision"] in ("measure", "drop", "trust")
    (tmp_path / "c.txt").touch()
    assert "known endings" in invoke("forecast", "a.cpp", "c.txt").output


def test_forecast_names_the_devices_that_a_short_name_may_mean(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int x;\n")
    told = invoke("forecast", "a.cpp", "a.cpp", "--device", "A100")
    assert told.exit_code == 1
    assert "'A100' may be A100-SXM4-80GB or A100-PCIE-40GB" in told.output


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What compiling shows of `LOOP`, for tests that ask for something else."""
    return tmp_path_factory.mktemp("kept")


LOOP = 'extern "C" __global__ void k(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2; }\n'


@pytest.mark.parametrize(
    ("letter", "decision", "words"),
    [
        ("M", "measure", "A search would measure it"),
        ("E", "drop", "A search would drop it, unmeasured"),
        ("I", "measure", "P(faster)"),
    ],
)
def test_forecast_by_a_model_tells_distribution_decision_and_cost(
    tmp_path: Path,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    letter: str,
    decision: str,
    words: str,
) -> None:
    monkeypatch.setenv("KERNELCAST_CACHE", str(kept))
    (tmp_path / "ref.cu").write_text(LOOP)
    (tmp_path / "cand.cu").write_text(LOOP.replace("x[i] *= 2", "x[i] += x[i]"))
    with ScriptedServer(letters({letter: 1.0})) as server:
        asked = ["forecast", "ref.cu", "cand.cu", "--device", "H100", "--ask", "direct"]
        asked += ["--reference-ms", "1"]
        asked += ["--base-url", server.base_url, "--model", "m"]
        shown = invoke(*asked, "--price-in", "10", "--price-out", "20")
        data = json.loads(invoke(*asked, "--json").stdout)
    assert shown.exit_code == 0, shown.output
    assert "Forecast by m, direct for H100-SXM5 (not a measurement)" in shown.output
    assert f"100.0%  {'█' * 30}" in shown.output
    assert words in shown.output
    assert "100 tokens read, 1 written, $0.0010 (stated by the user)" in shown.output
    assert data["decision"] == decision
    assert data["usage"]["priced"]
    assert data["usage"]["price_source"] == "a server on this machine"
    assert server.requests[0]["max_tokens"] == 1


def test_a_model_is_asked_in_both_directions_if_neither_kernel_was_measured(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says "far faster" whatever it is shown, which tells nothing."""
    monkeypatch.setenv("KERNELCAST_CACHE", str(kept))
    (tmp_path / "ref.cu").write_text(LOOP)
    (tmp_path / "cand.cu").write_text(LOOP.replace("x[i] *= 2", "x[i] += x[i]"))
    with ScriptedServer(letters({"M": 1.0})) as server:
        asked = (
            "--device",
            "H100",
            "--base-url",
            server.base_url,
            "--model",
            "m",
            "--ask",
            "direct",
        )
        data = json.loads(invoke("forecast", "ref.cu", "cand.cu", *asked, "--json").stdout)
    assert len(server.requests) == 2
    assert data["usage"]["input_tokens"] == 200
    assert data["bins"]["far faster"] == pytest.approx(data["bins"]["far slower"])


def test_forecast_asks_as_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int a;\n")
    (tmp_path / "b.cpp").write_text("int b = 1;\n")
    with ScriptedServer(Reply("no")) as server:
        asked = ["forecast", "a.cpp", "b.cpp", "--base-url", server.base_url, "--model", "m"]
        asked += ["--reference-ms", "1"]
        told = invoke(
            *asked, "--samples", "2", "--bins", "paper", "--set", "forecaster.max_output_tokens=77"
        )
        sets = ("forecaster.temperature=null", "forecaster.output_limit=max_tokens")
        unset = invoke(*asked, "--set", sets[0], "--set", sets[1])
        wrong = [
            invoke(*asked, "--set", setting).output
            for setting in ("nonsense", "nonsense=1", "policy.k=1", "forecaster.nonsense=1")
        ]
    assert "the answer could not be read" in told.output
    assert "far faster" in told.output
    assert "tie" not in told.output
    assert sorted(each["seed"] for each in server.requests) == [0, 0, 1]  # two at once
    assert [each.get("temperature") for each in server.requests] == [1.0, 1.0, None]
    assert server.requests[0]["max_tokens"] == 77
    assert unset.exit_code == 0
    assert "--set takes KEY=VALUE" in wrong[0]
    assert "unknown keys ['nonsense']; known: ['forecaster']" in wrong[1]
    assert "unknown keys ['policy']; known: ['forecaster']" in wrong[2]
    assert "nonsense: Extra inputs are not permitted" in wrong[3]


def test_forecast_tells_the_model_what_compiling_shows(tmp_path: Path) -> None:
    source = load_problem("softmax").seed_source
    (tmp_path / "ref.cpp").write_text(source)
    (tmp_path / "copy.cpp").write_text(source.replace("for (", "for ( /* the same */ "))
    (tmp_path / "other.cpp").write_text(source.replace("float", "double"))
    (tmp_path / "broken.cpp").write_text(source + "not C++")
    with ScriptedServer(letters({"I": 1.0})) as server:
        asked = ["--problem", "softmax", "--base-url", server.base_url, "--model", "m"]
        asked += ["--ask", "direct", "--reference-ms", "1"]
        same, other, broken = (
            invoke("forecast", "ref.cpp", f"{name}.cpp", *asked)
            for name in ("copy", "other", "broken")
        )
    assert "both compile: g++" in same.output
    assert "both compile: g++" in other.output
    assert "drop it, unmeasured (objected: nothing has changed" in same.output
    assert "it does not compile: kernel.cpp" in broken.output
    (prompt,) = (request["messages"][1]["content"] for request in server.requests)
    assert "bytes of code" in prompt


def test_a_kernel_forecast_against_itself_is_a_tie(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(LOOP)
    renamed = LOOP.replace("float* x", "float* y").replace("x[", "y[")
    (tmp_path / "b.cu").write_text(f"// the same\n{renamed}")
    for candidate in ("a.cu", "b.cu"):
        told = invoke("forecast", "a.cu", candidate, "--device", "H100", "--json")
        data = json.loads(told.stdout)
        assert data["median_speedup"] == pytest.approx(1.0)
        assert (data["p_faster"], data["p_ok"], data["decision"]) == (0.0, 1.0, "drop")
        assert not data["is_prior"]


def test_what_does_not_compile_has_no_speed(tmp_path: Path) -> None:
    need_nvcc()
    (tmp_path / "a.cu").write_text(LOOP)
    (tmp_path / "b.cu").write_text(LOOP.replace("int i", "floot i"))
    asked = ("forecast", "a.cu", "b.cu", "--device", "H100")
    data = json.loads(invoke(*asked, "--json").stdout)
    assert data["p_failure"] == {"compile_error": 1.0}
    assert (data["p_ok"], data["p_faster"], data["median_speedup"]) == (0.0, 0.0, None)
    shown = invoke(*asked)
    assert "median" not in shown.output
    assert '"floot" is undefined' in shown.output


@pytest.mark.slow
def test_what_is_wrong_when_emulated_has_no_speed(tmp_path: Path) -> None:
    """A problem that is stated in C++ serves kernels in CUDA."""
    need_nvcc()
    source = load_problem("softmax", language="cuda").seed_source
    (tmp_path / "a.cu").write_text(source)
    (tmp_path / "b.cu").write_text(
        edited(source, "j < C; j += THREADS) sum", "j < C - 1; j += THREADS) sum")
    )
    asked = ("forecast", "a.cu", "b.cu", "--problem", "softmax", "--device", "RTX-3090")
    data = json.loads(invoke(*asked, "--json").stdout)
    assert data["p_failure"] == {"wrong_result": 1.0}
    assert (data["p_ok"], data["p_faster"]) == (0.0, 0.0)


def test_forecast_tells_where_nothing_like_it_is_known(tmp_path: Path) -> None:
    source = load_problem("softmax").seed_source
    (tmp_path / "a.cpp").write_text(source)
    (tmp_path / "b.cpp").write_text(source.replace("float", "double"))
    asked = ("forecast", "a.cpp", "b.cpp")
    assert "Nothing like this was measured" in invoke(*asked).output
    assert json.loads(invoke(*asked, "--json").stdout)["is_prior"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.cu", "a.cu"), "cuda kernels do not run on this CPU: name a GPU with --device"),
        (("a.cu", "b.cpp", "--device", "H100"), "compare two kernels of one language"),
        (("a.cu", "binary.cu", "--device", "H100"), "cannot be read as source text"),
        (("a.cu", "nul.cu", "--device", "H100"), "is binary"),
        (("b.cpp", "b.cpp", "--reference-ms", "-1"), "--reference-ms"),
        (("b.cpp", "none.cpp"), "does not exist"),
    ],
)
def test_mistakes_in_what_is_forecast_are_told(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "a.cu").write_text(LOOP)
    (tmp_path / "b.cpp").write_text("int b;\n")
    (tmp_path / "binary.cu").write_bytes(b"\x7fELF\xd0\xff")
    (tmp_path / "nul.cu").write_bytes(b"int a;\0")
    told = invoke("forecast", *arguments)
    assert told.exit_code in (1, 2)
    assert words in told.output.replace("\n", " ")


def test_a_reference_that_does_not_compile_here_says_nothing_of_the_candidate(
    tmp_path: Path,
) -> None:
    """It is known to work, so it must be this machine's toolchain that lacks something."""
    (tmp_path / "ref.cpp").write_text("#include <not_on_this_machine.h>\n")
    (tmp_path / "cand.cpp").write_text("#include <not_on_this_machine.h>\nint x;\n")
    told = invoke("forecast", "ref.cpp", "cand.cpp", "--problem", "softmax")
    assert "not compiled: the reference does not compile here" in told.output
    assert "compile error 1.00" not in told.output
