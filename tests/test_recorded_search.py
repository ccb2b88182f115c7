"""The whole loop with a model in it: proposer, critic, cascade, selective policy, real kernels."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelcast.events import Decided, Measured, Proposed
from kernelcast.run import Run
from kernelcast.store import Store
from kernelcast.types import Resource
from tests.model_server import ScriptedServer
from tests.recorded_edits import RecordedModel
from tests.recorded_search import NAME, PROBLEM

pytestmark = pytest.mark.measures

ROOT = Path(__file__).parents[1]
KILLED_AFTER = 3  # measurements
PATIENCE_S = 1800.0  # ends a search that hangs; no verdict depends on it


def exit_code(folder: Path, base_url: str, killed_after: int = 0) -> int:
    """Of a process that runs the search in the folder."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.recorded_search"]
    command += [str(folder), base_url, str(killed_after)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=PATIENCE_S).returncode


def story(run: Run) -> list[Any]:
    """What was proposed, decided and measured, in order; without what took how long."""
    told: list[Any] = []
    for event in run.events():
        match event:
            case Proposed():
                told.append(("proposed", event.kernel_id, event.parent_id, event.repairs))
            case Decided():
                told.append((event.decision.action, event.kernel_id, event.decision.reason))
            case Measured():
                found = event.measurement
                told.append((event.purpose, found.kernel_id, found.log2_speedup))
    return told


@pytest.mark.slow
@pytest.mark.longest
def test_a_search_with_a_model_survives_being_killed(tmp_path: Path) -> None:
    """After a SIGKILL in the middle of it, it ends as the run that was not disturbed."""
    with ScriptedServer(RecordedModel(PROBLEM)) as server:
        killed = exit_code(tmp_path / "killed", server.base_url, KILLED_AFTER)
        assert killed == -signal.SIGKILL, "it ended before it was killed"
        for name in ("killed", "unbroken"):
            assert exit_code(tmp_path / name, server.base_url) == 0
    with (
        Store.open(tmp_path / "killed" / "store.db") as our_store,
        Store.open(tmp_path / "unbroken" / "store.db") as their_store,
    ):
        ours, theirs = our_store.open_run(NAME), their_store.open_run(NAME)
        assert story(ours) == story(theirs)
        state = ours.state
        assert state.incumbent == theirs.state.incumbent
        # The number depends on the times that the machine measures.
        assert state.measured >= 1
        for resource in (Resource.MEASUREMENTS, Resource.DEVICE_S):
            assert state.spent[resource] == pytest.approx(theirs.state.spent[resource])
        # What a model was answering when it was killed may have cost all that was reserved.
        tokens = Resource.PROPOSAL_TOKENS
        assert state.spent[tokens] >= theirs.state.spent[tokens]
        assert state.stages["critic"].asked == state.forecasts
        assert state.dropped > 0


@pytest.mark.slow
@pytest.mark.full  # the killed search asks the same model, and README's commands search
def test_a_user_searches_with_a_model_from_the_command_line(tmp_path: Path) -> None:
    """As the manual says it, with answers that arrive while kernels are measured."""
    with ScriptedServer(RecordedModel(PROBLEM)) as server:
        command = [sys.executable, "-c", "from kernelcast.cli import main; main()"]
        command += [
            "search",
            PROBLEM,
            "--json",
            "--proposer",
            "llm",
            "--forecaster",
            "cascade",
            "--inspect",
            "--pool",
            "6",
        ]
        command += ["--base-url", server.base_url, "--model", "recorded", "-n", "2"]
        command += ["--store", str(tmp_path / "store.db"), "--out", str(tmp_path / "best.cpp")]
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout
    told = json.loads(output)
    assert 1 <= told["measured"] <= 2
    assert told["best"]["speedup"] >= 1.0
    assert (tmp_path / "best.cpp").read_text()
    assert any(
        "# Kernel to put right" in each["messages"][-1]["content"] for each in server.requests
    )
