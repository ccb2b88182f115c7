"""The process of a PyTorch module, in this process: what is done in which phase, and on a device.

There is no GPU here. A stand-in for CUDA notes what is asked of it: tensors "on the device" are
copies in this process's memory, so that a missing copy or a missing wait shows.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends import _module, _torch_worker
from kernelcast.backends._torch_worker import FETCH, IDLE, RAISED, RUN, SHOW, STAGE, UNLIKE, WHOLE

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

STRIDE, BASE, CALLS = 256, 512, 2
INIT = None
CASE = {
    "init": INIT,
    "call": [{"array": "x"}, 3],
    "returns": [{"array": "y"}],
    "outputs": ["y"],
    "stride": STRIDE,
    "is_stated": True,
    "arrays": [("x", "float32", [4], 0), ("y", "float32", [4], 64)],
}


class OfSlot(torch.Tensor):  # type: ignore[misc]
    """A tensor of the shared memory."""

    events: list[str]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if "cuda" in map(str, (getattr(each, "type", "") for each in args)):
            self.events.append("to device")
            return self.as_subclass(torch.Tensor).clone()
        return super().to(*args, **kwargs)

    def copy_(self, *args: Any) -> Any:
        self.events.append("copy back")
        return super().copy_(*args)


class Flush:
    def __init__(self, events: list[str]) -> None:
        self._events = events

    def zero_(self) -> None:
        self._events.append("flush")


class StandIn:
    """PyTorch, but for the few functions by which a worker deals with a device."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.flushed: list[int] = []
        self.cuda = type("Cuda", (), {"synchronize": lambda _: events.append("wait")})()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: Any, device: Any = None, **more: Any) -> Any:
        if device is None:
            return torch.empty(*shape, **more)
        self.flushed.append(shape[0])
        return Flush(self.events)

    def frombuffer(self, *args: Any, **kwargs: Any) -> Any:
        made = torch.frombuffer(*args, **kwargs).as_subclass(OfSlot)
        OfSlot.events = self.events
        return made


class Worker:
    """A runner with one entry, its memory, and what was asked of the device."""

    def __init__(self, device: str, entry: Callable[..., Any], case: Any = None) -> None:
        self.events: list[str] = []
        self.memory = mmap.mmap(-1, 8192)
        self.note = memoryview(bytearray(_torch_worker.NOTE_BYTES))
        job = {"device": device, "flush_bytes": 1 << 20, "source": "x\n", "compiles": False}
        job["rehearses"] = False
        self.stand_in = StandIn(self.events)
        if device != "cpu":
            sys.modules["torch"] = self.stand_in  # type: ignore[assignment]
        cases = [_torch_worker._Case(CASE | (case or {}))]
        self.addresses = memoryview(bytearray(_torch_worker.ADDRESSES_BYTES)).cast("q")
        self.runner = _torch_worker._Runner(
            _module, job, cases, self.memory, self.note, self.addresses
        )
        self.runner._entries[repr(INIT)] = entry
        for call in range(CALLS):
            self.input(call).copy_(torch.arange(4.0) + call)

    def ask(self, phase: int) -> int:
        return self.runner.answer(phase, CALLS, 0, BASE)

    def asked(self, phase: int) -> list[str]:
        """What happened in a phase that must succeed."""
        self.events.clear()
        assert self.ask(phase) == 0, self.said
        return list(self.events)

    def input(self, call: int) -> Any:
        return torch.frombuffer(
            self.memory, dtype=torch.float32, count=4, offset=BASE + call * STRIDE
        )

    def shown(self, call: int) -> list[float] | None:
        """What lies at the address that was noted for an output; None if none was."""
        if not (address := self.addresses[call]):
            return None
        return list((ctypes.c_float * 4).from_address(address))

    def output(self, call: int) -> list[float]:
        offset = BASE + call * STRIDE + 64
        values = torch.frombuffer(self.memory, dtype=torch.float32, count=4, offset=offset)
        return [float(value) for value in values]

    @property
    def said(self) -> str:
        return bytes(self.note).partition(b"\0")[0].decode()


@pytest.fixture
def work() -> Iterator[Callable[..., Worker]]:
    enabled = torch.is_grad_enabled()
    yield Worker
    sys.modules["torch"] = torch
    torch.set_grad_enabled(enabled)


def times(x: Any, factor: int) -> Any:
    return factor * x


# --------------------------------------------------------------------------------- on a device


def test_copies_and_the_flush_are_made_before_the_run(work: Callable[..., Worker]) -> None:
    worker = work("cuda", times)
    assert worker.stand_in.flushed == [1 << 20]
    staged = worker.asked(STAGE)
    assert staged == [*["to device"] * 2 * CALLS, "flush", "wait"]


