"""A misbehaving endpoint, as `bench/llm_faults.py` plays it, and what it may cost in memory."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from _bad_server import BIG_BODY_BYTES, FAULTS, BadServer
from kernelcast.llm import Client, Endpoint, _pace
from kernelcast.llm._wire import MOST_BODY_BYTES
from llm_faults import PRICES, QUESTION, complaints, faulty_run

pytestmark = pytest.mark.measures


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "FIRST_BACKOFF_S", 0.01)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_as_its_table_says(name: str) -> None:
    assert complaints(name) == []


def test_the_bench_would_complain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that took every failure for the model's word would be found out."""
    monkeypatch.setattr("kernelcast.llm.client.ANSWERED", frozenset({"bad_content", "ok"}))
    assert complaints("truncated JSON") == ["attempts (1, 1), not (2, 2)"]


@pytest.mark.parametrize("name", ["body of 50 MB", "chunks of 50 MB", "500 of 50 MB"])
def test_a_huge_body_is_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def connect_and_hold_little(*arguments: Any, **options: Any) -> socket.socket:
        connection = connect(*arguments, **options)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        return connection

    monkeypatch.setattr(socket, "create_connection", connect_and_hold_little)
    with BadServer(lambda _: name) as server:
        endpoint = Endpoint(base_url=server.base_url, model="bad", max_attempts=1)
        Client(endpoint).ask(QUESTION)
    # What the server's socket holds is on its way already when the client has had enough.
    assert server.sent_bytes < MOST_BODY_BYTES + 12 * 2**20 < BIG_BODY_BYTES


def test_after_any_fault_the_next_answer_is_fine() -> None:
    passing = [
        name for name, fault in FAULTS.items() if fault.outcome not in ("ModelError", "timeout")
    ]
    with BadServer(lambda number: passing[number // 2] if number % 2 == 0 else "") as server:
        client = Client(Endpoint(base_url=server.base_url, model="bad", max_attempts=1, **PRICES))
        for name in passing:
            assert client.ask(QUESTION).outcome == FAULTS[name].outcome, name
            assert client.ask(QUESTION).outcome == "ok", f"after {name}"


def test_a_run_on_a_faulty_endpoint_ends_with_an_exact_ledger(tmp_path: Path) -> None:
    figures = faulty_run(tmp_path, candidates=30, seed=3)
    assert figures["run_completed"]
    assert figures["run_faults"] >= 5
    assert figures["run_usd"] > 0
    assert figures["ledger_error_usd"] == 0
    assert figures["run_left_reserved_usd"] == 0
