"""How a problem's PyTorch code is executed, called and compared."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kernelcast.backends import _module
from kernelcast.backends._module import Mismatch, Reference

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

SHIMS = ("task", "utils", "reference")


@pytest.fixture(autouse=True)
def _modules_of_this_process() -> Iterator[None]:
    """What is executed here leaves its modules behind."""
    kept = {name: sys.modules.pop(name, None) for name in SHIMS}
    yield
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


# ------------------------------------------------------------------------------ what is returned

X, H, C = ({"array": name} for name in "xhc")


@pytest.mark.parametrize(
    ("nested", "value", "words"),
    [
        ([X, H], None, "the result is None, not a sequence of 2"),
        ([X, H], 3.0, "the result is a float, not a sequence of 2"),
        ([X, H], (1,), "the result has 1 parts, not 2"),
        ([X, H], (1, 2, 3), "the result has 3 parts, not 2"),
        ([X, {"tuple": [H, C]}], (1, 2), "the result[1] is a int, not a sequence of 2"),
        ([X, {"tuple": [H, C]}], (1, [2]), "the result[1] has 1 parts, not 2"),
        ([{"dict": [["out", X]]}], [1], "the result is a list, not a dictionary"),
        ([{"dict": [["out", X]]}], {"other": 1}, "the result has no key 'out'"),
        ([{"dict": [["out", [X]]]}], {"out": None}, "the result['out'] is None, not a sequence"),
    ],
)
def test_another_structure_is_told_where_it_differs(nested: Any, value: Any, words: str) -> None:
    with pytest.raises(Mismatch) as raised:
        _module.returned(nested, value)
    assert words in str(raised.value)


def test_lists_and_tuples_stand_for_each_other_and_more_keys_do_no_harm() -> None:
    nested = [X, {"tuple": [H, {"dict": [["c", C]]}]}]
    for value in ([1, [2, {"c": 3, "d": 4}]], (1, (2, {"c": 3}))):
        assert _module.returned(nested, value) == {"x": 1, "h": 2, "c": 3}
    assert _module.returned([X], [1, 2]) == {"x": [1, 2]}  # one alone, whatever it is
    assert _module.returned([[X]], (7,)) == {"x": 7}
    assert _module.returned([None, X], (None, 5)) == {"x": 5}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0, 2.0], "out is a list, not a tensor"),
        (None, "out is None, not a tensor"),
        ("float64", "out is torch.float64, not torch.float32"),
        ("bfloat16", "out is torch.bfloat16, not torch.float32"),
        ((2, 1), "out has shape (2, 1), not (2,)"),
        ((), "out has shape (), not (2,)"),
    ],
)
def test_a_tensor_of_another_kind_is_told(value: Any, words: str) -> None:
    if isinstance(value, str):
        value = torch.zeros(2, dtype=getattr(torch, value))
    elif isinstance(value, tuple):
        value = torch.zeros(value)
    with pytest.raises(Mismatch) as raised:
        _module.require("out", value, torch.float32, [2])
    assert str(raised.value) == words


def test_a_tensor_of_its_kind_is_accepted_in_any_form() -> None:
    _module.require("out", torch.zeros(4)[::2], torch.float32, [2])
    _module.require("out", torch.nn.Parameter(torch.zeros(2)), torch.float32, (2,))
    _module.require("out", torch.zeros(()), torch.float32, [])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "int64", "float16"])
def test_a_tensor_lies_in_the_memory(dtype: str) -> None:
    memory = mmap.mmap(-1, 4096)
    made = _module.tensor(memory, dtype, [2, 3], 64)
    assert (made.dtype, made.shape) == (getattr(torch, dtype), (2, 3))
    made.fill_(1)
    size = made.element_size()
    one = torch.ones(1, dtype=made.dtype).view(torch.uint8).numpy().tobytes()
    assert memory[64 : 64 + 6 * size] == one * 6
    assert not any(memory[64 + 6 * size :])
    assert not any(memory[:64])
    assert _module.tensor(memory, dtype, [], 0).dim() == 0
    assert _module.tensor(memory, dtype, [3, 0], 4096).shape == (3, 0)


# ------------------------------------------------------------------------------- its namespace


def test_dimensions_take_the_place_of_a_files_own_numbers() -> None:
    source = """
