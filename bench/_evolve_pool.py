"""Kernels of a bundled problem as a model answers them, with the speedups measured once.

A pool is every recorded edit of the problem, every right kernel of `tests/honest`, and
configurations of its template with their parameters as macros; nothing is in it twice. The speedups
are in `bench/recorded/evolve_PROBLEM.json`, None where the kernel failed. To measure what a table
does not hold, which takes about a quarter of an hour for a whole one:

    python bench/_evolve_pool.py PROBLEM
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelcast.backends.cpp import CppBackend
from kernelcast.problems import load_problem
from kernelcast.testing import make_kernel

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.recorded_edits import edits_of

_RECORDED = Path(__file__).parent / "recorded"
_HONEST = Path(__file__).parents[1] / "tests" / "honest"
_CONFIGURATIONS = 80


@dataclass(frozen=True)
class Answer:
    """One kernel of the pool; the speedup is against the seed kernel, None if it failed."""

    name: str
    source: str
    speedup: float | None


def table_of(problem: str) -> Path:
    """The file with the speedups of a problem's pool."""
    return _RECORDED / f"evolve_{problem}.json"


def seed_source(problem: str) -> str:
    """The kernel that a search begins with; speedups are against it."""
    return load_problem(problem).seed_source


@cache
def sources(problem: str) -> dict[str, str]:
    """The texts of a pool by name."""
    template = load_problem(problem).template
    assert template is not None
    drawn = random.Random(0).sample(list(template.configurations()), _CONFIGURATIONS)
    found = {f"edit {number}": edit.source for number, edit in edits_of(problem).items()}
    found |= {path.stem: path.read_text() for path in sorted(_HONEST.glob(f"{problem}_*.cpp"))}
    found |= {json.dumps(configuration): template.render(configuration) for configuration in drawn}
    return found


@cache
def pool(problem: str) -> tuple[Answer, ...]:
    """A pool with its speedups.

    Raises:
        ValueError: The table is of other kernels.
    """
    table = json.loads(table_of(problem).read_text())["speedups"]
    if set(table) != set(sources(problem)):
        raise ValueError(f"{table_of(problem)} is of other kernels: run _evolve_pool.py {problem}")
    return tuple(Answer(name, text, table[name]) for name, text in sources(problem).items())


def measure(name: str) -> None:
    """Measure what the table does not hold, and write it after each kernel."""
    problem, path = load_problem(name), table_of(name)
    backend = CppBackend()
    table = json.loads(path.read_text()) if path.exists() else {"speedups": {}}
    table |= {"problem": name, "device": backend.device.name, "toolchain": backend.toolchain}
    for kernel, source in sources(name).items():
        if kernel not in table["speedups"]:
            measured = backend.measure(problem, make_kernel(source), seed=0)
            log2 = measured.log2_speedup
            table["speedups"][kernel] = None if log2 is None else round(2.0**log2, 4)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(table, indent=1) + "\n")
            print(f"{table['speedups'][kernel]} {kernel}", flush=True)
    backend.close()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        measure(name)
