"""A model's endpoint and a request to it, as the user states them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator

from kernelcast.errors import SetupError
from kernelcast.llm._prices import Price, price_of
from kernelcast.llm._replies import Message, Schema
from kernelcast.types import Record

_ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/.*)?", re.ASCII)


class Endpoint(Record):
    """Address, price and limits of a model.

    The key itself is not a field: `api_key_file` is a path, `api_key_env` the variable that is read
    if there is no file. Prices that are None are looked up. `output_limit` exists because Ollama
    reads only `max_tokens`, and OpenAI's reasoning models only `max_completion_tokens`. A
    `cassette` replays recorded replies; with mode "record" the server answers the missing ones.
    """

    # A key in the wrong field must not be printed in the error message.
    model_config = ConfigDict(hide_input_in_errors=True)

    base_url: str
    model: str = Field(min_length=1)
    api_key_env: str = "KERNELCAST_API_KEY"
    api_key_file: str = ""
    timeout_s: float = Field(default=300.0, gt=0)
    usd_per_million_input_tokens: float | None = Field(default=None, ge=0)
    usd_per_million_output_tokens: float | None = Field(default=None, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    concurrency: int = Field(default=16, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    output_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    cassette: str = ""
    cassette_mode: Literal["replay", "record"] = "replay"

    @field_validator("base_url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        if set("@?#") & set(url):
            raise ValueError("keys do not belong in an address, which is stored: use api_key_env")
        if not _ADDRESS.fullmatch(url):
            raise ValueError("an address looks like http://localhost:8000/v1")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError("it names an environment variable, and must not be the key itself")
        return name

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build the endpoint from a component's options.

        Raises:
            SetupError: The options do not describe an endpoint.
        """
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            wrong = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
            known = ", ".join(cls.model_fields)
            raise SetupError(
                f"the options do not describe a model endpoint ({wrong}); an endpoint has {known}"
            ) from None

    @property
    def price(self) -> Price:
        """The price of its tokens."""
        in_usd, out_usd = self.usd_per_million_input_tokens, self.usd_per_million_output_tokens
        if in_usd is None and out_usd is None:
            return price_of(self.base_url, self.model)
        return Price(input=in_usd or 0.0, output=out_usd or 0.0, source="stated by the user")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question. With a schema, the answer must be a JSON object that fits it.

    A seed or temperature of None is not sent, because some models refuse them. Each sample is a
    separate request with its own seed, because many servers give one answer per request.
    """

    messages: Sequence[Message]
    max_output_tokens: int
    schema: Schema | None = None
    temperature: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    samples: int = 1
