"""The request body, and a connection that does not trust responses.

A response is read up to a limit, never decompressed, and redacted before other code reads it.
"""

from __future__ import annotations

import importlib
import json
from functools import cache
from types import ModuleType
from typing import Any

from kernelcast.llm._endpoint import Endpoint, Request
from kernelcast.llm._keys import REDACTOR, read_key
from kernelcast.llm._replies import Outcome

MOST_BODY_BYTES = 8 * 2**20
_MOST_ERROR_BYTES = 2**16
# The ways to ask for a JSON object, best first. A server that refuses one gets the next.
FORMS = ("json_schema", "tool_call", "text")
_CONNECT_S = 10.0
# The SDK insists on a key; servers without authentication ignore it.
_NO_KEY = "none"


def request_body(endpoint: Endpoint, request: Request, form: str) -> dict[str, Any]:
    messages = [dict(message) for message in request.messages]
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": messages,
        endpoint.output_limit: request.max_output_tokens,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.schema is None:
        return body
    schema = dict(request.schema)
    if form == "json_schema":
        # No `strict`: hosted APIs refuse length limits with it, and small models of local servers
        # need the limits.
        named = {"name": "answer", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    elif form == "tool_call":
        function = {"name": "answer", "description": "Give the answer.", "parameters": schema}
        body["tools"] = [{"type": "function", "function": function}]
        body["tool_choice"] = {"type": "function", "function": {"name": "answer"}}
    else:
        messages[-1]["content"] += (
            "\n\nAnswer with one JSON object and nothing else. It fits this JSON schema:\n"
            + json.dumps(schema)
        )
    return body


class Unreadable(Exception):
    """A response that is not read to its end, with its outcome."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def connect(sdk: Any, endpoint: Endpoint) -> Any:
    """Build the SDK's client over a guarded connection."""
    # The SDK changed its HTTP package from httpx to httpx2; use the one that it imports.
    http: Any = importlib.import_module(
        sdk.DefaultAsyncHttpxClient.__base__.__module__.partition(".")[0]
    )

    class Guarded(http.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, response: Any) -> None:
            self._stream = response.stream
            self._is_error = response.status_code >= 400

        async def __aiter__(self) -> Any:
            body = bytearray()
            async for chunk in self._stream:
                body += chunk
                if self._is_error and len(body) > _MOST_ERROR_BYTES:
                    break
                if len(body) > MOST_BODY_BYTES:
                    raise Unreadable(
                        "too_large", f"the body is larger than {MOST_BODY_BYTES // 2**20} MiB"
                    )
            # In one piece, because a key may span two chunks.
            yield REDACTOR.data(bytes(body))

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def guard(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Unreadable(
                "bad_content", "the body is compressed, although no compression was requested"
            )
        for name, value in response.headers.items():
            if value != REDACTOR.text(value):
                response.headers[name] = REDACTOR.text(value)
        response.stream = Guarded(response)

    key = read_key(endpoint.api_key_env, endpoint.api_key_file)
    timeout = sdk.Timeout(endpoint.timeout_s, connect=min(_CONNECT_S, endpoint.timeout_s / 2))
    client = sdk.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=key or _NO_KEY,
        # A few compressed bytes can expand to gigabytes.
        default_headers={"accept-encoding": "identity"},
        # The ledger would not see the cost of the SDK's own retries.
        max_retries=0,
        timeout=timeout,
        # A redirect could send the question and the key to a host that the user did not name.
        http_client=sdk.DefaultAsyncHttpxClient(
            verify=_certificates(http),
            timeout=timeout,
            follow_redirects=False,
            event_hooks={"response": [guard]},
        ),
    )
    # The SDK reads these from the environment. Other hosts must not see them.
    client.organization = client.project = None
    return client


@cache
def _certificates(http: ModuleType) -> Any:
    # Loading them takes a tenth of a second, so this happens once per process.
    return http.create_ssl_context()
