"""The bench of recorded answers: what a model is made to say, and how verdicts are counted."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import kernelbench as bench  # benches are scripts: pytest has their folder on its path
import overhead
from kernelcast.backends._arena import Arena
from kernelcast.events import Measured
from kernelcast.types import CaseTiming, Failure, FailureKind, Measurement, Timing

OK = bench.Answer("01_ok.py", "a", "ok", "import torch\nx = 1\n")
WRONG = bench.Answer("02_wrong.py", "b", "wrong_result", "import torch\nx = 2\n")
SLOW = bench.Answer("03_slow.py", "c", "timeout", "import torch\nx = 3\n")


def measurement(answer: bench.Answer, outcome: float | FailureKind) -> Measurement:
    """A measurement with a log2 speedup, whose interval is 0.1 wide on either side."""
    timing = failure = None
    if isinstance(outcome, FailureKind):
        failure = Failure(kind=outcome, message="told\nmore")
    else:
        case = CaseTiming(
            case="main", log2_ratios=(outcome,), runtime_s=1e-3, reference_runtime_s=2e-3
        )
        timing = Timing(
            log2_speedup=outcome,
            low=outcome - 0.1,
            high=outcome + 0.1,
            resolved=True,
            runtime_s=1e-3,
            reference_runtime_s=2e-3,
            cases=(case,),
        )
    return Measurement(
        kernel_id=answer.id,
        problem_id="p",
        device_id="d",
        toolchain="t",
        timing=timing,
        failure=failure,
        noise_log2=0.05,
        device_s=1.0,
        sandbox="S3",
    )


def row(best: bench.Answer, *events: tuple[bench.Answer, float | FailureKind, str]) -> Any:
    measured = [
        Measured.model_validate({"measurement": measurement(answer, outcome), "purpose": purpose})
        for answer, outcome, purpose in events
    ]
    result: Any = SimpleNamespace(kernel=SimpleNamespace(id=best.id))
    log: Any = SimpleNamespace(events=lambda _kind: measured)
    return bench.row_of(result, log, [OK, WRONG, SLOW])


def test_there_are_twelve_answers_to_each_of_twelve_problems() -> None:
    known = {name: bench.answers(name) for name in bench.PROBLEMS}
    assert len(known) == 12
    assert {len(each) for each in known.values()} == {12}
    for each in known.values():
        assert len({answer.id for answer in each}) == 12  # else one of them is never measured
    expected = Counter(answer.expect for each in known.values() for answer in each)
    assert set(expected) == {bench.OK, *FailureKind}
    for name in bench.QUICK_PROBLEMS:
        assert sum("load_inline" not in answer.source for answer in known[name]) >= 5


def test_a_model_does_not_say_what_is_expected_of_its_answer() -> None:
    for name in bench.PROBLEMS:
        for answer in bench.answers(name):
            assert "# expect" not in answer.source
            assert "# answer" not in answer.source
            assert json.loads(answer.reply.content or "")["kernel"] == answer.source
    answer = bench._answer("x.py", "# answer: one\n#   two\n# expect: crash\n```python\n# no\n")
    assert (answer.idea, answer.expect, answer.source) == ("one two", "crash", "```python\n# no\n")
    with pytest.raises(ValueError, match="a header states"):
        bench._answer("x.py", "# answer: one\n# expect: right\n")


def test_verdicts_are_those_of_the_first_measurement_and_the_speedup_of_the_second() -> None:
    found = row(
        OK,
        (OK, 2.0, "search"),
        (OK, 1.0, "confirmation"),
        (WRONG, FailureKind.CHEATING, "search"),
    )
    assert found["verdicts_right"] == 1
    assert found["verdicts"] == {
        "01_ok.py": "ok",
        "02_wrong.py": "cheating",
        "03_slow.py": "not measured",
    }
    assert found["wrong"] == {
        "02_wrong.py": "expected wrong_result, got cheating: told\nmore",
        "03_slow.py": "expected timeout, got not measured",
    }
    assert (found["speedup"], found["proven"], found["answer"]) == (2.0, True, "01_ok.py")
    assert (found["low"], found["high"]) == (1.866, 2.144)
    assert (found["eager_ms"], found["best_ms"], found["sandbox"]) == (2.0, 1.0, "S3")


def test_a_gain_within_noise_is_not_proven_and_the_seed_gains_nothing() -> None:
    within = row(OK, (OK, 0.12, "search"), (OK, 0.12, "confirmation"))
    assert within["speedup"] > 1
    assert not within["proven"]
    seed = bench.Answer("", "", "ok", "import torch\n")
    nothing = row(seed, (OK, -1.0, "search"))
    assert (nothing["speedup"], nothing["proven"], nothing["answer"]) == (1.0, False, "seed")
    total = bench.summary({"one": within, "two": nothing})
    assert (total["problems"], total["answers"], total["proven"]) == (2, 6, 0)
    assert next(iter(bench._lines("two", nothing))).split()[-1] == "seed"


def test_the_bare_loop_of_a_module_does_what_is_measured() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    problem = overhead.arithmetic_module(64)
    assert problem.model_validate(problem.model_dump()) == problem
    bare = overhead.BareModule(problem)
    bare.call(Arena.of(problem), "ragged", 2)
    (module, x), *others = bare._ready.values()
    assert not others
    assert (x.numel(), module.steps) == (77, 3)
    assert bare.elements(1e-3) > 0
