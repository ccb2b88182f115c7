"""Extensions are built in one process and loaded in another: the same call, the same library."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends import _extensions

SOURCE = "from torch.utils.cpp_extension import load_inline\n"


class Compiler:
    """Stands for `load_inline`: leaves a library, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.makes_library = True

    def install(self) -> None:
        """Be PyTorch's, as in a new process."""
        extension = vars(sys.modules["torch.utils.cpp_extension"])
        extension["load_inline"] = extension["load"] = self.load_inline

    def load_inline(
        self,
        name: str,
        cpp_sources: Any,
        cuda_sources: Any = None,
        functions: Any = None,
        extra_cflags: Any = None,
        extra_include_paths: Any = None,
        build_directory: str | None = None,
        verbose: bool = False,
        is_python_module: bool = True,
        use_pch: bool = False,
    ) -> str:
        told = dict(locals())
        del told["self"]
        self.told.append(told)
        if self.makes_library:
            assert build_directory is not None
            (Path(build_directory) / f"{name}.so").write_text(str(cpp_sources))
        return f"built {name}"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    for name in ("torch", "torch.utils", "torch.utils.cpp_extension"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    made.install()
    return made


def call(*positional: Any, **named: Any) -> Any:
    """As a module does."""
    return vars(sys.modules["torch.utils.cpp_extension"])["load_inline"](*positional, **named)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of libraries that were loaded as Python modules; none is a real one."""
    paths: list[str] = []

    class Loader:
        def __init__(self, path: str) -> None:
            self.path = path

        def create_module(self, _: Any) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            paths.append(self.path)

    def spec(name: str, path: str) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(name, Loader(path))  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.util, "spec_from_file_location", spec)
    return paths


def test_what_was_built_is_loaded_by_the_same_call(
    compiler: Compiler, loaded: list[str], tmp_path: Path
) -> None:
    made = _extensions.record(str(tmp_path), [], SOURCE)
    assert call("one", "int f();", functions=["f"], verbose=True) == "built one"
    assert call(name="two", cpp_sources=["int g();"]) == "built two"
    assert [library for library, _, _ in made.values()] == ["one.so", "two.so"]
    assert all(is_module for _, _, is_module in made.values())
    assert len(compiler.told) == 2
    compiler.install()
    _extensions.use(made, "/another/folder")
    # By position or by name, and as loud as it likes.
    assert call("one", cpp_sources="int f();", functions=["f"]).__name__ == "one"
    assert call("two", ["int g();"], verbose=True, build_directory="/tmp/mine").__name__ == "two"
    assert loaded == [f"/another/folder/{folder}/{library}" for library, folder, _ in made.values()]
    assert len(compiler.told) == 2  # nothing was built again


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        (("one", "int g();"), {"functions": ["f"]}),
        (("two", "int f();"), {"functions": ["f"]}),
        (("one", "int f();"), {"functions": ["g"]}),
        (("one", "int f();"), {"functions": ["f"], "extra_cflags": ["-O3"]}),
        (("one", "int f();", "__global__"), {"functions": ["f"]}),
    ],
)
def test_another_call_finds_nothing(
    compiler: Compiler, tmp_path: Path, positional: tuple[str, ...], named: dict[str, Any]
) -> None:
    made = _extensions.record(str(tmp_path), [], SOURCE)
    call("one", "int f();", functions=["f"])
    compiler.install()
    _extensions.use(made, str(tmp_path))
    with pytest.raises(RuntimeError, match="was not built when it was imported"):
        call(*positional, **named)
    assert len(compiler.told) == 1


def test_each_is_built_in_a_folder_of_its_own_with_the_header(
    compiler: Compiler, tmp_path: Path
) -> None:
    made = _extensions.record(str(tmp_path), ["/short/headers"], SOURCE)
    call("same", "int f();", extra_include_paths=["/mine"], build_directory="/tmp", verbose=True)
    call("same", "int g();")
    first, second = compiler.told
    assert first["extra_include_paths"] == ["/short/headers", "/mine"]
    assert second["extra_include_paths"] == ["/short/headers"]
    folders = [Path(told["build_directory"]) for told in compiler.told]
    assert folders[0] != folders[1]
    assert {folder.parent for folder in folders} == {tmp_path / "extensions"}
    assert [folder for _, folder, _ in made.values()] == [
        str(folder.relative_to(tmp_path)) for folder in folders
    ]
    assert not first["verbose"]


def test_a_library_that_is_no_module_is_loaded_as_such(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _extensions.record(str(tmp_path), [], SOURCE)
    call("ops", "TORCH_LIBRARY", is_python_module=False)
    libraries: list[str] = []
    ops = types.SimpleNamespace(load_library=libraries.append)
    monkeypatch.setattr(sys.modules["torch"], "ops", ops, raising=False)
    compiler.install()
    _extensions.use(made, "/there")
    path = call("ops", "TORCH_LIBRARY", is_python_module=False)
    assert libraries == [path]
    assert path.startswith("/there/extensions/")
    assert path.endswith("/ops.so")


def test_what_left_no_library_is_not_noted(compiler: Compiler, tmp_path: Path) -> None:
    compiler.makes_library = False
    made = _extensions.record(str(tmp_path), [], SOURCE)
    call("one", "int f();")
    assert made == {}


def test_a_source_without_extensions_leaves_pytorch_alone(
    compiler: Compiler, tmp_path: Path
) -> None:
    before = dict(vars(sys.modules["torch.utils.cpp_extension"]))
    _extensions.record(str(tmp_path), [], "import torch\n")
    _extensions.use({}, str(tmp_path))
    assert vars(sys.modules["torch.utils.cpp_extension"]) == before


MESSAGE = """RuntimeError: Error building extension 'k':
[1/2] c++ -MMD -MF main.o.d -I/usr/x -c main.cpp
FAILED: [code=1] main.o
/usr/bin/c++ -MMD -MF main.o.d -c /work/extensions/0a1b/main.cpp -o main.o
In file included from /site/include/torch/extension.h:5,
/work/extensions/0a1b/main.cpp: In function 'int f()':
/work/extensions/0a1b/main.cpp:4:12: error: 'undeclared' was not declared in this scope
/work/extensions/0a1b/main.cpp:4:12: note: suggested alternative
ninja: build stopped: subcommand failed.
line 7, in <module>: load_inline(
"""


def test_a_message_has_the_compilers_words_and_not_its_commands() -> None:
    assert _extensions.plain(MESSAGE, "/work").splitlines() == [
        "RuntimeError: Error building extension 'k':",
        "main.cpp: In function 'int f()':",
        "main.cpp:4:12: error: 'undeclared' was not declared in this scope",
        "line 7, in <module>: load_inline(",
    ]


def test_a_message_of_commands_alone_is_kept() -> None:
    assert _extensions.plain("ninja: error: out of memory\n", "/work") == (
        "ninja: error: out of memory\n"
    )