N = 4096
M, K = 8, 16
(A, B), C = (1, 2), 3
D: int = 5
E: int
F = G = 6
H = N * 2
class Sizes:
    N = 7
def size(N=N):
    return N
def later():
    return N + M
"""
    space = _module.namespace_of(source, "r.py", dict.fromkeys("NKDFG", 90) | {"E": 1})
    found = [space[name] for name in "NMKABCDFGH"]
    assert found == [90, 8, 90, 1, 2, 3, 90, 90, 90, 180]
    assert "E" not in space
    assert space["Sizes"].N == 7  # its own name
    assert (space["size"](), space["later"]()) == (90, 98)
    assert _module.namespace_of(source, "r.py", {})["H"] == 8192


def test_a_tuple_that_is_not_written_out_is_left_alone() -> None:
    space = _module.namespace_of("M, K = divmod(17, 5)\n", "r.py", {"M": 90})
    assert (space["M"], space["K"]) == (3, 2)


def test_dataclasses_find_the_module_in_which_they_are() -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nN = 1\n"
        "@dataclass\nclass Config:\n    size: int = N\n"
    )
    assert _module.namespace_of(source, "r.py", {"N": 9})["Config"]().size == 9


def test_errors_name_the_file() -> None:
    with pytest.raises(SyntaxError) as raised:
        _module.namespace_of("def f(:\n", "row_norm/reference.py", {})
    assert raised.value.filename == "row_norm/reference.py"


# -------------------------------------------------------------------------------------- GPU MODE

CHECKED = """
import torch
from task import input_t, output_t
from utils import make_match_reference, match_reference, set_seed, verbose_allclose
from utils import DeterministicContext, verbose_allequal

def ref_kernel(data: input_t) -> output_t:
    with DeterministicContext():
        return 2 * data

check = make_match_reference(ref_kernel, rtol=1e-2, atol=1e-3)
"""


def test_what_gpu_modes_files_import_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_module, "recorded_tolerances", [])
    space = _module.namespace_of(CHECKED, "reference.py", {})
    x = torch.arange(4.0)
    assert space["check"](x, 2 * x) == (True, "")
    assert _module.recorded_tolerances == [(1e-2, 1e-3)]
    assert space["check"](x, 2.1 * x) == (False, "3 elements differ")
    assert space["check"](x, torch.zeros(5))[1] == "SIZE MISMATCH: (5,), not (4,)"
    assert space["verbose_allequal"](x, x * (1 + 1e-6)) == ["3 elements differ"]
    assert space["verbose_allclose"](x, x * (1 + 1e-6)) == []
    nan = torch.tensor([float("nan")])
    assert space["verbose_allclose"](nan, nan) == []
    space["set_seed"](3)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))


def test_an_output_that_is_missing_is_no_match() -> None:
    space = _module.namespace_of(CHECKED, "reference.py", {})
    x = torch.arange(4.0)

    def both(data: Any) -> Any:
        return data, 2 * data

    assert space["match_reference"](x, [x, 2 * x], both) == (True, "")
    assert not space["match_reference"](x, (x, x), both)[0]
    assert space["match_reference"](x, (x,), both) == (False, "1 outputs, not 2")


def test_the_shims_are_made_for_files_that_name_them_alone() -> None:
    _module.install_shims("import torch\n")
    assert not {"task", "utils"} & set(sys.modules)
    _module.install_shims("from task import input_t\n")
    assert "task" in sys.modules
    assert "utils" not in sys.modules
    own = sys.modules["task"]
    _module.install_shims("from task import input_t\nimport utils\n")
    assert sys.modules["task"] is own


# --------------------------------------------------------------------------- what was raised


def raised_by(source: str, name: str = "kernel.py") -> BaseException:
    space: dict[str, Any] = {}
    try:
        exec(compile(source, f"/somewhere/{name}", "exec"), space)
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


TWO_DEEP = """
def inner(x):
    return x / 0

def forward(x):
    return inner(x)

