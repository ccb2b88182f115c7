"""A language model as forecaster, with three ways to ask.

reasoned  The model writes a short rationale, then shares 100 points over the failure causes and the
          bins of speedup. Several answers are pooled. Points that do not sum to 100 are scaled.
direct    The model answers with one letter per outcome, read by its log probability. A forecast
          costs one token, which suits small or tuned models.
pairwise  The model says which of two kernels is faster. It is asked in both orders, so that a
          preference for the first one cancels.

The model reads canonical source only, so that text in a kernel cannot address it. The candidate
comes last, as a difference from the anchor if that is shorter. The prompt before it is the same for
every candidate of an anchor, so a server that caches prefixes reads it once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import chain
from string import Template, ascii_uppercase
from typing import Any, Literal, get_args

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.canonical import canonical_source
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.languages import dialect
from kernelcast.llm import (
    Answer,
    Client,
    Endpoint,
    Message,
    Price,
    Reply,
    Request,
    device_text,
    evidence_text,
    problem_text,
)
from kernelcast.types import (
    FailureKind,
    Forecast,
    Kernel,
    Observation,
    Problem,
    Query,
    Resource,
    Spend,
    Usage,
)

Way = Literal["reasoned", "direct", "pairwise"]

_BINS = {bins.name: bins for bins in (DEFAULT_BINS, PAPER_BINS)}
_POINTS = 100
_RATIONALE_CHARACTERS = 200
# Cheating is left out: verification finds it, a forecast does not.
_CAUSES = (
    FailureKind.COMPILE_ERROR,
    FailureKind.WRONG_RESULT,
    FailureKind.CRASH,
    FailureKind.TIMEOUT,
)
_TOP_LOGPROBS = 20
_LEAST_MASS = 0.01  # below this probability of all letters, the answer is unreadable
_CONTEXT_LINES = 2
# A pairwise answer has no size. Edits typically change the time by half an octave.
_PAIRWISE_SPREAD_LOG2 = 0.5


class LlmForecaster:
    """Forecaster that asks an OpenAI-compatible endpoint; other options are `llm.Endpoint`'s.

    `samples` reasoned answers are pooled. They differ only with a `temperature` above 0.
    """

    name = "llm"
    refreshes = False

    def __init__(
        self,
        *,
        ask: Way = "reasoned",
        bins: str = "default",
        samples: int = 1,
        max_output_tokens: int = 8192,
        temperature: float | None = 0.0,
        seed: int | None = 0,
        concurrency: int = 4,
        **endpoint: Any,
    ) -> None:
        if ask not in get_args(Way):
            raise SetupError(f"ask is one of {', '.join(get_args(Way))}, not {ask!r}")
        if bins not in _BINS:
            raise SetupError(f"bins are one of {', '.join(_BINS)}, not {bins!r}")
        self.concurrency = concurrency
        self._ask: Way = ask
        self._bins = _BINS[bins]
        self._samples = samples if ask == "reasoned" else 1
        self._max_output_tokens = max_output_tokens if ask == "reasoned" else 1
        self._temperature = temperature
        self._seed = seed
        self._client = Client(
            Endpoint.from_options({"concurrency": max(1, concurrency), **endpoint})
        )
        bin_keys = [label.replace(" ", "_") for label in self._bins.labels]
        self._keys = (*(cause.value for cause in _CAUSES), *bin_keys)
        self._letters = ascii_uppercase[: len(self._keys)]
        self._schema = _schema(self._keys) if ask == "reasoned" else None
        ranges = [f"right, {self._bins.range_text(index)}" for index in range(self._bins.count)]
        meanings = [*(f"fails: {cause.value}" for cause in _CAUSES), *ranges]
        self._system = _prompt(f"{ask}.txt").safe_substitute(
            bins=self._bins.table(),
            keys=", ".join(self._keys),
            outcomes="\n".join(
                f"{letter}: {key.replace('_', ' ')} ({meaning})"
                for letter, key, meaning in zip(self._letters, self._keys, meanings, strict=True)
            ),
        )
        self._user = _prompt("pair.txt" if ask == "pairwise" else "user.txt")

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
        """Do nothing: the model does not change during a run."""

    def requests(self, query: Query) -> list[Request]:
        """Return the requests for a query."""
        prompts = [self._prompted(query)]
        if self._ask == "pairwise":
            prompts.append(self._prompted(query, candidate_first=True))
        return [
            Request(
                messages=messages,
                schema=self._schema,
                max_output_tokens=self._max_output_tokens,
                temperature=self._temperature,
                seed=self._seed,
                samples=self._samples,
                top_logprobs=None if self._ask == "reasoned" else _TOP_LOGPROBS,
            )
            for messages in prompts
        ]

    def _prompted(self, query: Query, *, candidate_first: bool = False) -> list[Message]:
        entry = query.problem.entry
        anchor, candidate = (_shown(kernel, entry) for kernel in (query.anchor, query.candidate))
        pair = [
            (evidence_text(query.anchor_evidence), anchor),
            (evidence_text(query.evidence), candidate),
        ]
        (first_evidence, first), (second_evidence, second) = pair[:: -1 if candidate_first else 1]
        user = self._user.safe_substitute(
            problem=_task_text(query.problem),
            device=device_text(query.device),
            anchor_speed=_speed_text(query),
            anchor_evidence=pair[0][0],
            anchor=anchor,
            candidate_evidence=pair[1][0],
            candidate=_shortest(anchor, candidate),
            first_evidence=first_evidence,
            first=first,
            second_evidence=second_evidence,
            second=second,
        )
        return [{"role": "system", "content": self._system}, {"role": "user", "content": user}]

    def _read(self, query: Query, replies: Sequence[Reply]) -> Forecast:
        if self._ask == "pairwise":
            chances, density, total = self._read_pair(replies)
        else:
            shares = [self._shares(answer) for answer in replies[0].samples]
            chances, density, total = self._pool([share for share in shares if share])
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
            rationale=reason if total is None else f"{rationale}"[:_RATIONALE_CHARACTERS],
        )

    def _shares(self, answer: Answer) -> list[float]:
        """Read the probability of each outcome; return an empty list if that is impossible."""
        if self._ask == "direct":
            return _letter_chances(answer, self._letters)
        return [points / _POINTS for points in _points(answer.parsed, self._keys)]

    def _pool(
        self, answers: Sequence[Sequence[float]]
    ) -> tuple[dict[FailureKind, float], Distribution, float | None]:
        """Return the mean of the answers, each scaled to sum to 1 first."""
        if not answers:
            uniform = Distribution.from_bins(self._bins, [1.0] * self._bins.count)
            return dict.fromkeys(_CAUSES, 0.0), uniform, None
        scaled = [[share / sum(answer) for share in answer] for answer in answers]
        pooled = [math.fsum(column) / len(scaled) for column in zip(*scaled, strict=True)]
        by_bin = pooled[len(_CAUSES) :]
        density = Distribution.from_bins(
            self._bins, by_bin if any(by_bin) else [1.0] * self._bins.count
        )
        total = math.fsum(map(math.fsum, answers)) / len(answers)
        return dict(zip(_CAUSES, pooled, strict=False)), density, total

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


def _shown(kernel: Kernel, entry: str) -> str:
    source = kernel.source
    if dialect(kernel.language).family == "c":
        # A recorded configuration is a template and the values that a tuner gave the compiler.
        values = [f"#define {name} {value}\n" for name, value in (kernel.parameters or {}).items()]
        source = "".join(define for define in values if define not in source) + source
    return canonical_source(source, kernel.language, entry).strip()


def _task_text(problem: Problem) -> str:
    # A problem that is known by its kernels alone has no work and no cases to describe.
    return problem_text(problem) if problem.arguments else f"{problem.name}: {problem.summary}"


def _speed_text(query: Query) -> str:
    """Describe the anchor's speed; recorded kernels often have a ratio but no time."""
    ratio = f"{2.0**query.anchor_log2_speedup:.3g} times as fast as the reference"
    if not math.isfinite(query.anchor_runtime_s):
        return ratio
    return f"{query.anchor_runtime_s * 1e3:.4g} ms, {ratio}"


