from __future__ import annotations

import json
import socket
import sys
import time
import traceback
from typing import Any

import pytest

from kernelcast import llm
from kernelcast.errors import MissingExtra, ModelError, SetupError
from kernelcast.llm import Answer, Client, Endpoint
from tests.model_server import Reply, ScriptedServer, count_prompt_tokens

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
    "additionalProperties": False,
}
GOOD = Reply('{"size": 3}')
PRICES: dict[str, Any] = {
    "usd_per_million_input_tokens": 2.0,
    "usd_per_million_output_tokens": 8.0,
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_FIRST_BACKOFF_S", 0.01)


def ask(base_url: str, max_output_tokens: int = 50, **options: Any) -> Answer:
    client = Client(Endpoint(base_url=base_url, model="m", **options))
    answer = client.complete(
        MESSAGES, schema=SCHEMA, max_output_tokens=max_output_tokens, seed=7, temperature=0.5
    )
    quote = client.quote(MESSAGES, schema=SCHEMA, max_output_tokens=max_output_tokens)
    assert answer.usage.input_tokens <= quote.input_tokens
    assert answer.usage.output_tokens <= quote.output_tokens
    assert answer.usage.usd <= quote.usd
    assert answer.usage.seconds <= quote.seconds
    return answer


def test_an_answer_is_parsed_and_priced_as_the_server_counts() -> None:
    with ScriptedServer(GOOD) as server:
        answer = ask(server.base_url, **PRICES)
    assert answer.parsed == {"size": 3}
    assert (answer.attempts, answer.error) == (1, "")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (100, 20)
    assert answer.usage.usd == pytest.approx((100 * 2.0 + 20 * 8.0) / 1e6)
    (request,) = server.requests
    assert request["messages"] == MESSAGES
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (request["max_tokens"], request["seed"], request["temperature"]) == (50, 7, 0.5)


def test_what_a_model_may_refuse_is_sent_only_if_asked_for() -> None:
    with ScriptedServer(GOOD) as server:
        endpoint = Endpoint(
            base_url=server.base_url, model="m", output_limit="max_completion_tokens"
        )
        Client(endpoint).complete(MESSAGES, schema=SCHEMA, max_output_tokens=50)
    (request,) = server.requests
    assert request["max_completion_tokens"] == 50
    assert not {"seed", "temperature", "max_tokens"} & set(request)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_passing_refusal_is_retried(status: int) -> None:
    with ScriptedServer(Reply("busy", status=status), GOOD) as server:
        answer = ask(server.base_url)
    assert answer.parsed == {"size": 3}
    assert answer.attempts == len(server.requests) == 2


def test_the_wait_that_the_server_names_is_kept() -> None:
    busy = Reply("busy", status=429, headers={"retry-after": "0.4"})
    with ScriptedServer(busy, GOOD) as server:
        answer = ask(server.base_url)
    assert answer.attempts == 2
    assert answer.usage.seconds >= 0.4


def test_a_wait_that_is_no_number_is_ignored() -> None:
    busy = Reply("busy", status=429, headers={"retry-after": "nan"})
    later = Reply("busy", status=429, headers={"retry-after": "tomorrow"})
    with ScriptedServer(busy, later, GOOD) as server:
        assert ask(server.base_url).attempts == 3


def test_attempts_are_bounded_and_none_is_hidden_in_the_sdk() -> None:
    with ScriptedServer(Reply("out of order", status=500)) as server:
        answer = ask(server.base_url, max_attempts=4)
    assert answer.parsed is None
    assert "out of order" in answer.error
    assert answer.attempts == len(server.requests) == 4
    assert answer.usage.tokens == 0


def test_a_late_answer_is_a_value() -> None:
    with ScriptedServer(Reply(delay_s=20.0)) as server:
        started = time.monotonic()
        answer = ask(server.base_url, timeout_s=0.2, max_attempts=2)
    assert time.monotonic() - started < 10.0
    assert answer.parsed is None
    assert "0.2 s" in answer.error
    assert answer.attempts == 2


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": {"message": "upstream"}, "usage": {"prompt_tokens": 5}}),
        json.dumps({"choices": []}),
        json.dumps({"choices": [{"index": 0}]}),
        "<html>not an API</html>",
        '{"choices": [{"mess',
    ],
)
def test_a_success_without_a_choice_is_retried(body: str) -> None:
    with ScriptedServer(Reply(body=body), GOOD) as server:
        answer = ask(server.base_url)
        assert answer.parsed == {"size": 3}
        assert answer.attempts == 2
        assert answer.usage.input_tokens == 100


