"""The default forecaster: randomised trees, learnt online from the run's own measurements.

The trees predict log2 speedup against the reference; a forecast is that prediction seen from the
anchor. Its width is the trees' disagreement, scaled until the out-of-bag errors agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.distribution import Distribution
from kernelcast.forecasters._features import feature_matrix, kernel_features
from kernelcast.types import FailureKind, Forecast, Observation, Query, Spend

_FEWEST = 5  # timed kernels before the trees have a say
_PRIOR_STD_LOG2 = 1.5
_LEAST_STD_LOG2 = 0.03  # about 2%: no kernel is known better than it can be timed
_PRIOR_FAILURE_RATE, _PRIOR_FAILURE_WEIGHT = 0.05, 10.0

Floats = NDArray[np.float64]


class TreesForecaster:
    """Extra-trees over template parameters or source features, fitted again when it has learnt."""

    name = "trees"
    concurrency = 0
    refreshes = True

    def __init__(self, trees: int = 64, seed: int = 0) -> None:
        self._trees = trees
        self._seed = seed
        self._timed: list[tuple[dict[str, float], float]] = []
        self._failed: list[tuple[dict[str, float], FailureKind]] = []
        self._columns: list[str] = []
        self._speed: Any = None
        self._fails: Any = None
        self._width_scale = 1.0
        self._stale = False

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Trees cost milliseconds."""
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations; the next forecast fits them."""
        for observation in observations:
            features = kernel_features(observation.kernel)
            if observation.measurement.failure is not None:
                self._failed.append((features, observation.measurement.failure.kind))
            elif observation.measurement.log2_speedup is not None:
                self._timed.append((features, observation.measurement.log2_speedup))
            self._stale = True

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Wide while little is known, then what the trees say."""
        if not queries:
            return []
        if self._stale:
            self._fit()
        rows = [kernel_features(query.candidate) for query in queries]
        densities = self._densities(rows)
        failures = self._failure_rates(rows)
        causes = Counter(kind for _, kind in self._failed) or Counter([FailureKind.WRONG_RESULT])
        total = sum(causes.values())
        return [
            Forecast(
                forecaster=self.name,
                anchor_id=query.anchor.id,
                anchor_log2_speedup=query.anchor_log2_speedup,
                distribution=density.shift(-query.anchor_log2_speedup),
                failure={kind: rate * count / total for kind, count in causes.items()},
            )
            for query, density, rate in zip(queries, densities, failures, strict=True)
        ]

    # ------------------------------------------------------------------------------- fitting

    def _fit(self) -> None:
        # scikit-learn takes a second to import: only a run that learns pays for it.
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        self._stale = False
        timed = [features for features, _ in self._timed]
        failed = [features for features, _ in self._failed]
        self._columns = sorted({name for row in timed + failed for name in row})
        shared = {"n_estimators": self._trees, "random_state": self._seed, "n_jobs": 1}
        if len(timed) >= _FEWEST:
            x = feature_matrix(timed, self._columns)
            y = np.array([log2_speedup for _, log2_speedup in self._timed])
            self._speed = ExtraTreesRegressor(**shared, bootstrap=True, max_features=0.7).fit(x, y)
            self._width_scale = self._out_of_bag_scale(x, y)
        if len(failed) >= 3 and len(timed) >= 3:
            x = feature_matrix(timed + failed, self._columns)
            labels = np.array([0] * len(timed) + [1] * len(failed))
            self._fails = ExtraTreesClassifier(**shared, min_samples_leaf=2).fit(x, labels)

    def _out_of_bag_scale(self, x: Floats, y: Floats) -> float:
        """By how much the trees' spread must grow to account for errors on unseen kernels."""
        votes = self._votes(x)
        outside = np.ones(votes.shape, dtype=bool)
        for column, drawn in enumerate(self._speed.estimators_samples_):
            outside[drawn, column] = False
        counts = outside.sum(axis=1)
        judged = counts >= 2
        if judged.sum() < _FEWEST:
            return 1.0
        unseen = np.where(outside, votes, np.nan)[judged]
        error = np.nanmean(unseen, axis=1) - y[judged]
        spread = np.hypot(np.nanstd(unseen, axis=1), _LEAST_STD_LOG2)
        # A prior of four observations at 1 keeps the first few from setting the scale alone.
        squared = ((error / spread) ** 2).sum()
        return float(np.clip(np.sqrt((squared + 4.0) / (judged.sum() + 4.0)), 0.7, 4.0))

    # ---------------------------------------------------------------------------- predicting

    def _votes(self, x: Floats) -> Floats:
        narrow = x.astype(np.float32)
        return np.stack([tree.tree_.predict(narrow)[:, 0] for tree in self._speed.estimators_], 1)

    def _densities(self, rows: list[dict[str, float]]) -> list[Distribution]:
        if self._speed is None:
            known = [log2_speedup for _, log2_speedup in self._timed]
            centre = float(np.mean(known)) if known else 0.0
            return [Distribution.normal(centre, _PRIOR_STD_LOG2)] * len(rows)
        votes = self._votes(feature_matrix(rows, self._columns))
        widths = self._width_scale * np.hypot(votes.std(axis=1), _LEAST_STD_LOG2)
        return [
            Distribution.normal(float(mean), float(width))
            for mean, width in zip(votes.mean(axis=1), widths, strict=True)
        ]

    def _failure_rates(self, rows: list[dict[str, float]]) -> Floats:
        seen = len(self._timed) + len(self._failed)
        prior = _PRIOR_FAILURE_RATE * _PRIOR_FAILURE_WEIGHT
        overall = (len(self._failed) + prior) / (seen + _PRIOR_FAILURE_WEIGHT)
        if self._fails is None:
            return np.full(len(rows), overall)
        told = self._fails.predict_proba(feature_matrix(rows, self._columns))[:, 1]
        # Half of the overall rate stays in: the trees' zeros and ones are not certainties.
        weight = _PRIOR_FAILURE_WEIGHT / (seen + _PRIOR_FAILURE_WEIGHT)
        return np.asarray((1 - weight) * told + weight * overall)
