"""Replies of a model, and reading a chat completion without trusting it.

Nothing here raises because of what a server or a model wrote: each fault has an outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import AliasPath, BaseModel, Field, ValidationError

from kernelcast.types import Record, Usage

Message = Mapping[str, str]
Schema = Mapping[str, Any]
Outcome = Literal[
    "ok",  # an answer; with a schema, an object that fits it
    "unparsed",  # an answer that is not such an object, or is cut off
    "refused",  # the model declined
    "too_large",  # the prompt is too long for the model, or the body is too large
    "timeout",  # no complete answer within the time limit
    "cut",  # the connection ended before the answer did
    "bad_content",  # HTTP success, but not a chat completion
    "rate_limited",  # 429 to the last attempt
    "server_error",  # 5xx to the last attempt, or a failure behind a gateway
    "unavailable",  # no connection, or no request sent because the server kept failing
]
ANSWERED: frozenset[Outcome] = frozenset({"ok", "unparsed", "refused"})

_MOST_OBJECTS = 1000  # braces in a long text that are tried as the start of an object
_LONGEST_ERROR = 300
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
    """A token with its log probability, and the likeliest tokens at its place, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Answer(Record):
    """One answer. `parsed` may hold an object that does not fit the schema; `error` says so."""

    outcome: Outcome
    text: str = ""
    parsed: dict[str, Any] | None = None
    error: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class Reply(Record):
    """The result of a request: one answer per sample, and the cost of all.

    The usage is `unknown` if an attempt ended without a token count (a late answer, a cut
    connection). Such an attempt is charged at its maximum.
    """

    samples: tuple[Answer, ...]
    usage: Usage
    cached_input_tokens: int = 0
    attempts: int

    @property
    def best(self) -> Answer:
        """The first answer that is ok, or else the first answer."""
        return next((answer for answer in self.samples if answer.outcome == "ok"), self.samples[0])

    @property
    def outcome(self) -> Outcome:
        """The outcome of the best answer."""
        return self.best.outcome

    @property
    def text(self) -> str:
        """The text of the best answer, or the arguments of its tool call."""
        return self.best.text

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The JSON object in the best answer, if it has one."""
        return self.best.parsed

    @property
    def error(self) -> str:
        """The reason why the outcome is not `ok`."""
        return self.best.error


@dataclass(frozen=True)
class Tokens:
    """Tokens as a server counts them."""

    input: int
    output: int
    cached: int


class _Likely(BaseModel):
    token: str
    logprob: float


class _Token(_Likely):
    top_logprobs: list[_Likely] | None = None


def _at(key: str, *path: str | int) -> Any:
    return Field(default=None, validation_alias=AliasPath(key, *path))


class _Choice(BaseModel):
    """The fields of a chat completion's choice that are read."""

    message: dict[str, Any]
    content: str | None = _at("message", "content")
    refusal: str | None = _at("message", "refusal")
    tool_arguments: str | None = _at("message", "tool_calls", 0, "function", "arguments")
    finish_reason: str | None = None
    tokens: list[_Token] | None = _at("logprobs", "content")


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    cached_tokens: int | None = _at("prompt_tokens_details", "cached_tokens")
    prompt_cache_hit_tokens: int | None = None  # DeepSeek's name for it


def read_completion(
    body: bytes, schema: Schema | None, max_output_tokens: int
) -> tuple[Answer, Tokens | None]:
    """Read the first choice of a chat completion, and its tokens if the server counts them."""
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError):
        return Answer(outcome="bad_content", error="the body is not JSON"), None
    if not isinstance(completion, dict):
        return Answer(outcome="bad_content", error="the body is not a chat completion"), None
    tokens = _tokens(completion)
    try:
        choice = _Choice.model_validate(completion["choices"][0])
    except (LookupError, TypeError, ValidationError):
        if completion.get("error"):
            error = f"the server reports a failure: {completion['error']}"[:_LONGEST_ERROR]
            return Answer(outcome="server_error", error=error), tokens
        error = "the body holds no choice of a chat completion"
        return Answer(outcome="bad_content", error=error), tokens
    # Gateways report a failure of the model behind them as a success.
    if choice.finish_reason == "error":
        error = "the server reports that the model failed"
        return Answer(outcome="server_error", error=error), tokens
    answer = _answer(choice, schema)
    if answer.outcome == "unparsed" and choice.finish_reason == "length":
        error = f"the answer was cut off at max_output_tokens = {max_output_tokens}"
        answer = answer.model_copy(update={"error": error})
    return answer, tokens


def _tokens(completion: Mapping[str, Any]) -> Tokens | None:
    try:
        usage = _Usage.model_validate(completion.get("usage"))
    except ValidationError:
        return None
    cached = usage.cached_tokens or usage.prompt_cache_hit_tokens or 0
    cached = min(max(cached, 0), usage.prompt_tokens)
    return Tokens(usage.prompt_tokens, usage.completion_tokens, cached)


def _answer(choice: _Choice, schema: Schema | None) -> Answer:
    text = choice.tool_arguments or choice.content or ""
    logprobs = tuple(
        TokenLogprob(
            token=token.token,
            logprob=token.logprob,
            top=tuple((top.token, top.logprob) for top in token.top_logprobs or ()),
        )
        for token in choice.tokens or ()
    )
    outcome: Outcome = "ok"
    parsed, error = None, ""
    if choice.refusal or choice.finish_reason == "content_filter":
        outcome = "refused"
        error = f"the model declined: {choice.refusal or 'content filter'}"[:_LONGEST_ERROR]
    elif schema is not None:
        parsed = find_object(text, schema)
        error = "the answer is not a JSON object" if parsed is None else misfit(parsed, schema)
        outcome = "unparsed" if error else "ok"
    return Answer(outcome=outcome, text=text, parsed=parsed, error=error, logprobs=logprobs)


def find_object(text: str, schema: Schema) -> dict[str, Any] | None:
    """Find the last JSON object in a text that fits the schema, or else the last object."""
    best, best_fits = None, False
    for candidate in _objects(text):
        fits = not misfit(candidate, schema)
        if fits or not best_fits:
            best, best_fits = candidate, fits
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
    """Say why a value does not fit a schema; return an empty text if it does.

    Types, required keys, choices and ranges are checked. Lengths and surplus keys are not: they
    harm no reader of an answer.
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
        for item in value:
            if wrong := misfit(item, schema["items"], f"an item of {where}"):
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
