"""How a language model was trained, kept beside it, so that `refresh` can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from kernelcast.bins import BINS
from kernelcast.errors import SetupError
from kernelcast.forecasters._prompts import Prompts, Way
from kernelcast.outcomes import Outcomes
from kernelcast.training import grpo, supervised
from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.pairs import Question
from kernelcast.training.rewards import Reward
from kernelcast.types import Record

_FILE = "recipe.json"


class Recipe(Record):
    """A recipe and its settings. `ships` says that the rows were checked for publication.

    `settings` are those of `supervised.Settings` or `grpo.Settings` without `out`, and `reward` is
    one of `REWARDS` for `grpo`.
    """

    kind: Literal["supervised", "grpo"]
    ask: Way
    bins: str = "default"
    reward: str = "crps"
    ships: bool = False
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, settings: supervised.Settings | grpo.Settings, **stated: Any) -> Recipe:
        """Return the recipe of these settings."""
        kind = "grpo" if isinstance(settings, grpo.Settings) else "supervised"
        values = {name: value for name, value in asdict(settings).items() if name != "out"}
        return cls(kind=kind, settings=values, **stated)

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read the recipe of a trained model.

        Raises:
            SetupError: The folder holds none.
        """
        if not (folder / _FILE).is_file():
            raise SetupError(
                f"{folder} holds no {_FILE}: train it by `kernelcast train supervised`"
            )
        return cls.model_validate_json((folder / _FILE).read_text())

    def save(self, folder: Path) -> None:
        """Write the recipe beside the model."""
        (folder / _FILE).write_text(self.model_dump_json(indent=2) + "\n")

    @property
    def prompts(self) -> Prompts:
        """How the model is asked."""
        return Prompts(self.ask, self.bins)

    @property
    def batch(self) -> int:
        """Questions of a step."""
        return int(self.settings["batch" if self.kind == "supervised" else "prompts"])

    def train(
        self,
        model: LanguageModel,
        questions: Sequence[Question],
        out: Path,
        on_step: Callable[[int], None] | None = None,
        **changed: Any,
    ) -> list[dict[str, float]]:
        """Train in a folder, with these settings changed, and keep the recipe there.

        Returns:
            What the trainer logged.
        """
        values = {**self.settings, **changed, "out": out}
        if values["lora"] is not None:
            values["lora"] = Lora(**values["lora"])
        outcomes = Outcomes(BINS[self.bins])
        if self.kind == "supervised":
            settings = supervised.Settings(**values)
            log = supervised.train(model, questions, settings, outcomes, on_step)
        else:
            reward = Reward.named(self.reward, outcomes=outcomes, asked=self.ask)
            log = grpo.train(model, questions, reward, grpo.Settings(**values), on_step)
        self.save(out)
        return log
