"""The store: a database of runs, kernels and their sources, and the measurement cache.

The database is SQLite or PostgreSQL, with the same schema and the same queries. Only this module,
`run`, `ledger`, `locks`, `tables` and the migrations use SQLAlchemy.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
import zstandard
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from kernelcast import roles, tables
from kernelcast.errors import StoreError
from kernelcast.keyring import Keyring
from kernelcast.locks import SCHEMA_LOCK, FileLocks, Locks, ServerLocks
from kernelcast.objects import Objects
from kernelcast.run import Run
from kernelcast.types import CacheKey, Kernel, Measurement, content_hash

_T = TypeVar("_T")

DEFAULT_STORE = Path(".kernelcast/store.db")
SCHEMA_VERSION = "0004"
LARGEST_BLOB = 64 * 1024  # bytes, compressed; a larger one may lie in an object store
_LARGEST_SOURCE = 64 * 1024 * 1024  # bytes; a forged blob may claim to be larger than memory
_OUTAGE_S = 180.0  # a server that restarts is waited for so long
_PAUSE_S = 0.5
_CONFLICTS = ("40001", "40P01")  # of two transactions, one of which has to begin again


@dataclass(frozen=True)
class RunInfo:
    """Name of a run, and when it was created (seconds since 1970)."""

    name: str
    created_at: float


class Store:
    """A database of runs. `Store.open` takes a path (SQLite) or a database URL.

    What is written to it is signed with a key that lies elsewhere. What was not signed with a key
    that is here can be read, but is neither continued nor executed nor learnt from.
    """

    def __init__(self, engine: sa.Engine, objects: Objects | None = None) -> None:
        self.engine = engine
        self._objects = objects
        insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._insert_new = {
            table: insert(table).on_conflict_do_nothing()
            for table in (tables.blobs, tables.kernels, tables.measurements)
        }
        self._claim = _claim(insert(tables.claims))
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor()

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True, blobs: str | None = None) -> Store:
        """Open a store and bring its schema up to date.

        Args:
            location: A file (SQLite) or a database URL.
            create: Whether to create a file that does not exist yet.
            blobs: Where large blobs lie outside the database: `s3://bucket/prefix`. By default,
                what the environment variable KERNELCAST_BLOBS names, if anything.

        Raises:
            StoreError: The store does not exist, cannot be written, or is not a store.
        """
        text = str(location)
        blobs = blobs or os.environ.get("KERNELCAST_BLOBS")
        objects = Objects(blobs) if blobs else None
        if "://" in text:
            engine = _engine(text)
        else:
            engine = sa.create_engine(f"sqlite:///{_store_file(Path(text), create=create)}")
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _configure_sqlite)
        try:
            _migrate(engine)
        except BaseException as error:
            engine.dispose()
            if objects is not None:
                objects.close()
            if not isinstance(error, DatabaseError):
                raise
            what, fix = "is not a kernelcast store, or cannot be written", "name"
            if engine.dialect.name == "postgresql" and isinstance(error, OperationalError):
                what, fix = "cannot be reached", "start its server, create the database, or name"
            raise StoreError(
                f"{_shown(engine)} {what} ({str(error.orig).strip()}): {fix} another one with "
                "--store"
            ) from error
        return cls(engine, objects)

    @property
    def path(self) -> Path | None:
        """The store's file; None for a database server."""
        database = self.engine.url.database
        return Path(database) if database and self.engine.dialect.name == "sqlite" else None

    @cached_property
    def keyring(self) -> Keyring:
        """The keys that sign here; for a database in memory, a key that ends with it."""
        is_in_memory = self.engine.dialect.name == "sqlite" and self.path is None
        return Keyring.new() if is_in_memory else Keyring.of_user()

    def _signature(self, *parts: str | None) -> dict[str, str | bytes]:
        """Return the columns that say what signed a row."""
        return {"signer": self.keyring.signer, "mac": self.keyring.sign(*parts)}

    @contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """Return a connection of its own; see `patiently`."""
        with self.patiently(self.engine.connect) as connection:
            yield connection

    def patiently(self, action: Callable[[], _T]) -> _T:
        """Do something with the database; wait for a server that restarts, and do it again.

        Raises:
            StoreError: The server does not come back.
        """
        deadline = time.monotonic() + _OUTAGE_S
        while True:
            try:
                return action()
            except OperationalError as error:
                conflict = getattr(error.orig, "sqlstate", None) in _CONFLICTS
                is_away = error.connection_invalidated or error.statement is None
                if self.engine.dialect.name == "sqlite" or not (conflict or is_away):
                    raise
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{_shown(self.engine)} cannot be reached ({str(error.orig).strip()}): "
                        "start its server, then `kernelcast resume`"
                    ) from error
                time.sleep(_PAUSE_S)

    def grant(self, role: str, duty: roles.Duty) -> None:
        """Give a role of the server the rights of a tenant, which searches, or of a worker.

        Raises:
            StoreError: The store is a file.
        """
        roles.grant(self.engine, role, duty)

    def close(self) -> None:
        """Close the connections and release the runs that are held."""
        locks = self.__dict__.pop("_locks", None)
        if locks is not None:
            locks.close()
        if self._objects is not None:
            self._objects.close()
        self.engine.dispose()

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
        if self._find(name) is not None:
            raise StoreError(f"there is a run {name!r} already: choose another name")
        return Run(self, None, name, time.time())

    def open_run(self, name: str) -> Run:
        """Return an existing run with the state of all its events; `Run.origin` says whose it is.

        Raises:
            StoreError: There is no such run, or it is damaged.
        """
        found = self._find(name)
        if found is None:
            raise self._unknown_run(name)
        run = Run(self, found.id, name, found.created_at)
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
        with self.connect() as connection:
            rows = connection.execute(
                sa.select(tables.runs.c.name, tables.runs.c.created_at).order_by(tables.runs.c.id)
            )
            return [RunInfo(row.name, row.created_at) for row in rows]

    def _find(self, name: str) -> Any:
        """Return the row of a run; None if there is none."""
        query = sa.select(tables.runs.c.id, tables.runs.c.created_at)
        with self.connect() as connection:
            return connection.execute(query.where(tables.runs.c.name == name)).one_or_none()

    def _unknown_run(self, name: str) -> StoreError:
        latest = ", ".join(info.name for info in self.runs()[-5:])
        known = latest or "none yet: kernelcast search softmax"
        return StoreError(f"no run {name!r} in this store; the latest: {known}")

    @cached_property
    def _locks(self) -> Locks | None:
        """The locks of the runs; None for a database in memory, which no other process has."""
        if self.engine.dialect.name == "postgresql":
            return ServerLocks(self.engine)
        return FileLocks(Path(f"{self.path}-runs")) if self.path is not None else None

    # --------------------------------------------------------------------- kernels and times

    def kernel(self, kernel_id: str) -> Kernel:
        """Return a stored kernel with its source; see `kernels`."""
        return self.kernels([kernel_id])[0]

    def kernels(self, ids: Sequence[str], *, foreign: bool = False) -> list[Kernel]:
        """Return stored kernels with their sources, in the order of the ids.

        Args:
            ids: Ids of the kernels.
            foreign: Whether one that was not written here will do where there is no other.

        Raises:
            StoreError: A kernel is not in the store, or its source is damaged.
        """
        query = sa.select(tables.kernels, tables.blobs.c.data).join(
            tables.blobs, tables.blobs.c.hash == tables.kernels.c.source_hash
        )
        with self.connect() as connection:
            rows = connection.execute(query.where(tables.kernels.c.id.in_(ids))).all()
        chosen: dict[str, Any] = {}
        for row in rows:
            if row.signer in self.keyring.signers:
                signed = (row.id, row.language, row.source_hash, row.parameters)
                if not self.keyring.signed(row.mac, "kernel", *signed):
                    raise StoreError(
                        f"kernel {row.id} was changed by something else than kernelcast here: "
                        "restore the store from a backup"
                    )
                chosen[row.id] = row
            elif foreign:
                chosen.setdefault(row.id, row)
        if missing := [key for key in ids if key not in chosen]:
            raise StoreError(f"the store holds no kernel {missing[0]} that was written here")
        stored = {key: self._kernel(row) for key, row in chosen.items()}
        return [stored[key] for key in ids]

    def _kernel(self, row: Any) -> Kernel:
        packed = row.data
        if not packed:
            if self._objects is None:
                raise StoreError(
                    f"the source of kernel {row.id} lies in an object store: set KERNELCAST_BLOBS "
                    "to the s3:// URL that the store was written with"
                )
            packed = self._objects.get(row.source_hash)
        data = b""
        with suppress(zstandard.ZstdError):
            if zstandard.frame_content_size(packed) <= _LARGEST_SOURCE:
                data = self._decompressor.decompress(packed)
        if content_hash(data) != row.source_hash:
            raise StoreError(f"the source of kernel {row.id} is damaged: restore the store")
        return Kernel(
            id=row.id,
            language=row.language,
            source=data.decode(),
            parameters=json.loads(row.parameters) if row.parameters is not None else None,
        )

    def cached_measurement(self, key: CacheKey) -> Measurement | None:
        """Return what any run has measured of this kernel, so that it is measured only once.

        Only what was signed with a key that is here counts.

        Raises:
            StoreError: The measurement was changed since it was signed.
        """
        measurements = tables.measurements
        query = sa.select(measurements.c.payload, measurements.c.mac).where(
            *tables.matches(measurements, key), measurements.c.signer.in_(self.keyring.signers)
        )
        with self.connect() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        if not self.keyring.signed(row.mac, "measurement", *key, row.payload):
            raise StoreError(
                f"the cached measurement of kernel {key.kernel_id} was changed by something else "
                "than kernelcast here: restore the store from a backup, or search with --no-reuse"
            )
        return Measurement.model_validate_json(row.payload)

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
            rows.append({**row, **self._signature("kernel", *row.values())})
            packed = self._compressor.compress(data)
            if self._objects is not None and len(packed) > LARGEST_BLOB:
                self._objects.put(content_hash(data), packed)
                packed = b""
            sources.append({"hash": row["source_hash"], "data": packed})
        # Two transactions that insert the same rows in the same order cannot deadlock.
        sources.sort(key=itemgetter("hash"))
        rows.sort(key=itemgetter("id"))
        connection.execute(self._insert_new[tables.blobs], sources)
        connection.execute(self._insert_new[tables.kernels], rows)


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


