"""A language model as forecaster: three ways to ask, one forecast out.

reasoned  a short rationale, then 100 points shared over the ways to fail and the bins of speedup;
          several samples are pooled. One simplex for both means that failure always leaves its
          room to success, and that answers which do not add up are mended by one division.
direct    one letter for all outcomes, read by its log probability: one token a forecast, for small
          or tuned models.
pairwise  which of two is faster, asked in both orders so that a taste for the first does not count.

Text in a kernel must not address the model, so it is shown canonical source only. The candidate
comes last, as a difference from the anchor where that is shorter: all before it is the same for
every candidate of an anchor, and a server that caches prefixes reads it once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template, ascii_uppercase
from typing import Any, Literal, get_args

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.canonical import C_FAMILY, canonical_source
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.llm import (
    Client,
    Endpoint,
    Message,
    Price,
    Reply,
    Request,
    Sample,
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

_BINS = {each.name: each for each in (DEFAULT_BINS, PAPER_BINS)}
_POINTS = 100
_RATIONALE_CHARACTERS = 200
# Cheating is left out: it is what verification finds, not what an honest reading forecasts.
_CAUSES = (
    FailureKind.COMPILE_ERROR,
    FailureKind.WRONG_RESULT,
    FailureKind.CRASH,
    FailureKind.TIMEOUT,
)
_TOP_LOGPROBS = 20
_LEAST_MASS = 0.01  # of the answers asked for, or the letter was none of them
_CONTEXT_LINES = 2
# Which of two is faster says nothing of how much: half an octave is what edits bring.
_PAIRWISE_SPREAD_LOG2 = 0.5


class LlmForecaster:
    """Forecasts by asking an OpenAI-compatible endpoint; further options are `llm.Endpoint`'s.

    `samples` reasoned answers are pooled; to differ, they need a `temperature` above 0.
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
        """What the model's tokens cost, and who says so."""
        return self._client.price

    def quote(self, queries: Sequence[Query]) -> Spend:
        """The most that the forecasts can cost, with every retry needed."""
        quotes = [self._client.quote(each) for query in queries for each in self.requests(query)]
        return {
            Resource.FORECAST_TOKENS: float(sum(each.tokens for each in quotes)),
            Resource.FORECAST_USD: sum(each.usd for each in quotes),
        }

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """One forecast a query; an answer that cannot be read becomes a uniform one."""
        requests = [self.requests(query) for query in queries]
        replies = iter(self._client.ask_many(each for asked in requests for each in asked))
        return [
            self._read(query, [next(replies) for _ in asked])
            for query, asked in zip(queries, requests, strict=True)
        ]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Nothing: what the model knows does not change during a run."""

    def requests(self, query: Query) -> list[Request]:
        """What is asked about a query, word for word."""
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

    # ------------------------------------------------------------------------------- asking

    def _prompted(self, query: Query, *, candidate_first: bool = False) -> list[Message]:
        entry = query.problem.entry
        anchor, candidate = (_shown(each, entry) for each in (query.anchor, query.candidate))
        told = [
            (evidence_text(query.anchor_evidence), anchor),
            (evidence_text(query.evidence), candidate),
        ]
        (first_evidence, first), (second_evidence, second) = told[:: -1 if candidate_first else 1]
        user = self._user.safe_substitute(
            problem=_task_text(query.problem),
            device=device_text(query.device),
            anchor_speed=_speed_text(query),
            anchor_evidence=told[0][0],
            anchor=anchor,
            candidate_evidence=told[1][0],
            candidate=_shortest(anchor, candidate),
            first_evidence=first_evidence,
            first=first,
            second_evidence=second_evidence,
            second=second,
        )
        return [{"role": "system", "content": self._system}, {"role": "user", "content": user}]

    # ------------------------------------------------------------------------------ reading

    def _read(self, query: Query, replies: Sequence[Reply]) -> Forecast:
        if self._ask == "pairwise":
            chances, density, total = self._read_pair(replies)
        else:
            outcomes = [self._outcomes(each) for each in replies[0].samples]
            readable = [each for each in outcomes if each]
            chances, density, total = self._pool(readable)
        sample = replies[0].best
        rationale = (sample.parsed or {}).get("rationale", "")
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

    def _outcomes(self, sample: Sample) -> list[float]:
        """The probability of each outcome as it was given; empty where it cannot be read."""
        if self._ask == "direct":
            return _letter_chances(sample, self._letters)
        return [each / _POINTS for each in _points(sample.parsed, self._keys)]

    def _pool(
        self, samples: Sequence[Sequence[float]]
    ) -> tuple[dict[FailureKind, float], Distribution, float | None]:
        """The mean of the samples, each brought to sum to 1 first."""
        if not samples:
            uniform = Distribution.from_bins(self._bins, [1.0] * self._bins.count)
            return dict.fromkeys(_CAUSES, 0.0), uniform, None
        shares = [[each / sum(sample) for each in sample] for sample in samples]
        pooled = [math.fsum(column) / len(shares) for column in zip(*shares, strict=True)]
        by_bin = pooled[len(_CAUSES) :]
        density = Distribution.from_bins(
            self._bins, by_bin if any(by_bin) else [1.0] * self._bins.count
        )
        total = math.fsum(map(math.fsum, samples)) / len(samples)
        return dict(zip(_CAUSES, pooled, strict=False)), density, total

    def _read_pair(
        self, replies: Sequence[Reply]
    ) -> tuple[dict[FailureKind, float], Distribution, float | None]:
        """P(the candidate is faster): it is B in the first order and A in the second."""
        found = [_letter_chances(reply.best, "AB") for reply in replies]
        wide = Distribution.normal(0.0, _PAIRWISE_SPREAD_LOG2)
        if not all(found):
            return {}, wide, None
        (_, first), (second, _) = found
        masses = [sum(each) for each in found]
        p_faster = (first / masses[0] + second / masses[1]) / 2.0
        return {}, _tilted(wide, p_faster), math.fsum(masses) / len(masses)


def _shown(kernel: Kernel, entry: str) -> str:
    source = kernel.source
    if kernel.language in C_FAMILY:
        # A recorded configuration is its template and values that a tuner gave the compiler.
        stated = [f"#define {name} {value}\n" for name, value in (kernel.parameters or {}).items()]
        source = "".join(each for each in stated if each not in source) + source
    return canonical_source(source, kernel.language, entry).strip()


def _task_text(problem: Problem) -> str:
    # A problem known by its kernels alone has no work or cases; zeros would be taken for facts.
    return problem_text(problem) if problem.arguments else f"{problem.name}: {problem.summary}"


def _speed_text(query: Query) -> str:
    """What is known of the anchor's speed; recorded kernels often have no time, only a ratio."""
    ratio = f"{2.0**query.anchor_log2_speedup:.3g} times as fast as the reference"
    if not math.isfinite(query.anchor_runtime_s):
        return ratio
    return f"{query.anchor_runtime_s * 1e3:.4g} ms, {ratio}"


