"""Helpers of the importers: reading foreign files, and rows of the kernels in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelcast.canonical import kernel_id as _uncached_id
from kernelcast.dataset.keys import problem_family
from kernelcast.dataset.rows import _MS, Row, _arrow
from kernelcast.errors import SetupError, import_extra
from kernelcast.languages import BUILT_IN

_PYTHON_IMPORT = re.compile(r"^(?:import \w|from \w[\w.]* import )", re.M)

# A data set repeats its sources: references, and kernels measured on several devices.
_kernel_id = lru_cache(maxsize=8192)(_uncached_id)


def _language(backend: str, source: str | None) -> str:
    """The language to read a source as: CUDA inside a Python module is Python."""
    if backend == "triton":
        return "triton"
    known = BUILT_IN.get(backend)
    if known and known.family == "c" and not (source and _PYTHON_IMPORT.search(source)):
        return backend
    return "python"


def _backend(source: str) -> str:
    """What the kernels of a Python module are written in, judged by its text."""
    if "@triton.jit" in source:
        return "triton"
    return "cuda" if "__global__" in source else "pytorch"


def _is_plain_python(source: str) -> bool:
    """Whether a reference is plain Python, so that it can serve as the problem's oracle."""
    return bool(_PYTHON_IMPORT.search(source)) and _backend(source) == "pytorch"


def _text_id(text: str) -> str:
    """Kernel id of a text whose language is not stated."""
    return _kernel_id(text, _language(_backend(text), text))


def _text_row(text: str, *, problem: str, **columns: Any) -> Row:
    """The row of a kernel published as text; what follows from text, name and times is added."""
    backend = _backend(text)
    runtime_s, reference_s = columns.get("runtime_s"), columns.get("reference_runtime_s")
    columns.setdefault("log2_speedup", _log2_ratio(reference_s, runtime_s))
    return Row(
        problem=problem,
        family=problem_family(problem),
        language=_language(backend, text),
        backend=backend,
        candidate_id=_text_id(text),
        candidate_source=text,
        **columns,
    )


def _log2_ratio(reference_s: float | None, runtime_s: float | None) -> float | None:
    return math.log2(reference_s / runtime_s) if reference_s and runtime_s else None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * _MS


def _load_json(path: Path, unclosed: str = "") -> Any:
    """The content of a JSON file; one cut off after an entry is closed with `unclosed`."""
    try:
        text = path.read_text(encoding="utf-8").rstrip()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return json.loads(text.removesuffix(",") + unclosed)
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read as JSON: {error}") from error


def _read_foreign(path: Path, columns: Sequence[str] = ()) -> Any:
    """The table in a Parquet file, which must have these columns."""
    try:
        table = import_extra("pyarrow.parquet", "data").read_table(path)
    except (_arrow().ArrowInvalid, OSError) as error:
        raise SetupError(f"{path} cannot be read as Parquet: {error}") from error
    if missing := [name for name in columns if name not in table.column_names]:
        raise SetupError(f"{path} lacks the columns {missing}: is it of another kind?")
    return table
