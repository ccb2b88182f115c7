"""The store: events, kernels and their sources, the ledger and the measurement cache.

Events are the truth. Everything else is derived from them in the same transaction, so that a crash
leaves either all of it or none. The database is SQLite; the schema and the queries also work on
PostgreSQL. Only this module, `ledger` and the migrations use SQLAlchemy.
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

from kernelcast.errors import StoreError
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
from kernelcast.ledger import Account, Ledger
from kernelcast.ledger import metadata as metadata
from kernelcast.state import State
from kernelcast.types import FailureKind, Kernel, Measurement, Resource, content_hash

DEFAULT_STORE = Path(".kernelcast/store.db")
SCHEMA_VERSION = "0001"
SNAPSHOT_EVERY = 5_000
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid

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
measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("kernel_id", sa.String(32), primary_key=True),
    sa.Column("problem_id", sa.String(32), primary_key=True),
    sa.Column("device_id", sa.String(120), primary_key=True),
    sa.Column("toolchain", sa.String(120), primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
)
_CACHE_KEY = ("kernel_id", "problem_id", "device_id", "toolchain")


@dataclass(frozen=True)
class RunInfo:
    """Name of a run, and when it was created (seconds since 1970)."""

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
        """Open a store and bring its schema up to date.

        Args:
            location: A file (SQLite) or a database URL.
            create: Whether to create a file that does not exist yet.

        Raises:
            StoreError: The store does not exist, cannot be written, or is not a store.
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
        """Close the connections and release the runs that are held."""
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
        """Return a new run; it is in the store after its first append.

        Raises:
            StoreError: There is a run of this name.
        """
        if self._run_id(name) is not None:
            raise StoreError(f"there is a run {name!r} already: choose another name")
        return Run(self, None, name)

    def open_run(self, name: str) -> Run:
        """Return an existing run with the state of all its events.

        Raises:
            StoreError: There is no such run, or it is damaged.
        """
        run_id = self._run_id(name)
        if run_id is None:
            raise self._unknown_run(name)
        run = Run(self, run_id, name)
        run.load()
        return run

    def find_run(self, name: str) -> str:
        """Return the full name of a run, given its name, a unique prefix of it or "latest".

        Raises:
            StoreError: There is no such run, or more than one.
        """
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
        raise self._unknown_run(name)

    def runs(self) -> list[RunInfo]:
        """Return every run, oldest first."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(runs.c.name, runs.c.created_at).order_by(runs.c.id))
            return [RunInfo(row.name, row.created_at) for row in rows]

    def _run_id(self, name: str) -> int | None:
        with self.engine.connect() as connection:
            run_id: int | None = connection.scalar(sa.select(runs.c.id).where(runs.c.name == name))
        return run_id

    def _unknown_run(self, name: str) -> StoreError:
        latest = ", ".join(info.name for info in self.runs()[-5:])
        known = latest or "none yet: kernelcast search softmax"
        return StoreError(f"no run {name!r} in this store; the latest: {known}")

    def _holders(self) -> int | None:
        """Return the descriptor of the file that has one byte to lock per run; None without a file.

        The lock of a process ends with the process, so a killed search holds nothing.
        """
        if self._holders_fd is None and self.path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            with suppress(OSError):  # a store that can only be read is held by no process
                self._holders_fd = os.open(f"{self.path}-runs", flags, 0o644)
        return self._holders_fd

    # --------------------------------------------------------------------- kernels and times

    def kernel(self, kernel_id: str) -> Kernel:
        """Return a stored kernel with its source; see `kernels`."""
        return self.kernels([kernel_id])[0]

    def kernels(self, ids: Sequence[str]) -> list[Kernel]:
        """Return stored kernels with their sources, in the order of the ids.

        Raises:
            StoreError: A kernel is not in the store, or its source is damaged.
        """
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
        """Return what any run has measured of this kernel, so that it is measured only once."""
        key = (kernel_id, problem_id, device_id, toolchain)
        matches = [
            measurements.c[name] == value for name, value in zip(_CACHE_KEY, key, strict=True)
        ]
        with self.engine.connect() as connection:
            payload = connection.scalar(sa.select(measurements.c.payload).where(*matches))
        return Measurement.model_validate_json(payload) if payload else None

    def _write_kernels(self, connection: sa.Connection, new: Sequence[Kernel]) -> None:
        sources, rows = [], []
        for kernel in new:
            data, parameters = kernel.source.encode(), kernel.parameters
            row = {
                "id": kernel.id,
                "language": kernel.language,
                "source_hash": content_hash(data),
                "parameters": None if parameters is None else json.dumps(parameters),
            }
            rows.append(row)
            sources.append({"hash": row["source_hash"], "data": self._compressor.compress(data)})
        connection.execute(self._insert_new[blobs], sources)
        connection.execute(self._insert_new[kernels], rows)


class Run:
    """The log of one run and the state of its events. A second concurrent writer is refused."""

    def __init__(self, store: Store, run_id: int | None, name: str) -> None:
        self.store = store
        self.name = name
        self._id = run_id
        self.state = State()
        self._crc = 0
        self._snapshot_seq = 0

    # ------------------------------------------------------------------------------- holding

    def hold(self) -> None:
        """Keep other processes from writing to this run until the store is closed.

        Raises:
            StoreError: Another process holds the run.
        """
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"run {self.name!r} is running: process {self.holder()} holds it. Wait until it "
                "ends, or stop it with Ctrl-C there"
            ) from error

    def release(self) -> None:
        """Allow other processes to write to this run again."""
        self._lock(fcntl.LOCK_UN)

    def _lock(self, operation: int) -> None:
        fd = self.store._holders()
        if fd is not None and self._id is not None:
            fcntl.lockf(fd, operation, 1, self._id)

    def holder(self) -> int | None:
        """Return the id of another process that holds this run, or None."""
        fd = self.store._holders()
        if fd is None or self._id is None:
            return None
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._id, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else int(pid)

    # ------------------------------------------------------------------------------- writing

    def append(self, new: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        """Write events durably in one transaction, then apply them to the state.

        Args:
            new: The events, in order.
            kernels: The kernels that the events name and the store may not have yet.

        Raises:
            BudgetExceeded: A reservation would exceed a cap; nothing was written.
            StoreError: The events do not fit the run; nothing was written.
        """
        if not new:
            return
        rows: list[dict[str, Any]] = []
        crc, now = self._crc, time.time()
        for seq, event in enumerate(new, start=self.state.events):
            payload = event.model_dump_json()
            crc = zlib.crc32(payload.encode(), crc)
            rows.append({"seq": seq, "kind": event.kind, "at": now, "crc": crc, "payload": payload})
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
                # The state may have events that the store has not: take it from the store.
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
        insert = runs.insert().values(name=self.name, created_at=time.time())
        key = connection.execute(insert).inserted_primary_key
        assert key is not None
        return int(key[0])

    def _project(self, connection: sa.Connection, run_id: int, new: Sequence[Event]) -> None:
        ledger = Ledger(connection, run_id)
        fresh: list[dict[str, Any]] = []
        for event in new:
            match event:
                case Proposed(duplicate=False):
                    fresh.append({"run_id": run_id, "kernel_id": event.kernel_id})
                case RunStarted() | BudgetChanged():
                    ledger.set_caps(event.budget)
                case Reserved():
                    ledger.reserve(event.entry, event.spend)
                case Settled():
                    ledger.close(event.entry, event.spend)
                case Voided():
                    ledger.close(event.entry, {})
                case Measured(purpose="search", cached=False, measurement=measurement):
                    # A busy machine may have caused a timeout: other runs measure again.
                    failure = measurement.failure
                    if failure is None or failure.kind is not FailureKind.TIMEOUT:
                        payload = measurement.model_dump_json()
                        row = {name: getattr(measurement, name) for name in _CACHE_KEY}
                        insert = self.store._insert_new[measurements]
                        connection.execute(insert, [{**row, "payload": payload}])
        if fresh:
            connection.execute(candidates.insert(), fresh)

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
        """Set the state from the last snapshot and the events after it.

        Raises:
            StoreError: An event is damaged.
        """
        self.state, self._crc, self._snapshot_seq = State(), 0, 0
        with self.store.engine.connect() as connection:
            row = connection.execute(
                sa.select(snapshots).where(snapshots.c.run_id == self._id)
            ).one_or_none()
        if row is not None:
            # Ignore a damaged snapshot: the events are folded from the first one.
            with suppress(zstandard.ZstdError, ValidationError):
                state = self.store._decompressor.decompress(row.state)
                self.state = State.model_validate_json(state)
                self._crc, self._snapshot_seq = row.crc, row.seq
        self._crc = self._fold(self.state, self._crc)

    def replay(self) -> State:
        """Return the state folded from the first event, without a snapshot."""
        state = State()
        self._fold(state, 0)
        return state

    def _fold(self, state: State, crc: int) -> int:
        for seq, stored_crc, payload in self._rows(events.c.seq >= state.events):
            crc = zlib.crc32(payload.encode(), crc)
            if seq != state.events or crc != stored_crc:
                raise StoreError(
                    f"run {self.name!r} is damaged at event {seq}: restore the store from a "
                    "backup; nothing after that event can be trusted"
                )
            state.apply(EVENT.validate_json(payload))
        return crc

    def _rows(self, *conditions: sa.ColumnElement[bool]) -> Iterator[sa.Row[Any, Any, Any]]:
        query = sa.select(events.c.seq, events.c.crc, events.c.payload).order_by(events.c.seq)
        with self.store.engine.connect() as connection:
            rows = connection.execution_options(yield_per=2_000).execute(
                query.where(events.c.run_id == self._id, *conditions)
            )
            yield from rows

    def events(self, *kinds: str) -> Iterator[Event]:
        """Yield the run's events in order: all, or those of these kinds."""
        conditions = [events.c.kind.in_(kinds)] if kinds else []
        for _, _, payload in self._rows(*conditions):
            yield EVENT.validate_json(payload)

    def seen(self, kernel_ids: Iterable[str]) -> set[str]:
        """Return those of these kernels that were proposed in this run before."""
        query = sa.select(candidates.c.kernel_id).where(
            candidates.c.run_id == self._id, candidates.c.kernel_id.in_(list(kernel_ids))
        )
        with self.store.engine.connect() as connection:
            return set(connection.scalars(query))

    def find_kernel(self, prefix: str) -> str:
        """Return the id of the kernel of this run that begins with `prefix`, or of the "best".

        Raises:
            StoreError: There is no such kernel, or more than one.
        """
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
        """Return the accounts as the database has them."""
        with self.store.engine.connect() as connection:
            return Ledger(connection, self._id).accounts()


def _store_file(path: Path, *, create: bool) -> Path:
    """Return the absolute path of a store's file, after creating its folder."""
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
        version = None
        if sa.inspect(connection).has_table("alembic_version"):
            version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if version == SCHEMA_VERSION:
        return
    # Alembic is slow to import and needed only to create or upgrade a schema.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver does not begin a transaction for CREATE TABLE: a killed process
            # would leave tables without the version that says they exist.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"{url} has schema {version}, which this version does not know: upgrade kernelcast"
            ) from error
