"""A causal language model with its tokenizer, as the recipes train it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcast.errors import SetupError, import_extra
from kernelcast.llm import Message
from kernelcast.training.models import Dtype, adapter_settings, load_base
from kernelcast.training.pairs import Question


@dataclass(frozen=True)
class Lora:
    """Size of an adapter on all linear layers."""

    rank: int = 32
    alpha: int = 64


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model of transformers and its tokenizer, with what both recipes need of them."""

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, name_or_path: str | Path) -> LanguageModel:
        """Load a model as `load_base` does, in bfloat16 on a GPU, else in float32.

        A folder that a recipe has written goes on with its adapter.
        """
        torch = import_extra("torch", "train")
        dtype: Dtype = "bfloat16" if torch.cuda.is_available() else "float32"
        settings = adapter_settings(Path(name_or_path))
        if settings is None:
            return cls(*load_base(name_or_path, dtype))
        peft = import_extra("peft", "train")
        model, tokenizer = load_base(settings["base_model_name_or_path"], dtype)
        adapted = peft.PeftModel.from_pretrained(model, name_or_path, is_trainable=True)
        return cls(adapted, tokenizer)

    @property
    def pad_token(self) -> int:
        """The id of the token that fills short rows."""
        pad = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if pad is None else pad)

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that a server reads for these messages, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def fitting(self, questions: Sequence[Question], most: int) -> list[tuple[Question, list[int]]]:
        """The questions of at most so many tokens, with their tokens.

        Raises:
            SetupError: None is so short.
        """
        read = [(question, self.prompt_tokens(question.messages)) for question in questions]
        kept = [(question, tokens) for question, tokens in read if len(tokens) <= most]
        if not kept:
            shortest = min((len(tokens) for _, tokens in read), default=0)
            raise SetupError(
                f"no question has at most {most} tokens, the shortest has {shortest}: "
                "raise --max-tokens"
            )
        return kept

    def answer_tokens(self, answer: str) -> list[int]:
        """The tokens of an answer, with its end."""
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        return [*ids, self.tokenizer.eos_token_id]

    def first_token(self, text: str) -> int:
        """The token with which an answer begins."""
        return int(self.tokenizer.encode(text, add_special_tokens=False)[0])

    def adapted(self, lora: Lora | None) -> Any:
        """The model to train: with a new adapter, or itself if it has one or is to have none."""
        if lora is None or hasattr(self.model, "peft_config"):
            return self.model
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers renames
            return get_peft_model(self.model, config)

    def trainer_options(self, seed: int) -> dict[str, Any]:
        """Options of transformers' trainer that both recipes share."""
        import torch

        on_gpu = torch.cuda.is_available()
        return {
            "seed": seed,
            "use_cpu": not on_gpu,
            "bf16": on_gpu,
            "report_to": [],
            "disable_tqdm": True,
            "save_total_limit": 2,
            "remove_unused_columns": False,
            "logging_steps": 10,
            "logging_first_step": True,
            "max_grad_norm": 1.0,
        }

    def run(
        self, trainer: Any, out: Path, on_step: Callable[[int], None] | None
    ) -> list[dict[str, float]]:
        """Train, from the last checkpoint in a folder if there is one, and save the result there.

        Returns:
            What the trainer logged.
        """
        from transformers import PrinterCallback, TrainerCallback

        class _Steps(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
                if on_step is not None:
                    on_step(state.global_step)

        trainer.remove_callback(PrinterCallback)  # it prints on standard output
        trainer.add_callback(_Steps)
        folders = (out / "checkpoints").glob("checkpoint-*")
        last = max(map(str, folders), key=lambda name: int(name.rpartition("-")[2]), default=None)
        with warnings.catch_warnings():
            # peft and TRL call what transformers renames, and a .gguf file has no configuration.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "Could not find a config file")
            trainer.train(resume_from_checkpoint=last)
            trainer.model.save_pretrained(out)
        self.tokenizer.save_pretrained(out)
        log: list[dict[str, float]] = trainer.state.log_history
        return log
