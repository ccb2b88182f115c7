from __future__ import annotations

import numpy as np

from kernelcast.forecasters._encoding import Encoding
from kernelcast.types import Parameters

DOMAIN = {"block": (32, 64, 128, 256, 512), "layout": ("row", "column"), "fixed": (1,)}


def test_each_parameter_that_varies_has_levels_and_features() -> None:
    points: list[Parameters] = [
        {"block": 32, "layout": "row", "fixed": 1},
        {"block": 512, "layout": "column"},
    ]
    encoding = Encoding.of(points[:1], DOMAIN)
    levels, features = encoding.encode(points)
    assert levels.tolist() == [[0, 1], [4, 0]]
    assert features.shape == (2, 3)
    np.testing.assert_allclose(features[0], -features[1], atol=0.02)


def test_a_row_does_not_depend_on_the_others() -> None:
    points = [{"block": block, "layout": "row"} for block in (32, 64, 7, 512)]
    encoding = Encoding.of(points[:2], DOMAIN)
    _, together = encoding.encode(points)
    alone = np.vstack([encoding.encode([point])[1] for point in points])
    assert (together == alone).all()


def test_a_new_value_has_no_level_but_a_place() -> None:
    encoding = Encoding.of([{"block": 32, "layout": "row"}], DOMAIN)
    levels, features = encoding.encode(
        [{"block": 48, "layout": "tiled"}, {"block": 32, "layout": "row"}, {"block": "none"}]
    )
    assert levels[0].tolist() == [-1, -1]
    known = encoding.encode([{"block": 64, "layout": "row"}])[1]
    assert features[1, 0] < features[0, 0] < known[0, 0]
    assert features[2, 0] == 0.0


def test_nothing_varies() -> None:
    levels, features = Encoding.of([], {}).encode([{"block": 1}, {"block": 2}])
    assert not levels.any()
    assert not features.any()
