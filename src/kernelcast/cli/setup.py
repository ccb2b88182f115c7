"""Commands for a new user: init and doctor."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from kernelcast.backends._cuda_device import probe
from kernelcast.backends._opencl_device import INSTALL, opencl_devices
from kernelcast.backends._preflight import settings
from kernelcast.backends._proof import Proof, detect_sandbox, prove, required, what_would_raise
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import NO_OBJDUMP, find_cuda_tool
from kernelcast.backends.cpp import CppBackend
from kernelcast.cli.common import OUT, json_option, option
from kernelcast.devices import detect_cpu
from kernelcast.errors import SetupError
from kernelcast.report.terminal import printable

_EXTRAS = {
    "llm": "openai",
    "data": "pyarrow",
    "cuda": "nvidia",
    "triton": "triton",
    "gpumode": "yaml",
    "torch": "torch",
    "train": "trl",
    "postgres": "psycopg",
    "s3": "boto3",
    "metrics": "prometheus_client",
    "traces": "opentelemetry",
    "ray": "ray",
}
"""For each extra a module that it installs."""


# ----------------------------------------------------------------------------------------- init


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a problem FOLDER that runs, to be changed into your own.

    \b
    Example:
      kernelcast init my_kernel && kernelcast search ./my_kernel -n 20
    """
    # JSON strings are TOML strings.
    name = json.dumps(printable(folder.resolve().name), ensure_ascii=False)
    # An installed package also holds __pycache__.
    files = {
        item.name: item.read_text(encoding="utf-8").replace('"PROBLEM_NAME"', name)
        for item in (resources.files("kernelcast.problems") / "scaffold").iterdir()
        if item.is_file()
    }
    _write(folder, files)
    OUT.print(f"wrote {folder}/: {', '.join(sorted(files))}", soft_wrap=True)
    OUT.print(f"next: kernelcast search {shlex.quote(f'{folder}/')} -n 20", soft_wrap=True)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files into a new or empty folder, or leave nothing behind."""
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise SetupError(f"{folder} cannot be made ({error.strerror}): name another one") from error
    if not is_empty:
        raise SetupError(f"{folder} is not empty: choose another folder")
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):
            for name in files:
                (folder / name).unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise SetupError(
            f"{folder} cannot be written ({error.strerror}): name another one"
        ) from error


# --------------------------------------------------------------------------------------- doctor


class _Check(NamedTuple):
    """One capability of this machine: its state, and what it is or how to get it."""

    name: str
    state: Literal["works", "missing", "untried"]
    detail: str
    is_verbose: bool = False


@click.command()
@option("--verbose -v", "All checks, with every canary of the sandbox.", bool)
@json_option
def doctor(verbose: bool, as_json: bool) -> None:
    """Say what works on this machine, and what to install for the rest.

    \b
    Example:
      kernelcast doctor
    """
    checks = list(_checks())
    if as_json:
        rows = [
            {"check": check.name, "works": check.state == "works", "detail": check.detail}
            for check in checks
        ]
        click.echo(json.dumps(rows))
    else:
        OUT.print(f"kernelcast {_version()}, {detect_cpu().id}")
        table = Table(box=None, pad_edge=False, show_header=False)
        for check in checks:
            if verbose or not check.is_verbose:
                style = "green" if check.state == "works" else "yellow"
                table.add_row(check.name, Text(check.state, style), check.detail)
        OUT.print(table)
    if any(check.name == "C++ kernels" and check.state != "works" for check in checks):
        sys.exit(1)


def _checks() -> Iterator[_Check]:
    sandbox = detect_sandbox()
    proof = prove(sandbox)
    checks: dict[str, Callable[[], str]] = {
        "C++ kernels": _cpp,
        "sandbox": partial(_confinement, proof),
        "steady clocks": _clocks,
        "OpenCL kernels": partial(_opencl, sandbox),
        "CUDA kernels": _cuda,
        "Triton kernels": _triton,
        "GPU": partial(_gpu, sandbox),
        "extras": _extras,
    }
    for name, check in checks.items():
        try:
            yield _Check(name, "untried" if name == "GPU" else "works", check())
        except SetupError as error:
            yield _Check(name, "missing", str(error))
    yield _Check("kernelcast", "works", _version(), is_verbose=True)
    device = detect_cpu()
    yield _Check("device", "works", f"{device.id}; {device.source}", is_verbose=True)
    yield from _canaries(proof)


def _version() -> str:
    return f"{importlib.metadata.version('kernelcast')}, Python {sys.version.split()[0]}"


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# Each check returns what works, or raises a SetupError that says how to get it.


def _cpp() -> str:
    with contextlib.closing(CppBackend(allow_unsafe=True)) as backend:
        advice = "; for the mix of instructions: apt-get install binutils"
        return backend.toolchain + ("" if shutil.which("objdump") else advice)


def _confinement(proof: Proof) -> str:
    if proof.level == "S3":
        return "level S3, the highest of this version"
    advice = what_would_raise(proof)
    if proof.level < "S2":
        flag = "--allow-unsafe" if proof.level == "S0" else "--require S1"
        raise SetupError(f"level {proof.level}; kernels are run only with {flag}; {advice}")
    return f"level {proof.level}; {advice}"


def _clocks() -> str:
    trouble = "; ".join(settings(detect_cpu())).removeprefix("clocks unlocked: ")
    if not trouble:
        return "locked"
    is_hidden = trouble.startswith("no governor")
    advice = "usual in a virtual machine" if is_hidden else "cpupower frequency-set -g performance"
    raise SetupError(f"{trouble}; {advice}")


def _opencl(sandbox: Sandbox) -> str:
    if devices := opencl_devices(sandbox):
        if any(device.is_pocl for device in devices) and not shutil.which("objdump"):
            raise SetupError(NO_OBJDUMP)
        return ", ".join({device.platform_name: None for device in devices})
    if sandbox.mechanisms and opencl_devices(Sandbox(frozenset())):
        raise SetupError("not inside the sandbox here: use --allow-unsafe")
    raise SetupError(INSTALL)


def _cuda() -> str:
    compiler = find_cuda_tool("nvcc")
    if compiler is None:
        raise SetupError("no nvcc: install NVIDIA's CUDA toolkit")
    if find_cuda_tool("nvdisasm") is None:
        raise SetupError("no nvdisasm: pip install 'kernelcast[cuda]'")
    return f"compiled by {compiler}; to run they need a GPU"


def _triton() -> str:
    if not _is_installed("triton"):
        raise SetupError("pip install 'kernelcast[triton]'")
    version = importlib.metadata.version("triton")
    return f"compiled by Triton {version}; to run they need a GPU"


def _gpu(sandbox: Sandbox) -> str:
    never = "kernelcast has never run on a GPU"
    if device := probe(sandbox) or probe(Sandbox(frozenset())):
        return f"{device[1]} ({device[0]}); {never}"
    if shutil.which("nvidia-smi") is not None:
        raise SetupError(f"the driver lists none: see nvidia-smi; {never}")
    raise SetupError(f"needs NVIDIA's driver, which brings nvidia-smi; {never}")


def _extras() -> str:
    if missing := [extra for extra, module in _EXTRAS.items() if not _is_installed(module)]:
        raise SetupError(f"not installed: {', '.join(missing)}. pip install 'kernelcast[NAME]'")
    return f"installed: {', '.join(_EXTRAS)}"


def _canaries(proof: Proof) -> Iterator[_Check]:
    """Yield the canaries that level S3 depends on, by what they try."""
    families: dict[str, list[str]] = {}
    for canary in sorted(required("S3")):
        profile, _, name = canary.partition(": ")
        family = name.partition(".")[0] if "." in name else "all in force"
        families.setdefault(f"canaries, {profile}, {family}", []).append(canary)
    for family, canaries in families.items():
        free = [canary for canary in canaries if not proof.canaries.get(canary, False)]
        names = ", ".join(name.rpartition(": ")[2].rpartition(".")[2] for name in free or canaries)
        if free:
            yield _Check(family, "missing", f"NOT denied: {names}", is_verbose=True)
        else:
            yield _Check(family, "works", f"denied: {names}", is_verbose=True)
