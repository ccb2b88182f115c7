"""A whole search with a model in the loop, in a process that can be killed: its parts and its end.

Run: python -m tests.recorded_search FOLDER BASE_URL [COUNT]
The run in FOLDER is begun, or resumed where it was begun before. As soon as COUNT measurements are
there, of the reference and of second looks too, the process kills itself. Kernels are really
compiled and measured. Measurements are kept beside the store and never repeated, so that a run
which was killed and one which was not differ in nothing but that.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kernelcast.backends.cpp import CppBackend
from kernelcast.events import RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.cascade import CascadeForecaster
from kernelcast.judge.sharing import SharedFarm
from kernelcast.parts import Parts
from kernelcast.policies import Selective
from kernelcast.problems import load_problem
from kernelcast.proposers.llm import LlmProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.types import Budget, Measurement

PROBLEM = "softmax"
NAME = "recorded"
BUDGET = Budget(measurements=4, candidates=24)
MODEL = "recorded"


class Kept(dict[tuple[str, str], Measurement]):
    """Measurements by purpose and kernel, each written down as soon as it is there."""

    def __init__(self, path: Path, killed_after: int = 0) -> None:
        super().__init__()
        self._path = path
        self._killed_after = killed_after
        text = path.read_text() if path.exists() else ""
        # What was killed while it wrote has not written.
        for line in text[: text.rfind("\n") + 1].splitlines():
            purpose, _, told = line.partition(" ")
            measurement = Measurement.model_validate_json(told)
            super().__setitem__((purpose, measurement.kernel_id), measurement)

    def __setitem__(self, key: tuple[str, str], measurement: Measurement) -> None:
        """Keep it, and write it down in one go."""
        super().__setitem__(key, measurement)
        with self._path.open("a") as file:
            file.write(f"{key[0]} {measurement.model_dump_json()}\n")
        if len(self) == self._killed_after:
            os.kill(os.getpid(), signal.SIGKILL)


def parts(base_url: str, known: dict[tuple[str, str], Measurement], concurrency: int) -> Parts:
    """Proposer, critic, cascade, selective policy and C++ measurement."""
    return Parts(
        proposer=LlmProposer(base_url=base_url, model=MODEL, concurrency=concurrency),
        forecaster=CascadeForecaster(),
        policy=Selective(pool_size=8, turnover=4),
        strategy=Puct(),
        farm=SharedFarm(LocalFarm(CppBackend()), known),
    )


def run(folder: Path, base_url: str, killed_after: int = 0, *, concurrency: int = 0) -> None:
    """Take the run in a folder to its end."""
    # One answer after the other: with several at once, which comes first is chance.
    known = Kept(folder.parent / "measured.jsonl", killed_after)
    made = parts(base_url, known, concurrency)
    with Store.open(folder / "store.db") as store:
        if store.runs():
            search = Search.resume(store, NAME, parts=made)
        else:
            spec = RunSpec(seed=3)
            search = Search(load_problem(PROBLEM), made, store, spec=spec, name=NAME)
        search.run(BUDGET)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
