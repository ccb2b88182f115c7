"""Conditions of the machine, from files and tools with planted content."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.backends import _preflight
from kernelcast.backends._preflight import LOCKED_MHZ, Watch, lock_clocks, pin, settings
from kernelcast.devices import find_device
from kernelcast.errors import SetupError
from kernelcast.testing import FAKE_DEVICE
from kernelcast.types import MEMORY_ERROR

CPU = FAKE_DEVICE.model_copy(update={"kind": "cpu"})
GPU = find_device("H100-SXM5")
FILES = {
    "governor": "_GOVERNOR",
    "no_turbo": "_INTEL_TURBO_IS_OFF",
    "boost": "_BOOST_IS_ON",
    "throttled": "_THROTTLED",
}


class Machine:
    """What the kernel would say: its files, the load and the stolen time, none of them real."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        for name, constant in FILES.items():
            monkeypatch.setattr(_preflight, constant, folder / name)
        self.load(0.0)
        self.ticks(stolen=0, others=0)

    def says(self, **files: str) -> None:
        for name, text in files.items():
            (self._folder / name).write_text(f"{text}\n")

    def load(self, average: float) -> None:
        self._monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))

    def ticks(self, stolen: int, others: int) -> None:
        self._monkeypatch.setattr(_preflight, "_cpu_times", lambda: (stolen, stolen + others))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_locked_cpu_leaves_nothing_to_say(machine: Machine) -> None:
    machine.says(governor="performance", no_turbo="1", throttled="3")
    assert settings(CPU) == ()
    machine.says(boost="0")
    assert settings(CPU) == ()
    assert Watch.start(CPU).conditions(CPU) == ()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ("clocks unlocked: no governor is visible here",)),
        ({"governor": "powersave"}, ("clocks unlocked: governor powersave",)),
        ({"governor": "performance", "no_turbo": "0"}, ("turbo on",)),
        ({"governor": "performance", "boost": "1"}, ("turbo on",)),
        (
            {"governor": "schedutil", "no_turbo": "0"},
            ("clocks unlocked: governor schedutil", "turbo on"),
        ),
    ],
)
def test_unlocked_clocks_are_said(
    machine: Machine, files: dict[str, str], expected: tuple[str, ...]
) -> None:
    machine.says(**files)
    assert settings(CPU) == expected


def test_stolen_time_is_said_from_two_percent_on(machine: Machine) -> None:
    machine.says(governor="performance")
    machine.ticks(stolen=500, others=10_000)
    watch = Watch.start(CPU)
    machine.ticks(stolen=501, others=10_099)  # 1% since the start; 5% before does not count
    assert watch.conditions(CPU) == ()
    machine.ticks(stolen=520, others=10_080)
    assert watch.conditions(CPU) == ("steal 20%",)


def test_throttling_is_said_if_it_happened_on_the_way(machine: Machine) -> None:
    machine.says(governor="performance", throttled="7")
    watch = Watch.start(CPU)
    assert watch.conditions(CPU) == ()
    machine.says(throttled="8")
    assert watch.conditions(CPU) == ("throttled",)


def test_company_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.says(governor="performance")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    machine.load(1.9)
    assert Watch.start(CPU).conditions(CPU) == ()
    machine.load(2.5)
    watch = Watch.start(CPU)
    machine.load(0.0)  # the load at the start is what counts: later, it is our own
    assert watch.conditions(CPU) == ("load 2.5 on 4 cores",)


@pytest.mark.parametrize("nonsense", ["", "many", "-1", "\x00"])
def test_nonsense_is_not_guessed_at(machine: Machine, nonsense: str) -> None:
    machine.says(governor="performance", throttled=nonsense, no_turbo=nonsense)
    assert Watch.start(CPU).throttled == 0
    assert settings(CPU) == ()


def test_the_counters_of_this_machine_count() -> None:
    before = Watch.start(CPU)
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:
        pass
    after = Watch.start(CPU)
    assert after.passed > before.passed > after.stolen >= before.stolen >= 0
    assert all(isinstance(condition, str) for condition in before.conditions(CPU))


