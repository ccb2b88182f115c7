"""What on the machine would spoil a timing: clocks, theft, throttling, company.

Nothing is refused for it, because interleaved pairs bear a good deal; but each measurement carries
what was not as it should be. Whatever a machine does not tell is not guessed at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kernelcast.types import Device

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_INTEL_TURBO_IS_OFF = Path("/sys/devices/system/cpu/intel_pstate/no_turbo")
_BOOST_IS_ON = Path("/sys/devices/system/cpu/cpufreq/boost")
_THROTTLED = Path("/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count")
_STOLEN_FIELD = 7
_FIELDS_OF_TIME = 8
_WORTH_SAYING = 0.02
_QUERY_TIMEOUT_S = 5.0
_GPU_FIELDS = (
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.sw_power_cap",
    "clocks.applications.graphics",
    "clocks.max.graphics",
)


@dataclass(frozen=True)
class Watch:
    """Counters at the start of a measurement, to be compared with those at its end."""

    stolen: int
    passed: int
    throttled: int
    busy: float

    @classmethod
    def start(cls) -> Watch:
        """Look at the counters now."""
        stolen, passed = _cpu_times()
        load, _, _ = os.getloadavg()
        return cls(stolen, passed, _number(_THROTTLED), load)

    def conditions(self, device: Device) -> tuple[str, ...]:
        """What was not as it should be since the start, in words."""
        stolen, passed = _cpu_times()
        share = (stolen - self.stolen) / max(1, passed - self.passed)
        said = list(settings(device))
        if share > _WORTH_SAYING:
            said.append(f"steal {share:.0%}")
        if _number(_THROTTLED) > self.throttled:
            said.append("throttled")
        cores = len(os.sched_getaffinity(0))
        if self.busy > 0.5 * cores:
            said.append(f"load {self.busy:.1f} on {cores} cores")
        return tuple(said)


def settings(device: Device) -> tuple[str, ...]:
    """What about the device's clocks and company makes timings vary; nothing if all is locked."""
    return _gpu_settings() if device.kind == "gpu" else _cpu_settings()


def _cpu_settings() -> tuple[str, ...]:
    governor = _text(_GOVERNOR)
    if not governor:
        return ("clocks unlocked: no governor is visible here",)
    said = [] if governor == "performance" else [f"clocks unlocked: governor {governor}"]
    if _text(_INTEL_TURBO_IS_OFF) == "0" or _text(_BOOST_IS_ON) == "1":
        said.append("turbo on")
    return tuple(said)


def _gpu_settings() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ("clocks unknown: no nvidia-smi",)
    thermal, power, applied, most = (
        [*_ask(tool, f"--query-gpu={','.join(_GPU_FIELDS)}").split(", "), *[""] * 4]
    )[:4]
    said = [] if applied and applied == most else ["clocks unlocked"]
    said += ["throttled by heat"] if thermal == "Active" else []
    said += ["capped by power"] if power == "Active" else []
    others = len(_ask(tool, "--query-compute-apps=pid").split())
    said += [f"{others} other processes on the device"] if others else []
    return tuple(said)


def _ask(tool: str, query: str) -> str:
    """The first device's answer; nothing where the tool does not answer."""
    command = [tool, query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _cpu_times() -> tuple[int, int]:
    """Ticks stolen by the hypervisor, and all ticks, of all cores since boot."""
    line = _text(Path("/proc/stat")).partition("\n")[0]
    ticks = [int(each) for each in line.split()[1 : 1 + _FIELDS_OF_TIME]]
    return (ticks[_STOLEN_FIELD], sum(ticks)) if len(ticks) == _FIELDS_OF_TIME else (0, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
