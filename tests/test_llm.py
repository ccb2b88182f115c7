from __future__ import annotations

import base64
import gc
import json
import re
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.errors import MissingExtra, ModelError, SetupError
from kernelcast.llm import Client, Endpoint, Price, Reply, Request, _pace, problem_text
from kernelcast.llm._keys import Redactor
from kernelcast.llm._pace import Bucket, backoff_s, retry_after_s
from kernelcast.llm._prices import PRICES_ENV, price_of
from kernelcast.llm._replies import find_object, misfit, read_completion
from kernelcast.testing import synthetic_problem
from kernelcast.types import Case, Module
from tests.model_server import Reply as Scripted
from tests.model_server import ScriptedServer, count_prompt_tokens, seconds_at_work

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
    "additionalProperties": False,
}
QUESTION = Request(messages=MESSAGES, schema=SCHEMA, max_output_tokens=50, seed=7, temperature=0.5)
PLAIN = Request(messages=MESSAGES, max_output_tokens=50)
GOOD = Scripted('{"size": 3}')
PRICES: dict[str, Any] = {
    "usd_per_million_input_tokens": 2.0,
    "usd_per_million_output_tokens": 8.0,
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "FIRST_BACKOFF_S", 0.01)


def client(base_url: str, **options: Any) -> Client:
    return Client(Endpoint(base_url=base_url, model="m", **options))


def ask(base_url: str, request: Request = QUESTION, **options: Any) -> Reply:
    """Ask once, and hold the reply to its quote."""
    asked = client(base_url, **options)
    reply = asked.ask(request)
    quote = asked.quote(request)
    assert reply.usage.input_tokens <= quote.input_tokens
    assert reply.usage.output_tokens <= quote.output_tokens
    assert reply.usage.usd <= quote.usd + 1e-12
    assert reply.usage.seconds <= quote.seconds
    return reply


def nobody_s_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


# ------------------------------------------------------------------------------ what is asked


def test_an_answer_is_parsed_and_priced_as_the_server_counts() -> None:
    with ScriptedServer(GOOD) as server:
        reply = ask(server.base_url, **PRICES)
    assert reply.parsed == {"size": 3}
    assert (reply.outcome, reply.attempts, reply.error, reply.usage.unknown) == ("ok", 1, "", False)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 20)
    assert reply.usage.usd == pytest.approx((100 * 2.0 + 20 * 8.0) / 1e6)
    (request,) = server.requests
    assert request["messages"] == MESSAGES
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (request["max_tokens"], request["seed"], request["temperature"]) == (50, 7, 0.5)


def test_what_a_model_may_refuse_is_sent_only_if_asked_for() -> None:
    with ScriptedServer(Scripted("At once.")) as server:
        reply = ask(server.base_url, PLAIN, output_limit="max_completion_tokens")
    assert (reply.outcome, reply.text, reply.parsed) == ("ok", "At once.", None)
    (request,) = server.requests
    assert request["max_completion_tokens"] == 50
    unasked = {"seed", "temperature", "max_tokens", "response_format", "logprobs", "tools", "n"}
    assert not unasked & set(request)


def test_samples_are_asked_apart_with_seeds_of_their_own_and_paid_together() -> None:
    sizes = iter(['{"size": 99}', '{"size": 2}', '{"size": 3}'])
    request = Request(messages=MESSAGES, schema=SCHEMA, max_output_tokens=50, seed=7, samples=3)
    with ScriptedServer(lambda _: Scripted(next(sizes))) as server:
        reply = ask(server.base_url, request, **PRICES)
    assert sorted(each["seed"] for each in server.requests) == [7, 8, 9]
    assert sorted(sample.outcome for sample in reply.samples) == ["ok", "ok", "unparsed"]
    assert reply.outcome == "ok"
    assert reply.usage.tokens == 3 * 120
    assert reply.attempts == 3


def test_log_probabilities_are_given_as_told() -> None:
    token = {"token": "7", "logprob": -0.5, "top_logprobs": [{"token": "7", "logprob": -0.5}]}
    choice = {"message": {"content": "7"}, "logprobs": {"content": [token]}}
    body = json.dumps({"choices": [choice], "usage": None})
    request = Request(messages=MESSAGES, max_output_tokens=1, top_logprobs=5)
    with ScriptedServer(Scripted(body=body)) as server:
        reply = ask(server.base_url, request)
    assert (server.requests[0]["logprobs"], server.requests[0]["top_logprobs"]) == (True, 5)
    (told,) = reply.best.logprobs
    assert (told.token, told.logprob, told.top) == ("7", -0.5, (("7", -0.5),))


