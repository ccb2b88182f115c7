"""Kernels of one bundled problem as a model answers them, with the speedups measured once.

The pool is every recorded edit of softmax, every right kernel of `tests/honest`, and configurations
of its template with their parameters as macros; nothing is in it twice. The speedups are in
`bench/recorded/evolve_softmax.json`, None where the kernel failed. To measure anew, which takes
about a quarter of an hour:

    python bench/_evolve_pool.py
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

PROBLEM = "softmax"
TABLE = Path(__file__).parent / "recorded" / "evolve_softmax.json"
_HONEST = Path(__file__).parents[1] / "tests" / "honest"
_CONFIGURATIONS = 80


@dataclass(frozen=True)
class Answer:
    """One kernel of the pool; the speedup is against the seed kernel, None if it failed."""

    name: str
    source: str
    speedup: float | None


def seed_source() -> str:
    """The kernel that a search begins with; speedups are against it."""
    return load_problem(PROBLEM).seed_source


@cache
def sources() -> dict[str, str]:
    """The texts of the pool by name."""
    problem = load_problem(PROBLEM)
    assert problem.template is not None
    drawn = random.Random(0).sample(list(problem.template.configurations()), _CONFIGURATIONS)
    found = {f"edit {number}": edit.source for number, edit in edits_of(PROBLEM).items()}
    found |= {path.stem: path.read_text() for path in sorted(_HONEST.glob(f"{PROBLEM}_*.cpp"))}
    found |= {json.dumps(each): problem.template.render(each) for each in drawn}
    return found


@cache
def pool() -> tuple[Answer, ...]:
    """The pool with its speedups.

    Raises:
        ValueError: The table is of other kernels.
    """
    table = json.loads(TABLE.read_text())["speedups"]
    if set(table) != set(sources()):
        raise ValueError(f"{TABLE} is of other kernels: run python bench/_evolve_pool.py")
    return tuple(Answer(name, text, table[name]) for name, text in sources().items())


def measure(path: Path = TABLE) -> None:
    """Measure what the table does not hold, and write it after each kernel."""
    problem = load_problem(PROBLEM)
    backend = CppBackend()
    table = json.loads(path.read_text()) if path.exists() else {"speedups": {}}
    table |= {"problem": PROBLEM, "device": backend.device.name, "toolchain": backend.toolchain}
    for name, source in sources().items():
        if name not in table["speedups"]:
            measured = backend.measure(problem, make_kernel(source), seed=0)
            log2 = measured.log2_speedup
            table["speedups"][name] = None if log2 is None else round(2.0**log2, 4)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(table, indent=1) + "\n")
            print(f"{table['speedups'][name]} {name}", flush=True)
    backend.close()


if __name__ == "__main__":
    measure()