def _shortest(anchor: str, candidate: str) -> str:
    """Return the candidate, or its difference from the anchor if that is shorter."""
    lines = list(
        difflib.unified_diff(
            anchor.splitlines(), candidate.splitlines(), lineterm="", n=_CONTEXT_LINES
        )
    )
    if not lines:
        return "The same as the anchor."
    difference = "As a difference from the anchor:\n" + "\n".join(lines[2:])
    return difference if len(difference) < len(candidate) else candidate


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


def _points(answer: Mapping[str, Any] | None, keys: Sequence[str]) -> list[float]:
    """Return the points of every outcome, or [] if one is missing or invalid, or all are 0."""
    values = [(answer or {}).get(key) for key in keys]
    points = [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _POINTS
    ]
    return points if len(points) == len(values) and any(points) else []


def _schema(outcomes: Sequence[str]) -> dict[str, Any]:
    # With a bounded text and whole numbers, the smallest model reaches the end. llama.cpp's grammar
    # takes minutes with twice the bound.
    points = {"type": "integer", "minimum": 0, "maximum": _POINTS}
    sentence = {"type": "string", "maxLength": _RATIONALE_CHARACTERS}
    return {
        "type": "object",
        "properties": {"rationale": sentence, **dict.fromkeys(outcomes, points)},
        "required": ["rationale", *outcomes],
        "additionalProperties": False,
    }


def _sum(replies: Sequence[Reply]) -> Usage:
    """Sum the usages; concurrent requests take as long as the slowest one."""
    usages = [reply.usage for reply in replies]
    slowest_s = max(usage.seconds for usage in usages)
    return Usage.total(usages).model_copy(update={"seconds": slowest_s})


def _prompt(name: str) -> Template:
    folder = resources.files("kernelcast.forecasters") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8").strip())
