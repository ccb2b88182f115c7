"""Configurations as numbers: levels and standardised features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.forecasters._gaussian import Floats
from kernelcast.types import Parameters

Domain = Mapping[str, Sequence[int | float | str]]
Levels = NDArray[np.intp]


@dataclass(frozen=True)
class _Parameter:
    """One parameter that varies."""

    name: str
    level_of: Mapping[int | float | str, int]
    table: Floats
    """The features of each level, then those of a value without a level."""
    number: tuple[float, float] | None
    """Mean and deviation of the first feature, the logarithm; None for text."""
    is_size: bool
    """True if all its values are positive numbers, three or more."""

    def levels(self, configurations: Sequence[Parameters]) -> Levels:
        name, level_of = self.name, self.level_of
        return np.array(
            [level_of.get(point.get(name, ""), -1) for point in configurations], dtype=np.intp
        )

    def features(self, configurations: Sequence[Parameters], levels: Levels) -> Floats:
        features: Floats = self.table[levels]
        if self.number is not None:
            centre, width = self.number
            for at in np.flatnonzero(levels < 0).tolist():
                value = configurations[at].get(self.name, "")
                if not isinstance(value, str):
                    features[at, 0] = (_log2(np.float64(value)) - centre) / width
        return features


@dataclass(frozen=True)
class Encoding:
    """The levels and features of configurations, fixed by some configurations and a domain.

    Numbers are features by their logarithm. A number with three or four values may be a category,
    so it gets indicators too. Text gets indicators only. A value that is new to the encoding has
    level -1 and no indicator.
    """

    parameters: tuple[_Parameter, ...]

    @classmethod
    def of(cls, configurations: Sequence[Parameters], domain: Domain) -> Encoding:
        """Encode each parameter that varies; `domain` has its values if some may be missing."""
        parameters = []
        for name in sorted({name for point in configurations for name in point}):
            values = [point.get(name, "") for point in configurations]
            usual = list(domain.get(name, values))
            distinct = sorted({*values, *usual}, key=lambda value: (isinstance(value, str), value))
            if len(distinct) > 1:
                parameters.append(_parameter(name, distinct, usual))
        return cls(tuple(parameters))

    @property
    def sizes(self) -> NDArray[np.bool_]:
        """For each feature, whether it is the logarithm of a size."""
        if not self.parameters:
            return np.zeros(1, dtype=bool)
        return np.concatenate(
            [
                np.arange(parameter.table.shape[1]) < parameter.is_size
                for parameter in self.parameters
            ]
        )

    def encode(self, configurations: Sequence[Parameters]) -> tuple[Levels, Floats]:
        """Return levels and features, one row per configuration. No row depends on another."""
        if not self.parameters:
            size = len(configurations)
            return np.zeros((size, 1), dtype=np.intp), np.zeros((size, 1))
        levels = [parameter.levels(configurations) for parameter in self.parameters]
        features = [
            parameter.features(configurations, level)
            for parameter, level in zip(self.parameters, levels, strict=True)
        ]
        return np.stack(levels, axis=1), np.hstack(features)


def _parameter(
    name: str, distinct: Sequence[int | float | str], usual: Sequence[int | float | str]
) -> _Parameter:
    level_of = {value: level for level, value in enumerate(distinct)}
    usual_level = np.array([level_of[value] for value in usual], dtype=np.intp)
    textual = any(isinstance(value, str) for value in distinct)
    scales: list[Floats] = []
    if not textual:
        scales.append(_log2(np.array(distinct, dtype=np.float64)))
    if textual or 2 < len(distinct) <= 4:
        scales.extend(np.eye(len(distinct)))
    columns, number = [], None
    for scale in scales:
        centre, width = scale[usual_level].mean(), scale[usual_level].std() + 1e-9
        columns.append(np.append(scale - centre, -centre) / width)
        if not textual and number is None:
            number = (float(centre), float(width))
            columns[0][-1] = 0.0
    is_size = not textual and len(distinct) > 2 and float(distinct[0]) > 0
    return _Parameter(name, level_of, np.stack(columns, axis=1), number, is_size)


def _log2(number: Floats | np.float64) -> Floats:
    scale: Floats = np.copysign(np.log2(1 + np.abs(number)), number)
    return scale
