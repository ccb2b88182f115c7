"""The child that runs a problem's reference.py: a script for a bare interpreter, like `_worker`.

It puts the sandbox in force (`_confine`), says so by a byte, loads NumPy, and says so by another
byte. Then it reads lines of JSON: first the source, then one request a line, which says where in
the shared memory the inputs lie and where the outputs go, as float64. Each reply is one write that
a pipe takes whole: nonce, status, and text or the shapes of the arrays that were returned.

If the source is PyTorch's (`_module`), arrays are bytes with the name of a type, and a request may
also ask to draw inputs or to check outputs.
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH120, PTH123

import importlib
import json
import mmap
import os
import struct
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CONFINED, READY = b"C", b"R"
RETURNED, RAISED, NOT_LOADED, NO_FUNCTION = range(4)
MOST_BYTES = 4096  # of a reply: a pipe takes so many at once
HEAD = struct.Struct("<qq")
_NO_NUMBERS = "cSUmM"  # kinds of dtypes: complex, text, times
_MOST_TEXT = 1000  # characters, of at most 4 bytes each


def main(arguments: "list[str]") -> None:
    """Serve under the policy in the first argument."""
    import _confine  # type: ignore[import-not-found]  # `_sandbox` puts this folder on the path
    import _module  # type: ignore[import-not-found]

    packages, *numbers = _confine.confined(arguments)
    memory_fd, request_fd, reply_fd = map(int, numbers)
    os.write(reply_fd, CONFINED)
    folders = json.loads(packages)
    # This folder comes off the path: its `triton` is not the one that a reference imports.
    here = os.path.dirname(__file__)
    sys.path[:] = [*(path for path in sys.path if path != here), *folders["installed"]]
    sys.meta_path.append(_Edited(folders["edited"]))
    np = importlib.import_module("numpy")
    memory = mmap.mmap(memory_fd, 0)
    os.close(memory_fd)
    os.write(reply_fd, READY)
    with open(request_fd, "rb") as requests:
        reference, status, payload = _load(_module, **json.loads(requests.readline()))
        answer = _answer_of_module if isinstance(reference, _module.Reference) else _answer
        for request in map(json.loads, requests):
            if reference is not None:
                status, payload = answer(np, reference, memory, request)
            os.write(reply_fd, HEAD.pack(request["nonce"], status) + payload)


class _Edited:
    """Finds packages whose folders are readable, but not the folders that these lie in."""

    def __init__(self, folders: "dict[str, str]") -> None:
        self._folders = folders

    def find_spec(self, name: str, *_: object) -> "Any":
        """Return where to load a package from, or None."""
        folder = self._folders.get(name)
        if folder is None:
            return None
        util = importlib.import_module("importlib.util")
        return util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def _load(
    _module: "Any", where: str, source: str, module: "dict[str, Any] | None"
) -> "tuple[Any, int, bytes]":
    """The function or the `Reference`, or a status and text that say why there is none."""
    namespace: dict[str, Any] = {"__name__": "reference"}
    try:
        if module is not None:
            _module.import_torch()
            _module.on_cpu()
            return _module.Reference(source, where, module), RETURNED, b""
        # Packages ask for the name of a folder for temporary files when they are imported.
        tempfile.tempdir = "/tmp"  # noqa: S108  (nothing can be written there)
        exec(compile(source, where, "exec"), namespace)  # noqa: S102  (this process is for it)
    except Exception as error:
        return None, NOT_LOADED, _text(error)
    reference = namespace.get("reference")
    return (reference, RETURNED, b"") if callable(reference) else (None, NO_FUNCTION, b"")


def _answer(
    np: "Any", reference: "Callable[..., Any]", memory: mmap.mmap, request: "dict[str, Any]"
) -> tuple[int, bytes]:
    """Call the reference, and leave its outputs in the memory if their shapes are right."""
    try:
        inputs = [np.ndarray(*place, memory, offset) for *place, offset in request["inputs"]]
        answer = reference(*inputs, **request["dimensions"])
        answers = answer if isinstance(answer, tuple) else (answer,)
        outputs = [np.ndarray(*place, memory, offset) for *place, offset in request["outputs"]]
        if len(answers) != len(outputs):
            return RETURNED, struct.pack("<q", len(answers))
        arrays = [np.asarray(each) for each in answers]
        shapes = [array.shape for array in arrays]
        if shapes == [output.shape for output in outputs]:
            for output, array in zip(outputs, arrays, strict=True):
                if array.dtype.kind in _NO_NUMBERS:
                    raise TypeError(f"{array.dtype} is no type of real numbers")
                output[...] = array
        words = [len(arrays)]
        for shape in shapes:
            words += [len(shape), *shape]
        return RETURNED, struct.pack(f"<{len(words)}q", *words)
    except Exception as error:
        return RAISED, _text(error)


def _answer_of_module(
    _np: "Any", reference: "Any", memory: mmap.mmap, request: "dict[str, Any]"
) -> tuple[int, bytes]:
    """Compute outputs, draw inputs or check outputs, and leave the arrays in the memory."""
    module = importlib.import_module("_module")
    try:
        tensors = {
            name: module.tensor(memory, dtype, shape, offset)
            for name, dtype, shape, offset in request["arrays"]
        }
        kind, case = request["kind"], request["case"]
        if kind == "check":
            return RETURNED, reference.check(case, tensors)[:_MOST_TEXT].encode(errors="replace")
        if kind == "draw":
            made = reference.drawn(case["dimensions"], request["seed"], case["call"], case["drawn"])
        else:
            made = reference.outputs(case, tensors)
        words = [len(made)]
        for value, (dtype, shape, offset) in zip(made, request["places"], strict=True):
            if list(value.shape) == shape:
                module.tensor(memory, dtype, shape, offset).copy_(value)
            words += [value.dim(), *value.shape]
        return RETURNED, struct.pack(f"<{len(words)}q", *words)
    except Exception as error:
        return RAISED, _text(error)


def _text(error: Exception) -> bytes:
    try:
        text = repr(error)
    except Exception:
        text = type(error).__name__
    return text[:_MOST_TEXT].encode(errors="replace")
