"""Reinforcement learning of a forecaster by GRPO, with a reward of `rewards`.

For each question the model writes several answers; those that earn more than the others of their
question become likelier. The trainer is TRL's, the adapter peft's, and on a GPU vLLM may write the
answers.

    train(LanguageModel.load(base), questions, Reward.named("crps"), Settings(out=...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.training.language_model import LanguageModel, Lora
from kernelcast.training.pairs import Question
from kernelcast.training.rewards import Reward


@dataclass(frozen=True)
class Settings:
    """How to train. One step reads `prompts` questions and writes `rollouts` answers to each.

    Questions of more than `max_tokens` are left out. The learning rate falls to 0 at the last step.

    `at_once`: answers in one pass of the gradient. `beta`: weight of the distance to the model at
    the beginning. `vllm`: let vLLM write the answers, on the trainer's own GPU. `steps` counts from
    the beginning, also where an interrupted training goes on.
    """

    out: Path
    steps: int = 200
    prompts: int = 8
    rollouts: int = 8
    at_once: int = 8
    learning_rate: float = 4e-5
    beta: float = 0.0
    temperature: float = 1.0
    max_output_tokens: int = 32
    max_tokens: int = 8192
    lora: Lora | None = field(default_factory=Lora)
    vllm: bool = False
    vllm_memory: float = 0.3
    vllm_parallel: int = 1
    checkpoint_activations: bool = False
    seed: int = 0
    save_every: int = 20


def train(
    model: LanguageModel,
    questions: Sequence[Question],
    reward: Reward,
    settings: Settings,
    on_step: Callable[[int], None] | None = None,
) -> list[dict[str, float]]:
    """Train on the reward of the answers and save the result in `settings.out`.

    An interrupted training goes on from its last checkpoint there. `on_step` is called with the
    number of each step that is done.

    Returns:
        What the trainer logged, with `reward`, `grad_norm` and `step`.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def earned(completions: Sequence[Any], outcome: Sequence[int], **_: Any) -> list[float]:
        texts = (completion[-1]["content"] for completion in completions)
        return [reward(text, happened) for text, happened in zip(texts, outcome, strict=True)]

    answers = settings.prompts * settings.rollouts
    vllm: dict[str, Any] = {}
    if settings.vllm:
        vllm = {
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": settings.vllm_memory,
            "vllm_tensor_parallel_size": settings.vllm_parallel,
            "vllm_enable_sleep_mode": True,
            "vllm_max_model_length": settings.max_tokens + settings.max_output_tokens,
        }
    arguments = GRPOConfig(
        output_dir=str(settings.out / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.at_once,
        gradient_accumulation_steps=max(1, answers // settings.at_once),
        num_generations=settings.rollouts,
        max_completion_length=settings.max_output_tokens,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=min(5, settings.steps - 1),
        beta=settings.beta,
        temperature=settings.temperature,
        activation_checkpointing=settings.checkpoint_activations,
        use_vllm=settings.vllm,
        save_steps=settings.save_every,
        **vllm,
        **model.trainer_options(settings.seed),
    )
    rows = [
        {"prompt": list(question.messages), "outcome": question.outcome}
        for question, _ in model.fitting(questions, settings.max_tokens)
    ]
    trainer = GRPOTrainer(
        model=model.adapted(settings.lora),
        reward_funcs=earned,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=model.tokenizer,
    )
    log = model.run(trainer, settings.out, on_step)
    return [entry for entry in log if "reward" in entry]
