"""The client: one endpoint, any number of questions at once, every one of them accounted for.

Callers are plain threads; the questions of all clients run on one event loop in the background.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import weakref
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kernelcast.errors import ModelError, import_extra
from kernelcast.llm._endpoint import Endpoint, Request
from kernelcast.llm._keys import REDACTOR
from kernelcast.llm._pace import LONGEST_WAIT_S, Breaker, Bucket, backoff_s, retry_after_s
from kernelcast.llm._replies import (
    SAID,
    Outcome,
    Reply,
    Sample,
    Tokens,
    read_completion,
)
from kernelcast.llm._wire import FORMS, Unreadable, connect, request_body
from kernelcast.tape import Tape
from kernelcast.types import Usage, content_hash

T = TypeVar("T")

# Role markers and the like: what a chat template, or our own words about a schema, put around it.
_TEMPLATE_TOKENS = 512
_LONGEST_REASON = 300
_PROMPT_TOO_LONG = re.compile(r"context[ _](length|window|size)|too long", re.IGNORECASE)


class Client:
    """Asks one endpoint; safe to share between threads.

    A fault of the endpoint is an outcome. `ModelError` is raised for what stays wrong until it is
    mended: a refused key, an unknown model, an address where nobody has ever answered.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.price = endpoint.price
        self._cassette: Tape[Reply] | None = None
        if endpoint.cassette:
            path = Path(endpoint.cassette)
            self._cassette = Tape(Reply, path, field="reply", redact=REDACTOR.text)
        self._form = 0
        self._reached = False
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._requests = Bucket(endpoint.requests_per_minute)
        self._tokens = Bucket(endpoint.tokens_per_minute)
        self._resume_at_s = 0.0
        self._breaker = Breaker()
        if self._cassette is None or endpoint.cassette_mode == "record":
            self._sdk: Any = import_extra("openai", "llm")
            self._http = connect(self._sdk, endpoint)
            # Connections that are dropped open would complain; they are closed where they live.
            closing = weakref.finalize(self, _close, self._http)
            closing.atexit = False

    def quote(self, request: Request) -> Usage:
        """The most that the answer can cost, with every attempt failing but the last."""
        attempts = self.endpoint.max_attempts * request.samples
        most = _most_tokens(request)
        return Usage(
            input_tokens=attempts * most.input,
            output_tokens=attempts * most.output,
            usd=attempts * self.price.usd(most.input, most.output),
            seconds=attempts * (self.endpoint.timeout_s + LONGEST_WAIT_S),
        )

    def ask(self, request: Request) -> Reply:
        """The reply, after as many attempts as allowed."""
        return self.ask_many([request])[0]

    def ask_many(self, requests: Iterable[Request]) -> list[Reply]:
        """The replies in the order of the requests, `concurrency` of them in flight at a time."""
        return _in_background(_all_or_none(self._ask(request) for request in requests))

    # --------------------------------------------------------------------- one request's life

    async def _ask(self, request: Request) -> Reply:
        if self._cassette is not None:
            asked = {"model": self.endpoint.model, **asdict(request)}
            key = content_hash(json.dumps(asked, sort_keys=True))
            known = self._cassette.find(key)
            if known is not None:
                return known
            if self.endpoint.cassette_mode == "replay":
                raise ModelError(
                    f"{self.endpoint.cassette} holds no reply to this request: record it with "
                    f'cassette_mode = "record", or ask without a cassette'
                )
        seeds = [
            request.seed if request.seed is None else request.seed + n
            for n in range(request.samples)
        ]
        sampled = await _all_or_none(self._sample(replace(request, seed=seed)) for seed in seeds)
        samples, bills = zip(*sampled, strict=True)
        reply = Reply(
            samples=samples,
            usage=Usage(
                input_tokens=sum(bill.input_tokens for bill in bills),
                output_tokens=sum(bill.output_tokens for bill in bills),
                usd=sum(bill.usd for bill in bills),
                seconds=max(bill.seconds for bill in bills),
                unknown=any(bill.unknown for bill in bills),
            ),
            cached_input_tokens=sum(bill.cached_tokens for bill in bills),
            attempts=sum(bill.attempts for bill in bills),
        )
        # A fault is not kept: an outage must not become a lasting answer.
        if self._cassette is not None and all(sample.outcome in SAID for sample in samples):
            self._cassette.keep(key, reply, asked=asked)
        return reply

    async def _sample(self, request: Request) -> tuple[Sample, _Bill]:
        async with self._slots:
            bill = _Bill(started_s=time.monotonic())
            while True:
                async with self._breaker.turn() as admitted:
                    if not admitted:
                        error = f"{self.endpoint.base_url} keeps failing and is left in peace"
                        return Sample(outcome="unavailable", error=error), bill
                    await self._wait_for_my_turn()
                    tried = await self._attempt(request)
                    self._breaker.note(healthy=tried.healthy)
                self._charge(bill, tried, _most_tokens(request))
                # Who is told to wait speaks for all who ask there.
                self._resume_at_s = max(self._resume_at_s, time.monotonic() + tried.wait_s)
                if not tried.again or bill.attempts == self.endpoint.max_attempts:
                    break
                await asyncio.sleep(tried.wait_s + backoff_s(bill.attempts))
        if not self._reached:
            raise ModelError(
                f"cannot reach {self.endpoint.base_url} ({tried.sample.error}): start the server "
                "there or mend base_url"
            )
        return tried.sample, bill

    async def _wait_for_my_turn(self) -> None:
        await asyncio.sleep(max(self._requests.delay_s(1), self._tokens.delay_s(0)))
        while (wait_s := self._resume_at_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def _charge(self, bill: _Bill, tried: _Attempt, most: Tokens) -> None:
        tokens = tried.tokens or (most if tried.unknown else Tokens(0, 0, 0))
        bill.attempts += 1
        bill.seconds = time.monotonic() - bill.started_s
        bill.unknown |= tried.tokens is None and tried.unknown
        bill.input_tokens += tokens.input
        bill.output_tokens += tokens.output
        bill.cached_tokens += tokens.cached
        bill.usd += self.price.usd(tokens.input, tokens.output, tokens.cached)
        self._tokens.delay_s(tokens.input + tokens.output)

    async def _attempt(self, request: Request) -> _Attempt:
        """Ask once, in the best form that the server takes; refusals of a form cost nothing."""
        forms = range(self._form, len(FORMS)) if request.schema is not None else (0,)
        for form in forms:
            tried = await self._send(request, FORMS[form])
            if tried.refused_form:
                continue
            if tried.sample.outcome in SAID:
                self._form = max(self._form, form)
            return tried
        raise ModelError(
            f"{self.endpoint.base_url} does not take such requests ({tried.sample.error}): mend "
            "temperature, output_limit or what else it names, or choose another model"
        )

    async def _send(self, request: Request, form: str) -> _Attempt:
        sdk, endpoint = self._sdk, self.endpoint
        late = f"no whole answer from {endpoint.base_url} within {endpoint.timeout_s:g} s"
        try:
            # The SDK's timeout is for each read: a server that drips would never meet it.
            async with asyncio.timeout(endpoint.timeout_s):
                body = request_body(endpoint, request, form)
                response = await self._http.chat.completions.with_raw_response.create(**body)
                content = response.http_response.content
        except TimeoutError:
            self._reached = True  # connecting has a shorter time of its own
            return _fault("timeout", late, unknown=True)
        except (Unreadable, sdk.APIConnectionError) as error:
            # Of two generations of the SDK, one wraps what is raised beneath it.
            cause = error.__cause__ or error
            if isinstance(cause, Unreadable):
                self._reached = True
                again = cause.outcome != "too_large"
                return _fault(cause.outcome, str(cause), again=again, healthy=True, unknown=True)
            kind = type(cause).__name__
            if kind in ("ConnectError", "ConnectTimeout", "ProxyError"):
                return _fault("unavailable", self._reason(f"{kind}: {cause}"))
            self._reached = True
            if isinstance(error, sdk.APITimeoutError):
                return _fault("timeout", late, unknown=True)
            return _fault("cut", self._reason(f"the connection ended: {cause}"), unknown=True)
        except sdk.APIStatusError as error:
            status, headers = int(error.status_code), error.response.headers
            reason = self._reason(f"HTTP {status}: {error.message}")
        else:
            self._reached = True
            read = read_completion(content, request.schema, request.max_output_tokens)
            said = read.sample.outcome in SAID
            healthy = read.sample.outcome != "server_error"
            return _Attempt(read.sample, read.tokens, unknown=True, again=not said, healthy=healthy)
        # Dealt with here, outside the handler: the SDK's exception must not hang on to ours.
        self._reached = True
        return self._refusal(status, headers, reason)

    def _refusal(self, status: int, headers: Mapping[str, str], reason: str) -> _Attempt:
        endpoint = self.endpoint
        wait_s = retry_after_s(headers, time.time())
        if status == 402 or "insufficient_quota" in reason:
            raise ModelError(f"{endpoint.base_url} wants to be paid ({reason}): add credit there")
        if status == 429:
            return _fault("rate_limited", reason, wait_s=wait_s, healthy=True)
        if status == 400 and "content_filter" in reason:
            return _fault("refused", reason, again=False, healthy=True)
        if status == 413 or (status in (400, 422) and _PROMPT_TOO_LONG.search(reason)):
            error = f"the prompt is too long for the model: {reason}"
            return _fault("too_large", error, again=False, healthy=True)
        if status in (400, 422, 501):
            refused = Sample(outcome="server_error", error=reason)
            return _Attempt(refused, refused_form=True, healthy=True)
        if status in (408, 409, 425) or status >= 500:
            # Behind a gateway that ran out of patience, the model may well have gone on.
            unknown = status in (504, 524)
            return _fault("server_error", reason, wait_s=wait_s, unknown=unknown)
        if status in (401, 403):
            where = endpoint.api_key_file or f"the environment variable {endpoint.api_key_env}"
            raise ModelError(
                f"{endpoint.base_url} wants a valid key (HTTP {status}): put one in {where}"
            )
        if status == 404:
            raise ModelError(
                f"{endpoint.base_url} has no model {endpoint.model!r} or no chat completions "
                f"({reason}): mend model, or base_url, which usually ends in /v1"
            )
        raise ModelError(
            f"{endpoint.base_url} answers {reason}, which no chat completions do: mend base_url"
        )

    def _reason(self, text: str) -> str:
        return REDACTOR.text(" ".join(text.split()))[:_LONGEST_REASON]


@dataclass
class _Bill:
    """What the attempts at one sample took."""

    started_s: float
    seconds: float = 0.0
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: float = 0.0
    unknown: bool = False


@dataclass(frozen=True)
class _Attempt:
    """What became of one attempt, and what is known of its cost."""

    sample: Sample
    tokens: Tokens | None = None
    unknown: bool = False  # where no tokens are told: it may have cost all that it might
    again: bool = False
    wait_s: float = 0.0
    healthy: bool = False
    refused_form: bool = False


def _fault(
    outcome: Outcome,
    error: str,
    *,
    again: bool = True,
    unknown: bool = False,
    healthy: bool = False,
    wait_s: float = 0.0,
) -> _Attempt:
    sample = Sample(outcome=outcome, error=error)
    return _Attempt(sample, unknown=unknown, again=again, wait_s=wait_s, healthy=healthy)


def _most_tokens(request: Request) -> Tokens:
    # No tokenizer makes more tokens than bytes; some providers add the schema to the prompt.
    told = [text for message in request.messages for text in message.values()]
    if request.schema is not None:
        told.append(json.dumps(request.schema))
    most_input = sum(len(text.encode()) for text in told) + _TEMPLATE_TOKENS
    return Tokens(most_input, request.max_output_tokens, 0)


def _close(client: Any) -> None:
    asyncio.run_coroutine_threadsafe(client.close(), _loop())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="llm", daemon=True).start()
    return loop


def _in_background(work: Coroutine[Any, Any, T]) -> T:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    finally:
        future.cancel()  # does nothing to work that is done; an interrupt must not leave it running


async def _all_or_none(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; where one raises, the others are stopped before it is told."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