def test_many_are_answered_in_order_and_so_many_at_once() -> None:
    eight = threading.Barrier(8, timeout=300)

    def echo(request: dict[str, Any]) -> Scripted:
        eight.wait()
        return Scripted(request["messages"][0]["content"])

    texts = [f"{n}" for n in range(40)]
    requests = [
        Request(messages=[{"role": "user", "content": text}], max_output_tokens=9) for text in texts
    ]
    with ScriptedServer(echo) as server:
        replies = client(server.base_url, concurrency=8).ask_many(requests)
    assert [reply.text for reply in replies] == texts
    assert server.most_at_once == 8
    assert client("http://127.0.0.1:1/v1").ask_many([]) == []


def test_threads_share_a_client() -> None:
    with ScriptedServer(GOOD) as server:
        shared = client(server.base_url)
        replies: list[Reply] = []
        threads = [
            threading.Thread(target=lambda: replies.append(shared.ask(QUESTION))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [reply.outcome for reply in replies] == ["ok"] * 8


def test_one_error_stops_the_questions_that_are_under_way() -> None:
    def answer(request: dict[str, Any]) -> Scripted:
        bad = request["messages"][0]["content"] == "bad"
        return Scripted("who?", status=401) if bad else Scripted(delay_s=200.0)

    requests = [
        Request(messages=[{"role": "user", "content": text}], max_output_tokens=9)
        for text in ("good", "bad")
    ]
    with ScriptedServer(answer) as server:
        with pytest.raises(ModelError):
            client(server.base_url).ask_many(requests)
        assert server.answered == 1


def test_a_client_that_is_dropped_closes_its_connections() -> None:
    """An open one would be a ResourceWarning, and warnings are errors here."""
    with ScriptedServer(GOOD) as server:
        asked = client(server.base_url)
        asked.ask(QUESTION)
        gone = weakref.ref(asked)
        del asked
        gc.collect()
        assert gone() is None
        time.sleep(0.05)
        gc.collect()


# ----------------------------------------------------------------------- forms of structure


def refusing(*keys: str) -> Callable[[dict[str, Any]], Scripted]:
    """A server that does not know some ways of asking for structure."""

    def answer(request: dict[str, Any]) -> Scripted:
        for key in keys:
            if key in request:
                return Scripted(f"{key} is not supported", status=400)
        if "tools" not in request:
            return Scripted('Well: <think>{"size": 8} no</think>\n```json\n{"size": 3}\n```')
        name = request["tool_choice"]["function"]["name"]
        assert request["tools"][0]["function"]["parameters"] == SCHEMA
        call = {"function": {"name": name, "arguments": '{"size": 4}'}, "type": "function"}
        choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 100, "completion_tokens": 20}
        return Scripted(body=json.dumps({"choices": [choice], "usage": usage}))

    return answer


@pytest.mark.parametrize(
    ("refused", "size", "requests"),
    [((), 3, 2), (("response_format",), 4, 3), (("response_format", "tools"), 3, 4)],
)
def test_the_best_form_that_a_server_takes_is_found_once_and_kept(
    refused: tuple[str, ...], size: int, requests: int
) -> None:
    with ScriptedServer(refusing(*refused)) as server:
        asked = client(server.base_url, **PRICES)
        replies = [asked.ask(QUESTION), asked.ask(QUESTION)]
    assert [reply.parsed for reply in replies] == [{"size": size}] * 2
    assert [reply.attempts for reply in replies] == [1, 1]
    assert len(server.requests) == requests
    assert replies[0].usage.tokens == 120
    last = server.requests[-1]
    assert (json.dumps(SCHEMA) in last["messages"][-1]["content"]) == ("tools" in refused)


def test_a_server_that_takes_no_form_at_all_is_an_error_that_quotes_it() -> None:
    with (
        ScriptedServer(Scripted("temperature must be 1", status=400)) as server,
        pytest.raises(ModelError, match="temperature must be 1"),
    ):
        ask(server.base_url)
    assert len(server.requests) == 3


# ---------------------------------------------------------------------------- waits and limits


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_passing_refusal_is_retried_and_costs_nothing(status: int) -> None:
    with ScriptedServer(Scripted("busy", status=status), GOOD) as server:
        reply = ask(server.base_url)
    assert reply.parsed == {"size": 3}
    assert reply.attempts == len(server.requests) == 2
    assert reply.usage.tokens == 120


def test_attempts_are_bounded_and_none_is_hidden_in_the_sdk() -> None:
    with ScriptedServer(Scripted("out of order", status=500)) as server:
        reply = ask(server.base_url, max_attempts=4)
    assert reply.outcome == "server_error"
    assert "out of order" in reply.error
    assert reply.attempts == len(server.requests) == 4
    assert reply.usage.tokens == 0


def test_the_wait_that_the_server_names_is_kept_by_all_who_ask() -> None:
    busy = Scripted("busy", status=429, headers={"retry-after": "0.4"})
    with ScriptedServer(busy, GOOD) as server:
        asked = client(server.base_url, max_attempts=1)
        started_s = time.monotonic()
        assert asked.ask(QUESTION).outcome == "rate_limited"
        assert asked.ask(QUESTION).outcome == "ok"
        assert time.monotonic() - started_s >= 0.4


NOW_S = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:27 GMT"}, 7.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0.0),
        ({"retry-after": "86400"}, _pace.LONGEST_WAIT_S),
        ({"retry-after": "inf"}, _pace.LONGEST_WAIT_S),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after": "tomorrow"}, 0.0),
        ({"retry-after": "Tue, 99 Foo 2023 99:99:99"}, 0.0),
        ({}, 0.0),
    ],
)
def test_a_wait_is_read_in_every_form_and_bounded(headers: dict[str, str], wait_s: float) -> None:
    assert retry_after_s(headers, NOW_S) == pytest.approx(wait_s)


