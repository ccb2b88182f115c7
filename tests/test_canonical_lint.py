"""Faults that a kernel's text shows, and texts that have none."""

from __future__ import annotations

import pytest

from kernelcast.canonical.lint import FaultKind, faults

MODULE = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r'''
#include <torch/extension.h>
__global__ void scale_kernel(float* x) { x[threadIdx.x] *= 2.0f; }
torch::Tensor scale(torch::Tensor x) { scale_kernel<<<1, 32>>>(x.data_ptr<float>()); return x; }
'''
extension = load_inline(name="scale", cpp_sources="", cuda_sources=source, functions=["scale"])

def helper(x):
    return x + 1

class ModelNew(nn.Module):
    def forward(self, x):
        return extension.scale(helper(x))

def get_inputs():
    return [torch.rand(N)]
"""


def kinds(source: str, entry: str | None = None) -> list[FaultKind]:
    return [fault.kind for fault in faults(source, "python", entry)]


def test_a_sound_module_has_no_fault() -> None:
    assert faults(MODULE, "python") == ()


@pytest.mark.parametrize(
    ("before", "after", "kind", "words"),
    [
        ("def forward(self, x):", "def forward(self, x:", "syntax", "not Python"),
        ("class ModelNew", "class Renamed", "entry", "defines no ModelNew"),
        ("helper(x))", "helpr(x))", "name", "'helpr'"),
        ("return x + 1", "return torch.rellu(x)", "attribute", "torch has no rellu"),
        ("*= 2.0f; }", "*= 2.0f; ", "balance", "'{' and '}'"),
        ('functions=["scale"]', 'functions=["scales"]', "function", "'scales'"),
        ("scale_kernel<<<1, 32>>>(x.data_ptr<float>()); ", "", "launch", "launches none"),
    ],
)
def test_each_fault_is_named(before: str, after: str, kind: FaultKind, words: str) -> None:
    assert MODULE.count(before) == 1
    broken = MODULE.replace(before, after)
    assert kind in kinds(broken, "ModelNew")
    assert any(words in fault.text for fault in faults(broken, "python", "ModelNew"))


def test_what_the_entry_does_not_reach_is_not_judged() -> None:
    assert kinds(f"{MODULE}\ndef unused():\n    return nothing_binds_this\n") == []
    assert kinds("def solve(x):\n    return x\n", entry="solve") == []
    assert kinds("def softmax(x):\n    return x\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.backends.cuda.matmul.allow_anything = True",
        "torch.backends.cudnn.some_limit",
        "torch.ops.my_extension.scale(x)",
        "torch._inductor.config.some_option",
        "torch.some_option = 1",
        "torch.musa.is_available() if hasattr(torch, 'musa') else None",
    ],
)
def test_what_differs_by_release_or_build_is_no_fault(line: str) -> None:
    module = f"import torch\n\ndef solve(x):\n    {line}\n    return x\n"
    assert kinds(module, "solve") == []


def test_an_alias_stands_for_its_namespace() -> None:
    module = "import triton.language as tl\n\ndef solve(x):\n    return tl.mathh(x)\n"
    assert [fault.text for fault in faults(module, "triton", "solve")] == [
        "triton.language has no mathh"
    ]


def test_languages_with_a_compiler_and_empty_texts_have_no_faults() -> None:
    assert faults("void f( {", "cuda") == ()
    assert faults("  \n", "python") == ()
