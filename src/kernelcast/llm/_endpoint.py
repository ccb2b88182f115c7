"""What the user states: where a model is, and what it is asked."""

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


class Endpoint(Record):
    """Where a model is, what it costs and how patient to be.

    A key is named, never given: `api_key_env` is a variable; `api_key_file` is a path and goes
    before it. Prices that are None are looked up. Ollama heeds only `max_tokens`, reasoning
    models of OpenAI only `max_completion_tokens`; others take either, hence `output_limit`. With a
    `cassette`, recorded replies are given again; "record" asks the server for what is missing.
    """

    # A key put into the wrong field must not be printed with the complaint about it.
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
        if not re.fullmatch(
            r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/.*)?", url, re.ASCII
        ):
            raise ValueError("an address looks like http://localhost:8000/v1")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(
                "it names an environment variable; the key itself does not belong here"
            )
        return name

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

    @property
    def price(self) -> Price:
        """What its tokens cost."""
        stated = (self.usd_per_million_input_tokens, self.usd_per_million_output_tokens)
        if stated == (None, None):
            return price_of(self.base_url, self.model)
        return Price(input=stated[0] or 0.0, output=stated[1] or 0.0, source="stated by the user")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question. With a schema, the answer is to be a JSON object that fits it.

    A seed or temperature of None is not sent: some models refuse any but their own. Samples are
    separate questions with seeds one apart: many servers cannot give several answers to one.
    """

    messages: Sequence[Message]
    max_output_tokens: int
    schema: Schema | None = None
    temperature: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    samples: int = 1
