"""A real PostgreSQL server for tests and benches: a new database for each use."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from kernelcast.store import Store

_FOLDERS = [Path(), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
_USER = "postgres"


class Server:
    """A server that listens on a socket in its folder only; `database` makes an empty store.

    A `durable` one waits for the disk at each commit. Further settings replace those of tests.
    """

    def __init__(self, folder: Path, *, durable: bool = False, **settings: str | int) -> None:
        self.folder = folder
        self._names = (f"test_{number}" for number in itertools.count())
        self._template: str | None = None
        self._as_server = ["setpriv", "--pdeathsig", "INT"]  # it never outlives the tests
        if os.geteuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam(_USER)
            os.chown(folder, account.pw_uid, account.pw_gid)
            group = str(account.pw_gid)
            self._as_server += ["--reuid", _USER, "--regid", group, "--clear-groups"]
        program = [*self._as_server, _program("initdb"), "-D", str(folder / "data"), "-U", _USER]
        subprocess.run([*program, "-EUTF8", "--locale=C", "-N"], check=True, **self._quiet())
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": folder,
            "fsync": "on" if durable else "off",  # no test stops the machine
            "shared_buffers": "16MB",
            "max_connections": 150,
            **settings,
        }
        self.start()

    def _quiet(self) -> dict[str, Any]:
        return {"cwd": self.folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = self._settings.items()
        options = [part for item in settings for part in ("-c", "=".join(map(str, item)))]
        program = [
            *self._as_server,
            _program("postgres"),
            "-D",
            str(self.folder / "data"),
            *options,
        ]
        self._process = subprocess.Popen(program, **self._quiet())
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "the server ended: run it by hand to see why"
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT closes open connections, SIGQUIT is like a crash."""
        self._process.send_signal(how)
        self._process.wait()

    def url(self, database: str, user: str = _USER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.url(database), autocommit=True)

    def database(self, *, migrated: bool = True) -> str:
        """Return the URL of a new database: an empty store, or without any table."""
        if migrated and self._template is None:
            url = self.database(migrated=False)
            Store.open(url).close()
            self._template = url.partition("@/")[2].partition("?")[0]
        name = next(self._names)
        template = self._template if migrated else "template0"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)


@contextmanager
def running(*, durable: bool = False, **settings: str | int) -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kernelcast-pg-"))
    server = Server(folder, durable=durable, **settings)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _program(name: str) -> str:
    programs = (shutil.which(str(folder / name)) for folder in _FOLDERS)
    path = next((program for program in programs if program), None)
    assert path is not None, f"needs {name}: apt-get install postgresql"
    return path
