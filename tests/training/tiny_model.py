"""A Llama of some thousand weights with a tokenizer of 300 tokens, and adapters for any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelcast.training.models import pre_tokenizers
from tests.model_server import KERNELS

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}<s>assistant\n"
)


def write_tiny_model(
    folder: Path, split: str = "smollm", kind: str = "Llama", **config: Any
) -> Path:
    """Write a random model as `save_pretrained` does; `split` is llama.cpp's name."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, trainers
    from tokenizers import pre_tokenizers as parts

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers()[split]
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=parts.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([path.read_text() for path in KERNELS.iterdir()], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    shape: dict[str, Any] = {
        "vocab_size": 320,  # more rows than tokens
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "initializer_range": 0.3,  # so that no two tokens are as likely
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(**(shape | config))
    model = getattr(transformers, f"{kind}ForCausalLM")(settings)
    for name, weights in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weights)
    model.save_pretrained(folder)
    return folder


def with_adapter(model: Any, scale: float, **settings: Any) -> Any:
    """The model with a LoRA adapter of random weights, which changes what it says."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", **settings)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, config)
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights).data.mul_(scale)
    return adapted.eval()


def next_token(model: Any, tokenizer: Any, question: str) -> Any:
    """The log probabilities of the first token of an answer."""
    torch = pytest.importorskip("torch")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.no_grad():
        return torch.log_softmax(model(**prompt, logits_to_keep=1).logits[0, 0].float(), -1)
