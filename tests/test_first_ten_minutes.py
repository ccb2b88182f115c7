"""The first ten minutes of a new user: the wheel in an empty environment, outside the checkout.

Every command of README and tutorial runs there in its order, the demo with fewer repeats, and
typical mistakes end with a sentence that names the fix.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_init import HEAVY, IMPORT_EVERYTHING

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs/tutorials/first-search.md", ROOT / "README.md")
HANG_S = 1800.0  # ends a command that hangs; no verdict depends on it
KERNEL = 'extern "C" void kernel(const float* x, float* y, long R, long C) {}\n'
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel: the gate's, or one made here."""
    if made := os.environ.get("KERNELCAST_INSTALLED"):
        return Path(made) / "bin"
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-compile", wheel], check=True)
    return folder / "venv/bin"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a command line in an empty folder, with the installed programs first on the path."""
    hidden = ("COV", "PYTHONPATH", "KERNELCAST", "PYTEST")
    environment = {
        key: value for key, value in os.environ.items() if not key.upper().startswith(hidden)
    }
    environment |= {"PATH": f"{installed}:{os.environ['PATH']}", "COLUMNS": "80"}

    def run(command: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=HANG_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


def documented(pattern: str, flags: re.RegexFlag) -> list[str]:
    """What tutorial and README show, in their order; what both show is there once."""
    texts = [text for page in PAGES for text in re.findall(pattern, page.read_text(), flags)]
    return list(dict.fromkeys(texts))


def test_a_plain_install_is_small(run: Run) -> None:
    packages = json.loads(run("python -m pip list --format=json").stdout)
    names = {package["name"].lower() for package in packages}
    assert "kernelcast" in names
    assert not HEAVY & names


def test_every_module_of_a_plain_install_can_be_imported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text(IMPORT_EVERYTHING)
    done = run("python imports.py")
    assert done.returncode == 0, done.stderr
    assert "kernelcast.backends.cpp" in json.loads(done.stdout)["modules"]


@pytest.mark.longest
def test_every_command_and_example_of_tutorial_and_readme_runs(run: Run, tmp_path: Path) -> None:
    commands = [
        command
        for command in documented(r"^\$ (.+?)(?: +#.*)?$", re.M)
        if not command.startswith("pip install")
    ]
    assert len(commands) >= 9
    assert commands[-1] == "kernelcast demo"
    commands[-1] += " --quick"
    for command in commands:
        done = run(command)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"$ {command}\n{done.stderr}"
    for words in ("Recorded", "Measured here", "speedup", "kernel: kernelcast-demo/best.cpp"):
        assert words in done.stdout
    assert "kernel" in (tmp_path / "kernelcast-demo/best.cpp").read_text()
    assert (tmp_path / "kernelcast-demo/demo.png").read_bytes().startswith(b"\x89PNG")
    (next_command,) = re.findall(r"^ +(kernelcast show .+?)  +", done.stdout, re.M)
    assert run(next_command).returncode == 0
    for number, example in enumerate(documented(r"```python\n(.*?)```", re.S)):
        (tmp_path / f"example_{number}.py").write_text(example)
        done = run(f"python example_{number}.py")
        assert done.returncode == 0, f"{example}\n{done.stderr}"
    assert list(tmp_path.glob(".kernelcast/best/*.cpp"))


# A command line, and words of the sentence that names the fix.
MISTAKES = {
    "kernelcast serch softmax": "Did you mean 'search'?",
    "kernelcast search": "name a problem",
    "kernelcast search softmaxx": "bundled: conv2d",
    "kernelcast search softmax -n -3": "x>=0",
    "kernelcast search softmax -n many": "not a valid integer",
    "kernelcast search softmax --slots 0": "x>=1",
    "kernelcast search softmax --device-seconds nan": "a number from 0 on",
    "kernelcast search softmax --policy nope": "installed: conformal",
    "kernelcast search softmax --strategy nope": "installed: best_of_n",
    "kernelcast search softmax --forecaster nope": "installed: cascade",
    "kernelcast search softmax --proposer nope": "installed: llm",
    "kernelcast search softmax --backend nope": "installed: cpp",
    "kernelcast search softmax --device H100-SXM5": "leave out --device",
    "kernelcast search softmax --device TPU": "known",
    "kernelcast search softmax --forecaster llm": "--base-url and --model",
    "kernelcast search softmax --base-url http://127.0.0.1:9/v1 --model m": "add --forecaster llm",
    "kernelcast search softmax --proposer llm --base-url http://127.0.0.1:9/v1 --model m":
        "kernelcast[llm]",
    "kernelcast search softmax --forecast-usd 1": "--price-in and --price-out",
    "kernelcast search softmax --require S9": "'S1', 'S2', 'S3'",
    "kernelcast search softmax --out missing/best.cpp": "mkdir -p missing",
    "kernelcast search softmax --store a_file/store.db": "with --store",
    "kernelcast search softmax --store text.db": "is not a kernelcast store",
    "kernelcast search softmax --store nosuch://host/db": "name a file, or a database URL",
    "kernelcast search --config missing.toml": "does not exist",
    "kernelcast search --config not_toml.toml": "cannot be read",
    "kernelcast search --config unknown.toml": "unknown keys ['polices']",
    "kernelcast search empty": "problem.toml is missing; add it",
    "kernelcast search fortran": "set language to one of cpp",
    "kernelcast search broken_seed -n 2 --store seed.db": "mend",
    "kernelcast search broken_template -n 9 --store template.db": "--kernel",
    "kernelcast show latest --store no.db": "there is no store",
    "kernelcast show nope --store runs.db": "the latest: done",
    "kernelcast show done --kernel zzz --store runs.db": "lists the best ones",
    "kernelcast show done --figure missing/best.png --store runs.db": "mkdir -p missing",
    "kernelcast resume latest --store no.db": "`kernelcast search` makes one",
    "kernelcast ls --store nowhere.db": "--store names another",
    "kernelcast init full": "choose another folder",
    "kernelcast init a_file/mine": "name another",
    "kernelcast rank empty": "no kernel",
    "kernelcast rank nowhere": "bundled: conv2d",
    "kernelcast rank kernels": "--reference",
    "kernelcast rank kernels --reference kernels/a.cpp --miss 2": "0",
    "kernelcast rank rows.parquet --device A100": "kernelcast[data]",
    "kernelcast forecast kernels/a.cpp text.db": "known endings are .cpp",
    "kernelcast forecast kernels/a.cpp nowhere.cpp": "does not exist",
    "kernelcast forecast kernels/a.cpp kernels/b.cpp --device A100": "may be A100-SXM4-80GB",
    "kernelcast inspect kernels/a.cpp --problem softmax": "name a .cu file",
    "kernelcast compare softmax": "--vary",
    "kernelcast compare softmax --vary speed=fast,slow": "policy",
    "kernelcast compare softmax --vary policy=selective,nope": "installed: conformal",
    "kernelcast eval": "Missing argument 'ROWS'",
    "kernelcast eval rows.parquet": "kernelcast[data]",
    "kernelcast demo --figure missing/demo.png": "mkdir -p missing",
    "kernelcast doctor --everything": "No such option",
}  # fmt: skip


def write_what_the_mistakes_are_made_with(folder: Path, run: Run) -> None:
    for name in ("empty", "kernels", "full"):
        (folder / name).mkdir()
    (folder / "full/precious").touch()
    (folder / "a_file").touch()
    (folder / "rows.parquet").write_bytes(b"PAR1")
    (folder / "text.db").write_text("This is a text, and no database.\n" * 20)
    (folder / "not_toml.toml").write_text("problem = \n")
    (folder / "unknown.toml").write_text('problem = "softmax"\npolices = 1\n')
    for name in "ab":
        (folder / f"kernels/{name}.cpp").write_text(f"// {name}\n{KERNEL}int {name};\n")
    for name in ("fortran", "broken_seed", "broken_template"):
        assert run(f"kernelcast init {name}").returncode == 0
    toml = folder / "fortran/problem.toml"
    toml.write_text(toml.read_text().replace('"cpp"', '"fortran"'))
    (folder / "broken_seed/seed.cpp").write_text(KERNEL + "mend me\n")
    (folder / "broken_template/template.cpp").write_text(KERNEL + "mend me\n")
    done = run(
        "kernelcast search broken_seed/../fortran/../broken_seed --name done --store runs.db"
    )
    assert done.returncode == 1, done.stderr


# Imports the installed package once, prints what it imported, and runs each command in a fork.
FORK_EACH = f"""
import json, os, shlex, tempfile
from importlib.metadata import entry_points
{IMPORT_EVERYTHING}
(script,) = entry_points(group="console_scripts", name="kernelcast")
main = script.load()
for command in json.load(open("commands.json")):
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = shlex.split(command)
            try:
                main()
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        print(json.dumps([command, os.waitstatus_to_exitcode(status), output.read()]), flush=True)
"""


def test_a_typical_mistake_ends_with_a_sentence_that_names_the_fix(
    run: Run, tmp_path: Path
) -> None:
    assert len(MISTAKES) >= 40
    write_what_the_mistakes_are_made_with(tmp_path, run)
    (tmp_path / "fork_each.py").write_text(FORK_EACH)
    (tmp_path / "commands.json").write_text(json.dumps(list(MISTAKES)))
    forked = run("python fork_each.py")
    finished = [json.loads(line) for line in forked.stdout.splitlines()[1:]]
    assert [command for command, _, _ in finished] == list(MISTAKES), forked.stderr
    faults = []
    for command, exit_code, output in finished:
        said = " ".join(output.split())
        words = MISTAKES[command]
        if exit_code not in (1, 2) or "Traceback" in said or words not in said:
            faults.append(f"$ {command}\nexit code {exit_code}, wanted: {words}\n{said}\n")
    assert not faults, "\n".join(faults)
