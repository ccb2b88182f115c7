"""A cluster of two nodes by the commands; `tests/test_cli_farm.py` runs this in own namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.farm.on_ray import ROOT
from tests.own_network import HOST
from tests.test_metrics import scrape

SECOND = "10.99.0.2"
ADDRESS = f"{HOST}:6379"
SMALL = ["--", "--num-cpus=1", "--object-store-memory=80000000"]


class User:
    """Runs commands with a home folder of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.secrets = home / ".kernelcast" / "farm"
        self.secrets.mkdir(parents=True)
        self.environment = os.environ | {
            "HOME": str(home),
            "RAY_TMPDIR": tempfile.mkdtemp(dir="/tmp"),  # short, for the names of sockets
            "PYTHONPATH": str(ROOT / "src"),
            "KERNELCAST_API_KEY": "secret",
        }
        del self.environment["RAY_worker_niceness"]  # the commands set it

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", "from kernelcast.cli import main; main()", *arguments],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> Any:
        """Return what a command prints as JSON, or its error."""
        process = self.start(*arguments)
        out, error = process.communicate()
        return json.loads(out) if process.returncode == 0 else error


def test_a_cluster_is_started_joined_searched_drained_and_stopped(tmp_path: Path) -> None:
    first, second = User(tmp_path / "first"), User(tmp_path / "second")
    second.environment["RAY_TMPDIR"] = first.environment["RAY_TMPDIR"]

    up = first.run("farm", "up", "--host", HOST, "--tls", "--json", *SMALL)
    assert up["join"] == f"kernelcast farm join {ADDRESS} --tls"
    shared = ("token", "ca.crt", "ca.key")
    assert all((first.secrets / name).stat().st_mode & 0o77 == 0 for name in shared)

    join = ("farm", "join", ADDRESS, "--host", SECOND, "--tls", "--json")
    assert "lacks the cluster's token" in second.run(*join, "--device", "x", *SMALL)
    for name in shared:
        (second.secrets / name).write_bytes((first.secrets / name).read_bytes())
    token = (second.secrets / "token").read_text()
    (second.secrets / "token").write_text("f" * len(token))
    assert "refuses this machine's token" in second.run(*join, "--device", "x", *SMALL)
    (second.secrets / "token").write_text(token)
    joined = second.run(*join, "--name", "two", *SMALL)
    assert (joined["node"], joined["slots"]) == ("two", 1)

    found = second.run("search", "softmax", "-n", "2", "--farm", "ray", "--json")
    assert found["measured"] == 2
    (slot,) = (
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().startswith(b"ray::Slot")
    )
    assert os.getpriority(os.PRIO_PROCESS, slot) == 0

    assert "has no node 'three'" in first.run("farm", "drain", "three", "--json")
    assert first.run("farm", "drain", "two", "--json") == {"drained": "two"}
    status = first.run("farm", "status", "--json")
    nodes = {node["node"]: (node["slots"], node["state"]) for node in status["nodes"]}
    assert nodes == {HOST: (0, "ready"), "two": (1, "drained")}
    assert status["searches"] == []

    serving = first.start("farm", "status", "--serve", "127.0.0.1:0")
    assert serving.stderr is not None
    lines = iter(serving.stderr.readline, "")
    url = next(line.split()[1] for line in lines if line.startswith("serving"))
    assert scrape(url)["kernelcast_nodes", "drained"] == 1
    serving.terminate()
    serving.communicate()
    assert serving.returncode == 0

    stopping = first.start("farm", "down")
    assert "has stopped" in stopping.communicate()[0]
    assert not (first.secrets / "ray.json").exists()
