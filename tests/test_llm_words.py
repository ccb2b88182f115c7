"""What a model is told of a module that was rehearsed: facts, and no word of its author."""

from __future__ import annotations

import pytest

from kernelcast.llm import evidence_text
from kernelcast.types import Evidence, Failure, FailureKind, Launched, Operators, Rehearsal

BOAST = "ten_times_faster_verified"
OPERATORS = Operators(
    left={"relu": 2},
    replaced={"matmul": 1},
    own={BOAST: 3},
    moved_bytes=2_000_000,
    reference_moved_bytes=3_000_000,
)
LAUNCH = Launched(kernel=BOAST, grid=(8, 1, 1), block=(256, 1, 1), count=2)
REFUTED = Failure(kind=FailureKind.WRONG_RESULT, message=f"error: {BOAST}")


@pytest.mark.parametrize(
    ("rehearsal", "words"),
    [
        (Rehearsal(), "nothing wrong was seen; it was not run"),
        (Rehearsal(undecided=BOAST), "is not decided"),
        (Rehearsal(stage="running"), "its results were right"),
        (Rehearsal(failure=REFUTED, stage="running"), "run on small cases on a CPU (wrong result)"),
        (Rehearsal(operators=OPERATORS), "calls 3 functions of its extensions; leaves relu x2"),
        (Rehearsal(operators=OPERATORS), "move 2 MB, the reference's operators 3 MB"),
        (Rehearsal(stage="running", launches=(LAUNCH,)), "launch 1, made 2 times: grid (8, 1, 1)"),
    ],
)
def test_a_model_is_told_facts_and_no_word_of_the_author(rehearsal: Rehearsal, words: str) -> None:
    text = evidence_text(Evidence(kernel_id="k", toolchain="t", rehearsal=rehearsal))
    assert text.startswith("Not compiled, as the device is not here.")
    assert words in text
    assert BOAST not in text
