"""A recipe trains as it states, and what it states is kept beside the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.bins import BINS
from kernelcast.errors import SetupError
from kernelcast.outcomes import Outcomes
from kernelcast.training import grpo, supervised
from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.pairs import Question
from kernelcast.training.recipe import Recipe

from .tiny_model import write_tiny_model


@pytest.mark.parametrize("bins", list(BINS))
def test_the_letters_that_are_scored_are_those_of_the_bins(tmp_path: Path, bins: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    base = write_tiny_model(tmp_path / "base")
    outcomes = Outcomes(BINS[bins])
    happened = outcomes.count - 2
    asked = Question(({"role": "user", "content": "row"},), happened, outcomes.letters[happened])
    settings = supervised.Settings(
        out=tmp_path, loss="crps", lora=None, batch=1, at_once=1, steps=1
    )
    recipe = Recipe.of(settings, ask="direct", bins=bins)
    (entry,) = recipe.train(LanguageModel.load(base), [asked], tmp_path / "out")
    model = LanguageModel.load(base)
    tokens = torch.tensor([model.prompt_tokens(asked.messages)])
    with torch.no_grad():
        logits = model.model(tokens, logits_to_keep=1).logits[:, 0]
    letters = torch.tensor([model.first_token(letter) for letter in outcomes.letters])
    expected = supervised._crps_loss(logits, letters, torch.tensor([happened]))
    assert entry["loss"] == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize(
    "settings",
    [supervised.Settings(out=Path("out"), batch=7), grpo.Settings(Path("out"), lora=Lora(2, 4))],
)
def test_a_recipe_is_read_as_it_was_saved(
    tmp_path: Path, settings: supervised.Settings | grpo.Settings
) -> None:
    recipe = Recipe.of(settings, ask="digits", bins="paper", reward="brier", ships=True)
    recipe.save(tmp_path)
    assert Recipe.read(tmp_path) == recipe
    assert recipe.batch == (8 if recipe.kind == "grpo" else 7)
    assert recipe.prompts.outcomes.bins is BINS["paper"]
    assert "out" not in recipe.settings


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"holds no recipe\.json"):
        Recipe.read(tmp_path)
