"""`kernelcast eval` and `kernelcast replay` as a user types them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main
from tests.forecasters.test_llm import letters
from tests.model_server import ScriptedServer
from tests.test_dataset import parquet
from tests.test_dataset_forecasts import PAIRS, PREDICTIONS, TIMED
from tests.test_dataset_recordings import row
from tests.test_dataset_trials import SEARCH

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    space = [
        row(number, runtime_s=4e-3 / number, log2_speedup=math.log2(number))
        for number in range(1, 13)
    ]
    dataset.write_rows(Path("space.parquet"), dataset.to_table(space))
    dataset.write_rows(Path("search.parquet"), dataset.to_table(SEARCH))


def invoke(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=typed, catch_exceptions=False)


def test_forecasters_are_judged_side_by_side() -> None:
    result = invoke("eval", "search.parquet", "--forecaster", "roofline", "--out", "judged")
    assert result.exit_code == 0, result.output
    assert "roofline" in result.stdout
    assert "hindsight" in result.stdout
    assert "4 recorded kernels (3 timed), 1 problems" in result.stdout
    told = json.loads(Path("judged/eval.json").read_text())
    assert [each["forecaster"] for each in told] == ["roofline", "hindsight"]
    assert told[0]["scores"]["crps"][0] > 0.0
    assert told[1]["scores"]["spearman"] == [None, None, None]
    assert Path("judged/eval.png").read_bytes().startswith(b"\x89PNG")


def test_the_anchor_and_the_bins_are_chosen() -> None:
    common = ("eval", "search.parquet", "--forecaster", "roofline", "--json")
    best, reference, paper = (
        json.loads(invoke(*common, *more).stdout)["evaluations"][0]["scores"]
        for more in ((), ("--anchor", "reference"), ("--bins", "paper"))
    )
    assert best["crps"] != reference["crps"]
    assert best["crps"] == paper["crps"]
    assert best["half_brier"] != paper["half_brier"]


def test_kernels_without_a_time_are_refused() -> None:
    untimed = [
        each.model_copy(update={"status": "crash", "runtime_s": None, "log2_speedup": None})
        for each in SEARCH
    ]
    dataset.write_rows(Path("untimed.parquet"), dataset.to_table(untimed))
    result = invoke("eval", "untimed.parquet", "--forecaster", "roofline", "--out", "judged")
    assert result.exit_code == 1
    assert "none of these kernels has a time" in result.output


def model_at(base_url: str, *more: str) -> tuple[str, ...]:
    asked = ("eval", "search.parquet", "--forecaster", "llm", "--ask", "direct")
    return (*asked, "--base-url", base_url, "--model", "m", "--out", "judged", *more)


def test_a_model_is_judged_beside_the_trees_on_the_same_rows() -> None:
    with ScriptedServer(letters({"I": 0.6, "K": 0.4})) as server:
        shown = invoke(*model_at(server.base_url, "--price-in", "1", "--price-out", "2", "--yes"))
    assert shown.exit_code == 0, shown.output
    assert "4 recorded kernels (3 timed), 1 problems" in shown.stdout
    assert "llm read 400 and wrote 4 tokens for $0.0004; 0 answers could not" in shown.stdout
    assert "reliability of llm: 0.60 claimed 0.00 right (3)" in shown.stdout
    told = json.loads(Path("judged/eval.json").read_text())
    assert [each["forecaster"] for each in told] == ["llm", "trees", "hindsight"]
    assert {each["kernels"] for each in told} == {4}
    # Every likeliest bin is the tie, and none came true.
    assert told[0]["scores"]["accuracy"][0] == 0.0
    assert told[0]["reliability"] == [[0.6, 0.0, 3]]
    assert told[0]["risk_coverage"]["1"] == told[0]["scores"]["half_brier"][0]
    assert told[0]["usage"]["output_tokens"] == 4


def test_a_model_is_not_paid_without_consent() -> None:
    with ScriptedServer(letters({"I": 1.0})) as server:
        priced = ("--price-in", "1000000", "--price-out", "1000000")
        refused = invoke(*model_at(server.base_url, *priced), typed="n\n")
        assert server.requests == []
        granted = invoke(*model_at(server.base_url, *priced), typed="y\n")
        assert len(server.requests) == 4
    assert refused.exit_code == 1
    assert "4 kernels, 0 of them answered" in refused.stderr
    typical, most = (
        float(each.replace(",", "")) for each in re.findall(r"\$([\d.,]+\d)", refused.stderr)
    )
    assert 4 <= typical < most
    assert "Ask m about 4?" in refused.stderr
    assert granted.exit_code == 0


def test_an_unknown_price_is_said_to_be_unknown() -> None:
    told = invoke(*model_at("http://llm.example.com/v1"), typed="n\n")
    assert "dollars are unknown" in told.stderr.replace("\n", " ")
    assert "--price-in" in told.stderr


def test_started_again_it_goes_on_where_it_stopped() -> None:
    tape = Path("judged/answers.jsonl")
    with ScriptedServer(letters({"I": 0.6, "K": 0.4})) as server:
        whole = invoke(*model_at(server.base_url, "--yes"))
        assert len(server.requests) == 4
        again = invoke(*model_at(server.base_url))  # nobody is asked, so no consent is needed
        assert len(server.requests) == 4
        lines = tape.read_text().splitlines(keepends=True)
        tape.write_text("".join(lines[:3]) + lines[3][:40])  # a crash in the middle of a line
        mended = invoke(*model_at(server.base_url, "--yes"))
        assert len(server.requests) == 5
    assert whole.stdout == again.stdout == mended.stdout
    assert "4 kernels, 3 of them answered in judged/answers.jsonl before" in mended.stderr
    assert len(tape.read_text().splitlines()) == 4


def papers_files(*predictions: dict[str, Any]) -> tuple[str, ...]:
    """Import released files of these contents and return the command that judges them."""
    parquet(Path("eval.parquet"), PAIRS)
    parquet(Path("predictions.parquet"), list(predictions))
    for kind, source, out in (
        ("gpu-forecasters", "eval.parquet", "rows.parquet"),
        ("paper-predictions", "predictions.parquet", "forecasts.parquet"),
    ):
        result = invoke("data", "import", kind, source, "--out", out)
        assert result.exit_code == 0, result.output
    return ("eval", "rows.parquet", "--forecasts", "forecasts.parquet")


def test_the_papers_forecasts_are_judged_beside_the_trees() -> None:
    """By hand, of four pairs that came out in the bins 5, 2, 7 and 4 of 1 to 8.

    The forecasts: 0.6 and 0.4 for the bins 5 and 4; 0.45 and 0.55 for 2 and 3; none that can be
    read; 0.58 for the bin 6 and 0.14 for 5, 7 and 8. Half-Briers: 0.16, 0.3025, 0.4375, 0.6976.
    """
    result = invoke(*papers_files(*PREDICTIONS), "--forecaster", "trees", "--json")
    assert result.exit_code == 0, result.output
    trees, paper, hindsight = json.loads(result.stdout)["evaluations"]
    assert [trees["forecaster"], paper["forecaster"]] == ["trees", "m"]
    assert {each["kernels"] for each in (trees, paper, hindsight)} == {4}
    assert set(trees["scores"]) == set(paper["scores"])
    found = {name: score[0] for name, score in paper["scores"].items()}
    by_hand = {
        "accuracy": 1 / 4,
        "off_by_one": 2 / 4,
        "half_brier": (0.16 + 0.3025 + 0.4375 + 0.6976) / 4,
        # Surest first: by 0.6, 0.58, 0.55, 0.125; by entropy; by the margins 0.44, 0.2, 0.1, 0.
        "aurc": (0.16 + 0.8576 / 2 + 1.1601 / 3 + 1.5976 / 4) / 4,
        "aurc_entropy": (0.16 + 0.4625 / 2 + 1.1601 / 3 + 1.5976 / 4) / 4,
        "aurc_margin": (0.6976 + 0.8576 / 2 + 1.1601 / 3 + 1.5976 / 4) / 4,
        # The first and the last are said to be faster; the first and the third are.
        "discovery_precision": 1 / 2,
        "discovery_recall": 1 / 2,
    }
    assert {name: found[name] for name in by_hand} == pytest.approx(by_hand, abs=1e-5)
    assert paper["reliability"][0] == [0.125, 0.0, 1]
    assert paper["unparsed"] == 1
    assert paper["usage"]["input_tokens"] == 4 * TIMED["input_tokens"]
    assert paper["usage"]["seconds"] == 4 * TIMED["elapsed_s"]


def test_many_forecasters_are_a_line_each_and_repeats_count_each() -> None:
    answers = [
        each | {"surrogate_label": label, "repeat": repeat}
        for label in ("gpt-oss-20b-correctness-brier", "other")
        for repeat in range(3)
        for each in PREDICTIONS
    ]
    command = papers_files(*answers)
    shown = CliRunner().invoke(
        main, [*command, "--forecaster", "roofline", "--out", "judged"], env={"COLUMNS": "80"}
    )
    assert shown.exit_code == 0, shown.output
    assert "4 recorded kernels (4 timed), 1 problems" in shown.stdout
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["other", "12", "3", "36,000", "10,800"] in lines
    table = [line for line in lines if line and line[0] == "gpt-oss-20b-correctness-brier"]
    assert table[0][1:3] == ["0.250", "0.500"]
    assert max(map(len, shown.stdout.splitlines())) <= 80
    told = {each["forecaster"]: each for each in json.loads(Path("judged/eval.json").read_text())}
    assert list(told) == ["roofline", "gpt-oss-20b-correctness-brier", "other", "hindsight"]
    assert (told["other"]["forecasts"], told["other"]["kernels"]) == (12, 4)
    assert told["roofline"]["forecasts"] == 4
    assert Path("judged/eval.png").read_bytes().startswith(b"\x89PNG")


def test_a_part_of_the_rows_is_judged_but_all_are_joined() -> None:
    command = (*papers_files(*PREDICTIONS), "--forecaster", "roofline", "--json")
    told = json.loads(invoke(*command, "--limit", "2").stdout)["evaluations"]
    assert [each["forecasts"] for each in told] == [2, 2, 2]
    assert invoke(*command, "--problem", "trimul").exit_code == 0
    dataset.write_rows(Path("rows.parquet"), dataset.read_rows("rows.parquet").slice(1))
    refused = invoke(*command)
    assert refused.exit_code == 1
    assert "'eval-set/cmp-1' of 'trimul' is the key of 1 rows and of 2" in refused.stderr


def test_a_limit_draws_kernels() -> None:
    told = json.loads(
        invoke("eval", "space.parquet", "--forecaster", "roofline", "--limit", "7", "--json").stdout
    )
    assert told["evaluations"][0]["kernels"] == 7


def test_a_space_is_replayed() -> None:
    result = invoke(
        "replay", "space.parquet", "--forecaster", "roofline", "-n", "4", "--seeds", "2",
        "--policy", "measure_all", "--policy", "top_k", "--figure", "found.png", "--json",
    )  # fmt: skip
    arms = json.loads(result.stdout)["arms"]
    assert set(arms) == {"measure_all", "top_k"}
    assert arms["measure_all"]["spaces"]["runs"] == 2
    assert 0.0 < arms["measure_all"]["spaces"]["at_4"] <= 1.0
    assert Path("found.png").read_bytes().startswith(b"\x89PNG")


def test_a_search_is_replayed() -> None:
    result = invoke("replay", "search.parquet", "--forecaster", "roofline")
    assert result.exit_code == 0, result.output
    assert "Recorded searches: measurements saved" in result.stdout
    measure_all = next(line for line in result.stdout.splitlines() if "measure_all" in line)
    assert measure_all.split()[1:4] == ["0", "1", "0"]


@pytest.mark.parametrize("command", ["eval", "replay"])
def test_what_is_not_there_is_told(command: str) -> None:
    result = invoke(command, "space.parquet", "--problem", "nothing like this")
    assert result.exit_code == 1
    assert "no row's problem contains 'nothing like this'" in result.stderr
