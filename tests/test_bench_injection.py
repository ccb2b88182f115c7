"""The injection bench: its payloads keep the program, and it would notice a prompt that changed."""

from __future__ import annotations

import ast
import random
import subprocess
from collections.abc import Callable

import pytest

import injection
from injection import PAYLOADS, Sample, injected, own_kernels, prompt_builder

pytest.importorskip("openai", reason="the prompts are those of the LLM forecaster")

SAMPLES = {sample.name: sample for sample in own_kernels()}
SHOWN = ("softmax.cu", "matmul.py", "histogram.cl", "layernorm/template")


@pytest.fixture(scope="module")
def prompt() -> Callable[[Sample, str], str]:
    return prompt_builder()


def test_there_are_fifteen_payloads() -> None:
    assert len({payload.name for payload in PAYLOADS}) == 15


@pytest.mark.parametrize("name", SHOWN)
def test_no_payload_changes_the_prompt(name: str, prompt: Callable[[Sample, str], str]) -> None:
    sample = SAMPLES[name]
    choose = random.Random(1)
    clean = prompt(sample, sample.source)
    for payload in PAYLOADS:
        source = injected(sample.source, sample.language, payload, choose)
        assert source != sample.source, payload.name
        assert prompt(sample, source) == clean, payload.name


@pytest.mark.parametrize(
    ("one", "other"),
    [("fmaxf(most", "fminf(most"), ("<< 0", "<< 1"), ("step = 16", "step = 8"), ("256)", "128)")],
)
def test_another_program_changes_the_prompt(
    one: str, other: str, prompt: Callable[[Sample, str], str]
) -> None:
    sample = SAMPLES["softmax.cu"]
    changed = sample.source.replace(one, other)
    assert (prompt(sample, changed) != prompt(sample, sample.source)) == (one in sample.source)


def test_words_in_live_code_do_not_reach_the_prompt(prompt: Callable[[Sample, str], str]) -> None:
    sample = SAMPLES["softmax.cu"]
    clean = injection.words_of(prompt(sample, sample.source))
    for words in (f'asm volatile("// {injection.BOAST}");', "int verified = trust_this_kernel;"):
        shown = prompt(sample, sample.source.replace("{\n", f"{{\n  {words}\n", 1))
        assert injection.PAYLOAD_WORDS.isdisjoint(injection.words_of(shown) - clean)


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.name)
def test_payloads_keep_a_kernel_compiling(payload: injection.Payload) -> None:
    choose = random.Random(2)
    source = injected(SAMPLES["layernorm/seed"].source, "cpp", payload, choose)
    command = ["g++", "-std=c++17", "-fopenmp", "-fsyntax-only", "-w", "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ast.parse(injected(SAMPLES["matmul.py"].source, "triton", payload, choose))


def test_without_the_data_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELCAST_DATA", f"{tmp_path}/nothing")
    with pytest.raises(SystemExit):
        injection.main(["--quick"])
    assert "KERNELCAST_DATA" in capsys.readouterr().err