@given(st.integers(1, 200))
def test_waits_are_jittered_and_bounded(attempt: int) -> None:
    waits = {backoff_s(attempt) for _ in range(20)}
    assert len(waits) > 1
    assert all(0.0 <= wait <= _pace.LONGEST_WAIT_S for wait in waits)


def test_a_rate_limit_spreads_requests() -> None:
    now_s = 100.0
    bucket = Bucket(120.0, lambda: now_s)
    assert [bucket.delay_s(1) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.5])
    now_s += 60.0
    # An idle minute saves up a second's worth, not a minute's.
    assert [bucket.delay_s(1) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.5, 1.0])
    now_s += 1.0
    bucket.delay_s(20)  # tokens that an answer took: paid off before the next goes out
    assert bucket.delay_s(0) == pytest.approx(10.0)
    assert Bucket(None).delay_s(10**9) == 0.0


def test_the_limits_of_an_endpoint_hold() -> None:
    with ScriptedServer(Scripted("so")) as server:
        started_s = time.monotonic()
        client(server.base_url, requests_per_minute=1200).ask_many([PLAIN] * 26)
        by_requests_s = time.monotonic() - started_s
        started_s = time.monotonic()
        client(server.base_url, tokens_per_minute=30_000, concurrency=1).ask_many([PLAIN] * 6)
        by_tokens_s = time.monotonic() - started_s
    # 20 requests a second, of which one second's worth at once; 500 tokens a second of 120 each.
    assert by_requests_s >= 0.25
    assert by_tokens_s >= 0.15


# --------------------------------------------------------------------------------- the breaker


@pytest.mark.measures
def test_a_server_that_keeps_failing_is_left_in_peace_until_a_probe_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_pace, "FAILURES_TO_OPEN", 3)
    monkeypatch.setattr(_pace, "COOL_DOWN_S", 0.3)
    down = True

    def answer(_: dict[str, Any]) -> Scripted:
        return Scripted("down", status=503) if down else GOOD

    with ScriptedServer(answer) as server:
        asked = client(server.base_url, max_attempts=1)
        started_s = time.monotonic()
        assert [asked.ask(QUESTION).outcome for _ in range(3)] == ["server_error"] * 3
        # Open: of ten, one is sent after the cool-down; the others learn from it.
        replies = asked.ask_many([QUESTION] * 10)
        assert time.monotonic() - started_s >= 0.3
        outcomes = sorted(reply.outcome for reply in replies)
        assert outcomes == ["server_error"] + ["unavailable"] * 9
        assert len(server.requests) == 4
        unsent = [reply for reply in replies if reply.outcome == "unavailable"]
        assert {(reply.attempts, reply.usage.tokens) for reply in unsent} == {(0, 0)}
        assert "was not sent" in unsent[0].error
        # Half open: the probe succeeds, and everybody is let in.
        down = False
        assert [reply.outcome for reply in asked.ask_many([QUESTION] * 10)] == ["ok"] * 10
        assert len(server.requests) == 14


