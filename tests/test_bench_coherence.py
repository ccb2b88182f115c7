"""How answers about pairs are counted."""

from __future__ import annotations

import pytest

import coherence
from coherence import PairAnswer
from kernelcast.distribution import Distribution
from kernelcast.testing import make_kernel, make_query
from kernelcast.types import Evidence, Failure, FailureKind, Forecast


def forecast(mean: float, std: float = 0.3, **chances: float) -> Forecast:
    return Forecast(
        forecaster="fake",
        anchor_id="a",
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(mean, std),
        failure={FailureKind(kind): chance for kind, chance in chances.items()},
    )


def pair_answer(
    there: float, back: float, copy_std: float = 0.002, contradictions: int = 0
) -> PairAnswer:
    copies = (forecast(0.0, copy_std),) * 2
    return PairAnswer("p", forecast(there), forecast(back), copies, contradictions, is_known=True)


def test_each_figure_counts_what_it_says() -> None:
    answers = [
        pair_answer(1.0, -1.0),
        pair_answer(-1.0, 1.0),
        pair_answer(0.5, 0.5, 0.5),
        pair_answer(1.0, -1.0, 0.002, 2),
    ]
    scores = coherence.scores(answers)
    assert scores["self_ties"] == 0.75
    assert scores["asymmetry_log2"] == pytest.approx(0.25)
    assert scores["contradictions"] == 2
    assert scores["known_right"] == 0.75
    assert scores["known_wrong_sure"] == 0.5  # the second pair, and the third in both directions
    assert scores["wrong"] == ["p"]


def test_denying_what_compiling_showed_is_a_contradiction() -> None:
    kernel = make_kernel("int a;")
    compiled = Evidence(kernel_id=kernel.id, toolchain="t")
    refused = Failure(kind=FailureKind.COMPILE_ERROR, message="no")
    broken = compiled.model_copy(update={"failure": refused})
    asked = make_query(kernel)
    doubtful, sure = forecast(0.0, compile_error=0.2), forecast(0.0)
    for evidence, said, expected in (
        (None, doubtful, False),
        (compiled, doubtful, True),
        (compiled, sure, False),
        (broken, doubtful, True),
        (broken, forecast(0.0, compile_error=1.0), False),
    ):
        query = asked.model_copy(update={"evidence": evidence})
        assert coherence._contradicts(query, said) is expected
