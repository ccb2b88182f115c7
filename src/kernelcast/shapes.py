"""`BestByShape`: a file of the best configurations by shape and device, for a program to load.

    table = BestByShape("best.json")
    table.add(tuner, {"m": 4096, "n": 4096, "dtype": "float16"})
    choice = table.find({"m": 4000, "n": 4096, "dtype": "float16"}, device="A100")
    print(choice.configuration, choice.doubt)

A shape is a mapping of names to numbers and words. Words have to match. Between numbers, the
distance is in doublings.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kernelcast.canonical import canonical_parameters
from kernelcast.errors import SetupError
from kernelcast.tuner import Tuner
from kernelcast.types import Parameters, Record

Shape = Mapping[str, int | float | str]
_UNNAMED = "unnamed"


class _Entry(Record):
    """What was measured at one shape on one device: seconds by configuration, None if it failed."""

    shape: dict[str, int | float | str]
    device: str
    seconds: dict[str, float | None]

    @property
    def best(self) -> str:
        """The fastest configuration, as JSON text."""
        return min(self.seconds, key=lambda key: self.seconds[key] or math.inf)

    @property
    def words(self) -> str:
        """The shape in words."""
        return _in_words(self.shape)

    def distance(self, shape: Shape) -> float:
        """Return the doublings between two shapes; infinite if they do not compare."""
        if self.shape.keys() != shape.keys():
            return math.inf
        total = 0.0
        for name, value in shape.items():
            own = self.shape[name]
            if own == value:
                continue
            if isinstance(own, str) or isinstance(value, str) or min(own, value) <= 0:
                return math.inf
            total += math.log2(own / value) ** 2
        return math.sqrt(total)


class _File(Record):
    version: int = 1
    entries: tuple[_Entry, ...] = ()


@dataclass(frozen=True)
class ShapeChoice:
    """A configuration for a shape, where it was measured, and what is not known about it."""

    configuration: Parameters
    shape: Shape
    """The shape that it is the best of."""
    device: str
    distance: float
    """Doublings from the shape that was asked for; 0 if it was measured there."""
    seconds: float | None
    """Its time at the shape and on the device that were asked for; None if it was not measured."""
    losses: Sequence[float]
    """What the best of the nearest shape lost at other shapes, as shares of their best times."""
    doubt: str
    """All of that in words."""


class BestByShape:
    """The measured configurations of one kernel by shape and device, in a JSON file.

    One process at a time writes to the file. Readers always see a whole file.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a file, which need not be there yet.

        Raises:
            SetupError: The file is no table of shapes.
        """
        self.path = Path(path)
        self._entries = self._read()

    def add(self, tuner: Tuner, shape: Shape) -> None:
        """Write all that a tuner was told to the file, as times at this shape on its device.

        Raises:
            SetupError: The tuner was told of no time.
        """
        if tuner.best is None:
            raise SetupError("the tuner knows no time yet: report one before adding it")
        device = tuner.device or _UNNAMED
        seconds = {
            canonical_parameters(outcome.configuration): outcome.seconds
            for outcome in tuner.outcomes
        }
        old = next(self._matching(shape, device), None)
        merged = {**(old.seconds if old else {}), **seconds}
        entry = _Entry(shape=dict(shape), device=device, seconds=merged)
        self._entries = [other for other in self._read() if other != old] + [entry]
        text = _File(entries=tuple(self._entries)).model_dump_json(indent=1)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.path)

    def find(self, shape: Shape, device: str | None = None) -> ShapeChoice | None:
        """Return the best configuration of the nearest shape; None if no shape compares.

        The device's own shapes come first, and other devices' only where it has none.

        Args:
            shape: The shape that will run.
            device: The device that it will run on.
        """
        own = device or _UNNAMED
        near = [entry for entry in self._entries if math.isfinite(entry.distance(shape))]
        near = [entry for entry in near if entry.device == own] or near
        if not near:
            return None
        entry = min(near, key=lambda entry: entry.distance(shape))
        distance = entry.distance(shape)
        losses = tuple(self._losses(entry.device))
        is_here = distance == 0 and entry.device == own
        return ShapeChoice(
            configuration=json.loads(entry.best),
            shape=entry.shape,
            device=entry.device,
            distance=distance,
            seconds=entry.seconds[entry.best] if is_here else None,
            losses=() if is_here else losses,
            doubt=_doubt(entry, shape, own, distance, losses),
        )

    def known(self, shape: Shape, device: str | None = None) -> dict[str, dict[str, float | None]]:
        """Return the times elsewhere, for `Tuner(known=...)` at this shape on this device."""
        own = device or _UNNAMED
        return {
            f"{entry.device} ({entry.words})": dict(entry.seconds)
            for entry in self._entries
            if math.isfinite(distance := entry.distance(shape))
            and (distance or entry.device != own)
        }

    def _matching(self, shape: Shape, device: str) -> Iterator[_Entry]:
        for entry in self._entries:
            if entry.device == device and entry.shape == dict(shape):
                yield entry

    def _losses(self, device: str) -> Iterator[float]:
        """Yield what each shape loses by the best of its nearest one, where both measured that."""
        entries = [entry for entry in self._entries if entry.device == device]
        for entry in entries:
            others = [
                other
                for other in entries
                if other is not entry and math.isfinite(other.distance(entry.shape))
            ]
            if others:
                nearest = min(others, key=lambda other: other.distance(entry.shape))
                seconds, best_s = entry.seconds.get(nearest.best), entry.seconds[entry.best]
                if seconds is not None and best_s is not None:
                    yield seconds / best_s - 1.0

    def _read(self) -> list[_Entry]:
        if not self.path.exists():
            return []
        try:
            file = _File.model_validate_json(self.path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, ValueError) as error:
            raise SetupError(
                f"{self.path} is no table of shapes: give it another name ({error})"
            ) from error
        return list(file.entries)


def _in_words(shape: Shape) -> str:
    return " ".join(f"{name}={value}" for name, value in shape.items())


def _doubt(
    entry: _Entry, shape: Shape, device: str, distance: float, losses: Sequence[float]
) -> str:
    if distance == 0 and entry.device == device:
        return f"measured here: the fastest of {len(entry.seconds)} configurations"
    where = [f"at {_in_words(shape)}"] if distance else []
    where += [f"on {device}"] if entry.device != device else []
    text = (
        f"not measured {' '.join(where)}: the fastest at {entry.words} on {entry.device}, "
        f"{distance:.2g} doublings away"
    )
    if not losses:
        return f"{text}; how much slower it is than the best is not known"
    return (
        f"{text}; at {len(losses)} measured shapes the best of the nearest one was "
        f"{statistics.median(losses):.0%} slower than the best in the median, {max(losses):.0%} at "
        "worst"
    )