def test_refusals_do_not_open_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "FAILURES_TO_OPEN", 2)
    with ScriptedServer(Scripted("busy", status=429)) as server:
        asked = client(server.base_url, max_attempts=1)
        assert [asked.ask(QUESTION).outcome for _ in range(4)] == ["rate_limited"] * 4
    assert len(server.requests) == 4


def test_a_server_that_goes_away_is_a_fault_one_that_never_was_is_an_error() -> None:
    with ScriptedServer(GOOD) as server:
        asked = client(server.base_url)
        assert asked.ask(QUESTION).outcome == "ok"
    gone = asked.ask(QUESTION)
    assert gone.outcome in ("unavailable", "cut")
    assert asked.ask(QUESTION).outcome == "unavailable"
    base_url = nobody_s_url()
    with pytest.raises(ModelError, match="start the server there or correct base_url") as caught:
        ask(base_url)
    assert base_url in str(caught.value)


# ------------------------------------------------------------------------------ what it costs


def test_tokens_of_failed_attempts_are_summed() -> None:
    with ScriptedServer(Scripted("", finish_reason="error"), GOOD) as server:
        reply = ask(server.base_url, **PRICES)
    assert reply.parsed == {"size": 3}
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (200, 40)
    assert reply.usage.usd == pytest.approx(2 * (100 * 2.0 + 20 * 8.0) / 1e6)


def test_what_nobody_tells_is_charged_at_its_upper_bound_and_marked() -> None:
    with ScriptedServer(Scripted('{"size": 3}', usage=None)) as server:
        reply = ask(server.base_url, max_attempts=1, **PRICES)
        quote = client(server.base_url, max_attempts=1, **PRICES).quote(QUESTION)
    assert reply.outcome == "ok"
    assert reply.usage.unknown
    assert reply.usage.tokens == quote.tokens
    assert reply.usage.usd == quote.usd > 0


def test_a_late_answer_is_a_value_that_may_have_been_paid_for() -> None:
    with ScriptedServer(Scripted(delay_s=200.0)) as server:
        reply = ask(server.base_url, timeout_s=0.2, max_attempts=2)
        quote = client(server.base_url, max_attempts=2).quote(QUESTION)
    assert (reply.outcome, reply.attempts, reply.usage.unknown) == ("timeout", 2, True)
    assert "0.2 s" in reply.error
    assert reply.usage.tokens == quote.tokens


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cached_tokens": 80}},
        {"prompt_cache_hit_tokens": 80, "prompt_tokens_details": None},
    ],
)
def test_cached_tokens_have_their_own_price(
    usage: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        '[[price]]\nhost = "127.0.0.1"\nmodel = "m"\ninput = 2.0\ncached_input = 0.5\noutput = 8.0'
    )
    monkeypatch.setenv(PRICES_ENV, str(prices))
    counted = {"prompt_tokens": 100, "completion_tokens": 20, **usage}
    with ScriptedServer(Scripted('{"size": 3}', usage=counted)) as server:
        reply = ask(server.base_url)
    assert reply.cached_input_tokens == 80
    assert reply.usage.usd == pytest.approx((20 * 2.0 + 80 * 0.5 + 20 * 8.0) / 1e6)


def test_prices_are_looked_up_by_host_and_model() -> None:
    known = price_of("https://api.openai.com/v1", "gpt-5.4-mini-2026-03-01")
    assert known.priced
    assert known.usd(10**6, 10**6) == pytest.approx(known.input + known.output)
    assert known.usd(10**6, 0, 10**6) == known.cached_input
    assert re.search(r"20\d\d-\d\d-\d\d", known.source)
    assert price_of("http://localhost:8000/v1", "gpt-5.4-mini") == Price(
        source="a server on this machine"
    )
    for elsewhere in ("https://api.example.com/v1", "http://10.0.0.7:8000/v1"):
        unknown = price_of(elsewhere, "gpt-5.4-mini")
        assert not unknown.priced
        assert unknown.usd(10**9, 10**9) == 0.0
    stated = Endpoint(base_url="https://api.openai.com/v1", model="gpt-5.4-mini", **PRICES)
    assert stated.price.usd(10**6, 10**6) == 10.0


