from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import kernelcast.problems
from kernelcast.backends._launch import read_launch
from kernelcast.errors import ProblemError
from kernelcast.parts import read_run
from kernelcast.problems import bundled_problems, load_problem

MATMUL = Path(kernelcast.problems.__file__).with_name("bundled") / "matmul"

STATED_A = """dtype = "float32"
shape = ["M", "K"]
fill = { kind = "normal" }
special = ["nan", "inf", "denormal"]
"""
LARGE_INT8_A = 'dtype = "int8"\nshape = ["M", "K"]\nfill = { kind = "integers", high = 129 }\n'
INTEGERS_A = 'dtype = "int32"\nshape = ["M", "K"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MATMUL, tmp_path / "mine"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", bundled_problems())
def test_bundled_problems_load(name: str) -> None:
    problem = load_problem(name)
    assert problem.name == name
    assert problem.timed_cases
    assert any(not case.timed for case in problem.cases)
    assert problem.entry in problem.seed_source


@pytest.mark.parametrize("name", bundled_problems("cpp"))
def test_bundled_problems_in_cpp_have_templates(name: str) -> None:
    problem = load_problem(name)
    assert problem.template is not None
    admitted = list(itertools.islice(problem.template.configurations(), 500))
    assert len(admitted) == 500
    assert problem.template.render(admitted[0]).startswith("#define ")


def test_matmul_is_what_its_folder_says() -> None:
    problem = load_problem("matmul")
    assert problem.dimensions == ("M", "N", "K")
    assert [argument.name for argument in problem.arguments] == ["a", "b", "c"]
    assert problem.arguments[0].extent({"M": 2, "N": 3, "K": 5}) == (2, 5)
    assert problem.flops == "2*M*N*K"
    assert problem.seed_source == (MATMUL / "seed.cpp").read_text()
    assert problem.oracle_source == (MATMUL / "reference.py").read_text()
    assert problem.template is not None
    assert problem.template.source == (MATMUL / "template.cpp").read_text()


def test_a_folder_is_the_same_problem(folder: Path) -> None:
    assert load_problem(folder) == load_problem(str(folder)) == load_problem("matmul")


def test_template_is_optional_but_not_half_of_it(folder: Path) -> None:
    (folder / "template.cpp").unlink()
    with pytest.raises(ProblemError, match=r"template\.cpp is missing"):
        load_problem(folder)
    (folder / "template.toml").unlink()
    assert load_problem(folder).template is None


@pytest.mark.parametrize("name", bundled_problems("cpp"))
def test_a_bundled_problem_can_be_had_in_cuda(name: str) -> None:
    stated, ported = load_problem(name), load_problem(name, language="cuda")
    launch = read_launch(ported.seed_source)
    assert launch is not None
    assert launch.fault(ported.cases) is None
    assert ported.template is None
    changed = {"language", "seed_source", "template"}
    assert ported.model_dump(exclude=changed) == stated.model_dump(exclude=changed)
    assert (ported.language, stated.language) == ("cuda", "cpp")


def test_the_stated_language_may_be_named(folder: Path) -> None:
    assert load_problem(folder, language="cpp") == load_problem(folder)


def test_a_language_without_a_seed_is_refused_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ProblemError, match=r"no seed in triton, only in cpp, cuda; add seed\.py"):
        load_problem(folder, language="triton")
    (folder / "seed.py").write_text("LAUNCH = {}\n")
    assert load_problem(folder, language="triton").seed_source == "LAUNCH = {}\n"
    with pytest.raises(ProblemError, match=r"no seed in python, only in cpp, cuda, torch, triton$"):
        load_problem(folder, language="python")


def test_unknown_name_lists_the_bundled_ones() -> None:
    with pytest.raises(ProblemError, match=r"neither a folder nor a bundled.*matmul"):
        load_problem("matmull")


