"""An OpenAI-compatible server on loopback that misbehaves on demand and keeps exact books.

`FAULTS` is the table: how each fault is played, what a client must make of it, and what it owes
afterwards. The books are kept from the requests alone, by the rule that the manual states, so that
they can convict the client's own accounts.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import quote

INPUT_TOKENS, OUTPUT_TOKENS = 1_000, 200
TEMPLATE_TOKENS = 512  # docs/how-to/model-endpoints.md: what is added to the bytes of a prompt
BIG_BODY_BYTES = 50 * 10**6

RETRIED = ("timeout", "rate_limited", "server_error", "bad_content", "cut")

Bill = Literal["nothing", "reported", "unknown"]
Play = Callable[["Call"], None]


@dataclass(frozen=True)
class Fault:
    """How a fault is played, and what must come of it if it never ends.

    `outcome` is that of the reply, or "ModelError" where somebody must mend the set-up.
    """

    play: Play
    outcome: str
    bill: Bill

    @property
    def retried(self) -> bool:
        """Whether asking again can help."""
        return self.outcome in RETRIED


@dataclass(frozen=True)
class Call:
    """A request that waits for its answer, and ways to give it one."""

    handler: BaseHTTPRequestHandler
    request: Mapping[str, Any]
    content: str
    closing: threading.Event
    note_sent: Callable[[int], None]

    @property
    def authorization(self) -> str:
        """The header with the key."""
        return self.handler.headers.get("authorization", "")

    def completion(self, content: str | None = None, **changes: Any) -> bytes:
        """A sound chat completion, but for the changes."""
        said = self.content if content is None else content
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": said},
        }
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "bad"}
        return json.dumps({**head, "choices": [choice], "usage": usage, **changes}).encode()

    def send(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] = {},
        *,
        length: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Headers and body; `length` may lie."""
        self.handler.send_response(status, reason)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.handler.send_header(name, value)
        self.handler.send_header("connection", "close")
        if "transfer-encoding" not in headers:
            self.handler.send_header("content-length", str(len(body) if length is None else length))
        self.handler.end_headers()
        self.write(body)

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        for start in range(0, len(data), 2**16):
            self.handler.wfile.write(data[start : start + 2**16])
            self.note_sent(len(data[start : start + 2**16]))

    def refuse(self, status: int, message: str = "no", headers: Mapping[str, str] = {}) -> None:
        """An error as APIs put it."""
        self.send(json.dumps({"error": {"message": message}}).encode(), status, headers)


def _drip(call: Call) -> None:
    body = call.completion()
    call.send(b"", length=len(body))
    for byte in body:
        if call.closing.wait(0.05):
            return
        call.write(bytes([byte]))


def _chunked(call: Call, data: bytes, *, end: bool) -> None:
    call.send(b"", headers={"transfer-encoding": "chunked"})
    for start in range(0, len(data), 2**16):
        chunk = data[start : start + 2**16]
        call.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    if end:
        call.write(b"0\r\n\r\n")


def _big_body(call: Call) -> None:
    call.send(call.completion("x" * BIG_BODY_BYTES))


def _big_chunks(call: Call) -> None:
    _chunked(call, call.completion("x" * BIG_BODY_BYTES), end=True)


def _gzip_bomb(call: Call) -> None:
    call.send(gzip.compress(bytes(BIG_BODY_BYTES)), headers={"content-encoding": "gzip"})


def _truncated(call: Call) -> None:
    call.send(call.completion()[:-40])


def _cut_body(call: Call) -> None:
    call.send(call.completion()[:99], length=5000)


def _cut_stream(call: Call) -> None:
    _chunked(call, call.completion()[:99], end=False)


def _sound_text(call: Call) -> None:
    call.send(call.completion(), headers={"content-type": "text/plain"})


def echoes(authorization: str) -> dict[str, str]:
    """A key in the forms in which servers, proxies and their logs give it back."""
    key = authorization.removeprefix("Bearer ")
    data = key.encode()
    return {
        "raw": key,
        "base64": base64.b64encode(data).decode(),
        "base64url": base64.urlsafe_b64encode(data).decode(),
        "base64 of the header": base64.b64encode(authorization.encode()).decode(),
        "hex": data.hex(),
        "HEX": data.hex().upper(),
        "URL-encoded": quote(key, safe=""),
        "percent-encoded": "".join(f"%{byte:02x}" for byte in data),
        "reversed": key[::-1],
    }