@pytest.mark.parametrize("text", ["price = 3", "[[price]]\nhost = 1", "[[price]]\nmodel =", "\xff"])
def test_a_broken_table_of_prices_is_named(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("latin-1"))
    monkeypatch.setenv(PRICES_ENV, str(path))
    with pytest.raises(SetupError, match=r"mine\.toml"):
        client("http://127.0.0.1:1/v1")


# ------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (json.dumps({"error": {"message": "upstream"}}), "server_error"),
        (json.dumps({"choices": []}), "bad_content"),
        (json.dumps({"choices": [{"index": 0}]}), "bad_content"),
        (json.dumps({"choices": [{"message": {"content": 5}}]}), "bad_content"),
        ("[]", "bad_content"),
        ("<html>not an API</html>", "bad_content"),
        ('{"choices": [{"mess', "bad_content"),
    ],
)
def test_a_success_without_a_choice_is_retried_and_may_have_been_paid_for(
    body: str, outcome: str
) -> None:
    with ScriptedServer(Scripted(body=body), GOOD) as server:
        reply = ask(server.base_url)
        assert reply.parsed == {"size": 3}
        assert (reply.attempts, reply.usage.unknown) == (2, True)
        assert ask(server.base_url, max_attempts=1).outcome == outcome


def test_an_answer_that_was_cut_off_is_a_value_and_not_paid_for_twice() -> None:
    with ScriptedServer(Scripted('{"size": ', finish_reason="length")) as server:
        reply = ask(server.base_url)
        assert ask(server.base_url, PLAIN).outcome == "ok"
    assert (reply.outcome, reply.parsed, reply.attempts) == ("unparsed", None, 1)
    assert "max_output_tokens = 50" in reply.error


@pytest.mark.parametrize(
    "text",
    ["", "three", "[3]", "3", '{"size": 3', "{" * 100_000, "[" * 100_000, '{"size": "\\ud800"}'],
)
def test_an_answer_that_is_no_object_is_a_value(text: str) -> None:
    with ScriptedServer(Scripted(text)) as server:
        reply = ask(server.base_url)
    assert (reply.outcome, reply.parsed) == ("unparsed", None)
    assert reply.error == "the answer is not a JSON object"
    assert reply.text == text
    assert reply.usage.tokens == 120


def test_an_object_that_does_not_fit_is_kept_and_said_not_to_fit() -> None:
    with ScriptedServer(Scripted('{"size": 12}')) as server:
        reply = ask(server.base_url)
    assert (reply.outcome, reply.parsed, reply.attempts) == ("unparsed", {"size": 12}, 1)
    assert reply.error == "size in the answer is out of range"


@pytest.mark.parametrize(
    "reply",
    [
        Scripted(None, finish_reason="content_filter"),
        Scripted(body=json.dumps({"choices": [{"message": {"refusal": "I would rather not."}}]})),
        Scripted("content_filter: ResponsibleAIPolicyViolation", status=400),
    ],
)
def test_a_model_that_declines_is_a_value(reply: Scripted) -> None:
    with ScriptedServer(reply) as server:
        told = ask(server.base_url)
    assert (told.outcome, told.attempts) == ("refused", 1)


@pytest.mark.parametrize(
    "refusal",
    [
        Scripted("request (9000 tokens) exceeds the available context size", status=400),
        Scripted("prompt is too long", status=422),
        Scripted("Payload", status=413),
    ],
)
def test_a_prompt_longer_than_the_context_is_a_value(refusal: Scripted) -> None:
    with ScriptedServer(refusal) as server:
        reply = ask(server.base_url)
    assert (reply.outcome, reply.attempts, reply.usage.tokens) == ("too_large", 1, 0)
    assert "too long" in reply.error


WRAPPED = [
    '{"size": 3}',
    'Sure:\n```json\n{"size": 3}\n```',
    '<think>for (i) { x[i] = {0}; } or {"size": 7}?</think>{"size": 3}',
    '{"size": 3}\n\nHope that helps {smile}!',
    '{"draft": {"size": 5}} {"size": 3} {"note": "done"}',
    "{" * 900 + '{"size": 3}',
]


