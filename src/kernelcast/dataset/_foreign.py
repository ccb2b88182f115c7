"""What every importer needs to read kernels out of foreign files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelcast.canonical import C_FAMILY, kernel_id
from kernelcast.dataset.rows import _MS, _arrow
from kernelcast.errors import SetupError, import_extra

_PYTHON_IMPORT = re.compile(r"^(?:import \w|from \w[\w.]* import )", re.M)


def _language(backend: str, source: str | None) -> str:
    """What to read a source as: CUDA that lies inside a Python module is Python."""
    if backend == "triton":
        return "triton"
    if backend in C_FAMILY and not (source and _PYTHON_IMPORT.search(source)):
        return backend
    return "python"


def _backend(source: str) -> str:
    """What a Python module's kernels are written in, where its publisher does not say."""
    if "@triton.jit" in source:
        return "triton"
    return "cuda" if "__global__" in source else "pytorch"


def _says_what_is_computed(source: str) -> bool:
    """Whether a reference is plain Python, which says what is computed and not how."""
    return bool(_PYTHON_IMPORT.search(source)) and _backend(source) == "pytorch"


class _KernelIds(dict[tuple[str, str], str]):
    """Kernel ids by (source, language), each worked out once."""

    def __missing__(self, key: tuple[str, str]) -> str:
        self[key] = found = kernel_id(*key)
        return found


def _log2(ratio: float | None) -> float | None:
    return math.log2(ratio) if ratio else None


def _numbered(keys: Iterable[str]) -> list[str]:
    """Keys made unique: the second of a kind gets `.2`, the third `.3`."""
    seen: Counter[str] = Counter()
    unique = []
    for key in keys:
        seen[key] += 1
        unique.append(key if seen[key] == 1 else f"{key}.{seen[key]}")
    return unique


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


def _read_foreign(path: Path, columns: Sequence[str]) -> Any:
    pa = _arrow()
    try:
        raw = import_extra("pyarrow.parquet", "data").read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise SetupError(f"{path} cannot be read as Parquet: {error}") from error
    if missing := [name for name in columns if name not in raw.column_names]:
        raise SetupError(f"{path} lacks the columns {missing}: is it of another kind?")
    return raw


def _scaled(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * _MS
