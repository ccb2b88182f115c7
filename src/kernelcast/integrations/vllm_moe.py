"""vLLM's fused MoE kernel, tuned by `Tuner` into the configuration file that vLLM reads.

moe = MoeTuner("E=128,N=384,device_name=NVIDIA_H200.json", winners=[vllm_configs])
for batch in BATCH_SIZES:
    while (configuration := moe.suggest(batch)) is not None:
        moe.report(batch, configuration, seconds=measure(batch, configuration))
    moe.save()
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import log2
from pathlib import Path
from typing import Any

from kernelcast import Budget, SetupError, Store, Template, Tuner

BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""The batch sizes that vLLM's `benchmark_moe.py` tunes."""
_VALUES = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (64, 128, 256),
    "GROUP_SIZE_M": (1, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
_NAME = re.compile(r"E=(\d+),N=(\d+),device_name=([^,]+)(.*)\.json")
_FIRST = 5  # winners elsewhere, measured before any suggestion
_NEIGHBOURS = 4  # batch sizes tuned before, whose times are known

Configuration = Mapping[str, int | float | str]
Place = tuple[int, int, str, int]  # experts, size of a layer, device and batch size


class MoeTuner:
    """Tunes one shape on one GPU, batch size by batch size, beginning with what won elsewhere."""

    def __init__(
        self,
        path: str | Path,
        *,
        winners: Iterable[str | Path] = (),
        configurations: Sequence[Configuration] | None = None,
        measurements: int = 50,
        store: str | Path | Store | None = None,
        seed: int = 0,
    ) -> None:
        """Make a tuner.

        Args:
            path: The file to write, named as vLLM's log asks. What it holds is measured first.
            winners: Folders of such files for other shapes and GPUs, e.g. vLLM's `configs`.
            configurations: The space; by default what `benchmark_moe.py` searches on NVIDIA GPUs.
            measurements: At most so many of each batch size.
            store: A path, a database URL or an open store. A program that runs again goes on.
            seed: Seed of all choices.

        Raises:
            SetupError: The name is none of vLLM's, or a file is malformed.
        """
        self.path = Path(path)
        if (named := _NAME.fullmatch(self.path.name)) is None:
            raise SetupError(f"{self.path.name} is no name of vLLM's: copy it from the log of vLLM")
        self._shape, self._kind = (int(named[1]), int(named[2]), named[3]), named[4]
        blocks = re.fullmatch(r",dtype=.*,block_shape=\[(\d+),(\d+)\]", self._kind) or (0, 1, 1)
        whole = (f"BLOCK_SIZE_N % {blocks[1]} == 0", f"BLOCK_SIZE_K % {blocks[2]} == 0")
        searched = Template(parameters=_VALUES, constraints=whole).configurations()
        self._space = list(configurations or searched)
        self._measurements, self._store, self._seed = measurements, store, seed
        files = [file for folder in winners for file in sorted(Path(folder).glob("E=*.json"))]
        self._winners = [won for file in (self.path, *files) for won in self._read(file)]
        self._tuners: dict[int, Tuner] = {}
        self._first: dict[int, list[Configuration]] = {}

    def suggest(self, batch: int) -> Configuration | None:
        """Return the configuration to measure next at a batch size; None if it is tuned."""
        tuner = self._tuner(batch)
        if tuner.stop_reason is not None:
            return None
        first = self._first[batch]
        return first.pop(0) if first else tuner.suggest()[0].configuration

    def report(self, batch: int, configuration: Configuration, *, seconds: float | None) -> None:
        """Tell the time of a configuration at a batch size, None if it failed."""
        self._tuner(batch).report(configuration, seconds=seconds, failed=seconds is None)

    def save(self, *, triton_version: str | None = None) -> None:
        """Write the fastest configurations beside what the file holds of other batch sizes."""
        content = _load(self.path) | ({"triton_version": triton_version} if triton_version else {})
        content |= {str(batch): dict(won) for batch, won in self._fastest().items()}
        ordered = sorted(content.items(), key=lambda item: int(item[0]) if item[0].isdigit() else 0)
        self.path.write_text(json.dumps(dict(ordered), indent=4) + "\n", encoding="utf-8")

    def _fastest(self) -> dict[int, Configuration]:
        """Return the fastest configuration of each batch size that has a time."""
        return {at: it.best.configuration for at, it in self._tuners.items() if it.best is not None}

    def _tuner(self, batch: int) -> Tuner:
        """Return the tuner of a batch size; it knows what was learnt before it was made."""
        if batch in self._tuners:
            return self._tuners[batch]
        (experts, n, device), here = self._shape, (*self._shape, batch)
        won = [((*self._shape, other), winner) for other, winner in self._fastest().items()]
        ranked = sorted(won + self._winners, key=lambda won: _steps(won[0], here))
        first = list({json.dumps(winner): winner for _, winner in ranked}.values())[:_FIRST]
        near = sorted(self._tuners, key=lambda other: abs(log2(other / batch)))[:_NEIGHBOURS]
        tuner = Tuner(
            [*self._space, *(winner for winner in first if winner not in self._space)],
            device=device,
            known={f"{device} at batch {other}": _times(self._tuners[other]) for other in near},
            budget=Budget(measurements=self._measurements),
            store=self._store,
            kernel=f"fused_moe,E={experts},N={n}{self._kind},batch={batch}",
            seed=self._seed,
        )
        self._first[batch] = [point for point in first if json.dumps(point) not in _times(tuner)]
        return self._tuners.setdefault(batch, tuner)

    def _read(self, file: Path) -> Iterator[tuple[Place, Configuration]]:
        """Yield what won where, if a file is of the same data type and block shape."""
        named = _NAME.fullmatch(file.name)
        if named is not None and named[4] == self._kind:
            for batch, winner in _load(file).items():
                if batch.isdigit() and winner.keys() >= self._space[0].keys():
                    place = (int(named[1]), int(named[2]), named[3], int(batch))
                    yield place, {name: winner[name] for name in self._space[0]}


def _load(file: Path) -> dict[str, Any]:
    """Return the content of a file, nothing if there is none."""
    with suppress(ValueError, AttributeError):
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if all(isinstance(entry, dict) for key, entry in content.items() if key.isdigit()):
            return dict(content)
    raise SetupError(f"{file} is no configuration file of vLLM's: take it out of the folder")


def _steps(one: Place, other: Place) -> float:
    """Return how many octaves of size two kernels are apart; another device counts as one."""
    sizes = zip((one[0], one[1], one[3]), (other[0], other[1], other[3]), strict=True)
    return sum(abs(log2(a / b)) for a, b in sizes) + (one[2] != other[2])


def _times(tuner: Tuner) -> dict[str, float | None]:
    return {json.dumps(dict(done.configuration)): done.seconds for done in tuner.outcomes}
