"""The GRPO recipe on a tiny model that already answers in digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.outcomes import Outcomes
from kernelcast.training import grpo, supervised
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.pairs import Question
from kernelcast.training.rewards import Reward

from .tiny_model import write_tiny_model

pytest.importorskip("trl")


def test_answers_that_earn_more_become_likelier(tmp_path: Path) -> None:
    """Of two answers in the warm start, the one that is right is left."""
    outcomes = Outcomes()
    right, wrong = 8, 5
    questions = [
        Question(
            messages=({"role": "user", "content": "row"},),
            outcome=right,
            answer=outcomes.digits([float(at == said) for at in range(outcomes.count)]),
        )
        for said in (right, wrong) * 16
    ]
    model = LanguageModel.load(write_tiny_model(tmp_path / "tiny"))
    warm = supervised.Settings(
        out=tmp_path / "warm", steps=60, batch=8, at_once=8, learning_rate=1e-2, lora=None
    )
    supervised.train(model, questions, warm)
    settings = grpo.Settings(
        out=tmp_path / "out",
        steps=12,
        prompts=2,
        rollouts=8,
        at_once=16,
        learning_rate=5e-3,
        max_output_tokens=16,
        lora=None,
    )
    log = grpo.train(model, questions, Reward.named("brier"), settings)
    assert log[-1]["reward"] > log[0]["reward"]
    assert log[-1]["reward"] > 1.5
    assert (tmp_path / "out" / "model.safetensors").is_file()
