"""The recorded GPU space that ships with kernelcast: one kernel's configurations on three GPUs.

Others measured and published it; `recorded/README.md` names them and their licence. It is read
without pyarrow, and replayed like any other recording.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import zstandard

from kernelcast.backends.replay import Recorded, Recording
from kernelcast.canonical import canonical_parameters
from kernelcast.dataset.histories import same_vendor
from kernelcast.dataset.keys import configuration_id
from kernelcast.dataset.recordings import recorded_device, recorded_failure
from kernelcast.forecasters.trees import DeviceTimes
from kernelcast.proposers.pool import PoolProposer
from kernelcast.types import Device, Kernel, Problem

_FILE = files("kernelcast.dataset") / "recorded" / "convolution.json.zst"
_MS = 1e-3


@dataclass(frozen=True)
class RecordedSpace:
    """One problem on several GPUs, and where the measurements are from."""

    problem: str
    url: str
    commit: str
    licence: str
    recordings: Mapping[str, Recording]
    """By the name of the GPU."""

    def pool(self) -> PoolProposer:
        """Every configuration, as a kernel without text."""
        recording = next(iter(self.recordings.values()))
        return PoolProposer(
            [
                Kernel(
                    id=configuration_id(self.problem, key),
                    language=recording.language,
                    source="",
                    parameters=json.loads(key),
                )
                for key in recording.entries
            ]
        )

    def elsewhere(self, problem: Problem, device: Device) -> Sequence[DeviceTimes]:
        """What is known of the configurations on the other GPUs."""
        if problem.name != self.problem:
            return ()
        return [
            DeviceTimes(
                device=name,
                log2_runtime={
                    key: None if entry.runtime_s is None else math.log2(entry.runtime_s)
                    for key, entry in recording.entries.items()
                },
                same_vendor=same_vendor(name, device.name),
            )
            for name, recording in self.recordings.items()
            if name != device.name
        ]


@cache
def recorded_space() -> RecordedSpace:
    """Read the space. Speedups are against the configuration of median time."""
    content = json.loads(zstandard.ZstdDecompressor().decompress(_FILE.read_bytes()))
    names = list(content["parameters"])
    keys = [
        canonical_parameters(dict(zip(names, values, strict=True)))
        for values in zip(*content["parameters"].values(), strict=True)
    ]
    return RecordedSpace(
        problem=content["problem"],
        url=content["url"],
        commit=content["commit"],
        licence=content["licence"],
        recordings={
            gpu: Recording(
                problem=content["problem"],
                device=recorded_device({"device": gpu, "source": content["url"]}),
                language=content["language"],
                source=f"// {content['problem']}: its text is at {content['url']}\n",
                reference=_median(keys, outcomes),
                entries={
                    key: _recorded(outcome) for key, outcome in zip(keys, outcomes, strict=True)
                },
            )
            for gpu, outcomes in content["runtime_ms"].items()
        },
    )


def _recorded(outcome: float | str) -> Recorded:
    if isinstance(outcome, str):
        return Recorded(failure=recorded_failure({"status": outcome, "status_detail": None}))
    return Recorded(runtime_s=outcome * _MS)


def _median(keys: Sequence[str], outcomes: Sequence[float | str]) -> str:
    timed = sorted(
        (outcome, key)
        for key, outcome in zip(keys, outcomes, strict=True)
        if not isinstance(outcome, str)
    )
    return timed[(len(timed) - 1) // 2][1]