forward(1)
"""


def test_what_was_raised_is_told_with_its_lines() -> None:
    assert _module.text_of(raised_by(TWO_DEEP), TWO_DEEP).splitlines() == [
        "ZeroDivisionError: division by zero",
        "line 8, in <module>: forward(1)",
        "line 6, in forward: return inner(x)",
        "line 3, in inner: return x / 0",
    ]
    elsewhere = _module.text_of(raised_by(TWO_DEEP, "torch/nn.py"), TWO_DEEP)
    assert elsewhere == "ZeroDivisionError: division by zero"


def test_a_line_that_the_source_does_not_have_is_told_without_its_text() -> None:
    lines = _module.text_of(raised_by(TWO_DEEP), "\n").splitlines()
    assert lines[-1].rstrip() == "line 3, in inner:"


def test_the_innermost_lines_of_a_deep_call_remain() -> None:
    source = "def down(n):\n    return 1 / n + down(n - 1)\ndown(50)\n"
    lines = _module.text_of(raised_by(source), source).splitlines()
    assert lines[1:] == ["line 2, in down: return 1 / n + down(n - 1)"] * 6


@pytest.mark.parametrize("method", ["raise SystemExit(3)", "return 5", "return 'x' * 10**6"])
def test_an_error_that_does_not_want_to_be_told_is_told_shortly(method: str) -> None:
    source = f"class Shy(BaseException):\n    def __str__(self):\n        {method}\n\nraise Shy()\n"
    text = _module.text_of(raised_by(source), source)
    assert text.startswith("Shy: ")
    assert text.splitlines()[-1] == "line 5, in <module>: raise Shy()"
    assert len(text) <= _module.MOST_TEXT


# ------------------------------------------------------------------------------- the reference

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fc = nn.Linear(size, size)

    def forward(self, x):
        assert x.dtype == self.fc.weight.dtype
        return self.fc(x) * 1.0000001

N = 4

def draw(n, seed):
    return [torch.full((n,), float(seed % 7)), (torch.rand(N), torch.randn(n).double())]

def check(x, y):
    return bool((y > x).all()), "too small"

def plain_check(x, y):
    return "" if (y > x).all() else "small"

def silent_check(x, y):
    return False, ""

def scale(x, y, factor):
    y.copy_(factor * x)

def several(x):
    return [x, {"n": x.sum()}]
"""
CASE = {
    "init": [3],
    "call": [{"array": "x"}],
    "returns": [{"array": "y"}],
    "outputs": [("y", "float32", [2, 3])],
    "dimensions": {},
}
MODULE = {"reference": "Model", "precision": "float64", "seed": 5, "draw": "", "check": ""}


def reference(**module: Any) -> Reference:
    return Reference(MODEL, "tiny/reference.py", MODULE | module)


def answer(reference: Reference, case: Any = None, **tensors: Any) -> Any:
    return reference.outputs(CASE | (case or {}), tensors or {"x": torch.ones(2, 3)})


def test_the_reference_is_exact_or_native() -> None:
    (exact,) = answer(reference())
    (native,) = answer(reference(precision="native"))
    assert exact.dtype == native.dtype == torch.float64
    assert torch.equal(native, native.float().double())  # it has no more digits than that
    assert not torch.equal(exact, exact.float().double())
    assert torch.allclose(exact, native, rtol=1e-5)
    assert not exact.requires_grad


def test_integers_stay_integers() -> None:
    source = "def take(x, i):\n    assert x.element_size() == 8\n    return x[i]\n"
    case = {
        "init": None,
        "call": [{"array": "x"}, {"array": "i"}],
        "outputs": [("y", "float32", [1])],
    }
    made = Reference(source, "r.py", MODULE | {"reference": "take"})
    (value,) = answer(made, case, x=torch.tensor([1.0, 0.1]), i=torch.tensor([1]))
    assert value.item() == torch.tensor(0.1).double().item()


