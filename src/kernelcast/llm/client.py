"""The client of one endpoint: concurrent requests, each accounted for.

Callers are plain threads. The requests of all clients run on one background event loop.
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
from kernelcast.llm._replies import ANSWERED, Answer, Outcome, Reply, Tokens, read_completion
from kernelcast.llm._wire import FORMS, Unreadable, connect, request_body
from kernelcast.tape import Tape
from kernelcast.types import Usage, content_hash

T = TypeVar("T")

# Allowance for what a chat template, or the description of a schema, adds to the prompt.
_TEMPLATE_TOKENS = 512
_LONGEST_REASON = 300
_PROMPT_TOO_LONG = re.compile(r"context[ _](length|window|size)|too long", re.IGNORECASE)


class Client:
    """Client of one endpoint, safe to share between threads.

    A fault of the endpoint is an outcome. `ModelError` is raised for a wrong set-up: a refused key,
    an unknown model, an address that has never answered.
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
            # Connections must be closed on the event loop to which they belong.
            weakref.finalize(self, _close, self._http).atexit = False

    def quote(self, request: Request) -> Usage:
        """Return the highest possible cost of a request, with all attempts used."""
        attempts = self.endpoint.max_attempts * request.samples
        most = _most_tokens(request)
        return Usage(
            input_tokens=attempts * most.input,
            output_tokens=attempts * most.output,
            usd=attempts * self.price.usd(most.input, most.output),
            seconds=attempts * (self.endpoint.timeout_s + LONGEST_WAIT_S),
        )

    def ask(self, request: Request) -> Reply:
        """Send one request, in as many attempts as allowed, and return the reply."""
        return self.ask_many([request])[0]

    def ask_many(self, requests: Iterable[Request]) -> list[Reply]:
        """Send requests, `concurrency` of them at a time, and return the replies in their order."""
        return _in_background(_all_or_none(self._ask(request) for request in requests))

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
        seeds = [None if request.seed is None else request.seed + n for n in range(request.samples)]
        pairs = await _all_or_none(self._sample(replace(request, seed=seed)) for seed in seeds)
        answers, bills = zip(*pairs, strict=True)
        reply = Reply(
            samples=answers,
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
        if self._cassette is not None and all(answer.outcome in ANSWERED for answer in answers):
            self._cassette.keep(key, reply, asked=asked)
        return reply

    async def _sample(self, request: Request) -> tuple[Answer, _Bill]:
        async with self._slots:
            bill = _Bill(started_s=time.monotonic())
            while True:
                async with self._breaker.turn() as admitted:
                    if not admitted:
                        error = (
                            f"{self.endpoint.base_url} keeps failing, so the request was not sent"
                        )
                        return Answer(outcome="unavailable", error=error), bill
                    await self._wait_for_my_turn()
                    attempt = await self._attempt(request)
                    self._breaker.note(healthy=attempt.healthy)
                self._charge(bill, attempt, _most_tokens(request))
                # The wait that the server asks for holds for all requests.
                self._resume_at_s = max(self._resume_at_s, time.monotonic() + attempt.wait_s)
                if not attempt.again or bill.attempts == self.endpoint.max_attempts:
                    break
                await asyncio.sleep(attempt.wait_s + backoff_s(bill.attempts))
        if not self._reached:
            raise ModelError(
                f"cannot reach {self.endpoint.base_url} ({attempt.answer.error}): start the "
                "server there or correct base_url"
            )
        return attempt.answer, bill

    async def _wait_for_my_turn(self) -> None:
        await asyncio.sleep(max(self._requests.delay_s(1), self._tokens.delay_s(0)))
        while (wait_s := self._resume_at_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def _charge(self, bill: _Bill, attempt: _Attempt, most: Tokens) -> None:
        tokens = attempt.tokens or (most if attempt.unknown else Tokens(0, 0, 0))
        bill.attempts += 1
        bill.seconds = time.monotonic() - bill.started_s
        bill.unknown |= attempt.tokens is None and attempt.unknown
        bill.input_tokens += tokens.input
        bill.output_tokens += tokens.output
        bill.cached_tokens += tokens.cached
        bill.usd += self.price.usd(tokens.input, tokens.output, tokens.cached)
        self._tokens.delay_s(tokens.input + tokens.output)

    async def _attempt(self, request: Request) -> _Attempt:
        """Send a request in the best form that the server accepts; a refused form costs nothing."""
        forms = range(self._form, len(FORMS)) if request.schema is not None else (0,)
        for form in forms:
            attempt = await self._send(request, FORMS[form])
            if attempt.refused_form:
                continue
            if attempt.answer.outcome in ANSWERED:
                self._form = max(self._form, form)
            return attempt
        raise ModelError(
            f"{self.endpoint.base_url} refuses the request ({attempt.answer.error}): correct "
            "temperature, output_limit or the option that it names, or choose another model"
        )

    async def _send(self, request: Request, form: str) -> _Attempt:
        sdk, endpoint = self._sdk, self.endpoint
        late = f"no whole answer from {endpoint.base_url} within {endpoint.timeout_s:g} s"
        try:
            # The SDK's timeout holds for each read, so a slow trickle would never reach it.
            async with asyncio.timeout(endpoint.timeout_s):
                body = request_body(endpoint, request, form)
                response = await self._http.chat.completions.with_raw_response.create(**body)
                content = response.http_response.content
        except TimeoutError:
            self._reached = True  # connecting has a shorter timeout of its own
            return _fault("timeout", late, unknown=True)
        except (Unreadable, sdk.APIConnectionError) as error:
            # Some versions of the SDK wrap the exception, others do not.
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
            answer, tokens = read_completion(content, request.schema, request.max_output_tokens)
            again = answer.outcome not in ANSWERED
            healthy = answer.outcome != "server_error"
            return _Attempt(answer, tokens, unknown=True, again=again, healthy=healthy)
        # Outside the handler, so that the SDK's exception is not the context of ours.
        self._reached = True
        return self._refusal(status, headers, reason)

    def _refusal(self, status: int, headers: Mapping[str, str], reason: str) -> _Attempt:
        endpoint = self.endpoint
        wait_s = retry_after_s(headers, time.time())
        if status == 402 or "insufficient_quota" in reason:
            raise ModelError(f"{endpoint.base_url} has no credit left ({reason}): add credit there")
        if status == 429:
            return _fault("rate_limited", reason, wait_s=wait_s, healthy=True)
        if status == 400 and "content_filter" in reason:
            return _fault("refused", reason, again=False, healthy=True)
        if status == 413 or (status in (400, 422) and _PROMPT_TOO_LONG.search(reason)):
            error = f"the prompt is too long for the model: {reason}"
            return _fault("too_large", error, again=False, healthy=True)
        if status in (400, 422, 501):
            answer = Answer(outcome="server_error", error=reason)
            return _Attempt(answer, refused_form=True, healthy=True)
        if status in (408, 409, 425) or status >= 500:
            # After a gateway's timeout, the model may have gone on.
            unknown = status in (504, 524)
            return _fault("server_error", reason, wait_s=wait_s, unknown=unknown)
        if status in (401, 403):
            where = endpoint.api_key_file or f"the environment variable {endpoint.api_key_env}"
            raise ModelError(
                f"{endpoint.base_url} needs a valid key (HTTP {status}): put one in {where}"
            )
        if status == 404:
            raise ModelError(
                f"{endpoint.base_url} has no model {endpoint.model!r} or no chat completions "
                f"({reason}): correct model, or base_url, which usually ends in /v1"
            )
        raise ModelError(
            f"{endpoint.base_url} is not a chat completions endpoint ({reason}): correct base_url"
        )

    def _reason(self, text: str) -> str:
        return REDACTOR.text(" ".join(text.split()))[:_LONGEST_REASON]


@dataclass
class _Bill:
    """The cost of the attempts at one answer."""

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
    """The result of one attempt, and its cost as far as it is known."""

    answer: Answer
    tokens: Tokens | None = None
    unknown: bool = False  # without a token count, it is charged at its maximum
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
    answer = Answer(outcome=outcome, error=error)
    return _Attempt(answer, unknown=unknown, again=again, wait_s=wait_s, healthy=healthy)


def _most_tokens(request: Request) -> Tokens:
    # A text has at most as many tokens as bytes. Some providers add the schema to the prompt.
    texts = [text for message in request.messages for text in message.values()]
    if request.schema is not None:
        texts.append(json.dumps(request.schema))
    most_input = sum(len(text.encode()) for text in texts) + _TEMPLATE_TOKENS
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
        future.cancel()  # an interrupt must not leave it running


async def _all_or_none(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order. If one raises, stop the others first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