def test_tokens_of_failed_attempts_are_summed() -> None:
    with ScriptedServer(Reply("", finish_reason="error"), GOOD) as server:
        answer = ask(server.base_url, **PRICES)
    assert answer.parsed == {"size": 3}
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (200, 40)
    assert answer.usage.usd == pytest.approx(2 * (100 * 2.0 + 20 * 8.0) / 1e6)


def test_tokens_that_are_not_reported_are_charged_at_their_upper_bound() -> None:
    with ScriptedServer(Reply('{"size": 3}', usage=None)) as server:
        answer = ask(server.base_url, max_attempts=1, **PRICES)
        client = Client(Endpoint(base_url=server.base_url, model="m", max_attempts=1, **PRICES))
        quote = client.quote(MESSAGES, schema=SCHEMA, max_output_tokens=50)
    assert answer.usage.tokens == quote.tokens
    assert answer.usage.usd == quote.usd > 0


def test_an_answer_that_was_cut_off_is_a_value_and_not_paid_for_twice() -> None:
    with ScriptedServer(Reply('{"size": ', finish_reason="length")) as server:
        answer = ask(server.base_url)
    assert answer.parsed is None
    assert "max_output_tokens = 50" in answer.error
    assert answer.attempts == 1


@pytest.mark.parametrize(
    "text",
    ["", "three", "[3]", "3", '{"size": 3', "{" * 100_000, "[" * 100_000, '{"size": "\\ud800"}'],
)
def test_an_answer_that_is_no_object_is_a_value(text: str) -> None:
    with ScriptedServer(Reply(text)) as server:
        answer = ask(server.base_url)
    assert answer.parsed is None
    assert answer.error == "the answer is not a JSON object"
    assert answer.text == text
    assert answer.usage.tokens == 120


def test_an_object_in_prose_is_found() -> None:
    with ScriptedServer(Reply('Sure:\n```json\n{"size": 3}\n```')) as server:
        assert ask(server.base_url).parsed == {"size": 3}


def test_a_prompt_longer_than_the_context_is_a_value() -> None:
    refusal = Reply("request (9000 tokens) exceeds the available context size", status=400)
    with ScriptedServer(refusal) as server:
        answer = ask(server.base_url)
    assert answer.parsed is None
    assert "too long" in answer.error
    assert answer.attempts == 1


def test_nobody_at_the_address_is_an_error_that_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(ModelError, match=r"start the server there or mend base_url") as caught:
            ask(base_url)
    assert base_url in str(caught.value)


@pytest.mark.parametrize(
    ("status", "fix"),
    [(401, "MY_KEY"), (403, "MY_KEY"), (404, "/v1"), (400, "temperature"), (422, "structured")],
)
def test_a_lasting_refusal_is_an_error_that_names_the_fix_and_not_the_key(
    status: int, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with ScriptedServer(Reply("bad: Bearer sk-very-secret", status=status)) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", api_key_env="MY_KEY")
        client = Client(endpoint)
        with pytest.raises(ModelError, match=fix) as caught:
            client.complete(MESSAGES, schema=SCHEMA, max_output_tokens=50)
    assert len(server.requests) == 1
    told = "".join(traceback.format_exception(caught.value))
    for text in (told, repr(client), repr(endpoint), endpoint.model_dump_json()):
        assert "secret" not in text


def test_the_key_comes_from_the_named_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-provider")
    monkeypatch.setenv("MY_KEY", "sk-mine")
    with ScriptedServer(GOOD) as server:
        ask(server.base_url, api_key_env="MY_KEY")
        ask(server.base_url, api_key_env="NO_SUCH_KEY")
    sent = [headers["authorization"] for headers in map(_lower, server.headers)]
    assert sent == ["Bearer sk-mine", "Bearer none"]


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_options_that_describe_no_endpoint_are_named() -> None:
    with pytest.raises(SetupError, match=r"base_url: Field required.*modle: Extra.*max_attempts"):
        Endpoint.from_options({"model": "m", "modle": "m"})


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"kernelcast\[llm\]"):
        Client(Endpoint(base_url="http://127.0.0.1:1/v1", model="m"))


def test_a_real_model_answers_in_the_schema_and_its_tokens_are_counted(small_model: str) -> None:
    answer = ask(small_model, **PRICES)
    assert answer.parsed is not None, answer.error
    assert set(answer.parsed) == {"size"}
    assert 0 <= answer.parsed["size"] <= 9
    assert answer.usage.input_tokens == count_prompt_tokens(small_model, MESSAGES)
    assert 0 < answer.usage.output_tokens <= 50


def test_a_real_answer_stops_at_the_limit(small_model: str) -> None:
    answer = ask(small_model, max_output_tokens=2)
    assert answer.usage.output_tokens == 2
    assert answer.parsed is None
    assert "cut off" in answer.error
