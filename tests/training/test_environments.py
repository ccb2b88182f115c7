"""Rewards in other trainers: what verl and verifiers are given, and what they make of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.bins import BINS
from kernelcast.dataset import Rows, to_table, write_rows
from kernelcast.errors import SetupError
from kernelcast.forecasters._prompts import Prompts
from kernelcast.outcomes import Outcomes
from kernelcast.training import write_verl_rows
from kernelcast.training.environments import compute_score
from kernelcast.training.pairs import questions
from kernelcast.training.rewards import REWARDS, Reward
from tests.model_server import Reply, ScriptedServer

from .conftest import search_rows

SURE, UNREADABLE = "I0000000090000", "I would say it is a tie."
READ_BY_VERL = """
import asyncio, json, sys
from omegaconf import OmegaConf
import numpy as np, torch
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset

path, texts = sys.argv[1], sys.argv[2:]

class Tokenizer:
    def decode(self, ids, **_):
        return "".join(map(chr, ids.tolist()))

function = {
    "path": "pkg://kernelcast.training.environments",
    "name": "compute_score",
    "reward_kwargs": {"reward": "brier"},
}
manager = {"source": "register", "name": "naive"}
reward = {"custom_reward_function": function, "reward_manager": manager}
config = OmegaConf.create({"reward": reward})
options = OmegaConf.create({"filter_overlong_prompts": False})
dataset = RLHFDataset([path], Tokenizer(), options)

async def score():
    judge = load_reward_manager(config, Tokenizer())
    for at in range(len(dataset)):
        row, text = dataset[at], texts[at % len(texts)]
        ids = torch.tensor([[ord(letter) for letter in text]])
        held = {}
        for name in ("data_source", "reward_model", "extra_info"):
            held[name] = np.empty(1, dtype=object)
            held[name][0] = row[name]
        tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
        told = await judge.run_single(DataProto.from_dict(tensors=tensors, non_tensors=held))
        print(json.dumps([row["raw_prompt"], told["reward_score"]]))

