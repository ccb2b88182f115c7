"""A language model as forecaster, with four ways to ask.

reasoned  The model writes a short rationale, then shares 100 points over the failure causes and the
          bins of speedup. Several answers are pooled. Points that do not sum to 100 are scaled. A
          model without hidden reasoning may first `think` in up to 1,500 characters.
direct    The model answers with one letter per outcome, read by its log probability. A forecast
          costs one token, which suits small or tuned models.
digits    The model writes the letter of the likeliest outcome, then a digit for the chance of each.
          It costs 14 tokens and needs no log probabilities.
pairwise  The model says which of two kernels is faster. It is asked in both orders, so that a
          preference for the first one cancels.

`_prompts.py` says what the model reads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from kernelcast.canonical import NameStyle
from kernelcast.distribution import Distribution
from kernelcast.forecasters._prompts import RATIONALE_CHARACTERS, REMEMBERED, Prompts, Way
from kernelcast.llm import Answer, Client, Endpoint, Price, Reply, Request
from kernelcast.outcomes import CAUSES, Shares
from kernelcast.types import (
    FailureKind,
    Forecast,
    Observation,
    Query,
    Resource,
    Spend,
    Usage,
)

__all__ = ["Answering", "LlmForecaster", "Way"]

_TOP_LOGPROBS = 20
_LEAST_MASS = 0.01  # below this probability of all letters, the answer is unreadable
# A server needs about two tokens for a digit where it writes them apart.
_DIGITS_TOKENS = 32
# A pairwise answer has no size. Edits typically change the time by half an octave.
_PAIRWISE_SPREAD_LOG2 = 0.5


class Answering(Protocol):
    """What answers requests: the client of an endpoint, or a model in this process."""

    @property
    def price(self) -> Price:
        """The price of its tokens."""
        ...

    def quote(self, request: Request) -> Usage:
        """Return the highest possible cost of a request."""
        ...

    def ask_many(self, requests: Iterable[Request]) -> list[Reply]:
        """Return the replies in the requests' order."""
        ...


