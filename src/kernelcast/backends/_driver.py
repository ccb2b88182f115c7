"""Measuring compiled GPU code through the CUDA driver, whatever language it was written in.

A language's backend turns source into a `Program`: a cubin and how it is launched. Here it is
verified and timed against another program by the one protocol (`_timing`, `_verify`), each in a
child of its own (`_cuda_worker`). The parent's clock runs during the `run` request alone: copying
to and from the device lies before and after it. The launch has not run on a GPU yet: see
docs/how-to/run-on-a-gpu.md.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import secrets
import select
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends import _cuda_worker
from kernelcast.backends._sandbox import bare_environment, kill_group
from kernelcast.backends._timing import Precision, time_pairs
from kernelcast.backends._verify import Layout, Sample, oracle
from kernelcast.errors import NoDevice, ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Device, Failure, FailureKind, Problem, Timing

_WORKER = Path(_cuda_worker.__file__)
_REPLY = struct.Struct("<qq")
_INPUT_SETS = 3
_MOST_CALLS = 64
_ARENA_BYTES = 256 << 20
_LOAD_TIMEOUT_S = 20.0
_TIMEOUT_FACTOR = 20.0
_TIMEOUT_SLACK_S = 1.0
_PROBE_TIMEOUT_S = 30.0
_SMALLEST_FLUSH_BYTES = 64 << 20
_INVALID_VALUE, _OUT_OF_RESOURCES = 1, 701
_MOST_BLOCK_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65_535, 65_535)


# -------------------------------------------------------------------------------- the geometry


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads: expressions over dimensions and constants.

    A grid has up to three extents; `/` divides and rounds down, as in C.
    """

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str = "0"
    constants: tuple[tuple[str, int | float | str], ...] = ()

    def block_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Threads of a block in x, y and z."""
        return self._extent(self.block, dimensions)

    def grid_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in x, y and z."""
        return self._extent(self.grid, dimensions)

    def shared_bytes(self, dimensions: Mapping[str, int]) -> int:
        """Dynamic shared memory of a block."""
        return self._value(self.shared, dimensions)

    def fault(self, problem: Problem) -> Failure | None:
        """Why this cannot be launched on the problem's cases; None where it can."""
        try:
            for case in problem.cases:
                block = self.block_extent(case.dimensions)
                grid = self.grid_extent(case.dimensions)
                if math.prod(block) > _MOST_BLOCK_THREADS:
                    return _no_launch(f"{math.prod(block)} threads a block; 1024 is the most")
                if any(extent > most for extent, most in zip(grid, _MOST_GRID, strict=True)):
                    return _no_launch(f"case {case.name}: the grid {grid} is too large")
                if min(*block, *grid) < 1 or self.shared_bytes(case.dimensions) < 0:
                    return _no_launch(f"case {case.name}: grid {grid}, block {block}")
        except (ProblemError, ArithmeticError, TypeError, ValueError) as error:
            return _no_launch(str(error))
        return None

    def _extent(self, texts: Sequence[str], dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = ([self._value(each, dimensions) for each in texts] + [1, 1, 1])[:3]
        return x, y, z

    def _value(self, text: str, dimensions: Mapping[str, int]) -> int:
        whole = text.replace("//", "/").replace("/", "//")
        return int(evaluate(whole, {**dict(self.constants), **dimensions}))


def _no_launch(why: str) -> Failure:
    return Failure(kind=FailureKind.COMPILE_ERROR, message=f"it cannot be launched: {why}")


@dataclass(frozen=True)
class Program:
    """A compiled kernel: `widths` are the bytes of each parameter of its entry."""

    cubin: Path
    entry: str
    widths: tuple[int, ...]
    launch: Launch

    def as_stated(self, problem: Problem) -> dict[str, Any]:
        """What the worker is told of it; shared memory is the most that any case takes."""
        return {
            "cubin": str(self.cubin),
            "entry": self.entry,
            "widths": self.widths,
            "shared": max(self.launch.shared_bytes(case.dimensions) for case in problem.cases),
        }


Programs = Mapping[str, Program]  # by case, for a compiler may specialise on dimensions

# ------------------------------------------------------------------------------------ a device


def require_device(target: str, device: Device) -> None:
    """Raise `NoDevice` unless this machine's first GPU is this device and runs this target."""
    found = probe()
    if found is None:
        raise NoDevice(
            f"there is no CUDA device here to launch a kernel for {device.name} ({target}) on: "
            "run this on a machine whose `nvidia-smi` lists one (or give its farm the job); "
            "compile-only evidence (`inspect`) needs none"
        )
    capability, name = found
    wanted = target.rstrip("af")
    # A cubin runs on its own major version, from its minor version on.
    if capability[:-1] != wanted[:-1] or int(capability[-1]) < int(wanted[-1]):
        raise NoDevice(
            f"the GPU here is {name} ({capability}), which cannot run code for {target}: "
            f"build the backend with target={capability!r}"
        )
    if device.name != name and _model(device.name) not in name.replace("-", " ").split():
        raise NoDevice(
            f"the GPU here is {name}, and its times are not those of {device.name}: "
            "build the backend with the device that is here (its name, or a Device of your own)"
        )


def probe() -> tuple[str, str] | None:
    """Target and name of the first CUDA device, asked for in a child; None without one."""
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(_WORKER), "probe"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PROBE_TIMEOUT_S,
        env=_environment(),
    )
    if answer.returncode:
        return None
    target, _, name = answer.stdout.strip().partition(" ")
    return target, name


