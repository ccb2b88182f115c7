from __future__ import annotations

import numpy as np
import pytest

from kernelcast.forecasters._features import feature_matrix, kernel_features
from kernelcast.testing import make_kernel, synthetic_problem
from kernelcast.types import Kernel

SOURCE = synthetic_problem().seed_source


def test_numbers_act_by_ratio_and_keep_their_sign() -> None:
    features = kernel_features(make_kernel(SOURCE, {"A": 7, "B": 0, "C": -1, "D": 0.5}))
    assert features == {"A": 3.0, "B": 0.0, "C": -1.0, "D": pytest.approx(np.log2(1.5))}


def test_text_becomes_an_indicator() -> None:
    features = kernel_features(make_kernel(SOURCE, {"LAYOUT": "rows", "A": 1}))
    assert features == {"LAYOUT=rows": 1.0, "A": 1.0}


def test_comments_and_layout_do_not_count() -> None:
    noisy = SOURCE.replace("{\n", "{ // for for while\n\n   /* if * + */\n")
    assert kernel_features(make_kernel(noisy)) == kernel_features(make_kernel(SOURCE))


def test_source_features_count_what_the_code_does() -> None:
    loops = "void kernel(float* y) {\n  for (;;) for (;;) for (;;) y[0] = y[1] * y[2];\n}"
    features = kernel_features(make_kernel(loops))
    assert features["word for"] == 2.0
    assert features["word ["] == 2.0
    assert features["word while"] == 0.0
    assert features["length"] > kernel_features(make_kernel("void kernel() {}"))["length"]


def test_pragmas_are_told_apart() -> None:
    plain, simd = SOURCE, SOURCE.replace("  for", "#pragma omp simd\n  for")
    added = kernel_features(make_kernel(simd)).keys() - kernel_features(make_kernel(plain)).keys()
    assert added == {"#pragma omp simd"}


def test_a_python_kernel_has_features_too() -> None:
    kernel = Kernel(id="x", language="triton", source="def kernel():\n    for i in x:\n        y\n")
    assert kernel_features(kernel)["word for"] == 1.0


def test_an_answer_is_the_callers_own() -> None:
    kernel = make_kernel(SOURCE)
    kernel_features(kernel)["length"] = -1.0
    assert kernel_features(kernel)["length"] > 0.0


def test_rows_and_columns() -> None:
    rows = [{"a": 1.0, "b": 2.0}, {"b": 3.0, "unknown": 4.0}]
    assert feature_matrix(rows, ["a", "b"]).tolist() == [[1.0, 2.0], [0.0, 3.0]]
    assert feature_matrix([], ["a", "b"]).shape == (0, 2)
