"""What on the machine makes timings vary: clocks, stolen time, throttling, other processes.

Nothing is refused for it, because interleaved pairs tolerate much, but each measurement carries
it. What the machine does not show is not guessed at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kernelcast.errors import SetupError
from kernelcast.types import MEMORY_ERROR, Device

_CPU = Path("/sys/devices/system/cpu")
_GOVERNOR = _CPU / "cpu0/cpufreq/scaling_governor"
_INTEL_TURBO_IS_OFF = _CPU / "intel_pstate/no_turbo"
_BOOST_IS_ON = _CPU / "cpufreq/boost"
_THROTTLED = _CPU / "cpu0/thermal_throttle/package_throttle_count"
_NODES = Path("/sys/devices/system/node")
_STOLEN_FIELD = 7
_FIELDS_OF_TIME = 8
_MOST_STOLEN = 0.02  # of all time; less is not mentioned
_QUERY_TIMEOUT_S = 5.0
_GPU_FIELDS = (
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.sw_power_cap",
    "clocks.applications.graphics",
    "clocks.max.graphics",
    "clocks.current.graphics",
)
LOCKED_MHZ = "KERNELCAST_LOCKED_MHZ"
"""The environment's variable with the clock at which `lock_clocks` has locked the GPUs."""
_MOST_OFF = 0.02  # of the locked clock
_MEMORY_FIELD = "ecc.errors.uncorrected.volatile.total"


@dataclass(frozen=True)
class Watch:
    """Counters at the start of a measurement, to be compared with those at its end."""

    stolen: int
    passed: int
    throttled: int
    busy: float
    memory_errors: int

    @classmethod
    def start(cls, device: Device) -> Watch:
        """Read the counters now."""
        return cls(*_cpu_times(), _number(_THROTTLED), os.getloadavg()[0], _memory_errors(device))

    def conditions(self, device: Device) -> tuple[str, ...]:
        """What made timings vary since the start, in words."""
        stolen, passed = _cpu_times()
        share = (stolen - self.stolen) / max(1, passed - self.passed)
        conditions = list(settings(device))
        if share > _MOST_STOLEN:
            conditions.append(f"steal {share:.0%}")
        if _number(_THROTTLED) > self.throttled:
            conditions.append("throttled")
        if _memory_errors(device) > self.memory_errors:
            conditions.append(MEMORY_ERROR)
        cores = len(os.sched_getaffinity(0))
        if self.busy > 0.5 * cores:
            conditions.append(f"load {self.busy:.1f} on {cores} cores")
        return tuple(conditions)


def settings(device: Device) -> tuple[str, ...]:
    """What makes timings on the device vary now, in words; nothing if its clocks are locked."""
    return _gpu_settings() if device.kind == "gpu" else _cpu_settings()


def _cpu_settings() -> tuple[str, ...]:
    governor = _text(_GOVERNOR)
    if not governor:
        return ("clocks unlocked: no governor is visible here",)
    causes = [] if governor == "performance" else [f"clocks unlocked: governor {governor}"]
    if _text(_INTEL_TURBO_IS_OFF) == "0" or _text(_BOOST_IS_ON) == "1":
        causes.append("turbo on")
    return tuple(causes)


def _gpu_settings() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ("clocks unknown: no nvidia-smi",)
    fields = _query(tool, f"--query-gpu={','.join(_GPU_FIELDS)}").split(", ")
    thermal, power, applied, most, current = [*fields, *[""] * 5][:5]
    locked = os.environ.get(LOCKED_MHZ, "")
    if locked and current.isdigit():
        off = abs(int(current) - int(locked)) > _MOST_OFF * int(locked)
        causes = [f"clock at {current} MHz, locked at {locked} MHz"] if off else []
    else:
        causes = [] if applied and applied == most else ["clocks unlocked"]
    causes += ["throttled by heat"] if thermal == "Active" else []
    causes += ["capped by power"] if power == "Active" else []
    others = len(_query(tool, "--query-compute-apps=pid").split())
    causes += [f"{others} other processes on the device"] if others else []
    return tuple(causes)


def lock_clocks() -> int:
    """Lock the clocks of all GPUs here at the one they sustain by default; return it in MHz.

    Raises:
        SetupError: There is no GPU, or this user may not lock its clocks.
    """
    tool = shutil.which("nvidia-smi") or ""
    clock = _query(tool, "--query-gpu=clocks.default_applications.graphics") if tool else ""
    if not clock.isdigit():
        raise SetupError("no GPU here tells the clock that it sustains: leave out --lock-clocks")
    command = [tool, f"--lock-gpu-clocks={clock},{clock}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SetupError(
            f"the clocks cannot be locked ({ended.stdout.strip()}): run this as root, or leave out "
            "--lock-clocks"
        )
    return int(clock)


def unlock_clocks() -> None:
    """Undo `lock_clocks`, if there is a GPU."""
    if tool := shutil.which("nvidia-smi"):
        subprocess.run([tool, "--reset-gpu-clocks"], capture_output=True, check=False)


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


def _memory_errors(device: Device) -> int:
    """Uncorrected errors of the device's memory since its driver was loaded; 0 if unknown."""
    tool = shutil.which("nvidia-smi") if device.kind == "gpu" else None
    count = _query(tool, f"--query-gpu={_MEMORY_FIELD}") if tool else ""
    return int(count) if count.isdigit() else 0


def _query(tool: str, query: str) -> str:
    """The tool's answer for the first device that is visible here; empty if there is none."""
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    command = [tool, query, "--format=csv,noheader,nounits", f"--id={name}"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT_S
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu_times() -> tuple[int, int]:
    """Ticks stolen by the hypervisor, and all ticks, of all cores since boot."""
    line = _text(Path("/proc/stat")).partition("\n")[0]
    ticks = list(map(int, line.split()[1 : 1 + _FIELDS_OF_TIME]))
    return (ticks[_STOLEN_FIELD], sum(ticks)) if len(ticks) == _FIELDS_OF_TIME else (0, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