@pytest.mark.parametrize("name", ["problem.toml", "reference.py", "seed.cpp"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ProblemError, match=f"{name} is missing; add it"):
        load_problem(folder)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("problem.toml", 'name = "matmul"', "name = ", "problem.toml is not valid TOML"),
        ("problem.toml", 'family = "gemm"', "", "problem.toml: family: Field required"),
        ("problem.toml", 'family = "gemm"', 'famly = "gemm"', "famly: Extra inputs"),
        ("problem.toml", 'language = "cpp"', 'language = "c"', "set language to one of cpp"),
        ("problem.toml", '"float32"', '"float12"', r"arguments\.0\.dtype"),
        ("problem.toml", '"float32"', '"float8_e4m3fn"', "a is float8_e4m3fn, which has no inf"),
        ("problem.toml", '"float32"', '"uint8"', "a cannot hold special values"),
        ("problem.toml", STATED_A, INTEGERS_A.replace("int32", "bool"), "a is bool; use fill"),
        ("problem.toml", STATED_A, LARGE_INT8_A, "int8 holds -128 to 127, not 0 up to 129"),
        ("problem.toml", "[work]", "[other]", r"add a \[work\] table"),
        ("problem.toml", '"2*M*N*K"', '"2*M*Q"', "flops: .*unknown name 'Q'"),
        ("problem.toml", '"2*M*N*K"', '"M-M"', "flops 'M-M' is 0; it must be positive"),
        ("problem.toml", '"2*M*N*K"', '"M/(N-N)"', "flops: "),
        ("problem.toml", 'shape = ["M", "K"]', 'shape = ["M", "K-K"]', "shape of a"),
        ("problem.toml", "{ M = 3, N = 5, K = 7 }", "{ M = 3, N = 5 }", r"\[cases.tiny\]: dim"),
        ("problem.toml", "{ M = 3, N = 5, K = 7 }", "3", "problem.toml: cases"),
        ("problem.toml", "[cases.main]", "[cases.main]\ntimed = false", "no case is timed"),
        ("problem.toml", 'name = "b"', 'name = "a"', "a is named twice"),
        ("problem.toml", 'name = "b"', 'name = "b-"', "'b-' cannot be a name"),
        ("problem.toml", 'role = "output"', 'role = "input"', "role = 'output'"),
        ("problem.toml", '["nan", "inf"', '["nan", "huge"', r"arguments\.0\.special\.1"),
        ("problem.toml", 'role = "output"', 'role = "output"\nspecial = ["nan"]', "c cannot hold"),
        ("problem.toml", '"normal"', '"integers", high = "9"', "a cannot hold special values"),
        ("problem.toml", "[cases.tiny]", '[cases.tiny]\nspecial = { a = "nan" }', "not in a case"),
        ("problem.toml", '"float32"', '"int32"', "a cannot hold special values"),
        ("problem.toml", STATED_A, INTEGERS_A, 'a is int32; use fill = { kind = "integers"'),
        ("problem.toml", '"normal"', '"uniform", low = 2', "low 2.* must be less than high 1"),
        ("problem.toml", '"normal"', '"uniform", high = "Z"', "fill of a: .*unknown name 'Z'"),
        ("problem.toml", "M = [1, 200], ", "", r"\[hidden\]: dimensions must be exactly M, N, K"),
        ("problem.toml", "M = [1, 200]", "Q = [1, 200]", r"\[hidden\]: dimensions must be exactly"),
        ("problem.toml", "M = [1, 200]", "M = [0, 200]", r"M = \[0, 200\] must be \[low, high\]"),
        ("problem.toml", "M = [1, 200]", "M = [9, 8]", r"M = \[9, 8\] must be \[low, high\]"),
        ("problem.toml", "M = [1, 200]", "M = 200", r"hidden\.dimensions\.M"),
        ("problem.toml", "[hidden]", "[hidden]\nconstraints = ['Z > 1']", "unknown name 'Z'"),
        ("problem.toml", "[hidden]", "[hidden]\nconstraints = ['M % 0']", r"\[hidden\]: "),
        ("problem.toml", "[hidden]", "[hiden]", "hiden: Extra inputs"),
        ("reference.py", "def reference(a, b,", "def reference(b, a,", "signature must be"),
        ("reference.py", "def reference", "def other", r"define `def reference\(a, b, \*, M"),
        ("reference.py", "def reference(", "def reference", r"reference.py:\d+: "),
        ("template.toml", "TILE_M % REG_M == 0", "TILE_M % REG_M == 9", "loosen one"),
        ("template.toml", "TILE_M % REG_M == 0", "TILE_Z == 0", "unknown name 'TILE_Z'"),
        ("template.toml", "[parameters]", "[parametres]", "template.toml: parameters: Field req"),
    ],
)
def test_complaints_name_the_file_and_the_fix(
    folder: Path, file: str, old: str, new: str, complaint: str
) -> None:
    edit(folder / file, old, new)
    with pytest.raises(ProblemError, match=complaint) as caught:
        load_problem(folder)
    assert str(folder / file) in str(caught.value)


