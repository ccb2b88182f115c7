"""The one client for OpenAI-compatible endpoints, and the words in which facts are put to a model.

Only this file imports the SDK, so that every token any part spends is counted in one place and
every provider is a base URL. An answer that is late, cut off or not JSON is a value with an
`error`; `ModelError` means that the endpoint cannot be used until someone mends the set-up.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelcast.errors import ModelError, SetupError, import_extra
from kernelcast.types import Device, Problem, Record, Usage

Message = Mapping[str, str]
Schema = Mapping[str, Any]

_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
# Role markers and the like: what a chat template puts around the text of a whole conversation.
_TEMPLATE_TOKENS = 256
# The SDK insists on a key; servers without authentication ignore it.
_NO_KEY = "none"
_NO_COMPLETION = "no chat completion came back"


class Endpoint(Record):
    """Where a model is, what it costs and how patient to be. `api_key_env` names a variable.

    Ollama heeds only `max_tokens`, OpenAI's reasoning models only `max_completion_tokens`; other
    servers take either, hence `output_limit`.
    """

    base_url: str
    model: str
    api_key_env: str = "KERNELCAST_API_KEY"
    timeout_s: float = Field(default=300.0, gt=0)
    usd_per_million_input_tokens: float = Field(default=0.0, ge=0)
    usd_per_million_output_tokens: float = Field(default=0.0, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    output_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The endpoint that a component's recorded options describe."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
            known = ", ".join(cls.model_fields)
            raise SetupError(
                f"the options do not describe a model endpoint ({wrong}); an endpoint has {known}"
            ) from None

    def usd(self, input_tokens: int, output_tokens: int) -> float:
        """The price of so many tokens."""
        return (
            input_tokens * self.usd_per_million_input_tokens
            + output_tokens * self.usd_per_million_output_tokens
        ) / 1e6


class Answer(Record):
    """What the model said. Where `parsed` is None, `error` says why there is no JSON object."""

    text: str
    parsed: dict[str, Any] | None
    usage: Usage
    attempts: int
    error: str = ""


class Client:
    """Asks one endpoint; safe to share between threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._sdk: Any = import_extra("openai", "llm")
        self._key = os.environ.get(endpoint.api_key_env, "").strip() or _NO_KEY
        # The SDK's own retries would spend what the ledger cannot see.
        self._client = self._sdk.OpenAI(
            base_url=endpoint.base_url,
            api_key=self._key,
            timeout=endpoint.timeout_s,
            max_retries=0,
        )

    def quote(
        self, messages: Sequence[Message], *, schema: Schema, max_output_tokens: int
    ) -> Usage:
        """The most that `complete` can cost, with every attempt failing but the last."""
        endpoint = self.endpoint
        input_tokens = endpoint.max_attempts * _most_input_tokens(messages, schema)
        output_tokens = endpoint.max_attempts * max_output_tokens
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            usd=endpoint.usd(input_tokens, output_tokens),
            seconds=endpoint.max_attempts * (endpoint.timeout_s + _LONGEST_BACKOFF_S),
        )

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Schema,
        max_output_tokens: int,
        seed: int | None = None,
        temperature: float | None = None,
    ) -> Answer:
        """The model's answer as a JSON object of this schema, after as many attempts as allowed.

        A seed or temperature of None is not sent: some models refuse any but their own.
        """
        request: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [dict(message) for message in messages],
            # No `strict`: hosted APIs refuse length limits under it, and local servers, whose
            # small models need the limits, hold every answer to the schema anyway.
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(schema)},
            },
            self.endpoint.output_limit: max_output_tokens,
        }
        if seed is not None:
            request["seed"] = seed
        if temperature is not None:
            request["temperature"] = temperature

        most_input_tokens = _most_input_tokens(messages, schema)
        started = time.monotonic()
        input_tokens = output_tokens = 0
        for attempt in range(1, self.endpoint.max_attempts + 1):
            outcome = self._attempt(request)
            if outcome.usage is not None:
                input_tokens += outcome.usage.prompt_tokens
                output_tokens += outcome.usage.completion_tokens
            elif outcome.answered:
                # What the server does not report is charged at its upper bound.
                input_tokens += most_input_tokens
                output_tokens += max_output_tokens
            if not outcome.worth_a_retry or attempt == self.endpoint.max_attempts:
                break
            time.sleep(outcome.wait_s or _backoff_s(attempt))
        if outcome.unreachable:
            raise ModelError(
                f"cannot reach {self.endpoint.base_url} ({outcome.error}): start the server there "
                f"or mend base_url"
            )

        parsed, error = _json_object(outcome.text), outcome.error
        if parsed is None and outcome.cut_off:
            error = f"the answer was cut off at max_output_tokens = {max_output_tokens}"
        elif parsed is None:
            error = error or "the answer is not a JSON object"
        return Answer(
            text=outcome.text,
            parsed=parsed,
            usage=Usage(
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                usd=self.endpoint.usd(input_tokens, output_tokens),
                seconds=time.monotonic() - started,
            ),
            attempts=attempt,
            error=error,
        )

    def _attempt(self, request: Mapping[str, Any]) -> _Outcome:
        sdk, endpoint = self._sdk, self.endpoint
        try:
            return _read(self._client.chat.completions.create(**request))
        except (json.JSONDecodeError, UnicodeDecodeError, sdk.APIResponseValidationError):
            return _Outcome(error=_NO_COMPLETION, worth_a_retry=True)
        except sdk.APITimeoutError:
            late = f"no answer from {endpoint.base_url} within {endpoint.timeout_s:g} s"
            return _Outcome(error=late, worth_a_retry=True)
        except sdk.APIConnectionError as error:
            reason = self._without_key(f"{error.__cause__ or error}")
            return _Outcome(error=reason, worth_a_retry=True, unreachable=True)
        except sdk.APIStatusError as error:
            status, headers = int(error.status_code), error.response.headers
            reason = f"HTTP {status}: {self._without_key(error.message)}"

        # Raised here, outside the handlers: the SDK's own exception may quote parts of the key.
        if status in (408, 409, 429) or status >= 500:
            return _Outcome(error=reason, worth_a_retry=True, wait_s=_retry_after_s(headers))
        if status in (401, 403):
            raise ModelError(
                f"{endpoint.base_url} refused the key (HTTP {status}): put a valid one in the "
                f"environment variable {endpoint.api_key_env}"
            )
        if status == 404:
            raise ModelError(
                f"{endpoint.base_url} has no model {endpoint.model!r} or no chat completions "
                f"({reason}): mend model, or base_url, which usually ends in /v1"
            )
        if status == 413 or "context" in reason.lower() or "too long" in reason.lower():
            return _Outcome(error=f"the prompt is too long for the model: {reason}")
        raise ModelError(
            f"{endpoint.base_url} does not take such requests ({reason}): choose a model with "
            f"structured output, or mend temperature or output_limit"
        )

    def _without_key(self, text: str) -> str:
        return text if self._key == _NO_KEY else text.replace(self._key, "***")


