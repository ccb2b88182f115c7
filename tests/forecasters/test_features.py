from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.canonical import kernel_id
from kernelcast.forecasters._features import (
    Digest,
    SearchHistory,
    SourceFeatures,
    choose_vocabulary,
    digest,
    likenesses,
)
from kernelcast.testing import make_query, synthetic_problem
from kernelcast.types import (
    Failure,
    FailureKind,
    Kernel,
    Measurement,
    Observation,
    Query,
    Timing,
)

SOURCE = synthetic_problem().seed_source


# ------------------------------------------------------------------------- sources and searches

TRITON = """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * 2.0)

def run(x):
    kernel[(1,)](x, x, 64, BLOCK=1024, num_warps=4)
"""
FEATURES = SourceFeatures(("tl", "load", "num_warps", "sqrt"))


def written(source: str, name: str = "") -> Kernel:
    return Kernel(id=name or kernel_id(source, "triton"), language="triton", source=source)


def asked(candidate: Kernel, anchor: Kernel, anchor_log2: float = 0.0) -> Query:
    problem = synthetic_problem().model_copy(update={"entry": "run"})
    query = make_query(candidate, problem, anchor_log2)
    return query.model_copy(update={"anchor": anchor})


@pytest.mark.parametrize("number", ["1e999", "0x" + "f" * 400, "9" * 400, "1" + "0" * 400 + "u"])
@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_a_number_beyond_all_floats_is_finite(number: str, language: str) -> None:
    static = FEATURES.static(digest(f"x = {number};\n", language, "run"))
    assert not np.isinf(static).any()


def seen(kernel: Kernel, log2_speedup: float | None) -> Observation:
    failure = Failure(kind=FailureKind.WRONG_RESULT, message="")
    timing = Timing(
        log2_speedup=log2_speedup or 0.0,
        low=0.0,
        high=0.0,
        resolved=True,
        runtime_s=1e-3,
        reference_runtime_s=1e-3,
        cases=(),
    )
    return Observation(
        kernel=kernel,
        measurement=Measurement(
            kernel_id=kernel.id,
            problem_id="p",
            device_id="d",
            toolchain="t",
            timing=None if log2_speedup is None else timing,
            failure=failure if log2_speedup is None else None,
            device_s=0.0,
        ),
    )


def row(query: Query, *observations: Observation) -> dict[str, float]:
    history = SearchHistory()
    for observation in observations:
        history.add(observation, query.problem.entry)
    (values,) = FEATURES.matrix([query], history).tolist()
    return dict(zip(FEATURES.columns, values, strict=True))


def test_every_column_has_one_name_and_one_value() -> None:
    matrix = FEATURES.matrix([asked(written(TRITON), written(TRITON))] * 3, SearchHistory())
    assert matrix.shape == (3, len(FEATURES.columns))
    assert len(set(FEATURES.columns)) == len(FEATURES.columns)


def test_a_digest_reads_settings_and_ignores_comments() -> None:
    noisy = TRITON.replace("import triton\n", "# sqrt sqrt\nimport triton\n", 1)
    found = row(asked(written(noisy), written(TRITON)))
    assert found["set num_warps"] == 2.0
    assert found["word sqrt"] == 0.0
    assert found["anchor likeness"] == 1.0
    assert found["anchor same skeleton"] == 1.0


def test_cuda_inside_a_python_string_is_read() -> None:
    source = (
        "from torch.utils.cpp_extension import load_inline\n"
        'code = """\n#include <cuda.h>\n__global__ void f(float *x) { x[0] = sqrtf(1.f); }\n"""\n'
        'run = load_inline(name="f", cpp_sources="", cuda_sources=code, functions=["f"])\n'
    )
    assert digest(source, "python").words["sqrtf"] == 1


def test_changed_constants_keep_the_skeleton_and_show_their_ratio() -> None:
    anchor, candidate = written(TRITON), written(TRITON.replace("num_warps=4", "num_warps=16"))
    found = row(asked(candidate, anchor))
    assert found["anchor same skeleton"] == 1.0
    assert found["anchor change set num_warps"] == 2.0
    assert 0.9 < found["anchor likeness"] < 1.0
    rewritten = row(asked(written(TRITON.replace("* 2.0", "+ tl.sqrt(x_ptr)")), anchor))
    assert rewritten["anchor same skeleton"] == 0.0
    assert rewritten["anchor change word sqrt"] == 1.0


def test_a_source_without_text_is_unknown_not_empty() -> None:
    found = row(asked(written("", "sha:1"), written(TRITON)), seen(written(TRITON), 1.0))
    assert np.isnan(found["tokens"])
    assert np.isnan(found["neighbour 0 likeness"])
    assert np.isnan(found["anchor likeness"])
    assert found["measured"] == 1.0


