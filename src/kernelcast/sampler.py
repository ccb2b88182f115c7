"""Draws configurations of a template's space, which may be too large to list."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kernelcast.canonical import canonical_parameters
from kernelcast.errors import SetupError
from kernelcast.types import Parameters, Template

LARGEST_POOL = 20_000
"""Configurations that are forecast at once."""
_MOST_LISTED = 200_000  # a larger product of values is drawn from, not listed
_MOST_DRAWS = 400_000
_NEAR_SHARE = 0.4  # of the pool


class Sampler:
    """Draws admitted configurations of a template; a space that is small enough is listed."""

    def __init__(self, template: Template, seed: int) -> None:
        self.template, self._seed = template, seed
        product = math.prod(len(values) for values in template.parameters.values())
        self.is_listed = False
        self._listed: list[dict[str, int | float | str]] = []
        if product <= _MOST_LISTED:
            self._listed = list(template.configurations())
            self.is_listed = len(self._listed) <= LARGEST_POOL

    def admits(self, configuration: Parameters) -> bool:
        """Return True if the space has this configuration."""
        parameters = self.template.parameters
        return (
            configuration.keys() == parameters.keys()
            and all(value in parameters[name] for name, value in configuration.items())
            and self.template.admits(configuration)
        )

    def first(self) -> list[Parameters]:
        """Return the first pool."""
        if self.is_listed:
            pool: list[Parameters] = list(self._listed)
        elif self._listed:
            rng = np.random.default_rng([self._seed, 20])
            rows = rng.choice(len(self._listed), size=LARGEST_POOL, replace=False)
            pool = [self._listed[row] for row in np.sort(rows)]
        else:
            pool = list(self._drawn(LARGEST_POOL, 0).values())
        if not pool:
            raise SetupError("the restrictions admit none of the configurations: check them")
        return pool

    def _drawn(self, count: int, turn: int) -> dict[str, Parameters]:
        """Draw admitted configurations at random, at most `count`."""
        rng = np.random.default_rng([self._seed, turn, 21])
        drawn: dict[str, Parameters] = {}
        names = list(self.template.parameters)
        for _ in range(_MOST_DRAWS // count):
            columns = [
                [values[at] for at in rng.integers(len(values), size=count)]
                for values in self.template.parameters.values()
            ]
            for values in zip(*columns, strict=True):
                configuration = dict(zip(names, values, strict=True))
                if self.template.admits(configuration):
                    drawn.setdefault(canonical_parameters(configuration), configuration)
                if len(drawn) == count:
                    return drawn
        return drawn

    def near(self, centres: Sequence[Parameters], turn: int) -> dict[str, Parameters]:
        """Draw configurations that differ from a centre in one to three parameters."""
        rng = np.random.default_rng([self._seed, turn, 22])
        names = list(self.template.parameters)
        wanted = int(_NEAR_SHARE * LARGEST_POOL)
        near: dict[str, Parameters] = {}
        for _ in range(2 * wanted if centres else 0):
            configuration = dict(centres[int(rng.integers(len(centres)))])
            for name in rng.choice(names, size=min(int(rng.integers(1, 4)), len(names))):
                values = self.template.parameters[str(name)]
                configuration[str(name)] = values[rng.integers(len(values))]
            key = canonical_parameters(configuration)
            if key not in near and self.template.admits(configuration):
                near[key] = configuration
            if len(near) == wanted:
                break
        return near
