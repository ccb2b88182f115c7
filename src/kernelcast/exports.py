"""Lazy exports of a package (PEP 562): a module is imported when one of its names is used.

The stub `__init__.pyi` of a package lists its public names, one import per line. Type checkers and
this module read the same list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package with a stub.

    Args:
        package: The package's `__name__`.
        file: The package's `__file__`.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, name in _IMPORT.findall(stub)}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)
