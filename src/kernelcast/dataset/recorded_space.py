"""The recorded GPU space that ships with kernelcast: one kernel's configurations on three GPUs.

It was measured and published by others; `recorded/README.md` names them and their licence. It is
read without pyarrow, and replayed like any other recording.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

import zstandard

from kernelcast.backends.replay import Recorded, Recording
from kernelcast.canonical import canonical_parameters
from kernelcast.dataset.histories import History
from kernelcast.dataset.recordings import configured, recorded_device, recorded_failure
from kernelcast.dataset.rows import _MS
from kernelcast.dataset.tuning import median_configuration
from kernelcast.proposers.pool import PoolProposer

_FILE = files("kernelcast.dataset") / "recorded" / "convolution.json.zst"


@dataclass(frozen=True)
class RecordedSpace:
    """One problem on several GPUs, and the source of the measurements."""

    problem: str
    url: str
    commit: str
    licence: str
    recordings: Mapping[str, Recording]
    """By the name of the GPU."""

    def pool(self) -> PoolProposer:
        """A proposer of every configuration, as a kernel without source."""
        recording = next(iter(self.recordings.values()))
        return PoolProposer(
            [configured(self.problem, recording.language, c) for c in recording.configurations]
        )

    @cached_property
    def history(self) -> History:
        """Times of the configurations, by GPU."""
        return History(
            {
                (self.problem, gpu): {
                    key: entry.runtime_s and math.log2(entry.runtime_s)
                    for key, entry in recording.entries.items()
                }
                for gpu, recording in self.recordings.items()
            }
        )


@cache
def recorded_space() -> RecordedSpace:
    """Read the space. Speedups are against the configuration of median time."""
    content = json.loads(zstandard.ZstdDecompressor().decompress(_FILE.read_bytes()))
    problem, columns = content["problem"], content["parameters"]
    keys = [
        canonical_parameters(dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]
    recordings = {}
    for gpu, outcomes in content["runtime_ms"].items():
        entries = {key: _recorded(outcome) for key, outcome in zip(keys, outcomes, strict=True)}
        runtimes = {key: entry.runtime_s for key, entry in entries.items()}
        recordings[gpu] = Recording(
            problem=problem,
            device=recorded_device({"device": gpu, "source": content["url"]}),
            language=content["language"],
            source=f"// {problem}: its text is at {content['url']}\n",
            reference=median_configuration(runtimes)[1] or "",
            entries=entries,
        )
    origin = {name: content[name] for name in ("url", "commit", "licence")}
    return RecordedSpace(problem=problem, recordings=recordings, **origin)


def _recorded(outcome: float | str) -> Recorded:
    if isinstance(outcome, str):
        return Recorded(failure=recorded_failure({"status": outcome, "status_detail": None}))
    return Recorded(runtime_s=outcome * _MS)