@pytest.mark.parametrize("text", WRAPPED)
def test_the_object_that_fits_is_found_in_what_surrounds_it(text: str) -> None:
    assert find_object(text, SCHEMA) == {"size": 3}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"a": 1, "b": ["x"], "c": "on", "surplus": 1}, ""),
        ({"a": 2.0, "b": []}, ""),
        ({"b": []}, "the answer has no a"),
        ({"a": True, "b": []}, "the answer has no a of type integer"),
        ({"a": float("nan"), "b": []}, "the answer has no a of type integer"),
        ({"a": 1.5, "b": []}, "the answer has no a of type integer"),
        ({"a": -1, "b": []}, "a in the answer is out of range"),
        ({"a": 1, "b": [1]}, "an item of b in the answer is not of type string"),
        ({"a": 1, "b": [], "c": "maybe"}, "c in the answer is none of ['on', 'off']"),
        ([], "the answer is not of type object"),
    ],
)
def test_what_does_not_fit_a_schema_is_named(value: Any, wrong: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0},
            "b": {"type": "array", "items": {"type": "string"}},
            "c": {"enum": ["on", "off"]},
        },
        "required": ["a", "b"],
    }
    assert misfit(value, schema) == wrong


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
near_completions = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "message": st.fixed_dictionaries(
                        {}, optional={"content": json_values, "tool_calls": json_values}
                    ),
                    "finish_reason": json_values,
                    "logprobs": json_values,
                },
            ),
            max_size=2,
        )
    },
    optional={"usage": json_values, "error": json_values},
)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        json_values.map(lambda value: json.dumps(value).encode()),
        near_completions.map(lambda value: json.dumps(value).encode()),
    )
)
def test_whatever_a_body_holds_it_has_an_outcome(body: bytes) -> None:
    answer, tokens = read_completion(body, SCHEMA, 50)
    assert answer.outcome in ("ok", "unparsed", "refused", "bad_content", "server_error")
    assert (answer.outcome == "ok") == (answer.error == "")
    if answer.outcome == "ok":
        assert answer.parsed is not None
        assert misfit(answer.parsed, SCHEMA) == ""
    if tokens is not None:
        assert 0 <= tokens.cached <= tokens.input
        assert tokens.output >= 0


# -------------------------------------------------------------------------------- cassettes


def test_a_recording_answers_without_a_server_or_the_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret-key")
    tape = tmp_path / "tapes" / "tape.jsonl"
    options: dict[str, Any] = {"cassette": str(tape), "api_key_env": "MY_KEY", **PRICES}
    with ScriptedServer(Scripted('{"size": 3}', headers={"x-key": "sk-very-secret-key"})) as server:
        first = client(server.base_url, cassette_mode="record", **options)
        recorded = first.ask(QUESTION)
        assert first.ask(QUESTION) == recorded
        assert client(server.base_url, cassette_mode="record", **options).ask(QUESTION) == recorded
        assert len(server.requests) == 1
        (line,) = tape.read_text().splitlines()
        for unwanted in ("secret", "MY_KEY", "Bearer", server.base_url, "x-key"):
            assert unwanted not in line
    monkeypatch.setitem(sys.modules, "openai", None)
    replaying = client("http://127.0.0.1:1/v1", **options)
    assert replaying.ask(QUESTION) == recorded
    assert replaying.ask(QUESTION).usage.usd > 0
    other = Request(messages=MESSAGES, schema=SCHEMA, max_output_tokens=51)
    with pytest.raises(ModelError, match='cassette_mode = "record"'):
        replaying.ask(other)


