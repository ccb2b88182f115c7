"""`kernelcast farm` on a real cluster, in namespaces of its own: see `farm/on_cli.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli import main
from kernelcast.cli.farm import _label
from kernelcast.farm import _credentials
from tests.farm.test_ray import run_in_own_network


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.slow
@pytest.mark.longest
def test_a_cluster_by_commands() -> None:
    run_in_own_network("tests/farm/on_cli.py")


def invoke(*arguments: str) -> str:
    return CliRunner().invoke(main, ["farm", *arguments]).output


def test_every_command_has_help_with_an_example() -> None:
    for name in ("up", "join", "status", "drain", "down"):
        assert f"kernelcast farm {name}" in invoke(name, "--help").partition("Example")[2]


def test_mistakes_name_the_fix() -> None:
    joining = invoke("join", "127.0.0.1:9", "--device", "x")
    assert "127.0.0.1:9 does not answer" in joining
    assert "kernelcast farm up" in joining
    assert "is not HOST:PORT" in invoke("status", "--serve", "9464")
    assert "the cluster's token" in invoke(
        "join", "10.0.0.1:1", "--host", "127.0.0.1", "--device", "x"
    )


def test_the_type_of_a_device_is_a_label() -> None:
    assert _label("AMD EPYC 7B13 (64 cores) x8", "cpp") == "AMD-EPYC-7B13-64-cores-x8"
    assert _label("none", "cpp") == ""
    assert len(_label("x" * 80, "cpp")) == 63


def test_variables_of_the_user_go_before_those_of_the_cluster(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = home / "mine"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(mine))
    assert _credentials.make("127.0.0.1", tls=False, new=True) == [mine]
    assert mine.stat().st_mode & 0o777 == 0o600
    token = mine.read_text()
    _credentials.make("127.0.0.1", tls=False, new=True)
    assert mine.read_text() == token, "a token that is there is kept"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _credentials.load()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    held = json.loads((home / ".kernelcast/farm/ray.json").read_text())
    assert held == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(mine)}


def test_a_node_holds_no_secret_but_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KERNELCAST_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "secret")
    secret = {name for name, value in _credentials.environment().items() if value == "secret"}
    assert secret == {"RAY_AUTH_TOKEN"}
