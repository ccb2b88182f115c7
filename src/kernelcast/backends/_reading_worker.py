"""The child that reads PyTorch modules which are written for a GPU: a script, like `_worker`.

It puts the sandbox in force, loads PyTorch once, and forks a process for each module. That process
may start and write nothing. It imports the module, makes it and calls it on one case, up to the
first call of an extension, where what happens cannot be known. `load_inline` and `load` build
nothing: they note the sources and names that they are given.

Requests and replies are lines of JSON. CUDA devices mean the CPU here.
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH100, PTH120, PTH123

import ast
import builtins
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

CONFINED, READY = b"C", b"R"
MOST_BYTES = 1 << 20  # of a report
_MOST_TEXT = 2000
_MOST_EXTENSIONS = 32
_OPEN_FDS = 64

torch: "Any" = None
_module: "Any" = None


class Stop(BaseException):
    """An extension is called: what it returns is not known."""


def main(arguments: "list[str]") -> None:
    """Serve under the policy in the first argument."""
    global torch, _module
    import _confine  # type: ignore[import-not-found]  # `_sandbox` puts this folder on the path
    import _module as shared  # type: ignore[import-not-found]

    policy = _confine.decode(arguments[0])
    packages, _, *numbers = _confine.confined(arguments)
    request_fd, reply_fd = map(int, numbers)
    os.write(reply_fd, CONFINED)
    here = os.path.dirname(__file__)
    importlib.import_module("_module_graph")
    # This folder comes off the path: its `torch` is not PyTorch.
    sys.path[:] = [*(path for path in sys.path if path != here), *json.loads(packages)]
    sys.dont_write_bytecode = True
    torch, _module = shared.import_torch(), shared
    for name in ("torch.utils.cpp_extension", "torch.fx", "tempfile", "inspect"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    _module.on_cpu()
    _module.pretend_cuda()
    os.write(reply_fd, READY)
    with open(request_fd, "rb") as requests:
        for line in requests:
            _reply(reply_fd, _read_apart(json.loads(line), policy, (request_fd, reply_fd)))


def _reply(fd: int, answer: "dict[str, Any]") -> None:
    text = json.dumps(answer).encode() + b"\n"
    while text:
        text = text[os.write(fd, text) :]


def _read_apart(
    job: "dict[str, Any]", policy: "dict[str, Any]", private: "Iterable[int]"
) -> "dict[str, Any]":
    """What a sealed process of its own says of a module, and what it took."""
    import _confine

    result, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for fd in (*private, result):
                os.close(fd)
            limit = int(job["cpu_s"] + time.process_time()) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            _confine.seal(policy, report)
            text = json.dumps(_read(job)).encode()[:MOST_BYTES]
            while text:
                text = text[os.write(report, text) :]
        finally:
            os._exit(0)
    os.close(report)
    text, late = b"", False
    until = time.monotonic() + job["limit_s"]
    while len(text) < MOST_BYTES:
        ready, _, _ = select.select([result], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(result, 1 << 16) if ready else b""
        if not piece:
            late = not ready
            break
        text += piece
    os.close(result)
    os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return {
        "report": text.decode(errors="replace"),
        "signal": status & 0x7F,
        "late": late,
        "cpu_s": used.ru_utime + used.ru_stime,
    }


# --------------------------------------------------------------------------------------- to read


def _read(job: "dict[str, Any]") -> "dict[str, Any]":
    """Import a module, make it, call it and trace it, as far as that goes."""
    extensions: list[_Extension] = []
    extension: Any = sys.modules["torch.utils.cpp_extension"]
    extension.load_inline = _stand_in(extension.load_inline, _inline, extensions)
    extension.load = _stand_in(extension.load, _load, extensions)
    _write_to_memory()
    report: dict[str, Any] = {"stage": "import", "error": None, "calls": []}
    sys.stdin = io.StringIO()
    try:
        with torch.no_grad():
            _follow(job, report, extensions)
    except Stop:
        pass
    except BaseException as error:
        report["error"] = _error(error, job["source"])
    report["extensions"] = [each.sources for each in extensions[:_MOST_EXTENSIONS]]
    for each in extensions:
        report["calls"] += each.calls
    return report


def _follow(
    job: "dict[str, Any]", report: "dict[str, Any]", extensions: "list[_Extension]"
) -> None:
    entry = _import(job["source"]).get(job["entry"])
    if not callable(entry):
        report["missing"] = True
        return
    case = job["case"]
    if case is None:
        return
    report["stage"] = "init"
    function = entry
    if case["init"] is not None:
        function = _module.seeded(entry, case["init"], job["seed"])
    report["stage"] = "call"
    tensors = {
        name: torch.ones(shape).to(getattr(torch, dtype)) for name, dtype, shape in case["arrays"]
    }
    try:
        answer = function(*_module.build(case["call"], tensors))
        report["stage"] = "result"
        if case["returns"]:
            tensors |= _module.returned(case["returns"], answer)
        for name, dtype, shape in case["outputs"]:
            _module.require(name, tensors[name], getattr(torch, dtype), shape)
        report["stage"] = "end"
    except Stop:
        report["stage"] = "extension"
    if job["timed"] is not None:
        import _module_graph  # type: ignore[import-not-found]

        report["operators"] = _module_graph.compared(job, entry, extensions, _module)


def _import(source: str) -> "dict[str, Any]":
    """Execute the candidate as a module that is called `kernel`."""
    _module.install_shims(source)
    kernel = type(sys)("kernel")
    kernel.__file__ = "kernel.py"
    sys.modules["kernel"] = kernel
    linecache = importlib.import_module("linecache")  # Triton reads the source of its functions
    lines = source.splitlines(keepends=True)
    linecache.cache["kernel.py"] = (len(source), None, lines, "kernel.py")
    exec(compile(source, "kernel.py", "exec"), kernel.__dict__)  # noqa: S102
    return kernel.__dict__


def _error(error: BaseException, source: str) -> "dict[str, Any]":
    """What was raised: its type, and whether a statement of the module raised it on purpose."""
    step, deepest = error.__traceback__, None
    own = None
    while step is not None:
        deepest = step
        if step.tb_frame.f_code.co_filename == "kernel.py":
            own = step
        step = step.tb_next
    files = []
    step = error.__traceback__
    while step is not None:
        files.append(step.tb_frame.f_code.co_filename)
        step = step.tb_next
    return {
        "types": [kind.__name__ for kind in type(error).__mro__],
        "text": _module.text_of(error, source)[:_MOST_TEXT],
        "on_purpose": own is not None and own is deepest and _raises(source, own.tb_lineno),
        "within": any("triton" in file or "_dynamo" in file for file in files),
        "own": own is not None and own is deepest,
    }


def _raises(source: str, line: int) -> bool:
    """Whether the statement at a line raises or asserts."""
    return any(
        isinstance(node, (ast.Raise, ast.Assert))
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(source))
    )


# ------------------------------------------------------------------------- in place of extensions


class _Extension:
    """What `load_inline` returns: functions of the names that it was told, which stop the call."""

    def __init__(self, sources: "dict[str, Any]") -> None:
        self.sources = sources
        self.calls: list[dict[str, Any]] = []
        self.traced = False

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(self, name)


class _Function:
    def __init__(self, extension: "_Extension", name: str) -> None:
        self._extension, self.__name__ = extension, name
        self.__module__ = "extension"

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        extension = self._extension
        if extension.traced:
            import _module_graph

            return _module_graph.call(self, args, kwargs)
        kinds = [_kind(value) for value in args]
        called = {"name": self.__name__, "kinds": kinds, "keywords": sorted(map(str, kwargs))}
        extension.calls.append({**called, "extension": extension.sources["name"]})
        raise Stop


def _kind(value: "Any") -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    return "None" if value is None else "other"


def _stand_in(
    original: "Any", note: "Callable[..., dict[str, Any]]", extensions: "list[_Extension]"
) -> "Any":
    inspect = sys.modules["inspect"]
    signature = inspect.signature(original)

    def building(*args: "Any", **kwargs: "Any") -> "Any":
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        extension = _Extension(note(dict(bound.arguments)))
        extensions.append(extension)
        return extension

    return building


def _inline(arguments: "dict[str, Any]") -> "dict[str, Any]":
    functions = arguments["functions"]
    if isinstance(functions, str):
        functions = [functions]
    return {
        "name": str(arguments["name"]),
        "cpp": _texts(arguments["cpp_sources"]),
        "cuda": _texts(arguments["cuda_sources"]),
        "functions": None if functions is None else [str(name) for name in functions],
        "flags": _flags(arguments),
        "whole": arguments["is_python_module"] is True,
    }


def _load(arguments: "dict[str, Any]") -> "dict[str, Any]":
    paths = arguments["sources"]
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    texts: dict[str, list[str]] = {"cpp": [], "cuda": []}
    for path in map(str, paths):
        with open(path) as file:
            texts["cuda" if path.endswith((".cu", ".cuh")) else "cpp"].append(file.read())
    return {
        "name": str(arguments["name"]),
        **texts,
        "functions": None,
        "flags": _flags(arguments),
        "whole": False,
    }


def _texts(sources: "Any") -> "list[str]":
    if not sources:
        return []
    return [sources] if isinstance(sources, str) else [str(source) for source in sources]


def _flags(arguments: "dict[str, Any]") -> "list[str]":
    names = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")
    return [str(flag) for name in names for flag in arguments[name] or ()]


# ----------------------------------------------------------------------------- in place of a GPU


class _File(io.StringIO):
    """A file that a module writes before it lets it be compiled: it lies in memory alone."""

    def __init__(self, path: str, kept: "dict[str, str]") -> None:
        super().__init__()
        self._path, self._kept = path, kept
        self.name = path

    def close(self) -> None:
        if not self.closed:
            self._kept[self._path] = self.getvalue()
        super().close()


def _write_to_memory() -> None:
    """Let text files be written and read back, and folders be made, where nothing is."""
    kept: dict[str, str] = {}
    opened = builtins.open

    def opening(file: "Any", mode: str = "r", *args: "Any", **kwargs: "Any") -> "Any":
        if isinstance(file, (str, os.PathLike)):
            path = os.path.abspath(file)
            if "w" in mode and "b" not in mode:
                return _File(path, kept)
            if path in kept and mode in ("r", "rt"):
                return io.StringIO(kept[path])
        return opened(file, mode, *args, **kwargs)

    builtins.open = opening
    tempfile: Any = sys.modules["tempfile"]
    tempfile.tempdir = "/tmp"  # noqa: S108
    tempfile.mkdtemp = lambda *_, **__: "/tmp/made"  # noqa: S108
    os.makedirs = lambda *_, **__: None
    os.mkdir = lambda *_, **__: None
