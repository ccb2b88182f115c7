"""A kernel as numbers: its template parameters, and what its canonical source is made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernelcast.canonical import tokens
from kernelcast.types import Kernel

_KEYWORDS = ("for", "while", "if", "float", "double", "const", "restrict", "__restrict__", "static")
_OPERATORS = ("*", "+", "/", "%", "[", "?", "<", ">>", "<<")


def kernel_features(kernel: Kernel) -> dict[str, float]:
    """Named features. A parameter is taken as its value or, if text, as an indicator."""
    if kernel.parameters is None:
        return dict(_source_features(kernel.source, kernel.language))
    features: dict[str, float] = {}
    for name, value in kernel.parameters.items():
        if isinstance(value, str):
            features[f"{name}={value}"] = 1.0
        else:
            # Sizes act by ratio: 8 to 16 matters as much as 64 to 128.
            features[name] = math.copysign(math.log2(1 + abs(value)), value)
    return features


@lru_cache(maxsize=8192)
def _source_features(source: str, language: str) -> dict[str, float]:
    lexed = tokens(source, language)
    words = Counter(token.text for token in lexed)
    features = {f"word {word}": math.log2(1 + words[word]) for word in _KEYWORDS + _OPERATORS}
    features["length"] = math.log2(1 + len(lexed))
    features["names"] = math.log2(1 + len({t.text for t in lexed if t.kind == "identifier"}))
    for token in lexed:
        if token.kind == "directive" and token.text.startswith("#pragma"):
            features[token.text] = 1.0
    return features


def feature_matrix(rows: Sequence[dict[str, float]], columns: Sequence[str]) -> NDArray[np.float64]:
    """One row a kernel, zero where a kernel lacks a feature."""
    values = [[row.get(name, 0.0) for name in columns] for row in rows]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(columns))
