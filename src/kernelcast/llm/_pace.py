"""Rate limits, waits between attempts, and the circuit breaker.

Everything here runs on the client's event loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime

FIRST_BACKOFF_S = 0.5
LONGEST_WAIT_S = 60.0
FAILURES_TO_OPEN = 8
COOL_DOWN_S = 30.0


def backoff_s(attempt: int) -> float:
    """Draw the wait after an attempt: uniform up to a bound that doubles with each attempt."""
    ceiling = min(FIRST_BACKOFF_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S)
    return random.uniform(0.0, ceiling)  # noqa: S311 - not for security


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Read the wait that a server names, in (milli)seconds or as a date, up to the longest wait."""
    for header, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(header, "")
        try:
            wait_s = float(value) * unit_s
        except ValueError:
            try:
                wait_s = parsedate_to_datetime(value).timestamp() - now_s
            except (ValueError, OverflowError):
                continue
        if not math.isnan(wait_s):
            return min(max(0.0, wait_s), LONGEST_WAIT_S)
    return 0.0


class Bucket:
    """A limit per minute. A burst of up to one second's share is allowed."""

    def __init__(
        self, per_minute: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._per_s = None if per_minute is None else per_minute / 60.0
        self._most = max(1.0, self._per_s or 0.0)
        self._level = self._most
        self._at_s = clock()

    def delay_s(self, amount: float) -> float:
        """Take an amount, and return how long to wait before using it."""
        if self._per_s is None:
            return 0.0
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._per_s) - amount
        self._at_s = now_s
        return max(0.0, -self._level / self._per_s)


class Breaker:
    """Circuit breaker: opens after failures in a row, closes after one success.

    While it is open, requests wait for one probe after the cool-down. Failing them at once would
    let a search decide about all its candidates without a forecast.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at_s = 0.0
        self._probe: asyncio.Future[bool] | None = None

    @property
    def is_open(self) -> bool:
        """True if the server failed too often in a row."""
        return self._failures >= FAILURES_TO_OPEN

    def note(self, *, healthy: bool) -> None:
        """Record whether the server worked."""
        self._failures = 0 if healthy else self._failures + 1
        self._opened_at_s = time.monotonic()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Wait until a request may be sent; yield False if the server is still down."""
        if not self.is_open:
            yield True
        elif self._probe is not None:
            yield await asyncio.shield(self._probe)
        else:
            probe = self._probe = asyncio.get_running_loop().create_future()
            try:
                await asyncio.sleep(self._opened_at_s + COOL_DOWN_S - time.monotonic())
                yield True
            finally:
                self._probe = None
                probe.set_result(not self.is_open)
