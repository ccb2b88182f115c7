"""The one store: events, kernels and their blobs, the ledger and the measurement cache.

Events are the truth; everything else here is a projection written in the same transaction, so
that a crash leaves either all of it or none. Runs on SQLite today; the schema and the queries
hold to what PostgreSQL does too. Only this module and its migrations know SQLAlchemy.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import zstandard
from pydantic import ValidationError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError

from kernelcast.errors import BudgetExceeded, StoreError
from kernelcast.events import (
    EVENT,
    BudgetChanged,
    Event,
    Measured,
    Proposed,
    Reserved,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.state import State
from kernelcast.types import Budget, FailureKind, Kernel, Measurement, Resource, content_hash

DEFAULT_STORE = Path(".kernelcast/store.db")
SCHEMA_VERSION = "0001"
SNAPSHOT_EVERY = 5_000
_CAP_SLACK = 1e-9  # caps are sums of floats; a rounding error is not an overrun
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid

metadata = sa.MetaData()
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(120), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("crc", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("events_by_kind", "run_id", "kind", "seq"),
)
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("crc", sa.BigInteger, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
)
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("hash", sa.String(32), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
kernels = sa.Table(
    "kernels",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("language", sa.String(20), nullable=False),
    sa.Column("source_hash", sa.String(32), nullable=False),
    sa.Column("parameters", sa.Text, nullable=True),
)
candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("kernel_id", sa.String(32), primary_key=True),
)
accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("cap", sa.Float, nullable=True),
    sa.Column("spent", sa.Float, nullable=False),
    sa.Column("reserved", sa.Float, nullable=False),
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("entry", sa.String(80), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("reserved", sa.Float, nullable=False),
    sa.Column("settled", sa.Float, nullable=True),
)
measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("kernel_id", sa.String(32), primary_key=True),
    sa.Column("problem_id", sa.String(32), primary_key=True),
    sa.Column("device_id", sa.String(120), primary_key=True),
    sa.Column("toolchain", sa.String(120), primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
)


_CACHE_KEY = (
    measurements.c.kernel_id,
    measurements.c.problem_id,
    measurements.c.device_id,
    measurements.c.toolchain,
)
# Ledger statements are built once: building them costs more than running them.
_OF_ACCOUNT = (
    accounts.c.run_id == sa.bindparam("run"),
    accounts.c.resource == sa.bindparam("of"),
)
_RESERVE = (
    accounts.update()
    .where(
        *_OF_ACCOUNT,
        sa.or_(
            accounts.c.cap.is_(None),
            accounts.c.spent + accounts.c.reserved + sa.bindparam("amount", type_=sa.Float)
            <= accounts.c.cap + _CAP_SLACK,
        ),
    )
    .values(reserved=accounts.c.reserved + sa.bindparam("amount", type_=sa.Float))
)
_SETTLE_ACCOUNT = (
    accounts.update()
    .where(*_OF_ACCOUNT)
    .values(
        reserved=accounts.c.reserved - sa.bindparam("promised", type_=sa.Float),
        spent=accounts.c.spent + sa.bindparam("amount", type_=sa.Float),
    )
)
_OPEN_ENTRY = sa.select(entries.c.resource, entries.c.reserved).where(
    entries.c.run_id == sa.bindparam("run"),
    entries.c.entry == sa.bindparam("of"),
    entries.c.settled.is_(None),
)
_SETTLE_ENTRY = (
    entries.update()
    .where(
        entries.c.run_id == sa.bindparam("run"),
        entries.c.entry == sa.bindparam("name"),
        entries.c.resource == sa.bindparam("of"),
    )
    .values(settled=sa.bindparam("amount", type_=sa.Float))
)


@dataclass(frozen=True)
class Account:
    """What a run has spent and promised of one resource."""

    cap: float | None
    spent: float
    reserved: float


@dataclass(frozen=True)
class RunInfo:
    """A row of the list of runs."""

    name: str
    created_at: float


class Store:
    """A database of runs. `Store.open` takes a path (SQLite) or a database URL."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._holders_fd: int | None = None
        insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._insert_new = {
            table: insert(table).on_conflict_do_nothing()
            for table in (blobs, kernels, measurements)
        }
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor()

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True) -> Store:
        """Open a store, at the schema this version of kernelcast writes.

        Args:
            location: A file (SQLite) or a database URL.
            create: Whether to make a file that does not exist yet.

        Raises:
            StoreError: There is no such store, it cannot be written, or it is something else.
        """
        text = str(location)
        if "://" not in text:
            text = f"sqlite:///{_store_file(Path(text), create=create)}"
        try:
            engine = sa.create_engine(text)
        except (ArgumentError, ModuleNotFoundError) as error:
            raise StoreError(
                f"{location!s} cannot be opened ({error}): name a file, or a database URL whose "
                "driver is installed"
            ) from error
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _configure_sqlite)
        try:
            _migrate(engine, text)
        except DatabaseError as error:
            raise StoreError(
                f"{location!s} is not a kernelcast store, or cannot be written ({error.orig}): "
                "name another one with --store"
            ) from error
        return cls(engine)

    @property
    def path(self) -> Path | None:
        """The store's file; None for a database server."""
        database = self.engine.url.database
        return Path(database) if database and self.engine.dialect.name == "sqlite" else None

    def close(self) -> None:
        """Give back the connections, and let go of the runs that are held."""
        self.engine.dispose()
        if self._holders_fd is not None:
            os.close(self._holders_fd)
            self._holders_fd = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------- runs

    def create_run(self, name: str) -> Run:
        """A new run; it is in the store from its first append on."""
        with self.engine.connect() as connection:
            if connection.scalar(sa.select(runs.c.id).where(runs.c.name == name)) is not None:
                raise StoreError(f"there is a run {name!r} already: choose another name")
        return Run(self, None, name)

    def open_run(self, name: str) -> Run:
        """An existing run at the state its events fold to."""
        with self.engine.connect() as connection:
            run_id = connection.scalar(sa.select(runs.c.id).where(runs.c.name == name))
        if run_id is None:
            known = ", ".join(info.name for info in self.runs()[-5:]) or "none yet"
            raise StoreError(f"no run {name!r} in this store; the latest: {known}")
        run = Run(self, run_id, name)
        run.load()
        return run

    def find_run(self, name: str) -> str:
        """The name of the run that `name` means: a name, a unique prefix of one, or "latest"."""
        names = [info.name for info in self.runs()]
        if name in names:
            return name
        if name == "latest" and names:
            return names[-1]
        matches = [run for run in names if run.startswith(name)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise StoreError(f"{name!r} may be {' or '.join(matches[-5:])}: write more of it")
        known = ", ".join(names[-5:]) or "none yet: kernelcast search softmax"
        raise StoreError(f"no run {name!r} in this store; the latest: {known}")

    def runs(self) -> list[RunInfo]:
        """Every run, oldest first."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(runs.c.name, runs.c.created_at).order_by(runs.c.id))
            return [RunInfo(row.name, row.created_at) for row in rows]

    def _holders(self) -> int | None:
        """Descriptor of the file whose bytes are locked, one for each run; None without a file.

        The lock of a process ends with the process, so a killed search holds nothing.
        """
        if self._holders_fd is None and self.path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            with suppress(OSError):  # a store that can only be read is held by no process
                self._holders_fd = os.open(f"{self.path}-runs", flags, 0o644)
        return self._holders_fd

    # --------------------------------------------------------------------- kernels and times

    def kernel(self, kernel_id: str) -> Kernel:
        """A stored kernel with its source."""
        return self.kernels([kernel_id])[0]

    def kernels(self, ids: Sequence[str]) -> list[Kernel]:
        """Stored kernels with their sources, in the order of the ids."""
        query = sa.select(kernels, blobs.c.data).join(blobs, blobs.c.hash == kernels.c.source_hash)
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(kernels.c.id.in_(ids)))
            stored = {row.id: self._kernel(row) for row in rows}
        if missing := [key for key in ids if key not in stored]:
            raise StoreError(f"the store holds no kernel {missing[0]}")
        return [stored[key] for key in ids]

    def _kernel(self, row: Any) -> Kernel:
        data = self._decompressor.decompress(row.data)
        if content_hash(data) != row.source_hash:
            raise StoreError(f"the source of kernel {row.id} is damaged: restore the store")
        return Kernel(
            id=row.id,
            language=row.language,
            source=data.decode(),
            parameters=json.loads(row.parameters) if row.parameters is not None else None,
        )

    def cached_measurement(
        self, kernel_id: str, problem_id: str, device_id: str, toolchain: str
    ) -> Measurement | None:
        """What any run has measured of this kernel here, so that nobody pays for it twice."""
        key = (kernel_id, problem_id, device_id, toolchain)
        matches = [column == value for column, value in zip(_CACHE_KEY, key, strict=True)]
        with self.engine.connect() as connection:
            payload = connection.scalar(sa.select(measurements.c.payload).where(*matches))
        return Measurement.model_validate_json(payload) if payload else None

    def _write_kernels(self, connection: sa.Connection, new: Sequence[Kernel]) -> None:
        sources = [(content_hash(kernel.source), kernel) for kernel in new]
        connection.execute(
            self._insert_new[blobs],
            [
                {"hash": digest, "data": self._compressor.compress(kernel.source.encode())}
                for digest, kernel in sources
            ],
        )
        connection.execute(
            self._insert_new[kernels],
            [
                {
                    "id": kernel.id,
                    "language": kernel.language,
                    "source_hash": digest,
                    "parameters": None
                    if kernel.parameters is None
                    else json.dumps(kernel.parameters),
                }
                for digest, kernel in sources
            ],
        )


class Run:
    """One run's log with the state it folds to. One writer at a time; a second is refused."""

    def __init__(self, store: Store, run_id: int | None, name: str) -> None:
        self.store = store
        self.name = name
        self._id = run_id
        self.state = State()
        self._crc = 0
        self._snapshot_seq = 0

    # ------------------------------------------------------------------------------- holding

    def hold(self) -> None:
        """Keep other processes from writing to this run, until the store is closed.

        Raises:
            StoreError: Another process holds the run.
        """
        fd = self.store._holders()
        if fd is None or self._id is None:
            return
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._id)
        except OSError as error:
            raise StoreError(
                f"run {self.name!r} is running: process {self.holder()} holds it. Wait until it "
                "ends, or stop it with Ctrl-C there"
            ) from error

    def release(self) -> None:
        """Let other processes write to this run again."""
        fd = self.store._holders()
        if fd is not None and self._id is not None:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, self._id)

    def holder(self) -> int | None:
        """Id of another process that holds this run; None where there is none."""
        fd = self.store._holders()
        if fd is None or self._id is None:
            return None
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._id, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)

    # ------------------------------------------------------------------------------- writing

    def append(self, new: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        """Write events, with the kernels they name, durably and all at once; then fold them.

        Raises `BudgetExceeded`, having written nothing, where a reservation would pass a cap.
        """
        if not new:
            return
        rows: list[dict[str, Any]] = []
        crc, seq, now = self._crc, self.state.events, time.time()
        for event in new:
            payload = event.model_dump_json()
            crc = zlib.crc32(payload.encode(), crc)
            rows.append(
                {
                    "seq": seq,
                    "kind": event.kind,
                    "at": now,
                    "crc": crc,
                    "payload": payload,
                }
            )
            seq += 1
        folding = False
        try:
            with self.store.engine.begin() as connection:
                run_id = self._id if self._id is not None else self._create(connection)
                connection.execute(events.insert(), [{"run_id": run_id, **row} for row in rows])
                if kernels:
                    self.store._write_kernels(connection, kernels)
                self._project(connection, run_id, new)
                folding = True
                for event in new:
                    self.state.apply(event)
        except BaseException as error:
            if folding:
                # The state is ahead of the store, or half-way: only the store knows the truth.
                self.load()
            if isinstance(error, IntegrityError):
                raise StoreError(
                    f"run {self.name!r} was written to by another process, or an entry was used "
                    f"twice: open the run again ({error.orig})"
                ) from error
            if isinstance(error, KeyError):
                raise StoreError(f"an event names {error}, which the run does not have") from error
            raise
        self._id, self._crc = run_id, crc
        if self.state.events - self._snapshot_seq >= SNAPSHOT_EVERY:
            self._snapshot()

    def _create(self, connection: sa.Connection) -> int:
        row = {"name": self.name, "created_at": time.time()}
        key = connection.execute(runs.insert().values(**row)).inserted_primary_key
        assert key is not None
        return int(key[0])

    def _project(self, connection: sa.Connection, run_id: int, new: Sequence[Event]) -> None:
        fresh: list[dict[str, Any]] = []
        for event in new:
            match event:
                case Proposed(duplicate=False):
                    fresh.append({"run_id": run_id, "kernel_id": event.kernel_id})
                case RunStarted() | BudgetChanged():
                    self._set_caps(connection, run_id, event.budget)
                case Reserved():
                    self._reserve(connection, run_id, event)
                case Settled():
                    self._close(connection, run_id, event.entry, {**event.spend})
                case Voided():
                    self._close(connection, run_id, event.entry, {})
                case Measured(purpose="search", cached=False) if not _may_be_busy(
                    event.measurement
                ):
                    measurement = event.measurement
                    values = {
                        column.name: getattr(measurement, column.name) for column in _CACHE_KEY
                    }
                    connection.execute(
                        self.store._insert_new[measurements],
                        [{**values, "payload": measurement.model_dump_json()}],
                    )
        if fresh:
            connection.execute(candidates.insert(), fresh)

    def _set_caps(self, connection: sa.Connection, run_id: int, budget: Budget) -> None:
        caps = budget.caps()
        for resource in Resource:
            cap = caps.get(resource)
            key = (accounts.c.run_id == run_id, accounts.c.resource == resource.value)
            updated = connection.execute(accounts.update().where(*key).values(cap=cap))
            if updated.rowcount == 0:
                connection.execute(
                    accounts.insert().values(
                        run_id=run_id, resource=resource.value, cap=cap, spent=0.0, reserved=0.0
                    )
                )

    def _reserve(self, connection: sa.Connection, run_id: int, event: Reserved) -> None:
        if not event.spend:
            raise StoreError(f"entry {event.entry!r} reserves nothing: name what it may spend")
        for resource, amount in event.spend.items():
            key = {"run": run_id, "of": resource.value}
            if connection.execute(_RESERVE, {**key, "amount": amount}).rowcount == 0:
                raise BudgetExceeded(f"reserving {amount:g} {resource} would pass the cap")
        connection.execute(
            entries.insert(),
            [
                {"run_id": run_id, "entry": event.entry, "resource": resource, "reserved": amount}
                for resource, amount in event.spend.items()
            ],
        )

    def _close(
        self, connection: sa.Connection, run_id: int, entry: str, spend: dict[Resource, float]
    ) -> None:
        key = {"run": run_id, "of": entry}
        rows = connection.execute(_OPEN_ENTRY, key).all()
        unreserved = set(spend) - {Resource(row.resource) for row in rows}
        if not rows or unreserved:
            raise StoreError(
                f"entry {entry!r} is not open for {sorted(unreserved) or 'any resource'}: "
                "it was settled or voided before, or never reserved"
            )
        settled = [
            {
                "run": run_id,
                "of": row.resource,
                "name": entry,
                "promised": row.reserved,
                "amount": spend.get(Resource(row.resource), 0.0),
            }
            for row in rows
        ]
        connection.execute(_SETTLE_ENTRY, settled)
        connection.execute(_SETTLE_ACCOUNT, settled)

    def _snapshot(self) -> None:
        state = self.store._compressor.compress(self.state.model_dump_json().encode())
        with self.store.engine.begin() as connection:
            connection.execute(snapshots.delete().where(snapshots.c.run_id == self._id))
            connection.execute(
                snapshots.insert().values(
                    run_id=self._id, seq=self.state.events, crc=self._crc, state=state
                )
            )
        self._snapshot_seq = self.state.events

    # ------------------------------------------------------------------------------- reading

    def load(self) -> None:
        """Set the state from the last snapshot and the events after it."""
        self.state, self._crc, self._snapshot_seq = State(), 0, 0
        with self.store.engine.connect() as connection:
            row = connection.execute(
                sa.select(snapshots).where(snapshots.c.run_id == self._id)
            ).one_or_none()
        if row is not None:
            # A damaged snapshot costs time, not truth: the events are folded from the first on.
            with suppress(zstandard.ZstdError, ValidationError):
                state = self.store._decompressor.decompress(row.state)
                self.state = State.model_validate_json(state)
                self._crc, self._snapshot_seq = row.crc, row.seq
        self._crc = self._fold(self.state, self._crc)

    def replay(self) -> State:
        """The state folded from the first event on, no snapshot used."""
        state = State()
        self._fold(state, 0)
        return state

    def _fold(self, state: State, crc: int) -> int:
        query = sa.select(events.c.seq, events.c.crc, events.c.payload).where(
            events.c.run_id == self._id, events.c.seq >= state.events
        )
        with self.store.engine.connect() as connection:
            rows = connection.execution_options(yield_per=2_000).execute(
                query.order_by(events.c.seq)
            )
            for seq, stored_crc, payload in rows:
                crc = zlib.crc32(payload.encode(), crc)
                if seq != state.events or crc != stored_crc:
                    raise StoreError(
                        f"run {self.name!r} is damaged at event {seq}: restore the store from a "
                        "backup; nothing after that event can be trusted"
                    )
                state.apply(EVENT.validate_json(payload))
        return crc

    def events(self, *kinds: str) -> Iterator[Event]:
        """The run's events in order, of these kinds or all."""
        query = sa.select(events.c.payload).where(events.c.run_id == self._id)
        if kinds:
            query = query.where(events.c.kind.in_(kinds))
        with self.store.engine.connect() as connection:
            rows = connection.execution_options(yield_per=2_000).execute(
                query.order_by(events.c.seq)
            )
            for (payload,) in rows:
                yield EVENT.validate_json(payload)

    def seen(self, kernel_ids: Iterable[str]) -> set[str]:
        """Those of these kernels that were proposed in this run before."""
        query = sa.select(candidates.c.kernel_id).where(
            candidates.c.run_id == self._id, candidates.c.kernel_id.in_(list(kernel_ids))
        )
        with self.store.engine.connect() as connection:
            return set(connection.scalars(query))

    def find_kernel(self, prefix: str) -> str:
        """The id of the kernel of this run that begins with `prefix`; "best" is the best one."""
        best, seed = self.state.incumbent.kernel_id, self.state.started
        if prefix == "best":
            return best
        query = sa.select(candidates.c.kernel_id).where(
            candidates.c.run_id == self._id,
            candidates.c.kernel_id.startswith(prefix, autoescape=True),
        )
        with self.store.engine.connect() as connection:
            matches: set[str] = set(connection.scalars(query.limit(5)))
        if seed is not None and seed.seed_kernel_id.startswith(prefix):
            matches.add(seed.seed_kernel_id)
        if len(matches) == 1:
            return matches.pop()
        if matches:
            raise StoreError(f"{prefix!r} may be {' or '.join(sorted(matches))}: write more of it")
        raise StoreError(
            f"run {self.name!r} has no kernel {prefix!r}: `kernelcast show {self.name}` lists the "
            "best ones"
        )

    def ledger(self) -> dict[Resource, Account]:
        """The accounts as the database has them."""
        query = sa.select(accounts).where(accounts.c.run_id == self._id)
        with self.store.engine.connect() as connection:
            return {
                Resource(row.resource): Account(row.cap, row.spent, row.reserved)
                for row in connection.execute(query)
            }


def _may_be_busy(measurement: Measurement) -> bool:
    """Whether the machine may be to blame for a failure: other runs measure the kernel again."""
    failure = measurement.failure
    return failure is not None and failure.kind is FailureKind.TIMEOUT


def _store_file(path: Path, *, create: bool) -> Path:
    """The file of a store, in a folder that exists."""
    if not create and not path.exists():
        raise StoreError(
            f"there is no store at {path}: `kernelcast search` makes one, and --store names another"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder of the store {path} cannot be made ({error.strerror}): "
            "name another store with --store"
        ) from error
    return path.resolve()


def _configure_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _migrate(engine: sa.Engine, url: str) -> None:
    with engine.connect() as connection:
        found = None
        if sa.inspect(connection).has_table("alembic_version"):
            found = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if found == SCHEMA_VERSION:
        return
    # Alembic is slow to import and needed only when the schema is new or old.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver begins no transaction for CREATE TABLE by itself: a process killed in
            # between would leave tables without the version that says they are there.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"{url} has schema {found}, which this kernelcast does not know: upgrade kernelcast"
            ) from error
