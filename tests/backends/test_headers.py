"""Which short header serves a source. That one is really compiled ahead is shown by a slow test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelcast.backends import _headers
from kernelcast.cache import user_folder

SOURCE = """
from torch.utils.cpp_extension import load_inline
load_inline(name="k", cpp_sources="#include <torch/extension.h>", extra_cflags=[OPTIONS])
"""

OPTIONS_OF_SETS = (
    *("'-O3'", "'-Ofast'", "'-O3', '-fopenmp'", "'-fopenmp'", "'-O3', '-ffast-math'"),
    *("'-march=native'", "'-O3', '-march=native'"),
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder; a compiler that would run fails the test."""
    monkeypatch.setattr(_headers, "user_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(_headers, "_torch", lambda: Path("/somewhere/torch"))
    return tmp_path / "cache"


class Compiler:
    """Stands for the compiler: notes commands, and makes the file that they name."""

    def __init__(self, *, works: bool = True) -> None:
        self.commands: list[list[str]] = []
        self.works = works

    def __call__(self, command: list[str], **_: object) -> None:
        self.commands.append(command)
        if not self.works:
            raise subprocess.CalledProcessError(1, command)
        Path(command[-1]).write_text("compiled ahead")


@pytest.fixture
def compiler(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/sh")  # a file to be looked at
    return made


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n",
        SOURCE + "torch::nn::Linear layer{nullptr};",
        SOURCE + "torch::optim::SGD",
        SOURCE + "torch::jit::load",
        SOURCE + "#include <torch/all.h>",
        SOURCE + "#include <torch/torch.h>",
        SOURCE + "#include <torch/script.h>",
        SOURCE + "#include <torch/nn/functional.h>",
    ],
)
def test_what_needs_more_than_tensors_gets_no_short_header(source: str, compiler: Compiler) -> None:
    assert _headers.torch_headers(source) is None
    assert compiler.commands == []


@pytest.mark.parametrize("more", ["torch::nnz()", "torch::database", "torch/extension.h"])
def test_names_that_only_begin_alike_do_no_harm(more: str, compiler: Compiler) -> None:
    assert _headers.torch_headers(SOURCE + more) is not None


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("", ()),
        ("'-O0'", ()),
        ("'-O1'", ("-O2",)),
        ("'-O3', '-march=native'", ("-O2", "-march=native")),
        ("'-Ofast'", ("-Ofast",)),
        ("'-O3', '-ffast-math', '-fopenmp'", ("-O2", "-ffast-math", "-fopenmp")),
        ("'-fPIC', '-funroll-loops', '-Wall', '-g'", ()),
        ("'-mavx2'", None),
        ("'-DNDEBUG'", None),
        ("'-std=c++20'", None),
        ("'-fno-math-errno', '-O3'", None),
        ("'-UX'", None),
    ],
)
def test_options_are_guessed_from_the_text(written: str, options: tuple[str, ...] | None) -> None:
    assert _headers._options(SOURCE.replace("OPTIONS", written)) == options


def test_the_header_is_compiled_once_for_a_set_of_options(kept: Path, compiler: Compiler) -> None:
    first = _headers.torch_headers(SOURCE.replace("OPTIONS", "'-O3', '-march=native'"))
    assert first is not None
    assert first.parent == kept / "torch-headers"
    assert (first / "torch/extension.h.gch").read_text() == "compiled ahead"
    assert (first / "torch/extension.h").read_bytes() == _headers._SHORT.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o755  # for the sandbox's user
    (command,) = compiler.commands
    assert command[1:3] == ["-O2", "-march=native"]
    assert {"-fPIC", "-std=c++20", "/somewhere/torch/include"} < set(command)
    again = _headers.torch_headers(
        "# other text\n" + SOURCE.replace("OPTIONS", "'-O2', '-march=native'")
    )
    assert again == first
    assert len(compiler.commands) == 1
    other = _headers.torch_headers(SOURCE.replace("OPTIONS", "'-O2'"))
    assert other != first
    assert len(compiler.commands) == 2


def test_the_source_is_no_part_of_what_is_compiled_ahead(compiler: Compiler) -> None:
    """One candidate's text would else be in the header of another."""
    hostile = SOURCE.replace("OPTIONS", "'-O3 -include /etc/passwd'") + "#define at evil\n"
    _headers.torch_headers(hostile)
    (command,) = compiler.commands
    assert not any("passwd" in part or "evil" in part for part in command)


def test_six_sets_are_kept_and_the_oldest_goes(kept: Path, compiler: Compiler) -> None:
    made = []
    for age_s, written in enumerate(OPTIONS_OF_SETS):
        folder = _headers.torch_headers(SOURCE.replace("OPTIONS", written))
        assert folder is not None
        os.utime(folder, (1_000 + age_s, 1_000 + age_s))
        made.append(folder)
    assert set((kept / "torch-headers").iterdir()) == set(made[1:])


@pytest.mark.parametrize("lacking", ["cache", "compiler", "options", "success"])
def test_without_one_compiled_ahead_the_short_header_alone_serves(
    lacking: str, kept: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "cache":
        monkeypatch.setattr(_headers, "user_folder", lambda: None)
    if lacking == "compiler":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    compiler.works = lacking != "success"
    written = "'-mavx512f'" if lacking == "options" else "'-O3'"
    folder = _headers.torch_headers(SOURCE.replace("OPTIONS", written))
    assert folder == _headers._HERE
    assert (folder / "torch/extension.h").is_file()
    assert len(compiler.commands) == (lacking == "success")
    assert not [*kept.rglob("*.gch")]


def test_nothing_is_kept_when_the_cache_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in all tests."""
    monkeypatch.setenv("KERNELCAST_CACHE", "")
    assert user_folder() is None
    assert _headers.torch_headers(SOURCE.replace("OPTIONS", "'-O3'")) == _headers._HERE
