"""Problems whose kernels are PyTorch modules: what `[module]` must say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernelcast.errors import ProblemError
from kernelcast.problems import load_problem

from .test_init import edit

IMPORTED = Path(__file__).parents[1] / "modules" / "imported"
NAMES = sorted(path.name for path in IMPORTED.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(IMPORTED / "row_norm", tmp_path / "mine"))


@pytest.mark.parametrize("name", NAMES)
def test_imported_problems_load(name: str) -> None:
    problem = load_problem(IMPORTED / name)
    assert problem.language == "torch"
    assert problem.module is not None
    assert problem.entry in problem.seed_source
    assert problem.module.reference in problem.oracle_source
    assert any(not case.timed for case in problem.cases)


def test_a_torch_problem_needs_no_function_named_reference(folder: Path) -> None:
    assert "def reference" not in (folder / "reference.py").read_text()
    module = load_problem(folder).module
    assert module is not None
    assert (module.init, module.call, module.reference) == ("", "x, y", "Model")


DRAWN = 'fill = { kind = "drawn" }'
MODULE = """[module]
init = ""
call = "x, y"
returns = "out"
reference = "Model"
precision = "float64"
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("problem.toml", MODULE, "", r"add a \[module\] table, which says how ModelNew is called"),
        ("problem.toml", '"x, y"', '"x"', r"\[module\] leaves out y; name it in 'x'"),
        ("problem.toml", '"x, y"', "\"(x, {'a': [x]})\"", r"\[module\] leaves out y"),
        ("problem.toml", '"x, y"', '"x, y, z"', r"\[module\] call: .*unknown name 'z'"),
        ("problem.toml", '"x, y"', '"x, y, dim=1"', r"\[module\] call: .*no list of positional"),
        ("problem.toml", '"x, y"', '"x, f(y)"', r"\[module\] call: "),
        ("problem.toml", '"x, y"', '"x, y + 1"', r"\[module\] call: "),
        ("problem.toml", 'init = ""', 'init = "x"', r"\[module\] init: .*unknown name 'x'"),
        ("problem.toml", 'init = ""', 'init = "dim //"', r"\[module\] init: "),
        ("problem.toml", '"out"\nref', '"x"\nref', r"\[module\] leaves out out; name it in 'x'"),
        ("problem.toml", '"out"\nref', '"out, more"\nref', r"\[module\] returns: .*'more'"),
        ("problem.toml", '"float64"', '"float32"', r"problem.toml: module\.precision"),
        ("problem.toml", '"float64"', '"float64"\nkeywords = "x"', r"module\.keywords: Extra inp"),
        ("problem.toml", '{ kind = "normal" }', '{ kind = "drawn" }', "all inputs or none"),
        ("problem.toml", '"float64"', '"float64"\ndraw = "get_inputs()"', "all inputs or none"),
        ("problem.toml", '"float64"', '"float64"\ncheck = "judge"', r"reference.py: define judge"),
        ("reference.py", "class Model(", "class Other(", r"reference.py: define Model at its top"),
        ("reference.py", "class Model(", "if True:\n  class Model(", "its top level"),
        ("reference.py", "import torch\n", "import torch\n" + "(" * 300, r"reference.py(:\d+)?: "),
    ],
)
def test_complaints_name_the_file_and_the_fix(
    folder: Path, file: str, old: str, new: str, complaint: str
) -> None:
    edit(folder / file, old, new)
    with pytest.raises(ProblemError, match=complaint) as caught:
        load_problem(folder)
    assert str(folder) in str(caught.value)


def test_half_of_the_inputs_cannot_be_drawn(folder: Path) -> None:
    edit(folder / "problem.toml", '"float64"', '"float64"\ndraw = "get_inputs()"')
    edit(folder / "problem.toml", '{ kind = "normal" }', '{ kind = "drawn" }')
    with pytest.raises(ProblemError, match="makes all inputs or none"):
        load_problem(folder)
    edit(folder / "problem.toml", '{ kind = "uniform" }', '{ kind = "drawn" }')
    problem = load_problem(folder)
    assert problem.module is not None
    assert problem.module.draw == "get_inputs()"


def test_an_output_may_be_named_in_the_call_alone(folder: Path) -> None:
    edit(folder / "problem.toml", '"x, y"', '"x, y, out"')
    edit(folder / "problem.toml", '"out"\nref', '""\nref')
    assert load_problem(folder).module is not None


def test_what_is_assigned_at_the_top_level_is_defined(folder: Path) -> None:
    edit(folder / "problem.toml", '"float64"', '"float64"\ncheck = "judge"')
    with (folder / "reference.py").open("a") as file:
        file.write("judge = lambda data, output: (True, '')\n")
    problem = load_problem(folder)
    assert problem.module is not None
    assert problem.module.check == "judge"


def test_a_numpy_reference_of_a_torch_problem_has_its_signature_checked(folder: Path) -> None:
    edit(folder / "problem.toml", '"Model"', '"reference"')
    with pytest.raises(ProblemError, match=r"define `def reference\(x, y, \*, batch_size, dim\)`"):
        load_problem(folder)
    (folder / "reference.py").write_text("def reference(x, y, *, batch_size, dim):\n    return x\n")
    assert load_problem(folder).module is not None