def test_a_run_is_the_calls_and_the_wait_for_them(work: Callable[..., Worker]) -> None:
    events: list[str] = []

    def entry(x: Any, factor: int) -> Any:
        events.append("call")
        return factor * x

    worker = work("cuda", entry)
    worker.events = events
    worker.stand_in.cuda = type("Cuda", (), {"synchronize": lambda _: events.append("wait")})()
    assert worker.ask(STAGE) == 0
    assert events == ["wait"]
    assert worker.asked(RUN) == ["call"] * CALLS + ["wait"]
    assert worker.asked(IDLE) == ["wait"]
    assert worker.output(0) == [0.0] * 4  # nothing is copied yet


def test_outputs_and_inputs_are_fetched_behind_the_run(work: Callable[..., Worker]) -> None:
    worker = work("cuda", times)
    worker.ask(STAGE)
    assert worker.asked(RUN) == ["wait"]
    assert worker.output(1) == [0.0] * 4
    assert worker.asked(FETCH) == [*["copy back"] * 2 * CALLS, "wait"]
    assert worker.output(0) == [0.0, 3.0, 6.0, 9.0]
    assert worker.output(1) == [3.0, 6.0, 9.0, 12.0]
    assert worker.input(1).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_an_input_that_was_changed_on_the_device_shows(work: Callable[..., Worker]) -> None:
    worker = work("cuda", lambda x, factor: x.mul_(factor).clone())
    worker.ask(STAGE)
    worker.ask(RUN)
    assert worker.input(1).tolist() == [1.0, 2.0, 3.0, 4.0]
    worker.ask(FETCH)
    assert worker.input(1).tolist() == [3.0, 6.0, 9.0, 12.0]


def test_an_output_that_the_call_names_is_written_on_the_device(
    work: Callable[..., Worker],
) -> None:
    case = {"call": [{"array": "x"}, {"array": "y"}], "returns": []}

    def entry(x: Any, y: Any) -> None:
        y.copy_(5 * x)

    worker = work("cuda", entry, case)
    worker.ask(STAGE)
    worker.ask(RUN)
    assert worker.output(1) == [0.0] * 4
    worker.ask(FETCH)
    assert worker.output(1) == [5.0, 10.0, 15.0, 20.0]


# ------------------------------------------------------------------------------------ on the CPU


def test_on_the_cpu_a_call_works_on_the_memory_itself(work: Callable[..., Worker]) -> None:
    worker = work("cpu", lambda x, factor: x.mul_(factor))
    worker.ask(STAGE)
    worker.ask(SHOW)
    assert worker.input(1).tolist() == worker.shown(1) == [3.0, 6.0, 9.0, 12.0]
    assert worker.output(1) == [0.0] * 4
    assert worker.events == []


def test_outputs_are_shown_where_they_were_made(work: Callable[..., Worker]) -> None:
    worker = work("cpu", times)
    worker.ask(STAGE)
    assert worker.ask(SHOW) == 0
    assert worker.shown(0) == [0.0, 3.0, 6.0, 9.0]
    assert worker.shown(1) == [3.0, 6.0, 9.0, 12.0]
    assert worker.output(1) == [0.0] * 4  # nothing was copied


@pytest.mark.parametrize(
    "apart",
    [
        lambda x, _: torch.stack((x, x), dim=1)[:, 0],
        lambda x, _: x[:1].expand(4),
        lambda x, _: torch.view_as_complex(torch.stack((x, -x), dim=1)).conj().imag,
    ],
    ids=["strided", "expanded", "negative"],
)
def test_outputs_that_lie_apart_are_copied(
    work: Callable[..., Worker], apart: Callable[..., Any]
) -> None:
    worker = work("cpu", apart)
    worker.ask(STAGE)
    assert worker.ask(SHOW) == 0
    assert worker.shown(1) is None
    assert worker.output(1) == apart(worker.input(1), 3).tolist()


def test_an_output_in_its_slot_is_neither_shown_nor_copied(work: Callable[..., Worker]) -> None:
    case = {"call": [{"array": "x"}, {"array": "y"}], "returns": []}

    def entry(x: Any, y: Any) -> None:
        y.copy_(5 * x)

    worker = work("cpu", entry, case)
    worker.ask(STAGE)
    assert worker.ask(SHOW) == 0
    assert worker.shown(1) is None
    assert worker.output(1) == [5.0, 10.0, 15.0, 20.0]


