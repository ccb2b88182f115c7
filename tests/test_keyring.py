from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.errors import StoreError
from kernelcast.farm import _credentials
from kernelcast.keyring import Keyring
from kernelcast.store import Store
from kernelcast.testing import example_history


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new user, without a key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_signature_is_of_its_parts_in_their_order() -> None:
    keyring = Keyring.new()
    signature = keyring.sign("ab", 1, None, b"c")
    assert keyring.signed(signature, "ab", 1, None, b"c")
    for other in (("a", "b1", None, b"c"), (1, "ab", None, b"c"), ("ab", 1, "", b"c"), ("ab", 1)):
        assert not keyring.signed(signature, *other)
    for missing in (None, b"", signature[:16]):
        assert not keyring.signed(missing, "ab", 1, None, b"c")
    assert not Keyring.new().signed(signature, "ab", 1, None, b"c")


def test_processes_that_start_at_once_agree_on_one_key(state: Path) -> None:
    program = "from kernelcast.keyring import Keyring; print(Keyring.of_user().signer)"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert {process.communicate()[0] for process in started} == {f"{Keyring.of_user().signer}\n"}
    (file,) = (state / "kernelcast").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_first_key_signs_and_each_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "team.key"
    monkeypatch.setenv("KERNELCAST_STORE_KEY", str(file))
    keyrings = []
    for text in ("aa" * 32, "bb" * 32, "bb" * 32 + "\n" + "aa" * 32):
        file.write_text(text)
        file.chmod(0o640)
        keyrings.append(Keyring.of_user())
    first, second, both = keyrings
    assert both.signers == (second.signer, first.signer)
    assert both.signed(first.sign("x"), "x")
    assert second.signed(both.sign("x"), "x")
    assert not first.signed(both.sign("x"), "x")


@pytest.mark.parametrize("text", ["", "aa" * 31, "not hexadecimal", "aa" * 32 + " bb"])
def test_a_file_without_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "team.key"
    file.write_text(text)
    file.chmod(0o600)
    monkeypatch.setenv("KERNELCAST_STORE_KEY", str(file))
    with pytest.raises(StoreError, match="64 hexadecimal digits"):
        Keyring.of_user()


def test_a_key_that_others_can_read_is_refused(state: Path) -> None:
    Keyring.of_user()
    (state / "kernelcast" / "store.key").chmod(0o644)
    with pytest.raises(StoreError, match="open to every user"):
        Keyring.of_user()


def test_a_key_in_place_of_a_file_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_STORE_KEY", "aa" * 32)
    with pytest.raises(StoreError, match="KERNELCAST_STORE_KEY names cannot be used") as refused:
        Keyring.of_user()
    assert "aaaa" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_folder_that_cannot_be_made_is_an_error_with_the_fix(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(StoreError, match="name another file in KERNELCAST_STORE_KEY"):
        Keyring.of_user()


def test_the_key_is_in_no_store_and_goes_to_no_node(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.create_run("r").append(*example_history())
    key = (state / "kernelcast" / "store.key").read_text().strip()
    written = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
    assert b"run_started" in written
    for form in (key.encode(), bytes.fromhex(key), key.upper().encode()):
        assert form[:10] not in written
    monkeypatch.setenv("KERNELCAST_STORE_KEY", str(tmp_path / "team.key"))
    assert os.environ["KERNELCAST_STORE_KEY"] not in _credentials.environment().values()


def test_a_store_in_memory_needs_no_key_of_the_user(state: Path) -> None:
    with Store.open("sqlite://") as store:
        store.create_run("r").append(*example_history())
        assert store.open_run("r").is_own
    assert not state.exists()
