"""Seeds are made of a reference's text."""

from __future__ import annotations

from kernelcast.porting.seed import renamed, without

SOURCE = '''\
import torch

eps = 1e-5


class Model(torch.nn.Module):
    """A Model."""

    def __init__(self, dim):
        super(Model, self).__init__()
        self.Model = dim  # Model

    def forward(self, x):
        return x + eps + axis


# How large it is.
batch_size, dim = 16, 32
axis: int = 1
shape = (batch_size, dim)


def get_inputs():
    return [torch.rand(*shape)]


def get_init_inputs():
    return [dim]
'''


def test_a_class_is_renamed_but_no_string_comment_or_attribute() -> None:
    text = renamed(SOURCE, "Model", "ModelNew")
    assert "class ModelNew(torch.nn.Module):" in text
    assert "super(ModelNew, self)" in text
    assert '"""A Model."""' in text
    assert "self.Model = dim  # Model" in text


def test_what_only_the_inputs_need_goes() -> None:
    text = without(SOURCE, ("get_inputs", "get_init_inputs"))
    assert "get_in" not in text
    assert "shape" not in text
    assert "batch_size" not in text
    assert "How large" not in text
    assert "eps = 1e-5" in text
    assert "axis: int = 1" in text
    assert text.endswith("\n")


def test_statements_on_one_line_stay_together() -> None:
    source = "a = 1; b = 2\ndef f(): return a\ndef g(): return b\n"
    assert without(source, ("f",)) == "a = 1; b = 2\ndef g(): return b\n"
