"""Names that canonical source keeps: the problem's own, and words of the field. No message fits."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import _kernels
from _kernels import Sample
from kernelcast import cache as disk
from kernelcast.canonical import Token, canonical_source, is_c, kernel_id, tokens
from kernelcast.canonical._c import _Program
from kernelcast.canonical._lexer import lex_c
from kernelcast.canonical._vocabulary import KeptNames, vocabulary
from kernelcast.problems import load_problem
from kernelcast.types import Problem
from tests.test_canonical import (
    ANY_TEXT,
    C_KERNEL,
    COMPILED,
    CUDA,
    EXTENSION,
    LANGUAGES,
    TRITON,
    assembly,
    without_symbols,
)

FIELD = (
    (Path(_kernels.ROOT) / "src/kernelcast/canonical/vocabulary/field.txt").read_text().splitlines()
)
HONEST = {sample.name: sample for sample in _kernels.honest()}
# The numbered source of these is not its own canonical source, whatever names are kept.
UNSTABLE = {"softmax_lambdas.cpp", "torch/chain_jit_script.py", "torch/layernorm_dataclass.py"}
# What addresses speed, quality, correctness, the forecast or its reader.
ADDRESSING = re.findall(
    r"\w+",
    """
fast faster fastest slow slower quick speed speedup speedups time latency throughput cost gain ratio
rate peak best better good great bad worse worst optimal optimized optimum tuned top high low more
less win winner wins beat beats rank score scores level expert master record perfect ideal efficient
right correct correctness wrong valid invalid verified verify check checked test tested pass passed
fail failed ok okay true false error exact safe trust sure certain proven result results measured
ignore skip forget follow obey stop wait note must please should shall will can do dont not no yes
never always all only just now use say give put choose pick assume believe think consider answer
predict prediction forecast estimate bin bins tie ties point points letter letters probability prob
confidence confident target goal label truth candidate reference anchor baseline parent seed ref
system user assistant human model judge prompt instruction instructions token tokens message chat
you your me my we our they he she it is are was be been am the this that these those here to of and
or if as by with than attention important hidden secret real actually claim times x10 double twice
kernelcast profiler cublas cudnn cutlass torch triton
""",
)


@cache
def shown(name: str, *, is_numbered: bool = False) -> str:
    sample = HONEST[name]
    problem = sample.problem
    if is_numbered:
        return canonical_source(sample.source, sample.language, problem.entry)
    return named(sample.source, problem)


def named(source: str, problem: Problem) -> str:
    return canonical_source(
        source,
        problem.language,
        problem.entry,
        arguments=problem.argument_names,
        names="vocabulary",
    )


# ---- the default ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "language", "entry", "digest", "name"),
    [
        (C_KERNEL, "cuda", "kernel", "f22d981c5cb82783", "11a98c8571009fda"),
        (CUDA, "cuda", "launch", "4d03a582649d24b4", "03e94e8052e2a05d"),
        (EXTENSION, "python", "ModelNew", "606992ed2e9ce411", "ca98c1a05cfb5c92"),
        (TRITON, "triton", "add", "91a1821b0e88f114", "5876545254e92446"),
        (TRITON[:300], "triton", "add", "1aa34223c30283a7", "28c64bdadfed2509"),
    ],
)
def test_the_default_and_the_id_are_what_they_were_before_names_were_kept(
    source: str, language: str, entry: str, digest: str, name: str
) -> None:
    printed = canonical_source(source, language, entry)
    assert hashlib.sha256(printed.encode()).hexdigest()[:16] == digest
    assert kernel_id(source, language)[:16] == name
    assert printed == canonical_source(source, language, entry, arguments=(), names="numbered")


# ---- the same program ----------------------------------------------------------------------------


def c_scopes(lexed: Sequence[Token]) -> Iterator[list[Token]]:
    """Each macro, and each other item of a program: the places that have numbers of their own."""
    for item in _Program(lexed, vocabulary("cuda")).items:
        inside = lexed[item.start : item.stop]
        yield from ([token] for token in inside if token.text.startswith("#define"))
        yield [token for token in inside if not token.text.startswith("#define")]


def c_names(scope: Iterable[Token]) -> Iterator[tuple[str, bool]]:
    """Every piece of the source, with whether it is a name that is not behind an access."""
    before = ""
    for kind, text in scope:
        if text.startswith("#pragma kernelcast"):
            continue  # it names dimensions, whatever the parameters are called
        if kind in ("directive", "string"):
            for piece in re.findall(r"[^\W\d]\w*|\S", text):
                yield piece, piece[0].isalpha() and kind == "directive"
        else:
            yield text, kind == "identifier" and before not in (".", "->", "::")
        before = text


def assert_one_to_one(pairs: Iterable[tuple[str, str]]) -> None:
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    for one, other in pairs:
        assert there.setdefault(one, other) == other, one
        assert back.setdefault(other, one) == one, other


def assert_same_c(one: str, other: str) -> None:
    lexed = [lex_c(one), lex_c(other)]
    assert [kind for kind, _ in lexed[0]] == [kind for kind, _ in lexed[1]]
    for scopes in zip(*map(c_scopes, lexed), strict=True):
        found = list(zip(*map(c_names, scopes), strict=True))
        assert all(
            new.isidentifier() if is_name or old.isidentifier() else old == new
            for (old, is_name), (new, _) in found
        )
        assert_one_to_one((old, new) for (old, is_name), (new, _) in found if is_name)


def assert_same_python(one: str, other: str) -> None:
    for statements in zip(ast.parse(one).body, ast.parse(other).body, strict=True):
        pairs = []
        for old, new in zip(*map(ast.walk, statements), strict=True):
            assert type(old) is type(new)
            if isinstance(old, ast.Name) and isinstance(new, ast.Name):
                pairs.append((old.id, new.id))
            elif isinstance(old, ast.arg) and isinstance(new, ast.arg):
                pairs.append((old.arg, new.arg))
            elif isinstance(old, ast.Constant) and isinstance(new, ast.Constant):
                if is_c(old.value):
                    assert_same_c(str(old.value), str(new.value))
                elif not isinstance(old.value, str):
                    assert old.value == new.value
        assert_one_to_one(pairs)


def is_python(sample: Sample) -> bool:
    return sample.language in ("torch", "triton")


@pytest.mark.parametrize("name", HONEST, ids=str)
def test_kept_names_are_a_one_to_one_renaming_of_the_numbered_source(name: str) -> None:
    check = assert_same_python if is_python(HONEST[name]) else assert_same_c
    check(shown(name, is_numbered=True), shown(name))


@pytest.mark.parametrize("name", HONEST, ids=str)
def test_source_with_kept_names_has_itself_and_the_numbered_source_as_canonical_source(
    name: str,
) -> None:
    problem = HONEST[name].problem
    numbered = shown(name, is_numbered=True)
    if name not in UNSTABLE:
        assert named(shown(name), problem) == shown(name)
        # A pragma takes the `v2` of the other form for a word of assembly.
        if name != "matmul_tasks.cpp":
            assert canonical_source(shown(name), problem.language, problem.entry) == numbered


@pytest.mark.parametrize("source", COMPILED.values(), ids=COMPILED)
def test_source_with_kept_names_compiles_to_the_same_assembly(source: str) -> None:
    printed = canonical_source(source, "cpp", arguments=("x", "y", "n"), names="vocabulary")
    assert printed != canonical_source(source, "cpp")
    assert without_symbols(assembly(printed)) == without_symbols(assembly(source))


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT, LANGUAGES)
def test_any_text_is_stable_with_kept_names(source: str, language: str) -> None:
    def keep(text: str) -> str:
        return canonical_source(
            text, language, "kernel", arguments=("a", "b", "v1"), names="vocabulary"
        )

    assert keep(keep(source)) == keep(source)


# ---- which names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("tile", "tile_row", "acc0", "warpSum", "BLOCK_SIZE_M", "WarpTile", "smemA", "x_ptr"),
        *("rows_per_block", "acc12", "num_pid_m", "TILE", "i", "N", "maxValue", "idx1"),
    ],
)
def test_names_of_the_field_stay(name: str) -> None:
    assert name in KeptNames(of_field=True)
    assert name not in KeptNames()


@pytest.mark.parametrize(
    "name",
    [
        *("ignore_previous_instructions", "speedup_4x", "this_is_optimal", "best_kernel_ever"),
        *("fast_tile", "tileFast", "FASTTILE", "f_a_s_t", "fAsT", "i_s", "row_faster_sum"),
        *("x16", "X4", "tile_x16", "acc100", "tile_2_row", "tile_row_sum_acc_max"),
        *("tile_tile", "tile_TILE", "tile__row", "_tile", "tile_", "tíle", "tile\u0430"),
    ],
)
def test_other_names_are_numbered(name: str) -> None:
    assert name not in KeptNames(of_field=True)
    in_c = f"void kernel(int {name}) {{ row[{name}] = {name}; }}"
    assert "row[v1] = v1;" in canonical_source(in_c, "cuda", "kernel", names="vocabulary")
    in_python = f"def kernel({name}):\n    return {name} + {name}.{name}"
    printed = canonical_source(in_python, "python", "kernel", names="vocabulary")
    assert "return v1 + v1.a1" in printed


@pytest.mark.parametrize("name", ["v1", "f2", "g3", "T1", "M1", "m1", "P1", "n1", "a1", "func1"])
def test_no_name_stays_that_looks_like_a_number(name: str) -> None:
    assert name not in KeptNames(of_field=True)
    assert name not in KeptNames(arguments=(name,))


def test_the_words_of_the_field_address_nobody() -> None:
    assert sorted({*FIELD}) == FIELD
    assert all(re.fullmatch("[a-z]+", word) for word in FIELD)
    assert not {*FIELD} & {*ADDRESSING}


@pytest.mark.parametrize(
    "word", [word for word in ADDRESSING if len(word) > 3 and word != "winner"]
)
def test_no_word_that_addresses_the_reader_can_be_put_together(word: str) -> None:
    def ways(rest: str) -> Iterator[list[str]]:
        """Its parts; `w_inner` is one of the few of which there are any."""
        if not rest:
            yield []
        for part in FIELD:
            if rest.startswith(part):
                yield from ([part, *more] for more in ways(rest[len(part) :]))

    assert not [way for way in ways(word) if "_".join(way) in KeptNames(of_field=True)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(ADDRESSING), min_size=1, max_size=2),
    st.lists(st.sampled_from(FIELD), max_size=3),
    st.sampled_from(["_", ""]),
    st.randoms(),
)
def test_a_name_with_one_addressing_word_is_numbered(
    addressing: list[str], words: list[str], joint: str, random: object
) -> None:
    parts = [*words, *addressing]
    random.shuffle(parts)  # type: ignore[attr-defined]
    name = joint.join(part if joint else part.capitalize() for part in parts)
    assert name not in KeptNames(of_field=True)


def test_no_message_reaches_the_model() -> None:
    for sample in _kernels.honest():
        owned = {*vocabulary("hip").members, *vocabulary("opencl").members}
        owned |= vocabulary("python").members if is_python(sample) else vocabulary("cpp").members
        owned |= {"cls", "self", *sample.problem.argument_names, sample.problem.entry}
        lexed = tokens(shown(sample.name), sample.language)
        pieces = chain.from_iterable(
            re.findall(r"[^\W\d]\w*", token.text) if token.kind == "identifier" else ()
            for token in lexed
        )
        for name in {*pieces} - owned:
            assert name in KeptNames(of_field=True) or re.fullmatch(r"[A-Za-z]+\d+", name), name


# ---- the problem's own ---------------------------------------------------------------------------

SAXPY = """
static float scaled(float x) { return x * 2; }
extern "C" void kernel(const float* fast_in, float* __restrict__ best, const int amount) {
  for (int i = 0; i < amount; ++i) best[i] = scaled(fast_in[i]) + threadIdx.x;
}
"""


def with_arguments(source: str, *arguments: str) -> str:
    return canonical_source(source, "cuda", "kernel", arguments=arguments)


def test_a_parameter_is_shown_under_the_problem_s_name_for_its_place() -> None:
    assert (
        with_arguments(SAXPY, "x", "y", "n")
        == """\
