"""OpenEvolve's own evaluator and command line, with a gate before a recorded evaluator."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from openevolve.config import EvaluatorConfig
from openevolve.evaluator import Evaluator

from kernelcast import Gate, SetupError
from kernelcast.integrations.openevolve import gated, gated_functions
from kernelcast.problems import load_problem
from tests.examples import EXAMPLES
from tests.model_server import Reply, ScriptedServer
from tests.recorded_edits import edits_of

SEED = load_problem("softmax").seed_source.strip()
EDITS = [edit.source.strip() for edit in edits_of("softmax").values()][1:]  # the first renames
EVALUATOR = """
import json
from pathlib import Path

HERE = Path(__file__).parent
SCORES = json.loads((HERE / "scores.json").read_text())


def evaluate(program_path):
    text = Path(program_path).read_text().strip()
    with (HERE / "measured.jsonl").open("a") as file:
        file.write(json.dumps(text) + "\\n")
    return {"combined_score": SCORES[text], "tried": 1.0}
"""
CASCADE = f"""{EVALUATOR}

def evaluate_stage1(program_path):
    return {{"combined_score": 0.0 if "broken" in Path(program_path).read_text() else 1.0}}


evaluate_stage2 = evaluate
"""


def prepared(folder: Path, scores: dict[str, float], text: str = EVALUATOR) -> Path:
    """A user's evaluator in a folder: it knows the scores, and notes what it measures."""
    (folder / "scores.json").write_text(json.dumps(scores))
    evaluator = folder / "evaluator.py"
    evaluator.write_text(text)
    return evaluator


def measured(folder: Path) -> list[str]:
    path = folder / "measured.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def scored(evaluator: str, *programs: str, **config: Any) -> list[dict[str, Any]]:
    """What OpenEvolve's evaluator makes of programs, one after the other."""
    settings = {"cascade_evaluation": False, "max_retries": 0} | config
    made = Evaluator(EvaluatorConfig(**settings), evaluator, suffix=".cpp")
    return [asyncio.run(made.evaluate_program(program)) for program in programs]


def test_a_search_measures_less_and_scores_what_it_did_not_measure_with_0(tmp_path: Path) -> None:
    texts = [*EDITS[:9], EDITS[0]]
    scores = {SEED: 1.0} | {text: 8.0 - place for place, text in enumerate(texts[:4])}
    scores |= dict.fromkeys(texts[4:9], 0.2)
    evaluator = gated(prepared(tmp_path, scores), language="cpp", miss=0.4, least_chance=1.0)
    (tmp_path / "initial.cpp").write_text(SEED)
    replies = [Reply(f"```cpp\n{text}\n```") for text in texts]
    with ScriptedServer(*replies) as server:
        model = {"name": "recorded", "api_base": server.base_url, "api_key": "none"}
        config = {
            "language": "cpp",
            "diff_based_evolution": False,
            "llm": {"api_base": server.base_url, "models": [model]},
            "evaluator": {"cascade_evaluation": False},
            "evolution_trace": {"enabled": True, "include_code": True},
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "openevolve.cli", "initial.cpp", evaluator]
        command += ["--config", "config.yaml", "--iterations", "10", "--output", "out"]
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    rows = map(json.loads, (tmp_path / "out" / "evolution_trace.jsonl").read_text().splitlines())
    found = {row["child_code"].strip(): row["child_metrics"] for row in rows}
    done = measured(tmp_path)
    assert done[0] == SEED
    assert len(set(done)) == len(done) < len(found) + 1, "a repeated program, and some were dropped"
    for text, metrics in found.items():
        assert metrics["measured"] == float(text in done)
        assert metrics["combined_score"] == (scores[text] if text in done else 0.0)
    best = json.loads((tmp_path / "out" / "best" / "best_program_info.json").read_text())
    assert best["metrics"]["combined_score"] == 8.0
    gate = Gate(language="cpp", store=tmp_path / "evaluator_gate.db")
    assert gate.best is not None
    assert gate.best.speedup == 8.0
    assert gate.to_measure == len(done)


def test_a_cascade_checks_each_program_and_asks_before_its_last_stage(tmp_path: Path) -> None:
    broken = f"{EDITS[0]}\n// broken"
    evaluator = gated(prepared(tmp_path, {SEED: 1.0, EDITS[1]: 3.0}, CASCADE), language="cpp")
    found = scored(evaluator, SEED, broken, EDITS[1], EDITS[1], cascade_evaluation=True)
    assert measured(tmp_path) == [SEED, EDITS[1]]
    assert [metrics["combined_score"] for metrics in found] == [1.0, 0.0, 3.0, 3.0]
    assert Gate(language="cpp", store=tmp_path / "evaluator_gate.db").asked == 2


@pytest.mark.parametrize("score", [0.0, float("nan")])
def test_a_program_without_a_score_is_a_failure(tmp_path: Path, score: float) -> None:
    evaluator = gated(prepared(tmp_path, {SEED: 1.0, EDITS[0]: score}), language="cpp")
    scored(evaluator, SEED, EDITS[0], EDITS[0])
    known = Gate(language="cpp", store=tmp_path / "evaluator_gate.db").ask(EDITS[0]).known
    assert known is not None
    assert known.failure is not None
    assert len(measured(tmp_path)) == 2


def test_an_evaluator_that_raises_is_not_tried_again(tmp_path: Path) -> None:
    text = EVALUATOR.replace("    return", "    raise MemoryError('of the device')\n    return")
    evaluator = gated(prepared(tmp_path, {SEED: 1.0}, text), language="cpp")
    (metrics,) = scored(evaluator, SEED, max_retries=3)
    assert metrics["combined_score"] == 0.0
    assert len(measured(tmp_path)) == 1
    known = Gate(language="cpp", store=tmp_path / "evaluator_gate.db").ask(SEED).known
    assert known is not None
    assert known.failure is not None
    assert known.failure.message == "MemoryError: of the device"


def test_a_program_that_takes_too_long_scores_as_without_a_gate(tmp_path: Path) -> None:
    text = f"import time\n{EVALUATOR}".replace("    return", "    time.sleep(0.5)\n    return")
    path = prepared(tmp_path, {SEED: 1.0}, text)
    alone = scored(str(path), SEED, timeout=0.1)
    assert scored(gated(path, language="cpp"), SEED, timeout=0.1) == alone
    assert alone == [{"error": 0.0, "timeout": True}]


def test_wrong_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="give the path"):
        gated(tmp_path / "evaluator.py", language="cpp")
    path = prepared(tmp_path, {SEED: -0.004})
    with pytest.raises(SetupError, match="policy=<object"):
        gated(path, language="cpp", policy=object())
    functions = gated_functions(str(path), {"language": "cpp"})
    (tmp_path / "seed.cpp").write_text(SEED)
    with pytest.raises(SetupError, match="positive number"):
        functions["evaluate"](str(tmp_path / "seed.cpp"))


@pytest.mark.slow
def test_the_example_measures_programs_on_this_machine(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "evolve", tmp_path / "evolve")
    with ScriptedServer(Reply("```cpp\nnot a kernel\n```")) as server:
        command = [sys.executable, "with_openevolve.py", "--base-url", server.base_url]
        command += ["--model", "recorded", "-n", "1"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "2 of 2 different programs were measured" in run.stdout
    first, failed = Gate(language="cpp", store=folder / "openevolve_run" / "gate.db").outcomes
    assert first.speedup
    assert failed.failure is not None
    assert failed.source.strip() == "not a kernel"
