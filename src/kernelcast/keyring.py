"""The keys that sign what is written to a store.

They lie outside of the store, so that a store can be copied and changed by others, but what they
write does not pass for this user's or this team's. A key never reaches a store, a log or a child
process.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelcast.errors import StoreError

ENVIRONMENT = "KERNELCAST_STORE_KEY"
_KEY_BYTES = 32
_MAKE = "python -c 'import secrets; print(secrets.token_hex(32))'"


class Keyring:
    """Keys of which the first one signs; what any of them signed counts as written here."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._fresh = tuple(hmac.new(key, digestmod="sha256") for key in keys)
        self.signers = tuple(
            hmac.digest(key, b"kernelcast signer", "sha256").hex()[:16] for key in keys
        )
        """Public names of the keys; nothing about a key follows from its name."""

    @classmethod
    def new(cls) -> Keyring:
        """Return a new key that is written nowhere."""
        return cls([secrets.token_bytes(_KEY_BYTES)])

    @classmethod
    def of_user(cls) -> Keyring:
        """Return the keys of the file that KERNELCAST_STORE_KEY names, or else of this user.

        A user's first key is made here; of several processes that make it at once, one does.

        Raises:
            StoreError: The file cannot be read or made, others can read it, or it holds no keys.
        """
        named = os.environ.get(ENVIRONMENT)
        if named:
            # A key in place of a file's name must not be shown.
            what, path = f"the file that {ENVIRONMENT} names", Path(named).expanduser()
        else:
            path = _user_file()
            what = f"the file {path}"
        try:
            if not named and not path.exists():
                _make(path)
            if path.stat().st_mode & 0o007:
                raise StoreError(f"{what} is open to every user of this machine: chmod o= it")
            keys = _read(path)
        except OSError as error:
            fix = f"write a key to it with {_MAKE}"
            if not named:
                fix = f"make its folder writable, or name another file in {ENVIRONMENT}"
            raise StoreError(f"{what} cannot be used ({error.strerror}): {fix}") from None
        if not keys:
            raise StoreError(f"{what} holds no keys: each line is 64 hexadecimal digits; {_MAKE}")
        return cls(keys)

    @property
    def signer(self) -> str:
        """Public name of the key that signs."""
        return self.signers[0]

    def sign(self, *parts: str | bytes | float | None) -> bytes:
        """Return the signature of these parts in this order."""
        return _signature(self._fresh[0], parts)

    def signed(self, signature: bytes | None, *parts: str | bytes | float | None) -> bool:
        """Return whether one of the keys signed these parts."""
        if not signature:
            return False
        return any(
            hmac.compare_digest(_signature(fresh, parts), signature) for fresh in self._fresh
        )


def _signature(fresh: hmac.HMAC, parts: Sequence[str | bytes | float | None]) -> bytes:
    """Sign parts, the last of which may be long; no part can run into the next."""
    last = parts[-1]
    signing = fresh.copy()
    signing.update(repr(parts[:-1]).encode())
    signing.update(last if isinstance(last, bytes) else str(last).encode())
    return signing.digest()


def _read(path: Path) -> list[bytes]:
    """Return the keys of a file; none if one of its words is no key."""
    try:
        keys = [bytes.fromhex(word) for word in path.read_text().split()]
    except ValueError:
        return []
    return keys if all(len(key) >= _KEY_BYTES for key in keys) else []


def _user_file() -> Path:
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise StoreError(
            f"this user has no home folder for the key of its stores: name a file in {ENVIRONMENT}"
        ) from None
    return base / "kernelcast" / "store.key"


def _make(path: Path) -> None:
    """Write a new key durably, unless another process does first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(fd)
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
