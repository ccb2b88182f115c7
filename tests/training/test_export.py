"""Exported models say what the trained ones say: in transformers, and served by llama.cpp."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.errors import SetupError
from kernelcast.training.export import ExportDtype, adapter_command, export_gguf, export_merged
from kernelcast.training.models import load_base
from tests.model_server import KERNELS, next_token_logprobs, real_model, tokens_of
from tests.training.tiny_model import TEMPLATE, next_token, with_adapter, write_tiny_model

QUESTIONS = [path.read_text()[:400] for path in sorted(KERNELS.iterdir())][:2]
PIECES = ["x_", "Row", "7", "1234", "é", "'s", " ", "    ", "\n", "\n\n", "\t", "();", "**", "//"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A trained folder, and what the model with its adapter says before any merge."""
    folder = tmp_path_factory.mktemp("adapter")
    model, tokenizer = load_base(tiny)
    adapted = with_adapter(model, 0.05, r=4)
    adapted.save_pretrained(folder)
    return folder, [next_token(adapted, tokenizer, question) for question in QUESTIONS]


def distance(found: Any, wanted: Any) -> float:
    return float((found - wanted).abs().max())


def served_distance(base_url: str, question: str, wanted: Any) -> float:
    """How far the served log probabilities are from those of transformers."""
    found = next_token_logprobs(base_url, question)
    assert len(found) == 10
    return max(abs(logprob - float(wanted[token])) for token, logprob in found.items())


def test_a_merged_folder_says_what_base_and_adapter_say(
    tiny: Path, adapter: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    trained, wanted = adapter
    model, tokenizer = load_base(export_merged(trained, tmp_path / "m", dtype="float32"))
    plain, _ = load_base(tiny)
    for question, expected in zip(QUESTIONS, wanted, strict=True):
        assert distance(next_token(model, tokenizer, question), expected) < 1e-3
        assert distance(next_token(plain, tokenizer, question), expected) > 0.5
    assert tokenizer.chat_template == TEMPLATE
    assert not (tmp_path / "m" / "adapter_config.json").exists()
    half, _ = load_base(export_merged(trained, tmp_path / "half"))
    assert str(half.dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-3), ("float16", 0.05), ("bfloat16", 0.4)]
)
def test_a_gguf_file_of_each_type_says_what_base_and_adapter_say(
    adapter: tuple[Path, list[Any]], tmp_path: Path, dtype: ExportDtype, tolerance: float
) -> None:
    trained, wanted = adapter
    model, tokenizer = load_base(export_gguf(trained, tmp_path / "m.gguf", dtype=dtype))
    for question, expected in zip(QUESTIONS, wanted, strict=True):
        assert distance(next_token(model, tokenizer, question), expected) < tolerance


@pytest.mark.parametrize(
    ("split", "config"),
    [
        ("smollm", {"tie_word_embeddings": True}),
        ("gpt-2", {"rope_parameters": LINEAR, "head_dim": 32}),
        ("llama-bpe", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    ],
)
def test_llama_cpp_reads_texts_and_answers_as_transformers_does(
    tmp_path: Path, split: str, config: dict[str, Any]
) -> None:
    pytest.importorskip("xllamacpp")
    folder = write_tiny_model(tmp_path / "tiny", split, **config)
    file = export_gguf(folder, tmp_path / "tiny.gguf", dtype="float32")
    model, tokenizer = load_base(folder)
    with real_model(file=file) as base_url:

        @settings(max_examples=50)
        @given(st.text("aZ_ 0129'\n\t(){}*é;", max_size=40))
        def reads_alike(text: str) -> None:
            assert tokens_of(base_url, text) == tokenizer(text).input_ids

        reads_alike()
        for question in QUESTIONS:
            wanted = next_token(model, tokenizer, question)
            assert served_distance(base_url, question, wanted) < 0.03  # its cache is in float16


@pytest.mark.slow
@pytest.mark.full  # test_recipes.py exports and serves the same model
def test_the_trained_small_model_is_served_as_it_was_trained(small_base: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # 270 MB, which pytest would keep
        folder = Path(name)
        model, tokenizer = load_base(small_base, "float32")
        plain = [next_token(model, tokenizer, question) for question in QUESTIONS]
        adapted = with_adapter(model, 0.05, r=8)
        wanted = [next_token(adapted, tokenizer, question) for question in QUESTIONS]
        adapted.save_pretrained(folder / "adapter")
        del model, adapted
        file = export_gguf(folder / "adapter", folder / "small.gguf")
        with real_model(file=file) as base_url:
            for question, before, expected in zip(QUESTIONS, plain, wanted, strict=True):
                assert distance(before, expected) > 0.5
                assert served_distance(base_url, question, expected) < 0.05


def test_other_models_are_refused_with_llama_cpp_own_script(tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", kind="Qwen2")
    with pytest.raises(SetupError, match=r"'qwen2'.* merged.*convert_hf_to_gguf.py"):
        export_gguf(other, tmp_path / "m.gguf")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = False
    llama = write_tiny_model(tmp_path / "llama")
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SetupError, match="its tokenizer"):
        export_gguf(llama, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_what_cannot_be_exported_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no folder"):
        export_merged(tmp_path / "none", tmp_path / "m")
    model, _ = load_base(tiny)
    broken = with_adapter(model, float("nan"))
    broken.save_pretrained(tmp_path / "a")
    with pytest.raises(SetupError, match="diverged"):
        export_merged(tmp_path / "a", tmp_path / "m")
    with pytest.raises(SetupError, match="holds an adapter"):
        export_merged(tmp_path / "a", tmp_path / "a")
    moved = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    moved["base_model_name_or_path"] = None
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(moved))
    with pytest.raises(SetupError, match="name its base"):
        export_merged(tmp_path / "a", tmp_path / "m")
    with pytest.raises(SetupError, match="diverged"):
        export_merged(tmp_path / "a", tmp_path / "m", base=tiny)


def test_an_adapter_is_served_by_vllm_as_it_is(tmp_path: Path) -> None:
    def command(base: str | None = None, **changed: Any) -> str:
        told = {"peft_type": "LORA", "r": 12, "base_model_name_or_path": "org/model"} | changed
        (tmp_path / "my adapter").mkdir(exist_ok=True)
        (tmp_path / "my adapter" / "adapter_config.json").write_text(json.dumps(told))
        return adapter_command(tmp_path / "my adapter", base)

    modules = f"my adapter={tmp_path / 'my adapter'}"
    options = ["--enable-lora", "--lora-modules", modules, "--max-lora-rank"]
    assert shlex.split(command()) == ["vllm", "serve", "org/model", *options, "16"]
    assert shlex.split(command("/models/base"))[2] == "/models/base"
    assert command(rank_pattern={"q_proj": 100}).endswith(" 128")
    for changed, reason in (
        ({"r": 1000}, "rank is 1000"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"peft_type": "IA3"}, "no LoRA"),
        ({"base_model_name_or_path": "small.gguf"}, "gguf"),
    ):
        with pytest.raises(SetupError, match=f"{reason}.*export it merged"):
            command(**changed)
    with pytest.raises(SetupError, match="serves a whole model"):
        adapter_command(tmp_path)
