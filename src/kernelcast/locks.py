"""Locks of runs: while one process holds a run, no other process writes to it.

A lock ends with the process that took it, so a killed search holds nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

SCHEMA_LOCK = 0x6B63 << 48
"""The advisory lock of PostgreSQL that changes of the schema take. A run's lock adds its id."""
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid
_HOLDER = sa.text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND datname = current_database() "
    "AND database = datid AND objsubid = 1 AND pid <> :own "
    "AND (CAST(classid AS bigint) << 32) + CAST(objid AS bigint) = :key"
)


class Locks(Protocol):
    """The locks of a store's runs, by the id of the run."""

    def take(self, run_id: int) -> bool:
        """Take a run's lock; return False if another process has it."""

    def release(self, run_id: int) -> None:
        """Give a run's lock back."""

    def holder(self, run_id: int) -> str | None:
        """Return the name of another process that has a run's lock, or None."""

    def close(self) -> None:
        """Give all locks back."""


class FileLocks:
    """Locks of single bytes of a file beside the store, one byte per run."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        with suppress(OSError):  # a store that can only be read is held by no process
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, run_id: int) -> bool:
        """Lock the run's byte."""
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB, run_id)
        except OSError:
            return False
        return True

    def release(self, run_id: int) -> None:
        """Unlock the run's byte."""
        self._lock(fcntl.LOCK_UN, run_id)

    def _lock(self, operation: int, run_id: int) -> None:
        if self._fd is not None:
            fcntl.lockf(self._fd, operation, 1, run_id)

    def holder(self, run_id: int) -> str | None:
        """Return the process that has the run's lock, by its id."""
        pid = self.owner(run_id)
        return None if pid is None else f"process {pid}"

    def owner(self, run_id: int) -> int | None:
        """Return the id of the process that the kernel names as the owner of the byte's lock."""
        if self._fd is None:
            return None
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, run_id, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else pid

    def close(self) -> None:
        """Close the file, which ends its locks."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class ServerLocks:
    """Advisory locks of a PostgreSQL session. They end with the session's connection."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._session: sa.Connection | None = None
        self._backend = 0
        self._held: set[int] = set()

    def take(self, run_id: int) -> bool:
        """Take the run's lock in the session, which is opened again if the server ended it."""
        try:
            self._scalar(sa.select(1))
        except DBAPIError:
            self.close()
        # A session may take its own lock again, and would have to give it back as often.
        if run_id not in self._held:
            try:
                self._scalar(sa.select(sa.func.pg_advisory_lock(SCHEMA_LOCK + run_id)))
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                return False
            self._held.add(run_id)
        return True

    def release(self, run_id: int) -> None:
        """Give the run's lock back; it is free already if the server ended the session."""
        if run_id in self._held:
            self._held.remove(run_id)
            try:
                self._scalar(sa.select(sa.func.pg_advisory_unlock(SCHEMA_LOCK + run_id)))
            except DBAPIError:
                self.close()

    def holder(self, run_id: int) -> str | None:
        """Return the process and the host that the other session named when it began."""
        key = {"own": self._backend, "key": SCHEMA_LOCK + run_id}
        with self._engine.connect() as connection:
            name: str | None = connection.scalar(_HOLDER, key)
        return name

    def _scalar(self, statement: sa.Select[Any]) -> Any:
        if self._session is None:
            session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            session.detach()  # it ends with `close`, and never serves a transaction
            name = f"process {os.getpid()} on {socket.gethostname()}"
            # The server may see a moment later than we do that a killed process is gone.
            for setting, value in (("application_name", name), ("lock_timeout", "1s")):
                session.execute(sa.select(sa.func.set_config(setting, value, sa.false())))
            self._backend = session.scalar(sa.select(sa.func.pg_backend_pid())) or 0
            self._session = session
        return self._session.scalar(statement)

    def close(self) -> None:
        """Close the connection, which ends its locks."""
        if self._session is not None:
            self._session.close()
        self._session, self._backend = None, 0
        self._held.clear()
