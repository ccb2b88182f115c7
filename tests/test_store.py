from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from kernelcast import ledger
from kernelcast import store as store_module
from kernelcast.errors import BudgetExceeded, StoreError
from kernelcast.events import (
    BudgetChanged,
    Decided,
    Event,
    Measured,
    Proposed,
    Reserved,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.store import SCHEMA_VERSION, Run, Store, metadata
from kernelcast.testing import StoreContract, example_history, make_kernel, synthetic_kernels
from kernelcast.types import Budget, Decision, Failure, FailureKind, Resource


class TestSqliteStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return Store.open(folder / "store.db")

    def damage(self, folder: Path) -> bool:
        execute(
            folder / "store.db",
            "UPDATE events SET payload = replace(payload, '\"request\":0', '\"request\":1') "
            "WHERE seq = 5",
        )
        return True


def execute(path: Path, statement: str) -> None:
    """Change the database behind the store's back."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount != 0
        connection.commit()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for the whole file; each test takes a new run of it."""
    with Store.open(tmp_path_factory.mktemp("store") / "store.db") as opened:
        yield opened


_names = (f"run {number}" for number in itertools.count())


def new_run(store: Store, budget: Budget | None = None) -> Run:
    run = store.create_run(next(_names))
    events, kernels = example_history()
    started = events[0]
    assert isinstance(started, RunStarted)
    run.append([started.model_copy(update={"budget": budget or Budget()})], kernels)
    return run


@pytest.mark.parametrize(("kind", "kept"), [("crash", True), ("timeout", False)])
def test_a_timeout_is_not_kept_for_other_runs(store: Store, kind: str, kept: bool) -> None:
    run = new_run(store)
    event = next(e for e in example_history()[0] if isinstance(e, Measured))
    kernel = make_kernel(f"failed by {kind}")
    failed = event.measurement.model_copy(
        update={
            "kernel_id": kernel.id,
            "timing": None,
            "failure": Failure(kind=FailureKind(kind), message="too busy"),
        }
    )
    decision = Decision(action="measure", score=0.0, reason="a test")
    proposed = Proposed(
        kernel_id=kernel.id, parent_id=run.state.incumbent.kernel_id, proposer="fake", request=0
    )
    run.append([proposed, Decided(kernel_id=kernel.id, decision=decision)], [kernel])
    run.append([Measured(measurement=failed, purpose="search")])
    key = (failed.kernel_id, failed.problem_id, failed.device_id, failed.toolchain)
    assert (store.cached_measurement(*key) is not None) == kept


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
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == SCHEMA_VERSION


def test_a_store_of_a_later_version_is_refused_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Store.open(path).close()
    execute(path, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"9999.*upgrade kernelcast"):
        Store.open(path)


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


# ----------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("seq", [0, 3, 20])
def test_one_changed_byte_is_found(tmp_path: Path, seq: int) -> None:
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        run = store.create_run("r")
        run.append(*example_history())
    # The last byte of an event is its closing brace; a blank before it is still valid JSON.
    execute(
        path,
        "UPDATE events SET payload = substr(payload, 1, length(payload) - 1) || ' }' "
        f"WHERE seq = {seq}",
    )
    with Store.open(path) as store, pytest.raises(StoreError, match=f"damaged at event {seq}"):
        store.open_run("r")


def test_a_missing_event_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.create_run("r").append(*example_history())
    execute(path, "DELETE FROM events WHERE seq = 4")
    with Store.open(path) as store, pytest.raises(StoreError, match="damaged at event 5"):
        store.open_run("r")


def test_a_changed_source_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    events, kernels = example_history()
    with Store.open(path) as store:
        store.create_run("r").append(events, kernels)
    first, second = kernels[1:3]
    execute(
        path,
        "UPDATE blobs SET data = (SELECT b.data FROM blobs b JOIN kernels k ON k.source_hash = "
        f"b.hash WHERE k.id = '{second.id}') WHERE hash = "
        f"(SELECT source_hash FROM kernels WHERE id = '{first.id}')",
    )
    with Store.open(path) as store:
        assert store.kernel(second.id) == second
        with pytest.raises(StoreError, match="damaged"):
            store.kernel(first.id)


# -------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("every", [1, 3, 10])
def test_opening_by_a_snapshot_is_replaying(
    store: Store, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(store_module, "SNAPSHOT_EVERY", every)
    run = store.create_run(next(_names))
    events, kernels = example_history()
    run.append(events[:1], kernels)
    for event in events[1:]:
        run.append([event])
    with store.engine.connect() as connection:
        query = sa.select(store_module.snapshots.c.seq).join(store_module.runs)
        taken = connection.scalars(query.where(store_module.runs.c.name == run.name)).all()
    assert len(taken) == 1
    assert taken[0] > len(events) - every
    again = store.open_run(run.name)
    assert again.state == run.state == again.replay()
    again.append([Voided(entry="search-5")])
    assert again.replay() == again.state == store.open_run(run.name).state


def test_opening_reads_only_what_came_after_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SNAPSHOT_EVERY", 10)
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        run = store.create_run("r")
        run.append(*example_history())
    execute(path, "UPDATE events SET payload = '' WHERE seq = 2")
    with Store.open(path) as store:
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
    assert len(run.seen(kernel.id for kernel in kernels)) == 1_000


def test_schema_and_ledger_compile_for_postgresql() -> None:
    """Nothing here is SQLite's alone; running on a PostgreSQL server is its own issue."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in store_module.metadata.sorted_tables:
        assert table.name in str(CreateTable(table).compile(dialect=dialect))
    statements = (
        *(ledger._SET_CAP, ledger._RESERVE, ledger._SETTLE_ACCOUNT),
        *(ledger._SETTLE_ENTRY, ledger._OPEN_ENTRY),
    )
    for statement in statements:
        assert str(statement.compile(dialect=dialect))


def test_a_schema_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may die while it makes the tables."""
    from alembic import command

    upgrade = command.upgrade

    def cut_short(*arguments: Any) -> None:
        upgrade(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "upgrade", cut_short)
    with pytest.raises(KeyboardInterrupt):
        Store.open(tmp_path / "store.db")
    monkeypatch.undo()
    with Store.open(tmp_path / "store.db") as store:
        assert store.runs() == []
