"""Commands for a new user: init and doctor."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from kernelcast.backends._preflight import settings
from kernelcast.backends._sandbox import Sandbox, prove, required, what_would_raise
from kernelcast.backends.cpp import CppBackend
from kernelcast.cli.common import OUT, json_option
from kernelcast.devices import detect_cpu
from kernelcast.errors import SetupError
from kernelcast.problems import bundled_problems

_EXTRAS = {
    "llm": "openai",
    "data": "pyarrow",
    "ray": "ray",
    "postgres": "psycopg",
    "cuda": "nvidia",
    "triton": "triton",
    "train": "trl",
    "ui": "fastapi",
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a problem FOLDER that runs, to be changed into your own.

    \b
    Example:
      kernelcast init my_kernel && kernelcast search ./my_kernel -n 20
    """
    if folder.exists() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    scaffold = resources.files("kernelcast.problems") / "scaffold"
    for item in sorted(scaffold.iterdir(), key=lambda each: each.name):
        text = item.read_text().replace("PROBLEM_NAME", folder.resolve().name)
        (folder / item.name).write_text(text)
        OUT.print(f"wrote {folder / item.name}")
    OUT.print(f"next: kernelcast search {folder}/ -n 20")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what works on this machine, and what to install for the rest.

    \b
    Example:
      kernelcast doctor
    """
    checks = list(_checks())
    if as_json:
        rows = [{"check": a, "works": ok, "detail": detail} for a, ok, detail in checks]
        click.echo(json.dumps(rows))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for check, ok, detail in checks:
            mark = Text("works", "green") if ok else Text("missing", "yellow")
            table.add_row(check, mark, detail)
        OUT.print(table)
        OUT.print(f"bundled problems: {', '.join(bundled_problems())}")
    if not {check: ok for check, ok, _ in checks}["C++ kernels"]:
        sys.exit(1)


def _checks() -> Iterator[tuple[str, bool, str]]:
    version = importlib.metadata.version("kernelcast")
    yield "kernelcast", True, f"{version}, Python {sys.version.split()[0]}"
    device = detect_cpu()
    yield "device", True, f"{device.id}; {device.source}"
    try:
        backend = CppBackend(allow_unsafe=True)
        yield "C++ kernels", True, backend.toolchain
        backend.close()
    except SetupError as error:
        yield "C++ kernels", False, str(error)
    trouble = settings(device)
    yield "steady clocks", not trouble, "; ".join(trouble) or "locked"
    found = shutil.which("objdump") is not None
    yield "instruction mix", found, "objdump" if found else "apt-get install binutils"
    yield from _sandbox_checks()
    found = shutil.which("nvidia-smi") is not None
    yield (
        "GPU",
        False,
        "found; kernelcast has never run on one: pytest -m gpu" if found else "none found",
    )
    for extra, module in _EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        yield f"extra {extra}", found, module if found else f"pip install 'kernelcast[{extra}]'"


def _sandbox_checks() -> Iterator[tuple[str, bool, str]]:
    """The level that was proven, and by what they try, the canaries that S3 depends on."""
    proof = prove(Sandbox.detect())
    confined = proof.level != "S0"
    refused = "" if confined else "; kernels are run only with --allow-unsafe"
    yield "sandbox", confined, f"level {proof.level}{refused}; {what_would_raise(proof)}"
    families: dict[str, list[str]] = {}
    for canary in sorted(required("S3")):
        profile, _, name = canary.partition(": ")
        family = name.partition(".")[0] if "." in name else "all in force"
        families.setdefault(f"canaries, {profile}, {family}", []).append(canary)
    for check, canaries in families.items():
        free = [each for each in canaries if not proof.canaries.get(each, False)]
        names = ", ".join(each.rpartition(": ")[2].rpartition(".")[2] for each in free or canaries)
        yield check, not free, f"denied: {names}" if not free else f"NOT denied: {names}"