class LlmForecaster:
    """Forecaster that asks an OpenAI-compatible endpoint; other options are `llm.Endpoint`'s.

    `samples` reasoned answers are pooled. They differ only with a `temperature` above 0. `think`
    and `names` are those of `Prompts`.
    """

    name = "llm"
    refreshes = False

    def __init__(
        self,
        *,
        ask: Way = "reasoned",
        bins: str = "default",
        think: bool = False,
        names: NameStyle = "numbered",
        samples: int = 1,
        max_output_tokens: int = 8192,
        temperature: float | None = 0.0,
        seed: int | None = 0,
        concurrency: int = 4,
        **endpoint: Any,
    ) -> None:
        self.concurrency = concurrency
        self._prompts = Prompts(ask, bins, think=think, names=names)
        self._bins = self._prompts.outcomes.bins
        self._samples = samples if ask == "reasoned" else 1
        limits: dict[Way, int] = {"reasoned": max_output_tokens, "digits": _DIGITS_TOKENS}
        self._max_output_tokens = limits.get(ask, 1)
        self._temperature = temperature
        self._seed = seed
        self._client = self._connect({"concurrency": max(1, concurrency), **endpoint})
        self._measured: Mapping[str, Observation] = {}

    def _connect(self, endpoint: Mapping[str, Any]) -> Answering:
        return Client(Endpoint.from_options(endpoint))

    @property
    def price(self) -> Price:
        """The price of the model's tokens, with its source."""
        return self._client.price

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return the highest possible cost of the forecasts, with all retries."""
        requests = [request for query in queries for request in self.requests(query)]
        quotes = [self._client.quote(request) for request in requests]
        return {
            Resource.FORECAST_TOKENS: float(sum(quote.tokens for quote in quotes)),
            Resource.FORECAST_USD: sum(quote.usd for quote in quotes),
        }

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return one forecast per query; an unreadable answer becomes a uniform one."""
        requests = [self.requests(query) for query in queries]
        replies = iter(self._client.ask_many(chain.from_iterable(requests)))
        return [
            self._read(query, [next(replies) for _ in asked])
            for query, asked in zip(queries, requests, strict=True)
        ]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the latest observations for the prompts; the model itself does not change."""
        # A new mapping, as a forecast on another thread may read the old one.
        measured = dict(self._measured)
        for observation in observations:
            measured.pop(observation.kernel.id, None)
            measured[observation.kernel.id] = observation
        self._measured = dict(list(measured.items())[-REMEMBERED:])

    def knowing(self, observations: Sequence[Observation]) -> LlmForecaster:
        """Return a forecaster at the same endpoint that has learnt these observations alone."""
        other = copy.copy(self)
        other._measured = {}
        other.learn(observations)
        return other

    def requests(self, query: Query) -> list[Request]:
        """Return the requests for a query."""
        ask = self._prompts.ask
        return [
            Request(
                messages=messages,
                schema=self._prompts.schema,
                max_output_tokens=self._max_output_tokens,
                temperature=self._temperature,
                seed=self._seed,
                samples=self._samples,
                top_logprobs=_TOP_LOGPROBS if ask in ("direct", "pairwise") else None,
            )
            for messages in self._prompts.of(query, list(self._measured.values()))
        ]

    def _read(self, query: Query, replies: Sequence[Reply]) -> Forecast:
        if self._prompts.ask == "pairwise":
            chances, density, total = self._read_pair(replies)
        else:
            shares = [self._shares(answer) for answer in replies[0].samples]
            chances, density, total = self._pool([share for share in shares if share is not None])
        rationale = (replies[0].parsed or {}).get("rationale", "")
        reason = replies[0].error or "the answer is none of those asked for"
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=density,
            failure=chances,
            usage=_sum(replies),
            raw_probability_sum=total,
            unparsed=total is None,
            rationale=reason if total is None else f"{rationale}"[:RATIONALE_CHARACTERS],
        )

    def _shares(self, answer: Answer) -> Shares | None:
        """Read the probability of each outcome; None if that is impossible."""
        if self._prompts.ask == "digits":
            return self._prompts.outcomes.read_digits(answer.text)
        if self._prompts.ask == "reasoned":
            return self._prompts.outcomes.read_points(answer.parsed)
        chances = _letter_chances(answer, self._prompts.outcomes.letters)
        return Shares.of(chances) if chances else None

    def _pool(
        self, answers: Sequence[Shares]
    ) -> tuple[dict[FailureKind, float], Distribution, float | None]:
        """Return the mean of the answers, each of which sums to 1."""
        if not answers:
            uniform = Distribution.from_bins(self._bins, [1.0] * self._bins.count)
            return dict.fromkeys(CAUSES, 0.0), uniform, None
        columns = zip(*(answer.chances for answer in answers), strict=True)
        pooled = [math.fsum(column) / len(answers) for column in columns]
        by_bin = pooled[len(CAUSES) :]
        density = Distribution.from_bins(
            self._bins, by_bin if any(by_bin) else [1.0] * self._bins.count
        )
        total = math.fsum(answer.raw_sum for answer in answers) / len(answers)
        return dict(zip(CAUSES, pooled, strict=False)), density, total

    def _read_pair(
        self, replies: Sequence[Reply]
    ) -> tuple[dict[FailureKind, float], Distribution, float | None]:
        """Read P(the candidate is faster): it is B in the first order and A in the second."""
        chances = [_letter_chances(reply.best, "AB") for reply in replies]
        wide = Distribution.normal(0.0, _PAIRWISE_SPREAD_LOG2)
        if not all(chances):
            return {}, wide, None
        (_, first), (second, _) = chances
        masses = [sum(pair) for pair in chances]
        p_faster = (first / masses[0] + second / masses[1]) / 2.0
        return {}, _tilted(wide, p_faster), math.fsum(masses) / len(masses)


def _tilted(density: Distribution, p_faster: float) -> Distribution:
    """Scale both sides of 0 so that the mass above 0 is `p_faster`."""
    below = density.cdf(0.0)
    p_faster = min(max(p_faster, 1e-3), 1.0 - 1e-3)
    values = [
        value / below * (1.0 - p_faster)
        if knot <= 0.0
        else 1.0 - (1.0 - value) / (1.0 - below) * p_faster
        for knot, value in zip(density.knots, density.cdf_values, strict=True)
    ]
    values[0], values[-1] = 0.0, 1.0
    return Distribution(knots=density.knots, cdf_values=tuple(values))


def _letter_chances(answer: Answer, letters: str) -> list[float]:
    """Return the probability of each letter as the first token, or [] if they have little mass."""
    if not answer.logprobs:
        return []
    first = answer.logprobs[0]
    listed = {
        token: math.exp(logprob)
        for token, logprob in {first.token: first.logprob, **dict(first.top)}.items()
    }
    chances = dict.fromkeys(letters, 0.0)
    for token, chance in listed.items():
        letter = token.strip().strip("\"'`*().:").upper()
        if letter in chances:
            chances[letter] += chance
    if sum(chances.values()) < _LEAST_MASS:
        return []
    # Servers list only the likeliest tokens. An absent letter may be as likely as the last listed
    # one, up to its share of the remaining mass.
    absent = sum(chance == 0.0 for chance in chances.values())
    rest = max(0.0, 1.0 - sum(listed.values())) / max(absent, 1)
    return [chance or min(rest, *listed.values()) for chance in chances.values()]


def _sum(replies: Sequence[Reply]) -> Usage:
    """Sum the usages; concurrent requests take as long as the slowest one."""
    usages = [reply.usage for reply in replies]
    slowest_s = max(usage.seconds for usage in usages)
    return Usage.total(usages).model_copy(update={"seconds": slowest_s})