def _shortest(anchor: str, candidate: str) -> str:
    """The candidate, or how it differs from the anchor if that is less to read."""
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
    """The density with the mass above 0 that is wanted, each side keeping its shape."""
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


def _letter_chances(sample: Sample, letters: str) -> list[float]:
    """The probability of each letter as the first token; empty where hardly any mass is on them."""
    if not sample.logprobs:
        return []
    first = sample.logprobs[0]
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
    # Servers list the likeliest tokens only. That a letter is not among them rules nothing out:
    # it may be as likely as the last that is, as far as the rest of the mass goes.
    absent = sum(chance == 0.0 for chance in chances.values())
    rest = max(0.0, 1.0 - sum(listed.values())) / max(absent, 1)
    return [chance or min(rest, *listed.values()) for chance in chances.values()]


def _points(answer: Mapping[str, Any] | None, keys: Sequence[str]) -> list[float]:
    """The points of every outcome; empty if one is missing or is none, or all are 0."""
    points = [(answer or {}).get(key) for key in keys]
    readable = [
        float(each)
        for each in points
        if isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each <= _POINTS
    ]
    return readable if len(readable) == len(points) and any(readable) else []


def _schema(outcomes: Sequence[str]) -> dict[str, Any]:
    # A bounded text, then whole numbers: the smallest model gets through to the end. Twice the
    # bound takes llama.cpp's grammar minutes.
    points = {"type": "integer", "minimum": 0, "maximum": _POINTS}
    sentence = {"type": "string", "maxLength": _RATIONALE_CHARACTERS}
    return {
        "type": "object",
        "properties": {"rationale": sentence, **dict.fromkeys(outcomes, points)},
        "required": ["rationale", *outcomes],
        "additionalProperties": False,
    }


def _sum(replies: Sequence[Reply]) -> Usage:
    """They were asked for at once: the slowest is what was waited for."""
    usages = [each.usage for each in replies]
    return Usage.total(usages).model_copy(update={"seconds": max(each.seconds for each in usages)})


def _prompt(name: str) -> Template:
    folder = resources.files("kernelcast.forecasters") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8").strip())
