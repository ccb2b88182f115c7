from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from kernelcast import run as run_module
from kernelcast import store as store_module
from kernelcast import tables
from kernelcast.errors import BudgetExceeded, StoreError
from kernelcast.events import (
    BudgetChanged,
    Decided,
    Event,
    Leased,
    Measured,
    Proposed,
    Reserved,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.run import KernelClaim, Run
from kernelcast.store import SCHEMA_VERSION, Store
from kernelcast.testing import StoreContract, example_history, make_kernel, synthetic_kernels
from kernelcast.types import Budget, CacheKey, Decision, Failure, FailureKind, Resource
from tests.postgres import Server

DAMAGE = (
    "UPDATE events SET payload = replace(payload, '\"request\":0', '\"request\":1') WHERE seq = 5"
)


class TestSqliteStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return Store.open(folder / "store.db")

    def damage(self, folder: Path) -> bool:
        execute(str(folder / "store.db"), DAMAGE)
        return True


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: Server) -> None:
        self.databases = defaultdict[Path, str](postgres_server.database)

    def make(self, folder: Path) -> Store:
        return Store.open(self.databases[folder])

    def damage(self, folder: Path) -> bool:
        execute(self.databases[folder], DAMAGE)
        return True


def execute(location: str, statement: str) -> None:
    """Change the database behind the store's back."""
    with Store.open(location) as store, store.engine.begin() as connection:
        assert connection.exec_driver_sql(statement).rowcount != 0


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """One store for the whole file, on each engine; each test takes a new run of it."""
    if request.param == "sqlite":
        location = str(tmp_path_factory.mktemp("store") / "store.db")
    else:
        location = request.getfixturevalue("postgres_server").database()
    with Store.open(location) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a database without a table, on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: Server = request.getfixturevalue("postgres_server")
    return server.database(migrated=False)


_names = (f"run {number}" for number in itertools.count())


def new_run(store: Store, budget: Budget | None = None) -> Run:
    run = store.create_run(next(_names))
    events, kernels = example_history()
    started = events[0]
    assert isinstance(started, RunStarted)
    run.append([started.model_copy(update={"budget": budget or Budget()})], kernels)
    return run


def choose(run: Run, source: str) -> str:
    """Let a run decide to measure a kernel, and return the kernel's id."""
    kernel = make_kernel(source)
    decision = Decision(action="measure", score=0.0, reason="a test")
    proposed = Proposed(
        kernel_id=kernel.id, parent_id=run.state.incumbent.kernel_id, proposer="fake", request=0
    )
    run.append([proposed, Decided(kernel_id=kernel.id, decision=decision)], [kernel])
    return kernel.id


@pytest.mark.parametrize(("kind", "kept"), [("crash", True), ("timeout", False)])
def test_a_timeout_is_not_kept_for_other_runs(store: Store, kind: str, kept: bool) -> None:
    run = new_run(store)
    event = next(e for e in example_history()[0] if isinstance(e, Measured))
    failed = event.measurement.model_copy(
        update={
            "kernel_id": choose(run, f"failed by {kind}"),
            "timing": None,
            "failure": Failure(kind=FailureKind(kind), message="too busy"),
        }
    )
    run.append([Measured(measurement=failed, purpose="search")])
    cached = store.cached_measurement(CacheKey.of(failed))
    assert (cached is not None) == kept


# ----------------------------------------------------------------------------------- ledger


