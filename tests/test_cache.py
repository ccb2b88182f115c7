"""Results on disk: what is found again, what is not, and what a broken cache costs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kernelcast import cache
from kernelcast.cache import Cache, kept, user_folder, using

calls: list[tuple[str | None, ...]] = []


@kept(str.encode, bytes.decode)
def doubled(text: str, other: str | None = None) -> str:
    """Return the texts twice; a lone surrogate is a text too."""
    calls.append((text, other))
    return 2 * f"{text!r}{other!r}"


@pytest.fixture(autouse=True)
def none_called() -> None:
    calls.clear()


def test_a_result_is_made_once_and_found_by_the_next_process(tmp_path: Path) -> None:
    for _ in range(2):
        with using(tmp_path):  # closed in between, as by the end of a process
            assert doubled("a\ud800") == doubled("a\ud800") == 2 * "'a\\ud800'None"
    assert len(calls) == 1


def test_arguments_that_differ_in_anything_are_other_keys(tmp_path: Path) -> None:
    several = [("a", None), ("a", ""), ("", "a"), ("ab", ""), ("a", "b"), ("a\0", "b")]
    with using(tmp_path):
        assert len({doubled(*one) for one in several}) == len(calls) == len(several)


def test_nothing_is_kept_if_no_cache_is_in_use(tmp_path: Path) -> None:
    with using(None):
        doubled("a")
        assert cache.in_use() is None
    doubled("a")
    assert len(calls) == 2
    assert not [*tmp_path.iterdir()]


def test_another_installation_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with using(tmp_path):
        doubled("a")
    monkeypatch.setattr(cache, "stamp", lambda: "another")
    with using(tmp_path):
        doubled("a")
    assert len(calls) == 2


def test_the_stamp_changes_with_a_file_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = []
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    for text in ("1", "2"):
        (tmp_path / "words.txt").write_text(text)
        stamps.append(cache.stamp.__wrapped__())
    assert len({*stamps}) == 2


def test_a_damaged_file_is_replaced_and_a_folder_that_cannot_be_made_keeps_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "cache.db").write_bytes(b"no database" * 1000)
    (tmp_path / "file").write_text("")
    for folder, times in ((tmp_path, 1), (tmp_path / "file" / "below", 2)):
        calls.clear()
        for _ in range(2):
            with using(folder):
                doubled("a")
        assert len(calls) == times


def test_a_cache_that_grows_too_large_drops_the_older_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 20_000)
    kept_results = Cache(tmp_path)
    for number in range(600):
        kept_results.put(str(number).encode(), "number", str(number))
    kept_results.close()
    monkeypatch.undo()
    again = Cache(tmp_path)
    assert again.get("number", "599") == b"599"
    assert again.get("number", "0") is None
    again.close()
    database = sqlite3.connect(tmp_path / "cache.db")
    (count,) = database.execute("SELECT count(*) FROM kept").fetchone()
    assert count == 300


def test_the_folder_is_the_named_one_or_below_the_users_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_CACHE", str(tmp_path / "named"))
    assert user_folder() == tmp_path / "named"
    monkeypatch.setenv("KERNELCAST_CACHE", "")
    assert user_folder() is None
    monkeypatch.delenv("KERNELCAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "kernelcast"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder() == tmp_path / ".cache" / "kernelcast"
