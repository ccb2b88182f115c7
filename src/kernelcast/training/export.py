"""A trained language model, as servers take it: a merged folder, a GGUF file, or its adapter."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from kernelcast.errors import SetupError, import_extra
from kernelcast.training.models import adapter_settings, load_base, pre_tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ExportDtype = Literal["float32", "bfloat16", "float16"]

_EXTRA = "train"
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those that `--max-lora-rank` takes
_ROPE_BY_FACTORS = ("default", "linear", "llama3")  # a factor for each frequency, nothing else
_GGUF_TYPES = {
    "float32": ("F32", "ALL_F32"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    "float16": ("F16", "MOSTLY_F16"),
}


def export_merged(
    trained: Path, out: Path, *, base: str | Path | None = None, dtype: ExportDtype = "bfloat16"
) -> Path:
    """Write a trained model as one folder: safetensors, tokenizer and chat template.

    vLLM, SGLang and transformers take the folder as it is.

    Args:
        trained: What a recipe has written: a LoRA adapter, or a whole model.
        out: The folder to write.
        base: The model that the adapter was trained on, if it is no longer where the adapter says.
        dtype: The type of the written weights. They are merged in float32.

    Returns:
        The folder.

    Raises:
        SetupError: There is no trained model or no base, a weight is not finite, or `out` holds an
            adapter.
    """
    if adapter_settings(out) is not None:
        raise SetupError(f"{out} holds an adapter: name another folder for the merged model")
    model, tokenizer = _merged(trained, base)
    torch = import_extra("torch", _EXTRA)
    model.to(getattr(torch, dtype)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def export_gguf(
    trained: Path, out: Path, *, base: str | Path | None = None, dtype: ExportDtype = "float16"
) -> Path:
    """Write a trained model as one GGUF file, for llama.cpp and what is built on it.

    Models of the Llama architecture with a byte-level tokenizer are converted here.

    Args:
        trained: What a recipe has written: a LoRA adapter, or a whole model.
        out: The file to write.
        base: The model that the adapter was trained on, if it is no longer where the adapter says.
        dtype: The type of the written matrices; vectors are float32.

    Returns:
        The file.

    Raises:
        SetupError: There is no trained model or no base, a weight is not finite, or the model is
            of another kind; the message names llama.cpp's converter.
    """
    gguf = import_extra("gguf", _EXTRA)
    model, tokenizer = _merged(trained, base)
    _check_convertible(model.config, tokenizer, trained)
    type_name, file_type = _GGUF_TYPES[dtype]
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(trained.resolve().name)
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, model.config)
    _add_tokenizer(writer, model.config, tokenizer)
    for name, values in _tensors(model):
        kind = gguf.GGMLQuantizationType[type_name if values.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    out.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(out)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def adapter_command(trained: Path, base: str | Path | None = None) -> str:
    """Return the command by which vLLM serves an adapter beside its base, without a merge.

    The model's name in requests is the name of the folder.

    Args:
        trained: The folder of a LoRA adapter.
        base: The model that the adapter was trained on, if it is no longer where the adapter says.

    Raises:
        SetupError: The folder holds no adapter, or one that vLLM does not take.

    Example:
        >>> adapter_command(Path("trained/sft"))  # doctest: +SKIP
        'vllm serve BASE --enable-lora --lora-modules sft=/home/me/trained/sft --max-lora-rank 32'
    """
    settings = _settings_in(trained)
    if settings is None:
        raise SetupError(f"{trained} holds no adapter: `vllm serve {trained}` serves a whole model")
    base = _base_of(settings, base)
    rank = max(settings.get("r", 0), *(settings.get("rank_pattern") or {}).values(), 1)
    enough = [known for known in _VLLM_RANKS if known >= rank]
    refused = [
        reason
        for reason, found in (
            ("it is no LoRA", settings.get("peft_type") != "LORA"),
            ("its base is a .gguf file", Path(base).suffix == ".gguf"),
            (f"its rank is {rank}", not enough),
            ("it is a DoRA", settings.get("use_dora")),
            ("it trains biases", settings.get("bias", "none") != "none"),
            ("it replaces whole modules", settings.get("modules_to_save")),
        )
        if found
    ]
    if refused:
        raise SetupError(
            f"vLLM does not serve the adapter in {trained}: {', '.join(refused)}; export it merged"
        )
    folder = trained.resolve()
    return shlex.join(
        [
            *("vllm", "serve", str(base), "--enable-lora"),
            *("--lora-modules", f"{folder.name}={folder}", "--max-lora-rank", str(enough[0])),
        ]
    )


def _settings_in(trained: Path) -> dict[str, Any] | None:
    """Return the configuration of an adapter; None for a whole model."""
    if not trained.is_dir():
        raise SetupError(f"no folder {trained}: give one that `kernelcast train` has written")
    return adapter_settings(trained)


def _base_of(settings: dict[str, Any], base: str | Path | None) -> str | Path:
    base = base or settings.get("base_model_name_or_path")
    if not base:
        raise SetupError("the adapter does not say what it was trained on: name its base")
    return base


def _merged(
    trained: Path, base: str | Path | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The trained model in float32, with its adapter merged if it is one."""
    settings = _settings_in(trained)
    if settings is None:
        model, tokenizer = load_base(trained, "float32")
    else:
        peft = import_extra("peft", _EXTRA)
        model, tokenizer = load_base(_base_of(settings, base), "float32")
        if (trained / "tokenizer_config.json").is_file():
            transformers = import_extra("transformers", _EXTRA)
            tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
        model = peft.PeftModel.from_pretrained(model, trained).merge_and_unload()
    broken = [name for name, weights in model.named_parameters() if not weights.isfinite().all()]
    if broken:
        raise SetupError(
            f"{len(broken)} tensors of {trained} hold NaN or infinity ({broken[0]}): the training "
            "diverged; train again with a smaller learning rate"
        )
    return model, tokenizer


