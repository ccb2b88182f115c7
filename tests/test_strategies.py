from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import plugins
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers.template import TemplateProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import BestOfN, Greedy, Islands, Puct
from kernelcast.testing import StrategyContract, SyntheticBackend, synthetic_problem
from kernelcast.types import Budget, Node
from tests.examples import EXAMPLES, install_example

EXAMPLE = EXAMPLES / "tournament"
LONGEST_EXAMPLE = 60


class TestGreedy(StrategyContract):
    def make(self) -> Any:
        return Greedy()

    def test_takes_the_fastest_first(self) -> None:
        archive = [node("slow", -1.0), node("fast", 2.0), node("middle", 1.0)]
        assert Greedy(explore=0.0).select(archive, 2, seed=0) == ["fast", "middle"]

    def test_doubt_is_no_reward(self) -> None:
        archive = [
            node("measured", 1.0),
            node("imagined", 1.2, std=0.3),
            node("sure", 1.2, std=0.1),
        ]
        assert Greedy(explore=0.0).select(archive, 3, seed=0) == ["sure", "measured", "imagined"]

    def test_explores_as_often_as_told(self) -> None:
        archive = [node(f"{index:03}", float(-index)) for index in range(100)]
        chosen = [Greedy(explore=0.3).select(archive, 1, seed)[0] for seed in range(400)]
        elsewhere = sum(key != "000" for key in chosen)
        assert 80 <= elsewhere <= 160  # 30% of 400, four standard deviations around
        assert len(set(chosen)) > 30

    def test_explores_more_once_patience_is_used_up(self) -> None:
        archive = [node(f"{index:03}", float(-index)) for index in range(100)]

        def elsewhere(stale: int) -> int:
            strategy = Greedy(explore=0.2, patience=10)
            chosen = [strategy.select(archive, 1, seed, stale=stale)[0] for seed in range(400)]
            return sum(key != "000" for key in chosen)

        assert elsewhere(0) == elsewhere(10)
        # 1 - 0.8 ** 4 is 59%: 236 of 400, four standard deviations around.
        assert 196 <= elsewhere(40) <= 276


class TestPuct(StrategyContract):
    def make(self) -> Any:
        return Puct()

    def test_without_exploration_the_best_child_counts(self) -> None:
        archive = [node("a", 0.0, best_child=3.0), node("b", 2.0), node("c", 1.0)]
        assert Puct(exploration=0.0).select(archive, 3, 0) == ["a", "b", "c"]

    def test_scores_as_the_formula_says(self) -> None:
        # Rewards 1 and 2: scale 1, priors 2/3 for b and 1/3 for a, T = 8.
        # a: 1 + c (1/3) 3 / 1 = 1 + c;  b: 2 + c (2/3) 3 / 9 = 2 + 2c/9;  equal at c = 9/7.
        archive = [node("a", 0.0), node("b", 1.0, visits=8)]
        assert Puct(exploration=9 / 7 - 0.01).select(archive, 1, 0) == ["b"]
        assert Puct(exploration=9 / 7 + 0.01).select(archive, 1, 0) == ["a"]

    def test_stagnation_raises_exploration(self) -> None:
        # As above: c = 1 takes b, until patience is used up 9/7 times over.
        archive = [node("a", 0.0), node("b", 1.0, visits=8)]
        strategy = Puct(exploration=1.0, patience=7)
        assert strategy.select(archive, 1, 0, stale=8) == ["b"]
        assert strategy.select(archive, 1, 0, stale=10) == ["a"]

    def test_a_forecast_child_counts_by_its_lower_end(self) -> None:
        # What is imagined of a's child would make it the best parent, were it sure.
        archive = [
            node("a", 0.0, best_child=2.0),
            node("a1", 2.0, parent="a", std=1.5),
            node("b", 1.0),
        ]
        assert Puct(exploration=0.0).select(archive, 1, 0) == ["b"]
        surer = [archive[0], node("a1", 2.0, parent="a", std=0.5), archive[2]]
        assert Puct(exploration=0.0).select(surer, 1, 0)[0] in {"a", "a1"}

    def test_visits_below_a_node_count_for_it(self) -> None:
        # Alike but for a grandchild's visits; the tie would go to "a" by its name.
        archive = [
            node("a", 1.0, best_child=0.0),
            node("b", 1.0, best_child=0.0),
            node("a1", 0.0, parent="a"),
            node("a2", 0.0, parent="a1", visits=5),
        ]
        assert Puct().select(archive, 1, 0) == ["b"]

    def test_parents_chosen_together_are_of_different_lineages(self) -> None:
        archive = [
            node("root", 0.0),
            node("child", 3.0, parent="root"),
            node("grandchild", 2.9, parent="child"),
            node("other", 1.0),
        ]
        # The root by its child, which is therefore barred with its own child.
        assert Puct(exploration=0.0).select(archive, 4, 0) == ["root", "other"]


