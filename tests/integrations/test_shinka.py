"""ShinkaEvolve's own runner, with a gate before a recorded evaluator."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip(
    "shinka", reason="needs an environment of its own, with shinka-evolve: it pins what it needs"
)

from _by_evolve import Answers, run_shinka
from _evolve_pool import Answer
from kernelcast import Gate, SetupError
from kernelcast.integrations.shinka import gate_runner
from kernelcast.problems import load_problem
from tests.examples import EXAMPLES
from tests.model_server import ScriptedServer
from tests.recorded_edits import edits_of

SEED = load_problem("softmax").seed_source.strip()
EDITS = [edit.source.strip() for edit in edits_of("softmax").values()][1:]  # the first renames


def answers() -> list[Answer]:
    """Four that gain, five that do not, one of them a failure, and a repeated one."""
    speedups = [8.0, 7.0, 6.0, 5.0, 0.2, None, 0.2, 0.2, 0.2]
    pairs = zip(EDITS, speedups, strict=False)
    found = [Answer(str(number), *pair) for number, pair in enumerate(pairs)]
    return [*found, found[0]]


def without_marks(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if "EVOLVE-BLOCK" not in line).strip()


@pytest.mark.filterwarnings("default")
def test_a_search_measures_less_and_archives_only_what_it_measured(tmp_path: Path) -> None:
    given = answers()
    run_shinka(
        Answers(0, SEED, given), tmp_path, {"language": "cpp", "miss": 0.4, "least_chance": 1.0}
    )
    done = list(map(json.loads, (tmp_path / "measured.jsonl").read_text().splitlines()))
    assert done[0] == SEED
    assert len(set(done)) == len(done) < len(given), "a repeated program, and some were dropped"
    with sqlite3.connect(tmp_path / "results" / "programs.sqlite") as database:
        rows = database.execute("SELECT code, combined_score, correct FROM programs").fetchall()
        failed = database.execute("SELECT details FROM attempt_log WHERE status = 'failed'")
        reasons = [json.loads(details)["failure_reason"] for (details,) in failed]
    database.close()
    assert {without_marks(code) for code, _, _ in rows} == set(done)
    assert len(reasons) == len(given) + 1 - len(done)
    assert all("not measured, which is no failure" in reason for reason in reasons)
    gate = Gate(language="cpp", store=tmp_path / "results" / "gate.db")
    scores = {answer.source: answer.speedup for answer in given} | {SEED: 1.0}
    for text in done:
        known = gate.ask(text).known
        assert known is not None
        assert known.speedup == scores[text]
    assert gate.asked == len({answer.source for answer in given})


def fake_judge(*, accepts: bool) -> Any:
    """A judge of the user that looks at everything."""

    async def looks(*_: Any) -> bool:
        return True

    async def judges(*_: Any) -> tuple[bool, dict[str, Any]]:
        return accepts, {"novelty_explanation": "of the user"}

    return SimpleNamespace(
        should_check_novelty_async=looks, assess_novelty_with_rejection_sampling_async=judges
    )


def test_a_judge_that_is_there_is_asked_after_the_gate(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(SEED)
    for accepts in (True, False):
        runner = SimpleNamespace(
            embedding_client=object(),
            results_dir=tmp_path,
            novelty_judge=fake_judge(accepts=accepts),
            scheduler=object(),
        )
        gate_runner(runner, language="cpp")
        asked = runner.novelty_judge.assess_novelty_with_rejection_sampling_async(
            str(tmp_path / "main.cpp"), [1.0], SimpleNamespace(code=SEED, generation=1), None
        )
        assert asyncio.run(asked) == (accepts, {"novelty_explanation": "of the user"})


def test_a_runner_that_would_never_ask_is_refused(tmp_path: Path) -> None:
    runner = SimpleNamespace(embedding_client=None, results_dir=tmp_path)
    with pytest.raises(SetupError, match="embedding_model"):
        gate_runner(runner, language="cpp")


@pytest.mark.filterwarnings("default")
def test_the_example_measures_programs_on_this_machine(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "evolve", tmp_path / "evolve")
    with ScriptedServer(Answers(0, SEED, answers()[:4]).replier()) as server:
        command = [sys.executable, "with_shinka.py", "--base-url", server.base_url, "-n", "2"]
        command += ["--model", "recorded", "--embedding-model", "recorded"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "2 of 2 different programs were measured" in run.stdout, "the first is not asked about"
    outcomes = Gate(language="cpp", store=folder / "shinka_run" / "gate.db").outcomes
    assert len(outcomes) == 3
    assert outcomes[0].speedup