def _engine(text: str) -> sa.Engine:
    """Return the engine of a database URL. No message has the URL's password."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError(
            f"the database URL {text.partition('://')[0]}://... cannot be read: write "
            "postgresql://user@host:5432/database"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        # A server may restart: a connection that it closed is replaced when it is next used.
        options["pool_pre_ping"] = True
    try:
        return sa.create_engine(url, **options)
    except (ArgumentError, ModuleNotFoundError) as error:
        fix = "name a file, or a database URL whose driver is installed"
        if url.drivername == "postgresql+psycopg":
            fix = "pip install 'kernelcast[postgres]'"
        raise StoreError(f"{url} cannot be opened ({error}): {fix}") from error


def _claim(insert: Any) -> Any:
    """Return the insertion of a claim, which replaces an expired one and one of its own run."""
    new = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=list(CacheKey._fields),
        set_={name: new[name] for name in ("run_id", "entry", "expires_at")},
        where=sa.or_(
            tables.claims.c.expires_at < sa.bindparam("now", type_=sa.Float),
            tables.claims.c.run_id == new.run_id,
        ),
    )


def _shown(engine: sa.Engine) -> str:
    """Return a store's file, or its URL without the password."""
    is_file = engine.dialect.name == "sqlite" and engine.url.database
    return str(engine.url.database if is_file else engine.url)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    pragmas = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000")
    for pragma in (*pragmas, "trusted_schema=OFF"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _migrate(engine: sa.Engine, revision: str = SCHEMA_VERSION) -> None:
    with engine.connect() as connection:
        version = None
        if sa.inspect(connection).has_table("alembic_version"):
            version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if version == revision:
        return
    # Alembic is slow to import and needed only to create or change a schema.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    change = command.upgrade if version is None or version < revision else command.downgrade
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver does not begin a transaction for CREATE TABLE: a killed process
            # would leave tables without the version that says they exist.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            # Of several processes that open an empty database, one makes the tables.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(SCHEMA_LOCK)))
        config.attributes["connection"] = connection
        try:
            change(config, revision)
        except CommandError as error:
            raise StoreError(
                f"{_shown(engine)} has schema {version}, which this version does not know: "
                "upgrade kernelcast"
            ) from error
