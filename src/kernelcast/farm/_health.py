"""Whether a slot's measurements can be believed: its noise, its memory, its place on the machine.

The backend times the reference against itself every half hour, and each measurement carries the
result (`noise_log2`) and what disturbed it. A slot whose noise grows beyond what was usual there
drifts: what it has measured since its last good check is measured again elsewhere.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from statistics import median

from kernelcast.types import MEMORY_ERROR, SMALLEST_CLAIM_LOG2, FailureKind, Measurement

_DRIFT = 3.0  # times the usual noise
_CHECKS = 9  # of which the median is usual
_STEADY = 3  # checks in a row with much, but equal noise, after which it is usual
_EQUAL = 1.5  # largest ratio of equal noises
_APART_LOG2 = 0.25  # beside twice the noise, by which two nodes do not measure the same speed
_NODES = Path("/sys/devices/system/node")


class Health:
    """The checks of one slot, by problem; times of different problems have different noise."""

    def __init__(self) -> None:
        self._usual: dict[str, deque[float]] = {}
        self._latest: dict[str, float] = {}
        self._excess: deque[float] = deque(maxlen=_STEADY)
        self.reason = ""
        """Why the slot is not believed; empty if it is."""

    def see(self, measurement: Measurement) -> bool:
        """Judge the slot by a measurement; return whether that was a new check, and a good one."""
        key, noise = measurement.problem_id, measurement.noise_log2
        if MEMORY_ERROR in measurement.conditions:
            self.reason = MEMORY_ERROR
            return False
        if self._latest.get(key) == noise and not self.reason:
            return False
        self._latest[key] = noise
        usual = self._usual.setdefault(key, deque(maxlen=_CHECKS))
        most = _DRIFT * max(median(usual) if usual else noise, SMALLEST_CLAIM_LOG2)
        if noise > most:
            self._excess.append(noise)
            if len(self._excess) < _STEADY or max(self._excess) > _EQUAL * min(self._excess):
                self.reason = (
                    f"its noise is {2**noise - 1:.1%}, and {2 ** (most / _DRIFT) - 1:.1%} was usual"
                )
                return False
            usual.clear()  # the machine has changed, and is steady again
        self._excess.clear()
        usual.append(noise)
        self.reason = ""
        return True


def disagree(first: Measurement, second: Measurement) -> bool:
    """Return whether two measurements cannot both be true of one kernel."""
    if first.timing is None or second.timing is None:
        failures = [m.failure for m in (first, second) if m.failure is not None]
        # A busy machine can cause a timeout.
        return len(failures) == 1 and failures[0].kind is not FailureKind.TIMEOUT
    noise_log2 = max(first.noise_log2, second.noise_log2)
    apart = abs(first.timing.log2_speedup - second.timing.log2_speedup)
    return apart > _APART_LOG2 + 2.0 * noise_log2


def pin(index: int, slots: int) -> None:
    """Give this process the GPU of a slot, and the cores that are near to it.

    On a machine without a GPU, cores are divided only if there are as many slots as memory nodes:
    one slot is the whole machine.
    """
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    if gpus:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        names = visible or [str(number) for number in range(len(gpus))]
        name = os.environ["CUDA_VISIBLE_DEVICES"] = names[index % len(names)]
        bus = gpus[int(name)].name.lower() if name.isdigit() and int(name) < len(gpus) else ""
        node = _text(Path("/sys/bus/pci/devices") / bus / "numa_node") if bus else ""
    else:
        nodes = sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
        node = str(nodes[index % len(nodes)]) if 1 < len(nodes) <= slots else ""
    if node.isdigit():
        near = _cores(_text(_NODES / f"node{node}" / "cpulist")) & os.sched_getaffinity(0)
        for thread in Path("/proc/self/task").iterdir() if near else ():
            os.sched_setaffinity(int(thread.name), near)


def _cores(text: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8"."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
