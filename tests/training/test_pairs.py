"""Rows as questions: the same prompts as at inference, balanced, and apart in a split."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli import main
from kernelcast.dataset import Row, Rows, to_rows, to_table, write_rows
from kernelcast.errors import SetupError
from kernelcast.forecasters._prompts import Prompts
from kernelcast.outcomes import Outcomes
from kernelcast.training.pairs import questions, without_near_duplicates
from kernelcast.types import content_hash
from tests.forecasters.test_llm import letters
from tests.model_server import ScriptedServer

from .conftest import search_rows, source_of


@pytest.mark.parametrize("ask", ["direct", "digits", "reasoned"])
def test_a_question_is_byte_for_byte_what_the_forecaster_asks(
    ask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = to_table(search_rows(2, 7))
    write_rows(Path("rows.parquet"), rows)
    with ScriptedServer(letters({"I": 1.0})) as server:
        command = f"eval rows.parquet --forecaster llm --ask {ask} --model m --yes --json"
        arguments = [*command.split(), "--base-url", server.base_url]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    inferred = Counter(str(request["messages"]) for request in server.requests)
    asked = questions(rows, Prompts(ask))  # type: ignore[arg-type]
    trained = Counter(str(list(question.messages)) for question in asked)
    assert trained.keys() == inferred.keys()
    assert len(trained) > 6
    assert any("times as fast as the anchor:" in text for text in trained)


def test_the_outcome_is_that_of_the_row() -> None:
    outcomes, reference = Outcomes(), source_of(["relu"], 0)
    known = {"reference_source": reference, "reference_id": content_hash(reference)}
    table = to_table([row.model_copy(update=known) for row in search_rows(3, 8)])
    asked = questions(table, Prompts("direct"), anchor="reference")
    assert len(asked) == 24
    rows = {row.row_id: row for row in to_rows(table)}
    for question in asked:
        row = rows[question.row_id]
        failure = None if row.status == "ok" else row.status
        assert question.outcome == outcomes.index(failure, row.log2_speedup)  # type: ignore[arg-type]
        assert question.answer == outcomes.letters[question.outcome]
        assert (question.problem, question.device) == (row.problem, row.device)


def test_digits_show_the_form_with_the_outcome_in_front() -> None:
    outcomes = Outcomes()
    for question in questions(to_table(search_rows(2, 8)), Prompts("digits")):
        shares = outcomes.read_digits(question.answer)
        assert shares is not None
        assert shares.likeliest == question.outcome
        assert max(shares.chances) == shares.chances[question.outcome]


def test_a_limited_draw_is_spread_over_problems_devices_and_outcomes() -> None:
    many, few = search_rows(1, 200), search_rows(1, 12, source="other", seed=1)
    few = [row.model_copy(update={"problem": "other", "device": "small"}) for row in few]
    rows = to_table(many + few)
    drawn = questions(rows, Prompts("direct"), limit=20, even=0.0)
    assert Counter(question.problem for question in drawn)["other"] >= 6
    by_outcome = [
        Counter(q.outcome for q in questions(rows, Prompts("direct"), limit=60, even=even))
        for even in (0.0, 1.0)
    ]
    assert max(by_outcome[1].values()) < max(by_outcome[0].values())
    assert len({q.row_id for q in drawn}) == len(drawn) == 20
    again = questions(rows, Prompts("direct"), limit=20, even=0.0)
    assert [q.row_id for q in again] == [q.row_id for q in drawn]


def _one(text: str, problem: str) -> Rows:
    (row,) = search_rows(1, 1)
    changes = {
        "candidate_source": text,
        "candidate_id": content_hash(f"{problem}{text}"),
        "problem": problem,
    }
    return to_table([Row(**{**dict(row), **changes})])


_TEXT = (
    "import torch\n\ndef run(x, y):\n"
    + "".join(
        f"    x = torch.{word}(x) * {number} + y\n"
        for number, word in enumerate(
            ["relu", "sin", "exp", "sqrt", "tanh", "cos", "abs", "neg"] * 3
        )
    )
    + "    return x\n"
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (_TEXT.replace("x", "z").replace("ezp", "exp"), 0),
        (_TEXT.replace("* 3 ", "* 5 "), 0),
        (_TEXT.replace("    return", "# a comment\n    return"), 0),
        (_TEXT.replace("sin", "erf").replace("relu", "sigmoid").replace("* ", "- "), 1),
    ],
)
def test_near_duplicates_of_tested_kernels_are_not_trained_on(text: str, kept: int) -> None:
    assert without_near_duplicates(_one(text, "a"), _one(_TEXT, "b")).num_rows == kept


def test_pairwise_and_rows_without_texts_are_refused() -> None:
    rows = to_table(search_rows(1, 3))
    with pytest.raises(SetupError, match="reasoned, direct or digits"):
        questions(rows, Prompts("pairwise"))
    nothing = [row.model_copy(update={"candidate_source": None}) for row in search_rows(1, 3)]
    with pytest.raises(SetupError, match="no row has a kernel's text"):
        questions(to_table(nothing), Prompts("direct"))
