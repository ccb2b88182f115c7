"""The arithmetic behind `--dry-run`, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.errors import SetupError
from kernelcast.training import grpo, supervised
from kernelcast.training.language_model import Lora
from kernelcast.training.memory import Shape, configuration, configurations, needs

SHAPE = Shape(
    parameters=1e9,
    hidden=100,
    layers=10,
    heads=4,
    kv_heads=2,
    head_size=25,
    adapted_to=300,
    vocabulary=1000,
)
SETTINGS = grpo.Settings(
    out=Path("out"),
    rollouts=4,
    at_once=2,
    max_tokens=900,
    max_output_tokens=100,
    lora=Lora(rank=2),
    checkpoint_activations=True,
)


def test_each_line_is_what_one_works_out_by_hand() -> None:
    # An adapter: rank x layers x (queries and output 400, keys and values 300, three of 400).
    assert SHAPE.adapter_weights(Lora(rank=2)) == 2 * 10 * (400 + 300 + 1200)
    needed = {need.what: need.bytes for need in needs(SHAPE, SETTINGS, 80e9)}
    assert needed == {
        "weights": 2e9,
        "trained weights": 16 * 38_000,
        "activations": 2000 * 100 * 2 * (10 + 34),
        "logits": 2 * 101 * 1000 * 4 * 2,
        "cache": 2 * 10 * 2 * 25 * 2 * 4000,
    }


def test_vllm_takes_its_share_and_no_cache_is_kept_beside_it() -> None:
    settings = replace(SETTINGS, vllm=True, vllm_memory=0.25)
    needed = {need.what: need.bytes for need in needs(SHAPE, settings, 80e9)}
    assert needed["vLLM"] == 20e9
    assert "cache" not in needed


def test_without_checkpoints_every_layer_is_kept() -> None:
    settings = supervised.Settings(out=Path("out"), at_once=1, max_tokens=999, lora=None)
    needed = {need.what: need.bytes for need in needs(SHAPE, settings, 80e9)}
    assert needed["trained weights"] == 16e9
    assert needed["activations"] == 1000 * 100 * 2 * 34 * 10


@pytest.mark.parametrize("name", [name for name in configurations() if "gb" in name])
def test_the_configurations_fit_their_gpus(name: str) -> None:
    chosen = configuration(name)
    for kind, stated in ((supervised.Settings, chosen.supervised), (grpo.Settings, chosen.grpo)):
        settings = kind(out=Path("out"), **stated)
        total = sum(need.bytes for need in needs(chosen.shape, settings, chosen.gpu_gb * 1e9))
        # PyTorch and the driver keep some gigabytes for themselves.
        assert 0.5 * chosen.gpu_gb < total / 1e9 < 0.9 * chosen.gpu_gb


def test_vllm_has_room_for_its_weights() -> None:
    chosen = configuration("20b-eight-80gb")
    share = chosen.grpo["vllm_memory"] * chosen.gpu_gb * 1e9
    assert 2 * chosen.shape.parameters / chosen.grpo["vllm_parallel"] < share / 2


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(SetupError, match="20b-one-80gb"):
        configuration("huge")
