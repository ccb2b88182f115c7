"""Child-side: the C++ and CUDA extensions of a PyTorch module.

A module builds them by `load_inline` when it is imported. `record` lets it do so in the process
that may start compilers, and notes what was built. In the process that is measured, `use` makes the
same call load the library that is there.
"""
# ruff: noqa: PTH118

import hashlib
import importlib
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NO_MATTER = {"verbose", "build_directory", "keep_intermediates", "use_pch"}
_COMMAND = re.compile(r"^(?:\[\d+/\d+\]|FAILED:|.*?/?(?:c\+\+|g\+\+|nvcc|ninja) -).*\n?", re.M)
_NOISE = re.compile(r"^.*(?:In file included from|/include/torch/|note: |ninja: ).*\n?", re.M)


def _key(function: str, name: str, arguments: "dict[str, Any]") -> str:
    """What tells two extensions apart: everything that the call states but where and how loud."""
    told = sorted((key, repr(value)) for key, value in arguments.items() if key not in _NO_MATTER)
    return hashlib.sha256(repr((function, name, told)).encode()).hexdigest()[:32]


def _replace(source: str, wrap: "Callable[[str, Any], Any]") -> None:
    if "cpp_extension" in source:
        extension = importlib.import_module("torch.utils.cpp_extension")
        for function in ("load_inline", "load"):
            setattr(extension, function, wrap(function, getattr(extension, function)))


def record(folder: str, headers: str, source: str) -> "dict[str, list[Any]]":
    """Note each extension that is built: its name, its library within the folder, and its kind."""
    made: dict[str, list[Any]] = {}

    def wrap(function: str, original: "Any") -> "Any":
        def building(name: str, *positional: "Any", **arguments: "Any") -> "Any":
            arguments = _named(original, name, positional, arguments)
            key = _key(function, name, arguments)
            directory = os.path.join(folder, "extensions", key)
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
            if headers:
                paths = list(arguments.get("extra_include_paths") or [])
                arguments["extra_include_paths"] = [headers, *paths]
            arguments.update(build_directory=directory, verbose=False)
            loaded = original(name, **arguments)
            library = [file for file in os.listdir(directory) if file.endswith(".so")]  # noqa: PTH208
            if library:
                is_module = arguments.get("is_python_module", True)
                made[key] = [library[0], os.path.join("extensions", key), is_module]
            return loaded

        return building

    _replace(source, wrap)
    return made


def use(made: "dict[str, list[Any]]", folder: str) -> None:
    """Let each extension be the library that was built."""
    if not made:
        return

    def wrap(function: str, original: "Any") -> "Any":
        def loading(name: str, *positional: "Any", **arguments: "Any") -> "Any":
            arguments = _named(original, name, positional, arguments)
            found = made.get(_key(function, name, arguments))
            if found is None:
                raise RuntimeError(f"the extension {name!r} was not built when it was imported")
            library, directory, is_module = found
            path = os.path.join(folder, directory, library)
            if not is_module:
                sys.modules["torch"].ops.load_library(path)
                return path
            util = importlib.import_module("importlib.util")
            spec = util.spec_from_file_location(library.partition(".")[0], path)
            module = util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        return loading

    _replace("cpp_extension", wrap)


def _named(
    original: "Any", name: str, positional: "tuple[Any, ...]", arguments: "dict[str, Any]"
) -> "dict[str, Any]":
    inspect = importlib.import_module("inspect")
    bound = inspect.signature(original).bind(name, *positional, **arguments)
    named = dict(bound.arguments)
    del named["name"]
    return named


def plain(message: str, folder: str) -> str:
    """A message without the commands, notes and long paths of a build."""
    short = _NOISE.sub("", _COMMAND.sub("", message)) or message
    return re.sub(rf"{re.escape(folder)}/(?:extensions/\w+/)?", "", short)
