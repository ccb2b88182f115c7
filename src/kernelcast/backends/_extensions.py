"""Child-side: the C++ and CUDA extensions of a PyTorch module.

A module builds them by `load_inline` when it is imported. `record` lets it do so in the process
that may start compilers, and notes what was built; `record_for_cpu` builds CUDA text for the CPU.
In the process that is measured, `use` makes the same call load the library that is there.
"""
# ruff: noqa: PTH118

import ctypes
import hashlib
import importlib
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


def record(folder: str, headers: "list[str]", source: str) -> "dict[str, list[Any]]":
    """Note each extension that is built: its name, its library within the folder, and its kind."""

    def build(original: "Any", name: str, arguments: "dict[str, Any]") -> "Any":
        if headers:
            paths = list(arguments.get("extra_include_paths") or [])
            arguments["extra_include_paths"] = [*headers, *paths]
        return original(name, **arguments)

    return _record(folder, source, build)


def _record(
    folder: str, source: str, build: "Callable[[Any, str, dict[str, Any]], Any]"
) -> "dict[str, list[Any]]":
    made: dict[str, list[Any]] = {}

    def wrap(function: str, original: "Any") -> "Any":
        def building(name: str, *positional: "Any", **arguments: "Any") -> "Any":
            arguments = _named(original, name, positional, arguments)
            key = _key(function, name, arguments)
            directory = os.path.join(folder, "extensions", key)
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
            arguments.update(build_directory=directory, verbose=False)
            loaded = build(original, name, arguments)
            library = [file for file in os.listdir(directory) if file.endswith(".so")]  # noqa: PTH208
            if library:
                is_module = arguments.get("is_python_module", True)
                made[key] = [library[0], os.path.join("extensions", key), is_module]
            return loaded

        return building

    _replace(source, wrap)
    return made


_OF_LAYOUT = re.compile(
    "redefinition|redeclar|ambiguous|conflicting|default argument|was declared|changes? meaning"
)
_DEFINED = re.compile(r"-[DU]\w+(?:=[\w.+-]*)?")
_CUDA_FLAGS = (  # as PyTorch has them for nvcc
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"),
    *("-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"),
)


def record_for_cpu(
    folder: str, headers: "list[str]", source: str, log: "list[str]"
) -> "dict[str, list[Any]]":
    """The same, with CUDA text made C++ for the headers in these folders.

    All files of an extension are compiled as one, which takes half the time; if they do not go
    together, one by one. What the compiler says against an extension is added to the log.
    """
    text_of = importlib.import_module("_cuda_text")

    def build(original: "Any", name: str, arguments: "dict[str, Any]") -> "Any":
        directory = arguments["build_directory"]
        try:
            is_file = original is load
            parts = list(_files(arguments["sources"]) if is_file else _inline_files(arguments))
            parts = [(where, text_of.cpp(text)) for where, text in parts]
        except (text_of.Unknown, OSError) as error:
            log.append(f"unknown: {error}")
            raise RuntimeError(f"extension {name!r}: {error}") from None
        flags = [
            str(flag)
            for kind in ("extra_cflags", "extra_cuda_cflags")
            for flag in arguments.get(kind) or []
        ]
        options = {
            "extra_cflags": [
                *("-O1", "-w", *text_of.FORCED, *_CUDA_FLAGS),
                *filter(_DEFINED.fullmatch, flags),
            ],
            "extra_include_paths": [*headers, *(arguments.get("extra_include_paths") or [])],
            "build_directory": directory,
            "is_python_module": arguments.get("is_python_module", True),
            "with_cuda": False,
        }

        def built(*files: "list[tuple[str, str]]") -> "Any":
            paths = []
            for number, file in enumerate(files):
                paths.append(os.path.join(directory, f"part{number}.cpp"))
                with open(paths[-1], "w") as made:  # noqa: PTH123
                    made.writelines(f'#line 1 "{where}"\n{text}\n' for where, text in file)
            return load(name, paths, **options)

        try:
            try:
                return built(parts)
            except RuntimeError as error:
                if len(parts) == 1 or not _OF_LAYOUT.search(str(error)):
                    raise
            return built(*([part] for part in parts))
        except (RuntimeError, ImportError) as error:
            log.append(str(error))
            raise

    load = importlib.import_module("torch.utils.cpp_extension").load
    return _record(folder, source, build)


def _inline_files(arguments: "dict[str, Any]") -> "Iterator[tuple[str, str]]":
    """The files that `load_inline` would write."""
    cpp, cuda = (_texts(arguments.get(kind)) for kind in ("cpp_sources", "cuda_sources"))
    functions = arguments.get("functions")
    if functions is not None:
        functions = [functions] if isinstance(functions, str) else functions
        names = dict(functions) if isinstance(functions, dict) else dict.fromkeys(functions, "")
        cpp.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        cpp += [f'm.def("{name}", torch::wrap_pybind_function({name}));' for name in names]
        cpp.append("}")
    yield "main.cpp", "\n".join(cpp)
    if cuda:
        yield "cuda.cu", "\n".join(cuda)


def _texts(given: "Any") -> "list[str]":
    return [given] if isinstance(given, str) else list(given or [])


def _files(paths: "Any") -> "Iterator[tuple[str, str]]":
    paths = [str(path) for path in ([paths] if isinstance(paths, str) else paths)]
    for path in sorted(paths, key=lambda path: path.endswith(".cu")):
        with open(path) as file:  # noqa: PTH123
            yield os.path.basename(path), file.read()  # noqa: PTH119


_MOST_LAUNCHES_BYTES = 1 << 14


def _emulation(made: "dict[str, list[Any]]", folder: str) -> "Any":
    """A library that holds the state of all extensions for the CPU; None if there is none."""
    for library, directory, _ in made.values():
        return ctypes.CDLL(os.path.join(folder, directory, library))
    return None


def set_dry(made: "dict[str, list[Any]]", folder: str, *, is_dry: bool) -> None:
    """Whether extensions for the CPU only note what they launch."""
    if emulation := _emulation(made, folder):
        emulation.kernelcast_dry(is_dry)


def launched(made: "dict[str, list[Any]]", folder: str) -> str:
    """The launches of extensions for the CPU since this was last asked, as JSON."""
    text = ctypes.create_string_buffer(_MOST_LAUNCHES_BYTES)
    if emulation := _emulation(made, folder):
        emulation.kernelcast_launches(text, ctypes.c_size_t(len(text)))
    return text.value.decode(errors="replace") or "[]"


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
