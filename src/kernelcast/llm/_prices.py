"""The price of tokens: from the user's table, from the table of well-known hosts, or unknown."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from kernelcast.errors import SetupError
from kernelcast.types import Record

PRICES_ENV = "KERNELCAST_PRICES"
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")


class Price(Record):
    """Dollars per million tokens, and the source of the figures.

    `priced` is False if the price is unknown. Dollars are then 0 and mean nothing.
    """

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    source: str
    priced: bool = True

    def usd(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost of tokens; `cached_tokens` of the input came from the server's cache."""
        cached = self.input if self.cached_input is None else self.cached_input
        input_usd = (input_tokens - cached_tokens) * self.input + cached_tokens * cached
        return (input_usd + output_tokens * self.output) / 1e6


class _Listed(Record):
    host: str
    model: str
    input: float
    output: float
    cached_input: float | None = None
    source: str


def price_of(base_url: str, model: str) -> Price:
    """Look up a model's price: the user's table first, then ours. A local server is free."""
    host = urlsplit(base_url).hostname or ""
    names = {model, _DATED.sub("", model)}
    for listed in (*_own_table(), *_read(_OURS.read_text(), "prices.toml")):
        if listed.host == host and listed.model in names:
            return Price.model_validate(listed.model_dump(exclude={"host", "model"}))
    if _is_loopback(host):
        return Price(source="a server on this machine")
    return Price(source=f"no price known for {model!r} at {host}", priced=False)


_OURS = resources.files("kernelcast.llm") / "prices.toml"


def _own_table() -> tuple[_Listed, ...]:
    path = os.environ.get(PRICES_ENV, "")
    if not path:
        return ()
    try:
        return _read(Path(path).expanduser().read_text(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"cannot read the prices in {path} ({error}): correct {PRICES_ENV}"
        ) from None


def _read(text: str, name: str) -> tuple[_Listed, ...]:
    try:
        rows = tomllib.loads(text).get("price", [])
        return tuple(_Listed.model_validate({"source": name, **row}) for row in rows)
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        raise SetupError(
            f"{name} is no table of prices ({error}): it is made of [[price]] with host, model, "
            "input, output and, if it differs, cached_input, in dollars per million tokens"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
