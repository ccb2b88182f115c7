"""The bench of recorded modules: how verdicts are counted, and what the ratios are fitted on."""

from __future__ import annotations

import pytest

import modules as bench  # benches are scripts: pytest has their folder on its path
from kernelcast.types import Failure, FailureKind, Rehearsal

COMPILE = FailureKind.COMPILE_ERROR
REFUTED = Rehearsal(failure=Failure(kind=COMPILE, message="error: no\nmore"), cpu_s=1.0)
READ = Rehearsal(cpu_s=3.0)
TEXT = {COMPILE: 0.3}


def recorded(
    count: int, status: str, rehearsal: Rehearsal, of: str = bench.SETS[0]
) -> list[tuple[bench.Module, Rehearsal]]:
    return [
        (
            bench.Module(f"{of}/{status}/{rehearsal.outcome}/{n}", of, "s, m", "p", status, "", ""),
            rehearsal,
        )
        for n in range(count)
    ]


ROWS = [
    *recorded(6, "ok", READ),
    *recorded(1, "ok", REFUTED),
    *recorded(8, COMPILE, REFUTED),
    *recorded(2, COMPILE, READ),
    *recorded(9, "ok", READ, bench.SETS[1]),
    *recorded(9, COMPILE, REFUTED, bench.SETS[1]),
]


def test_verdicts_are_counted_against_what_was_recorded() -> None:
    texts = {module.row_id: TEXT for module, _ in ROWS}
    result = bench.judge(ROWS, texts)
    assert (result["rows"], result["ok"], result["caught"], result["false_alarms"]) == (
        35,
        16,
        17,
        1,
    )
    assert result["by_stage"]["running"] == {"rows": 0, "false_alarms": 0, "caught": 0}
    assert result["said_of_false_alarms"] == ["error: no"]
    # Texts that are all alike tell nothing; the rehearsal orders them, and is wrong where it is.
    assert result["auroc_text"] == 0.5
    first = (6 / 7 + 8 / 10) / 2
    assert result["sets"][bench.SETS[0]]["auroc_with"] == pytest.approx(first, abs=1e-4)
    assert result["sets"][bench.SETS[1]]["auroc_with"] == 1.0


def test_ratios_are_fitted_on_the_other_sets() -> None:
    without_first = bench.ratios(ROWS, without=bench.SETS[0])
    assert without_first == bench.ratios(ROWS[17:], without="")
    assert without_first["refuted"][COMPILE] == pytest.approx((9.5 / 11.5) / (0.5 / 11.5))
    assert without_first["read"][COMPILE] < 0.1 < without_first["passed"][COMPILE]


def test_what_is_wrong_at_other_sizes_alone_counts_as_right() -> None:
    failure = Failure(kind=FailureKind.WRONG_RESULT, message="case tiny: ...; case main is right")
    sized = Rehearsal(failure=failure, timed_is_right=True, stage="running")
    result = bench.judge(recorded(2, "ok", sized), {})
    assert (result["false_alarms"], result["other_sizes"]) == (0, 2)
    assert (
        bench.judge(recorded(2, "ok", sized.model_copy(update={"timed_is_right": False})), {})[
            "false_alarms"
        ]
        == 2
    )


def test_a_result_without_texts_has_no_auroc() -> None:
    assert bench.judge(ROWS, {})["auroc_with"] is None
