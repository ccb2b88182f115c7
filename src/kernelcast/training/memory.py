"""How much memory of a GPU a training needs: arithmetic from the model's shape, no measurement.

Nothing here has been compared with a GPU. It leaves out what PyTorch and the driver keep for
themselves (a few GB) and the fragments that an allocator leaves.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from kernelcast.errors import SetupError
from kernelcast.training.language_model import Lora

_HALF, _FULL = 2, 4  # bytes of bfloat16 and float32
_OPTIMISED = 16  # bytes of a trained weight: itself, its gradient, two moments, in float32
# Values kept for the backward pass of one layer, in hidden states of its tokens: the inputs of
# attention and of the feed-forward part, with what a few experts add.
_KEPT_OF_A_LAYER = 34


@dataclass(frozen=True)
class Shape:
    """What memory depends on. `adapted_to` is the width of the feed-forward part."""

    parameters: float
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    adapted_to: int
    vocabulary: int

    def adapter_weights(self, lora: Lora) -> int:
        """Weights of an adapter: a matrix of rank `r` has r x (inputs + outputs)."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        forward = 3 * (self.hidden + self.adapted_to)
        return lora.rank * self.layers * (attention + forward)

    def cache_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens."""
        return 2 * self.layers * self.kv_heads * self.head_size * _HALF * tokens


@dataclass(frozen=True)
class Need:
    """One line of the sum, in bytes of each GPU."""

    what: str
    how: str
    bytes: float


def needs(shape: Shape, settings: Any, gpu_bytes: float) -> list[Need]:
    """What each GPU holds at once, for settings of `supervised` or `grpo`."""
    lora: Lora | None = settings.lora
    trained = shape.adapter_weights(lora) if lora else shape.parameters
    answer = getattr(settings, "max_output_tokens", 1)
    tokens = settings.at_once * (settings.max_tokens + answer)
    hidden = tokens * shape.hidden * _HALF
    kept_layers = shape.layers if settings.checkpoint_activations else 0
    whole_layers = 1 if settings.checkpoint_activations else shape.layers
    lines = [
        Need("weights", f"{shape.parameters / 1e9:.3g}e9 x 2 bytes", shape.parameters * _HALF),
        Need(
            "trained weights",
            f"{trained / 1e6:.3g}e6 x 16 bytes: weight, gradient, two moments",
            trained * _OPTIMISED,
        ),
        Need(
            "activations",
            f"{tokens} tokens x {shape.hidden} x 2 bytes x ({kept_layers} checkpoints + "
            f"{_KEPT_OF_A_LAYER} x {whole_layers} layers)",
            hidden * (kept_layers + _KEPT_OF_A_LAYER * whole_layers),
        ),
        Need(
            "logits",
            f"{settings.at_once * (answer + 1)} tokens x {shape.vocabulary} x 4 bytes x 2",
            settings.at_once * (answer + 1) * shape.vocabulary * _FULL * 2,
        ),
    ]
    if getattr(settings, "vllm", False):
        lines.append(
            Need(
                "vLLM",
                f"{settings.vllm_memory:.0%} of the GPU: its weights over "
                f"{settings.vllm_parallel} GPUs, and its cache",
                settings.vllm_memory * gpu_bytes,
            )
        )
    elif hasattr(settings, "rollouts"):
        written = settings.rollouts * (settings.max_tokens + answer)
        lines.append(
            Need("cache", f"keys and values of {written} tokens", shape.cache_bytes(written))
        )
    return lines


@dataclass(frozen=True)
class Configuration:
    """Settings that fit a model and its GPUs."""

    base: str
    gpus: int
    gpu_gb: float
    shape: Shape
    supervised: dict[str, Any]
    grpo: dict[str, Any]


@cache
def configurations() -> dict[str, Configuration]:
    """The configurations by name."""
    text = files("kernelcast.training").joinpath("configurations.toml").read_text()
    tables = tomllib.loads(text)
    shapes = {name: Shape(**shape) for name, shape in tables.pop("shape").items()}
    return {
        name: Configuration(**{**table, "shape": shapes[table["shape"]]})
        for name, table in tables.items()
    }


def configuration(name: str) -> Configuration:
    """Return a configuration.

    Raises:
        SetupError: there is none of that name.
    """
    known = configurations()
    if name not in known:
        raise SetupError(f"configurations are {', '.join(known)}, not {name!r}")
    return known[name]