def test_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (answer(reference(seed=seed))[0] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(99)
    assert torch.equal(answer(reference())[0], first)
    # A candidate's are those of the seed too, in its own precision.
    candidate = _module.seeded(_module.namespace_of(MODEL, "r.py", {})["Model"], [3], 5)
    with torch.no_grad():
        assert torch.allclose(candidate(torch.ones(2, 3)).double(), first, rtol=1e-5)


def test_a_model_is_built_once_for_its_arguments() -> None:
    kept = reference()
    assert torch.equal(answer(kept)[0], answer(kept)[0])
    assert len(kept._models) == 1
    for size in range(1, 40):
        case = {"init": [size], "outputs": [("y", "float32", [1, size])]}
        answer(kept, case, x=torch.ones(1, size))
    assert len(kept._models) < 20


def test_an_output_that_the_call_names_is_written() -> None:
    case = {
        "init": None,
        "call": [{"array": "x"}, {"array": "y"}, 3.0],
        "returns": [],
        "outputs": [("y", "float32", [2])],
    }
    (value,) = answer(reference(reference="scale"), case, x=torch.tensor([1.0, 2.0]))
    assert value.tolist() == [3.0, 6.0]


def test_several_outputs_come_in_the_order_of_the_signature() -> None:
    case = {
        "init": None,
        "returns": [{"array": "y"}, {"dict": [["n", {"array": "total"}]]}],
        "outputs": [("total", "float32", []), ("y", "float32", [2])],
    }
    total, y = answer(reference(reference="several"), case, x=torch.tensor([1.0, 2.0]))
    assert (total.item(), y.tolist()) == (3.0, [1.0, 2.0])


def test_what_a_reference_returns_must_be_tensors() -> None:
    source = "def f(x):\n    return x.tolist()\n"
    made = Reference(source, "r.py", MODULE | {"reference": "f"})
    with pytest.raises(Mismatch, match="y is a list, not a tensor"):
        answer(made, {"init": None})


@pytest.mark.parametrize("name", ["Missing", "N"])
def test_a_file_without_the_reference_is_refused(name: str) -> None:
    with pytest.raises(Mismatch, match=f"it defines no {name}"):
        reference(reference=name)


ARRAYS = [("c", "float64", [3]), ("x", "float32", [3]), ("y", "float32", [6])]
CALL = [{"array": "x"}, {"tuple": [{"array": "y"}, {"array": "c"}]}]


def test_inputs_are_drawn_by_the_file_with_these_dimensions_and_this_seed() -> None:
    drawing = reference(draw="draw(n, seed)")
    c, x, y = drawing.drawn({"n": 3, "N": 6}, 9, CALL, ARRAYS)
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert (c.dtype, y.shape) == (torch.float64, (6,))
    again = drawing.drawn({"n": 3, "N": 6}, 9, CALL, ARRAYS)
    assert all(torch.equal(one, other) for one, other in zip((c, x, y), again, strict=True))
    other = drawing.drawn({"n": 3, "N": 6}, 10, CALL, ARRAYS)
    assert not torch.equal(other[2], y)


def test_what_is_drawn_must_be_what_the_problem_says() -> None:
    drawing = reference(draw="draw(n, seed)")
    with pytest.raises(Mismatch, match=r"x has shape \(4,\), not \(3,\)"):
        drawing.drawn({"n": 4, "N": 6}, 9, CALL, ARRAYS[1:])
    with pytest.raises(Mismatch, match="what is drawn has 2 parts, not 1"):
        drawing.drawn({"n": 3, "N": 6}, 9, CALL[:1], ARRAYS)
    with pytest.raises(Mismatch, match=r"what is drawn\[1\] has 2 parts, not 1"):
        drawing.drawn({"n": 3}, 9, [CALL[0], {"tuple": [{"array": "y"}]}], ARRAYS)


@pytest.mark.parametrize(
    ("check", "words"),
    [("check", "too small"), ("plain_check", "small"), ("silent_check", "the problem's own check")],
)
def test_a_files_own_check_has_its_say(check: str, words: str) -> None:
    checking = reference(check=check)
    x = torch.zeros(2)
    if check != "silent_check":
        assert checking.check(CASE, {"x": x, "y": x + 1}) == ""
    assert words in checking.check(CASE, {"x": x, "y": x})
