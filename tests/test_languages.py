from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from kernelcast import Kernel, Problem, ProblemError, SetupError, UnknownComponent
from kernelcast.canonical import canonical_source, kernel_id, read_kernel
from kernelcast.languages import (
    BUILT_IN,
    dialect,
    element_type,
    ending_of,
    endings,
    names,
    of_ending,
)
from kernelcast.problems import load_problem
from tests.backends.dtype_problems import sum_problem
from tests.examples import install_example

BROKEN = """
[kernelcast]
language.gone = kernelcast_c:Gone
language.wrong = kernelcast_c:FLAGS
"""


@pytest.fixture
def plain_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    install_example("plain_c", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("kernelcast_c", None)


def test_the_built_in_languages_are_these() -> None:
    assert names() == ["cpp", "cuda", "hip", "opencl", "python", "torch", "triton"]
    assert list(endings()) == [".cpp", ".cc", ".cu", ".hip", ".cl", ".py"]
    known = [".cpp", ".cu", ".hip", ".cl", ".txt", ".py", ".py"]
    assert [ending_of(name) for name in names()] == known


def test_a_built_in_language_is_known_without_reading_entry_points() -> None:
    code = (
        "import importlib.metadata as metadata, pathlib\n"
        "read = metadata.entry_points\n"
        "def refuse(group, **more):\n"
        "    assert group != 'kernelcast', 'entry points were read'\n"
        "    return read(group=group, **more)\n"
        "metadata.entry_points = refuse\n"
        "import kernelcast.cli\n"
        "from kernelcast.canonical import kernel_id, language_of\n"
        "assert language_of(pathlib.Path('kernel.cu')) == 'cuda'\n"
        "assert kernel_id('int x;', 'cuda')\n"
        "assert kernelcast.load_problem('softmax').language == 'cpp'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["", "C", "c++", "3d", "c c", "c\n", "a" * 21])
def test_a_name_is_a_short_word_in_small_letters(name: str) -> None:
    with pytest.raises(ValidationError):
        Kernel(id="0", language=name, source="")


def test_an_installed_language_is_read_as_its_dialect_says(plain_c: Path) -> None:
    assert "c" in names()
    assert of_ending(".c") == "c"
    assert ending_of("c") == ".c"
    (plain_c / "kernel.c").write_text("void scale(float *mine, long N) { /* fast */ mine[N]; }")
    kernel = read_kernel(plain_c / "kernel.c")
    assert kernel.language == "c"
    assert kernel.id == kernel_id("void scale(float *x, long M) { x[M]; }", "c")
    shown = canonical_source(kernel.source, "c", "scale")
    assert "fast" not in shown
    assert "mine" not in shown


def test_a_word_of_the_dialect_stays(plain_c: Path) -> None:
    (plain_c / "kernelcast_c.py").write_text(
        "from kernelcast.languages import Dialect\n"
        "C = Dialect(family='c', lists=('c',), words=('fast_sqrt',))\n"
    )
    (plain_c / "kernelcast_c-0.1.0.dist-info/entry_points.txt").write_text(
        "[kernelcast]\nlanguage.own = kernelcast_c:C\n"
    )
    text = "float f(float x) { return fast_sqrt(own_sqrt(x)); }"
    assert "fast_sqrt" in canonical_source(text, "own")
    assert "own_sqrt" not in canonical_source(text, "own")


def test_a_dialect_says_what_it_calls_data_types_and_which_it_lacks(plain_c: Path) -> None:
    assert element_type("c", "float16") == "_Float16"
    (plain_c / "kernelcast_c.py").write_text(
        "from kernelcast.languages import Dialect\n"
        "C = Dialect(family='c', endings=('.c',), dtypes={'bool': '_Bool', 'float16': ''})\n"
    )
    (plain_c / "kernelcast_c-0.1.0.dist-info/entry_points.txt").write_text(
        "[kernelcast]\nlanguage.own = kernelcast_c:C\n"
    )
    sys.modules.pop("kernelcast_c", None)
    assert element_type("own", "bool") == "_Bool"
    assert element_type("own", "float16") == ""
    folder = plain_c / "problem"
    folder.mkdir()
    sum_problem(folder, "float16")
    toml = (folder / "problem.toml").read_text().replace('"cpp"', '"own"')
    (folder / "problem.toml").write_text(toml)
    (folder / "seed.c").write_text("")
    with pytest.raises(ProblemError, match="a is float16, which own does not have; use another"):
        load_problem(folder)


def test_an_installed_language_takes_no_ending_from_a_built_in_one(plain_c: Path) -> None:
    module = plain_c / "kernelcast_c.py"
    module.write_text(module.read_text().replace('(".c",)', '(".cu",)'))
    assert of_ending(".cu") == "cuda"
    assert endings()[".cu"] == "cuda"


def test_an_unknown_language_is_told_with_the_known_ones_and_the_entry_point() -> None:
    with pytest.raises(
        UnknownComponent,
        match=r"no language 'c': known are cpp, .*triton; .* entry point language\.c in the group",
    ):
        dialect("c")


@pytest.mark.parametrize(
    ("name", "fix"), [("gone", "install its package again"), ("wrong", "not a .*Dialect: correct")]
)
def test_a_broken_package_is_told(plain_c: Path, name: str, fix: str) -> None:
    (plain_c / "kernelcast_c-0.1.0.dist-info/entry_points.txt").write_text(BROKEN)
    with pytest.raises(SetupError, match=fix):
        dialect(name)
    assert ending_of(name) == ".txt"


def test_records_of_a_language_that_is_not_installed_can_be_read() -> None:
    problem = Problem.unstated("p", "c", "int x;")
    assert Problem.model_validate_json(problem.model_dump_json()) == problem


def test_every_list_of_a_built_in_language_exists() -> None:
    for language in BUILT_IN:
        assert canonical_source("x", language) is not None