def _environment() -> dict[str, str]:
    # A function that is loaded on its first launch would be timed loading.
    environment = bare_environment(CUDA_MODULE_LOADING="EAGER")
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        environment["CUDA_VISIBLE_DEVICES"] = chosen
    return environment


def _model(name: str) -> str:
    """The part of a device's name that tells it apart: H100 of H100-SXM5, 3090 of RTX-3090."""
    parts = name.split("-")
    return next((part for part in parts if any(map(str.isdigit, part))), parts[0])


class _Child:
    """The parent's end of a `_cuda_worker`: memory it shares, requests it answers."""

    def __init__(self, programs: Programs, arena: _Arena, device: Device) -> None:
        problem = arena.problem
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        self._arena = arena
        self._programs = programs
        self._distinct = list(dict.fromkeys(programs.values()))
        self._request = struct.Struct(f"<{5 + arrays + dimensions + 6}q")
        memory_fd = os.memfd_create("kernelcast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory_fd, arena.size)
        fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(memory_fd, arena.size), dtype=np.uint8
        )
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        given = (memory_fd, request_read, reply_write)
        flush_bytes = max(2 * device.cache_bytes, _SMALLEST_FLUSH_BYTES)
        functions = json.dumps([each.as_stated(problem) for each in self._distinct])
        numbers = (arrays, dimensions, *given, flush_bytes)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WORKER), functions, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                start_new_session=True,
                cwd=self._distinct[0].cubin.parent,
                env=_environment(),
            )
        finally:
            for fd in given:
                os.close(fd)
        self._process_fd = os.pidfd_open(self._process.pid)
        self._poll = select.poll()
        for fd in (self._reply_fd, self._process_fd):
            self._poll.register(fd, select.POLLIN)

    def load(self, timeout_s: float) -> Failure | None:
        """Wait until the module is loaded and the memory is there."""
        answer = self._answer(0, timeout_s)
        return answer if isinstance(answer, Failure) else None

    def call(self, phase: int, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Wall seconds of one request by this process's clock; after a failure it is dead."""
        nonce = secrets.randbits(62)
        program, layout = self._programs[case], self._arena.layouts[case]
        dimensions = self._arena.dimensions[case]
        request = self._request.pack(
            *(nonce, phase, self._distinct.index(program), calls, layout.stride),
            *(*layout.offsets, *dimensions.values()),
            *program.launch.grid_extent(dimensions),
            *program.launch.block_extent(dimensions),
        )
        started_ns = time.perf_counter_ns()
        try:
            os.write(self._request_fd, request)
        except BrokenPipeError:
            return self._obituary()
        answer = self._answer(nonce, timeout_s)
        seconds = (time.perf_counter_ns() - started_ns) * 1e-9
        return answer if isinstance(answer, Failure) else seconds

    def _answer(self, nonce: int, timeout_s: float) -> Failure | None:
        ready = self._poll.poll(math.ceil(max(0.0, timeout_s) * 1e3))
        if not ready:
            kill_group(self._process)
            return Failure(kind=FailureKind.TIMEOUT, message=f"no answer within {timeout_s:.2f} s")
        if not any(fd == self._reply_fd for fd, _ in ready):
            return self._obituary()
        said = os.read(self._reply_fd, _REPLY.size)
        if len(said) != _REPLY.size or _REPLY.unpack(said)[0] != nonce:
            return self._obituary()
        result = _REPLY.unpack(said)[1]
        if not result:
            return None
        kill_group(self._process)
        if result in (_INVALID_VALUE, _OUT_OF_RESOURCES):
            return _no_launch(f"the driver refused it (CUDA error {result})")
        return Failure(kind=FailureKind.CRASH, message=f"CUDA error {result} on the device")

    def _obituary(self) -> Failure:
        status = kill_group(self._process)
        if status == _cuda_worker.LOAD_FAILED:
            return Failure(
                kind=FailureKind.COMPILE_ERROR, message="the driver does not load its code"
            )
        if status == _cuda_worker.NO_DRIVER:
            raise NoDevice("the CUDA device went away: see `nvidia-smi` and the kernel's log")
        return Failure(kind=FailureKind.CRASH, message=f"its process ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        kill_group(self._process)
        for fd in (self._request_fd, self._reply_fd, self._process_fd):
            with suppress(OSError):
                os.close(fd)


# --------------------------------------------------------------------------------- a comparison


class _Arena:
    """How both children of a comparison lay out their memory: slots by case, one a call."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layouts = {case.name: Layout.of(problem, case) for case in problem.cases}
        self.dimensions = {
            case.name: {name: case.dimensions[name] for name in problem.dimensions}
            for case in problem.cases
        }
        self.slots = {
            name: min(_MOST_CALLS, max(1, _ARENA_BYTES // layout.stride))
            for name, layout in self.layouts.items()
        }
        self.size = max(self.slots[name] * each.stride for name, each in self.layouts.items())

    def draw(self, rng: np.random.Generator) -> dict[str, list[Sample]]:
        """Input sets by case; an untimed case is run once."""
        expected = oracle(self.problem)
        return {
            case.name: [
                Sample.draw(self.problem, case, expected, rng)
                for _ in range(_INPUT_SETS if case.timed else 1)
            ]
            for case in self.problem.cases
        }


class _Runner:
    """One child with the inputs of one measurement: stages them, runs, verifies every output."""

    def __init__(
        self, child: _Child, arena: _Arena, samples: Mapping[str, Sequence[Sample]], deadline: float
    ) -> None:
        self._child = child
        self._arena = arena
        self._samples = samples
        self._deadline = deadline
        self._call_timeout_s = dict.fromkeys(arena.layouts, math.inf)

    def verify_all(self, reference_s: Mapping[str, float]) -> Failure | None:
        """Run every case once; from then on, very much slower calls than these are cut short."""
        self._call_timeout_s = {case: _TIMEOUT_FACTOR * s for case, s in reference_s.items()}
        outcomes = (self.run(case, [0]) for case in reference_s)
        return next((each for each in outcomes if isinstance(each, Failure)), None)

    def most_calls(self, case: str) -> int:
        """How many slots the arena has for this case."""
        return self._arena.slots[case]

    def idle(self, case: str, calls: int) -> float | Failure:
        """Seconds of a request that launches nothing."""
        return self._request(_cuda_worker.IDLE, case, calls)

    def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
        """Seconds of one request, a launch on each input set; a wrong output is a failure."""
        samples, stride = self._samples[case], self._arena.layouts[case].stride
        slots = self._child.memory[: len(inputs) * stride].reshape(len(inputs), stride)
        for slot, which in zip(slots, inputs, strict=True):
            slot[:] = samples[which].image
        seconds: float | Failure = 0.0
        for phase in (_cuda_worker.STAGE, _cuda_worker.RUN, _cuda_worker.FETCH):
            taken = self._request(phase, case, len(inputs))
            if isinstance(taken, Failure):
                return taken
            if phase == _cuda_worker.RUN:
                seconds = taken
        checks = (samples[which].check(slot) for slot, which in zip(slots, inputs, strict=True))
        return next(filter(None, checks), seconds)

    def _request(self, phase: int, case: str, calls: int) -> float | Failure:
        """Wall seconds of one request."""
        limit_s = _TIMEOUT_SLACK_S + calls * self._call_timeout_s[case]
        timeout_s = min(limit_s, self._deadline - time.perf_counter())
        return self._child.call(phase, case, calls, timeout_s)


class _ReferenceRunner(_Runner):
    """The seed kernel: it may run out of the measurement's time, but not fail."""

    def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
        """Seconds of one request, verified like the candidate's."""
        outcome = super().run(case, inputs)
        if isinstance(outcome, Failure) and outcome.kind is not FailureKind.TIMEOUT:
            name = self._arena.problem.name
            raise ProblemError(
                f"the seed kernel of {name} failed ({outcome.kind}: {outcome.message}): "
                "mend it, or the problem's reference.py if that is wrong"
            )
        return outcome


def compare(
    problem: Problem,
    device: Device,
    candidate: Programs,
    reference: Programs,
    rng: np.random.Generator,
    precision: Precision,
    cap_s: float,
) -> tuple[Timing | Failure, float]:
    """Verify and time the candidate against the reference; also the seconds the device was held."""
    arena = _Arena(problem)
    samples = arena.draw(rng)
    started = time.perf_counter()
    deadline = started + cap_s
    with (
        _Child(reference, arena, device) as their_child,
        _Child(candidate, arena, device) as our_child,
    ):
        theirs = _ReferenceRunner(their_child, arena, samples, deadline)
        ours = _Runner(our_child, arena, samples, deadline)
        outcome = (
            their_child.load(_LOAD_TIMEOUT_S)
            or our_child.load(_LOAD_TIMEOUT_S)
            or _time(problem, ours, theirs, samples, rng, precision, deadline)
        )
    return outcome, min(time.perf_counter() - started, cap_s)


def _time(
    problem: Problem,
    ours: _Runner,
    theirs: _ReferenceRunner,
    samples: Mapping[str, Sequence[Sample]],
    rng: np.random.Generator,
    precision: Precision,
    deadline: float,
) -> Timing | Failure:
    baseline_s = {}
    for case in problem.cases:
        seconds = theirs.run(case.name, [0])
        if isinstance(seconds, Failure):
            return seconds
        baseline_s[case.name] = seconds
    timed = {case.name: len(samples[case.name]) for case in problem.timed_cases}
    return ours.verify_all(baseline_s) or time_pairs(timed, ours, theirs, rng, precision, deadline)
