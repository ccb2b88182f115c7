"""The supervised recipe on a tiny model: it learns, and a pass more does not change a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.errors import SetupError
from kernelcast.outcomes import Outcomes
from kernelcast.training import supervised
from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.pairs import Question
from kernelcast.training.supervised import Settings

from .tiny_model import write_tiny_model

pytest.importorskip("trl")


def told_apart(count: int) -> list[Question]:
    """Questions whose one word tells the outcome."""
    letters = Outcomes().letters
    return [
        Question(
            messages=({"role": "user", "content": "tile" if number % 2 else "row"},),
            outcome=4 + 6 * (number % 2),
            answer=letters[4 + 6 * (number % 2)],
        )
        for number in range(count)
    ]


def settings(out: Path, **changes: object) -> Settings:
    made = Settings(out=out, steps=25, batch=8, at_once=8, learning_rate=1e-2, lora=None)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("loss", ["cross_entropy", "crps"])
def test_it_learns_what_a_word_tells(tiny: Path, tmp_path: Path, loss: supervised.Loss) -> None:
    steps: list[int] = []
    log = supervised.train(
        LanguageModel.load(tiny),
        told_apart(64),
        settings(tmp_path, loss=loss),
        on_step=steps.append,
    )
    assert steps == list(range(1, 26))
    assert log[-1]["loss"] < 0.1 * log[0]["loss"]


def test_a_single_step_changes_the_model(tiny: Path, tmp_path: Path) -> None:
    model = LanguageModel.load(tiny)
    supervised.train(model, told_apart(8), settings(tmp_path, steps=1))
    before = LanguageModel.load(tiny).model.state_dict()
    assert any((before[name] != now).any() for name, now in model.model.state_dict().items())


def test_several_passes_make_the_same_step_as_one(tiny: Path, tmp_path: Path) -> None:
    losses = [
        supervised.train(
            LanguageModel.load(tiny),
            told_apart(64),
            settings(tmp_path / f"{at_once}", at_once=at_once, steps=2),
        )[0]
        for at_once in (8, 2)
    ]
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-3)
    assert losses[0]["grad_norm"] == pytest.approx(losses[1]["grad_norm"], rel=1e-2)


def test_an_adapter_goes_on_from_where_it_was(tiny: Path, tmp_path: Path) -> None:
    first = settings(tmp_path / "first", lora=Lora(4, 8), steps=20)
    losses = supervised.train(LanguageModel.load(tiny), told_apart(64), first)
    again = LanguageModel.load(tmp_path / "first")
    more = supervised.train(again, told_apart(64), settings(tmp_path / "more", steps=1))
    assert more[0]["loss"] < 0.5 * losses[0]["loss"]
    assert (tmp_path / "more" / "adapter_config.json").is_file()


def test_questions_that_are_too_long_are_left_out(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="raise --max-tokens"):
        supervised.train(LanguageModel.load(tiny), told_apart(4), settings(tmp_path, max_tokens=3))
