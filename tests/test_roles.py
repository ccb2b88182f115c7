"""What real roles of a real server may do."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest
from sqlalchemy.exc import ProgrammingError

from kernelcast.errors import StoreError
from kernelcast.roles import RIGHTS, Duty
from kernelcast.store import Store
from kernelcast.tables import metadata
from kernelcast.testing import StoreContract, example_history
from tests.postgres import Server

_numbers = itertools.count()


def new_role(server: Server, owners_url: str, duty: Duty) -> str:
    """Return the URL of a store for a new role, named as carelessly as names may be."""
    role = f"{duty}-{next(_numbers)}"
    with server.connect() as connection:
        connection.execute(f'CREATE ROLE "{role}" LOGIN'.encode())
    with Store.open(owners_url) as store:
        store.grant(role, duty)
    return owners_url.replace("postgres@", f"{role}@")


class TestStoreOfATenant(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: Server) -> None:
        def url() -> str:
            return new_role(postgres_server, postgres_server.database(), "tenant")

        self.urls = defaultdict[Path, str](url)

    def make(self, folder: Path) -> Store:
        return Store.open(self.urls[folder])


def refused(store: Store, statement: str) -> None:
    """Check that the server refuses a statement for lack of rights."""
    with (
        pytest.raises(
            ProgrammingError, match=r"permission denied|row-level security|must be owner"
        ),
        store.engine.begin() as connection,
    ):
        connection.exec_driver_sql(statement)


def test_a_tenant_sees_and_writes_only_its_own_runs(postgres_server: Server) -> None:
    url = postgres_server.database()
    ours, theirs = (new_role(postgres_server, url, "tenant") for _ in range(2))
    events, kernels = example_history()
    with Store.open(ours) as our_store, Store.open(theirs) as their_store:
        run = our_store.create_run("ours")
        run.append(events, kernels)
        run.hold()
        their_store.create_run("theirs").append(events, kernels)
        assert [info.name for info in our_store.runs()] == ["ours"]
        assert [info.name for info in their_store.runs()] == ["theirs"]
        with pytest.raises(StoreError, match="no run 'ours'"):
            their_store.open_run("ours")
        with pytest.raises(StoreError, match="written to by another process"):
            their_store.create_run("ours").append(events, kernels)
        with their_store.engine.connect() as connection:
            for table in ("events", "candidates", "accounts", "entries"):
                rows = connection.exec_driver_sql(f"SELECT DISTINCT run_id FROM {table}").all()
                assert len(rows) == 1, table
            changed = connection.exec_driver_sql(
                f"UPDATE accounts SET cap = 0 WHERE run_id = {run._id}"
            )
            assert changed.rowcount == 0
        for statement in (
            f"INSERT INTO events VALUES ({run._id}, 999, 'x', 0, 0, '')",
            f"INSERT INTO entries VALUES ({run._id}, 'x', 'device_s', 1)",
            "INSERT INTO runs (name, created_at, tenant) VALUES ('x', 0, 'another')",
            "UPDATE events SET payload = ''",
            "DELETE FROM events",
            "SELECT * FROM events_0",
            "UPDATE measurements SET payload = ''",
            "ALTER TABLE runs DISABLE ROW LEVEL SECURITY",
        ):
            refused(their_store, statement)
    with Store.open(url) as owners:
        assert [info.name for info in owners.runs()] == ["ours", "theirs"]
        assert owners.open_run("ours").replay() == run.state


def test_a_worker_reads_kernels_and_nothing_else(postgres_server: Server) -> None:
    url = postgres_server.database()
    events, kernels = example_history()
    with Store.open(url) as store:
        store.create_run("r").append(events, kernels)
    with Store.open(new_role(postgres_server, url, "worker")) as store:
        assert store.kernels([kernel.id for kernel in kernels]) == kernels
        for table in metadata.tables:
            if table not in RIGHTS["worker"]:
                refused(store, f"SELECT * FROM {table}")
            refused(store, f"INSERT INTO {table} DEFAULT VALUES")
            refused(store, f"DELETE FROM {table}")
        refused(store, "UPDATE accounts SET spent = 0")
        refused(store, "UPDATE entries SET settled = 0")


def test_only_the_owner_signs_what_was_not_written_here(
    postgres_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.database()
    tenant = new_role(postgres_server, url, "tenant")
    with Store.open(tenant) as store:
        store.create_run("r").append(*example_history())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with (
        Store.open(tenant) as store,
        pytest.raises(StoreError, match="the owner of the tables can"),
    ):
        store.open_run("r").sign()
    with Store.open(url) as owners:
        owners.open_run("r").sign()
    with Store.open(tenant) as store:
        assert store.open_run("r").is_own


def test_a_tenant_can_become_a_worker(postgres_server: Server) -> None:
    url = postgres_server.database()
    tenant = new_role(postgres_server, url, "tenant")
    with Store.open(url) as store:
        store.grant(tenant.partition("://")[2].partition("@")[0], "worker")
    with Store.open(tenant) as store:
        refused(store, "INSERT INTO accounts DEFAULT VALUES")


def test_every_table_has_its_rights(tmp_path: Path) -> None:
    assert set(RIGHTS["tenant"]) == {*metadata.tables, "alembic_version"}
    with Store.open(tmp_path / "s.db") as store, pytest.raises(StoreError, match="has no roles"):
        store.grant("worker", "worker")
