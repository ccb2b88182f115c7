"""What measured kernels teach about the next ones: two small regressions, refitted as they come.

One says how likely a kernel is to fail, the other whether one that runs is slower than its anchor,
a tie, or faster. Both read the trees' scores and a few signs, such as how much an edit changes and
how the last ones fared. They start from the weights that held over the training sources, so the
first forecast of a run is that of any source. After a few measurements they are this writer's, this
device's and this problem's. One experience may serve many runs.

The trees have an opinion of their own about the outcome. It is the better one until the regression
has read some dozens of measurements, so both are heard, each as far as it foresaw what happened.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from kernelcast.canonical.lint import FAULT_KINDS
from kernelcast.forecasters._regression import chances, mode
from kernelcast.types import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

FAULTY = "faulty "
"""Beginning of the columns that count faults of a text."""
SIGNS_OF_FAILURE = (
    *("failure rate", "failure streak", "measured", "failed 1 ago", "crash rate", "edit failed"),
    *("failure near 4", "failure near 20", "neighbour 0 likeness", "anchor likeness"),
    *("anchor added", "anchor new words", "tokens", "unseen words", "words of failures"),
    *("reference lost words", "reference likeness", "device functions", "calls"),
    *(f"{FAULTY}{kind}" for kind in FAULT_KINDS),
)
SIGNS_OF_OUTCOME = (
    *("measured", "since gain", "gain rate", "gain mean", "gain std", "gain size", "tie rate"),
    *("late tie rate", "late gain", "gain 1 ago", "behind 1 ago", "last is anchor"),
    *("anchor likeness", "anchor added", "anchor removed", "anchor new words"),
    *("anchor same skeleton", "last likeness", "near likeness", "neighbour 0 likeness"),
    *("neighbour 0 behind", "behind near 4", "behind near 20", "likeness mean", "above 99"),
    *("unseen words", "edit likeness", "edit gain", "anchor log2 speedup", "anchor log2 us"),
    *("failure rate", "reference likeness", "reference lost words"),
)
SLOWER, TIE, FASTER = range(3)
_STEEP = 4.0  # signs are compressed: log(1 + 4 |sign|)
_MOST_DEVIATIONS = 3.0
_KEPT = 3000  # measurements that a refit reads, the latest ones
_FIRST_FIT, _FIT_GROWTH = 5, 1.1
_WEIGHT_PRECISION = 50.0  # of a weight, about the one that held over the sources
_ODDS_PRECISION = 0.5  # of the intercepts of the outcomes
_RUN_SPREAD = 0.5  # of a run's log odds of failure, about its writer's
_SHARE_WEIGHT = 10.0  # measurements that a prior over classes counts for
_FIRST_OF_STAGE = (2, 4, 9, 21)  # measured kernels at which outcomes change their shares
_FIRST_WEIGHTS = (0.8, 0.2)  # of the trees' opinion and of the regression's
_TRUST_PACE = 0.5  # weights follow the chances of what happened to this power
_LEAST_WEIGHT = 0.002


class Signs(Record):
    """Columns that a regression reads, how they are scaled, and the weights that it starts from.

    A row of `weights` belongs to one outcome; its first entry is the intercept, then come the
    trees' scores, then the columns.
    """

    columns: tuple[str, ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]


def sign_values(rows: NDArray[np.floating], places: Sequence[int]) -> Floats:
    """The columns at `places`, compressed; nan if they are not known."""
    values = np.asarray(rows, dtype=np.float64)[:, list(places)]
    values = np.where(np.isfinite(values), values, np.nan)
    return np.asarray(np.sign(values) * np.log1p(_STEEP * np.abs(values)))


def design(scores: Floats, values: Floats, centres: Floats, scales: Floats) -> Floats:
    """The matrix of a regression: a constant, the scores, the scaled signs (0 if unknown)."""
    scaled = np.clip((values - centres) / scales, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
    return np.column_stack((np.ones(len(scores)), scores, np.nan_to_num(scaled)))


class _Regression:
    """A regression that is refitted when its measurements have grown by a tenth."""

    def __init__(self, signs: Signs, columns: Sequence[str], precision: float) -> None:
        place = {name: at for at, name in enumerate(columns)}
        self._places = [place[name] for name in signs.columns]
        self._centres, self._scales = np.array(signs.centres), np.array(signs.scales)
        self._start = np.array(signs.weights)
        self._precision = np.full(self._start.shape[1], _WEIGHT_PRECISION)
        self._precision[0] = precision
        self._weights = self._start
        self._matrix: list[Floats] = []
        self._outcomes: list[int] = []
        self._offsets: list[float] = []
        self._next_fit = _FIRST_FIT

    def matrix(self, rows: Floats, scores: Floats) -> Floats:
        return design(scores, sign_values(rows, self._places), self._centres, self._scales)

    def odds(self, matrix: Floats) -> Floats:
        """Log odds of each outcome but the first, one row per kernel."""
        return np.asarray(matrix @ self._weights.T)

    def add(self, row: Floats, outcome: int, offset: float = 0.0) -> None:
        self._matrix.append(row)
        self._outcomes.append(outcome)
        self._offsets.append(offset)
        if len(self._outcomes) < self._next_fit:
            return
        self._next_fit = math.ceil(max(len(self._outcomes) * _FIT_GROWTH, self._next_fit + 5))
        offsets = np.array(self._offsets[-_KEPT:])[:, None]
        self._weights = mode(
            np.stack(self._matrix[-_KEPT:]),
            others_happened(self._outcomes[-_KEPT:], len(self._start)),
            self._start,
            self._precision,
            offsets=offsets,
        )


def others_happened(outcomes: Sequence[int] | Ints, others: int) -> NDArray[np.bool_]:
    """Whether each outcome but the first happened, by column."""
    return np.equal.outer(outcomes, np.arange(1, others + 1))


@dataclass
class _Failures:
    """Scores and outcomes of one writer or run."""

    scores: list[float]
    failed: list[bool]

    def odds(self, usual: float, spread: float) -> float:
        """The likeliest log odds of a failure at score 0, about the `usual` ones."""
        if not self.scores:
            return usual
        scores, failed = (np.array(part[-_KEPT:])[:, None] for part in (self.scores, self.failed))
        mean, precision = np.array([[usual]]), np.array([spread**-2])
        return float(mode(np.ones_like(scores), failed, mean, precision, offsets=scores)[0, 0])


class Experience:
    """What was measured so far, as the weights of two regressions and the shares of classes."""

    def __init__(
        self,
        columns: Sequence[str],
        failure: Signs,
        failure_odds: tuple[float, float],
        outcome: Signs,
        class_shares: Floats,
    ) -> None:
        """Start from what held over the training sources.

        Args:
            columns: Names of the columns of a row.
            failure: The start of the regression of failure, without an intercept.
            failure_odds: Mean and spread of the writers' log odds of failure.
            outcome: The start of the regression of slower and faster, against a tie.
            class_shares: Share of each class among the outcomes.
        """
        self._failure = _Regression(failure, columns, 1e6)  # the writers have the intercepts
        self._usual, self._spread = failure_odds
        self._outcome = _Regression(outcome, columns, _ODDS_PRECISION)
        self._class_shares = class_shares
        self._writers: defaultdict[str, _Failures] = defaultdict(lambda: _Failures([], []))
        self._weights = np.array(_FIRST_WEIGHTS)
        self._happened = np.zeros_like(class_shares)
        self._happened_at = np.zeros((len(_FIRST_OF_STAGE) + 1, len(class_shares)))

    def new_run(self) -> _Failures:
        """Return what is known of the failures of a new run."""
        return _Failures([], [])

    def p_failure(
        self, rows: Floats, scores: Floats, writers: Sequence[str], run: _Failures
    ) -> Floats:
        """P(failure) of kernels with these rows and trees' scores."""
        own = self._failure.odds(self._failure.matrix(rows, scores))[:, 0]
        return np.asarray(expit(own + [self._odds(writer, run) for writer in writers]))

    def _odds(self, writer: str, run: _Failures) -> float:
        return run.odds(self._writers[writer].odds(self._usual, self._spread), _RUN_SPREAD)

    def groups(self, rows: Floats, scores: Floats) -> Floats:
        """Probabilities of slower, tie and faster."""
        others = chances(self._outcome.odds(self._outcome.matrix(rows, scores)))
        return np.column_stack((others[:, 0], 1.0 - others.sum(axis=1), others[:, 1]))

    def blended(self, opinions: Floats) -> Floats:
        """Class probabilities of kernels: those of both opinions, each by its weight."""
        return np.asarray(np.tensordot(self._weights, opinions, axes=1))

    def class_shares(self, measured: int) -> Floats:
        """Usual share of each class, after so many measured kernels of a run."""
        here = self._happened_at[_stage(measured)]
        shares = _mixed(self._happened, self._class_shares)
        return _mixed(here, shares)

    def add_failure(
        self, row: Floats, score: float, writer: str, run: _Failures, *, failed: bool
    ) -> None:
        """Learn whether a kernel failed."""
        matrix = self._failure.matrix(row, np.array([score]))
        own = float(self._failure.odds(matrix)[0, 0])
        self._failure.add(matrix[0], int(failed), self._odds(writer, run))
        for record in (self._writers[writer], run):
            record.scores.append(own)
            record.failed.append(failed)

    def add_outcome(
        self,
        row: Floats,
        scores: Floats,
        group: int,
        place: int,
        measured: int,
        foreseen: Floats,
    ) -> None:
        """Learn the class at `place`, which is in the `group`, of a kernel that ran.

        `foreseen` is the chance that each opinion gave to this class.
        """
        weights = self._weights * foreseen**_TRUST_PACE
        self._weights = np.maximum(weights / weights.sum(), _LEAST_WEIGHT)
        self._weights /= self._weights.sum()
        matrix = self._outcome.matrix(row, scores)
        self._outcome.add(matrix[0], {TIE: 0, SLOWER: 1, FASTER: 2}[group])
        self._happened[place] += 1.0
        self._happened_at[_stage(measured), place] += 1.0


def _stage(measured: int) -> int:
    return int(np.searchsorted(_FIRST_OF_STAGE, measured, side="right"))


def _mixed(counts: Floats, shares: Floats) -> Floats:
    return np.asarray((counts + _SHARE_WEIGHT * shares) / (counts.sum() + _SHARE_WEIGHT))
