"""What benches share: their options, one JSON object as the last line, a figure beside it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
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


def rounded(value: Any) -> Any:
    """The value with every float in it rounded to four places."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(float(value), 4) if isinstance(value, float) else value


def json_lines(path: Path) -> Iterator[Any]:
    """The JSON of each line of a work file; none if there is no file yet."""
    for line in path.read_text().splitlines() if path.exists() else ():
        # A line is cut off where the process was ended while it wrote.
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure beside the JSON file `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_suffix(".png"), dpi=120)


def cannot_run(sentence: str) -> NoReturn:
    """End the bench with exit code 2: a part that it needs is not installed."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)
