"""The commands of a new user, and what starting `kernelcast` costs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast.backends._proof import detect_sandbox, prove
from kernelcast.cli import COMMANDS, main
from kernelcast.cli.setup import _EXTRAS
from kernelcast.problems import load_problem

HEAVY = {
    "alembic",
    "lightgbm",
    "matplotlib",
    "numpy",
    "openai",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "sqlalchemy",
    "zstandard",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


# -------------------------------------------------------------------------------------- starting


def modules_of(argument: str) -> list[str]:
    """Return the names of all modules that the command imports."""
    code = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"from kernelcast.cli import main; main([{argument!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(ended.stderr.splitlines()[-1])
    return modules


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_heavy_module(option: str) -> None:
    modules = modules_of(option)
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    ours = [name for name in modules if name.partition(".")[0] == "kernelcast"]
    assert ours == ["kernelcast", "kernelcast.cli", "kernelcast.errors", "kernelcast.exports"]


def test_looking_at_runs_imports_nothing_that_computes() -> None:
    packages = {name.partition(".")[0] for name in modules_of("ls")}
    assert "sqlalchemy" in packages
    assert not {"lightgbm", "matplotlib", "scipy"} & packages


def test_the_list_of_commands_is_what_the_commands_say() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
    for name, command in main.commands.items():
        assert command.name == name
        line = command.get_short_help_str(limit=1000)
        assert COMMANDS[name] == line, f"write it into COMMANDS: {line}"


# ------------------------------------------------------------------------------------------ init


def test_init_of_an_installed_package_passes_over_what_python_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip compiles every module, so the scaffold's folder gets a __pycache__."""
    package = tmp_path / "installed"
    shutil.copytree(str(resources.files("kernelcast.problems")), package)
    (package / "scaffold" / "__pycache__").mkdir(exist_ok=True)
    (package / "scaffold" / "__pycache__" / "reference.pyc").write_bytes(b"\xff")
    monkeypatch.setattr(resources, "files", lambda _: package)
    told = invoke("init", "mine")
    assert told.exit_code == 0, told.output
    assert "next: kernelcast search mine/ -n 20" in told.output
    written = {path.name for path in Path("mine").iterdir()}
    assert written == {
        path.name for path in (package / "scaffold").iterdir() if path.name != "__pycache__"
    }


def test_init_writes_a_problem_of_that_name_that_loads() -> None:
    for folder in ("mine", 'a "quoted"\\ name', "new\x1b[2J", "deep/er/é"):
        assert invoke("init", folder).exit_code == 0
        problem = load_problem(folder)
        assert problem.name == Path(folder).name.replace("\x1b", r"\x1b")
    Path("empty").mkdir()
    assert invoke("init", "empty").exit_code == 0
    stated = tomllib.loads(Path("empty/search.toml").read_text())
    assert load_problem(Path("empty") / stated["problem"]).name == "empty"


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    told = invoke("init", "mine")
    assert told.exit_code == 1
    assert "not empty: choose another folder" in told.output
    assert list(Path("mine").iterdir()) == [Path("mine/precious")]


@pytest.mark.parametrize("folder", ["a_file", "a_file/below", "/proc/mine", "x" * 300])
def test_init_where_nothing_can_be_written_says_so(folder: str) -> None:
    Path("a_file").touch()
    told = invoke("init", folder)
    assert told.exit_code == 1
    assert f"Error: {folder} cannot be made" in told.output
    assert "name another one" in told.output
    assert list(Path().iterdir()) == [Path("a_file")]


def test_init_that_fails_half_way_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    write_text = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.name == "seed.cpp":
            raise OSError(28, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    Path("empty").mkdir()
    for folder in ("mine", "empty"):
        told = invoke("init", folder)
        assert told.exit_code == 1
        assert "cannot be written (No space left on device)" in told.output
    assert not Path("mine").exists()
    assert list(Path("empty").iterdir()) == []


# ---------------------------------------------------------------------------------------- doctor


def test_doctor_is_ten_lines_and_all_is_in_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # advice may be long
    told = invoke("doctor")
    assert told.exit_code == 0
    assert len(told.output.splitlines()) <= 10
    level = prove(detect_sandbox()).level
    assert f"level {level}" in told.output
    assert "canaries" not in told.output
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)}
    assert rows["C++ kernels"]["works"]
    assert rows["sandbox"]["works"] == (level != "S0")
    assert not rows["GPU"]["works"]
    assert "kernelcast has never run on a GPU" in rows["GPU"]["detail"]
    denied = rows["canaries, measure, all in force"]
    assert denied["works"] == (level == "S3")
    assert "secret" in denied["detail"]
    verbose = invoke("doctor", "--verbose").output
    assert all(check in verbose for check in rows)


def test_doctor_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without tools, without packages and without OpenCL."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("kernelcast.cli.setup.opencl_devices", lambda _: [])
    monkeypatch.setattr("kernelcast.cli.setup.find_cuda_tool", lambda _: None)
    monkeypatch.setattr("kernelcast.cli.setup.probe", lambda _: None)
    told = invoke("doctor")
    assert told.exit_code == 1
    for words in (
        "apt-get install g++",
        "apt-get install bubblewrap",
        "apt-get install ocl-icd-libopencl1 pocl-opencl-icd",
        "NVIDIA's CUDA toolkit",
        "pip install 'kernelcast[triton]'",
        "needs NVIDIA's driver",
        "not installed: llm, data, cuda, triton,",
        "pip install 'kernelcast[NAME]'",
    ):
        assert words in " ".join(told.output.split())


def test_doctor_checks_every_extra() -> None:
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    declared = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    everything = declared.pop("all")
    assert list(_EXTRAS) == list(declared)
    del declared["ray"], declared["torch"], declared["train"]  # for their size
    assert everything == [f"kernelcast[{','.join(declared)}]"]
