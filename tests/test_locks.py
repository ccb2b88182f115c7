"""Locks of runs on a server; those of a file are tested with two processes, see test_cli_runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from kernelcast.locks import ServerLocks
from kernelcast.store import Store
from tests.postgres import Server


@pytest.fixture
def pair(postgres_server: Server) -> Iterator[tuple[ServerLocks, ServerLocks]]:
    """The locks of two sessions on one database."""
    url = postgres_server.database()
    with Store.open(url) as first, Store.open(url) as second:
        ours, theirs = ServerLocks(first.engine), ServerLocks(second.engine)
        yield ours, theirs
        ours.close()
        theirs.close()


def test_a_lock_is_given_to_one_session_and_back_at_once(
    pair: tuple[ServerLocks, ServerLocks],
) -> None:
    ours, theirs = pair
    assert ours.take(1)
    assert ours.take(1)
    assert not theirs.take(1)
    assert theirs.take(2)
    assert ours.holder(1) is None
    assert (theirs.holder(1) or "").startswith("process ")
    assert theirs.holder(3) is None
    ours.release(1)
    ours.release(1)
    assert theirs.take(1)


def test_closing_gives_all_locks_back(pair: tuple[ServerLocks, ServerLocks]) -> None:
    ours, theirs = pair
    assert ours.take(1)
    ours.close()
    while theirs.holder(1) is not None:  # the server ends a session after its connection
        pass
    assert theirs.take(1)


def test_a_lock_is_lost_with_its_session_and_can_be_taken_again(
    pair: tuple[ServerLocks, ServerLocks],
) -> None:
    ours, theirs = pair
    assert ours.take(1)
    assert ours.take(2)
    with theirs._engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_terminate_backend(ours._backend, 60_000)))
    assert theirs.take(1)
    ours.release(2)
    assert ours.take(2)
    assert not ours.take(1)
