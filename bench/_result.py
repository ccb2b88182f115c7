"""What benches share: their options, one JSON object as the last line, a figure beside it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("kernelcast", "lightgbm", "numpy")


def bench_parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with --quick and --out, described by the first paragraph of a bench's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser


def report(result: Mapping[str, Any], options: argparse.Namespace, *packages: str) -> None:
    """Print the result with the command and the versions, and write it to --out."""
    versions = {name: importlib.metadata.version(name) for name in (*_PACKAGES, *packages)}
    text = json.dumps(
        {
            **result,
            "quick": options.quick,
            "command": shlex.join(["python", *sys.argv]),
            "versions": {"python": platform.python_version(), **versions},
        }
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text)


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure beside the JSON file `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_suffix(".png"), dpi=120)


def cannot_run(sentence: str) -> NoReturn:
    """End the bench with exit code 2: a part that it needs is not installed."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)
