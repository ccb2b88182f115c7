"""The recipes on the real small model: one step each, then the way to a search that asks it."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli import main
from kernelcast.dataset import to_table, write_rows
from kernelcast.events import Forecasted
from kernelcast.outcomes import CAUSES, Outcomes, Shares
from kernelcast.store import Store
from kernelcast.training.rewards import Weights, reward
from tests.model_server import real_model

from .conftest import search_rows

pytestmark = pytest.mark.slow


def told(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    facts: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return facts


def test_a_model_is_trained_exported_served_and_asked_in_a_search(
    small_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as name:  # hundreds of MB, which pytest would keep
        folder = Path(name)
        rewarded = _trained(small_base, folder)
        exported = told("train", "export", str(rewarded), "--format", "gguf")
        assert exported["out"] == f"{rewarded}.gguf"
        assert CliRunner().invoke(main, ["init", "mine"]).exit_code == 0
        with real_model(file=Path(exported["out"])) as base_url:
            command = (
                "search mine --name r --forecaster llm --model tuned --ask direct "
                "--set forecaster.timeout_s=1800 --candidates 1 --pool 1 --base-url"
            )
            report = told(*command.split(), base_url)
    assert report["considered"] == 1
    with Store.open(".kernelcast/store.db") as store:
        (event,) = store.open_run("r").events("forecasted")
        assert isinstance(event, Forecasted)
        assert not event.forecast.unparsed


def _trained(small_base: Path, folder: Path) -> Path:
    """Do one supervised step, and then one step of GRPO."""
    rows = folder / "rows.parquet"
    write_rows(rows, to_table(search_rows(2, 4)))
    shared = ("--configuration", "135m-cpu", "--limit", "1", "--steps", "1", "--rank", "4")
    supervised, rewarded = folder / "supervised", folder / "rewarded"
    command = ("train", "supervised", str(rows), "--base", str(small_base), *shared)
    first = told(*command, "--loss", "crps", "--out", str(supervised))
    assert first["questions"] == 1
    assert [math.isfinite(loss) for loss in first["loss"]] == [True]
    few = ("--prompts", "1", "--rollouts", "2", "--reward", "brier", "--out", str(rewarded))
    second = told("train", "grpo", str(rows), "--base", str(supervised), *shared, *few)
    assert [0.0 <= value <= 2.0 for value in second["reward"]] == [True]
    return rewarded


def test_the_crps_loss_is_one_less_the_reward() -> None:
    torch = pytest.importorskip("torch")
    from kernelcast.training.supervised import _crps_loss

    outcomes = Outcomes()
    torch.manual_seed(0)
    logits = torch.randn(64, outcomes.count + 3) * 2.0
    logits[:, outcomes.count :] = -1e4  # nothing but letters
    happened = torch.arange(64) % outcomes.count
    loss = _crps_loss(logits, torch.arange(outcomes.count), happened)
    chances = torch.softmax(logits.double()[:, : outcomes.count], dim=-1)
    scored = Weights(correctness=0.0, crps=1.0)
    earned = [
        reward(Shares.of(row.tolist()), int(outcome), scored)
        for row, outcome in zip(chances, happened, strict=True)
    ]
    assert float(loss) == pytest.approx(2.0 * (1.0 - sum(earned) / len(earned)), rel=1e-5)
    assert len(CAUSES) < outcomes.count