# ------------------------------------------------------------------------------------------ GPUs


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, clocks: str, others: str = "") -> Path:
    """A program called nvidia-smi, alone on the path, that answers both questions."""
    tool = folder / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {folder}/asked\n'
        f"case $1 in --query-gpu=*) echo '{clocks}' ;; *) printf '{others}' ;; esac\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(_preflight, "_QUERY_TIMEOUT_S", 600.0)  # a slow machine is no failure
    return tool


@pytest.mark.parametrize(
    ("clocks", "others", "expected"),
    [
        ("Not Active, Not Active, 1980, 1980", "", ()),
        ("Not Active, Not Active, 1410, 1980", "", ("clocks unlocked",)),
        ("Not Active, Not Active, [N/A], 1980", "", ("clocks unlocked",)),
        ("Active, Not Active, 1980, 1980", "", ("throttled by heat",)),
        ("Not Active, Active, 1980, 1980", "", ("capped by power",)),
        (
            "Not Active, Not Active, 1980, 1980",
            "1234\\n5678\\n",
            ("2 other processes on the device",),
        ),
        ("", "", ("clocks unlocked",)),
    ],
)
def test_what_nvidia_smi_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clocks: str,
    others: str,
    expected: tuple[str, ...],
) -> None:
    stand_in(tmp_path, monkeypatch, clocks, others)
    assert settings(GPU) == expected
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all("--format=csv,noheader,nounits" in line for line in asked)
    assert len(asked) == 2


def test_memory_errors_are_those_of_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "3")
    watch = Watch.start(GPU)
    assert MEMORY_ERROR not in watch.conditions(GPU)
    stand_in(tmp_path, monkeypatch, "4")
    assert MEMORY_ERROR in watch.conditions(GPU)
    assert MEMORY_ERROR not in watch.conditions(CPU)


def test_the_gpu_of_this_process_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    settings(GPU)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all(line.endswith("--id=3") for line in asked)


def test_clocks_are_locked_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "1410")
    assert lock_clocks() == 1410
    assert "--lock-gpu-clocks=1410,1410" in (tmp_path / "asked").read_text()
    monkeypatch.setenv(LOCKED_MHZ, "1410")
    stand_in(tmp_path, monkeypatch, "Not Active, Not Active, [N/A], 1980, 1400")
    assert settings(GPU) == ()
    stand_in(tmp_path, monkeypatch, "Not Active, Not Active, [N/A], 1980, 1200")
    assert settings(GPU) == ("clock at 1200 MHz, locked at 1410 MHz",)


def test_clocks_that_cannot_be_locked_are_a_broken_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="leave out --lock-clocks"):
        lock_clocks()
    tool = stand_in(tmp_path, monkeypatch, "")
    tool.write_text(
        "#!/bin/sh\ncase $1 in --query*) echo 1410 ;; *) echo no permission; exit 4 ;; esac\n"
    )
    with pytest.raises(SetupError, match=r"\(no permission\): run this as root"):
        lock_clocks()


def test_without_nvidia_smi_clocks_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert settings(GPU) == ("clocks unknown: no nvidia-smi",)


@pytest.mark.parametrize("body", ["exit 9", "sleep 9"])
def test_a_tool_that_does_not_answer_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    stand_in(tmp_path, monkeypatch, "").write_text(f"#!/bin/sh\n{body}\n")
    monkeypatch.setattr(_preflight, "_QUERY_TIMEOUT_S", 0.2)
    assert settings(GPU) == ("clocks unlocked",)


# ----------------------------------------------------------------------------------------- cores


@pytest.fixture
def cores() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> list[int]:
    """Two memory nodes, of which the first has one core, and the second the others."""
    first, *others = sorted(cores)
    for node, members in enumerate(([first], others)):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(",".join(map(str, members)))
    monkeypatch.setattr(_preflight, "_NODES", tmp_path)
    return [first, *others]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two cores")
def test_slots_of_a_cpu_have_the_cores_of_their_memory_node(nodes: list[int]) -> None:
    pin(0, 2)
    assert os.sched_getaffinity(0) == {nodes[0]}


def test_one_slot_is_the_whole_machine(nodes: list[int]) -> None:
    pin(0, 1)
    assert os.sched_getaffinity(0) == set(nodes)


def test_a_list_of_cores() -> None:
    assert _preflight._cores("0-2,8,10-11") == {0, 1, 2, 8, 10, 11}
    assert _preflight._cores("") == set()
