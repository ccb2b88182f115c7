"""Language models that training starts from: folders, names on the hub, .gguf files."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernelcast.errors import SetupError, import_extra

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

_EXTRA = "train"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GGUF_STRING = 8  # the type of a value
_GGUF_TENSOR_COUNT = 8  # where it stands
_GGUF_HEADER_BYTES = 64 << 20  # enough for any tokenizer


def load_base(
    name_or_path: str | Path, dtype: Dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, ready to be trained and saved.

    Args:
        name_or_path: A folder as `save_pretrained` writes it, a name on the Hugging Face hub, or a
            .gguf file, whose weights are unpacked.
        dtype: The type of the weights; "auto" takes the stored one, and float32 for a .gguf file.

    Raises:
        SetupError: There is no such model, it is of an unknown kind, or the extra `train` is not
            installed.

    Example:
        >>> model, tokenizer = load_base("HuggingFaceTB/SmolLM2-135M-Instruct")  # doctest: +SKIP
    """
    import_extra("torch", _EXTRA)
    transformers = import_extra("transformers", _EXTRA)
    path = Path(name_or_path)
    of_gguf = path.suffix == ".gguf"
    folder, file, unpacked = str(name_or_path), {}, {}
    if of_gguf:
        import_extra("gguf", _EXTRA)
        if not path.is_file():
            raise SetupError(f"no file {path}")
        folder, file = str(path.parent), {"gguf_file": path.name}
        # Weights in blocks can neither be trained nor saved.
        unpacked = {"quantization_config": transformers.GgufConfig(dequantize=True)}
    transformers.utils.logging.disable_progress_bar()  # the caller says what is done
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **file)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, **file, **unpacked
        )
    except (OSError, ValueError) as error:
        raise SetupError(
            f"no model could be loaded from {str(name_or_path)!r}: give a folder with config.json "
            f"and safetensors, a .gguf file, or a name on the Hugging Face hub ({error})"
        ) from error
    if of_gguf:
        _complete(path, model, tokenizer)
    return model, tokenizer


def adapter_settings(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of the adapter in a folder; None if it holds none."""
    file = folder / "adapter_config.json"
    return json.loads(file.read_text()) if file.is_file() else None


def pre_tokenizers() -> dict[str, PreTokenizer]:
    """How texts are split before byte pairs are merged, by llama.cpp's names."""
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as parts

    plain = parts.ByteLevel(add_prefix_space=False)
    by_split = parts.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "gpt-2": plain,
        "smollm": parts.Sequence([parts.Digits(individual_digits=True), plain]),
        "llama-bpe": parts.Sequence([parts.Split(Regex(_LLAMA3_SPLIT), "isolated"), by_split]),
    }


def pre_tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return llama.cpp's name of how the tokenizer splits texts; None for a way not known here."""
    own = _description(tokenizer.backend_tokenizer.pre_tokenizer)
    for name, known in pre_tokenizers().items():
        if _description(known) == own:
            return name
    return None


def _description(part: PreTokenizer | None) -> Any:
    """What decides the tokens; offsets in the text do not."""
    state = "null" if part is None else part.__getstate__()
    return json.loads(
        state, object_hook=lambda found: {k: v for k, v in found.items() if k != "trim_offsets"}
    )


def _complete(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Do what transformers does not do for a .gguf file.

    Raises:
        SetupError: transformers has left out a part of the model.
    """
    # peft writes this name into the configuration of an adapter.
    model.config.name_or_path = model.name_or_path = str(path.resolve())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # transformers knows a few of llama.cpp's names, and not SmolLM's.
        split = pre_tokenizers().get(_gguf_text(data, "tokenizer.ggml.pre"))
        scaled = _gguf_text(data, "llama.rope.scaling.type") not in ("", "none")
        (count,) = struct.unpack_from("<Q", data, _GGUF_TENSOR_COUNT)
    if split is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = split
    # It drops biases, and the factors of the position encoding that Llama 3 has since 3.1.
    known = len(model.state_dict()) - model.config.tie_word_embeddings
    if model.config.model_type == "llama" and (scaled or count != known):
        raise SetupError(
            f"transformers does not read all of {path} (scaled positions or biases): give the "
            "model's own folder or its name on the Hugging Face hub"
        )


def _gguf_text(data: mmap.mmap, key: str) -> str:
    """The text under a key; empty without one.

    gguf's reader would take seconds, for it reads the hundred thousand texts of a tokenizer.
    """
    start = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", _GGUF_STRING)
    at = data.find(start, 0, _GGUF_HEADER_BYTES)
    if at < 0:
        return ""
    at += len(start)
    (length,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + length].decode()