def test_neighbours_tell_what_became_of_the_most_alike() -> None:
    slow, broken = written(TRITON.replace("1024", "64")), written("def other(): return 1\n")
    candidate = written(TRITON.replace("1024", "128"))
    found = row(asked(candidate, written(TRITON), 1.0), seen(slow, 0.25), seen(broken, None))
    assert found["neighbour 0 behind"] == -0.75
    assert found["neighbour 0 failed"] == 0.0
    assert found["neighbour 1 failed"] == 1.0
    assert found["failures"] == 1.0
    assert found["failure streak"] == 1.0


def test_history_counts_gains_and_the_way_back() -> None:
    first, second = written(TRITON), written(TRITON.replace("1024", "512"))
    history = [seen(first, 0.0), seen(second, 1.0), seen(first, 0.01)]
    found = row(asked(written(TRITON.replace("1024", "256")), second, 1.0), *history)
    assert found["gains"] == 1.0
    assert found["since gain"] == 2.0
    assert found["last is anchor"] == 0.0
    assert found["gain most"] == 1.0
    assert found["behind 1 ago"] == pytest.approx(-0.99)


def test_each_query_is_seen_from_its_own_anchor() -> None:
    one, two = written(TRITON), written(TRITON.replace("1024", "32"))
    candidate = written(TRITON.replace("1024", "64"))
    queries = [asked(candidate, one, 0.5), asked(candidate, two, 2.0)]
    together = FEATURES.matrix(queries, SearchHistory())
    alone = [FEATURES.matrix([query], SearchHistory())[0] for query in queries]
    np.testing.assert_array_equal(together, np.stack(alone))
    assert FEATURES.matrix([], SearchHistory()).shape == (0, len(FEATURES.columns))


@given(st.lists(st.one_of(st.none(), st.floats(-3, 3)), min_size=2, max_size=8), st.data())
def test_a_row_does_not_depend_on_what_is_measured_later(
    outcomes: list[float | None], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(outcomes) - 1))
    kernels = [written(TRITON.replace("1024", str(64 + i))) for i in range(len(outcomes))]
    query = asked(written(TRITON), kernels[0])

    def at_cut(later: float | None) -> list[float]:
        history = SearchHistory()
        rows = []
        for number, (kernel, outcome) in enumerate(zip(kernels, outcomes, strict=True)):
            if number == cut:
                rows = FEATURES.matrix([query], history)[0].tolist()
            history.add(seen(kernel, later if number >= cut else outcome))
        return rows

    np.testing.assert_array_equal(at_cut(None), at_cut(3.0))


def test_likeness_is_one_for_the_same_and_symmetric() -> None:
    pairs = np.stack(
        [digest(text, "triton").pair_counts for text in (TRITON, TRITON + "x = 1\n", "y = 2\n")]
    )
    alike = likenesses(pairs, pairs)
    np.testing.assert_allclose(np.diag(alike), 1.0)
    np.testing.assert_allclose(alike, alike.T)
    assert alike[0, 1] > alike[0, 2]


def test_the_vocabulary_counts_problems_not_texts() -> None:
    texts = [("a", digest("x = len([])\n", "python"))] + [
        ("b", digest(f"y{i} = sorted([len([{i}])])\n", "python")) for i in range(5)
    ]
    assert choose_vocabulary(texts, 1) == ("len",)


def test_words_are_those_of_the_language_and_its_libraries() -> None:
    renamed = re.sub(r"\b(kernel|x_ptr|y_ptr|n|BLOCK|at)\b", r"ten_times_faster_\1", TRITON)
    assert renamed != TRITON
    one, other = digest(TRITON, "triton", "run"), digest(renamed, "triton", "run")
    assert one.words == other.words
    assert not any("faster" in word for word in other.words)
    assert (one.names, one.skeleton) == (other.names, other.skeleton)
    np.testing.assert_array_equal(one.pair_counts, other.pair_counts)


def test_terms_are_what_differs_between_two_texts_and_not_what_their_authors_call_it() -> None:
    def terms(block: int, *, name: str = "BLOCK") -> dict[int, float]:
        source = f"#define {name} {block}\nvoid run(float *x) {{ x[{name}] = {name} + 8; }}\n"
        return dict(zip(*digest(source, "cpp", "run").terms, strict=True))

    assert terms(8) == terms(8, name="WIDTH")
    small, large = terms(8), terms(16)
    assert sum(small.values()) == sum(large.values())
    assert len(small.items() - large.items()) == len(large.items() - small.items()) == 1


def test_a_digest_that_was_kept_is_the_one_that_was_made() -> None:
    read = digest(TRITON, "triton", "run")
    kept = Digest.decode(read.encode())
    assert (kept.words, kept.names, kept.skeleton) == (read.words, read.names, read.skeleton)
    for name in ("scalars", "word_counts", "pair_counts"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(read, name))
    np.testing.assert_array_equal(kept.terms.hashes, read.terms.hashes)
    np.testing.assert_array_equal(kept.terms.counts, read.terms.counts)