class TestIslands(StrategyContract):
    def make(self) -> Any:
        return Islands()

    def test_an_empty_island_begins_at_the_seed(self) -> None:
        archive = [seed_node(), node("a", 3.0, parent="seed")]
        chosen = Counter(Islands(islands=4).select(archive, 1, seed)[0] for seed in range(8))
        assert chosen == {"seed": 6, "a": 2}  # of four islands, a's lineage has settled one

    def test_a_lineage_stays_on_its_island(self) -> None:
        archive = [seed_node(), *line("a", 6), *line("b", 6), *line("c", 6)]
        strategy = Islands(islands=5)
        homes: dict[str, set[int]] = {}
        for seed in range(400):
            (key,) = strategy.select(archive, 1, seed)
            homes.setdefault(key[0], set()).add(seed % 5)
        assert {name: len(homes[name]) for name in "abc"} == {"a": 1, "b": 1, "c": 1}

    def test_each_cell_is_represented_by_its_fastest(self) -> None:
        archive = [
            node("wide fast", 2.0, cell=(1,)),
            node("wide slow", 1.0, cell=(1,)),
            node("narrow fast", 1.5, cell=(2,)),
            node("narrow guessed", 1.6, cell=(2,), std=0.4),
        ]
        chosen = {Islands(islands=1).select(archive, 1, seed)[0] for seed in range(60)}
        assert chosen == {"wide fast", "narrow fast"}

    def test_speed_and_novelty_both_count(self) -> None:
        def share(fast_visits: int, slow: float) -> float:
            archive = [
                node("fast", 2.0, cell=(1,), visits=fast_visits),
                node("other", slow, cell=(2,)),
            ]
            drawn = [Islands(islands=1).select(archive, 1, seed)[0] for seed in range(400)]
            return drawn.count("other") / len(drawn)

        assert share(0, 2.0) == pytest.approx(1 / 2, abs=0.1)
        assert share(0, 0.0) == pytest.approx(1 / 5, abs=0.08)
        assert share(15, 0.0) == pytest.approx(1 / 2, abs=0.1)

    def test_stagnation_restarts_from_the_least_visited_cell(self) -> None:
        archive = [
            node("best", 4.0, cell=(1,), visits=30),
            node("good", 3.0, cell=(2,), visits=9),
            node("odd", -2.0, cell=(3,), visits=1),
            node("odder", -3.0, cell=(3,)),
        ]
        strategy = Islands(islands=1, patience=10)
        drawn = [strategy.select(archive, 1, seed, stale=100)[0] for seed in range(200)]
        assert drawn.count("odd") >= 160  # nine of ten
        assert strategy.select(archive, 1, 0, stale=10) == strategy.select(archive, 1, 0)

    def test_parents_chosen_together_come_from_different_islands(self) -> None:
        archive = [seed_node(), *(child for key in "abcdefgh" for child in line(key, 3))]
        for seed in range(20):
            first, second = Islands(islands=2).select(archive, 2, seed)
            assert first[0] != second[0]

    def test_a_world_without_land_is_refused(self) -> None:
        with pytest.raises(SetupError, match="at least 1"):
            plugins.build("strategy", ComponentSpec(name="islands", options={"islands": 0}))


class TestBestOfN(StrategyContract):
    def make(self) -> Any:
        return BestOfN()

    def test_always_the_seed_whatever_was_found(self) -> None:
        archive = [node("a", 3.0, parent="seed"), seed_node(), node("b", 5.0, parent="a")]
        for seed in range(5):
            assert BestOfN().select(archive, 2, seed, stale=50) == ["seed"]


@pytest.mark.parametrize(
    "strategy", [Greedy(), Puct(), Islands()], ids=lambda strategy: strategy.name
)
@settings(max_examples=40, deadline=None)
@given(
    speeds=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=12),
    stale=st.integers(0, 500),
    seed=st.integers(0, 2**60),
)
def test_more_doubt_never_makes_a_kernel_more_welcome(
    strategy: Any, speeds: list[float], stale: int, seed: int
) -> None:
    """Imagined kernels that are all worse by their lower end never come before what was measured,
    unless the strategy explores: they are chosen as a measured kernel of that speed would be."""
    guessed = [node(f"{i:02}", speed, std=1.0) for i, speed in enumerate(speeds)]
    measured = [node(f"{i:02}", speed - 1.0) for i, speed in enumerate(speeds)]
    assert strategy.select(guessed, 3, seed, stale=stale) == strategy.select(
        measured, 3, seed, stale=stale
    )


# ------------------------------------------------------------------------------- the example


@pytest.fixture
def installed_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example("tournament", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed_example")
class TestExample(StrategyContract):
    """The strategy in examples/, found by its entry point and by nothing else."""

    def make(self) -> Any:
        return plugins.build("strategy", ComponentSpec(name="tournament"))

    def test_a_search_can_use_it(self, tmp_path: Path) -> None:
        parts = Parts(
            proposer=TemplateProposer(),
            forecaster=RooflineForecaster(),
            policy=MeasureAll(),
            strategy=self.make(),
            farm=LocalFarm(SyntheticBackend()),
        )
        with Store.open(tmp_path / "store.db") as store:
            result = Search(synthetic_problem(), parts, store).run(Budget(measurements=20))
        assert result.speedup > 1.0

    def test_it_is_short(self) -> None:
        lines = (EXAMPLE / "kernelcast_tournament.py").read_text().splitlines()
        assert len(lines) <= LONGEST_EXAMPLE


def node(
    key: str,
    log2_speedup: float,
    *,
    parent: str | None = None,
    visits: int = 0,
    best_child: float | None = None,
    std: float = 0.0,
    cell: tuple[int, ...] = (),
) -> Node:
    return Node(
        kernel_id=key,
        parent_id=parent,
        log2_speedup=log2_speedup,
        origin="forecast" if std else "measured",
        visits=visits,
        best_child=best_child,
        std_log2=std,
        behaviour=cell,
    )


def seed_node() -> Node:
    return Node(kernel_id="seed", parent_id=None, log2_speedup=0.0, origin="seed")


def line(name: str, length: int) -> list[Node]:
    """A lineage below the seed, each in a cell of its own."""
    keys = ["seed", *(f"{name}{index}" for index in range(length))]
    return [
        node(key, 0.1 * index, parent=parent, cell=(ord(name), index))
        for index, (parent, key) in enumerate(itertools.pairwise(keys))
    ]