def test_a_fault_is_never_recorded(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    options: dict[str, Any] = {"cassette": str(tape), "cassette_mode": "record", "max_attempts": 1}
    with ScriptedServer(Scripted("down", status=503), GOOD) as server:
        asked = client(server.base_url, **options)
        assert asked.ask(QUESTION).outcome == "server_error"
        assert not tape.exists()
        assert asked.ask(QUESTION).outcome == "ok"
    assert len(tape.read_text().splitlines()) == 1


def test_a_torn_line_is_forgotten_and_a_foreign_one_is_named(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    options: dict[str, Any] = {"cassette": str(tape), "cassette_mode": "record"}
    with ScriptedServer(GOOD) as server:
        client(server.base_url, **options).ask(QUESTION)
        whole = tape.read_text()
        tape.write_text(whole + whole[:100])
        client(server.base_url, **options).ask(PLAIN)
        assert len(server.requests) == 2
        lines = tape.read_text().splitlines()
        assert len(lines) == 2
        assert lines[0] == whole.strip()
        client(server.base_url, **options).ask(PLAIN)
        assert len(server.requests) == 2
    tape.write_text('{"not": "a reply"}\n' + whole)
    with pytest.raises(SetupError, match=r"tape\.jsonl:1"):
        client("http://127.0.0.1:1/v1", cassette=str(tape))


# ------------------------------------------------------------------------------- the set-up


@pytest.mark.parametrize(
    ("status", "fix", "requests"),
    [
        (401, "MY_KEY", 1),
        (403, "MY_KEY", 1),
        (402, "add credit", 1),
        (404, "/v1", 1),
        (400, "temperature", 3),
        (422, "another model", 3),
        (307, "correct base_url", 1),
    ],
)
def test_a_lasting_refusal_is_an_error_that_names_the_fix_and_not_the_key(
    status: int, fix: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with ScriptedServer(Scripted("bad: Bearer sk-very-secret", status=status)) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", api_key_env="MY_KEY")
        asked = Client(endpoint)
        with pytest.raises(ModelError, match=fix) as caught:
            asked.ask(QUESTION)
    assert len(server.requests) == requests
    told = "".join(traceback.format_exception(caught.value))
    for text in (told, repr(asked), repr(endpoint), endpoint.model_dump_json()):
        assert "secret" not in text


def lower_headers(server: ScriptedServer) -> list[dict[str, str]]:
    return [{name.lower(): value for name, value in each.items()} for each in server.headers]


def test_the_key_comes_from_the_named_variable_or_file_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-provider")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-another-provider")
    monkeypatch.setenv("MY_KEY", "sk-mine")
    file = tmp_path / "key"
    file.write_text("sk-from-a-file\n")
    with ScriptedServer(GOOD) as server:
        ask(server.base_url, api_key_env="MY_KEY")
        ask(server.base_url, api_key_env="NO_SUCH_KEY")
        ask(server.base_url, api_key_env="MY_KEY", api_key_file=str(file))
    sent = [headers["authorization"] for headers in lower_headers(server)]
    assert sent == ["Bearer sk-mine", "Bearer none", "Bearer sk-from-a-file"]
    assert "another-provider" not in json.dumps(server.headers)
    assert {each["accept-encoding"] for each in lower_headers(server)} == {"identity"}


@pytest.mark.parametrize("key", ["sk-canary one", "sk-canary\nHost: evil", "sk-canary-ü"])
def test_a_key_that_no_header_takes_is_refused_without_quoting_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(SetupError, match="MY_KEY") as caught:
        client("http://127.0.0.1:1/v1", api_key_env="MY_KEY")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="correct api_key_file"):
        client("http://127.0.0.1:1/v1", api_key_file=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "http://me:sk-canary@host/v1"},
        {"base_url": "http://me:sk-canary/x@host/v1"},
        {"base_url": "http://host:sk-canary/v1"},
        {"base_url": "https://host/v1?key=sk-canary"},
        {"base_url": "sk-canary"},
        {"api_key_env": "sk-canary"},
        {"api_key": "sk-canary"},
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_repeated(options: dict[str, str]) -> None:
    described = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **options}
    with pytest.raises(SetupError) as told:
        Endpoint.from_options(described)
    with pytest.raises(ValueError, match=r"api_key|base_url") as raw:
        Endpoint.model_validate(described)
    for caught in (told.value, raw.value):
        assert "canary" not in "".join(traceback.format_exception(caught))


@given(
    key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40),
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
)
def test_no_form_of_a_key_is_left(key: str, before: bytes, after: bytes) -> None:
    redactor = Redactor()
    redactor.learn(key)
    encoded = base64.b64encode(before + key.encode() + after).decode()
    clean = redactor.text(f"<{encoded}>")
    assert "***" in clean
    # Of the key, the digits shared with its neighbours are left at most: less than a byte a side.
    assert len(clean) <= len(encoded) - len(key) * 8 // 6 + 3 + 2 + 4
    for form in (key, key[::-1], key.encode().hex(), key.encode().hex().upper()):
        assert redactor.text(f"a {form} b") == "a *** b"
        assert redactor.data(f"a {form} b".encode()) == b"a *** b"


def test_words_that_are_no_secrets_are_left_alone() -> None:
    redactor = Redactor()
    for word in ("", "none", "EMPTY", "ollama"):
        redactor.learn(word)
    assert redactor.text("EMPTY none ollama") == "EMPTY none ollama"