def test_hidden_shapes_are_optional(folder: Path) -> None:
    stated = load_problem(folder)
    assert stated.hidden is not None
    assert stated.hidden.dimensions["M"] == (1, 200)
    text = (folder / "problem.toml").read_text()
    before, _, after = text.partition("[hidden]\n")
    (folder / "problem.toml").write_text(before + after.partition("\n\n")[2])
    assert load_problem(folder).hidden is None
    edit(folder / "problem.toml", "[cases.tiny]", "[cases.tiny]\nscale = 16.0")
    assert {case.name: case.scale for case in load_problem(folder).cases}["tiny"] == 16.0


@pytest.mark.parametrize("name", bundled_problems())
def test_bundled_problems_state_other_legal_shapes(name: str) -> None:
    problem = load_problem(name)
    assert problem.hidden is not None
    assert all(low < high for low, high in problem.hidden.dimensions.values())


def test_cases_may_be_for_one_kind_of_device(folder: Path) -> None:
    toml = folder / "problem.toml"
    edit(toml, "[cases.main]", '[cases.main]\ndevice = "gpu"')
    with pytest.raises(ProblemError, match="no case is timed"):
        load_problem(folder)
    on_gpu = load_problem(folder, device="gpu")
    assert on_gpu == load_problem("matmul")  # what a case is for is not part of it
    edit(toml, "[cases.tiny]", '[cases.tiny]\ndevice = "cpu"')
    assert "tiny" not in [case.name for case in load_problem(folder, device="gpu").cases]
    edit(toml, 'device = "gpu"', 'device = "tpu"')
    with pytest.raises(ProblemError, match=r'\[cases.main\] device is "cpu" or "gpu", not .tpu.'):
        load_problem(folder)


@pytest.mark.parametrize(
    ("settings", "is_for_gpu"),
    [
        ({}, False),
        ({"backend.device": "cpu"}, False),
        ({"backend.device": "H100-SXM5"}, True),
        ({"backend": "triton"}, True),
        ({"backend.device": "unheard of"}, False),  # the backend says so when it is built
    ],
    ids=["default", "cpu", "gpu", "backend of gpus", "unknown"],
)
def test_a_run_takes_the_cases_of_its_device(settings: dict[str, str], is_for_gpu: bool) -> None:
    problem = read_run({"problem": "trimul", **settings}).problem
    assert problem == load_problem("trimul", device="gpu" if is_for_gpu else "cpu")
    assert ("gpu_768" in [case.name for case in problem.cases]) == is_for_gpu


def test_unreadable_text_is_reported(folder: Path) -> None:
    (folder / "seed.cpp").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProblemError, match=r"seed\.cpp cannot be read"):
        load_problem(folder)
