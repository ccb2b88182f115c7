"""What every bench prints as its last line: one JSON object, with what made it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGES = ("kernelcast", "lightgbm", "numpy")


def report(result: Mapping[str, Any], out: Path | None, *packages: str) -> None:
    """Print the result with the command and the versions, and write it where asked."""
    versions = {name: importlib.metadata.version(name) for name in (*_PACKAGES, *packages)}
    text = json.dumps(
        {
            **result,
            "command": shlex.join(["python", *sys.argv]),
            "versions": {"python": platform.python_version(), **versions},
        }
    )
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    print(text)
