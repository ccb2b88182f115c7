"""Models from folders and .gguf files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kernelcast.errors import SetupError
from kernelcast.training.export import export_gguf
from kernelcast.training.models import load_base, pre_tokenizer_name
from tests.model_server import KERNELS, tokens_of
from tests.training.tiny_model import next_token, write_tiny_model

SOURCES = [path.read_text() for path in sorted(KERNELS.iterdir())]


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe"])
def test_a_gguf_file_is_the_model_that_its_folder_is(tmp_path: Path, split: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny", split, tie_word_embeddings=split == "smollm")
    file = export_gguf(folder, tmp_path / "tiny.gguf", dtype="float32")
    wanted, its_tokenizer = load_base(folder)
    model, tokenizer = load_base(file)
    assert pre_tokenizer_name(tokenizer) == split
    for source in SOURCES:
        assert tokenizer(source).input_ids == its_tokenizer(source).input_ids
        expected = next_token(wanted, its_tokenizer, source)
        assert next_token(model, tokenizer, source) == pytest.approx(expected, abs=1e-4)

    # It can be trained, saved and found again by an adapter.
    assert not model.is_quantized
    assert model.name_or_path == str(file)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, _ = load_base(tmp_path / "saved", "bfloat16")
    assert not hasattr(again.config, "quantization_config")
    assert str(again.dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    "config",
    [
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ],
)
def test_a_gguf_file_of_which_a_part_would_be_lost_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = write_tiny_model(tmp_path / "tiny", **config)
    file = export_gguf(folder, tmp_path / "tiny.gguf")
    with pytest.raises(SetupError, match="does not read all of"):
        load_base(file)


def test_what_is_no_model_is_refused_and_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SetupError, match=r"no file .*none\.gguf"):
        load_base(tmp_path / "none.gguf")
    with pytest.raises(SetupError, match="give a folder with"):
        load_base(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SetupError, match=r"pip install 'kernelcast\[train\]'"):
        load_base(tmp_path)


@pytest.mark.slow
@pytest.mark.full  # test_export.py compares tiny models with the server
def test_the_small_model_is_trained_on_the_tokens_that_it_is_served_with(
    small_base: Path, small_model: str
) -> None:
    _, tokenizer = load_base(small_base)
    for text in (*SOURCES, "x =  12;\n\n   7 times", "don't <|im_end|>\n\t42é"):
        assert tokenizer(text).input_ids == tokens_of(small_model, text)
