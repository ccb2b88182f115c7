"""The backend of `on_ray.py`, in a module that a slot's new process imports quickly."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import ray

from kernelcast.farm._slot import _alive
from kernelcast.testing import SyntheticBackend
from kernelcast.types import Effort, Kernel, Measurement, Problem

LIMIT_S = 1200.0  # ends a test that hangs; no verdict depends on it


class MarkingBackend(SyntheticBackend):
    """Marks in a folder what runs where; a job ends when its gate, `<seed>.open`, is there.

    It has a child process, and `shared` is marked if another process uses the slot of its node.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def toolchain(self) -> str:  # type: ignore[override]
        return f"key {os.environ.get('MY_API_KEY', 'unset')}"

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        owner = self.folder / f"{ray.get_runtime_context().get_node_id()}.owner"
        if owner.exists() and (pid := int(owner.read_text())) != os.getpid() and _alive(pid):
            (self.folder / "shared").touch()
        owner.write_text(str(os.getpid()))
        with subprocess.Popen(["sleep", "1000"]) as child:
            with (self.folder / "begun").open("a") as file:
                file.write(f"{seed}\n")
            begun = self.folder / f"{seed}.begun"  # last: a test may kill us when it is there
            begun.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
            begun.with_suffix(".new").rename(begun)
            await_true(lambda: self.is_open(seed))
            child.kill()
        measurement = super().measure(problem, kernel, seed, effort)
        return measurement.model_copy(update={"noise_log2": self.noise_log2()})

    def noise_log2(self) -> float:
        """Return the noise that a test has set for this node."""
        noise = self.folder / f"{ray.get_runtime_context().get_node_id()}.noise"
        return float(noise.read_text()) if noise.exists() else 0.01

    def is_open(self, seed: int) -> bool:
        return any((self.folder / f"{name}.open").exists() for name in (seed, "all"))

    def open(self, name: object = "all") -> None:
        (self.folder / f"{name}.open").touch()

    def pids(self, seed: int) -> list[int]:
        """Return worker and child of a job when it has begun."""
        begun = self.folder / f"{seed}.begun"
        await_true(begun.exists)
        return [int(pid) for pid in begun.read_text().split()]

    def times_begun(self) -> list[int]:
        marks = self.folder / "begun"
        return [int(line) for line in marks.read_text().split()] if marks.exists() else []


def await_true(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)