def problem_text(problem: Problem) -> str:
    """A problem as models are told it: what is computed, the signature's arrays, each timed case.

    Dimensions follow the arrays in the signature of every language.
    """
    arrays = [
        f"- {each.name}: {each.role}, {each.dtype}[{', '.join(each.shape)}]"
        for each in problem.arguments
    ]
    cases = []
    for case in problem.timed_cases:
        dimensions = ", ".join(f"{name}={size}" for name, size in case.dimensions.items())
        shapes = ", ".join(
            f"{each.name}{list(each.extent(case.dimensions))}" for each in problem.arguments
        )
        cases.append(f"- {case.name}: {dimensions}: {shapes}")
    return "\n".join(
        [
            f"{problem.name}: {problem.summary}",
            f"Function `{problem.entry}`, {problem.language}. Arrays in order:",
            *arrays,
            f"then the dimensions {', '.join(problem.dimensions)}.",
            f"Work: {problem.flops} flops, {problem.bytes} bytes. Timed cases:",
            *cases,
        ]
    )


def device_text(device: Device) -> str:
    """A device as models are told it."""
    peaks = ", ".join(
        f"{flops / 1e9:.4g} GFLOP/s {dtype}" for dtype, flops in device.peak_flops.items()
    )
    return (
        f"{device.name} ({device.kind}), {device.cores} cores at {device.clock_hz / 1e9:.3g} GHz, "
        f"peak {peaks or 'unknown'}, memory {device.bandwidth_bytes_s / 1e9:.4g} GB/s"
    )


class _Reported(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class _Message(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    content: str | None = None


class _Choice(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    message: _Message
    finish_reason: str | None = None


@dataclass(frozen=True)
class _Outcome:
    """What became of one attempt."""

    answered: bool = False
    text: str = ""
    cut_off: bool = False
    usage: _Reported | None = None
    error: str = ""
    worth_a_retry: bool = False
    wait_s: float = 0.0
    unreachable: bool = False


def _read(response: Any) -> _Outcome:
    """The part of a response that is used, checked here because the SDK does not check it."""
    try:
        usage = _Reported.model_validate(getattr(response, "usage", None))
    except ValidationError:
        usage = None
    try:
        choice = _Choice.model_validate(response.choices[0])
    except (ValidationError, AttributeError, LookupError, TypeError):
        choice = None
    # Gateways report a failure of the model behind them as a success without a sound choice.
    if choice is None or choice.finish_reason == "error":
        return _Outcome(usage=usage, error=_NO_COMPLETION, worth_a_retry=True)
    return _Outcome(
        answered=True,
        text=choice.message.content or "",
        cut_off=choice.finish_reason == "length",
        usage=usage,
    )


def _backoff_s(attempt: int) -> float:
    ceiling = min(_FIRST_BACKOFF_S * 2.0 ** (attempt - 1), _LONGEST_BACKOFF_S)
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


def _most_input_tokens(messages: Sequence[Message], schema: Schema) -> int:
    # No tokenizer makes more tokens than bytes; some providers add the schema to the prompt.
    told = [text for message in messages for text in message.values()]
    return sum(len(text.encode()) for text in (*told, json.dumps(schema))) + _TEMPLATE_TOKENS


def _json_object(text: str) -> dict[str, Any] | None:
    """The object in the text, which servers without structured output may wrap in prose."""
    for body in (text, text[text.find("{") : text.rfind("}") + 1]):
        try:
            value = json.loads(body)
            # Half of a surrogate pair is legal in JSON but cannot be stored or hashed.
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return min(max(0.0, float(headers.get("retry-after", "0"))), _LONGEST_BACKOFF_S)
    except ValueError:
        return 0.0
