"""When to ask, when to ask again and when to stop asking: rate limits, waits, the breaker.

Everything here runs on the client's event loop, so that nothing needs a lock.
"""

from __future__ import annotations

import asyncio
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
    """A wait after the attempt of this number: anything up to a bound that doubles each time."""
    ceiling = min(FIRST_BACKOFF_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S)
    return random.uniform(0.0, ceiling)  # noqa: S311 - spreads load, guards nothing


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """The wait that a server names, in (milli)seconds or as a date, up to the longest we keep."""
    for header, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        told = headers.get(header, "")
        try:
            wait_s = float(told) * unit_s
        except ValueError:
            try:
                wait_s = parsedate_to_datetime(told).timestamp() - now_s
            except (ValueError, OverflowError):
                continue
        if wait_s == wait_s:  # not a NaN
            return min(max(0.0, wait_s), LONGEST_WAIT_S)
    return 0.0


class Bucket:
    """A limit of so many per minute, of which up to a second's worth may come at once."""

    def __init__(
        self, per_minute: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._per_s = None if per_minute is None else per_minute / 60.0
        self._most = max(1.0, self._per_s or 0.0)
        self._level = self._most
        self._at_s = clock()

    def delay_s(self, amount: float) -> float:
        """Take so much now, and how long to wait until it was there to be taken."""
        if self._per_s is None:
            return 0.0
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._per_s) - amount
        self._at_s = now_s
        return max(0.0, -self._level / self._per_s)


class Breaker:
    """Spares a server that fails: open after failures in a row, closed again by one that succeeds.

    While it is open, whoever comes waits for the one question that is let through after the
    cool-down. Turning them away at once would only let a search rush through its candidates blind.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at_s = 0.0
        self._probe: asyncio.Future[bool] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server failed too often in a row."""
        return self._failures >= FAILURES_TO_OPEN

    def note(self, *, healthy: bool) -> None:
        """Take in how the server did."""
        self._failures = 0 if healthy else self._failures + 1
        self._opened_at_s = time.monotonic()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """A turn to ask; False where the server is still down, and nothing must be sent."""
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
