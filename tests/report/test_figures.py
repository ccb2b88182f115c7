"""That figures can be read; what they show is tested where it is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.report.figures import _in_octaves, _pyplot, draw_best_so_far


@pytest.mark.parametrize(("low", "high"), [(0.99, 1.02), (20.0, 38.0), (1.0, 100.0), (0.5, 2e4)])
def test_an_axis_of_speedups_has_ticks_enough(low: float, high: float) -> None:
    figure, axes = _pyplot().subplots()
    axes.plot([0, 1], [low, high])
    _in_octaves(axes)
    figure.canvas.draw()
    shown = [
        label.get_text()
        for at, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if axes.get_ylim()[0] <= at <= axes.get_ylim()[1]
    ]
    _pyplot().close(figure)
    assert len({*shown}) == len(shown) >= 3
    assert all(each.endswith("x") for each in shown)


def test_best_so_far_is_drawn_of_runs_of_different_length(tmp_path: Path) -> None:
    arms: dict[str, list[list[float]]] = {"one": [[0.0, 1.0, 1.5], [0.2, 0.9]], "none yet": [[]]}
    path = draw_best_so_far(arms, tmp_path / "new" / "best.png", "two runs")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    path = draw_best_so_far({r"$\nope$": [[0.0, 1.0]]}, tmp_path / "best.png", r"$\frac{$")
    assert path.read_bytes().startswith(b"\x89PNG")
