"""Inductor's own max-autotune times what a tuner chooses among its own candidates.

What is compiled is in `inductor_run`, a process of its own: Inductor keeps much in its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytest.importorskip("triton", reason="needs Triton: pip install triton")
pytestmark = pytest.mark.slow

Timed = dict[str, Any]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Timed:
    """What each compilation timed: the parameters of candidates, and the name of ATen's."""
    folder = tmp_path_factory.mktemp("inductor")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    environment["TORCHINDUCTOR_VEC_ISA_OK"] = "0"  # no compiler is started to find it out
    script = Path(__file__).with_name("inductor_run.py")
    command = [sys.executable, str(script), str(folder), str(folder / "timed.json")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: Timed = json.loads((folder / "timed.json").read_text())
    return found


def fastest(candidates: list[Any]) -> Any:
    """Return the fastest by the recorded times; those with 64 in BLOCK_K fail."""
    runs = [each for each in candidates if each != "mm" and each["BLOCK_K"] != 64]
    return min(runs, key=lambda at: abs(at["BLOCK_M"] - 64) / 64 + abs(at["num_warps"] - 4) / 4)


def test_all_candidates_are_timed_if_there_are_no_more_than_are_wanted(timed: Timed) -> None:
    assert len(timed["all"]) == 21
    assert timed["all"].count("mm") == 1


@pytest.mark.parametrize("call", ["first", "second", "stored", "from the store"])
def test_as_many_as_are_wanted_are_timed_and_aten_beside_them(timed: Timed, call: str) -> None:
    assert len(timed[call]) == 6 + 1
    assert "mm" in timed[call]
    assert all(each in timed["all"] for each in timed[call])


@pytest.mark.parametrize(("before", "call"), [("first", "second"), ("stored", "from the store")])
def test_the_times_of_other_sizes_are_known(timed: Timed, before: str, call: str) -> None:
    assert timed[call] != timed[before]  # which is what nothing known makes of the same candidates
    assert fastest(timed[before]) in timed[call]


def test_what_is_tuned_in_a_store_is_not_tuned_again(timed: Timed) -> None:
    assert timed["again"] == ["mm", fastest(timed["stored"])]


def test_what_is_no_store_is_told_and_left_out(timed: Timed) -> None:
    assert timed["without the store"] == timed["first"]
    (warned,) = timed["warned"]
    assert "is tuned without the store: " in warned
    assert "none.db is not a kernelcast store" in warned


def test_implementations_of_a_custom_operator_are_chosen_by_their_parameters(
    timed: Timed,
) -> None:
    """They are timed for real, on this CPU."""
    names = timed["custom operator"]
    assert len(names) == 2 + 1
    assert "kernelcast_product_fallback" in names
    assert sum("_repeated_steps__" in name for name in names) == 2


def test_no_candidate_is_wrong_use(timed: Timed) -> None:
    assert timed["refused"] == "candidates is 0: time at least 1"
