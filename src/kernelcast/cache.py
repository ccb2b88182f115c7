"""Results on disk that are cheap to keep and slow to make: readings of texts, evidence of kernels.

A result is found by all that it follows from: its arguments, and a stamp of this installation. So
nothing here is ever out of date, and a cache may be deleted at any time. Nothing is kept unless a
cache is in use: `rank` and `forecast` use the user's own, and a search has its store.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import zstandard

_P = ParamSpec("_P")
_R = TypeVar("_R")

ENVIRONMENT = "KERNELCAST_CACHE"
"""The variable that names another folder; if it is empty, nothing is kept."""
_MOST_BYTES = 512 << 20
_UNSAVED, _UNSAVED_S = 500, 2.0  # results and seconds before they are written
_PACKAGES = ("numpy", "pyflakes")  # what is kept follows from them, too
_FILES = frozenset({".py", ".toml", ".txt"})


def user_folder() -> Path | None:
    """The folder of the user's cache; None if the user wants none."""
    named = os.environ.get(ENVIRONMENT)
    if named is not None:
        return Path(named) if named else None
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no home
        return None
    return base / "kernelcast"


@cache
def stamp() -> str:
    """A hash of kernelcast's own files, and the versions of what its results depend on."""
    own = hashlib.sha256(platform.python_version().encode())
    for package in _PACKAGES:
        own.update(f"{package} {importlib.metadata.version(package)}\0".encode())
    root = Path(__file__).parent
    for path in sorted(path for path in root.rglob("*") if path.suffix in _FILES):
        own.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return own.hexdigest()


class Cache:
    """Results in one SQLite file of a folder, for several threads and processes.

    A cache that cannot be read or written keeps nothing, without an error.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._unsaved: dict[bytes, bytes] = {}
        self._saved_s = time.monotonic()
        self._path = folder / "cache.db"
        self._packer, self._unpacker = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()
        self._database: sqlite3.Connection | None = None
        try:
            self._database = self._open()
        except sqlite3.OperationalError:  # a folder that cannot be written
            return
        except sqlite3.DatabaseError:  # not a database, or a damaged one
            with suppress(OSError, sqlite3.Error):
                self._path.unlink()
                self._database = self._open()
        except OSError:
            return

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # what a crash loses is made again
        database.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, value BLOB)")
        return database

    def get(self, kind: str, *arguments: str | None) -> bytes | None:
        """Return a result that is kept, or None."""
        key = _key(kind, arguments)
        with self._lock:
            if (value := self._unsaved.get(key)) is None:
                if self._database is None:
                    return None
                try:
                    row = self._database.execute(
                        "SELECT value FROM kept WHERE key = ?", (key,)
                    ).fetchone()
                except sqlite3.Error:
                    return None
                if row is None:
                    return None
                value = row[0]
            try:
                return self._unpacker.decompress(value)
            except zstandard.ZstdError:
                return None

    def put(self, value: bytes, kind: str, *arguments: str | None) -> None:
        """Keep a result; it is on disk within seconds, or when the cache is closed."""
        with self._lock:
            self._unsaved[_key(kind, arguments)] = self._packer.compress(value)
            is_late = time.monotonic() - self._saved_s > _UNSAVED_S
            if is_late or len(self._unsaved) >= _UNSAVED:
                self._save()

    def close(self) -> None:
        """Write what is unsaved; of a cache that has grown too large, drop the older half."""
        with self._lock:
            self._save()
            database, self._database = self._database, None
            if database is None:
                return
            with suppress(sqlite3.Error):
                (pages,) = database.execute("PRAGMA page_count").fetchone()
                (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
                if pages * page_bytes > _MOST_BYTES:
                    database.execute(
                        "DELETE FROM kept WHERE rowid <= "
                        "(SELECT (min(rowid) + max(rowid)) / 2 FROM kept)"
                    )
                    database.execute("VACUUM")
            database.close()

    def _save(self) -> None:
        rows = list(self._unsaved.items())
        self._unsaved.clear()
        self._saved_s = time.monotonic()
        if self._database is None or not rows:
            return
        with suppress(sqlite3.Error):  # another process writes for long, or the disk is full
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
            finally:
                self._database.execute("COMMIT")


def _key(kind: str, arguments: tuple[str | None, ...]) -> bytes:
    key = hashlib.sha256(f"{stamp()}\0{kind}".encode())
    for argument in arguments:
        text = (argument or "").encode("utf-8", "surrogatepass")
        key.update(f"\0{argument is None}{len(text)}\0".encode() + text)
    return key.digest()


_in_use: Cache | None = None


def in_use() -> Cache | None:
    """Return the cache that this process uses now."""
    return _in_use


@contextmanager
def using(folder: Path | None) -> Iterator[None]:
    """Keep results in this folder until the end of the block; with None, keep nothing."""
    global _in_use
    before, opened = _in_use, None if folder is None else Cache(folder)
    _in_use = opened
    try:
        yield
    finally:
        _in_use = before
        if opened is not None:
            opened.close()


def kept(
    encode: Callable[[_R], bytes], decode: Callable[[bytes], _R]
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Keep what a function returns, if a cache is in use and all its arguments are positional.

    The arguments are texts or None. The name of the function is the kind of the result.
    """

    def wrap(function: Callable[_P, _R]) -> Callable[_P, _R]:
        kind = f"{function.__module__}.{function.__qualname__}"

        @wraps(function)
        def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
            if _in_use is None or named:
                return function(*arguments, **named)
            texts = cast(tuple[str | None, ...], arguments)
            found = _in_use.get(kind, *texts)
            if found is not None:
                return decode(found)
            result = function(*arguments, **named)
            _in_use.put(encode(result), kind, *texts)
            return result

        return call

    return wrap