@st.composite
def ledger_steps(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """What is done, to which of the open entries, and how much of both resources."""
    step = st.tuples(
        st.sampled_from(["reserve", "reserve", "settle", "void", "settle closed", "rebudget"]),
        st.integers(0, 9),
        st.integers(0, 4),
        st.integers(0, 40),
    )
    return draw(st.lists(step, min_size=1, max_size=25))


@settings(max_examples=60, deadline=None)
@given(steps=ledger_steps(), measurements=st.integers(0, 8), device_s=st.integers(0, 60))
def test_whatever_is_reserved_settled_and_voided_the_ledger_holds(
    store: Store, steps: list[tuple[str, int, int, int]], measurements: int, device_s: int
) -> None:
    run = new_run(store, Budget(measurements=measurements, device_s=device_s / 10))
    spent = dict.fromkeys((Resource.MEASUREMENTS, Resource.DEVICE_S), 0.0)
    still_open: dict[str, dict[Resource, float]] = {}
    closed: list[str] = []
    for number, (action, pick, count, tenths) in enumerate(steps):
        amounts = {Resource.MEASUREMENTS: float(count), Resource.DEVICE_S: tenths / 10}
        entry = list(still_open)[pick % len(still_open)] if still_open else None
        if action == "reserve":
            event: Event = Reserved(entry=f"entry {number}", spend=amounts)
            fits = all(amount <= run.state.left(key) + 1e-9 for key, amount in amounts.items())
            if fits:
                run.append([event])
                still_open[f"entry {number}"] = amounts
            else:
                with pytest.raises(BudgetExceeded):
                    run.append([event])
        elif action == "settle" and entry is not None:
            cost = {
                key: min(amounts[key], promised) for key, promised in still_open.pop(entry).items()
            }
            run.append([Settled(entry=entry, spend=cost)])
            closed.append(entry)
            spent = {key: spent[key] + cost[key] for key in spent}
        elif action == "void" and entry is not None:
            run.append([Voided(entry=entry)])
            closed.append(entry)
            del still_open[entry]
        elif action == "settle closed" and closed:
            with pytest.raises(StoreError, match="not open"):
                run.append([Settled(entry=closed[pick % len(closed)], spend=amounts)])
        elif action == "rebudget":
            wider = run.state.budget.model_copy(
                update={"measurements": (run.state.budget.measurements or 0) + count}
            )
            run.append([BudgetChanged(budget=wider)])
        assert_ledger(run, spent, still_open)
    assert run.replay() == run.state
    assert store.open_run(run.name).state == run.state


def assert_ledger(
    run: Run, spent: dict[Resource, float], still_open: dict[str, dict[Resource, float]]
) -> None:
    for resource, account in run.ledger().items():
        promised = sum(entry.get(resource, 0.0) for entry in still_open.values())
        assert account.spent == pytest.approx(spent.get(resource, 0.0), abs=1e-9)
        assert account.reserved == pytest.approx(promised, abs=1e-9)
        assert account.spent == pytest.approx(run.state.spent.get(resource, 0.0), abs=1e-9)
        assert account.reserved == pytest.approx(run.state.reserved(resource), abs=1e-9)
        assert account.cap == run.state.budget.caps().get(resource)
        if account.cap is not None:
            assert account.spent + account.reserved <= account.cap + 1e-6


def test_runs_have_ledgers_of_their_own(store: Store) -> None:
    first, second = (new_run(store, Budget(measurements=1)) for _ in range(2))
    for run in (first, second):
        run.append([Reserved(entry="the same name", spend={Resource.MEASUREMENTS: 1})])
    first.append([Settled(entry="the same name", spend={Resource.MEASUREMENTS: 1})])
    assert second.ledger()[Resource.MEASUREMENTS].reserved == 1.0
    assert second.ledger()[Resource.MEASUREMENTS].spent == 0.0


def test_a_refusal_names_what_is_spent(store: Store) -> None:
    run = new_run(store, Budget(device_s=1.0))
    with pytest.raises(BudgetExceeded, match="2 device_s"):
        run.append([Reserved(entry="e", spend={Resource.DEVICE_S: 2.0})])


# ----------------------------------------------------------------------------------- schema


def test_the_migrations_lead_to_the_schema_in_the_code(store: Store) -> None:
    with store.engine.connect() as connection:
        options = {"compare_type": True, "include_name": is_no_partition}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == SCHEMA_VERSION


def is_no_partition(name: str | None, kind: str, _parents: Any) -> bool:
    return kind != "table" or not re.search(r"_\d+$", name or "")


def test_a_migration_keeps_all_and_can_be_undone(tmp_path: Path, empty: str) -> None:
    events, kernels = example_history()
    with Store.open(tmp_path / "present.db") as present:
        run = present.create_run("r")
        run.append(events, kernels)
        rows = rows_of(present.engine)
    engine = store_module._engine(empty if "://" in empty else f"sqlite:///{empty}")
    store_module._migrate(engine, "0001")
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for table in tables.sorted_tables:
            for row in rows.get(table.name, []):
                known = {name: value for name, value in row.items() if name in table.columns}
                connection.execute(table.insert(), known)
    first = rows_of(engine)
    assert rows.pop("claims") == []  # the first schema has none
    for row in rows["entries"]:
        row["lease"] = None  # nor this
    for row in rows["measurements"]:
        row["protocol"] = "pairs-1"  # the only one then
    for row in itertools.chain(*rows.values()):
        row.update({name: None for name in row if name == "mac"})  # nor signatures
        row.update({name: "" for name in row if name == "signer"})
    assert {name: len(first[name]) for name in rows} == {name: len(rows[name]) for name in rows}
    with Store.open(empty) as upgraded:
        again = upgraded.open_run("r")
        assert again.replay() == again.state == run.state
        assert again.kernels([kernel.id for kernel in kernels]) == kernels
        assert again.origin == "earlier"
        for row in (present_rows := rows_of(upgraded.engine))["runs"]:
            row["tenant"] = None  # a server names the role that upgraded
        assert present_rows == {**rows, "claims": []}
    store_module._migrate(engine, "0001")
    assert rows_of(engine) == first
    engine.dispose()


def rows_of(engine: sa.Engine) -> dict[str, list[dict[str, Any]]]:
    """All rows of each table, in the order of their keys."""
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [
                dict(row._mapping)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in tables.sorted_tables
            if is_no_partition(table.name, "table", None) and table.name != "alembic_version"
        }


def test_ids_have_64_bits_on_a_server(postgres_server: Server) -> None:
    with Store.open(postgres_server.database()) as store:
        with store.engine.begin() as connection:
            connection.execute(sa.text("SELECT setval('runs_id_seq', 10000000000)"))
        run = store.create_run("a" * 200)
        run.append(*example_history())
        run.hold()
        assert store.open_run(run.name).replay() == run.state


def test_a_store_of_a_later_version_is_refused_with_the_fix(location: str) -> None:
    execute(location, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"9999.*upgrade kernelcast"):
        Store.open(location)


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database " * 10)
    with pytest.raises(StoreError, match="not a kernelcast store"):
        Store.open(path)


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    Store.open(tmp_path / "deep" / "down" / "store.db").close()
    assert (tmp_path / "deep" / "down" / "store.db").exists()


def test_a_database_url_is_taken_as_it_is(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/by_url.db") as store:
        assert store.runs() == []
    assert (tmp_path / "by_url.db").exists()


def test_a_postgresql_url_needs_no_driver_and_its_password_is_never_shown(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.database().replace("@", ":secret@")
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        with Store.open(url.replace("postgresql", scheme, 1)) as store:
            assert store.engine.dialect.driver == "psycopg"
            assert store.path is None
    refused = {
        url.replace("test_", "absent_"): "does not exist.*create the database",
        url.replace("host=", "host=/nowhere"): "No such file.*start its server",
        "postgresql://me:secret@host:port/database": "cannot be read",
        "nosuchdb://me:secret@host/x": "driver is installed",
    }
    for location, message in refused.items():
        with pytest.raises(StoreError, match=f"(?s){message}") as raised:
            Store.open(location)
        assert "secret" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'kernelcast\[postgres\]'") as raised:
        Store.open(url)
    assert "secret" not in str(raised.value)


OPEN = """
import sys
from kernelcast.store import Store
sys.stdin.readline()
with Store.open(sys.argv[1]) as store:
    assert store.runs() == []
"""


def test_processes_that_open_an_empty_database_at_once_all_find_a_store(empty: str) -> None:
    command = [sys.executable, "-c", OPEN, empty]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0


def test_a_reading_that_is_abandoned_keeps_no_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_PAGE", 4)
    run = store.create_run(next(_names))
    events, kernels = example_history()
    run.append(events, kernels)
    assert list(run.events()) == events
    abandoned = [run.events() for _ in range(30)]  # more than the pool has connections
    for reading in abandoned:
        assert next(reading) == events[0]
        assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_connections_that_the_server_ended_are_replaced(postgres_server: Server) -> None:
    url = postgres_server.database()
    with Store.open(url) as store:
        run = new_run(store)
        with postgres_server.connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
                [store.engine.url.database],
            ).fetchall()
        assert ended
        run.append([Reserved(entry="after", spend={Resource.DEVICE_S: 1.0})])
        assert store.open_run(run.name).replay() == run.state


def test_runs_that_write_the_same_kernels_at_once_do_not_deadlock(location: str) -> None:
    rounds = [[make_kernel(f"int k{r}_{n};") for n in range(100)] for r in range(6)]
    together = Barrier(2)

    def write(turn: int) -> None:
        with Store.open(location) as store:
            for kernels in rounds:
                together.wait()
                try:
                    with store.engine.begin() as connection:
                        store._write_kernels(connection, kernels[::turn])
                except BaseException:
                    together.abort()  # the other thread would wait for ever
                    raise

    with ThreadPoolExecutor(2) as threads:
        for written in [threads.submit(write, turn) for turn in (1, -1)]:
            written.result()


# ------------------------------------------------------------------------ outages and claims


def test_a_connection_that_breaks_is_replaced(postgres_server: Server) -> None:
    url = postgres_server.database()
    with Store.open(url) as store:
        run = store.create_run("r")
        events, kernels = example_history()
        for event in events:
            run.append([event], kernels)
            with postgres_server.connect() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
        assert run.replay() == run.state
        assert list(run.events()) == events


def test_a_commit_whose_answer_is_lost_is_made_once(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server went away after it had committed: the group must not be written again."""
    with Store.open(postgres_server.database()) as store:
        losses = iter([True, False, True])
        begin = store.engine.begin

        @contextmanager
        def losing() -> Iterator[sa.Connection]:
            with begin() as connection:
                yield connection
            if next(losses, False):
                cause = Exception("server closed the connection unexpectedly")
                raise OperationalError("COMMIT", {}, cause, connection_invalidated=True)

        monkeypatch.setattr(store.engine, "begin", losing)
        monkeypatch.setattr(store_module, "_PAUSE_S", 0.0)
        run = store.create_run("r")
        events, kernels = example_history()
        run.append(events[:1], kernels)
        run.append(events[1:])
        monkeypatch.undo()
        assert list(run.events()) == events
        assert store.open_run("r").state == run.replay() == run.state


def claims(run: Run, key: CacheKey, entry: str, lease_s: float = 60.0) -> bool:
    """Claim a kernel, and return whether no other run has it."""
    leased = Leased(
        entry=entry, lease=1, attempt=1, purpose="search", kernel_id=key.kernel_id, device="d"
    )
    reserved = Reserved(entry=entry, spend={Resource.MEASUREMENTS: 1})
    run.stage([reserved, leased], claims=[KernelClaim(key, entry, lease_s)])
    run.commit()
    return entry not in run.contested


def test_a_kernel_is_claimed_by_one_run_at_a_time(store: Store) -> None:
    key = CacheKey("k" * 32, "p", "d", "t", "1", "screening")
    first, second = (new_run(store) for _ in range(2))
    entries = itertools.count()

    def claim(run: Run, lease_s: float = 60.0) -> bool:
        return claims(run, key, f"search-{next(entries)}", lease_s)

    assert not second.is_claimed(key)
    assert claim(first)
    assert second.is_claimed(key)
    assert not first.is_claimed(key)
    assert not claim(second)
    first.append([Voided(entry="search-0", lease=1)])
    assert not second.is_claimed(key)
    assert claim(second, lease_s=-1.0)
    assert not first.is_claimed(key), "a claim that has run out counts no more"
    second.renew_claims(60.0)
    assert first.is_claimed(key)
    second.renew_claims(-1.0)
    assert claim(first)


def test_a_kernel_that_was_measured_before_it_is_claimed_is_not_measured_again(
    store: Store,
) -> None:
    """The second run finds no result; the first one stores it; then the second one claims."""
    first, second = (new_run(store) for _ in range(2))
    event = next(e for e in example_history()[0] if isinstance(e, Measured))
    kernel_id = choose(first, "measured at last")
    measurement = event.measurement.model_copy(update={"kernel_id": kernel_id})
    key = CacheKey.of(measurement)
    assert claims(first, key, "search-0")
    assert store.cached_measurement(key) is None
    settled = Settled(entry="search-0", spend={Resource.MEASUREMENTS: 1}, lease=1)
    first.append([settled, Measured(measurement=measurement, purpose="search")])
    assert not second.is_claimed(key)
    assert not claims(second, key, "search-0")


# ----------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("seq", [0, 3, 20])
def test_one_changed_byte_is_found(location: str, seq: int) -> None:
    with Store.open(location) as store:
        run = store.create_run("r")
        run.append(*example_history())
    # The last byte of an event is its closing brace; a blank before it is still valid JSON.
    execute(
        location,
        "UPDATE events SET payload = substr(payload, 1, length(payload) - 1) || ' }' "
        f"WHERE seq = {seq}",
    )
    with Store.open(location) as store, pytest.raises(StoreError, match=f"damaged at event {seq}"):
        store.open_run("r")


def test_a_missing_event_is_found(location: str) -> None:
    with Store.open(location) as store:
        store.create_run("r").append(*example_history())
    execute(location, "DELETE FROM events WHERE seq = 4")
    with Store.open(location) as store, pytest.raises(StoreError, match="damaged at event 5"):
        store.open_run("r")


def test_a_changed_source_is_found(location: str) -> None:
    events, kernels = example_history()
    with Store.open(location) as store:
        store.create_run("r").append(events, kernels)
    first, second = kernels[1:3]
    execute(
        location,
        "UPDATE blobs SET data = (SELECT b.data FROM blobs b JOIN kernels k ON k.source_hash = "
        f"b.hash WHERE k.id = '{second.id}') WHERE hash = "
        f"(SELECT source_hash FROM kernels WHERE id = '{first.id}')",
    )
    with Store.open(location) as store:
        assert store.kernel(second.id) == second
        with pytest.raises(StoreError, match="damaged"):
            store.kernel(first.id)


# -------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("every", [1, 3, 10])
def test_opening_by_a_snapshot_is_replaying(
    store: Store, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(run_module, "SNAPSHOT_EVERY", every)
    run = store.create_run(next(_names))
    events, kernels = example_history()
    run.append(events[:1], kernels)
    for event in events[1:]:
        run.append([event])
    with store.engine.connect() as connection:
        query = sa.select(tables.snapshots.c.seq).join(tables.runs)
        taken = connection.scalars(query.where(tables.runs.c.name == run.name)).all()
    assert len(taken) == 1
    assert taken[0] > len(events) - every
    again = store.open_run(run.name)
    assert again.state == run.state == again.replay()
    again.append([Voided(entry="search-5")])
    assert again.replay() == again.state == store.open_run(run.name).state


def test_opening_reads_only_what_came_after_the_snapshot(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SNAPSHOT_EVERY", 10)
    with Store.open(location) as store:
        run = store.create_run("r")
        run.append(*example_history())
    execute(location, "UPDATE events SET payload = '' WHERE seq = 2")
    with Store.open(location) as store:
        again = store.open_run("r")
        assert again.state == run.state
        with pytest.raises(StoreError, match="damaged at event 2"):
            again.replay()


# ---------------------------------------------------------------------------------- kernels


def test_the_first_source_under_an_id_stays(store: Store) -> None:
    plain = make_kernel("void kernel() {}")
    commented = make_kernel("void kernel() {} // the same tokens")
    assert plain.id == commented.id
    run = new_run(store)
    run.append([Reserved(entry="a", spend={Resource.DEVICE_S: 0})], [plain])
    run.append([Reserved(entry="b", spend={Resource.DEVICE_S: 0})], [commented])
    assert store.kernel(plain.id) == plain


def test_a_duplicate_is_recorded_and_not_a_candidate(store: Store) -> None:
    run = new_run(store)
    (kernel,) = synthetic_kernels(1, seed=3)
    event = Proposed(kernel_id=kernel.id, parent_id="seed", proposer="fake", request=0)
    run.append([event.model_copy(update={"duplicate": True})])
    assert run.seen([kernel.id]) == set()
    run.append([event], [kernel])
    assert run.seen([kernel.id]) == {kernel.id}
    with pytest.raises(StoreError):
        run.append([event])


def test_a_thousand_kernels_can_be_looked_up_at_once(store: Store) -> None:
    run = new_run(store)
    kernels = synthetic_kernels(1_000)
    run.append(
        [
            Proposed(kernel_id=kernel.id, parent_id="seed", proposer="fake", request=0)
            for kernel in kernels
        ],
        kernels,
    )
    assert len(run.seen([kernel.id for kernel in kernels])) == 1_000


def test_a_schema_is_there_whole_or_not_at_all(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may die while it makes the tables."""
    from alembic import command

    upgrade = command.upgrade

    def cut_short(*arguments: Any) -> None:
        upgrade(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "upgrade", cut_short)
    with pytest.raises(KeyboardInterrupt):
        Store.open(empty)
    monkeypatch.undo()
    with Store.open(empty) as store:
        assert store.runs() == []
