"""What came back: the records of a reply, and reading a chat completion without trusting it.

Nothing here raises for what a server or a model wrote: what cannot be read has its outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from kernelcast.types import Record, Usage

Message = Mapping[str, str]
Schema = Mapping[str, Any]
Outcome = Literal[
    "ok",  # an answer; with a schema, an object that fits it
    "unparsed",  # an answer that is no such object, or was cut off before it became one
    "refused",  # the model declined
    "too_large",  # the prompt is too long for the model, or the body for us
    "timeout",  # nothing, or not everything, within the time allowed
    "cut",  # the connection ended before the answer did
    "bad_content",  # a success that is no chat completion
    "rate_limited",  # 429 to the last attempt
    "server_error",  # 5xx to the last attempt, or a failure behind a gateway
    "unavailable",  # not reached any more, or left in peace because it kept failing
]
SAID: frozenset[Outcome] = frozenset({"ok", "unparsed", "refused"})

_MOST_OBJECTS = 1000  # braces in a long text that are tried as the start of an object
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class TokenLogprob(Record):
    """A token with its log probability, and the likeliest at its place, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Sample(Record):
    """One answer. `parsed` may hold an object that does not fit the schema: `error` says so."""

    outcome: Outcome
    text: str = ""
    parsed: dict[str, Any] | None = None
    error: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class Reply(Record):
    """What became of a request: its samples, and what they cost.

    The usage is `unknown` where an attempt ended without anybody telling what it took (a late
    answer, a cut connection): it is charged as if it took all it might.
    """

    samples: tuple[Sample, ...]
    usage: Usage
    cached_input_tokens: int = 0
    attempts: int

    @property
    def best(self) -> Sample:
        """The first sample that is fine, or else the first."""
        fine = [sample for sample in self.samples if sample.outcome == "ok"]
        return (fine or self.samples)[0]

    @property
    def outcome(self) -> Outcome:
        """How it went."""
        return self.best.outcome

    @property
    def text(self) -> str:
        """The answer's text, or the arguments of its tool call."""
        return self.best.text

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The JSON object in the answer, if there is one."""
        return self.best.parsed

    @property
    def error(self) -> str:
        """Why it is not `ok`."""
        return self.best.error

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The answer's tokens, where they were asked for and given."""
        return self.best.logprobs


# ------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Tokens:
    """Tokens as a server counts them."""

    input: int
    output: int
    cached: int


@dataclass(frozen=True)
class Read:
    """A body as far as it can be read; `tokens` is None where the server does not tell."""

    sample: Sample
    tokens: Tokens | None = None


def read_completion(body: bytes, schema: Schema | None, max_output_tokens: int) -> Read:
    """The first choice of a chat completion and the tokens it took."""
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError):
        return Read(Sample(outcome="bad_content", error="the body is not JSON"))
    if not isinstance(completion, dict):
        return Read(Sample(outcome="bad_content", error="the body is no chat completion"))
    tokens = _tokens(completion)
    try:
        choice = _Choice.model_validate(completion["choices"][0])
    except (LookupError, TypeError, ValidationError):
        if completion.get("error"):
            told = f"the server reports a failure: {completion['error']}"[:300]
            return Read(Sample(outcome="server_error", error=told), tokens)
        error = "the body holds no choice of a chat completion"
        return Read(Sample(outcome="bad_content", error=error), tokens)
    # Gateways report a failure of the model behind them as a success.
    if choice.finish_reason == "error":
        failed = Sample(outcome="server_error", error="the server reports that the model failed")
        return Read(failed, tokens)
    sample = _sample(choice, schema)
    if sample.outcome == "unparsed" and choice.finish_reason == "length":
        error = f"the answer was cut off at max_output_tokens = {max_output_tokens}"
        sample = sample.model_copy(update={"error": error})
    return Read(sample, tokens)


class _Function(BaseModel):
    arguments: str


class _Call(BaseModel):
    function: _Function


class _Said(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Likely(BaseModel):
    token: str
    logprob: float


class _Token(_Likely):
    top_logprobs: list[_Likely] | None = None


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Cached(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: _Cached | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek's name for it


def _tokens(completion: Mapping[str, Any]) -> Tokens | None:
    try:
        usage = _Usage.model_validate(completion.get("usage"))
    except ValidationError:
        return None
    details = usage.prompt_tokens_details or _Cached()
    cached = details.cached_tokens or usage.prompt_cache_hit_tokens or 0
    cached = min(max(cached, 0), usage.prompt_tokens)
    return Tokens(usage.prompt_tokens, usage.completion_tokens, cached)


def _sample(choice: _Choice, schema: Schema | None) -> Sample:
    said = choice.message
    text = said.tool_calls[0].function.arguments if said.tool_calls else said.content or ""
    logprobs = tuple(
        TokenLogprob(
            token=each.token,
            logprob=each.logprob,
            top=tuple((top.token, top.logprob) for top in each.top_logprobs or ()),
        )
        for each in (choice.logprobs and choice.logprobs.content) or ()
    )
    if said.refusal or choice.finish_reason == "content_filter":
        reason = f"the model declined: {said.refusal or 'its filter of contents'}"[:300]
        return Sample(outcome="refused", text=text, error=reason, logprobs=logprobs)
    if schema is None:
        return Sample(outcome="ok", text=text, logprobs=logprobs)
    parsed = find_object(text, schema)
    error = "the answer is not a JSON object" if parsed is None else misfit(parsed, schema)
    return Sample(
        outcome="unparsed" if error else "ok",
        text=text,
        parsed=parsed,
        error=error,
        logprobs=logprobs,
    )


def find_object(text: str, schema: Schema) -> dict[str, Any] | None:
    """The JSON object in a text that may wrap it in thoughts and prose: the last that fits."""
    best, best_fits = None, False
    for found in _objects(text):
        fits = not misfit(found, schema)
        if fits or not best_fits:
            best, best_fits = found, fits
    return best


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, start = json.JSONDecoder(), -1
    for _ in range(_MOST_OBJECTS):
        start = text.find("{", start + 1)
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
            # Half of a surrogate pair is legal in JSON but cannot be stored or hashed.
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        yield value
        start = end - 1


def misfit(value: Any, schema: Schema, where: str = "the answer") -> str:
    """Why a value does not fit a schema; empty if it does.

    Types, required keys, choices and ranges are checked. Lengths and surplus keys are forgiven: no
    reader of an answer stumbles over them.
    """
    if not _is_of_type(value, schema):
        return f"{where} is not of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is none of {schema['enum']}"
    if isinstance(value, int | float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        return f"{where} is out of range"
    if isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                return f"{where} has no {key}"
        for key, of_key in schema.get("properties", {}).items():
            if key not in value:
                continue
            if not _is_of_type(value[key], of_key):
                return f"{where} has no {key} of type {of_key['type']}"
            if wrong := misfit(value[key], of_key, f"{key} in {where}"):
                return wrong
    if isinstance(value, list) and "items" in schema:
        for each in value:
            if wrong := misfit(each, schema["items"], f"an item of {where}"):
                return wrong
    return ""


def _is_of_type(value: Any, schema: Schema) -> bool:
    kind = schema.get("type")
    if not isinstance(kind, str):
        return True
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    # To Python, True is an integer; to JSON it is not.
    return isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)
