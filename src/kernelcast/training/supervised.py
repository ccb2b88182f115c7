"""Supervised training of a language model on the letter of what happened, as `direct` asks for it.

A proper loss without reinforcement learning: it is the baseline that rewards must beat. A model
that is asked in `digits` learns to write whole answers.

    train(LanguageModel.load(base), questions, Settings(out=...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernelcast.outcomes import CAUSES, Outcomes
from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.pairs import Question

if TYPE_CHECKING:
    import torch

Loss = Literal["cross_entropy", "crps"]

_IGNORED = -100  # a label that transformers' losses leave out


@dataclass(frozen=True)
class Settings:
    """How to train. One step reads `batch` questions, `at_once` of them in one pass.

    `loss`: the cross-entropy of the answer's tokens, or the ranked probability score of the
    letters' chances, for answers of one letter. Questions of more than `max_tokens` are left out.
    `lora`: the adapter's size; None trains all weights. `steps` counts from the beginning, also
    where an interrupted training goes on.
    """

    out: Path
    steps: int = 1000
    batch: int = 64
    at_once: int = 64
    learning_rate: float = 2e-4
    warmup: float = 0.05
    loss: Loss = "cross_entropy"
    lora: Lora | None = field(default_factory=Lora)
    weight_decay: float = 0.01
    seed: int = 0
    save_every: int = 200
    max_tokens: int = 8192
    checkpoint_activations: bool = False


def train(
    model: LanguageModel,
    questions: Sequence[Question],
    settings: Settings,
    outcomes: Outcomes | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[dict[str, float]]:
    """Train on the questions' answers and save the result in `settings.out`.

    An interrupted training goes on from its last checkpoint there. `on_step` is called with the
    number of each step that is done.

    Returns:
        What the trainer logged, with `loss` and `step`.
    """
    import torch
    from transformers import Trainer, TrainingArguments

    trained = model.adapted(settings.lora)
    kept = model.fitting(questions, settings.max_tokens)
    tokens = [(prompt, model.answer_tokens(question.answer)) for question, prompt in kept]
    outcome_of = [question.outcome for question, _ in kept]
    letters = torch.tensor(
        [model.first_token(letter) for letter in (outcomes or Outcomes()).letters]
    )

    def collate(numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        # Padded on the left, so that all answers end at the same place.
        width = max(len(tokens[at][0]) + len(tokens[at][1]) for at in numbers)
        answer_width = max(len(tokens[at][1]) for at in numbers)
        ids = torch.full((len(numbers), width), model.pad_token)
        mask = torch.zeros((len(numbers), width), dtype=torch.long)
        labels = torch.full((len(numbers), answer_width), _IGNORED)
        for row, at in enumerate(numbers):
            prompt, answer = tokens[at]
            ids[row, width - len(prompt) - len(answer) :] = torch.tensor([*prompt, *answer])
            mask[row, width - len(prompt) - len(answer) :] = 1
            labels[row, answer_width - len(answer) :] = torch.tensor(answer)
        happened = torch.tensor([outcome_of[at] for at in numbers])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "outcome": happened}

    class _Trainer(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: dict[str, torch.Tensor], *_args: Any, **_options: Any
        ) -> torch.Tensor:
            labels, happened = inputs.pop("labels"), inputs.pop("outcome")
            # The logits before each token of the answer; those of the prompt are not needed.
            logits = model(**inputs, logits_to_keep=labels.shape[1] + 1).logits[:, :-1]
            if settings.loss == "crps":
                return _crps_loss(logits[:, 0], letters.to(logits.device), happened)
            flat = logits.reshape(-1, logits.shape[-1]).float()
            return torch.nn.functional.cross_entropy(
                flat, labels.reshape(-1), ignore_index=_IGNORED
            )

    arguments = TrainingArguments(
        output_dir=str(settings.out / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.at_once,
        gradient_accumulation_steps=max(1, settings.batch // settings.at_once),
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        # The first step of a warm-up changes nothing.
        warmup_steps=min(max(1, round(settings.warmup * settings.steps)), settings.steps - 1),
        weight_decay=settings.weight_decay,
        save_steps=settings.save_every,
        activation_checkpointing=settings.checkpoint_activations,
        **model.trainer_options(settings.seed),
    )
    trainer = _Trainer(
        model=trained,
        args=arguments,
        train_dataset=list(range(len(kept))),
        data_collator=collate,
    )
    trainer.model_accepts_loss_kwargs = False  # the loss is a mean: passes are averaged, not added
    log = model.run(trainer, settings.out, on_step)
    return [entry for entry in log if "loss" in entry]


def _crps_loss(logits: torch.Tensor, letters: torch.Tensor, outcome: torch.Tensor) -> torch.Tensor:
    """The score of `rewards`' crps as a loss, and the chance of anything but a letter."""
    import torch

    of_letters = logits.float()[:, letters]
    chances = torch.softmax(of_letters, dim=-1)
    causes = len(CAUSES)
    runs = chances[:, causes:]
    p_ok = runs.sum(dim=-1, keepdim=True)
    stages = torch.cat([chances[:, :causes], p_ok], dim=-1)
    stage = outcome.clamp(max=causes)
    happened = torch.nn.functional.one_hot(stage, causes + 1)
    brier = ((stages - happened) ** 2).sum(dim=-1) / 2.0
    below = torch.cumsum(runs / p_ok.clamp(min=1e-9), dim=-1)[:, :-1]
    edges = torch.arange(below.shape[1], device=below.device)
    was_below = edges >= (outcome - causes)[:, None]
    ranked = ((below - was_below.float()) ** 2).mean(dim=-1)
    score = brier + torch.where(outcome >= causes, ranked, torch.zeros_like(ranked))
    elsewhere = torch.logsumexp(logits.float(), dim=-1) - torch.logsumexp(of_letters, dim=-1)
    return (score + elsewhere).mean()
