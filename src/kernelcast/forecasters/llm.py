"""A language model as forecaster: one question a candidate, one JSON object of points back.

The model shares 100 points over the ways to fail and the bins of speedup against the anchor. One
simplex for both means that failure always leaves its room to success, and that answers which do
not add up are mended by one division. Text in a kernel must not address the model, so it is shown
canonical source only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from string import Template
from typing import Any

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.canonical import canonical_source
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.llm import Client, Endpoint, Message, device_text, problem_text
from kernelcast.types import (
    FailureKind,
    Forecast,
    Observation,
    Query,
    Resource,
    Spend,
)

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


class LlmForecaster:
    """Forecasts by asking an OpenAI-compatible endpoint; `endpoint` takes `llm.Endpoint`'s fields.

    Queries of one call are asked `concurrency` at a time. The candidate comes last in the prompt,
    so that servers with a prefix cache read problem, device and anchor once.
    """

    name = "llm"
    refreshes = False

    def __init__(
        self,
        *,
        bins: str = "default",
        max_output_tokens: int = 8192,
        temperature: float | None = 0.0,
        seed: int | None = 0,
        concurrency: int = 4,
        **endpoint: Any,
    ) -> None:
        self.concurrency = concurrency
        if bins not in _BINS:
            raise SetupError(f"bins are one of {', '.join(_BINS)}, not {bins!r}")
        self._bins = _BINS[bins]
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._seed = seed
        self._client = Client(Endpoint.from_options(endpoint))

        bin_keys = [label.replace(" ", "_") for label in self._bins.labels]
        self._keys = (*(cause.value for cause in _CAUSES), *bin_keys)
        self._schema = _schema(self._keys)
        self._system = _prompt("system.txt").substitute(
            bins=self._bins.table(), keys=", ".join(self._keys)
        )
        self._user = _prompt("user.txt")

    def quote(self, queries: Sequence[Query]) -> Spend:
        """The most that the forecasts can cost, with every retry needed."""
        quotes = [
            self._client.quote(
                self._messages(query),
                schema=self._schema,
                max_output_tokens=self._max_output_tokens,
            )
            for query in queries
        ]
        return {
            Resource.FORECAST_TOKENS: float(sum(each.tokens for each in quotes)),
            Resource.FORECAST_USD: sum(each.usd for each in quotes),
        }

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """One forecast a query; an answer that cannot be read becomes a uniform one."""
        with ThreadPoolExecutor(max_workers=max(1, self.concurrency)) as pool:
            return list(pool.map(self._forecast, queries))

    def learn(self, observations: Sequence[Observation]) -> None:
        """Nothing: what the model knows does not change during a run."""

    def _messages(self, query: Query) -> list[Message]:
        user = self._user.substitute(
            problem=problem_text(query.problem),
            device=device_text(query.device),
            anchor_runtime=f"{query.anchor_runtime_s * 1e3:.4g} ms",
            anchor_speedup=f"{2.0**query.anchor_log2_speedup:.3g}",
            anchor=canonical_source(query.anchor.source, query.anchor.language).strip(),
            candidate=canonical_source(query.candidate.source, query.candidate.language).strip(),
        )
        return [{"role": "system", "content": self._system}, {"role": "user", "content": user}]

    def _forecast(self, query: Query) -> Forecast:
        answer = self._client.complete(
            self._messages(query),
            schema=self._schema,
            max_output_tokens=self._max_output_tokens,
            seed=self._seed,
            temperature=self._temperature,
        )
        points = self._points(answer.parsed)
        by_bin = points[len(_CAUSES) :]
        rationale = (answer.parsed or {}).get("rationale", "")
        reason = answer.error or "the answer does not share out points as asked"
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.from_bins(
                self._bins, by_bin if any(by_bin) else [1.0] * self._bins.count
            ),
            failure={
                cause: share / sum(points) for cause, share in zip(_CAUSES, points, strict=False)
            },
            usage=answer.usage,
            raw_probability_sum=sum(points) / _POINTS if points else None,
            unparsed=not points,
            rationale=f"{rationale}"[:_RATIONALE_CHARACTERS] if points else reason,
        )

    def _points(self, answer: Mapping[str, Any] | None) -> list[float]:
        """The points of every outcome; empty if one is missing or is none, or all are 0."""
        points = [(answer or {}).get(key) for key in self._keys]
        readable = [
            float(each)
            for each in points
            if isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each <= _POINTS
        ]
        return readable if len(readable) == len(points) and any(readable) else []


def _schema(outcomes: Sequence[str]) -> dict[str, Any]:
    # Whole numbers first and a bounded sentence last: the smallest model gets through to the end.
    points = {"type": "integer", "minimum": 0, "maximum": _POINTS}
    sentence = {"type": "string", "maxLength": _RATIONALE_CHARACTERS}
    return {
        "type": "object",
        "properties": {**dict.fromkeys(outcomes, points), "rationale": sentence},
        "required": [*outcomes, "rationale"],
        "additionalProperties": False,
    }


def _prompt(name: str) -> Template:
    folder = resources.files("kernelcast.forecasters") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8").strip())
