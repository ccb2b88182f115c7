"""Whole searches with a language model in the loop; models, compilers, measurements are real."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli import main
from kernelcast.events import Forecasted, Settled
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.types import Budget, Resource
from tests.forecasters.test_llm import letters
from tests.model_server import Reply, ScriptedServer, kernel_replies

pytestmark = pytest.mark.measures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.full  # training/test_recipes.py asks the same model, after two steps of training
def test_a_search_with_forecasts_of_the_real_small_model_runs_to_its_end(
    small_model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["init", "mine"]).exit_code == 0
    command = (
        "search mine --name r --forecaster llm --model smollm2 --ask direct "
        "--set forecaster.timeout_s=1800 --candidates 1 --pool 1 --json --base-url"
    )
    result = runner.invoke(main, [*command.split(), small_model], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report["considered"] == 1
    assert report["ended"] == "nothing left to try"
    with Store.open(".kernelcast/store.db") as store:
        log = store.open_run("r")
        forecasts = [e.forecast for e in log.events("forecasted") if isinstance(e, Forecasted)]
        settled = [e.spend for e in log.events("settled") if isinstance(e, Settled)]
        ledger = log.ledger()[Resource.FORECAST_TOKENS]
    # Every token of every answer is in the ledger, and nothing is left reserved.
    tokens = sum(forecast.usage.tokens for forecast in forecasts)
    assert len(forecasts) == 1
    assert {forecast.unparsed for forecast in forecasts} == {False}
    assert {forecast.usage.output_tokens for forecast in forecasts} == {1}
    assert tokens > 300
    assert ledger.spent == tokens == sum(s.get(Resource.FORECAST_TOKENS, 0) for s in settled)
    assert ledger.reserved == 0
    # Its forecasts are worth little; what matters is that the report says so.
    calibration = report["calibration"]
    assert calibration["forecasts_met"] == report["measured"] > 0
    assert calibration["half_brier"] is not None
    with capfd.disabled():
        sys.stdout.write(
            f"\nSmolLM2-135M on {report['measured']} measured kernels: half-Brier "
            f"{calibration['half_brier']:.3f} (a uniform guess: "
            f"{calibration['half_brier_of_a_uniform_guess']:.3f}), ECE "
            f"{calibration['expected_calibration_error']:.3f}, "
            f"CRPS {calibration['crps_log2']:.3f}, "
            f"{sum(f.unparsed for f in forecasts)} of {len(forecasts)} answers unreadable, "
            f"{tokens:.0f} tokens\n"
        )


@pytest.mark.full  # the next test asks both, on one server
def test_the_parts_of_one_search_ask_two_servers() -> None:
    """One gives forecasts, the other kept kernels."""
    with (
        ScriptedServer(*kernel_replies()) as proposals,
        ScriptedServer(letters({"I": 1.0})) as forecasts,
    ):
        Path("search.toml").write_text(
            'problem = "softmax"\nname = "both"\n'
            f'[proposer]\nname = "llm"\nbase_url = "{proposals.base_url}"\nmodel = "scripted"\n'
            f'[forecaster]\nname = "llm"\nbase_url = "{forecasts.base_url}"\nmodel = "scripted"\n'
            'ask = "direct"\n'
            '[policy]\nname = "measure_all"\n'
        )
        state = Search.from_toml("search.toml").run(Budget(candidates=4)).state
    assert state.considered == state.measured == 4
    assert state.failures == {"compile_error": 1, "wrong_result": 1}
    assert state.incumbent.log2_speedup > 1.0
    assert state.spent[Resource.PROPOSAL_TOKENS] == 120 * len(proposals.requests)
    assert state.spent[Resource.FORECAST_TOKENS] == 101 * len(forecasts.requests) > 0


def test_both_parts_on_one_endpoint_from_the_command_line() -> None:
    kernels = kernel_replies()

    def answer(request: dict[str, Any]) -> Reply:
        schema = request["response_format"]["json_schema"]["schema"]["properties"]
        if "kernel" in schema:
            return kernels.pop() if kernels else Reply("{}")
        return Reply(json.dumps({key: "" if key == "rationale" else 7 for key in schema}))

    with ScriptedServer(answer) as server:
        command = "search softmax --forecaster llm --proposer llm --model m --candidates 4 --pool 2"
        limit = "output_limit=max_completion_tokens"
        more = ["--set", f"forecaster.{limit}", "--set", f"proposer.{limit}"]
        result = CliRunner().invoke(
            main,
            [*command.split(), "--json", "--base-url", server.base_url, *more],
            catch_exceptions=False,
        )
    assert all("max_completion_tokens" in request for request in server.requests)
    report = json.loads(result.stdout)
    assert report["considered"] == 4
    assert report["best"]["speedup"] > 1.5
    assert report["spent"]["proposal_tokens"] >= 4 * 120
    assert report["spent"]["forecast_tokens"] == 4 * 120


def test_a_search_asks_as_it_is_told_and_records_how() -> None:
    with ScriptedServer(letters({"L": 1.0})) as server:
        command = "search softmax --name r --forecaster llm --model m --candidates 2 --pool 2"
        asked = "--inspect --ask direct --bins paper --set forecaster.temperature=null --json"
        arguments = [*command.split(), *asked.split(), "--base-url", server.base_url]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert json.loads(result.stdout)["considered"] == len(server.requests) == 2
    with Store.open(".kernelcast/store.db") as store:
        started = store.open_run("r").state.started
    assert started is not None
    recorded = started.spec.components["forecaster"].options
    assert {key: recorded[key] for key in ("ask", "bins", "temperature")} == {
        "ask": "direct",
        "bins": "paper",
        "temperature": None,
    }
    for request in server.requests:
        system, user = (message["content"] for message in request["messages"])
        assert request["max_tokens"] == 1
        assert "temperature" not in request
        assert "L: " in system
        assert "M: " not in system  # four ways to fail and eight bins, not nine
        anchor, _, candidate = user.partition("# Candidate")
        assert "bytes of code" in anchor
        assert "bytes of code" in candidate