def _echo(status: int) -> Play:
    def play(call: Call) -> None:
        told = " ".join(echoes(call.authorization).values())
        key = call.authorization.removeprefix("Bearer ")
        headers = {"x-request-id": key, "set-cookie": f"key={key}", "x-echo": told}
        body = {"error": {"message": f"bad header: Authorization: {told}", "code": told}}
        call.send(json.dumps(body).encode(), status, headers, reason=f"Bad {key}")

    return play


def _echo_in_answer(call: Call) -> None:
    told = " ".join(echoes(call.authorization).values())
    answer = json.loads(call.content)
    for name in ("rationale", "idea"):
        if name in answer:
            answer[name] = told
    if "kernel" in answer:
        answer["kernel"] = f"// {told}\n{answer['kernel']}"
    call.send(call.completion(json.dumps(answer)), headers={"x-echo": told})


def _off_by_a_quarter(call: Call) -> None:
    answer = json.loads(call.content)
    shares = [name for name, value in answer.items() if isinstance(value, int)]
    answer.update(dict.fromkeys(shares, 0) | dict.fromkeys(shares[-3:], 25))
    call.send(call.completion(json.dumps(answer)))


def _silence(call: Call) -> None:
    call.closing.wait()


def _hang_up(call: Call) -> None:
    del call


def _refuse(status: int, message: str = "no", **headers: str) -> Play:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda call: call.refuse(status, message, named)


def _refuse_until_now(call: Call) -> None:
    call.refuse(429, headers={"retry-after": formatdate(time.time(), usegmt=True)})


def _send(body: bytes, status: int = 200, **headers: str) -> Play:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda call: call.send(body, status, named)


def _say(content: str | None = None, **changes: Any) -> Play:
    return lambda call: call.send(call.completion(content, **changes))


FILTERED = [{"finish_reason": "content_filter", "message": {"content": None}}]
FAULTS: Mapping[str, Fault] = {
    "silence": Fault(_silence, "timeout", "unknown"),
    "slow drip": Fault(_drip, "timeout", "unknown"),
    "429 with seconds": Fault(_refuse(429, retry_after="0.05"), "rate_limited", "nothing"),
    "429 with a date": Fault(_refuse_until_now, "rate_limited", "nothing"),
    "429 without a word": Fault(_refuse(429), "rate_limited", "nothing"),
    "500": Fault(_refuse(500), "server_error", "nothing"),
    "503": Fault(_refuse(503), "server_error", "nothing"),
    "504 of a gateway": Fault(_refuse(504), "server_error", "unknown"),
    "500 of 50 MB": Fault(_send(b"x" * BIG_BODY_BYTES, 500), "server_error", "nothing"),
    "500 that echoes the key": Fault(_echo(500), "server_error", "nothing"),
    "error in a success": Fault(_send(b'{"error": "upstream"}'), "server_error", "unknown"),
    "truncated JSON": Fault(_truncated, "bad_content", "unknown"),
    "not UTF-8": Fault(_send(b'{"\xff\xfe": 1}'), "bad_content", "unknown"),
    "deep nesting": Fault(_send(b"[" * 10**6), "bad_content", "unknown"),
    "no choices": Fault(_say(choices=[], usage=None), "bad_content", "unknown"),
    "gzip bomb": Fault(_gzip_bomb, "bad_content", "unknown"),
    "wrong content type": Fault(
        _send(b"<html>Hi</html>", content_type="text/html"), "bad_content", "unknown"
    ),
    "event stream": Fault(
        _send(b"data: [DONE]\n\n", content_type="text/event-stream"), "bad_content", "unknown"
    ),
    "cut body": Fault(_cut_body, "cut", "unknown"),
    "cut stream": Fault(_cut_stream, "cut", "unknown"),
    "hung up": Fault(_hang_up, "cut", "unknown"),
    "not HTTP": Fault(lambda call: call.write(b"\x16\x03\x01 hello\r\n"), "cut", "unknown"),
    "body of 50 MB": Fault(_big_body, "too_large", "unknown"),
    "chunks of 50 MB": Fault(_big_chunks, "too_large", "unknown"),
    "prompt too long": Fault(
        _refuse(400, "the maximum context length is 8192"), "too_large", "nothing"
    ),
    "wrong schema": Fault(_say('{"unrelated": []}'), "unparsed", "reported"),
    "prose": Fault(_say("Perhaps."), "unparsed", "reported"),
    "filtered": Fault(_say(choices=FILTERED), "refused", "reported"),
    "shares of 0.75": Fault(_off_by_a_quarter, "ok", "reported"),
    "JSON called text": Fault(_sound_text, "ok", "reported"),
    "answer that echoes the key": Fault(_echo_in_answer, "ok", "reported"),
    "no usage": Fault(_say(usage=None), "ok", "unknown"),
    "negative usage": Fault(
        _say(usage={"prompt_tokens": -5, "completion_tokens": 1}), "ok", "unknown"
    ),
    "401 that echoes the key": Fault(_echo(401), "ModelError", "nothing"),
    "403": Fault(_refuse(403), "ModelError", "nothing"),
    "404": Fault(_refuse(404, "no such model"), "ModelError", "nothing"),
    "402": Fault(_refuse(402), "ModelError", "nothing"),
    "429 for want of credit": Fault(_refuse(429, "insufficient_quota"), "ModelError", "nothing"),
    "400": Fault(_refuse(400), "ModelError", "nothing"),
    "redirect": Fault(_send(b"", 307, location="http://127.0.0.1:1/"), "ModelError", "nothing"),
}


