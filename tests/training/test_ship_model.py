"""`tools/ship_model.py` and `kernelcast train`: a model and a card that says what it is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import ship_model
from kernelcast import dataset
from kernelcast.cli import main
from kernelcast.forecasters._source import SHIPPED, SourceModel

from .conftest import search_rows


def test_shipping_writes_a_model_and_its_card(tmp_path: Path) -> None:
    scores = {"kernels": 96, "failed": 0.25, "auroc_failure": 0.8125}
    judged = {"sources": {"made": dict.fromkeys(("nothing", "stepwise", "stored"), scores)}}
    card = ship_model.ship(dataset.to_table(search_rows(12, 8)), tmp_path, judged)
    assert SourceModel.load(tmp_path / SHIPPED).header.trained_on == "made (96)"
    assert (tmp_path / "card.md").read_text() == card
    for expected in ("| made | MIT | 96 |", "tools/ship_model.py", "must not be trusted", "0.812"):
        assert expected in card


def test_a_user_gets_a_model_and_its_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset.write_rows("rows.parquet", dataset.to_table(search_rows(12, 8)))
    ran = CliRunner().invoke(
        main, ["train", "trees", "rows.parquet", "--json"], catch_exceptions=False
    )
    written = json.loads(ran.stdout)
    assert SourceModel.load(Path(written["model"])).header.trained_on == "made (96)"
    card = Path(written["card"]).read_text()
    for expected in ("made (96)", "MIT", "| crps | ", "12 problems"):
        assert expected in card