static float f1(float x) {
  return x * 2;
}
extern "C" void kernel(const float * x, float * __restrict__ y, const int n) {
  for (int v1 = 0; v1 < n; ++v1) y[v1] = f1(x[v1]) + threadIdx.x;
}
"""
    )


def test_parameters_that_bear_each_other_s_names_change_them() -> None:
    swapped = SAXPY.replace("fast_in", "y").replace("best", "x")
    assert with_arguments(swapped, "x", "y", "n") == with_arguments(SAXPY, "x", "y", "n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("amount)", "amount, int more)"),
        ("int i = 0; i", "int y = 0; y"),  # of a local variable
        ("best[i] =", "\n#define AT best[i]\nAT ="),
        ("scaled(fast_in[i])", "y(fast_in[i])"),
        ("const int amount", "int"),
        ("float* __restrict__ best", "float (*best)"),
        ("fast_in,", "half,"),
    ],
)
def test_a_name_that_clashes_renames_nothing(before: str, after: str) -> None:
    assert before in SAXPY
    printed = with_arguments(SAXPY.replace(before, after), "x", "y", "n")
    assert "float * x" not in printed
    assert with_arguments(printed, "x", "y", "n") == printed


def test_what_is_never_run_clashes_with_nothing() -> None:
    printed = with_arguments(SAXPY.replace("for (", "if (0) { int y = 1; } for ("), "x", "y", "n")
    assert printed == with_arguments(SAXPY, "x", "y", "n")


def test_a_name_that_stands_for_something_else_is_no_argument_s() -> None:
    for arguments in (("x", "v2", "amount"), ("v2", "x", "amount"), ("v1", "v2", "amount")):
        for name in ("v1", "v2"):
            printed = with_arguments(SAXPY.replace("best", name), *arguments)
            assert "(const float * v1, float * __restrict__ v2, const int amount)" in printed
            assert with_arguments(printed, *arguments) == printed
    assert "float * v1, float * __restrict__ v2" in with_arguments(SAXPY, "v2", "y", "n")
    assert "(const float * v1," in with_arguments(SAXPY, "half", "y", "n")
    assert "(const float * v1," in with_arguments(SAXPY, "x y", "y", "n")


def test_python_keeps_the_problem_s_names_and_none_that_an_import_has() -> None:
    source = """
