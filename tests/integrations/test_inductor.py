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


def compilations(folder: Path) -> Timed:
    """What each compilation timed: the parameters of candidates, and the name of ATen's."""
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


def test_inductor_times_what_a_tuner_chooses(tmp_path: Path) -> None:
    """One test: the compilations take half a minute, and each worker would repeat them."""
    timed = compilations(tmp_path)

    # No more candidates than are wanted: all are timed.
    assert len(timed["all"]) == 21
    assert timed["all"].count("mm") == 1

    # As many as are wanted are timed, and ATen's beside them.
    for call in ("first", "second", "stored", "from the store"):
        assert len(timed[call]) == 6 + 1, call
        assert "mm" in timed[call], call
        assert all(each in timed["all"] for each in timed[call]), call

    # The times of other sizes are known; nothing known would choose as before.
    for before, call in (("first", "second"), ("stored", "from the store")):
        assert timed[call] != timed[before]
        assert fastest(timed[before]) in timed[call]

    # What is tuned is not tuned again.
    for before, call in (("first", "first again"), ("stored", "again")):
        assert timed[call] == ["mm", fastest(timed[before])], call

    # What is no store is told and left out.
    assert timed["without the store"] == timed["first"]
    (warned,) = timed["warned"]
    assert "is tuned without the store: " in warned
    assert "none.db is not a kernelcast store" in warned

    # Implementations of a custom operator are timed for real, on this CPU.
    names = timed["custom operator"]
    assert len(names) == 2 + 1
    assert "kernelcast_product_fallback" in names
    assert sum("_repeated_steps__" in name for name in names) == 2

    assert timed["refused"] == "candidates is 0: time at least 1"