def test_options_that_describe_no_endpoint_are_named() -> None:
    with pytest.raises(SetupError, match=r"base_url: Field required.*modle: Extra.*max_attempts"):
        Endpoint.from_options({"model": "m", "modle": "m"})


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"kernelcast\[llm\]"):
        client("http://127.0.0.1:1/v1")


# ---------------------------------------------------------------------------- a real server


def test_a_real_model_answers_in_the_schema_and_its_tokens_are_counted(small_model: str) -> None:
    reply = ask(small_model, **PRICES)
    assert reply.outcome == "ok", reply.error
    assert reply.parsed is not None
    assert set(reply.parsed) == {"size"}
    assert 0 <= reply.parsed["size"] <= 9
    assert reply.usage.input_tokens == count_prompt_tokens(small_model, MESSAGES)
    assert 0 < reply.usage.output_tokens <= 50


def test_a_real_server_works_no_longer_than_its_client_waits(small_model: str) -> None:
    """By the server's own clock, which the throughput bench relies on."""
    worked_s = seconds_at_work(small_model)
    reply = ask(small_model, **PRICES)
    served_s = seconds_at_work(small_model) - worked_s
    assert 0.0 < served_s <= reply.usage.seconds


def test_a_real_answer_stops_at_the_limit_and_tells_its_log_probabilities(small_model: str) -> None:
    cut = Request(messages=MESSAGES, schema=SCHEMA, max_output_tokens=2)
    reply = ask(small_model, cut)
    assert reply.usage.output_tokens == 2
    assert reply.parsed is None
    assert "cut off" in reply.error
    probe = Request(messages=MESSAGES, max_output_tokens=1, top_logprobs=5, temperature=0.0)
    (token,) = ask(small_model, probe).best.logprobs
    assert len(token.top) == 5
    assert token.logprob == max(logprob for _, logprob in token.top) <= 0.0


# ---------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("flops", "size", "told"),
    [
        ("5*N", "8*N", "; at least 5 kFLOP, 8 kB"),
        ("0", "8*N", "; at least 8 kB"),
        ("100", "0", "; at least 100 FLOP"),
        ("0", "0.0", ""),
        ("", "", ""),
    ],
)
def test_work_is_a_number_in_each_case_and_left_out_where_it_is_not_stated(
    flops: str, size: str, told: str
) -> None:
    case = Case(name="small", dimensions={"N": 1000})
    changes = {"flops": flops, "bytes": size, "cases": (case,)}
    problem = synthetic_problem().model_copy(update=changes)
    (line,) = (line for line in problem_text(problem).splitlines() if line.startswith("- small"))
    assert line.endswith(f"y[1000]{told}")


@pytest.mark.parametrize(
    ("language", "dtype", "told"),
    [
        ("cpp", "float32", "- x: input, float32[N]"),
        ("cpp", "bfloat16", "- x: input, bfloat16[N], elements are uint16_t"),
        ("cuda", "float8_e5m2", "- x: input, float8_e5m2[N], elements are __nv_fp8_e5m2"),
        ("opencl", "bool", "- x: input, bool[N], elements are uchar"),
        ("not_installed", "bool", "- x: input, bool[N]"),
    ],
)
def test_a_model_is_told_what_narrow_elements_are_called(
    language: str, dtype: str, told: str
) -> None:
    problem = synthetic_problem()
    x = problem.arguments[0].model_copy(update={"dtype": dtype})
    changes = {"language": language, "arguments": (x, *problem.arguments[1:])}
    assert told in problem_text(problem.model_copy(update=changes)).splitlines()


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            Module(init="1.5, N", call="x", returns="y"),
            "Class `ModelNew`, PyTorch, made once by ModelNew(1.5, N); its forward is called with "
            "(x), returns y. Tensors:",
        ),
        (
            Module(call="(x, y)"),
            "Function `ModelNew`, PyTorch, called with ((x, y)), returns the other outputs. "
            "Arrays are tensors:",
        ),
    ],
)
def test_a_model_is_told_how_a_module_is_called(module: Module, told: str) -> None:
    changes = {"language": "torch", "entry": "ModelNew", "module": module}
    text = problem_text(synthetic_problem().model_copy(update=changes))
    assert told in text.splitlines()
    assert "then the dimensions" not in text
