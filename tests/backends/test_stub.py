"""The native stub is built once for a compiler, kept, and not trusted if it was changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast import cache
from kernelcast.backends import _stub
from kernelcast.errors import SetupError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path))
    _stub.stub.cache_clear()
    yield
    _stub.stub.cache_clear()


def test_is_built_once_for_a_compiler(tmp_path: Path) -> None:
    library = _stub.stub("g++")
    assert library.is_relative_to(tmp_path)
    made_ns = library.stat().st_mtime_ns
    _stub.stub.cache_clear()
    assert _stub.stub("g++") == library
    assert library.stat().st_mtime_ns == made_ns


def test_a_library_that_was_changed_is_built_again() -> None:
    library = _stub.stub("g++")
    good = library.read_bytes()
    library.chmod(0o644)
    library.write_bytes(good + b"more")
    _stub.stub.cache_clear()
    assert _stub.stub("g++").read_bytes() == good


def test_a_cache_that_cannot_be_used_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub").write_text("a file where the folder should be")
    assert _stub.stub("g++").is_file()
    _stub.stub.cache_clear()
    monkeypatch.setenv(cache.ENVIRONMENT, "")
    assert _stub.stub("g++").is_file()


def test_says_what_to_install_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SetupError, match="apt-get install gcc"):
        _stub.stub()


def test_a_compiler_that_fails_is_a_broken_set_up() -> None:
    with pytest.raises(SetupError, match="does not compile the measuring stub"):
        _stub.stub("false")


def test_uses_no_library(tmp_path: Path) -> None:
    """As LD_AUDIT it is loaded before any other."""
    assert b"libc.so" not in _stub.stub("g++").read_bytes()