def test_where_outputs_cannot_be_read_the_run_copies_them(work: Callable[..., Worker]) -> None:
    worker = work("cpu", times)
    worker.ask(STAGE)
    assert worker.ask(WHOLE) == 0
    assert worker.output(1) == [3.0, 6.0, 9.0, 12.0]


def test_answers_of_an_earlier_request_are_gone(work: Callable[..., Worker]) -> None:
    worker = work("cpu", times)
    for phase in (STAGE, RUN, FETCH):
        worker.ask(phase)
    worker.memory[BASE + 64 : BASE + 80] = bytes(16)
    assert worker.ask(FETCH) == 0  # there is nothing to fetch
    assert worker.output(0) == [0.0] * 4
    worker.ask(STAGE)
    assert worker.ask(FETCH) == 0
    assert worker.output(0) == [0.0] * 4


@pytest.mark.parametrize(
    ("entry", "phase", "result", "words"),
    [
        (lambda x, _: x.double(), SHOW, UNLIKE, "y is torch.float64, not torch.float32"),
        (lambda x, _: x[:2], WHOLE, UNLIKE, "y has shape (2,), not (4,)"),
        (lambda x, _: None, FETCH, UNLIKE, "y is None, not a tensor"),
        (lambda x, _: 1 / 0, RUN, RAISED, "ZeroDivisionError: division by zero"),
        (lambda x, _: sys.exit(3), RUN, RAISED, "SystemExit: 3"),
        (lambda x: x, RUN, RAISED, "takes 1 positional argument but 2 were given"),
    ],
)
def test_what_goes_wrong_is_left_in_the_note(
    work: Callable[..., Worker], entry: Callable[..., Any], phase: int, result: int, words: str
) -> None:
    worker = work("cpu", entry)
    assert worker.ask(STAGE) == 0
    if phase == FETCH:
        assert worker.ask(RUN) == 0
    assert worker.ask(phase) == result
    assert words in worker.said


def test_a_long_note_ends_within_its_place() -> None:
    memory = bytearray(b"?" * 64)
    _torch_worker.write_note(memoryview(memory)[:32], "é" * 100)
    assert memory[31] == 0
    assert memory[32:] == b"?" * 32
    assert memory[:30].decode() == "é" * 15


# ------------------------------------------------------------------------------- the candidate


def test_weights_are_the_references_where_name_and_shape_agree() -> None:
    class Candidate(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.same = torch.nn.Linear(2, 2)
            self.register_buffer("mask", torch.zeros(3))
            self.other = torch.nn.Parameter(torch.full((5,), 7.0))
            self.reshaped = torch.nn.Parameter(torch.full((4,), 7.0))

    weights = {
        "same.weight": torch.eye(2),
        "mask": torch.ones(3),
        "reshaped": torch.ones(2, 2),
        "unknown": torch.ones(1),
    }
    with torch.no_grad():
        candidate = _torch_worker.moved(Candidate(), torch.device("cpu"), weights)
    assert torch.equal(candidate.same.weight, torch.eye(2))
    assert torch.equal(candidate.mask, torch.ones(3))
    assert candidate.other.tolist() == [7.0] * 5
    assert candidate.reshaped.tolist() == [7.0] * 4
    function = object()
    assert _torch_worker.moved(function, torch.device("cpu"), weights) is function


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    def imported(source: str, name: str = "ModelNew") -> Any:
        (tmp_path / "kernel.py").write_text(source)
        return _torch_worker.entry_of(str(tmp_path), source, name, _module)

    kept = {name: sys.modules.pop(name, None) for name in ("kernel", "task", "utils")}
    yield imported
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def test_the_candidate_is_a_module_of_its_own(entry: Callable[[str], Any]) -> None:
    made = entry(
        "from dataclasses import dataclass\nfrom task import input_t\n\n@dataclass\n"
        "class ModelNew:\n    size: int = 4\n\nif __name__ == '__main__':\n    raise SystemExit\n"
    )
    assert made().size == 4
    assert made.__module__ == "kernel"


@pytest.mark.parametrize("source", ["x = 1\n", "ModelNew = 3\n"])
def test_a_source_without_the_entry_is_told(entry: Callable[[str], Any], source: str) -> None:
    with pytest.raises(_module.Mismatch, match="it defines no ModelNew"):
        entry(source)


def test_the_first_call_is_made_with_inputs_of_the_case_and_judged_later() -> None:
    seen: list[Any] = []

    def entry(x: Any, factor: int) -> Any:
        seen.append((x.tolist(), factor))
        raise SystemExit(3)

    case = _torch_worker._Case(CASE)
    _torch_worker.call_once(_module, entry, case, torch.device("cpu"))
    assert seen == [([1.0] * 4, 3)]