def _check_convertible(config: Any, tokenizer: PreTrainedTokenizerBase, trained: Path) -> None:
    """Raise SetupError for a model that only llama.cpp's own script converts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rope = config.rope_parameters["rope_type"] if config.model_type == "llama" else "default"
    unknown = [
        reason
        for reason, found in (
            (f"the architecture {config.model_type!r}", config.model_type != "llama"),
            (f"the position encoding {rope!r}", rope not in _ROPE_BY_FACTORS),
            ("its activation", getattr(config, "hidden_act", None) != "silu"),
            (
                "its tokenizer",
                backend is None or backend.normalizer or pre_tokenizer_name(tokenizer) is None,
            ),
        )
        if found
    ]
    if unknown:
        raise SetupError(
            f"no GGUF file is written here for {', '.join(unknown)}: export {trained} merged, and "
            "run `python convert_hf_to_gguf.py FOLDER --outfile FILE.gguf` of llama.cpp "
            "(https://github.com/ggml-org/llama.cpp) on that folder"
        )


def _add_shape(writer: Any, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_tokenizer(writer: Any, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    gguf = import_extra("gguf", _EXTRA)
    added = tokenizer.added_tokens_decoder
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    # The embedding may have more rows than there are tokens.
    tokens = [texts.get(number, f"[PAD{number}]") for number in range(config.vocab_size)]
    types = [
        gguf.TokenType.UNUSED
        if number not in texts
        else gguf.TokenType.NORMAL
        if number not in added
        else gguf.TokenType.CONTROL
        if added[number].special
        else gguf.TokenType.USER_DEFINED
        for number in range(config.vocab_size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=config.vocab_size)
    ids = tokenizer("a").input_ids
    special.add_special_token = {
        "bos": ids[0] == tokenizer.bos_token_id,
        "eos": ids[-1] == tokenizer.eos_token_id,
    }
    special.add_to_gguf(writer, quiet=True)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the weights by GGUF's names, as llama.cpp keeps them."""
    gguf = import_extra("gguf", _EXTRA)
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        count = heads.get(name.split(".")[-2])
        if count:
            # A rotation takes pairs of neighbours there, and pairs of halves of a head here.
            halves = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), values
    dimensions = np.arange(0, config.head_dim, 2) / config.head_dim
    plain = config.rope_parameters["rope_theta"] ** -dimensions
    factors = plain / model.model.rotary_emb.inv_freq.double().numpy()
    if not np.allclose(factors, 1.0, rtol=1e-3):
        name = gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FREQS]
        yield f"{name}.weight", factors.astype(np.float32)
