"""Best configurations by shape: what is written, what is found, and the doubt that is stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast import BestByShape, SetupError, Tuner

SPACE = [{"block": block} for block in (32, 64, 128, 256)]


def seconds(block: int, size: int) -> float:
    """A small shape wants small blocks."""
    return 1e-6 * size * (1 + abs(block * 16 - size) / size)


def tuned(size: int, device: str | None = "A100", blocks: tuple[int, ...] = (32, 64, 128)) -> Tuner:
    tuner = Tuner(SPACE, device=device)
    for block in blocks:
        tuner.report({"block": block}, seconds=seconds(block, size))
    tuner.report({"block": 256}, failed=True)
    return tuner


def shape(size: int, dtype: str = "float16") -> dict[str, int | str]:
    return {"m": size, "dtype": dtype}


@pytest.fixture
def table(tmp_path: Path) -> BestByShape:
    table = BestByShape(tmp_path / "best.json")
    for size in (512, 1024, 2048):
        table.add(tuned(size), shape(size))
    return BestByShape(table.path)


def test_a_measured_shape_has_its_own_best_and_its_time(table: BestByShape) -> None:
    choice = table.find(shape(1024), "A100")
    assert choice is not None
    assert choice.configuration == {"block": 64}
    assert choice.seconds == seconds(64, 1024)
    assert choice.distance == 0
    assert choice.losses == ()
    assert choice.doubt == "measured here: the fastest of 4 configurations"


def test_another_shape_has_the_best_of_the_nearest_and_says_that_it_is_not_measured(
    table: BestByShape,
) -> None:
    choice = table.find(shape(1200), "A100")
    assert choice is not None
    assert (choice.configuration, choice.shape) == ({"block": 64}, shape(1024))
    assert choice.seconds is None
    assert choice.distance == pytest.approx(0.229, abs=1e-3)
    # The best of each shape's nearest one (1024, 512, 1024) at that shape.
    lost = [seconds(64, 512) / seconds(32, 512) - 1, seconds(32, 1024) / seconds(64, 1024) - 1]
    lost.append(seconds(64, 2048) / seconds(128, 2048) - 1)
    assert list(choice.losses) == pytest.approx(lost)
    assert "not measured at m=1200 dtype=float16: the fastest at m=1024" in choice.doubt
    assert "at 3 measured shapes the best of the nearest one was 50% slower" in choice.doubt
    assert "100% at worst" in choice.doubt


def test_distance_is_in_doublings_over_all_sizes(tmp_path: Path) -> None:
    table = BestByShape(tmp_path / "best.json")
    table.add(tuned(512), {"m": 512, "n": 4096})
    table.add(tuned(2048), {"m": 2048, "n": 512})
    choice = table.find({"m": 2048, "n": 2048})
    assert choice is not None
    assert choice.shape == {"m": 2048, "n": 512}
    assert choice.distance == 2.0


def test_words_and_names_have_to_match(table: BestByShape) -> None:
    assert table.find(shape(1024, "float32"), "A100") is None
    assert table.find({"m": 1024}, "A100") is None
    assert table.find(shape(0), "A100") is None


def test_another_device_serves_where_the_own_has_nothing(table: BestByShape) -> None:
    choice = table.find(shape(1024), "H100")
    assert choice is not None
    assert (choice.device, choice.seconds) == ("A100", None)
    assert choice.doubt.startswith("not measured on H100: the fastest at m=1024 dtype=float16 on A")
    table.add(tuned(512, "H100"), shape(512))
    choice = table.find(shape(1024), "H100")
    assert choice is not None
    assert (choice.device, choice.shape) == ("H100", shape(512))
    assert choice.doubt.endswith("how much slower it is than the best is not known")


def test_adding_again_keeps_the_older_times(table: BestByShape) -> None:
    tuner = Tuner(SPACE, device="A100")
    tuner.report({"block": 256}, seconds=1e-9)
    table.add(tuner, shape(1024))
    choice = BestByShape(table.path).find(shape(1024), "A100")
    assert choice is not None
    assert (choice.configuration, choice.seconds) == ({"block": 256}, 1e-9)
    assert choice.doubt == "measured here: the fastest of 4 configurations"


def test_other_shapes_are_known_to_a_tuner(table: BestByShape) -> None:
    known = table.known(shape(1024), "A100")
    assert list(known) == ["A100 (m=512 dtype=float16)", "A100 (m=2048 dtype=float16)"]
    assert known["A100 (m=512 dtype=float16)"]['{"block":256}'] is None
    tuner = Tuner(SPACE, device="A100", known=known)
    assert tuner.best is None
    assert tuner.suggest()[0].configuration != {"block": 256}


def test_mistakes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    with pytest.raises(SetupError, match="report one before"):
        BestByShape(path).add(Tuner(SPACE), shape(1))
    assert not path.exists()
    path.write_text("[]")
    with pytest.raises(SetupError, match="is no table of shapes: give it another name"):
        BestByShape(path)
