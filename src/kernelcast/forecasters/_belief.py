"""What is believed of a pool's times: by the siblings, and without them.

One belief starts from the siblings' times, and a cold one from nothing. The siblings are trusted as
far as their belief explains the measured times better than the same belief without them does. Those
that mislead are dropped within about ten measurements.
"""

from __future__ import annotations

from scipy.special import expit

from kernelcast.forecasters._gaussian import Floats, GaussianProcess, Rows
from kernelcast.forecasters._prior import FEWEST_FITTED, FEWEST_TIMED, Prior, Target

_TRUST_LOG_ODDS = 1.0  # before any measurement


class Belief:
    """A prior and its Gaussian process."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.model: GaussianProcess = prior.model()

    def fit(self, timed: Rows, times: Floats) -> None:
        """Set the hyperparameters by the log2 times of some rows, and observe these rows."""
        if len(timed) >= FEWEST_FITTED:
            self.model.fit(timed, Target.of(times, self.prior, timed).values)
        self.model.condition(timed)

    def posterior(self, timed: Rows, times: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Return mean and deviation at the model's candidates `rows`, log2 above the fastest."""
        target = Target.of(times, self.prior, timed)
        mean, std = self.model.posterior(target.values)
        return target.in_units(mean, std, self.prior.mean[rows])

    def log_likelihood(self, timed: Rows, times: Floats) -> float:
        """Return the log density of the observed times, up to a constant."""
        return self.model.log_likelihood(Target.of(times, self.prior, timed).values)


class Beliefs:
    """The beliefs about one pool, and the trust in its siblings."""

    def __init__(self, prior: Prior, features: Floats) -> None:
        self.cold = Belief(Prior.cold(features))
        self.informed: Belief | None = None
        self._rival: Belief | None = None
        self.trust = 0.0
        """The probability that the siblings' times help to explain those of the pool."""
        if prior.knee is not None:
            self.informed = Belief(prior)
            self._rival = Belief(prior.without_siblings())
            self.trust = float(expit(_TRUST_LOG_ODDS))

    @property
    def is_trusting(self) -> bool:
        """Whether the siblings are believed rather than not."""
        return self.trust >= 0.5

    @property
    def held(self) -> Belief:
        """The more probable belief."""
        return self.cold if self.informed is None or not self.is_trusting else self.informed

    def fit(self, timed: Rows, times: Floats, candidates: Rows) -> None:
        """Learn the log2 times of some rows; the candidates may be asked about then."""
        for belief in (self.cold, self.informed, self._rival):
            if belief is not None:
                belief.fit(timed, times)
        self._look(candidates)
        if self.informed is not None and self._rival is not None and len(timed) >= FEWEST_TIMED:
            self.trust = _trust(self.informed, self._rival, timed, times)

    def _look(self, candidates: Rows) -> None:
        for belief in (self.cold, self.informed):
            if belief is not None:
                belief.model.look(candidates)

    def extend(self, row: int) -> None:
        """Observe one more row, without a change of hyperparameters and trust."""
        for belief in (self.cold, self.informed):
            if belief is not None:
                belief.model.extend(row)


def trust_in(prior: Prior, timed: Rows, times: Floats) -> float:
    """Return the trust in a prior's siblings, given the log2 times of some rows."""
    if len(timed) < FEWEST_TIMED:
        return float(expit(_TRUST_LOG_ODDS))
    informed, rival = Belief(prior), Belief(prior.without_siblings())
    for belief in (informed, rival):
        belief.fit(timed, times)
    return _trust(informed, rival, timed, times)


def _trust(informed: Belief, rival: Belief, timed: Rows, times: Floats) -> float:
    evidence = informed.log_likelihood(timed, times) - rival.log_likelihood(timed, times)
    return float(expit(_TRUST_LOG_ODDS + evidence))