@dataclass(frozen=True)
class Entry:
    """One line of the books: what was played, for which kind of question, and the tokens owed."""

    fault: str
    asks_for: frozenset[str]
    input_tokens: int
    output_tokens: int


class BadServer:
    """Plays the fault that `choose` names for the n-th request, or a sound answer for "".

    A sound answer fits the request's schema: shares that add up to 100, and `kernel` as given.
    """

    def __init__(self, choose: Callable[[int], str], kernel: Callable[[int], str] = str) -> None:
        self.books: list[Entry] = []
        self.keys_seen: set[str] = set()
        self.sent_bytes = 0
        self._choose = choose
        self._kernel = kernel
        self._lock = threading.Lock()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.close_connection = True  # half of the faults leave it in no state to go on
                fault, content = outer._take(request, self.headers.get("authorization", ""))
                call = Call(self, request, content, outer._closing, outer._note_sent)
                with contextlib.suppress(ConnectionError):  # a client that had enough
                    if fault is None:
                        call.send(call.completion())
                    else:
                        fault.play(call)

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def owed(self, asks_for: str = "") -> tuple[int, int]:
        """Tokens read and written by all requests, or by those that ask for this key."""
        entries = [each for each in self.books if not asks_for or asks_for in each.asks_for]
        return sum(e.input_tokens for e in entries), sum(e.output_tokens for e in entries)

    def _take(self, request: Mapping[str, Any], authorization: str) -> tuple[Fault | None, str]:
        schema = request.get("response_format", {}).get("json_schema", {}).get("schema", {})
        with self._lock:
            number = len(self.books)
            name = self._choose(number)
            fault = FAULTS[name] if name else None
            bill: Bill = fault.bill if fault else "reported"
            tokens = {
                "nothing": (0, 0),
                "reported": (INPUT_TOKENS, OUTPUT_TOKENS),
                "unknown": (_most_input_tokens(request, schema), request["max_tokens"]),
            }[bill]
            asks_for = frozenset(schema.get("properties", {}))
            self.books.append(Entry(name, asks_for, *tokens))
            self.keys_seen.add(authorization)
        return fault, self._answer(schema, number)

    def _answer(self, schema: Mapping[str, Any], number: int) -> str:
        properties = schema.get("properties", {})
        shares = [name for name, each in properties.items() if each["type"] == "integer"]
        answer: dict[str, int | str] = {name: 100 // len(shares) for name in shares}
        if shares:
            answer[shares[0]] = 100 - (len(shares) - 1) * (100 // len(shares))
        words = [name for name, each in properties.items() if each["type"] == "string"]
        answer |= {name: self._kernel(number) if name == "kernel" else "so" for name in words}
        return json.dumps(answer)

    def _note_sent(self, count: int) -> None:
        with self._lock:
            self.sent_bytes += count

    def __enter__(self) -> BadServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _most_input_tokens(request: Mapping[str, Any], schema: Mapping[str, Any]) -> int:
    told = [text for message in request["messages"] for text in message.values()]
    return sum(len(text.encode()) for text in (*told, json.dumps(schema))) + TEMPLATE_TOKENS