import torch.nn.functional as ops
def kernel(x, F, ignore):
    F = x.shape[0]
    return ops.relu(x) * F + ignore
"""
    assert (
        canonical_source(source, "python", "kernel", arguments=("x", "F"))
        == """\
import torch.nn.functional as F

def kernel(x, v1, v2):
    v1 = x.shape[0]
    return F.relu(x) * v1 + v2
"""
    )


def test_the_names_of_a_problem_are_in_the_order_of_its_signature() -> None:
    assert load_problem("softmax").argument_names == ("x", "y", "R", "C")


def test_a_function_of_cuda_in_a_module_has_one_name_in_both_languages() -> None:
    source = EXTENSION.replace("twice_cuda", "row_scale")
    printed = canonical_source(source, "python", "ModelNew", names="vocabulary")
    assert "functions=['row_scale']" in printed
    assert "torch::Tensor row_scale(torch::Tensor x) {" in printed
    assert ".row_scale(x)" in printed
    assert "name=''" in printed


def test_results_on_disk_are_found_by_the_names_that_stay(tmp_path: Path) -> None:
    def all_of() -> list[str]:
        canonical_source.cache_clear()
        numbered = canonical_source(SAXPY, "cuda", "kernel")
        arguments = with_arguments(SAXPY, "x", "y", "n")
        return [
            numbered,
            arguments,
            canonical_source(SAXPY, "cuda", "kernel", names="vocabulary"),
            with_arguments(SAXPY, "y", "x", "n"),
        ]

    fresh = all_of()
    with disk.using(tmp_path):
        assert all_of() == fresh
        assert all_of() == fresh
    assert len({*fresh}) == 4