asyncio.run(score())
"""


@pytest.fixture(scope="module")
def few_rows() -> Rows:
    return to_table(search_rows(2, 4))


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs an environment of its own, with {package}: it pins what it needs")


def points(outcomes: Outcomes, outcome: int) -> str:
    return json.dumps({key: 90 * (at == outcome) for at, key in enumerate(outcomes.keys)})


@given(
    st.lists(st.integers(0, 9), min_size=13, max_size=13).filter(any)
    | st.text()
    | st.sampled_from([SURE, UNREADABLE, ""]),
    st.integers(0, 12),
    st.sampled_from(sorted(REWARDS)),
)
def test_the_function_for_verl_is_the_reward(
    said: Sequence[int] | str, outcome: int, reward: str
) -> None:
    text = said if isinstance(said, str) else Outcomes().digits(said)
    told = {"index": 0, "num_turns": 1}
    for truth in (outcome, str(outcome)):
        earned = compute_score("kernelcast", text, truth, told, reward=reward)
        assert earned == Reward.named(reward)(text, outcome)
    if said == UNREADABLE:
        assert earned == 0.0


def test_an_answer_is_read_as_its_row_was_asked() -> None:
    outcomes = Outcomes(BINS["paper"])
    text, told = points(outcomes, 7), {"ask": "reasoned", "bins": "paper"}
    assert compute_score("", text, 7, told) == pytest.approx(3.0)
    assert compute_score("", text, 7, ask="reasoned", bins="paper") == pytest.approx(3.0)
    assert compute_score("", text, 7) == 0.0  # these are no digits
    for wrong in ({"ask": "direct"}, {"bins": "all"}, {"reward": "speed"}):
        with pytest.raises(SetupError, match=rf"not '{next(iter(wrong.values()))}'"):
            compute_score("", text, 7, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ask", "bins"), [("digits", "default"), ("reasoned", "paper")])
def test_the_rows_for_verl_hold_the_questions(
    ask: Any, bins: str, few_rows: Rows, tmp_path: Path
) -> None:
    path = tmp_path / "verl.parquet"
    assert write_verl_rows(path, few_rows, ask=ask, bins=bins, limit=5, seed=3) == 5
    asked = questions(few_rows, Prompts(ask, bins), limit=5, seed=3)
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["prompt"] for row in rows] == [list(question.messages) for question in asked]
    assert [row["extra_info"]["index"] for row in rows] == list(range(5))
    outcomes = Outcomes(BINS[bins])
    for row, question in zip(rows, asked, strict=True):
        assert row.keys() == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["reward_model"] == {"style": "rule", "ground_truth": question.outcome}
        truth, told = row["reward_model"]["ground_truth"], row["extra_info"]
        sure = [float(at == truth) for at in range(outcomes.count)]
        text = outcomes.digits(sure) if ask == "digits" else points(outcomes, truth)
        assert compute_score(row["data_source"], text, truth, told) == pytest.approx(3.0)
    with pytest.raises(SetupError, match="digits, reasoned"):
        write_verl_rows(path, few_rows, ask="direct")  # type: ignore[arg-type]


@pytest.mark.slow
def test_verl_reads_the_rows_and_loads_the_function(few_rows: Rows, tmp_path: Path) -> None:
    needs("verl")
    path = tmp_path / "verl.parquet"
    write_verl_rows(path, few_rows, limit=4)
    told = json_lines(run(tmp_path, sys.executable, "-c", READ_BY_VERL, path, SURE, UNREADABLE))
    asked = questions(few_rows, Prompts("digits"), limit=4)
    reward = Reward.named("brier")
    assert told == [
        [list(question.messages), reward((SURE, UNREADABLE)[at % 2], question.outcome)]
        for at, question in enumerate(asked)
    ]


@pytest.mark.slow
def test_verifiers_asks_and_scores(few_rows: Rows, tmp_path: Path) -> None:
    needs("verifiers")
    write_rows(tmp_path / "rows.parquet", few_rows)
    (tmp_path / "kernel_forecasts.py").write_text(
        "from kernelcast.training import verifiers_taskset\n\n"
        'Forecasts = verifiers_taskset()\n__all__ = ["Forecasts"]\n'
    )
    asked = questions(few_rows, Prompts("digits"), limit=4)
    sure = Outcomes().digits([float(at == asked[0].outcome) for at in range(13)])
    texts = [sure, UNREADABLE, SURE, SURE]
    said = {str(list(one.messages)): text for one, text in zip(asked, texts, strict=True)}
    with ScriptedServer(lambda request: streamed(said[str(request["messages"])])) as server:
        command = (
            "kernel-forecasts --env.taskset.rows rows.parquet --env.taskset.reward brier "
            "--env.taskset.limit 4 --env.agent.harness.id null "
            "--env.agent.runtime.type subprocess --model m --client.api-key-var NO_KEY "
            f"--client.base-url {server.base_url} --no-push --no-rich --run.name r -o out"
        )
        run(tmp_path, Path(sys.executable).with_name("vf-eval"), *command.split())
    episodes = json_lines((tmp_path / "out/r/traces.jsonl").read_text())
    scored = {one["task"]["data"]["idx"]: one["traces"][0]["rewards"] for one in episodes}
    reward = Reward.named("brier")
    earned = [reward(text, question.outcome) for text, question in zip(texts, asked, strict=True)]
    assert earned[:2] == [2.0, 0.0]
    assert [scored[at]["forecast"]["score"] for at in range(4)] == earned


def streamed(text: str) -> Reply:
    """An answer in pieces, as verifiers asks for it."""
    kept = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    pieces = [({"role": "assistant", "content": text}, None), ({}, "stop")]
    events = [
        json.dumps({**kept, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        for delta, reason in pieces
    ]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return Reply(body=body, headers={"content-type": "text/event-stream"})


def run(folder: Path, *command: object) -> str:
    """What a program of the other package prints, run in a folder and with nobody's settings."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)]),
        "UV_SYSTEM_CERTS": "1",  # verifiers installs its harness by uv
    }
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith(("[", "{"))]
