"""Which share of kernels written by language models can be emulated, by their instructions.

CUDA kernels of the recorded data are compiled for sm_80 until 200 have compiled. One counts as
emulated if the emulator knows every instruction of all its entries and of what these call, with
every modifier and operand. Nothing is run.

    python bench/emulator_share.py [--quick] [--kernels 200] [--jobs 2] [--work FOLDER]

PTX is kept in the work folder, if one is named: an interrupted run goes on. `compiled_of` is how
many were tried. Those that are missing in `kernels` did not compile, most of them without headers
of PyTorch or cuBLAS; or they are `without_entry`: templates that only host code would instantiate.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from _data import data_folder, read_columns
from _result import bench_parser, report, rounded
from kernelcast.backends._emulation import UnknownInstructions
from kernelcast.backends.cuda import CudaBackend, extract_cuda
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.processes import workers
from kernelcast.types import Failure, Problem, content_hash

TARGET = "sm_80"
_SEED = 11
_QUICK_KERNELS = 12
_OTHER = "other"
_ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry\b", re.MULTILINE)


@dataclass(frozen=True)
class Judged:
    """A kernel that compiles, and what the emulator does not know of it."""

    entries: int
    unknown: tuple[tuple[str, str], ...] = ()
    """Opcodes with modifiers, and messages."""


def device_code() -> list[str]:
    """The distinct device code of the recorded kernels, in an order that is the same every time."""
    names = sorted(path.stem for path in data_folder().glob("llm_kb_*.parquet"))
    modules: set[str] = set()
    for name in (*names, "llm_cuda_l1_5gpu"):
        rows = read_columns(name, ("backend", "candidate_code"))
        pairs = zip(rows["backend"], rows["candidate_code"], strict=True)
        modules |= {code for backend, code in pairs if backend == "cuda" and code}
    texts = {text for code in modules if (text := extract_cuda(code)) and "__global__" in text}
    ordered = sorted(texts)
    order = np.random.default_rng(_SEED).permutation(len(ordered))
    return [ordered[index] for index in order]


@cache
def _backend() -> CudaBackend:
    return CudaBackend(TARGET)


def judge(source: str, work: Path) -> Judged | None:
    """Compile a kernel and decode its instructions; None if it does not compile."""
    kept = work / f"{content_hash(source)[:32]}.ptx"
    if not kept.exists():
        ptx = _backend().ptx(Problem.unstated("written", "cuda", source), source)
        partial = kept.with_suffix(".partial")
        partial.write_text("" if isinstance(ptx, Failure) else ptx, encoding="utf-8")
        partial.replace(kept)
    text = kept.read_text(encoding="utf-8")
    if not text:
        return None
    entries = len(_ENTRY.findall(text))
    try:
        if entries:
            _backend().decode(text)
    except UnknownInstructions as error:
        return Judged(entries, error.unknown)
    except NotEmulated as error:
        return Judged(entries, ((_OTHER, str(error)),))
    return Judged(entries)


def judged(sources: Sequence[str], work: Path, jobs: int) -> Generator[Judged | None, None, None]:
    """Judge kernels in their order, some at a time, as long as more are asked for."""
    with workers(jobs) as pool:
        for start in range(0, len(sources), 4 * jobs):
            batch = sources[start : start + 4 * jobs]
            yield from pool.map(judge, batch, [work] * len(batch))


def summary(compiled: Sequence[Judged], tried: int) -> dict[str, object]:
    """The share that is emulated, and how many kernels have each unknown instruction."""
    kernels = [kernel for kernel in compiled if kernel.entries]
    unknown = Counter(name for kernel in kernels for name in {name for name, _ in kernel.unknown})
    return {
        "kernels": len(kernels),
        "compiled_of": tried,
        "without_entry": len(compiled) - len(kernels),
        "entries": sum(kernel.entries for kernel in kernels),
        "share": sum(not kernel.unknown for kernel in kernels) / max(len(kernels), 1),
        "unknown": dict(sorted(unknown.items(), key=lambda pair: (-pair[1], pair[0]))),
    }


def sampled(wanted: int, work: Path, jobs: int) -> tuple[list[Judged], int]:
    """Judge kernels until so many with an entry have compiled; also how many were tried."""
    compiled: list[Judged] = []
    tried = 0
    with closing(judged(device_code(), work, jobs)) as outcomes:
        for outcome in outcomes:
            tried += 1
            if outcome is not None:
                compiled.append(outcome)
                for name, message in outcome.unknown:
                    print(f"kernel {tried}: {name}: {message}", file=sys.stderr, flush=True)
                wanted -= outcome.entries > 0
            if not wanted:
                break
    return compiled, tried


def main() -> None:
    parser = bench_parser(__doc__, quick=f"{_QUICK_KERNELS} kernels")
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where PTX gathers; default: temporary")
    arguments = parser.parse_args()
    wanted = _QUICK_KERNELS if arguments.quick else arguments.kernels
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        compiled, tried = sampled(wanted, work, arguments.jobs)
    report(rounded(summary(compiled, tried)), arguments)


if __name__ == "__main__":
    main()
