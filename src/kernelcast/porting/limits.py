"""Limits of a file's sizes: those that it refuses, explained by simple rules.

Sizes are drawn at random and tried. The rule that explains most of those that do not run is taken,
if sizes near the base that break it do not run either; else the least values are raised.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from kernelcast.expression import evaluate, names_of

if TYPE_CHECKING:
    from kernelcast.porting.survey import Survey

Sizes = dict[str, int]

_DRAWS, _ROUNDS, _MOST_RULES = 24, 12, 6
_MOST_REFUTED, _MOST_ATTEMPTS = 24, 5
_MOST_DRAWN_BYTES = 4 << 20


@dataclass
class Limits:
    """The sizes with which a file runs.

    Attributes:
        survey: What else is known of the file.
        lows: The least value of each dimension.
        rules: Further conditions.
        found: Whether sizes within the limits run; else there are none.
    """

    survey: Survey
    lows: Sizes = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    found: bool = True

    @classmethod
    def of(cls, survey: Survey) -> Self:
        """Find the limits of a file."""
        limits = cls(survey)
        limits._find()
        return limits

    def _find(self) -> None:
        survey = self.survey
        rng = random.Random(7)  # noqa: S311
        own, choices = survey.subject.own, survey.subject.choices
        base = survey.base
        highs = {
            name: choices.get(name) or max(4, min(4 * base[name], own[name]))
            for name in survey.names
        }
        self.lows = {name: base[name] if name in survey.fixed else 1 for name in survey.names}
        for _ in range(_ROUNDS):
            draws = [
                sizes
                for sizes in itertools.islice(self._drawn(rng, highs), _DRAWS)
                if not survey.runs(sizes)
            ]
            if not draws:
                return
            rule = self._explanation() if len(self.rules) < _MOST_RULES else None
            if rule is None:
                for name in self._to_blame(draws):
                    self.lows[name] = -(-(self.lows[name] + base[name]) // 2)
            elif isinstance(rule, str):
                self.rules.append(rule)
            else:
                self.lows |= rule
        self.lows, self.rules, self.found = {}, [], False

    def _drawn(self, rng: random.Random, highs: Sizes) -> Iterator[Sizes]:
        """Sizes within the limits; the first are as small as allowed."""
        lowest = dict(self.lows)
        if all(evaluate(rule, lowest) for rule in self.rules):
            yield lowest
        for _ in range(200):
            sizes = dict(self.survey.base)
            for name in sorted(self.lows.keys() - self.survey.fixed):
                sizes[name] = drawn(rng, self.lows[name], highs[name])
            allowed = all(evaluate(rule, sizes) for rule in self.rules)
            if allowed and self.survey.bytes_of(self.survey.sizes(sizes)) <= _MOST_DRAWN_BYTES:
                yield sizes

    def _explanation(self) -> str | Sizes | None:
        """The rule, or the least value, that explains most of the sizes that do not run."""
        for _ in range(_MOST_REFUTED):
            rule = self._likeliest_rule()
            if rule is None:
                return None
            if not self._is_refuted(rule):
                name, _, value = rule.partition(" >= ")
                return {name: int(value)} if name.isidentifier() and value.isdigit() else rule
        return None

    def _to_blame(self, draws: Sequence[Sizes]) -> set[str]:
        """The dimensions that are too small, in the first that do not run; all if it is unclear."""
        names = set(self.survey.names) - set(self.survey.subject.choices)
        blamed = {
            name
            for sizes in draws[:4]
            for name in names
            if sizes[name] < self.survey.base[name]
            and self.survey.runs({**sizes, name: self.survey.base[name]})
        }
        return blamed or names

    def _likeliest_rule(self) -> str | None:
        """The rule that agrees with all that was tried, and explains most of what did not run."""
        own = list(self.survey.subject.own)
        good: list[Sizes] = []
        bad: list[Sizes] = []
        for key in list(self.survey.seen):
            sizes = dict(zip(own, key, strict=True))
            if sizes == self.survey.sizes(sizes):
                (good if self.survey.runs(sizes) else bad).append(sizes)
        known = self._known_rules()
        bad = [sizes for sizes in bad if all(evaluate(rule, sizes) for rule in known)]
        best, most = None, 0
        for rule in self._possible_rules():
            explained = sum(not evaluate(rule, sizes) for sizes in bad)
            if explained > most and all(evaluate(rule, sizes) for sizes in good):
                best, most = rule, explained
        return best

    def _known_rules(self) -> list[str]:
        return [*self.rules, *(f"{name} >= {low}" for name, low in self.lows.items())]

    def _is_refuted(self, rule: str) -> bool:
        """Whether the file runs with sizes that break a rule, and differ little from the base."""
        names = [name for name in self.survey.names if name in names_of(rule)]
        near = [
            dict.fromkeys(
                (
                    self.survey.base[n],
                    self.survey.base[n] - 1,
                    self.survey.base[n] + 1,
                    1,
                    self.survey.base[n] // 2,
                )
            )
            for n in names
        ]
        known = self._known_rules()
        tried = 0
        for values in itertools.product(*near):
            sizes = {**self.survey.base, **dict(zip(names, values, strict=True))}
            if min(values) < 1 or evaluate(rule, sizes):
                continue
            if all(evaluate(other, sizes) for other in known):
                if self.survey.runs(sizes):
                    return True
                if (tried := tried + 1) == _MOST_ATTEMPTS:
                    break
        return False

    def _possible_rules(self) -> Iterator[str]:
        names = [name for name in self.survey.names if name not in self.survey.subject.choices]
        for formula in dict.fromkeys(each for array in self.survey.arrays for each in array.shape):
            if not formula.isidentifier() and not formula.isdigit():
                yield f"{formula} >= 1"
        for one, other in itertools.permutations(names, 2):
            yield f"{one} % {other} == 0"
        for one, other in itertools.permutations(names, 2):
            yield f"{one} >= {other}"
        for name in names:
            yield from (f"{name} >= {least}" for least in range(2, 9))
        for name in names:
            yield from (f"{name} % {number} == 0" for number in (2, 3, 4, 8, 16, 32, 64))
        for one, other, third in itertools.permutations(names, 3):
            if other < third:
                yield f"{one} % ({other} * {third}) == 0"


def drawn(rng: random.Random, low: int, high: int) -> int:
    """A number of a range, small and large ones alike often."""
    high = max(low, high)
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
